//! Source: the bytes of a snapshot file, unpacked if need be, with the progress told.

use std::io::{self, Cursor, Read};

use flate2::read::MultiGzDecoder;

/// A reader that tells how many bytes have been read.
struct Counted<R, F> {
    reader: R,
    read_bytes: u64,
    progress: F,
}

impl<R: Read, F: FnMut(u64)> Read for Counted<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.read_bytes += count as u64;
        (self.progress)(self.read_bytes);
        Ok(count)
    }
}

/// What kind of file it is, by its first bytes.
pub(super) enum Source<R> {
    /// The bytes of a pickle.
    Pickle(R),
    /// A zip archive, as `torch.save` writes.
    Zip,
}

/// Looks at the first bytes and unpacks gzip. `progress` is told how many bytes of the file
/// itself, packed if it is packed, have been read.
pub(super) fn open<'a>(
    reader: impl Read + 'a,
    progress: impl FnMut(u64) + 'a,
) -> io::Result<Source<Box<dyn Read + 'a>>> {
    let mut counted = Counted { reader, read_bytes: 0, progress };
    let mut magic = Vec::with_capacity(2);
    counted.by_ref().take(2).read_to_end(&mut magic)?;
    let packed = magic == [0x1f, 0x8b];
    let archived = magic == *b"PK";
    let whole = Cursor::new(magic).chain(counted);
    Ok(if archived {
        Source::Zip
    } else if packed {
        Source::Pickle(Box::new(MultiGzDecoder::new(whole)))
    } else {
        Source::Pickle(Box::new(whole))
    })
}
