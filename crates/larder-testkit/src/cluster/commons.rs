//! The commons: a symmetric heap of simulated ranks. Segments are made and given back by all ranks
//! together, and what one rank writes the others read.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::device::{Device, DeviceError};
use larder_core::source::{SegmentSource, SourceProperties};
use larder_core::types::{Addr, Bytes, Span, StreamId};

use crate::cluster::Gather;
use larder_sim::SimDevice;

/// The code of the errors that come of the other ranks.
pub const COMMONS_CODE: i32 = -77;

/// What to do in the middle of growing, for tests: called with the number of the segment.
pub type Midway = Box<dyn Fn(u64) + Send + Sync>;

/// One rank's side of the symmetric heap: a source of segments that all ranks make together.
pub struct Commons {
    device: Arc<SimDevice>,
    gather: Arc<dyn Gather>,
    books: Mutex<Books>,
    midway: Option<Midway>,
}

#[derive(Default)]
struct Books {
    /// How many segments all ranks made together.
    made: u64,
    /// The number of each segment that is there.
    numbers: BTreeMap<Addr, u64>,
}

/// What ranks tell each other when they grow or shrink.
fn message(kind: u8, number: u64, size_bytes: u64, has_memory: bool) -> Vec<u8> {
    let mut bytes = vec![kind, u8::from(has_memory)];
    bytes.extend(number.to_le_bytes());
    bytes.extend(size_bytes.to_le_bytes());
    bytes
}

fn told(message: &[u8]) -> Option<(u8, bool, u64, u64)> {
    let number = u64::from_le_bytes(message.get(2..10)?.try_into().ok()?);
    let size_bytes = u64::from_le_bytes(message.get(10..)?.try_into().ok()?);
    Some((message[0], message[1] == 1, number, size_bytes))
}

const GROW: u8 = b'g';
const SHRINK: u8 = b's';

fn trouble(text: String) -> DeviceError {
    DeviceError::Other { code: COMMONS_CODE, text }
}

impl Commons {
    /// The side of the rank with this device and this exchange.
    pub fn new(device: Arc<SimDevice>, gather: Arc<dyn Gather>) -> Commons {
        Commons { device, gather, books: Mutex::default(), midway: None }
    }

    /// Does something in the middle of growing, when memory is there and nobody was told yet.
    #[must_use]
    pub fn midway(mut self, midway: Midway) -> Commons {
        self.midway = Some(midway);
        self
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ranks grow by the same, or none does.
    fn agree(&self, number: u64, size_bytes: u64, has_memory: bool) -> Result<bool, DeviceError> {
        let said = message(GROW, number, size_bytes, has_memory);
        let heard = self.gather.gather(&said).map_err(|error| trouble(error.to_string()))?;
        for (rank, other) in heard.iter().enumerate() {
            let Some((kind, _, other_number, other_bytes)) = told(other) else {
                return Err(trouble(format!("rank {rank} is not growing, as this rank is")));
            };
            if kind != GROW || (other_number, other_bytes) != (number, size_bytes) {
                return Err(trouble(format!(
                    "rank {rank} makes segment {other_number} of {}, and this rank segment \
                     {number} of {}",
                    Bytes(other_bytes),
                    Bytes(size_bytes)
                )));
            }
        }
        Ok(heard.iter().all(|other| told(other).is_some_and(|(_, has_memory, ..)| has_memory)))
    }
}

impl SegmentSource for Commons {
    fn alloc(&self, size_bytes: u64, _stream: StreamId) -> Result<Addr, DeviceError> {
        let number = self.books().made;
        let own = self.device.alloc(size_bytes);
        if let Some(midway) = &self.midway {
            midway(number);
        }
        let agreed = self.agree(number, size_bytes, own.is_ok());
        let undo = |error| {
            if let Ok(addr) = own {
                let _ = self.device.free(addr);
            }
            Err(error)
        };
        match (agreed, &own) {
            (Ok(true), Ok(addr)) => {
                let mut books = self.books();
                books.made += 1;
                books.numbers.insert(*addr, number);
                Ok(*addr)
            }
            (Ok(_), _) => undo(DeviceError::OutOfMemory),
            (Err(error), _) => undo(error),
        }
    }

    fn free(&self, segment: Span, _stream: StreamId) -> Result<(), DeviceError> {
        let number = self.books().numbers.get(&segment.addr).copied();
        let number = number.ok_or_else(|| trouble(format!("{} is no segment", segment.addr)))?;
        // Nobody may still be reading. Who is gone is not.
        let _ = self.gather.gather(&message(SHRINK, number, segment.size_bytes, true));
        self.device.free(segment.addr)?;
        self.books().numbers.remove(&segment.addr);
        Ok(())
    }

    fn decline(&self, size_bytes: u64, _stream: StreamId) -> Result<(), DeviceError> {
        let number = self.books().made;
        self.agree(number, size_bytes, false).map(|_| ())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties::default().collective(true).declines(true).registrar("the commons")
    }
}

/// The bytes of all ranks' segments, in one file for each rank, so that any process reads what
/// another wrote.
#[derive(Debug)]
pub struct SharedBytes {
    folder: PathBuf,
    ranks: Vec<Mutex<File>>,
}

/// How far apart the segments of a rank are in its file; the file has holes.
const SEGMENT_STRIDE: u64 = 1 << 32;

impl SharedBytes {
    /// The files of so many ranks in a folder, made where they are not there yet.
    pub fn open(folder: &Path, ranks: usize) -> io::Result<SharedBytes> {
        let open = |rank: usize| {
            let path = folder.join(format!("rank-{rank}"));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(path).map(Mutex::new)
        };
        let ranks = (0..ranks).map(open).collect::<io::Result<_>>()?;
        Ok(SharedBytes { folder: folder.to_owned(), ranks })
    }

    /// The folder that the files are in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, rank: usize) -> MutexGuard<'_, File> {
        self.ranks[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a word where a rank's segment has it.
    pub fn write(&self, rank: usize, segment: u64, offset_bytes: u64, word: u64) -> io::Result<()> {
        let mut file = self.file(rank);
        file.seek(SeekFrom::Start(segment * SEGMENT_STRIDE + offset_bytes))?;
        file.write_all(&word.to_le_bytes())
    }

    /// Reads the word that a rank's segment has there.
    pub fn read(&self, rank: usize, segment: u64, offset_bytes: u64) -> io::Result<u64> {
        let mut file = self.file(rank);
        file.seek(SeekFrom::Start(segment * SEGMENT_STRIDE + offset_bytes))?;
        let mut word = [0; 8];
        file.read_exact(&mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
