//! Words that may not stand in the tree: marks of unfinished work, and paths of one machine.
//!
//! The lists are glued together from pieces, so that this file does not hold what it looks for.
//! Calls that stand in for code are clippy's (`todo`, `unimplemented`, `dbg_macro`).

use super::Finding;
use super::tree::Tree;

/// Notes to oneself, in any file.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// A test that is switched off; the attribute may give a reason, which changes nothing.
const SWITCHED_OFF: &str = concat!("#[ig", "nore");

/// Folders that exist on the machine of whoever wrote the line. Below the last of them only folders
/// do: the place itself exists everywhere.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/t", "mp/")];

/// Unfinished work, and absolute paths that exist on one machine only.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            let mut report = |message: String| {
                findings.push(Finding::new(&file.path, index + 1, message));
            };
            for note in NOTES.iter().filter(|note| has_word(line, note)) {
                report(format!("`{note}`: do it now, or say in a sentence what does not hold yet"));
            }
            if file.extension() == "rs" && line.contains(SWITCHED_OFF) {
                report("a test that does not run tests nothing: mend it or remove it".to_owned());
            }
            if let Some(path) = machine_path(line) {
                report(format!("`{path}` is one machine's: make it relative, or an argument"));
            }
        }
    }
    findings
}

/// Whether `word` stands in `line` with no letter, digit or underscore on either side.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word_part) && !after.is_some_and(is_word_part)
    })
}

/// The first folder of one machine that `line` names.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.into_iter().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            // After a name or a dot, as in `docs/…`, `../…` and addresses of the web, the path is a
            // relative one or another machine's.
            let before = line[..at].chars().next_back();
            let is_relative =
                before.is_some_and(|c| is_word_part(c) || matches!(c, '.' | '-' | '}' | '/'));
            let rest = &line[at + folder.len()..];
            let name = rest.split(|c: char| !is_word_part(c) && !matches!(c, '.' | '-')).next();
            let name = name.unwrap_or("");
            let is_folder = !name.is_empty() && rest[name.len()..].starts_with('/');
            !is_relative && (is_folder || *folder != MACHINE_FOLDERS[3])
        })
    })
}

/// Whether a character can stand inside a name.
fn is_word_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::with(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_fails() {
        for note in NOTES {
            assert_eq!(lines("a.md", &format!("fine\n{note}: later\n")), [2]);
            assert!(lines("a.rs", &format!("{note}X {note}_S A{note}\n")).is_empty());
        }
        assert_eq!(lines("a.rs", &format!("{SWITCHED_OFF} = \"slow\"]\n")), [1]);
    }

    #[test]
    fn folders_of_one_machine_fail_and_temporary_files_do_not() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(lines("a.md", &format!("see {folder}me/file\n")), [1]);
            assert!(lines("a.md", &format!("docs{folder}a/b ..{folder}a/b\n")).is_empty());
        }
        let temporary = MACHINE_FOLDERS[3];
        assert!(lines("a.md", &format!("in {temporary}a.pickle and {temporary}\n")).is_empty());
    }
}
