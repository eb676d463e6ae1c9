//! Sources of segments that are libraries for collectives: NCCL and NVSHMEM, loaded at run time.
//!
//! Neither is linked, so that a program builds and starts where there is none of them.

pub mod nccl;
pub mod nvshmem;

use std::ffi::{OsStr, OsString};
use std::fmt;

use larder_core::device::DeviceError;
use libloading::Library;

use crate::context::{Context, Entered};

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryError {
    /// It cannot be loaded under any of its names.
    Missing {
        /// The library.
        library: &'static str,
        /// What was tried last.
        name: OsString,
        /// What the loader said to that.
        reason: String,
    },
    /// It is too old, or another library.
    NoFunction {
        /// The library.
        library: &'static str,
        /// The function that it does not have.
        function: &'static str,
    },
    /// It refused a call.
    Refused {
        /// The library.
        library: &'static str,
        /// What we asked of it.
        call: &'static str,
        /// What it said.
        code: i32,
    },
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibraryError::Missing { library, name, reason } => {
                write!(f, "{library} cannot be loaded as {}: {reason}", name.display())
            }
            LibraryError::NoFunction { library, function } => {
                write!(
                    f,
                    "this {library} has no function {function}: it is too old, or something else"
                )
            }
            LibraryError::Refused { library, call, code } => {
                write!(f, "{library} refused to {call} (error {code})")
            }
        }
    }
}

impl std::error::Error for LibraryError {}

/// Loads a library under the first of its names that leads to one.
///
/// # Safety
/// Whatever is found under these names is that library, or one with its interface.
unsafe fn load<N: AsRef<OsStr>>(
    library: &'static str,
    names: &[N],
) -> Result<Library, LibraryError> {
    let mut last = LibraryError::Missing { library, name: OsString::new(), reason: String::new() };
    for name in names {
        // SAFETY: the caller vouches for what is found.
        match unsafe { Library::new(name.as_ref()) } {
            Ok(found) => return Ok(found),
            Err(error) => {
                let (name, reason) = (name.as_ref().to_owned(), error.to_string());
                last = LibraryError::Missing { library, name, reason };
            }
        }
    }
    Err(last)
}

/// The device that a library's calls are about: the one that is current on the thread if nobody
/// names one.
struct Current(Option<Context>);

impl Current {
    fn of(device: Option<u32>) -> Current {
        Current(device.map(|index| Context::of(index as i32)))
    }

    /// While the guard lives the device is current on this thread.
    fn enter(&self) -> Result<Option<Entered<'_>>, DeviceError> {
        self.0.as_ref().map(Context::enter).transpose()
    }
}
