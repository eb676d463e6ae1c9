//! The steps of a run: which there are, in what order, and what happens when one fails.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use crate::command::{self, Company};
use crate::repository::{Repository, cargo};

/// Format, clippy and docs, the rules of the source text, and links: a name, and the words after
/// `cargo`.
///
/// Warnings are denied by flags of the last tool in the line. `RUSTFLAGS` would do it too, but it
/// is part of every artifact's fingerprint, and everything would be built twice. The fuzz targets
/// are a workspace of their own, which `--all` and `--workspace` do not reach.
const LINTS: &str = "\
format: fmt --all --check
format of fuzz: fmt --manifest-path fuzz/Cargo.toml --check
clippy: clippy --workspace --all-targets -- -D warnings
clippy of fuzz: clippy --manifest-path fuzz/Cargo.toml --target-dir target --locked \
-- -D warnings -D clippy::undocumented_unsafe_blocks
docs: doc --workspace --no-deps
tidy: xtask tidy
links: xtask tidy --links
format of Python and C++: xtask tidy --format";

/// What else CI checks. The doc tests stand before the tests, because nextest does not run them and
/// because the summary of the tests shall be the last thing on the screen. The tests are built
/// while the steps between run, which mostly have a processor to spare; who needs them waits, and
/// says what is wrong if they cannot be built.
const CHECKS: &str = "\
tests, built ahead: TESTS --no-run
release build: build --release -p larder-cli
parity: xtask parity --seeds 8
parity with the newest PyTorch: xtask parity --torch 2.15 --seeds 6 --random-only
settings as each PyTorch reads them: xtask parity --settings 500
backend: xtask backend
parity through PyTorch's interface: xtask parity --through-interface --seeds 5
model of the lock: xtask model
headers: xtask headers
stand-in: xtask gpu --stand-in
python: xtask python
world: xtask world --quick
page: xtask page
doc tests: test --doc --workspace
tests: TESTS --no-fail-fast";

/// The flags that `rustdoc` alone shall see.
const RUSTDOC_FLAGS: &str = "-D warnings";

/// One thing to check.
pub(crate) struct Step {
    name: &'static str,
    /// How it is run alone.
    line: String,
    command: Command,
    is_ahead: bool,
}

impl Step {
    pub(crate) fn lints(repo: &Repository) -> Vec<Self> {
        LINTS.lines().map(|line| Self::read(repo, line, "")).collect()
    }

    /// Everything that CI checks.
    pub(crate) fn all(repo: &Repository) -> Vec<Self> {
        let mut nextest = with_words(Command::new(cargo()), "nextest --version");
        let has_nextest = command::ended(&mut nextest).is_ok_and(|end| end.status.success());
        let plain = "test --workspace --tests";
        let tests = if has_nextest { "nextest run --workspace" } else { plain };
        let steps = LINTS.lines().chain(CHECKS.lines());
        steps.map(|line| Self::read(repo, line, tests)).collect()
    }

    fn read(repo: &Repository, line: &'static str, tests: &str) -> Self {
        let (name, words) = line.split_once(": ").unwrap_or((line, ""));
        let (words, is_ahead) = (words.replace("TESTS", tests), name.ends_with("built ahead"));
        let mut line = format!("cargo {words}{}", if is_ahead { " &" } else { "" });
        // Cargo is not asked to start this program: it would wait for what is built ahead.
        let mut command = match words.strip_prefix("xtask ") {
            Some(words) => {
                let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
                with_words(Command::new(this), words)
            }
            None => with_words(Command::new(cargo()), &words),
        };
        command.current_dir(&repo.root);
        if words.starts_with("doc ") {
            command.env("RUSTDOCFLAGS", RUSTDOC_FLAGS);
            line = format!("RUSTDOCFLAGS=\"{RUSTDOC_FLAGS}\" {line}");
        }
        Self { name, line, command, is_ahead }
    }
}

fn with_words(mut command: Command, words: &str) -> Command {
    command.args(words.split(' '));
    command
}

/// Runs the steps until one fails: a sentence about it, and its exit code. `says_last_time` is
/// false where the last step prints a summary of its own that shall end the run.
pub(crate) fn run(steps: Vec<Step>, says_last_time: bool) -> Result<(), (String, u8)> {
    let mut ahead = Vec::new();
    let last = steps.len().saturating_sub(1);
    for (index, step) in steps.into_iter().enumerate() {
        let Step { name, line, mut command, is_ahead } = step;
        eprintln!("==> {name}: {line}");
        let begin = Instant::now();
        if is_ahead {
            // It says nothing, and ends with the run: whoever needs what it builds builds the rest.
            ahead.extend(Company::start(&mut command));
            continue;
        }
        let code = command.status().map_or(127, exit_code);
        if code != 0 {
            let sentence =
                format!("step `{name}` failed (exit code {code}); repeat it alone with: {line}");
            return Err((sentence, code));
        }
        if says_last_time || index < last {
            eprintln!("    {name}: ok, {:.1} s", begin.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// A process that a signal ended has no exit code; shells call it 128 and the signal's number.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Step {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        Step { name: "shell", line: line.to_owned(), command, is_ahead: false }
    }

    #[test]
    fn the_tests_come_last_and_the_doc_tests_before_them() {
        let steps = Step::all(&Repository::here().unwrap());
        let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
        assert_eq!(names[..2], ["format", "format of fuzz"]);
        assert_eq!(names[names.len() - 2..], ["doc tests", "tests"]);
        assert_eq!(steps.iter().filter(|step| step.is_ahead).count(), 1);
        // The flags for the docs are part of how to repeat them.
        let docs = "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps";
        assert!(steps.iter().any(|step| step.line == docs));
    }

    #[test]
    fn a_failing_step_ends_the_run_with_its_code() {
        let steps = ["exit 0", "exit 7", "exit 9"].map(shell);
        let (sentence, code) = run(steps.into(), false).unwrap_err();
        assert_eq!(code, 7);
        assert!(sentence.ends_with("repeat it alone with: exit 7"), "{sentence}");
        assert_eq!(run(vec![shell("kill -9 $$")], false).unwrap_err().1, 137);
        let none = Step { command: Command::new("no-such-program"), ..shell("") };
        assert_eq!(run(vec![none], false).unwrap_err().1, 127);
    }
}
