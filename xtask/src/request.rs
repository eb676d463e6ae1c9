//! What the command line asks for.

use crate::parity::Seeds;

const USAGE: &str = "\
The project's own commands.

Usage: cargo xtask <command>

Commands:
  test     everything that CI checks, in CI's order; the tests come last
  lint     formatting, clippy and documentation, with warnings denied
  tidy     the rules of the source text: layers, crate graph, unsafe, sizes, names, words, links
  parity   PyTorch's own allocator beside ours, on random scripts and recorded programs

Options:
  -h, --help   print this text, or after a command what the command does
";

const TEST_HELP: &str = "\
Runs everything that CI checks and stops at the first step that fails, with its exit code.

Usage: cargo xtask test

Steps: format, clippy, docs, tidy, release build of the program, parity with PyTorch's own allocator
on 200 seeds, doc tests, tests. The tests run under cargo-nextest where it is installed, otherwise
under cargo test.
";

const LINT_HELP: &str = "\
Runs the format check, clippy and the documentation build, with warnings denied.

Usage: cargo xtask lint
";

const TIDY_HELP: &str = "\
Reads the source text and reports, by file and line, what breaks the project's rules.

Usage: cargo xtask tidy

It reads the files that git tracks and the new ones that git does not ignore.
";

const PARITY_HELP: &str = "\
Runs PyTorch 2.11's own allocator and ours, policy torch-2.11, on the same simulated GPU with the
same scripts, and compares every statistic, every count of device calls and every placement.

Usage: cargo xtask parity [--seeds N] [--from SEED]

Options:
  --seeds N     how many random scripts of each flavour, each under all settings; 50 without it
  --from SEED   the first seed; 1 without it

The recorded programs are compared too. A difference is printed with its seed, its settings and the
shortest beginning of the script that shows it. Scripts on which the peer gives up or does not agree
with itself are set aside and counted. It needs python3 with pip, gcc, g++ and, the first time, the
network: PyTorch's wheel is fetched from the package index and what is needed of it kept under
target/judge.
";

/// Something that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Test,
    Lint,
    Tidy,
    Parity(Seeds),
}

impl Task {
    fn named(name: &str) -> Option<Self> {
        match name {
            "test" => Some(Self::Test),
            "lint" => Some(Self::Lint),
            "tidy" => Some(Self::Tidy),
            "parity" => Some(Self::Parity(Seeds { from: 1, count: 50 })),
            _ => None,
        }
    }

    fn help(self) -> &'static str {
        match self {
            Self::Test => TEST_HELP,
            Self::Lint => LINT_HELP,
            Self::Tidy => TIDY_HELP,
            Self::Parity(_) => PARITY_HELP,
        }
    }

    /// Reads an option of this task and its value; false if the task has no such option.
    fn set(&mut self, option: &str, value: &str) -> Result<bool, String> {
        let Self::Parity(seeds) = self else { return Ok(false) };
        let place = match option {
            "--seeds" => &mut seeds.count,
            "--from" => &mut seeds.from,
            _ => return Ok(false),
        };
        *place = value.parse().map_err(|_| format!("`{option}` takes a number, not `{value}`"))?;
        Ok(true)
    }
}

/// A command line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help(&'static str),
    Run(Task),
}

impl Request {
    /// Reads the words after `cargo xtask`; the error is a sentence for the user.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let Some((first, rest)) = arguments.split_first() else {
            return Err(format!("a command is missing\n\n{USAGE}"));
        };
        if is_help(first) || first == "help" {
            return Ok(Self::Help(USAGE));
        }
        let Some(mut task) = Task::named(first) else {
            return Err(format!(
                "there is no command `{first}`; `cargo xtask --help` lists the commands"
            ));
        };
        if let [only] = rest
            && is_help(only)
        {
            return Ok(Self::Help(task.help()));
        }
        let mut words = rest.iter().filter(|word| !is_help(word));
        while let Some(word) = words.next() {
            let value = words.next().map_or("", String::as_str);
            if !task.set(word, value)? {
                return Err(format!(
                    "`{first}` does not take `{word}`; \
                     `cargo xtask {first} --help` says what it does"
                ));
            }
        }
        Ok(Self::Run(task))
    }
}

fn is_help(word: &str) -> bool {
    word == "-h" || word == "--help"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&words)
    }

    #[test]
    fn commands_are_understood() {
        assert_eq!(parse("test"), Ok(Request::Run(Task::Test)));
        assert_eq!(parse("lint"), Ok(Request::Run(Task::Lint)));
        assert_eq!(parse("tidy"), Ok(Request::Run(Task::Tidy)));
    }

    #[test]
    fn parity_takes_its_seeds() {
        let parity = |from, count| Ok(Request::Run(Task::Parity(Seeds { from, count })));
        assert_eq!(parse("parity"), parity(1, 50));
        assert_eq!(parse("parity --from 7"), parity(7, 50));
        assert_eq!(parse("parity --seeds 2000 --from 3"), parity(3, 2000));
        assert!(parse("parity --seeds").unwrap_err().contains("`--seeds` takes a number"));
        assert!(parse("parity --from x").unwrap_err().contains("`x`"));
        assert!(parse("parity --to 3").unwrap_err().contains("`--to`"));
        assert!(parse("tidy --seeds 3").unwrap_err().contains("`--seeds`"));
        assert_eq!(parse("parity --help"), Ok(Request::Help(PARITY_HELP)));
    }

    #[test]
    fn help_is_given_for_the_whole_and_for_each_command() {
        assert_eq!(parse("--help"), Ok(Request::Help(USAGE)));
        assert_eq!(parse("help"), Ok(Request::Help(USAGE)));
        assert_eq!(parse("test --help"), Ok(Request::Help(TEST_HELP)));
        assert_eq!(parse("tidy -h"), Ok(Request::Help(TIDY_HELP)));
    }

    #[test]
    fn strangers_are_errors_that_name_them() {
        assert!(parse("").unwrap_err().contains("missing"));
        assert!(parse("tset").unwrap_err().contains("`tset`"));
        assert!(parse("test --fast").unwrap_err().contains("`--fast`"));
        assert!(parse("lint --help more").unwrap_err().contains("`more`"));
    }
}
