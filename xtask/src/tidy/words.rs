//! Words that may not stand in the tree, or not everywhere: marks of unfinished work, paths of one
//! machine, and questions that are somebody else's to ask.
//!
//! Patterns have brackets around a letter, so that this file does not hold what it looks for. Calls
//! that stand in for code are clippy's (`todo`, `unimplemented`, `dbg_macro`).

use regex::Regex;

use super::Finding;
use super::tree::Tree;

/// Something that may not be written.
struct Rule {
    /// Which paths it is about, and which of them are excepted.
    inside: &'static str,
    except: &'static str,
    pattern: &'static str,
    message: &'static str,
}

const RULES: [Rule; 6] = [
    Rule {
        inside: "",
        except: "^$",
        pattern: r"\b(TO[D]O|FI[X]ME|X[X]X)\b",
        message: "unfinished work: do it now, or say in a sentence what does not hold yet",
    },
    Rule {
        inside: r"\.rs$",
        except: "^$",
        pattern: r"#\[ig[n]ore",
        message: "a test that does not run tests nothing: mend it or remove it",
    },
    // Folders that exist on the machine of whoever wrote the line. After a name or a dot, as in
    // `docs/…`, `../…` and addresses of the web, the path is a relative one or another machine's.
    // The place for temporary files exists everywhere, and its folders do not.
    Rule {
        inside: "",
        except: "^$",
        pattern: r"(?m)(^|[^\w.}/-])/((wo[r]k|ho[m]e|ro[o]t)/|t[m]p/[\w.-]+/)",
        message: "this path is one machine's: make it relative, or an argument",
    },
    Rule {
        inside: "",
        except: "^$",
        pattern: r"(?m)[^\S\n]$",
        message: "white space at the end of the line: remove it",
    },
    // The policy tight is a placement: who places is asked, and nobody asks which policy it is but
    // a placement itself, and where one is chosen.
    Rule {
        inside: "^crates/larder-core/src/",
        except: r"/(policy\.rs|heap/placement\.rs|heap/best_fit/.*|heap/paged/.*)$",
        pattern: r"\bis_tight\b",
        message: "ask the placement, not the policy",
    },
    // The root denies it, so that each place that has it must allow it by name.
    Rule {
        inside: "^crates/larder/src/",
        except: "src/(lib.rs|interop/.*|real/.*)$",
        pattern: r"\bunsafe_code\b",
        message: "unsafe code in a crate that has none: move it",
    },
];

/// Every place that breaks a rule.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let compile = |pattern| Regex::new(pattern).expect("the patterns are sound");
    let mut findings = Vec::new();
    for Rule { inside, except, pattern, message } in RULES {
        let [inside, except, pattern] = [inside, except, pattern].map(compile);
        let texts = tree
            .texts()
            .filter(|(file, _)| inside.is_match(&file.path) && !except.is_match(&file.path));
        for (file, text) in texts {
            for found in pattern.find_iter(text) {
                let line = text[..found.start()].matches('\n').count() + 1;
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::with(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_fails() {
        for note in [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat()) {
            assert_eq!(lines("a.md", &format!("fine\n{note}: later\n")), [2]);
            assert!(lines("a.rs", &format!("{note}X {note}_S A{note}\n")).is_empty());
        }
        let switched_off = ["#[ig", "nore = \"slow\"]\n"].concat();
        assert_eq!((lines("a.rs", &switched_off), lines("a.md", &switched_off)), (vec![1], vec![]));
    }

    #[test]
    fn folders_of_one_machine_fail_and_temporary_files_do_not() {
        for folder in ["work", "home", "root", "tmp"].map(|name| format!("/{name}/")) {
            assert_eq!(lines("a.md", &format!("see {folder}me/file\n")), [1]);
            assert_eq!(lines("a.md", &format!("\n{folder}me/file\n")).len(), 1);
            assert!(lines("a.md", &format!("docs{folder}a/b ..{folder}a/b\n")).is_empty());
        }
        let temporary = ["/t", "mp/"].concat();
        assert!(lines("a.md", &format!("in {temporary}a.pickle and {temporary}\n")).is_empty());
    }

    #[test]
    fn white_space_that_nobody_sees_fails() {
        assert_eq!(lines("a.txt", "a\nb \nc\t\n"), [2, 3]);
        assert_eq!(lines("a.txt", "a\r\nb\n"), [1]);
        assert!(lines("a.txt", "a\n\n  b\n").is_empty() && lines("a.txt", "").is_empty());
    }

    #[test]
    fn questions_and_permissions_fail_outside_of_their_places() {
        let ask = |inside: &str| lines(&format!("crates/larder-core/src/{inside}"), "is_tight()\n");
        assert_eq!((ask("heap/cut.rs"), ask("heap/paged/mod.rs")), (vec![1], vec![]));
        let allow =
            |inside: &str| lines(&format!("crates/larder/src/{inside}"), "x, unsafe_code)\n");
        assert_eq!((allow("buffer.rs"), allow("interop/cuda.rs")), (vec![1], vec![]));
    }
}
