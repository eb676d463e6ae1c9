//! Where `unsafe` may stand, and what must stand above it.

use std::collections::BTreeSet;

use super::Finding;
use super::source::{self, Token};
use super::tree::{File, Tree};

/// The crates whose subject is memory that is not only theirs, and the lock; all others forbid unsafe
/// code.
const EXEMPT: [&str; 6] =
    ["larder-lock", "larder-cuda", "larder-cudart", "larder-c", "larder-proof", "larder-tape"];

/// Where unsafe code may stand in crates that otherwise have none; their root denies it, so that
/// each such place has to allow it by name.
const CORNERS: [&str; 2] = ["crates/larder/src/interop/", "crates/larder/src/real/"];

/// How far above an unsafe block the note on its soundness may begin.
const NOTE_LINES_MAX: usize = 5;

/// Crates that do not forbid unsafe code, unsafe code in those that do, and blocks with no note.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for root in crate_roots(tree) {
        let masked = source::code(tree.text(&root).unwrap_or(""));
        let has_corner = CORNERS.iter().any(|corner| root.starts_with(crate_of(corner)));
        let wanted = if has_corner { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        if !masked.lines().any(|line| line.replace(' ', "") == wanted) {
            let message = format!(
                "the crate does not forbid unsafe code: add `{wanted}` below the crate's comment"
            );
            findings.push(Finding::new(&root, 1, message));
        }
    }
    for (file, text) in tree.rust() {
        findings.extend(check_file(file, text));
    }
    findings
}

/// The folder of the crate that a place lies in.
fn crate_of(place: &str) -> &str {
    place.split_once("src/").map_or(place, |(folder, _)| folder)
}

/// The library of each crate that must be safe, or its program where it has no library.
fn crate_roots(tree: &Tree) -> BTreeSet<String> {
    let mut roots = BTreeSet::new();
    for file in &tree.files {
        let Some((folder, inside)) = safe_crate(&file.path) else { continue };
        if matches!(inside, "src/lib.rs" | "src/main.rs") {
            let library = format!("{folder}/src/lib.rs");
            roots.insert(if tree.has(&library) { library } else { file.path.clone() });
        }
    }
    roots
}

/// Splits a path into the folder of a crate that must be safe and the place inside it.
fn safe_crate(path: &str) -> Option<(&str, &str)> {
    let outside = ["xtask", "python"]
        .into_iter()
        .find(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
    let folder = if let Some(folder) = outside {
        folder
    } else {
        let name = path.strip_prefix("crates/")?.split('/').next()?;
        if EXEMPT.contains(&name) {
            return None;
        }
        &path[..("crates/".len() + name.len())]
    };
    Some((folder, path[folder.len()..].strip_prefix('/')?))
}

fn check_file(file: &File, text: &str) -> Vec<Finding> {
    let in_corner = CORNERS.iter().any(|corner| file.path.starts_with(corner));
    let is_safe =
        !in_corner && safe_crate(&file.path).is_some_and(|(_, inside)| inside.starts_with("src/"));
    let masked = source::code(text);
    let tokens = source::tokens(&masked);
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.text != "unsafe" {
            continue;
        }
        if is_safe {
            let message = "unsafe code in a crate that has none: \
                           move it to larder-cuda or larder-c, behind a safe function";
            findings.push(Finding::new(&file.path, token.line, message));
        } else if claims_soundness(&tokens[at + 1..]) && !has_note(&lines, token.line) {
            let message = format!(
                "nothing says why this is sound: write a `// SAFETY:` comment \
                 within {NOTE_LINES_MAX} lines above it"
            );
            findings.push(Finding::new(&file.path, token.line, message));
        }
    }
    findings
}

