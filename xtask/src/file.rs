//! Files, with errors that name them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Turns an error into a sentence that names the file.
pub(crate) fn named(path: &Path) -> impl FnOnce(io::Error) -> String + use<> {
    let name = path.display().to_string();
    move |error| format!("{name}: {error}")
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(named(path))
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, text).map_err(named(path))
}

/// Makes a folder and those that it lies in, unless they are there.
pub(crate) fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(named(folder))
}

/// Makes something, unless it is there already and made of the same. The file `complete` says of
/// what it was made.
pub(crate) fn unless_complete(
    complete: &Path,
    made_of: &str,
    make: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    if fs::read_to_string(complete).is_ok_and(|text| text == made_of) {
        return Ok(());
    }
    let _ = fs::remove_file(complete);
    make()?;
    write(complete, made_of)
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    // A program that is running cannot be written to, but it can be replaced.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(named(from))
}

/// A path from where this program was called. What it starts runs in the repository.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}
