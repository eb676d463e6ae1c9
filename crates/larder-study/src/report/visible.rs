//! Names out of files as a terminal may have them: control characters are shown, and never sent.

use std::borrow::Cow;

/// Whether a letter tells a terminal to do something, or has later letters read the other way
/// round.
fn commands(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\t')
        || matches!(letter, '\u{200e}' | '\u{200f}')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with each such letter as `\u001b`, which is what it is in JSON too.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(commands) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if commands(letter) {
            shown.push_str(&format!("\\u{:04x}", letter as u32));
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

/// A name that has a line to itself: what would end the line is shown too.
pub fn visible_name(name: &str) -> String {
    visible(name).replace('\n', "\\n").replace('\t', "\\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(visible("\x1b[31mred\x07\r\u{9b}2J"), "\\u001b[31mred\\u0007\\u000d\\u009b2J");
        assert_eq!(visible("\u{202e}txt.exe"), "\\u202etxt.exe");
        assert!(matches!(visible("größe — 12 µs █·\n\tat"), Cow::Borrowed(_)));
        assert_eq!(visible_name("a\nb"), "a\\nb");
    }

    #[test]
    fn json_stays_json() {
        let text = serde_json::json!({ "name": "\x1b\u{9b}\u{202e}x" }).to_string();
        let back: serde_json::Value = serde_json::from_str(&visible(&text)).expect("JSON");
        assert_eq!(back["name"], "\x1b\u{9b}\u{202e}x");
    }
}
