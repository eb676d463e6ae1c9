//! The paper: how wide a terminal is, and text that is broken to fit it. What goes to a file or to
//! another program is as wide as it is.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicUsize, Ordering};

use console::{Style, Term};
use larder_study::report::table::fit_terminal;

/// How many columns there are; 0 where there is no terminal.
static COLUMNS: AtomicUsize = AtomicUsize::new(0);
/// No terminal is taken for narrower.
const COLUMNS_MIN: usize = 40;

/// Looks how wide the terminal is, if there is one.
pub(crate) fn measure() {
    if !io::stdout().is_terminal() {
        return;
    }
    let columns = usize::from(Term::stdout().size().1).max(COLUMNS_MIN);
    COLUMNS.store(columns, Ordering::Relaxed);
    fit_terminal(columns);
}

/// The text with lines that are too long broken at spaces.
pub(crate) fn wrapped(text: &str) -> String {
    match COLUMNS.load(Ordering::Relaxed) {
        0 => text.to_owned(),
        columns => {
            text.split('\n').map(|line| line_within(line, columns)).collect::<Vec<_>>().join("\n")
        }
    }
}

fn line_within(line: &str, columns: usize) -> String {
    // What is to be pasted stays whole, and JSON is no prose.
    let is_prose = !line.contains("_CONF=") && !line.starts_with(['{', '[']);
    if line.chars().count() <= columns || !is_prose {
        return line.to_owned();
    }
    let indent: String = line.chars().take_while(|letter| *letter == ' ').collect();
    let (mut text, mut length) = (indent.clone(), indent.len());
    for word in words(line.trim_start()) {
        let wide = word.chars().count();
        if length > indent.len() && length + 1 + wide > columns {
            text.push_str(&format!("\n{indent}"));
            length = indent.len();
        } else if length > indent.len() {
            text.push(' ');
            length += 1;
        }
        text.push_str(word);
        length += wide;
    }
    text
}

/// The words of a line; what stands between two strokes is to be typed, and is one.
fn words(line: &str) -> Vec<&str> {
    let mut is_typed = false;
    let parts = line.split(move |letter| {
        is_typed ^= letter == '`';
        letter == ' ' && !is_typed
    });
    parts.collect()
}

/// An explanation in colour, where there is a terminal that has colours.
pub(crate) fn painted(text: &str) -> String {
    if !io::stdout().is_terminal() || !console::colors_enabled() {
        return text.to_owned();
    }
    text.split('\n').map(painted_line).collect::<Vec<_>>().join("\n")
}

fn painted_line(line: &str) -> String {
    for label in ["What failed:", "Why:", "So:", "Or:", "Best:", "Near failures:"] {
        if let Some(rest) = line.strip_prefix(label) {
            return format!("{}{rest}", Style::new().bold().apply_to(label));
        }
    }
    if line.starts_with("  ") && line.contains("_CONF=") {
        return Style::new().cyan().apply_to(line).to_string();
    }
    let verdicts = [
        ("  runs from ", Style::new().yellow()),
        ("  runs ", Style::new().green()),
        ("  fails ", Style::new().red()),
    ];
    for (word, style) in verdicts {
        if let Some((before, behind)) = line.split_once(word) {
            let word = word.trim();
            return format!("{before}  {} {behind}", style.apply_to(word));
        }
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_and_what_is_typed_stays_whole() {
        let line = "  one two `larder replay a.pickle --conf x` shows it to all who look";
        let broken = line_within(line, 24);
        let expected =
            "  one two\n  `larder replay a.pickle --conf x`\n  shows it to all who\n  look";
        assert_eq!(broken, expected);
        let paste = "  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(line_within(paste, 20), paste);
    }
}
