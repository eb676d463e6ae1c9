//! Unsafe code: which crates forbid it.
//!
//! That it stands nowhere else, and that each block says why it is sound, is then the compiler's
//! and clippy's to see (`unsafe_code`, `undocumented_unsafe_blocks`).

use super::Finding;
use super::tree::Tree;

/// The crates that call foreign code or share memory by hand.
const EXEMPT: [&str; 7] = ["lock", "cuda", "cudart", "c", "dryrun", "proof", "tape"];

/// The crate that has some in corners (see words.rs).
const WITH_CORNERS: &str = "crates/larder/src";

/// How far above a list of foreign functions, which clippy passes over, the note on its soundness
/// may begin.
const NOTE_LINES_MAX: usize = 5;

/// Crates that do not forbid unsafe code, and foreign functions with no note.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Packages that only tests build are nobody's to use.
    for source in tree.sources.iter().filter(|source| !source.folder.contains("/tests/")) {
        let mut report = |line, message: &str| {
            findings.push(Finding::new(&source.path, line, message));
        };
        let text = tree.text(&source.path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let note = &lines[at.saturating_sub(NOTE_LINES_MAX)..at];
            if line.trim_start() == "unsafe extern \"C\" {"
                && !note.iter().any(|line| line.contains("// SAFETY:"))
            {
                report(at + 1, "nothing says why this is sound: write a `// SAFETY:` comment");
            }
        }
        let name = source.folder.trim_start_matches("crates/larder-").trim_end_matches("/src");
        let lint = if source.folder == WITH_CORNERS { "deny" } else { "forbid" };
        let wanted = format!("#![{lint}(unsafe_code)]");
        let is_safe = source.module.is_empty() && !EXEMPT.contains(&name);
        if is_safe && !lines.contains(&wanted.as_str()) {
            report(1, &format!("add `{wanted}` below the crate's comment"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::with(&[(path, text)])).len()
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_code_fails() {
        let root = "crates/larder-sim/src/lib.rs";
        assert_eq!(found(root, "// #![forbid(unsafe_code)]\n"), 1);
        assert_eq!(found(root, "#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(found("crates/larder/src/lib.rs", "#![forbid(unsafe_code)]\n"), 1);
        assert_eq!(found("crates/larder-c/src/lib.rs", ""), 0);
        for program in ["xtask/src/main.rs", "python/src/lib.rs", "crates/larder-cli/src/main.rs"] {
            assert_eq!(found(program, "fn main() {}\n"), 1);
        }
    }

    #[test]
    fn foreign_functions_need_a_note_nearby() {
        let path = "crates/larder-cuda/src/driver.rs";
        assert_eq!(found(path, "unsafe extern \"C\" {\n}\n"), 1);
        assert_eq!(found(path, "// SAFETY: so.\n\n\nunsafe extern \"C\" {\n}\n"), 0);
    }
}
