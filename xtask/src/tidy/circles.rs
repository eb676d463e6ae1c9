//! No circles among the modules of a folder: of two that stand side by side, at most one names the
//! other, be it over third ones.
//!
//! A part may name the whole that it is a part of, and the whole its parts: `heap/growth.rs` is the
//! growth of the heap. What a part imports through the whole it imports from where that has it
//! from.

use std::collections::BTreeMap;

use super::Finding;
use super::graph::{self, Graph};
use super::source::{Module, Source, paths};
use super::tree::Tree;

/// Modules that name one another on purpose, by their folder: a Python allocator hands out pools,
/// and each of them keeps the allocator.
const KNOTS: [(&str, &[&str]); 1] = [("python/src", &["allocator", "pool"])];

/// The modules of one crate.
type Modules<'a> = BTreeMap<&'a Module, &'a Source>;

/// Where a module names another for the first time.
type Places<'a> = BTreeMap<(Module, Module), (&'a str, usize)>;

/// Every circle, once.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for source in &tree.sources {
        crates.entry(&source.folder).or_default().insert(&source.module, source);
    }
    crates.iter().flat_map(|(folder, modules)| circles(folder, modules)).collect()
}

fn circles(folder: &str, modules: &Modules<'_>) -> Vec<Finding> {
    let (graph, places) = names(modules);
    let mut findings = Vec::new();
    for circle in graph::circles(&graph) {
        let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        let is_in = |knot: &[&str]| names.iter().all(|name| knot.contains(&name.as_str()));
        if KNOTS.iter().any(|(of, knot)| *of == folder && is_in(knot)) {
            continue;
        }
        let first =
            places.iter().find(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let Some((_, (path, line))) = first else { continue };
        let message = format!(
            "a circle of modules that name each other: {}: move what they share into a module \
             below them",
            names.join(", ")
        );
        findings.push(Finding::new(path, *line, message));
    }
    findings
}

/// Which module names which, both side by side, and a place where it does.
fn names<'a>(modules: &Modules<'a>) -> (Graph<Module>, Places<'a>) {
    let (mut graph, mut places) = (Graph::new(), Places::new());
    // The root names every module; that is what it is for.
    for (module, source) in modules.iter().filter(|(module, _)| !module.is_empty()) {
        for (line, name) in names_in(modules, source) {
            let other = owner(modules, module, &name);
            let common = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
            // A part and the whole of it.
            if common == module.len() || common == other.len() {
                continue;
            }
            let (from, to) = (module[..=common].to_vec(), other[..=common].to_vec());
            graph.entry(from.clone()).or_default().insert(to.clone());
            places.entry((from, to)).or_insert((&source.path, line));
        }
    }
    (graph, places)
}

fn names_in(modules: &Modules<'_>, source: &Source) -> Vec<(usize, Module)> {
    paths(&source.without_tests, &source.module, |child| modules.contains_key(child))
}

/// The module that a path names, or whose item it names. An item that a module above the one that
/// asks has only imported is that of the module which it was imported from.
fn owner(modules: &Modules<'_>, asks: &Module, path: &[String]) -> Module {
    let mut module = deepest(modules, path);
    // An import may be of an import; no chain of them is as long as this.
    for _ in 0..8 {
        let is_above = asks.len() > module.len() && asks.starts_with(&module);
        let Some(name) = path.last().filter(|_| is_above && path.len() > module.len()) else {
            break;
        };
        let Some(source) = modules.get(&module) else { break };
        let imports = names_in(modules, source);
        let import = imports.iter().find(|(_, import)| import.last() == Some(name));
        let Some((_, import)) = import else { break };
        let next = deepest(modules, &import[..import.len() - 1]);
        if next == module {
            break;
        }
        module = next;
    }
    module
}

/// The longest beginning of a path that is a module.
fn deepest(modules: &Modules<'_>, path: &[String]) -> Module {
    let mut module = path.to_vec();
    while !module.is_empty() && !modules.contains_key(&module) {
        module.pop();
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(inside, _)| format!("crates/any/src/{inside}")).collect();
        let files: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        check(&Tree::with(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn modules_in_an_order_pass() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use std::a::X;\nstruct B;\n"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn a_circle_is_told_once_and_by_name() {
        let files = [("a.rs", "\nuse crate::b::B;\n"), ("b.rs", "use super::a::A;\n")];
        let found = found(&files);
        let begin = "crates/any/src/a.rs:2: a circle of modules that name each other: a, b: move";
        assert!(found.len() == 1 && found[0].starts_with(begin), "{found:?}");
    }

    #[test]
    fn a_circle_over_third_ones_inside_a_folder_is_found() {
        let files = [
            ("heap/mod.rs", "mod a;\nmod b;\nmod c;\n"),
            ("heap/a.rs", "use crate::heap::{Heap, b::{self, B}};\n"),
            ("heap/b.rs", "fn f() { super::c::g() }\n"),
            ("heap/c.rs", "use crate::heap::a as other;\n"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn a_part_may_name_the_whole_and_what_the_whole_imports_is_somebody_elses() {
        let whole =
            ("heap/mod.rs", "mod a;\nmod b;\npub use b::State;\nuse a::Lift;\nstruct Heap;\n");
        let fine = [whole, ("heap/a.rs", "use super::{Heap, State};\n"), ("heap/b.rs", "")];
        assert!(found(&fine).is_empty());
        let hidden =
            [whole, ("heap/a.rs", "use super::State;\n"), ("heap/b.rs", "use super::Lift;\n")];
        assert_eq!(found(&hidden).len(), 1);
    }

    #[test]
    fn a_knot_that_is_meant_is_left_and_what_joins_it_is_not() {
        let tie = |other: &str| {
            let path = format!("python/src/{other}.rs");
            let names = format!("use crate::{other}::X;\n");
            let files = [
                ("python/src/allocator.rs", names.as_str()),
                (&path, "use crate::allocator::Y;\n"),
            ];
            check(&Tree::with(&files)).len()
        };
        assert_eq!((tie("pool"), tie("snapshot")), (0, 1));
    }
}
