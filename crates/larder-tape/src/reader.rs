//! The reader: a tape as plain data, up to its last cell.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use larder_core::record::event::Action;
use larder_core::types::{PoolId, StreamId};

use crate::format::{CELL_BYTES, Cell, EVENT, FRAME, MAGIC, NOTE, STACK, STACK_PIECE, TEXT};

/// No address is larger: devices have far fewer, and snapshots count them in numbers with a sign.
const ADDRESS_MAX: u64 = i64::MAX as u64;

/// One event of a tape. What it names is found in the tape's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapeEvent {
    /// What happened.
    pub action: Action,
    /// On which device.
    pub device: u32,
    /// Where; of an out-of-memory event, the free bytes of the device instead.
    pub addr: u64,
    /// How many bytes.
    pub size_bytes: u64,
    /// The stream.
    pub stream: StreamId,
    /// When, by the clock of the recorder's allocator.
    pub time_ns: u64,
    /// The private pool, or none.
    pub pool: PoolId,
    /// Which of the stacks.
    pub stack: Option<usize>,
    /// Which of the notes.
    pub note: Option<usize>,
}

/// What was said about events, as texts of the tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapeNote {
    /// What was being compiled.
    pub compiling: Option<usize>,
    /// The program's remark; of an annotation, what it said about the block.
    pub remark: Option<usize>,
    /// What the allocator says of it: which unusual call it was part of.
    pub doing: Option<usize>,
}

/// What a tape holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    /// What happened, in order.
    pub events: Vec<TapeEvent>,
    /// All texts.
    pub texts: Vec<String>,
    /// All frames: the texts of the name and of the file, and the line.
    pub frames: Vec<(usize, usize, u32)>,
    /// All call stacks: frames, innermost first.
    pub stacks: Vec<Vec<usize>>,
    /// All notes.
    pub notes: Vec<TapeNote>,
}

/// Why a file is no tape that can be read. Its text is one sentence for the user.
#[derive(Debug)]
#[non_exhaustive]
pub enum TapeError {
    /// The file could not be read.
    Io(io::Error),
    /// The file does not begin as a tape does.
    NoTape,
    /// A cell cannot be understood.
    BadCell {
        /// Which one, from 0.
        number: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl fmt::Display for TapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TapeError::Io(error) => write!(f, "the tape cannot be read: {error}"),
            TapeError::NoTape => write!(f, "this is not a tape, or one of another version"),
            TapeError::BadCell { number, problem } => {
                write!(f, "the tape is damaged: cell {number} {problem}")
            }
        }
    }
}

impl std::error::Error for TapeError {}

impl From<io::Error> for TapeError {
    fn from(error: io::Error) -> TapeError {
        TapeError::Io(error)
    }
}

/// Reads as much as is left, up to one cell; how much that was.
fn fill(reader: &mut impl Read, bytes: &mut [u8; CELL_BYTES]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < CELL_BYTES {
        match reader.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Tape {
    /// Reads a tape from a file.
    pub fn open(path: &Path) -> Result<Tape, TapeError> {
        Tape::read(BufReader::new(File::open(path)?))
    }

    /// Reads a tape. It ends with its last whole cell: a program that was killed leaves room
    /// behind it, and a file that was cut leaves a part of one.
    pub fn read(mut reader: impl Read) -> Result<Tape, TapeError> {
        let mut bytes = [0; CELL_BYTES];
        if fill(&mut reader, &mut bytes)? < CELL_BYTES || !bytes.starts_with(&MAGIC) {
            return Err(TapeError::NoTape);
        }
        let mut reading = Reading::default();
        for number in 0_u64.. {
            if fill(&mut reader, &mut bytes)? < CELL_BYTES || bytes[0] == 0 {
                break;
            }
            let cell = Cell::from_bytes(&bytes);
            if cell.number() != number as u32 {
                return Err(TapeError::BadCell { number, problem: "is out of order" });
            }
            reading.take(&cell).map_err(|problem| TapeError::BadCell { number, problem })?;
        }
        Ok(reading.tape)
    }
}

/// A tape on the way in.
#[derive(Default)]
struct Reading {
    tape: Tape,
    /// The pieces of the text or stack that is not whole yet.
    text: Vec<u8>,
    stack: Vec<usize>,
}

/// Turns a number from 1 on, with 0 for none, into a place in a list that has it.
fn place(number: u32, len: usize) -> Result<Option<usize>, &'static str> {
    match number as usize {
        0 => Ok(None),
        number if number <= len => Ok(Some(number - 1)),
        _ => Err("names something that did not come before it"),
    }
}

/// A place that must be named.
fn must(number: u32, len: usize) -> Result<usize, &'static str> {
    place(number, len)?.ok_or("names nothing where something must be named")
}

