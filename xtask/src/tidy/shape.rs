//! The shape of the tree: how long files are, and what they are called.

use super::Finding;
use super::tree::{File, Tree};

const LINES_MAX: usize = 600;

/// The languages whose files are read by people from top to bottom.
const MEASURED: [&str; 4] = ["rs", "cpp", "h", "py"];

/// Names that say nothing of what is inside, and so attract everything.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "base", "helper", "helpers"];

/// Files that have outgrown one noun.
pub(super) fn check_lengths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts().filter(|(file, _)| MEASURED.contains(&file.extension())) {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            let message =
                format!("{lines} lines, where {LINES_MAX} are the most: split the file by noun");
            findings.push(Finding::new(&file.path, LINES_MAX + 1, message));
        }
    }
    findings
}

/// Files whose name could be that of any other.
pub(super) fn check_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let noun = noun(file);
        if EMPTY_NAMES.contains(&noun.to_lowercase().as_str()) {
            let message = format!(
                "`{noun}` names nothing: move each item to the file of the noun that it serves"
            );
            findings.push(Finding::new(&file.path, 1, message));
        }
    }
    findings
}

/// What the file is called; a module or a package is called like its folder.
fn noun(file: &File) -> &str {
    if matches!(file.name(), "mod.rs" | "__init__.py") {
        return file.path.rsplit('/').nth(1).unwrap_or("");
    }
    file.name().split('.').next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_fails_and_a_full_one_does_not() {
        let full = "x\n".repeat(LINES_MAX);
        let long = "x\n".repeat(LINES_MAX + 1);
        for path in ["a.rs", "a.cpp", "a.h", "a.py"] {
            assert!(check_lengths(&Tree::of(&[(path, &full)])).is_empty());
            let findings = check_lengths(&Tree::of(&[(path, &long)]));
            assert_eq!((findings.len(), findings[0].line), (1, LINES_MAX + 1));
        }
        assert!(check_lengths(&Tree::of(&[("LICENSE", &long), ("a.md", &long)])).is_empty());
    }

    #[test]
    fn empty_names_fail() {
        let bad = ["src/utils.rs", "common.h", "src/base.cpp", "helpers.py", "tests/common/mod.rs"];
        for path in bad {
            assert_eq!(check_names(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        for path in ["src/database.rs", "src/heap/mod.rs", "base/heap.rs", "mod.rs"] {
            assert!(check_names(&Tree::of(&[(path, "")])).is_empty(), "{path}");
        }
    }
}
