//! Tokens: what a settings text falls into, cut as PyTorch cuts it.

use crate::config::ConfigError;

/// The words of a text, and its `,`, `:`, `[` and `]`, one by one. White space is nothing, inside a
/// word too.
pub(super) struct Tokens(Vec<String>);

impl Tokens {
    pub(super) fn of(text: &str) -> Tokens {
        let mut tokens = Vec::new();
        let mut word = String::new();
        for letter in text.chars().filter(|&letter| !is_space(letter)) {
            if !is_mark(letter) {
                word.push(letter);
                continue;
            }
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(letter.to_string());
        }
        if !word.is_empty() {
            tokens.push(word);
        }
        Tokens(tokens)
    }

    /// The token at an index, if the text goes so far.
    pub(super) fn get(&self, at: usize) -> Option<&str> {
        self.0.get(at).map(String::as_str)
    }

    /// The token at an index that belongs to the entry which begins at `entry`.
    pub(super) fn need(&self, at: usize, entry: usize) -> Result<&str, ConfigError> {
        self.get(at).ok_or_else(|| self.cut_off(entry))
    }

    /// Where the value of the entry at `entry` ends: it is one token, or a list up to its bracket.
    /// What stands between key and value is not looked at.
    pub(super) fn end_of(&self, entry: usize) -> Result<usize, ConfigError> {
        let value = entry + 2;
        if self.need(value, entry)? != "[" {
            return Ok(value);
        }
        let rest = self.0.iter().skip(value + 1);
        let length = rest.take_while(|token| *token != "]").count();
        self.need(value + 1 + length, entry).map(|_| value + 1 + length)
    }

    /// The value of the entry at `entry` as it is written, up to the token `last`.
    pub(super) fn value(&self, entry: usize, last: usize) -> String {
        self.0.iter().take(last + 1).skip(entry + 2).map(String::as_str).collect()
    }

    /// That the text ends before the entry at `entry` does.
    fn cut_off(&self, entry: usize) -> ConfigError {
        let found = self.0.iter().skip(entry).map(String::as_str).collect();
        ConfigError::BadSyntax { found }
    }
}

/// Whether a word is one of the marks that part words.
pub(super) fn is_punctuation(token: &str) -> bool {
    token.chars().all(is_mark)
}

fn is_mark(letter: char) -> bool {
    matches!(letter, ',' | ':' | '[' | ']')
}

/// What C counts as white space.
fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<String> {
        Tokens::of(text).0
    }

    #[test]
    fn marks_are_tokens_and_white_space_is_nothing() {
        assert_eq!(cut(" a b:\t[1 :2],"), ["ab", ":", "[", "1", ":", "2", "]", ","]);
        assert_eq!(cut("a\x0b\n=b"), ["a=b"]);
        assert_eq!(cut("a\u{a0}b"), ["a\u{a0}b"]);
        assert!(cut("  ").is_empty());
    }

    #[test]
    fn a_value_is_a_token_or_a_list() {
        let tokens = Tokens::of("a:1,b:[1:2,>:3],c");
        assert_eq!(tokens.end_of(0).unwrap(), 2);
        assert_eq!(tokens.value(0, 2), "1");
        assert_eq!(tokens.end_of(4).unwrap(), 14);
        assert_eq!(tokens.value(4, 14), "[1:2,>:3]");
        assert_eq!(tokens.end_of(16).unwrap_err(), ConfigError::BadSyntax { found: "c".into() });
        assert!(Tokens::of("a:[1").end_of(0).is_err());
    }
}