impl Reading {
    fn take(&mut self, cell: &Cell) -> Result<(), &'static str> {
        match cell.kind() {
            EVENT => self.event(cell),
            TEXT => self.text(cell),
            FRAME => {
                let texts = self.tape.texts.len();
                let (name, file) = (must(cell.word(1), texts)?, must(cell.word(2), texts)?);
                self.tape.frames.push((name, file, cell.word(3)));
                next(cell, self.tape.frames.len())
            }
            STACK => self.stack(cell),
            NOTE => {
                let texts = self.tape.texts.len();
                let text = |at| place(cell.word(at), texts);
                let note = TapeNote { compiling: text(1)?, remark: text(2)?, doing: text(3)? };
                self.tape.notes.push(note);
                next(cell, self.tape.notes.len())
            }
            _ => Err("is of no known kind"),
        }
    }

    fn event(&mut self, cell: &Cell) -> Result<(), &'static str> {
        let action = Action::ALL.get(usize::from(cell.action()));
        let (addr, size_bytes) = (cell.long(0), cell.long(1));
        if addr.checked_add(size_bytes).is_none_or(|end| end > ADDRESS_MAX) {
            return Err("is an event past the last address");
        }
        self.tape.events.push(TapeEvent {
            action: *action.ok_or("is an event of no known action")?,
            device: u32::from(cell.count()),
            addr,
            size_bytes,
            stream: StreamId(cell.long(2)),
            time_ns: cell.long(3),
            pool: PoolId(cell.long(4), cell.long(5)),
            stack: place(cell.word(12), self.tape.stacks.len())?,
            note: place(cell.word(13), self.tape.notes.len())?,
        });
        Ok(())
    }

    fn text(&mut self, cell: &Cell) -> Result<(), &'static str> {
        let piece = cell.piece().get(..usize::from(cell.count()));
        self.text.extend_from_slice(piece.ok_or("has more of a text than fits")?);
        let whole = cell.word(1) as usize;
        if self.text.len() < whole {
            return Ok(());
        }
        if self.text.len() > whole {
            return Err("has more of a text than it says");
        }
        let text = String::from_utf8(std::mem::take(&mut self.text));
        self.tape.texts.push(text.map_err(|_| "ends a text that is none")?);
        next(cell, self.tape.texts.len())
    }

    fn stack(&mut self, cell: &Cell) -> Result<(), &'static str> {
        let count = usize::from(cell.count());
        if count > STACK_PIECE {
            return Err("has more of a stack than fits");
        }
        for at in 0..count {
            self.stack.push(must(cell.word(2 + at), self.tape.frames.len())?);
        }
        let whole = cell.word(1) as usize;
        if self.stack.len() < whole {
            return Ok(());
        }
        if self.stack.len() > whole {
            return Err("has more of a stack than it says");
        }
        self.tape.stacks.push(std::mem::take(&mut self.stack));
        next(cell, self.tape.stacks.len())
    }
}

/// Things are named in the order in which they come.
fn next(cell: &Cell, len: usize) -> Result<(), &'static str> {
    if cell.word(0) as usize == len { Ok(()) } else { Err("has a name out of order") }
}

/// Reads a tape while it is written: what has come since the last look is added to what was read
/// before.
pub struct Follower {
    file: File,
    /// How many cells were taken.
    number: u64,
    reading: Reading,
}

impl Follower {
    /// Begins at the beginning of a tape.
    pub fn open(path: &Path) -> Result<Follower, TapeError> {
        let mut file = File::open(path)?;
        let mut bytes = [0; CELL_BYTES];
        if fill(&mut file, &mut bytes)? < CELL_BYTES || !bytes.starts_with(&MAGIC) {
            return Err(TapeError::NoTape);
        }
        Ok(Follower { file, number: 0, reading: Reading::default() })
    }

    /// Takes all cells that have come. A cell's kind is written last, so that what is there is
    /// whole.
    pub fn look(&mut self) -> Result<(), TapeError> {
        self.file.seek(SeekFrom::Start((self.number + 1) * CELL_BYTES as u64))?;
        let mut reader = BufReader::with_capacity(1 << 16, &self.file);
        let mut bytes = [0; CELL_BYTES];
        while fill(&mut reader, &mut bytes)? == CELL_BYTES && bytes[0] != 0 {
            let (cell, number) = (Cell::from_bytes(&bytes), self.number);
            if cell.number() != number as u32 {
                return Err(TapeError::BadCell { number, problem: "is out of order" });
            }
            self.reading.take(&cell).map_err(|problem| TapeError::BadCell { number, problem })?;
            self.number += 1;
        }
        Ok(())
    }

    /// What was read so far, its events as well; those that were dealt with may be taken out.
    pub fn tape(&mut self) -> &mut Tape {
        &mut self.reading.tape
    }
}
