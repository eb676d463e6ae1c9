//! Just enough of Rust's grammar to tell code from comments and text.

/// The source with every comment and every literal's content blanked out. Line breaks stay, so
/// that line numbers do; the number of bytes may differ.
pub(super) fn code(source: &str) -> String {
    let characters: Vec<char> = source.chars().collect();
    let mut masked = String::with_capacity(source.len());
    let mut at = 0;
    while at < characters.len() {
        let end = skipped_end(&characters, at);
        if end > at {
            masked.extend(characters[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            masked.push(characters[at]);
            at += 1;
        }
    }
    masked
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none begins there.
fn skipped_end(characters: &[char], at: usize) -> usize {
    let next = characters.get(at + 1).copied();
    match characters[at] {
        '/' if next == Some('/') => line_end(characters, at),
        '/' if next == Some('*') => block_comment_end(characters, at),
        '"' => quoted_end(characters, at, '"'),
        '\'' if is_character(characters, at) => quoted_end(characters, at, '\''),
        'r' if !ends_word(characters, at) => raw_end(characters, at),
        _ => at,
    }
}

fn line_end(characters: &[char], at: usize) -> usize {
    let length = characters[at..].iter().position(|c| *c == '\n');
    length.map_or(characters.len(), |length| at + length)
}

/// Block comments nest.
fn block_comment_end(characters: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut end = at;
    while end < characters.len() {
        match (characters[end], characters.get(end + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                end += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                end += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => end += 1,
        }
    }
    end.min(characters.len())
}

fn quoted_end(characters: &[char], at: usize, quote: char) -> usize {
    let mut end = at + 1;
    while end < characters.len() && characters[end] != quote {
        end += if characters[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(characters.len())
}

/// Tells a character literal from a lifetime.
fn is_character(characters: &[char], at: usize) -> bool {
    characters.get(at + 1) == Some(&'\\') || characters.get(at + 2) == Some(&'\'')
}

/// A raw string ends at a quote with as many hashes as it began with. `r#name` is no string.
fn raw_end(characters: &[char], at: usize) -> usize {
    let hashes = characters[at + 1..].iter().take_while(|c| **c == '#').count();
    if characters.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let mut end = at + 2 + hashes;
    while end < characters.len() {
        let closing = characters[end + 1..].iter().take(hashes).take_while(|c| **c == '#').count();
        if characters[end] == '"' && closing == hashes {
            return end + 1 + hashes;
        }
        end += 1;
    }
    characters.len()
}

/// Whether the `r` at `at` is the last letter of a longer word, and not a literal's prefix.
fn ends_word(characters: &[char], at: usize) -> bool {
    let is_part = |c: &char| is_word_part(*c);
    let Some(before) = at.checked_sub(1).map(|before| &characters[before]) else { return false };
    // Bytes and C strings have a letter of their own before the `r`.
    let is_prefix = matches!(before, 'b' | 'c')
        && !at.checked_sub(2).is_some_and(|earlier| is_part(&characters[earlier]));
    is_part(before) && !is_prefix
}

/// Whether a character can stand inside a name.
pub(super) fn is_word_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// A word or a mark of the code, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// The tokens of masked source: whole words, and marks one character at a time.
pub(super) fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word_part(first) {
                rest.find(|c| !is_word_part(c)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            tokens.push(Token { line: index + 1, text: &rest[..length] });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(&code(source)).iter().map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g /// h\n"), ["a", "c", "g"]);
        assert_eq!(words("a /* never closed"), ["a"]);
    }

    #[test]
    fn literals_are_no_code() {
        assert_eq!(words(r#"a "b \" c" d 'e' '\'' f"#), ["a", "d", "f"]);
        assert_eq!(words(r##"a r"b\" c r#"d " e"# f br"g" h"##), ["a", "c", "f", "b", "h"]);
        assert_eq!(words("a \"never closed"), ["a"]);
        assert_eq!(words("a r#\"never closed\""), ["a"]);
        assert_eq!(words("a \"ends in a backslash\\"), ["a"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(words("r#type for"), ["r", "#", "type", "for"]);
        assert_eq!(words("for\"b\""), ["for"]);
    }

    #[test]
    fn lines_are_kept() {
        let masked = code("/* one\ntwo */ a\n\"three\nfour\" b\n");
        let lines: Vec<usize> = tokens(&masked).iter().map(|token| token.line).collect();
        assert_eq!(lines, [2, 4]);
    }
}
