//! What can be wrong with a pickle, and where.

use std::{error, fmt, io};

/// Why a pickle could not be read, with the byte at which reading stopped.
///
/// For a gzipped file the offset counts the bytes after unpacking.
#[derive(Debug)]
pub struct PickleError {
    /// The byte offset of the opcode, or of the end of the data if it ends too early.
    pub offset_bytes: u64,
    /// What is wrong there.
    pub kind: PickleErrorKind,
}

/// The kinds of [`PickleError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// The data ends before the pickle does.
    Truncated,
    /// The underlying reader failed.
    Read(io::Error),
    /// The opcode of this name imports or calls something; plain data never needs that.
    RunsCode(&'static str),
    /// The opcode of this name is valid but has no place in plain data.
    Unsupported(&'static str),
    /// No pickle protocol has this opcode.
    UnknownOpcode(u8),
    /// The pickle states a protocol newer than 5.
    Protocol(u8),
    /// The opcodes do not fit together; the text says how.
    Malformed(&'static str),
    /// Reading on would take more memory than allowed.
    MemoryLimit {
        /// The limit that was given.
        limit_bytes: u64,
    },
    /// The data is longer than allowed.
    LengthLimit {
        /// The limit that was given.
        limit_bytes: u64,
    },
}

/// Inside the reader an error is one pointer, so that the many small steps that can fail return
/// their results in registers.
pub(super) struct Failure(Box<PickleError>);

impl From<Failure> for PickleError {
    fn from(failure: Failure) -> PickleError {
        *failure.0
    }
}

impl Failure {
    pub(super) fn new(offset_bytes: u64, kind: PickleErrorKind) -> Failure {
        Failure(Box::new(PickleError { offset_bytes, kind }))
    }
}

impl fmt::Display for PickleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.offset_bytes;
        match &self.kind {
            PickleErrorKind::Truncated => {
                write!(f, "the file is cut short: it ends at byte {at}, in the middle of the data")
            }
            PickleErrorKind::Read(error) => write!(f, "reading failed at byte {at}: {error}"),
            PickleErrorKind::RunsCode(name) => write!(
                f,
                "the file asks to run code (opcode {name} at byte {at}), \
                 which a memory snapshot never needs"
            ),
            PickleErrorKind::Unsupported(name) => {
                write!(f, "the file uses opcode {name} at byte {at}, which is not supported")
            }
            PickleErrorKind::UnknownOpcode(opcode) => {
                write!(f, "this is not a pickle: there is no opcode {opcode:#04x} (byte {at})")
            }
            PickleErrorKind::Protocol(protocol) => {
                write!(f, "pickle protocol {protocol} (byte {at}) is newer than 5, the last known")
            }
            PickleErrorKind::Malformed(what) => {
                write!(f, "the pickle is damaged at byte {at}: {what}")
            }
            PickleErrorKind::MemoryLimit { limit_bytes } => write!(
                f,
                "reading past byte {at} would take more than the allowed {limit_bytes} bytes of \
                 memory"
            ),
            PickleErrorKind::LengthLimit { limit_bytes } => {
                write!(f, "the data is longer than the allowed {limit_bytes} bytes")
            }
        }
    }
}

impl error::Error for PickleError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.kind {
            PickleErrorKind::Read(error) => Some(error),
            _ => None,
        }
    }
}
