//! The strip: the end of a growing file, mapped into memory.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{Ordering, compiler_fence};

use memmap2::{MmapMut, MmapOptions};

use crate::format::{CELL_BYTES, Cell};

/// How much of the file is mapped at a time, and by how much it grows.
const STRIP_BYTES: usize = 1 << 20;

/// A file that grows cell by cell.
pub(crate) struct Strip {
    file: File,
    map: MmapMut,
    /// Where in the file the map begins.
    begin: u64,
    /// Where in the map the next cell goes.
    at: usize,
    /// Where in the map the file ends: before the map does, from a cut on until the next cell.
    end: usize,
}

impl Strip {
    /// A new file with this header. A file that is there already is replaced, unless somebody
    /// records to it. It is never emptied: who has mapped it, and finds it shorter, is ended by
    /// a signal.
    pub(crate) fn create(path: &Path, header: &[u8; CELL_BYTES]) -> io::Result<Strip> {
        clear(path)?;
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        // So that `clear` knows. Where files have no locks it cannot; what is replaced then is
        // lost, but harms nobody.
        let _ = file.try_lock();
        let mut map = extend(&file, 0)?;
        map[..CELL_BYTES].copy_from_slice(header);
        Ok(Strip { file, map, begin: 0, at: CELL_BYTES, end: STRIP_BYTES })
    }

    /// Adds a cell. If the file cannot grow, nothing of it is written.
    #[inline]
    pub(crate) fn push(&mut self, cell: &Cell) -> io::Result<()> {
        if self.at == self.end {
            self.go_on()?;
        }
        let bytes = cell.bytes();
        let place = &mut self.map[self.at..self.at + CELL_BYTES];
        place[1..].copy_from_slice(&bytes[1..]);
        // The kind comes last: until it is there, the tape ends before this cell.
        compiler_fence(Ordering::Release);
        place[0] = bytes[0];
        self.at += CELL_BYTES;
        Ok(())
    }

    /// Makes room for the next cell: in this strip, where the file was cut, or in the next one.
    #[cold]
    fn go_on(&mut self) -> io::Result<()> {
        if self.end < STRIP_BYTES {
            // What of the map lay behind the cut can be written to only when the file is there
            // again.
            let at = self.begin + self.end as u64;
            self.file.write_all_at(&vec![0; STRIP_BYTES - self.end], at)?;
            self.end = STRIP_BYTES;
            return Ok(());
        }
        let begin = self.begin + STRIP_BYTES as u64;
        self.map = extend(&self.file, begin)?;
        (self.begin, self.at) = (begin, 0);
        Ok(())
    }

    /// Cuts off what is not written yet, and sees to it that the rest is on the disk.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.map.flush()?;
        self.file.set_len(self.begin + self.at as u64)?;
        self.end = self.at;
        self.file.sync_all()
    }
}

/// Takes away the tape that was at this place.
fn clear(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        let sentence = format!("{} is not a plain file, which a tape must be", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        let sentence = format!(
            "somebody records to {} already, this program or another: take another name, or remove \
             the file first",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, sentence));
    }
    fs::remove_file(path)
}

/// Makes the file longer by one strip, and maps the strip. The zeros are written, not left out: a
/// disk that is full is an error here and not a signal at some later write to the map.
fn extend(file: &File, begin: u64) -> io::Result<MmapMut> {
    file.write_all_at(&vec![0; STRIP_BYTES], begin)?;
    // SAFETY: the bytes are read and written through this map alone, as plain bytes. The file was
    // made by us, and just now made long enough for the map. No recorder cuts the file of another
    // shorter; that nobody else does is asked of the user where a tape is created.
    unsafe { MmapOptions::new().offset(begin).len(STRIP_BYTES).map_mut(file) }
}
