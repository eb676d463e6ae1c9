//! White space that nobody sees: at the ends of lines, and none at the end of a file.

use super::Finding;
use super::tree::Tree;

/// Lines that end in white space, and files that do not end in a line break.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (index, line) in text.split('\n').enumerate() {
            if line.ends_with(char::is_whitespace) {
                let message = "white space at the end of the line: remove it";
                findings.push(Finding::new(&file.path, index + 1, message));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            let message = "the last line has no end: add a line break";
            findings.push(Finding::new(&file.path, text.lines().count(), message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Tree::of(&[("a.txt", text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn clean_and_empty_files_pass() {
        assert!(lines("").is_empty());
        assert!(lines("a\n\n  b\n").is_empty());
    }

    #[test]
    fn white_space_at_the_end_of_a_line_fails() {
        assert_eq!(lines("a\nb \nc\t\n"), [2, 3]);
        assert_eq!(lines("a\r\n"), [1]);
    }

    #[test]
    fn a_last_line_without_an_end_fails() {
        assert_eq!(lines("a\nb"), [2]);
    }
}
