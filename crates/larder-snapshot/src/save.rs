//! Saving: a snapshot as a file, in the format that its name asks for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::whole::{self, WriteError};
use crate::{Snapshot, perfetto};

/// A format of files in which a snapshot can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Torch's pickle.
    Pickle,
    /// JSON, with the keys of torch's dictionary.
    Json,
    /// A trace for Perfetto and Chrome.
    Perfetto,
}

impl Format {
    /// The format that a file's name asks for, packed (`.gz`) or not.
    pub fn of_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let endings = [
            (".perfetto.json", Format::Perfetto),
            (".trace.json", Format::Perfetto),
            (".json", Format::Json),
            (".pickle", Format::Pickle),
            (".pkl", Format::Pickle),
        ];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }
}

/// There is no format of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat(pub String);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no format '{}'; there are pickle, json and perfetto", self.0)
    }
}

impl std::error::Error for UnknownFormat {}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Format, UnknownFormat> {
        match name {
            "pickle" => Ok(Format::Pickle),
            "json" => Ok(Format::Json),
            "perfetto" => Ok(Format::Perfetto),
            _ => Err(UnknownFormat(name.to_owned())),
        }
    }
}

/// Why a snapshot was not saved. Its text is one sentence for the user.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveError {
    /// The name does not say the format.
    NoFormat(PathBuf),
    /// The file could not be written.
    Write(WriteError),
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::NoFormat(path) => write!(
                f,
                "{}: the name does not say the format; there are .pickle, .json and \
                 .perfetto.json, each also with .gz",
                path.display()
            ),
            SaveError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SaveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SaveError::NoFormat(_) => None,
            SaveError::Write(error) => Some(error),
        }
    }
}

impl Snapshot {
    /// Writes it to a file, whole or not at all, in the format that the name asks for.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        let path = path.as_ref();
        let format = Format::of_path(path).ok_or_else(|| SaveError::NoFormat(path.to_owned()))?;
        self.save_as(path, format).map_err(SaveError::Write)
    }

    /// Writes it to a file, whole or not at all; packed if the name ends in `.gz`.
    pub fn save_as(&self, path: &Path, format: Format) -> Result<(), WriteError> {
        whole::write(path, |out| match format {
            Format::Pickle => self.write_pickle(out),
            Format::Json => self.write_json(out),
            Format::Perfetto => perfetto::write(self, out),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_the_format() {
        let format = |name: &str| Format::of_path(Path::new(name));
        assert_eq!(format("a/x.pickle"), Some(Format::Pickle));
        assert_eq!(format("x.pickle.gz"), Some(Format::Pickle));
        assert_eq!(format("x.json"), Some(Format::Json));
        assert_eq!(format("x.perfetto.json.gz"), Some(Format::Perfetto));
        assert_eq!(format("x.txt"), None);
        assert_eq!(format("json"), None);
    }
}