/// Whether what follows `unsafe` is a promise that its author makes: a block, an implementation, a
/// list of foreign functions. A function, a trait or an attribute hands the duty on or names it.
fn claims_soundness(rest: &[Token<'_>]) -> bool {
    let word = |at: usize| rest.get(at).map_or("", |token| token.text);
    match word(0) {
        "{" | "impl" => true,
        "extern" => word(1) == "{",
        _ => false,
    }
}

fn has_note(lines: &[&str], number: usize) -> bool {
    let first = number.saturating_sub(NOTE_LINES_MAX + 1);
    lines[first..number].iter().any(|line| line.contains("// SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        check(&Tree::of(files)).into_iter().map(|f| (f.path, f.line)).collect()
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_code_fails() {
        let bare = ("crates/larder-sim/src/lib.rs", "//! The crate.\n");
        assert_eq!(places(&[bare]), [(bare.0.to_owned(), 1)]);
        let comment = (bare.0, "// #![forbid(unsafe_code)]\n");
        assert_eq!(places(&[comment]), [(bare.0.to_owned(), 1)]);
        assert!(places(&[(bare.0, "#![forbid(unsafe_code)]\n")]).is_empty());
        assert!(places(&[("crates/larder-c/src/lib.rs", "")]).is_empty());
        assert_eq!(places(&[("python/src/lib.rs", "")]).len(), 1);
    }

    #[test]
    fn a_program_answers_only_where_there_is_no_library() {
        let program = ("crates/larder-cli/src/main.rs", "fn main() {}\n");
        assert_eq!(places(&[program]).len(), 1);
        let library = ("crates/larder-cli/src/lib.rs", "#![forbid(unsafe_code)]\n");
        assert!(places(&[program, library]).is_empty());
        assert_eq!(places(&[("xtask/src/main.rs", "fn main() {}\n")]).len(), 1);
    }

    #[test]
    fn unsafe_in_a_safe_crate_fails_with_or_without_a_note() {
        let path = "crates/larder-core/src/heap/block.rs";
        let text = "// SAFETY: none.\nfn f() { unsafe { g() } }\n";
        assert_eq!(places(&[(path, text)]), [(path.to_owned(), 2)]);
        assert!(places(&[(path, "// No unsafe.\nlet s = \"unsafe\";\n")]).is_empty());
    }

    #[test]
    fn a_corner_may_hold_unsafe_code_and_the_rest_of_its_crate_may_not() {
        let root = ("crates/larder/src/lib.rs", "#![deny(unsafe_code)]\n");
        let noted = "// SAFETY: so.\nfn f() { unsafe { g() } }\n";
        assert!(places(&[root, ("crates/larder/src/interop/cuda.rs", noted)]).is_empty());
        let outside = ("crates/larder/src/buffer.rs", noted);
        assert_eq!(places(&[root, outside]), [(outside.0.to_owned(), 2)]);
        assert_eq!(places(&[(root.0, "")]), [(root.0.to_owned(), 1)]);
    }

    #[test]
    fn elsewhere_each_block_needs_a_note_nearby() {
        for path in ["crates/larder-core/tests/a.rs", "crates/larder-cuda/src/driver.rs"] {
            assert_eq!(places(&[(path, "unsafe { g() }\n")]), [(path.to_owned(), 1)]);
            assert_eq!(places(&[(path, "unsafe impl Send for X {}\n")]).len(), 1);
            assert_eq!(places(&[(path, "unsafe extern \"C\" {\n}\n")]).len(), 1);
            let near = "// SAFETY: so.\n\n\n\n\nunsafe { g() }\n";
            assert!(places(&[(path, near)]).is_empty());
            let far = "// SAFETY: so.\n\n\n\n\n\nunsafe { g() }\n";
            assert_eq!(places(&[(path, far)]).len(), 1);
        }
    }

    #[test]
    fn declarations_need_no_note() {
        let path = "crates/larder-c/src/lib.rs";
        let text = "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn f() {}\nunsafe fn g() {}\n";
        assert!(places(&[(path, text)]).is_empty());
    }
}
