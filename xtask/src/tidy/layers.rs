//! The order of the layers inside `larder-core`: a module imports only from earlier ones.

use super::Finding;
use super::source::{self, Token};
use super::tree::Tree;

const SOURCE: &str = "crates/larder-core/src/";

/// A module of the core, the group it stands in, and the two ways in which it departs from the
/// plain rule "earlier groups only".
struct Layer {
    module: &'static str,
    group: usize,
    /// Modules of its own group that it may name all the same.
    also: &'static [&'static str],
    /// Modules of earlier groups that it may not name.
    never: &'static [&'static str],
}

const LAYERS: [Layer; 13] = [
    Layer { module: "types", group: 0, also: &[], never: &[] },
    Layer { module: "nearest", group: 0, also: &[], never: &[] },
    Layer { module: "torch_version", group: 0, also: &[], never: &[] },
    Layer { module: "config", group: 1, also: &[], never: &[] },
    Layer { module: "policy", group: 1, also: &[], never: &[] },
    Layer { module: "device", group: 1, also: &[], never: &[] },
    // A source of segments fails as a device does.
    Layer { module: "source", group: 1, also: &["device"], never: &[] },
    // The numbers of a request that failed include what the device says of processes.
    Layer { module: "out_of_memory", group: 1, also: &["device"], never: &[] },
    Layer { module: "sequence", group: 1, also: &[], never: &[] },
    // An error carries the errors of the settings and of the device, and how ranks parted.
    Layer {
        module: "error",
        group: 1,
        also: &["config", "device", "source", "sequence", "out_of_memory"],
        never: &[],
    },
    // The state machine plans and commits; only the shell above it calls the device.
    Layer { module: "record", group: 2, also: &[], never: &["device", "source"] },
    Layer { module: "heap", group: 3, also: &[], never: &["device", "source"] },
    Layer { module: "allocator", group: 4, also: &[], never: &[] },
];

const ORDER: &str = "types, nearest, torch_version; config, policy, device, source, sequence, out_of_memory, error; record; heap; allocator";

impl Layer {
    fn named(module: &str) -> Option<&'static Self> {
        LAYERS.iter().find(|layer| layer.module == module)
    }

    /// What is wrong with naming `target` here, or nothing.
    fn objection(&self, target: &str) -> Option<String> {
        let module = self.module;
        if target == module {
            return None;
        }
        let Some(other) = Self::named(target) else {
            return Some(format!(
                "`{target}` is no layer of the core: name it by the module that defines it, \
                 or give a new module its place in xtask/src/tidy/layers.rs"
            ));
        };
        if self.never.contains(&target) {
            return Some(format!(
                "`{module}` never names `{target}`: take what is needed as an argument or a plan, \
                 and let `allocator` talk to the device"
            ));
        }
        if other.group < self.group || self.also.contains(&target) {
            return None;
        }
        Some(format!(
            "`{module}` may not import `{target}`, which is not an earlier layer ({ORDER}): \
             move the item down or the caller up"
        ))
    }
}

