//! What is wrong with an option that a person gave as a text.

use std::fmt;

/// No program is made larger than so many times.
pub(crate) const SCALE_MAX: u64 = 1024;

/// Why an option cannot be read. Each case has the text that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionError {
    /// It names no way to choose addresses.
    Addresses(String),
    /// It is no factor for sizes.
    Scale(String),
    /// It is no jitter.
    Jitter(String),
    /// It names no format of files.
    Format(String),
    /// It names no card.
    Card {
        /// What it says.
        found: String,
        /// The names that there are.
        known: String,
    },
    /// It is given beside another that says the same of the memory.
    Twice(&'static str, &'static str),
    /// It is no limit to what may grow.
    Limit(String),
    /// It has no error of PyTorch's in it.
    NoError,
    /// It has errors that contradict one another.
    Contradiction,
    /// It is the error of another run than the one that was recorded.
    OtherRun,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::Addresses(found) => {
                write!(f, "addresses are 'recorded' or 'lowest', not '{found}'")
            }
            OptionError::Scale(found) => {
                write!(f, "a scale is a whole number from 1 to {SCALE_MAX}, not '{found}'")
            }
            OptionError::Jitter(found) => write!(
                f,
                "a jitter is a percentage from 0 to below 100, and may have a whole number as its \
                 seed behind it, such as 3 or 3:7, not '{found}'"
            ),
            OptionError::Format(found) => write!(
                f,
                "there is no format '{found}'; there are pickle, json, ops, perfetto and tape"
            ),
            OptionError::Card { found, known } => write!(
                f,
                "a card is a size such as 24GiB, a number of GiB, or one of {known}, not '{found}'"
            ),
            OptionError::Twice(one, other) => {
                write!(f, "{one} and {other} say the same of the memory: give one of them")
            }
            OptionError::Limit(found) => {
                write!(
                    f,
                    "a limit is a percentage such as 2%, or a size such as 100MiB, not '{found}'"
                )
            }
            OptionError::NoError => f.write_str(
                "there is no out-of-memory error of PyTorch's in it, which says 'Tried to allocate \
                 …' and 'has a total capacity of …'",
            ),
            OptionError::Contradiction => f.write_str(
                "the out-of-memory errors in it name different cards or caps: give those of one \
                 process and one cap",
            ),
            OptionError::OtherRun => f.write_str(
                "the error names a cap that the recording rules out: it is of another run",
            ),
        }
    }
}

impl std::error::Error for OptionError {}
