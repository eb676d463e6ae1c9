//! Circles that imports do not show: files that hold one type's methods, and call each other
//! through `self`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Finding;
use super::circles::place;
use super::source::{Token, closing, is_at, tokens, without_tests};
use super::tree::Tree;

/// Crates in which some type's files still form a circle: `cargo xtask tidy --report` tells of
/// them. In all others none may form.
const NOT_YET: [&str; 3] =
    ["crates/larder-core/src", "crates/larder-snapshot/src", "crates/larder-testkit/src"];

/// What one file has of a type: the methods that it defines, and those that it calls on `self`.
#[derive(Default)]
struct Part {
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// The parts of a type, by file.
type Parts<'a> = BTreeMap<&'a str, Part>;

/// Files that all reach each other by calls on `self`.
pub(super) struct Circle<'a> {
    source: &'a str,
    name: String,
    files: Vec<&'a str>,
    /// How many files hold methods of the type.
    of: usize,
}

impl fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = |file: &&'_ str| file[self.source.len() + 1..].to_owned();
        let files: Vec<String> = self.files.iter().map(inside).collect();
        let Self { source, name, of, .. } = self;
        let (count, files) = (files.len(), files.join(", "));
        write!(
            f,
            "{source}: {count} of {of} files with methods of `{name}` call in a circle: {files}"
        )
    }
}

/// Every circle where there may be none.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let found = circles(tree).into_iter().filter(|circle| !NOT_YET.contains(&circle.source));
    found.map(|circle| Finding::new(circle.files[0], 1, circle.to_string())).collect()
}

/// The largest circle of each type, if it has one.
pub(super) fn circles(tree: &Tree) -> Vec<Circle<'_>> {
    let mut types: BTreeMap<(&str, String), Parts<'_>> = BTreeMap::new();
    for (file, text) in tree.rust() {
        let Some((source, _)) = place(&file.path) else { continue };
        for (name, part) in parts(&without_tests(&tokens(text))) {
            types.entry((source, name)).or_default().insert(&file.path, part);
        }
    }
    let circles = types.into_iter().filter_map(|((source, name), parts)| {
        let files = largest(&parts);
        (files.len() > 1).then_some(Circle { source, name, files, of: parts.len() })
    });
    circles.collect()
}

/// What a file has of each type.
fn parts(tokens: &[Token]) -> BTreeMap<String, Part> {
    let mut found: BTreeMap<String, Part> = BTreeMap::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_item = at == 0 || matches!(tokens[at - 1].text.as_str(), "}" | ";" | "]");
        if !(is_item && is_at(tokens, at, &["impl"])) {
            at += 1;
            continue;
        }
        let Some(open) = (at..tokens.len()).find(|&at| tokens[at].text == "{") else { break };
        let end = closing(tokens, open);
        // The type's name is the last that starts with a capital before its own parameters, and
        // behind `for`.
        let head = &tokens[at + 1..open];
        let begin = head.iter().position(|token| token.text == "for").map_or(0, |at| at + 1);
        let name = type_name(&head[begin..]);
        let part = found.entry(name).or_default();
        for at in open..end {
            if tokens[at].text == "fn" {
                part.methods.insert(tokens[at + 1].text.clone());
            }
            if is_at(tokens, at, &["self", "."]) && is_at(tokens, at + 3, &["("]) {
                part.calls.insert(tokens[at + 2].text.clone());
            }
        }
        at = end;
    }
    found
}

/// The name of the type that an `impl` is of, without its path, its parameters and the `impl`'s
/// own.
fn type_name(head: &[Token]) -> String {
    let mut depth = 0_usize;
    let mut name = String::new();
    for token in head {
        match token.text.as_str() {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "where" => break,
            word if depth == 0 && word.starts_with(char::is_uppercase) => {
                word.clone_into(&mut name);
            }
            _ => {}
        }
    }
    name
}

/// The most files that all reach each other. A method of a name that several files define is in
/// none of them.
fn largest<'a>(parts: &Parts<'a>) -> Vec<&'a str> {
    let mut homes: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (file, part) in parts {
        part.methods.iter().for_each(|method| homes.entry(method).or_default().push(file));
    }
    let next = |file: &str| -> BTreeSet<&'a str> {
        let homes = parts[file].calls.iter().filter_map(|call| homes.get(call.as_str()));
        homes
            .filter(|homes| homes.len() == 1)
            .map(|homes| homes[0])
            .filter(|home| *home != file)
            .collect()
    };
    let reached = |from: &'a str| -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            open.extend(next(file).into_iter().filter(|file| seen.insert(*file)));
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        parts.keys().map(|file| (*file, reached(file))).collect();
    let circle = |file: &'a str| -> Vec<&'a str> {
        let others = reach[file].iter().filter(|other| reach[*other].contains(file));
        others.copied().collect()
    };
    parts.keys().map(|file| circle(file)).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<usize> {
        circles(&Tree::of(files)).iter().map(|circle| circle.files.len()).collect()
    }

    #[test]
    fn files_that_call_each_other_on_self_are_a_circle() {
        let one = ("crates/any/src/one.rs", "impl<T> Heap<T> {\n fn a(&self) { self.b() }\n}");
        let two = ("crates/any/src/two.rs", "impl Heap<u8> {\n fn b(&self) { self.c(1) }\n}");
        let back = ("crates/any/src/three.rs", "impl X for Heap {\n fn c(&self) { self.a() }\n}");
        let fine = ("crates/any/src/three.rs", "impl Heap {\n fn c(&self) { self.0.a() }\n}");
        assert_eq!(found(&[one, two, back]), [3]);
        assert!(found(&[one, two, fine]).is_empty());
        assert_eq!(check(&Tree::of(&[one, two, back])).len(), 1);
    }

    #[test]
    fn other_types_tests_and_their_own_files_are_no_circle() {
        let one = (
            "crates/any/src/one.rs",
            "impl Heap { fn a(&self) { self.b() } fn b(&self) { self.a() } }",
        );
        let two = ("crates/any/src/two.rs", "impl Pool { fn b(&self) { self.a() } }");
        let test = (
            "crates/any/src/three.rs",
            "#[cfg(test)] mod tests { impl Heap { fn c(&self) { self.a() } } }",
        );
        assert!(found(&[one, two, test]).is_empty());
    }
}
