//! What the examples have in common: what a thread does on a visit, and how long many of them took.

use std::hint::black_box;

/// So much work that no compiler leaves out.
pub(crate) fn work(value: &mut u64, steps: u64) {
    for _ in 0..steps {
        *value = black_box(*value + 1);
    }
}

/// The median of some times, what nine in ten take at most, and the longest.
pub(crate) fn spread(mut times: Vec<u128>) -> [u128; 3] {
    times.sort_unstable();
    [50, 90, 100].map(|part| times[(times.len() - 1) * part / 100])
}
