//! Files that are there whole or not at all.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Why a file was not written; one sentence that names it.
#[derive(Debug)]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What was in the way.
    pub error: io::Error,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The name that stands for standard input, and for standard output.
pub const STANDARD: &str = "-";

/// Writes a file that is there whole or not at all; packed if its name says so. `-` is standard
/// output.
pub fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), WriteError> {
    if path == Path::new(STANDARD) {
        let mut out = BufWriter::new(io::stdout().lock());
        return match write(&mut out).and_then(|()| out.flush()) {
            // A reader that has seen enough, such as `head`, is no failure.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(WriteError { path: PathBuf::from("standard output"), error })
            }
            _ => Ok(()),
        };
    }
    let is_packed = path.extension().is_some_and(|ending| ending == "gz");
    under_another_name(path, |part| {
        let mut file = BufWriter::new(File::create(part)?);
        if is_packed {
            let mut packer = GzEncoder::new(file, Compression::default());
            write(&mut packer)?;
            file = packer.finish()?;
        } else {
            write(&mut file)?;
        }
        file.flush()
    })
}

/// Has a file written under another name beside it, and gives it its own name once it is whole. A
/// link stays one: what it points to is replaced. What is there and is no file, a pipe or a device,
/// is written to as it is.
pub fn under_another_name(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), WriteError> {
    let said = |error| WriteError { path: path.to_owned(), error };
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|facts| !facts.is_file()) {
        return write(&target).map_err(said);
    }
    let part = (0..u32::MAX).map(|number| {
        let mut part = target.as_os_str().to_owned();
        part.push(format!(".part{number}"));
        PathBuf::from(part)
    });
    // A name that nobody has: what is there already is somebody's.
    let part = part.into_iter().find(|part| !part.exists()).unwrap_or_default();
    let written = write(&part).and_then(|()| fs::rename(&part, &target));
    written.map_err(|error| {
        // What is left of it is of no use.
        let _ = fs::remove_file(&part);
        said(error)
    })
}
