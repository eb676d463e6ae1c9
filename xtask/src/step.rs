//! The steps of a run: which there are, in what order, and what happens when one fails.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

/// One thing to check: a name, and the words after `cargo`.
pub(crate) struct Step {
    name: &'static str,
    words: Vec<&'static str>,
    /// The tests are built while the next steps run, which mostly have a processor to spare. Who
    /// needs them waits, and says what is wrong if they cannot be built.
    is_ahead: bool,
}

/// The flags that `rustdoc` alone shall see.
const RUSTDOC_FLAGS: &str = "-D warnings";

fn step(name: &'static str, words: &str) -> Step {
    // The few texts of a run may stay for as long as it lasts.
    let words: &'static str = String::from(words).leak();
    Step { name, words: words.split(' ').collect(), is_ahead: false }
}

impl Step {
    /// Format, clippy and docs, the rules of the source text, and links.
    ///
    /// Warnings are denied by flags of the last tool in the line. `RUSTFLAGS` would do it too, but
    /// it is part of every artifact's fingerprint, and everything would be built twice.
    pub(crate) fn lints(root: &Path) -> Vec<Self> {
        let mut steps = vec![step("format", "fmt --all --check")];
        // The fuzz targets are a workspace of their own, which `--all` and `--workspace` do not
        // reach.
        let fuzz = "--manifest-path fuzz/Cargo.toml";
        let has_fuzz = root.join("fuzz/Cargo.toml").is_file();
        if has_fuzz {
            steps.push(step("format of fuzz", &format!("fmt {fuzz} --check")));
        }
        steps.push(step("clippy", "clippy --workspace --all-targets -- -D warnings"));
        if has_fuzz {
            let clippy = format!("clippy {fuzz} --target-dir target --locked -- -D warnings");
            let words = format!("{clippy} -D clippy::undocumented_unsafe_blocks");
            steps.push(step("clippy of fuzz", &words));
        }
        steps.push(step("docs", "doc --workspace --no-deps"));
        steps.push(step("tidy", "xtask tidy"));
        steps.push(step("links", "xtask tidy --links"));
        steps.push(step("format of C++", "xtask tidy --format"));
        steps
    }

    /// Everything that CI checks.
    ///
    /// The doc tests stand before the tests, because nextest does not run them and because the
    /// summary of the tests shall be the last thing on the screen.
    pub(crate) fn all(root: &Path, has_nextest: bool) -> Vec<Self> {
        let tests =
            if has_nextest { "nextest run --workspace" } else { "test --workspace --tests" };
        let ahead = step("tests, built ahead", &format!("{tests} --no-run"));
        let mut steps = Self::lints(root);
        steps.push(Self { is_ahead: true, ..ahead });
        steps.extend([
            step("release build", "build --release -p larder-cli"),
            step("parity", "xtask parity --seeds 8"),
            step(
                "parity with the newest PyTorch",
                "xtask parity --torch 2.15 --seeds 6 --random-only",
            ),
            step("settings as each PyTorch reads them", "xtask parity --settings 500"),
            step("backend", "xtask backend"),
            step(
                "parity through PyTorch's interface",
                "xtask parity --through-interface --seeds 5",
            ),
            step("model of the lock", "xtask model"),
            step("headers", "xtask headers"),
            step("stand-in", "xtask gpu --stand-in"),
            step("python", "xtask python"),
            step("world", "xtask world --quick"),
            step("page", "xtask page"),
            step("doc tests", "test --doc --workspace"),
            step("tests", &format!("{tests} --no-fail-fast")),
        ]);
        steps
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
            let steps = Step::all(Path::new("nowhere"), has_nextest);
            let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
            assert_eq!(names[..2], ["format", "clippy"]);
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
        assert_eq!(run(&[step("none", "xtask any")]).unwrap_err().1, 127);
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
        let line = step("docs", "doc --workspace").command_line();
        assert_eq!(line, "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace");
    }
}
