//! ARCHITECTURE.md is short, and its words are those of the code.

use super::Finding;
use super::text::wide_lines;
use super::tree::Tree;

const PAGE: &str = "ARCHITECTURE.md";
const LINES_MAX: usize = 300;
const WORDS_MAX: usize = 50;
/// The heading above the table of words.
const WORDS: &str = "## The words";

/// A page that is too long or too wide, a table with too many words, and words that nobody uses.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some((file, text)) = tree.texts().find(|(file, _)| file.path == PAGE) else {
        return Vec::new();
    };
    let mut findings = wide_lines(file, text);
    let mut report = |line, message: String| findings.push(Finding::new(PAGE, line, message));
    let lines = text.lines().count();
    if lines > LINES_MAX {
        report(LINES_MAX + 1, format!("{lines} lines, where {LINES_MAX} are the most"));
    }
    let rows = text.lines().zip(1..).skip_while(|(line, _)| *line != WORDS).skip(1);
    let rows = rows.take_while(|(line, _)| !line.starts_with("## "));
    let rows: Vec<(&str, usize)> = rows.filter(|(line, _)| line.starts_with("| **")).collect();
    if let Some((_, line)) = rows.get(WORDS_MAX) {
        report(*line, format!("{} words, where {WORDS_MAX} are the most", rows.len()));
    }
    let is_code = |path: &str| path.starts_with("crates/") || path.starts_with("torch/");
    let code = tree.texts().filter(|(file, _)| is_code(&file.path)).map(|(_, text)| bare(text));
    let code: Vec<String> = code.collect();
    for (row, line) in rows {
        // `| **Word**, **Another** | what they mean |`
        let words = row.split(" | ").next().unwrap_or_default().split("**").skip(1).step_by(2);
        for word in words.filter(|word| !code.iter().any(|code| code.contains(&bare(word)))) {
            report(line, format!("the code does not know the word `{word}`"));
        }
    }
    findings
}

/// A text as names have it: `Put off`, `PutOff` and `put_off` are one.
fn bare(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '_')).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let code = ("crates/any/src/lib.rs", "struct Block;\nfn put_off() {}\n");
        check(&Tree::with(&[(PAGE, page), code])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_page_that_grew_fails() {
        assert!(found(&"x\n".repeat(LINES_MAX)).is_empty());
        let message = "ARCHITECTURE.md:301: 301 lines, where 300 are the most";
        assert_eq!(found(&"x\n".repeat(LINES_MAX + 1)), [message]);
        assert_eq!(found(&"x".repeat(101)).len(), 1);
    }

    #[test]
    fn the_words_are_few_and_used() {
        let table =
            |rows: &str| format!("{WORDS}\n\n| word | meaning |\n|---|---|\n{rows}\n## End\n");
        assert!(found(&table("| **Block**, **Put off** | spans |\n")).is_empty());
        assert!(found(&table(&"| **Block** | spans |\n".repeat(WORDS_MAX))).is_empty());
        assert_eq!(found(&table(&"| **Block** | spans |\n".repeat(WORDS_MAX + 1))).len(), 1);
        let message = "ARCHITECTURE.md:5: the code does not know the word `Cube`";
        assert_eq!(found(&table("| **Cube**, **Block** | spans |\n")), [message]);
    }
}
