//! What is wrong with a settings text, in a sentence.

use std::fmt;

use crate::config::keys::KEYS;
use crate::nearest::nearest;
use crate::torch_version::TorchVersion;

/// What is wrong with a settings text. Each case names the key and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such setting.
    UnknownKey {
        /// The word found where a key belongs.
        key: String,
    },
    /// A PyTorch does not have the setting yet.
    NotYet {
        /// The setting.
        key: String,
        /// The first that has it.
        since: TorchVersion,
        /// The one that was asked.
        version: TorchVersion,
    },
    /// The key is known, its value is not one it takes.
    BadValue {
        /// The setting.
        key: String,
        /// What was found.
        value: String,
        /// What the setting takes.
        expected: String,
    },
    /// The text is not of the form `key:value,key:value`.
    BadSyntax {
        /// The piece of the text that cannot be read.
        found: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The whole assignment of a variable, as in a shell.
            ConfigError::UnknownKey { key } if key.contains('=') => write!(
                f,
                "there is no setting '{key}'; settings are written key:value,key:value, without \
                 the name of a variable before them"
            ),
            ConfigError::UnknownKey { key } => {
                write!(f, "there is no setting '{key}'; ")?;
                if let Some(meant) = nearest(key, KEYS) {
                    write!(f, "did you mean {meant}? ")?;
                }
                write!(f, "the settings are {}", KEYS.join(", "))
            }
            ConfigError::NotYet { key, since, version } => write!(
                f,
                "PyTorch {version} has no setting '{key}': it is known from PyTorch {since} on"
            ),
            ConfigError::BadValue { key, value, expected } => {
                write!(f, "the setting '{key}' takes {expected}, not '{value}'")
            }
            ConfigError::BadSyntax { found } => {
                write!(f, "settings are written key:value,key:value; '{found}' is not")?;
                if found.contains('=') { write!(f, ": use `:` for `=`") } else { Ok(()) }
            }
        }
    }
}

impl std::error::Error for ConfigError {}
