//! The policy tight is a placement: who places is asked, and nobody asks which policy it is.

use super::Finding;
use super::tree::Tree;

const CORE: &str = "crates/larder-core/src/";

/// The question after the policy.
const QUESTION: &str = "is_tight";

/// Where it may be asked: in a placement itself, and where a placement is chosen.
const MAY_ASK: [&str; 4] = ["policy.rs", "heap/placement.rs", "heap/best_fit/", "heap/paged/"];

/// Every question outside of them.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let may_not = tree.sources.iter().filter(|source| {
        let inside = source.path.strip_prefix(CORE);
        inside.is_some_and(|inside| !MAY_ASK.iter().any(|place| inside.starts_with(place)))
    });
    let asked = may_not.flat_map(|source| {
        let asked = source.without_tests.iter().filter(|token| token.text == QUESTION);
        asked.map(|token| {
            let message = format!("`{QUESTION}`: ask the placement, not the policy");
            Finding::new(&source.path, token.line, message)
        })
    });
    asked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_counts_outside_of_placements_alone() {
        let ask = |inside: &str| {
            let path = format!("{CORE}{inside}");
            check(&Tree::with(&[(&path, "// is_tight\nfn f() { is_tight() }\n")])).len()
        };
        assert_eq!((ask("heap/cut.rs"), ask("heap/paged/mod.rs")), (1, 0));
    }
}
