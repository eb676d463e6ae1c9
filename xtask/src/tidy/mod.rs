//! Rules of the source text that neither the compiler nor clippy knows.
//!
//! Each rule is a function from the tree of files to its findings, in a file of its own, with a
//! test that shows that it can fail. The whole runs as `cargo xtask tidy` and as a unit test, so
//! that a plain `cargo test` keeps the rules too.

mod circles;
mod crates;
mod layers;
mod links;
mod shape;
mod source;
mod tree;
mod unsafety;
mod white_space;
mod words;

use std::fmt;
use std::path::Path;

use tree::Tree;

/// One place that breaks a rule, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A rule sees the whole tree, because some rules compare files.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 10] = [
    layers::check,
    circles::check,
    crates::check,
    unsafety::check,
    shape::check_lengths,
    shape::check_names,
    words::check_unfinished,
    words::check_machine_paths,
    links::check,
    white_space::check,
];

/// Checks the repository and prints what is found; true when nothing is.
pub(crate) fn run(root: &Path) -> bool {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: the files of {} cannot be read: {error}", root.display());
            return false;
        }
    };
    let findings = check(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("tidy: findings: {}, files read: {}", findings.len(), tree.files.len());
    }
    findings.is_empty()
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let tree = Tree::read(&crate::repository_root()).unwrap();
        assert!(tree.files.len() > 10, "the repository has more than {:?}", tree.files.len());
        let findings: Vec<String> = check(&tree).iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }

    #[test]
    fn findings_are_in_the_order_of_files_and_lines() {
        let tree = Tree::of(&[("b.txt", "x \ny \n"), ("a.txt", "no newline")]);
        let places: Vec<String> =
            check(&tree).iter().map(|f| format!("{}:{}", f.path, f.line)).collect();
        assert_eq!(places, ["a.txt:1", "b.txt:1", "b.txt:2"]);
    }
}
