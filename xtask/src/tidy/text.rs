//! What a file looks like: its name, its length, the width of its lines, its end.

use super::Finding;
use super::tree::{File, Tree};

const LINES_MAX: usize = 600;
/// The interface of the library for C, which programs include as one file.
const C_INTERFACE: (&str, usize) = ("crates/larder-c/include/larder.h", 850);
pub(super) const COLUMNS_MAX: usize = 100;

/// The languages whose files are read by people from top to bottom.
const MEASURED: [&str; 4] = ["rs", "cpp", "h", "py"];

/// Names that say nothing of what is inside, and so attract everything.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "base", "helper", "helpers"];

/// Files that have outgrown one noun, lines that are too wide, and a last line with no end.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = wide(tree);
    findings.extend(check_names(tree));
    for (file, text) in tree.texts() {
        let mut report =
            |line, message: String| findings.push(Finding::new(&file.path, line, message));
        let lines = text.lines().count();
        let (interface, most) = C_INTERFACE;
        let most = if file.path == interface { most } else { LINES_MAX };
        if MEASURED.contains(&file.extension()) && lines > most {
            let message =
                format!("{lines} lines, where {most} are the most: split the file by noun");
            report(most + 1, message);
        }
        if !text.is_empty() && !text.ends_with('\n') {
            report(lines, "the last line has no end: add a line break".to_owned());
        }
    }
    findings
}

/// Every line that is too wide, be it code, a comment or a text in quotes.
pub(super) fn wide(tree: &Tree) -> Vec<Finding> {
    let measured = tree.texts().filter(|(file, _)| MEASURED.contains(&file.extension()));
    measured.flat_map(|(file, text)| wide_lines(file, text)).collect()
}

/// The lines of a file that are too wide.
pub(super) fn wide_lines(file: &File, text: &str) -> Vec<Finding> {
    let columns = text.lines().map(|line| line.chars().count()).zip(1..);
    let wide = columns.filter(|(columns, _)| *columns > COLUMNS_MAX).map(|(columns, line)| {
        let message = format!("{columns} columns, where {COLUMNS_MAX} are the most");
        Finding::new(&file.path, line, message)
    });
    wide.collect()
}

/// Files whose name could be that of any other.
fn check_names(tree: &Tree) -> Vec<Finding> {
    let nouns = tree.files.iter().map(|file| (file, noun(file)));
    let empty = nouns.filter(|(_, noun)| EMPTY_NAMES.contains(&noun.to_lowercase().as_str()));
    let message = |noun| {
        format!("`{noun}` names nothing: move each item to the file of the noun that it serves")
    };
    empty.map(|(file, noun)| Finding::new(&file.path, 1, message(noun))).collect()
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

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::with(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_long_file_fails_and_a_full_one_does_not() {
        let (full, long) = ("x\n".repeat(LINES_MAX), "x\n".repeat(LINES_MAX + 1));
        for path in ["a.rs", "a.cpp", "a.h", "a.py"] {
            assert!(lines(path, &full).is_empty());
            assert_eq!(lines(path, &long), [LINES_MAX + 1]);
        }
        assert!(lines("a.md", &long).is_empty());
    }

    #[test]
    fn a_wide_line_fails_where_none_may_be() {
        let wide = format!("{}\n{}\n", "é".repeat(COLUMNS_MAX), "x".repeat(COLUMNS_MAX + 1));
        assert_eq!(lines("crates/larder-lock/src/a.rs", &wide), [2]);
    }

    #[test]
    fn the_last_line_has_an_end() {
        assert_eq!(lines("a.txt", "a\nb"), [2]);
        assert!(lines("a.txt", "a\n").is_empty() && lines("a.txt", "").is_empty());
    }

    #[test]
    fn empty_names_fail() {
        for path in ["src/utils.rs", "common.h", "src/base.cpp", "tests/common/mod.rs"] {
            assert_eq!(check_names(&Tree::with(&[(path, "")])).len(), 1, "{path}");
        }
        for path in ["src/database.rs", "base/heap.rs", "mod.rs"] {
            assert!(check_names(&Tree::with(&[(path, "")])).is_empty(), "{path}");
        }
    }
}
