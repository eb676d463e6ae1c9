//! The steps of a run: which there are, in what order, and what happens when one fails.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

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
/// because the summary of the tests shall be the last thing on the screen.
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

/// One thing to check: a name, and the words after `cargo`.
pub(crate) struct Step {
    name: &'static str,
    words: Vec<&'static str>,
    /// The tests are built while the next steps run, which mostly have a processor to spare. Who
    /// needs them waits, and says what is wrong if they cannot be built.
    is_ahead: bool,
}

impl Step {
    fn read(line: &'static str) -> Self {
        let (name, words) = line.split_once(": ").unwrap_or((line, ""));
        Self { name, words: words.split(' ').collect(), is_ahead: name == "tests, built ahead" }
    }

    pub(crate) fn lints() -> Vec<Self> {
        LINTS.lines().map(Self::read).collect()
    }

    /// Everything that CI checks.
    pub(crate) fn all(has_nextest: bool) -> Vec<Self> {
        let tests: &[&str] = if has_nextest {
            &["nextest", "run", "--workspace"]
        } else {
            &["test", "--workspace", "--tests"]
        };
        let mut checks: Vec<Self> = CHECKS.lines().map(Self::read).collect();
        for step in checks.iter_mut().filter(|step| step.words[0] == "TESTS") {
            step.words.splice(..1, tests.iter().copied());
        }
        Self::lints().into_iter().chain(checks).collect()
    }

    /// The command line that runs this step alone.
    fn command_line(&self) -> String {
        let flags = if self.words[0] == "doc" {
            format!("RUSTDOCFLAGS=\"{RUSTDOC_FLAGS}\" ")
        } else {
            String::new()
        };
        let end = if self.is_ahead { " &" } else { "" };
        format!("{flags}cargo {}{end}", self.words.join(" "))
    }
}

/// Runs steps one after the other in the repository.
pub(crate) struct Runner {
    pub(crate) root: PathBuf,
    /// The very Cargo that started this program.
    pub(crate) program: OsString,
    /// Where this program lies.
    this: PathBuf,
}

impl Runner {
    pub(crate) fn new(root: PathBuf) -> Self {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
        Self { root, program, this }
    }

    /// Whether `cargo nextest` can be called.
    pub(crate) fn has_nextest(&self) -> bool {
        let mut nextest = Command::new(&self.program);
        nextest.args(["nextest", "--version"]).current_dir(&self.root);
        nextest.output().is_ok_and(|output| output.status.success())
    }

    /// Runs the steps until one fails: a sentence about it, and its exit code. `says_last_time` is
    /// false where the last step prints a summary of its own that shall end the run.
    pub(crate) fn run(&self, steps: &[Step], says_last_time: bool) -> Result<(), (String, u8)> {
        let mut ahead = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let (name, line) = (step.name, step.command_line());
            eprintln!("==> {name}: {line}");
            let begin = Instant::now();
            let mut command = self.command_of(step);
            if step.is_ahead {
                ahead.extend(Ahead::start(&mut command));
                continue;
            }
            let code = command.status().map_or(127, exit_code);
            if code != 0 {
                let sentence = format!(
                    "step `{name}` failed (exit code {code}); repeat it alone with: {line}"
                );
                return Err((sentence, code));
            }
            if says_last_time || index + 1 < steps.len() {
                eprintln!("    {name}: ok, {:.1} s", begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    /// What a step starts. Cargo is not asked to start this program: it would wait for what is
    /// built ahead.
    fn command_of(&self, step: &Step) -> Command {
        let mut command = match step.words[0] {
            "xtask" => Command::new(&self.this),
            _ => Command::new(&self.program),
        };
        command.args(step.words.iter().filter(|word| **word != "xtask")).current_dir(&self.root);
        if step.words[0] == "doc" {
            command.env("RUSTDOCFLAGS", RUSTDOC_FLAGS);
        }
        command
    }
}

/// A build that goes on beside other steps, and ends with the run at the latest. It says nothing:
/// whoever needs what it builds builds the rest.
struct Ahead(Child);

impl Ahead {
    fn start(command: &mut Command) -> Option<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok().map(Self)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that a signal ended has no exit code; shells call it 128 and the signal's number.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> Step {
        Step { name: "shell", words: vec!["-c", script], is_ahead: false }
    }

    fn run(steps: &[Step]) -> Result<(), (String, u8)> {
        let this = PathBuf::from("no-such-program");
        Runner { root: PathBuf::from("."), program: OsString::from("sh"), this }.run(steps, false)
    }

    #[test]
    fn the_tests_come_last_and_the_doc_tests_before_them() {
        for has_nextest in [true, false] {
            let steps = Step::all(has_nextest);
            let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
            assert_eq!(names[..2], ["format", "format of fuzz"]);
            assert_eq!(names[names.len() - 2..], ["doc tests", "tests"]);
        }
    }

    #[test]
    fn a_failing_step_ends_the_run_with_its_code() {
        let steps = [shell("exit 0"), shell("exit 7"), shell("exit 9")];
        let (sentence, code) = run(&steps).unwrap_err();
        assert_eq!(code, 7);
        assert!(sentence.ends_with("repeat it alone with: cargo -c exit 7"), "{sentence}");
        assert_eq!(run(&[shell("kill -9 $$")]).unwrap_err().1, 137);
        assert_eq!(run(&[Step::read("none: xtask any")]).unwrap_err().1, 127);
    }

    #[test]
    fn what_is_built_ahead_neither_holds_up_the_steps_nor_outlives_them() {
        let ahead = Step { is_ahead: true, ..shell("exec sleep 600") };
        let begin = Instant::now();
        assert_eq!(run(&[ahead, shell("exit 5")]).unwrap_err().1, 5);
        assert!(begin.elapsed().as_secs() < 300);
    }

    #[test]
    fn the_flags_for_the_docs_are_part_of_how_to_repeat_them() {
        let line = Step::read("docs: doc --workspace").command_line();
        assert_eq!(line, "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace");
    }
}
