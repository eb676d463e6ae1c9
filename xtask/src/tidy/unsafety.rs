//! Unsafe code: which crates forbid it, and the few places of theirs that may have it.
//!
//! That it stands nowhere else, and that each block says why it is sound, is then the compiler's
//! and clippy's to see (`unsafe_code`, `undocumented_unsafe_blocks`).

use super::Finding;
use super::source::{is_at, tokens};
use super::tree::Tree;

/// The crates that call foreign code or share memory by hand.
const EXEMPT: [&str; 6] =
    ["larder-lock", "larder-cuda", "larder-cudart", "larder-c", "larder-proof", "larder-tape"];

/// Where unsafe code may stand in crates that otherwise have none. Their root denies it, so that
/// each such place has to allow it by name.
const CORNERS: [&str; 2] = ["crates/larder/src/interop/", "crates/larder/src/real/"];

/// How far above a list of foreign functions the note on its soundness may begin.
const NOTE_LINES_MAX: usize = 5;

/// Crates that do not forbid unsafe code, places that allow it, and foreign functions with no note.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.rust() {
        let mut report =
            |line, message: String| findings.push(Finding::new(&file.path, line, message));
        let tokens = tokens(text);
        let corner = CORNERS.iter().find(|corner| file.path.starts_with(**corner));
        if let Some(folder) = root_of_safe_crate(tree, &file.path) {
            let has_corner = CORNERS.iter().any(|corner| corner.starts_with(&format!("{folder}/")));
            let lint = if has_corner { "deny" } else { "forbid" };
            let wanted = ["#", "!", "[", lint, "(", "unsafe_code", ")", "]"];
            if !(0..tokens.len()).any(|at| is_at(&tokens, at, &wanted)) {
                report(1, format!("add `#![{lint}(unsafe_code)]` below the crate's comment"));
            }
        }
        for (at, token) in tokens.iter().enumerate() {
            if corner.is_none() && is_at(&tokens, at, &["allow", "(", "unsafe_code"]) {
                report(token.line, "unsafe code in a crate that has none: move it".to_owned());
            }
            let above = token.line.saturating_sub(NOTE_LINES_MAX + 1);
            let mut note = text.lines().skip(above).take(NOTE_LINES_MAX + 1);
            if is_at(&tokens, at, &["unsafe", "extern", "{"])
                && !note.any(|line| line.contains("// SAFETY:"))
            {
                let message =
                    "nothing says why this is sound: write a `// SAFETY:` comment above it";
                report(token.line, message.to_owned());
            }
        }
    }
    findings
}

/// The folder of the crate whose root a file is, if the crate must be safe. A program answers where
/// there is no library.
fn root_of_safe_crate<'a>(tree: &Tree, path: &'a str) -> Option<&'a str> {
    let folder = path.strip_suffix("/src/lib.rs").or_else(|| {
        let folder = path.strip_suffix("/src/main.rs")?;
        (!tree.has(&format!("{folder}/src/lib.rs"))).then_some(folder)
    })?;
    let name = folder.strip_prefix("crates/").unwrap_or(folder);
    (!EXEMPT.contains(&name) && !name.contains('/')).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        check(&Tree::of(files)).into_iter().map(|f| (f.path, f.line)).collect()
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_code_fails() {
        let root = "crates/larder-sim/src/lib.rs";
        assert_eq!(places(&[(root, "// #![forbid(unsafe_code)]\n")]), [(root.to_owned(), 1)]);
        assert!(places(&[(root, "#![forbid(unsafe_code)]\n")]).is_empty());
        assert_eq!(places(&[("crates/larder/src/lib.rs", "#![forbid(unsafe_code)]\n")]).len(), 1);
        assert!(places(&[("crates/larder-c/src/lib.rs", "")]).is_empty());
        for program in ["xtask/src/main.rs", "python/src/lib.rs"] {
            assert_eq!(places(&[(program, "fn main() {}\n")]).len(), 1);
        }
        let library = (root, "#![forbid(unsafe_code)]\n");
        assert!(places(&[("crates/larder-sim/src/main.rs", ""), library]).is_empty());
    }

    #[test]
    fn allowing_it_fails_but_in_a_corner() {
        let text = "#![allow(unsafe_code)]\n";
        assert!(places(&[("crates/larder/src/interop/cuda.rs", text)]).is_empty());
        assert_eq!(places(&[("crates/larder/src/buffer.rs", text)]).len(), 1);
    }

    #[test]
    fn foreign_functions_need_a_note_nearby() {
        let path = "crates/larder-cuda/src/driver.rs";
        assert_eq!(places(&[(path, "unsafe extern \"C\" {\n}\n")]).len(), 1);
        assert!(places(&[(path, "// SAFETY: so.\n\n\nunsafe extern \"C\" {\n}\n")]).is_empty());
    }
}
