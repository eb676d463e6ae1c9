//! The steps of a run: which there are, in what order, and what happens when one fails.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
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
}

impl Step {
    fn cargo(name: &'static str, arguments: &[&'static str]) -> Self {
        Self { name, work: Work::Cargo { arguments: arguments.to_vec(), rustdoc_flags: None } }
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
        steps.push(Self::cargo("release build", &["build", "--release", "-p", "larder-cli"]));
        steps.push(Self::cargo("parity", &["xtask", "parity", "--seeds", "8"]));
        let newest = ["xtask", "parity", "--torch", "2.15", "--seeds", "6", "--random-only"];
        steps.push(Self::cargo("parity with the newest PyTorch", &newest));
        steps.push(Self::cargo("backend", &["xtask", "backend"]));
        let through = ["xtask", "parity", "--through-interface", "--seeds", "5"];
        steps.push(Self::cargo("parity through PyTorch's interface", &through));
        steps.push(Self::cargo("model of the lock", &["xtask", "model"]));
        steps.push(Self::cargo("headers", &["xtask", "headers"]));
        steps.push(Self::cargo("stand-in", &["xtask", "gpu", "--stand-in"]));
        steps.push(Self::cargo("python", &["xtask", "python"]));
        steps.push(Self::cargo("world", &["xtask", "world", "--quick"]));
        steps.push(Self::cargo("page", &["xtask", "page"]));
        steps.push(Self::cargo("doc tests", &["test", "--doc", "--workspace"]));
        steps.push(if has_nextest {
            Self::cargo("tests", &["nextest", "run", "--workspace", "--no-fail-fast"])
        } else {
            Self::cargo("tests", &["test", "--workspace", "--tests", "--no-fail-fast"])
        });
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
}

impl Runner {
    /// A runner that uses the very Cargo that started this program.
    pub(crate) fn new(root: PathBuf) -> Self {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Self { root, program }
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
        for (index, step) in steps.iter().enumerate() {
            eprintln!("==> {}: {}", step.name, step.command_line());
            let begin = Instant::now();
            let code = self.run_one(step);
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

    fn run_one(&self, step: &Step) -> u8 {
        match &step.work {
            Work::Tidy => u8::from(!tidy::run(&self.root)),
            Work::Cargo { arguments, rustdoc_flags } => {
                let mut command = Command::new(&self.program);
                command.args(arguments).current_dir(&self.root);
                if let Some(flags) = rustdoc_flags {
                    command.env("RUSTDOCFLAGS", flags);
                }
                match command.status() {
                    Ok(status) => exit_code(status),
                    Err(error) => {
                        eprintln!("{} cannot be started: {error}", self.program.display());
                        127
                    }
                }
            }
        }
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
        Runner { root: PathBuf::from("."), program: OsString::from("sh") }
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
                "release build",
                "parity",
                "parity with the newest PyTorch",
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
