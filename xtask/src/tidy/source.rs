//! Just enough of Rust's grammar: the tokens of a module, and the paths that they form.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module of a crate, by the names on the way to it from the root.
pub(super) type Module = Vec<String>;

/// A word or a mark of the code, and its line. Comments are none, nor is what literals say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) text: String,
}

/// A file that is a module of a crate. What stands in macros is read like all else.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: String,
    /// The crate's folder of sources, such as `crates/larder/src`.
    pub(super) folder: String,
    pub(super) module: Module,
    pub(super) tokens: Vec<Token>,
    /// Those outside of `#[cfg(test)] mod name { … }`: a test may look at whatever it likes.
    pub(super) without_tests: Vec<Token>,
}

impl Source {
    /// Reads a file. None if it is no module of a library or of a crate's main program.
    pub(super) fn read(path: &str, text: &str) -> Option<Self> {
        let is_root = path.starts_with("src/").then_some(0);
        let at = is_root.or_else(|| path.find("/src/").map(|at| at + 1))?;
        let (folder, inside) = (path[..at + 3].to_owned(), &path[at + 4..]);
        let inside = inside.strip_suffix(".rs")?;
        let inside = inside.strip_suffix("/mod").unwrap_or(inside);
        // Programs of their own have roots of their own.
        if inside.starts_with("bin/") {
            return None;
        }
        let names = inside.split('/').filter(|name| !matches!(*name, "lib" | "main"));
        let module = names.map(str::to_owned).collect();
        let tokens = tokens(text);
        let without_tests = without_tests(&tokens);
        Some(Self { path: path.to_owned(), folder, module, tokens, without_tests })
    }
}

/// The tokens of a text. One that is no Rust has none; the compiler says so in better words.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    if let Ok(stream) = TokenStream::from_str(text) {
        flatten(stream, &mut tokens);
    }
    tokens
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { line, text: open.to_owned() });
                flatten(group.stream(), tokens);
                let line = group.span_close().start().line;
                tokens.push(Token { line, text: close.to_owned() });
            }
            TokenTree::Literal(_) => {}
            word => tokens.push(Token { line, text: word.to_string() }),
        }
    }
}

/// Whether these words stand in a row at a place.
pub(super) fn is_at(tokens: &[Token], at: usize, words: &[&str]) -> bool {
    let there = tokens.get(at..at + words.len());
    there.is_some_and(|there| there.iter().zip(words).all(|(token, word)| token.text == *word))
}

/// Where the brace that opens at `at` is closed.
pub(super) fn closing(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len()
}

fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const MARK: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if is_at(tokens, at, &MARK) && is_at(tokens, at + MARK.len() + 1, &["{"]) {
            at = closing(tokens, at + MARK.len() + 1);
        } else {
            kept.push(tokens[at].clone());
        }
        at += 1;
    }
    kept
}

/// Every path to something of its own crate that a module has, from the root on, and its line:
/// those that begin with `crate`, `self` or `super`, and with a child of the module. Imports, types
/// and expressions are read alike.
pub(super) fn paths(
    tokens: &[Token],
    module: &Module,
    is_child: impl Fn(&Module) -> bool,
) -> Vec<(usize, Module)> {
    let mut found = Vec::new();
    // The module at hand, and where each inline one around us ends.
    let (mut here, mut ends) = (module.clone(), Vec::new());
    for at in 0..tokens.len() {
        if ends.last() == Some(&at) {
            ends.pop();
            here.pop();
        }
        if is_at(tokens, at, &["mod"]) && is_at(tokens, at + 2, &["{"]) {
            here.push(tokens[at + 1].text.clone());
            ends.push(closing(tokens, at + 2));
        }
        let is_inside = at > 0 && matches!(tokens[at - 1].text.as_str(), ":" | ".");
        if is_inside || !is_at(tokens, at + 1, &[":", ":"]) {
            continue;
        }
        let child = [&here[..], &[tokens[at].text.clone()]].concat();
        let mut paths = Vec::new();
        match tokens[at].text.as_str() {
            "crate" => branches(tokens, at + 3, &Module::new(), &mut paths),
            "self" => branches(tokens, at + 3, &here, &mut paths),
            "super" => branches(tokens, at, &here, &mut paths),
            _ if is_child(&child) => branches(tokens, at, &here, &mut paths),
            _ => continue,
        };
        found.extend(paths.into_iter().map(|path| (tokens[at].line, path)));
    }
    found
}

/// Reads a path, or each branch of an import tree, from `at` on; where it ends.
fn branches(tokens: &[Token], at: usize, before: &Module, found: &mut Vec<Module>) -> usize {
    let mut path = before.clone();
    let mut at = at;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    let end = branches(tokens, at, &path, found);
                    at = end.max(at + 1);
                    at += usize::from(is_at(tokens, at, &[","]));
                }
                return at + 1;
            }
            "super" => drop(path.pop()),
            "self" => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
        if !is_at(tokens, at, &[":", ":"]) {
            break;
        }
        at += 2;
    }
    found.push(path);
    // `as name` is nobody's module.
    if is_at(tokens, at, &["as"]) { at + 2 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_words_and_lines_are_kept() {
        let tokens = tokens("a // b\n/* c\n*/ \"d {\" r#\"e\"# 'f' &'g\n");
        let words: Vec<_> = tokens.iter().map(|token| (token.line, token.text.as_str())).collect();
        assert_eq!(words, [(1, "a"), (3, "&"), (3, "'"), (3, "g")]);
    }

    #[test]
    fn paths_are_read_from_the_root_on() {
        let text =
            "use crate::{a::{B, C as D}, e};\nmod inside { use super::super::f; }\nuse super::g;";
        let module = vec!["one".to_owned(), "two".to_owned()];
        let paths = paths(&tokens(text), &module, |_| false);
        let paths: Vec<_> =
            paths.iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
        assert_eq!(paths, ["1 a::B", "1 a::C", "1 e", "2 one::f", "3 one::g"]);
    }
}
