//! Files, with errors that name them.

use std::fs;
use std::io;
use std::path::Path;

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

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    // A program that is running cannot be written to, but it can be replaced.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(named(from))
}
