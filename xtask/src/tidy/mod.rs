//! Rules of the source text that neither the compiler nor clippy knows.
//!
//! Each rule is a function from the tree of files to its findings, in a file of its own, with a
//! test that shows that it can fail. The whole runs as `cargo xtask tidy` and as a unit test, so
//! that a plain `cargo test` keeps the rules too.

mod architecture;
mod circles;
mod crates;
mod graph;
mod layers;
mod selves;
mod source;
mod text;
mod tree;
mod unsafety;
mod words;

use std::fmt;

use clap::Args;

use crate::repository::Repository;
use crate::{file, tools};
use tree::Tree;

/// What is checked, or told.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Instead, see that every link between pages leads to a file and a heading; lychee does it.
    #[arg(long)]
    links: bool,
    /// Instead, see that Python and C++ are as ruff and clang-format have them.
    #[arg(long, conflicts_with = "links")]
    format: bool,
    /// Instead, tell of all that is excepted for the moment too: files that call each other in a
    /// circle through `self`, lines that are too wide.
    #[arg(long, conflicts_with_all = ["links", "format"])]
    report: bool,
}

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

const RULES: [Rule; 7] = [
    layers::check,
    circles::check,
    selves::check,
    unsafety::check,
    text::check,
    words::check,
    architecture::check,
];

/// Checks the repository and prints what is found.
pub(crate) fn run(repo: &Repository, options: Options) -> Result<(), String> {
    if options.links {
        return tools::check_links(repo);
    }
    if options.format {
        return tools::check_format(repo);
    }
    let tree = Tree::read(&repo.root).map_err(file::named(&repo.root))?;
    if options.report {
        report(&tree);
        return Ok(());
    }
    let findings = check(repo, &tree)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} findings in {} files", tree.files.len())),
    }
}

fn check(repo: &Repository, tree: &Tree) -> Result<Vec<Finding>, String> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    findings.extend(crates::check(repo)?);
    findings.sort();
    Ok(findings)
}

/// Says what is not clean, whether it is excepted or not.
fn report(tree: &Tree) {
    for circle in selves::circles(tree) {
        println!("{}", circle.finding);
    }
    for line in text::wide(tree) {
        println!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let repo = Repository::here().unwrap();
        let tree = Tree::read(&repo.root).unwrap();
        assert!(tree.files.len() > 10, "the repository has more than {:?}", tree.files.len());
        let findings = check(&repo, &tree).unwrap();
        let findings: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
