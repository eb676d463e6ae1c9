//! Why a snapshot could not be read.

use std::{error, fmt, io};

use crate::pickle::PickleError;

/// Why a snapshot could not be read. Its text is one sentence for the user.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file could not be opened.
    Open(io::Error),
    /// The file is not a readable pickle.
    Pickle(PickleError),
    /// The pickle holds something else than a snapshot; the text says what and where.
    Shape(String),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Open(error) => write!(f, "the snapshot cannot be opened: {error}"),
            SnapshotError::Pickle(error) => error.fmt(f),
            SnapshotError::Shape(what) => f.write_str(what),
        }
    }
}

impl error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            SnapshotError::Open(error) => Some(error),
            SnapshotError::Pickle(error) => Some(error),
            SnapshotError::Shape(_) => None,
        }
    }
}

impl From<PickleError> for SnapshotError {
    fn from(error: PickleError) -> SnapshotError {
        SnapshotError::Pickle(error)
    }
}
