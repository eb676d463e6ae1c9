//! Worth: when settings cost more driver time than the memory is worth that they save.

use larder_sim::Spent;

/// What saves less than this part of what is held is not worth another setting.
pub(crate) const TRIFLE: f64 = 0.003;
/// So much driver time is not worth a word.
const TRIFLE_NS: u64 = 10_000_000;

/// Whether settings go on costing what those that are usual do not: more than twice the driver time
/// in the last third of a program, by which whatever repeats itself has settled.
pub(crate) fn is_dear(late: Spent, usual: Spent) -> bool {
    late.ns > 2 * usual.ns + TRIFLE_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_costing_is_dear() {
        let spent = |ms: u64| Spent { calls: 1, ns: ms * 1_000_000 };
        assert!(!is_dear(spent(9), spent(0)), "a trifle");
        assert!(is_dear(spent(11), spent(0)));
        assert!(!is_dear(spent(200), spent(100)));
        assert!(is_dear(spent(211), spent(100)));
    }
}
