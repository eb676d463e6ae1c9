//! The policy tight is a placement: who places is asked, and nobody asks which policy it is.

use super::Finding;
use super::source::{tokens, without_tests};
use super::tree::Tree;

const CORE: &str = "crates/larder-core/src/";

/// The questions after the policy.
const QUESTIONS: [&str; 1] = ["is_tight"];

/// Where they may be asked: in a placement itself, and where a placement is chosen.
const MAY_ASK: [&str; 4] = ["policy.rs", "heap/placement.rs", "heap/best_fit/", "heap/paged/"];

/// Every question outside of them.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.rust() {
        let Some(inside) = file.path.strip_prefix(CORE) else { continue };
        if MAY_ASK.iter().any(|place| inside.starts_with(place)) {
            continue;
        }
        for token in without_tests(&tokens(text)) {
            if QUESTIONS.contains(&token.text.as_str()) {
                let message = format!("`{}`: ask the placement, not the policy", token.text);
                findings.push(Finding::new(&file.path, token.line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_counts_outside_of_placements_alone() {
        let ask = |inside: &str| {
            let path = format!("{CORE}{inside}");
            check(&Tree::of(&[(&path, "// is_tight\nfn f() { is_tight() }\n")])).len()
        };
        assert_eq!((ask("heap/cut.rs"), ask("heap/paged/mod.rs")), (1, 0));
    }
}
