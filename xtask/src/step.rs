//! The steps of a run: which there are, in what order, and what happens when one fails.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::tidy;

/// One thing to check.
pub(crate) struct Step {
    name: &'static str,
    work: Work,
}

enum Work {
    /// A call of Cargo, with the flags that `rustdoc` alone shall see.
    Cargo { arguments: Vec<&'static str>, rustdoc_flags: Option<&'static str> },
    /// The tidy rules, checked by this very program.
    Tidy,
    /// Another command of this very program. Cargo is not asked to start it: it would wait for what is built ahead.
    Xtask { arguments: Vec<&'static str> },
    /// The tests are built while the next steps run, which mostly have a processor to spare. Who needs them waits, and
    /// says what is wrong if they cannot be built.
    BuildAhead { arguments: Vec<&'static str> },
}

impl Step {
    fn cargo(name: &'static str, arguments: &[&'static str]) -> Self {
        Self { name, work: Work::Cargo { arguments: arguments.to_vec(), rustdoc_flags: None } }
    }

    fn xtask(name: &'static str, arguments: &[&'static str]) -> Self {
        Self { name, work: Work::Xtask { arguments: arguments.to_vec() } }
    }

    /// The rules of the source text.
    pub(crate) fn tidy() -> Self {
        Self { name: "tidy", work: Work::Tidy }
    }

    /// Format, clippy and docs.
    ///
    /// Warnings are denied by flags of the last tool in the line. `RUSTFLAGS` would do it too, but
    /// it is part of every artifact's fingerprint, and everything would be built twice.
    pub(crate) fn lints(root: &Path) -> Vec<Self> {
        let mut steps = vec![Self::cargo("format", &["fmt", "--all", "--check"])];
        // The fuzz targets are a workspace of their own, which `--all` and `--workspace` do not reach.
        let has_fuzz = root.join("fuzz/Cargo.toml").is_file();
        if has_fuzz {
            let arguments = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
            steps.push(Self::cargo("format of fuzz", &arguments));
        }
        let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        steps.push(Self::cargo("clippy", &clippy));
        if has_fuzz {
            let path = ["--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--locked"];
            let arguments = [&["clippy"], &path[..], &["--", "-D", "warnings"]].concat();
            steps.push(Self::cargo("clippy of fuzz", &arguments));
        }
        steps.push(Self {
            name: "docs",
            work: Work::Cargo {
                arguments: vec!["doc", "--workspace", "--no-deps"],
                rustdoc_flags: Some("-D warnings"),
            },
        });
        steps
    }

    /// Everything that CI checks.
    ///
    /// The doc tests stand before the tests, because nextest does not run them and because the
    /// summary of the tests shall be the last thing on the screen.
    pub(crate) fn all(root: &Path, has_nextest: bool) -> Vec<Self> {
        let mut steps = Self::lints(root);
        steps.push(Self::tidy());
        let tests: &[&str] = if has_nextest {
            &["nextest", "run", "--workspace"]
        } else {
            &["test", "--workspace", "--tests"]
        };
        let arguments = [tests, &["--no-run"]].concat();
        steps.push(Self { name: "tests, built ahead", work: Work::BuildAhead { arguments } });
        steps.push(Self::cargo("release build", &["build", "--release", "-p", "larder-cli"]));
        steps.push(Self::xtask("parity", &["parity", "--seeds", "8"]));
        let newest = ["parity", "--torch", "2.15", "--seeds", "6", "--random-only"];
        steps.push(Self::xtask("parity with the newest PyTorch", &newest));
        let texts = ["parity", "--settings", "500"];
        steps.push(Self::xtask("settings as each PyTorch reads them", &texts));
        steps.push(Self::xtask("backend", &["backend"]));
        let through = ["parity", "--through-interface", "--seeds", "5"];
        steps.push(Self::xtask("parity through PyTorch's interface", &through));
        steps.push(Self::xtask("model of the lock", &["model"]));
        steps.push(Self::xtask("headers", &["headers"]));
        steps.push(Self::xtask("stand-in", &["gpu", "--stand-in"]));
        steps.push(Self::xtask("python", &["python"]));
        steps.push(Self::xtask("world", &["world", "--quick"]));
        steps.push(Self::xtask("page", &["page"]));
        steps.push(Self::cargo("doc tests", &["test", "--doc", "--workspace"]));
        steps.push(Self::cargo("tests", &[tests, &["--no-fail-fast"]].concat()));
        steps
    }

    /// The command line that runs this step alone.
    fn command_line(&self) -> String {
        match &self.work {
            Work::Tidy => "cargo xtask tidy".to_owned(),
            Work::Cargo { arguments, rustdoc_flags } => {
                let flags = rustdoc_flags
                    .map_or_else(String::new, |flags| format!("RUSTDOCFLAGS=\"{flags}\" "));
                format!("{flags}cargo {}", arguments.join(" "))
            }
            Work::Xtask { arguments } => format!("cargo xtask {}", arguments.join(" ")),
            Work::BuildAhead { arguments } => format!("cargo {} &", arguments.join(" ")),
        }
    }
}

/// A step that failed, and so ended the run.
#[derive(Debug)]
pub(crate) struct Failure {
    step: &'static str,
    command_line: String,
    /// The step's own exit code, which becomes that of the run.
    pub(crate) code: u8,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, command_line, code } = self;
        write!(f, "step `{step}` failed (exit code {code}); repeat it alone with: {command_line}")
    }
}