/// Every path from the crate's root that points the wrong way.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.rust() {
        let Some(inside) = file.path.strip_prefix(SOURCE) else { continue };
        // The root names every module; that is what it is for.
        if inside == "lib.rs" {
            continue;
        }
        let (module, depth) = place(inside);
        let Some(layer) = Layer::named(module) else {
            let message = format!(
                "module `{module}` is in no layer: give it its place in xtask/src/tidy/layers.rs"
            );
            findings.push(Finding::new(&file.path, 1, message));
            continue;
        };
        for (line, target) in root_names(text, depth) {
            if let Some(message) = layer.objection(&target) {
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

/// The top module that a file belongs to, and how many steps below the root its own module is.
fn place(inside: &str) -> (&str, usize) {
    let path = inside.strip_suffix(".rs").unwrap_or(inside);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (path.split('/').next().unwrap_or(path), path.split('/').count())
}

/// The names right below the crate's root that a file's paths begin with, and their lines.
///
/// `crate::a`, `crate::{a::b, c}` and as many `super::` as lead up to the root are all read, at
/// whatever place they stand: imports, types and expressions alike.
fn root_names(text: &str, depth: usize) -> Vec<(usize, String)> {
    let masked = source::code(text);
    let tokens = source::tokens(&masked);
    let mut names = Vec::new();
    let mut braces = 0_usize;
    // The number of open braces at which each inline module around us began.
    let mut modules: Vec<usize> = Vec::new();
    for at in 0..tokens.len() {
        match tokens[at].text {
            "{" => {
                if at >= 2 && tokens[at - 2].text == "mod" {
                    modules.push(braces);
                }
                braces += 1;
            }
            "}" => {
                braces = braces.saturating_sub(1);
                if modules.last() == Some(&braces) {
                    modules.pop();
                }
            }
            "crate" => names.extend(names_after(&tokens, at + 1)),
            "super" if !follows_path(&tokens, at) => {
                let (steps, end) = climb(&tokens, at);
                if steps == depth + modules.len() {
                    names.extend(names_after(&tokens, end));
                }
            }
            _ => {}
        }
    }
    names
}

/// How many `super` stand in a row from `at` on, and where the rest of the path begins.
fn climb(tokens: &[Token<'_>], at: usize) -> (usize, usize) {
    let mut steps = 1;
    let mut end = at + 1;
    while is_path_mark(tokens, end) && tokens.get(end + 2).is_some_and(|t| t.text == "super") {
        steps += 1;
        end += 3;
    }
    (steps, end)
}

/// The first names of a path, or of each branch of an import tree, whose `::` stands at `at`.
fn names_after(tokens: &[Token<'_>], at: usize) -> Vec<(usize, String)> {
    if !is_path_mark(tokens, at) {
        return Vec::new();
    }
    let name = |token: &Token<'_>| (token.line, token.text.to_owned());
    let rest = &tokens[at + 2..];
    match rest.first() {
        Some(first) if first.text != "{" => vec![name(first)],
        Some(_) => branches(rest).into_iter().map(name).collect(),
        None => Vec::new(),
    }
}

/// The first token of each branch of the tree that opens with the first of `tokens`.
fn branches<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b Token<'a>> {
    let mut depth = 0_usize;
    let mut begins = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && matches!(tokens[index - 1].text, "{" | ",") => begins.push(token),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    begins
}

fn is_path_mark(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(at..at + 2).is_some_and(|pair| pair.iter().all(|token| token.text == ":"))
}

fn follows_path(tokens: &[Token<'_>], at: usize) -> bool {
    at >= 2 && is_path_mark(tokens, at - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text`, taken as the core's file `inside`, that break the rule.
    fn lines(inside: &str, text: &str) -> Vec<usize> {
        let path = format!("{SOURCE}{inside}");
        check(&Tree::of(&[(&path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn imports_from_earlier_layers_and_from_oneself_pass() {
        let text = "use crate::types::Addr;\nuse crate::config::Config;\nuse crate::heap::Heap;\n";
        assert!(lines("heap/mod.rs", text).is_empty());
        assert!(lines("heap/deep/block.rs", text).is_empty());
        assert!(lines("error.rs", "use crate::config::A;\nuse crate::device::B;\n").is_empty());
        assert!(lines("lib.rs", "pub use crate::allocator::Allocator;\n").is_empty());
    }

    #[test]
    fn imports_from_later_layers_fail() {
        assert_eq!(lines("types.rs", "\nuse crate::config::Config;\n"), [2]);
        assert_eq!(lines("record/stats.rs", "use crate::heap::Heap;\n"), [1]);
        assert_eq!(lines("heap/mod.rs", "use crate::allocator::Allocator;\n"), [1]);
    }

    #[test]
    fn neighbours_in_a_group_are_strangers() {
        assert_eq!(lines("policy.rs", "use crate::config::Config;\n"), [1]);
        assert_eq!(lines("device.rs", "use crate::error::Error;\n"), [1]);
        assert_eq!(lines("error.rs", "use crate::policy::Policy;\n"), [1]);
    }

    #[test]
    fn heap_and_record_never_name_the_device() {
        assert_eq!(lines("heap/growth.rs", "use crate::device::Device;\n"), [1]);
        assert_eq!(lines("record/mod.rs", "fn f(_: &dyn crate::device::Device) {}\n"), [1]);
        assert!(lines("allocator/mod.rs", "use crate::device::Device;\n").is_empty());
    }

    #[test]
    fn every_branch_of_an_import_tree_is_read() {
        let text =
            "use crate::{\n  types::{Addr, Span},\n  allocator::Allocator,\n  device::*\n};\n";
        assert_eq!(lines("heap/pool.rs", text), [3, 4]);
    }

    #[test]
    fn paths_in_the_middle_of_code_are_read_and_comments_are_not() {
        let text =
            "// crate::device\nfn f() -> u8 {\n    crate::device::NONE\n}\npub(crate) fn g() {}\n";
        assert_eq!(lines("heap/pool.rs", text), [3]);
    }

    #[test]
    fn super_is_followed_up_to_the_root() {
        assert_eq!(lines("types.rs", "use super::config::Config;\n"), [1]);
        assert_eq!(lines("heap/pool.rs", "use super::super::device::Device;\n"), [1]);
        assert!(lines("heap/pool.rs", "use super::Heap;\n").is_empty());
        let tests = "mod tests {\n    use super::*;\n    use super::super::heap::Heap;\n}\n";
        assert_eq!(lines("types.rs", tests), [3]);
        let after = "mod tests {\n    fn f() {}\n}\nuse super::heap::Heap;\n";
        assert_eq!(lines("types.rs", after), [4]);
    }

    #[test]
    fn what_hides_the_module_is_refused() {
        assert_eq!(lines("heap/mod.rs", "use crate::Error;\n"), [1]);
        assert_eq!(lines("heap/mod.rs", "use crate::*;\n"), [1]);
        assert_eq!(lines("extra.rs", "\n"), [1]);
    }
}
