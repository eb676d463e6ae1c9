//! Circles that imports do not show: files that hold one type's methods, and call each other
//! through `self`.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::graph::{self, Graph};
use super::source::{Token, closing, is_at};
use super::tree::Tree;

/// The types whose files still form a circle, by crate. No other may form one, and one whose circle
/// has been opened is struck out here, so that it does not come back.
const NOT_YET: [(&str, &[&str]); 2] = [
    ("crates/larder-snapshot/src", &["Snapshot"]),
    ("crates/larder-testkit/src", &["Generator", "Model", "Run", "Worker"]),
];

/// What one file has of a type: the methods that it defines, and those that it calls on `self`.
#[derive(Default)]
struct Part {
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// The parts of a type, by file.
type Parts<'a> = BTreeMap<&'a str, Part>;

/// Files with methods of a type that all reach each other by calls on `self`.
pub(super) struct Circle<'a> {
    folder: &'a str,
    name: String,
    pub(super) finding: Finding,
}

impl Circle<'_> {
    fn is_of(&self, folder: &str, name: &str) -> bool {
        self.folder == folder && self.name == name
    }
}

/// Every circle where there may be none, and every type that has none any more.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let circles = circles(tree);
    let known = NOT_YET.iter().flat_map(|(of, names)| names.iter().map(move |name| (*of, *name)));
    let known: Vec<(&str, &str)> = known.collect();
    let is_known = |circle: &Circle<'_>| known.iter().any(|(of, name)| circle.is_of(of, name));
    let is_there = |folder: &str| tree.sources.iter().any(|source| source.folder == folder);
    let opened = known
        .iter()
        .filter(|(of, name)| is_there(of) && !circles.iter().any(|circle| circle.is_of(of, name)));
    let opened = opened.map(|(_, name)| {
        let message = format!(
            "the files of `{name}` form no circle any more: strike it out of NOT_YET, so that \
             none comes back"
        );
        Finding::new("xtask/src/tidy/selves.rs", 1, message)
    });
    let new = circles.iter().filter(|circle| !is_known(circle));
    new.map(|circle| circle.finding.clone()).chain(opened).collect()
}

/// Every circle of each type.
pub(super) fn circles(tree: &Tree) -> Vec<Circle<'_>> {
    let mut types: BTreeMap<(&str, String), Parts<'_>> = BTreeMap::new();
    for source in &tree.sources {
        for (name, part) in parts(&source.without_tests) {
            types.entry((&source.folder, name)).or_default().insert(&source.path, part);
        }
    }
    let mut circles = Vec::new();
    for ((folder, name), parts) in types {
        for files in graph::circles(&calls(&parts)) {
            let inside: Vec<&str> = files.iter().map(|file| &file[folder.len() + 1..]).collect();
            let message = format!(
                "{} of {} files with methods of `{name}` call in a circle: {}",
                files.len(),
                parts.len(),
                inside.join(", ")
            );
            let finding = Finding::new(files.first().unwrap_or(&folder), 1, message);
            circles.push(Circle { folder, name: name.clone(), finding });
        }
    }
    circles
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
        // The type stands behind `for`, where there is one.
        let head = &tokens[at + 1..open];
        let begin = head.iter().position(|token| token.text == "for").map_or(0, |at| at + 1);
        let part = found.entry(type_name(&head[begin..])).or_default();
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

/// Which file calls a method of which. A method of a name that several files define is in none of
/// them.
fn calls<'a>(parts: &Parts<'a>) -> Graph<&'a str> {
    let mut homes: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (file, part) in parts {
        part.methods.iter().for_each(|method| homes.entry(method).or_default().push(file));
    }
    let home = |call: &String| match homes.get(call.as_str()).map(Vec::as_slice) {
        Some([home]) => Some(*home),
        _ => None,
    };
    let called = parts.iter().map(|(file, part)| {
        (*file, part.calls.iter().filter_map(home).filter(|home| home != file).collect())
    });
    called.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::with(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn files_that_call_each_other_on_self_are_a_circle() {
        let one = ("crates/any/src/one.rs", "impl<T> Heap<T> {\n fn a(&self) { self.b() }\n}");
        let two = ("crates/any/src/two.rs", "impl Heap<u8> {\n fn b(&self) { self.c(1) }\n}");
        let back = ("crates/any/src/three.rs", "impl X for Heap {\n fn c(&self) { self.a() }\n}");
        let fine = ("crates/any/src/three.rs", "impl Heap {\n fn c(&self) { self.0.a() }\n}");
        let circle = "crates/any/src/one.rs:1: 3 of 3 files with methods of `Heap` call in a \
                      circle: one.rs, three.rs, two.rs";
        assert_eq!(found(&[one, two, back]), [circle]);
        assert!(found(&[one, two, fine]).is_empty());
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

    #[test]
    fn a_circle_that_is_known_passes_until_it_is_opened() {
        let folder = "crates/larder-snapshot/src";
        let (one, two) = (format!("{folder}/one.rs"), format!("{folder}/two.rs"));
        let check = |back: &str| {
            let a = "impl Snapshot { fn a(&self) { self.b() } }";
            check(&Tree::with(&[(one.as_str(), a), (two.as_str(), back)])).len()
        };
        assert_eq!(check("impl Snapshot { fn b(&self) { self.a() } }"), 0);
        assert_eq!(check("impl Snapshot { fn b(&self) {} }"), 1);
    }
}