/// Runs steps one after the other in the repository.
pub(crate) struct Runner {
    pub(crate) root: PathBuf,
    pub(crate) program: OsString,
    /// Where this program lies.
    this: PathBuf,
}

impl Runner {
    /// A runner that uses the very Cargo that started this program.
    pub(crate) fn new(root: PathBuf) -> Self {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("xtask"));
        Self { root, program, this }
    }

    /// Whether `cargo nextest` can be called.
    pub(crate) fn has_nextest(&self) -> bool {
        Command::new(&self.program)
            .args(["nextest", "--version"])
            .current_dir(&self.root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Runs the steps until one fails. `says_last_time` is false where the last step prints a
    /// summary of its own that shall end the run.
    pub(crate) fn run(&self, steps: &[Step], says_last_time: bool) -> Result<(), Failure> {
        let mut ahead = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            eprintln!("==> {}: {}", step.name, step.command_line());
            let begin = Instant::now();
            let code = match self.command_of(step) {
                None => u8::from(!tidy::run(&self.root)),
                Some(mut command) if matches!(step.work, Work::BuildAhead { .. }) => {
                    ahead.extend(Ahead::start(&mut command));
                    continue;
                }
                Some(command) => run_one(command),
            };
            if code != 0 {
                let command_line = step.command_line();
                return Err(Failure { step: step.name, command_line, code });
            }
            if says_last_time || index + 1 < steps.len() {
                eprintln!("    {}: ok, {:.1} s", step.name, begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    /// What a step starts; none if it is done by this program.
    fn command_of(&self, step: &Step) -> Option<Command> {
        let (program, arguments, rustdoc_flags) = match &step.work {
            Work::Tidy => return None,
            Work::Cargo { arguments, rustdoc_flags } => {
                (self.program.clone(), arguments, *rustdoc_flags)
            }
            Work::BuildAhead { arguments } => (self.program.clone(), arguments, None),
            Work::Xtask { arguments } => (self.this.clone().into(), arguments, None),
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root);
        if let Some(flags) = rustdoc_flags {
            command.env("RUSTDOCFLAGS", flags);
        }
        Some(command)
    }
}

fn run_one(mut command: Command) -> u8 {
    match command.status() {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("{} cannot be started: {error}", command.get_program().display());
            127
        }
    }
}

/// A build that goes on beside other steps, and ends with the run at the latest. It says nothing: whoever needs what it
/// builds builds the rest.
struct Ahead(Child);

impl Ahead {
    fn start(command: &mut Command) -> Option<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()
            .map(Self)
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

    fn shell() -> Runner {
        let this = PathBuf::from("no-such-program");
        Runner { root: PathBuf::from("."), program: OsString::from("sh"), this }
    }

    #[test]
    fn the_tests_come_last_and_the_doc_tests_before_them() {
        for has_nextest in [true, false] {
            let steps = Step::all(Path::new("nowhere"), has_nextest);
            let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
            let expected = [
                "format",
                "clippy",
                "docs",
                "tidy",
                "tests, built ahead",
                "release build",
                "parity",
                "parity with the newest PyTorch",
                "settings as each PyTorch reads them",
                "backend",
                "parity through PyTorch's interface",
                "model of the lock",
                "headers",
                "stand-in",
                "python",
                "world",
                "page",
                "doc tests",
                "tests",
            ];
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_failing_step_ends_the_run_with_its_code() {
        let steps = [
            Step::cargo("first", &["-c", "exit 0"]),
            Step::cargo("second", &["-c", "exit 7"]),
            Step::cargo("third", &["-c", "exit 9"]),
        ];
        let failure = shell().run(&steps, false).unwrap_err();
        assert_eq!((failure.step, failure.code), ("second", 7));
        assert_eq!(
            failure.to_string(),
            "step `second` failed (exit code 7); repeat it alone with: cargo -c exit 7"
        );
    }

    #[test]
    fn what_is_built_ahead_neither_holds_up_the_steps_nor_outlives_them() {
        let arguments = vec!["-c", "exec sleep 600"];
        let steps = [
            Step { name: "ahead", work: Work::BuildAhead { arguments } },
            Step::cargo("next", &["-c", "exit 5"]),
        ];
        let begin = Instant::now();
        assert_eq!(shell().run(&steps, false).unwrap_err().code, 5);
        assert!(begin.elapsed().as_secs() < 300);
    }

    #[test]
    fn a_signal_has_the_code_that_shells_give_it() {
        let steps = [Step::cargo("killed", &["-c", "kill -9 $$"])];
        assert_eq!(shell().run(&steps, false).unwrap_err().code, 137);
    }

    #[test]
    fn a_program_that_is_missing_fails_the_step() {
        let runner = Runner { program: OsString::from("no-such-program"), ..shell() };
        assert_eq!(runner.run(&[Step::cargo("any", &[])], true).unwrap_err().code, 127);
        assert!(!runner.has_nextest());
    }

    #[test]
    fn the_flags_for_the_docs_are_part_of_how_to_repeat_them() {
        let steps = Step::lints(Path::new("nowhere"));
        let docs = steps.iter().find(|step| step.name == "docs").unwrap();
        assert_eq!(
            docs.command_line(),
            "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps"
        );
    }
}
