//! What the command line asks for.

const USAGE: &str = "\
The project's own commands.

Usage: cargo xtask <command>

Commands:
  test   everything that CI checks, in CI's order; the tests come last
  lint   formatting, clippy and documentation, with warnings denied
  tidy   the rules of the source text: layers, crate graph, unsafe, sizes, names, words, links

Options:
  -h, --help   print this text, or after a command what the command does
";

const TEST_HELP: &str = "\
Runs everything that CI checks and stops at the first step that fails, with its exit code.

Usage: cargo xtask test

Steps: format, clippy, docs, tidy, release build of the program, doc tests, tests. The tests run
under cargo-nextest where it is installed, otherwise under cargo test.
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

/// Something that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Test,
    Lint,
    Tidy,
}

impl Task {
    fn named(name: &str) -> Option<Self> {
        match name {
            "test" => Some(Self::Test),
            "lint" => Some(Self::Lint),
            "tidy" => Some(Self::Tidy),
            _ => None,
        }
    }

    fn help(self) -> &'static str {
        match self {
            Self::Test => TEST_HELP,
            Self::Lint => LINT_HELP,
            Self::Tidy => TIDY_HELP,
        }
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
        let Some(task) = Task::named(first) else {
            return Err(format!(
                "there is no command `{first}`; `cargo xtask --help` lists the commands"
            ));
        };
        match rest {
            [] => Ok(Self::Run(task)),
            [only] if is_help(only) => Ok(Self::Help(task.help())),
            _ => {
                let stranger = rest.iter().find(|word| !is_help(word)).unwrap_or(first);
                Err(format!(
                    "`{first}` does not take `{stranger}`; \
                     `cargo xtask {first} --help` says what it does"
                ))
            }
        }
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
