//! No circles among the modules of a folder: of two that stand side by side, at most one names the
//! other, be it over third ones.
//!
//! A part may name the whole that it is a part of, and the whole its parts: `heap/growth.rs` is the
//! growth of the heap. What a part imports through the whole it imports from where that has it
//! from.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{Module, Token, paths, tokens, without_tests};
use super::tree::Tree;

/// Modules that name one another on purpose.
struct Knot {
    /// The crate's folder of sources.
    source: &'static str,
    modules: &'static [&'static str],
}

const KNOTS: [Knot; 1] = [
    // A Python allocator hands out pools, and each of them keeps the allocator.
    Knot { source: "python/src", modules: &["allocator", "pool"] },
];

/// The modules of one crate, each with its file and its tokens but for those of its tests.
struct Crate<'a> {
    modules: BTreeMap<Module, (&'a str, Vec<Token>)>,
}

/// Which module names which, both side by side, with a place where it does.
type Graph = BTreeMap<Module, BTreeMap<Module, (String, usize)>>;

/// Every circle, once.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    for (file, text) in tree.rust() {
        let Some((source, module)) = place(&file.path) else { continue };
        let modules =
            &mut crates.entry(source).or_insert_with(|| Crate { modules: BTreeMap::new() }).modules;
        modules.insert(module, (&file.path, without_tests(&tokens(text))));
    }
    crates.iter().flat_map(|(source, one)| circles(source, &one.graph())).collect()
}

/// The folder of sources that a file is in, and the module that it is.
pub(super) fn place(path: &str) -> Option<(&str, Module)> {
    let at =
        path.starts_with("src/").then_some(0).or_else(|| path.find("/src/").map(|at| at + 1))?;
    let (source, inside) = (&path[..at + 3], &path[at + 4..]);
    let inside = inside.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    // Programs of their own have roots of their own.
    if inside.starts_with("bin/") {
        return None;
    }
    let names = inside.split('/').filter(|name| !matches!(*name, "lib" | "main"));
    Some((source, names.map(str::to_owned).collect()))
}

impl Crate<'_> {
    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (module, (path, tokens)) in &self.modules {
            // The root names every module; that is what it is for.
            if module.is_empty() {
                continue;
            }
            for (line, name) in self.names(module, tokens) {
                let other = self.owner(module, &name);
                let common = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
                // A part and the whole of it.
                if common == module.len() || common == other.len() {
                    continue;
                }
                let from = module[..=common].to_vec();
                let place = ((*path).to_owned(), line);
                graph.entry(from).or_default().entry(other[..=common].to_vec()).or_insert(place);
            }
        }
        graph
    }

    fn names(&self, module: &Module, tokens: &[Token]) -> Vec<(usize, Module)> {
        paths(tokens, module, |child| self.modules.contains_key(child))
    }

    /// The module that a path names, or whose item it names. An item that a module above the one
    /// that asks has only imported is that of the module which it was imported from.
    fn owner(&self, asks: &Module, path: &[String]) -> Module {
        let mut module = self.deepest(path);
        // An import may be of an import; no chain of them is as long as this.
        for _ in 0..8 {
            let is_above = asks.len() > module.len() && asks.starts_with(&module);
            let Some(name) = path.last().filter(|_| is_above && path.len() > module.len()) else {
                break;
            };
            let Some((_, tokens)) = self.modules.get(&module) else { break };
            let imports = self.names(&module, tokens);
            let import = imports.iter().find(|(_, import)| import.last() == Some(name));
            let Some((_, import)) = import else { break };
            let next = self.deepest(&import[..import.len() - 1]);
            if next == module {
                break;
            }
            module = next;
        }
        module
    }

    /// The longest beginning of a path that is a module.
    fn deepest(&self, path: &[String]) -> Module {
        let mut module = path.to_vec();
        while !module.is_empty() && !self.modules.contains_key(&module) {
            module.pop();
        }
        module
    }
}

/// The shortest circle through each module that is on one, each circle once.
fn circles(source: &str, graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told: BTreeSet<BTreeSet<&Module>> = BTreeSet::new();
    for start in graph.keys() {
        let Some(circle) = shortest(graph, start) else { continue };
        let members: BTreeSet<&Module> = circle.iter().copied().collect();
        let is_knot = KNOTS.iter().filter(|knot| knot.source == source).any(|knot| {
            members.iter().all(|module| knot.modules.contains(&module.join("::").as_str()))
        });
        if is_knot || !told.insert(members) {
            continue;
        }
        let (path, line) = &graph[circle[0]][circle[1 % circle.len()]];
        let back = circle.iter().skip(1).chain(circle.first());
        let names: Vec<String> = back.map(|module| module.join("::")).collect();
        let message = format!(
            "a circle of modules: {} names {}: move what they share into a module below them",
            start.join("::"),
            names.join(", which names ")
        );
        findings.push(Finding::new(path, *line, message));
    }
    findings
}

/// The shortest way from a module back to itself.
fn shortest<'a>(graph: &'a Graph, start: &'a Module) -> Option<Vec<&'a Module>> {
    let mut ways: Vec<Vec<&Module>> = vec![vec![start]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in graph.get(*way.last()?).into_iter().flat_map(BTreeMap::keys) {
                if next == start {
                    return Some(way);
                }
                if seen.insert(next) {
                    longer.push([&way[..], &[next]].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(inside, _)| format!("crates/any/src/{inside}")).collect();
        let files: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        check(&Tree::of(&files)).into_iter().map(|finding| finding.message).collect()
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
        let files = [("a.rs", "use crate::b::B;\n"), ("b.rs", "\nuse super::a::A;\n")];
        let found = found(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a circle of modules: a names b, which names a"), "{found:?}");
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
            check(&Tree::of(&files)).len()
        };
        assert_eq!((tie("pool"), tie("snapshot")), (0, 1));
    }
}
