//! Words that may not stand in the tree: marks of unfinished work, and paths of one machine.
//!
//! The lists are glued together from pieces, so that this file does not hold what it looks for.

use super::Finding;
use super::tree::Tree;

/// Notes to oneself, in any file.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Calls that stand in for code that is missing, or that were left behind after a search.
const STAND_INS: [&str; 3] =
    [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("d", "bg!")];

/// A test that is switched off; the attribute may give a reason, which changes nothing.
const SWITCHED_OFF: &str = concat!("#[ig", "nore");

/// Folders that exist on the machine of whoever wrote the line.
const MACHINE_FOLDERS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];

/// Where a folder below is one machine's, though the place itself exists on all.
const TEMPORARY: &str = concat!("/t", "mp/");

/// Unfinished work.
pub(super) fn check_unfinished(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        let is_rust = file.extension() == "rs";
        for (index, line) in text.lines().enumerate() {
            let mut report = |message: String| {
                findings.push(Finding::new(&file.path, index + 1, message));
            };
            for note in NOTES.iter().filter(|note| has_word(line, note)) {
                report(format!("`{note}`: do it now, or say in a sentence what does not hold yet"));
            }
            if !is_rust {
                continue;
            }
            for call in STAND_INS.iter().filter(|call| has_word(line, call)) {
                report(format!("`{call}` stands in for code: write the code or remove the call"));
            }
            if line.contains(SWITCHED_OFF) {
                report("a test that does not run tests nothing: mend it or remove it".to_owned());
            }
        }
    }
    findings
}

/// Absolute paths that exist on one machine only.
pub(super) fn check_machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            if let Some(path) = machine_path(line) {
                let message = format!(
                    "`{path}` is a path of one machine: \
                     make it relative to the repository, or an argument"
                );
                findings.push(Finding::new(&file.path, index + 1, message));
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
        // A call ends in a mark of its own, and what follows it is not part of the word.
        let ends = word.ends_with('!') || !after.is_some_and(is_word_part);
        !before.is_some_and(is_word_part) && ends
    })
}

/// The first folder of one machine that `line` names.
fn machine_path(line: &str) -> Option<&'static str> {
    // After a name or a dot, as in `docs/…`, `../…` and addresses of the web, the path is a
    // relative one or another machine's.
    let is_absolute = |at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_word_part(c) || matches!(c, '.' | '-' | '}' | '/'))
    };
    let named = MACHINE_FOLDERS
        .into_iter()
        .find(|folder| line.match_indices(folder).any(|(at, _)| is_absolute(at)));
    named.or_else(|| {
        let is_folder = |at: usize| {
            let rest = &line[at + TEMPORARY.len()..];
            let end = rest.find(|c: char| !is_word_part(c) && !matches!(c, '.' | '-'));
            end.is_some_and(|end| end > 0 && rest[end..].starts_with('/'))
        };
        let mut places = line.match_indices(TEMPORARY);
        places.any(|(at, _)| is_absolute(at) && is_folder(at)).then_some(TEMPORARY)
    })
}

/// Whether a character can stand inside a name.
fn is_word_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfinished(path: &str, text: &str) -> Vec<usize> {
        check_unfinished(&Tree::of(&[(path, text)])).iter().map(|f| f.line).collect()
    }

    #[test]
    fn notes_to_oneself_fail_in_every_file() {
        for note in NOTES {
            assert_eq!(unfinished("a.md", &format!("fine\n{note}: later\n")), [2]);
            assert_eq!(unfinished("a.rs", &format!("// {note}\n")), [1]);
            assert!(unfinished("a.rs", &format!("{note}X {note}_S A{note}\n")).is_empty());
        }
    }

    #[test]
    fn stand_ins_fail_in_rust() {
        for call in STAND_INS {
            assert_eq!(unfinished("a.rs", &format!("fn f() {{\n    {call}(x)\n}}\n")), [2]);
            assert!(unfinished("a.rs", &format!("my_{call}()\n")).is_empty());
            assert!(unfinished("a.md", &format!("`{call}`\n")).is_empty());
        }
    }

    #[test]
    fn tests_that_are_switched_off_fail() {
        assert_eq!(unfinished("a.rs", &format!("{SWITCHED_OFF}]\nfn t() {{}}\n")), [1]);
        assert_eq!(unfinished("a.rs", &format!("{SWITCHED_OFF} = \"slow\"]\n")), [1]);
    }

    #[test]
    fn folders_of_one_machine_fail() {
        let lines = |text: &str| check_machine_paths(&Tree::of(&[("a.md", text)])).len();
        for folder in MACHINE_FOLDERS {
            assert_eq!(lines(&format!("see {folder}me/file\n")), 1);
            assert_eq!(lines(&format!("\"{folder}\"\n")), 1);
            assert_eq!(lines(&format!("docs{folder}a ..{folder}a https://a.io{folder}\n")), 0);
        }
    }

    #[test]
    fn temporary_folders_fail_and_temporary_files_do_not() {
        let lines = |text: &str| check_machine_paths(&Tree::of(&[("a.md", text)])).len();
        assert_eq!(lines(&format!("in {TEMPORARY}mine/file\n")), 1);
        assert_eq!(lines(&format!("in {TEMPORARY}snapshot.pickle and {TEMPORARY}\n")), 0);
    }
}
