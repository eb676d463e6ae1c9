//! The recorder: writes a tape while a program runs.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::Allocator;
use larder_core::record::context::Frame;
use larder_core::record::event::Event;

use crate::fork;
use crate::format::{
    CELL_BYTES, Cell, EVENT, FRAME, MAGIC, NOTE, STACK, STACK_PIECE, TEXT, TEXT_PIECE,
};
use crate::strip::Strip;

/// Writes the events of allocators to a file. It can be cloned; all clones write to one tape.
///
/// The tape is that of the process that created it. In the child of a `fork` nothing more is
/// written, and [`Recorder::finish`] says so; a child that wants a tape creates one of its own.
#[derive(Clone)]
pub struct Recorder {
    writer: Arc<Mutex<Writer>>,
    /// How many forks there were when the tape was created.
    forks: u64,
}

impl Recorder {
    /// A new tape. A file that is there already is replaced by a new one, unless somebody records
    /// to it, which is an error. Nobody else may write to the file or cut it shorter while it
    /// is recorded to.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        fork::watch();
        let mut header = [0; CELL_BYTES];
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        let writer = Writer {
            strip: Strip::create(path, &header)?,
            number: 0,
            texts: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            notes: HashMap::new(),
            recent_note: None,
            problem: None,
            ended: false,
        };
        Ok(Recorder { writer: Arc::new(Mutex::new(writer)), forks: fork::count() })
    }

    /// Writes what happens in an allocator from now on, for as long as the allocator lives.
    /// Contexts are written where the allocator's history gathers them.
    pub fn listen(&self, allocator: &Allocator) {
        let Recorder { writer, forks } = self.clone();
        allocator.on_event(move |event| {
            // In a child the lock may be that of a thread which only the parent has.
            if forks == fork::count() {
                writer.lock().unwrap_or_else(PoisonError::into_inner).event(event);
            }
        });
    }

    /// Cuts the file to what was written and sees to it that all of it is on the disk. What happens
    /// after that is written too. Says how many cells there are, or what went wrong on the way:
    /// the tape ends where the first thing did.
    pub fn finish(&self) -> io::Result<u64> {
        if self.forks != fork::count() {
            let sentence = "the tape is that of the process that created it, of which this one is \
            a \
                            fork: nothing that happened here is on it";
            return Err(io::Error::other(sentence));
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = writer.problem.take() {
            return Err(problem);
        }
        writer.strip.finish()?;
        Ok(u64::from(writer.number))
    }

    /// As [`Recorder::finish`], and what happens after that is not written any more, whoever
    /// listens.
    pub fn end(self) -> io::Result<u64> {
        let cells = self.finish()?;
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        Ok(cells)
    }
}

/// A note as it was told.
struct RecentNote {
    compiling: Option<Box<str>>,
    remark: Box<str>,
    doing: Box<str>,
    number: u32,
}

struct Writer {
    strip: Strip,
    /// How many cells were written, modulo 2³².
    number: u32,
    texts: HashMap<Box<str>, u32>,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    notes: HashMap<[u32; 3], u32>,
    /// The note that was written last, which mostly comes again.
    recent_note: Option<RecentNote>,
    /// What went wrong first. Nothing is written after that: a tape with a gap would lie.
    problem: Option<io::Error>,
    /// Nothing is written any more.
    ended: bool,
}

impl Writer {
    #[inline]
    fn event(&mut self, event: &Event<'_>) {
        if self.problem.is_some() || self.ended {
            return;
        }
        if let Err(problem) = self.write(event) {
            self.problem = Some(problem);
        }
    }

    fn write(&mut self, event: &Event<'_>) -> io::Result<()> {
        let stack = match event.context {
            Some(context) => self.stack(&context.frames())?,
            None => 0,
        };
        let note = self.note(event)?;
        let device = u16::try_from(event.device.0).unwrap_or(u16::MAX);
        let mut cell = Cell::new(EVENT, event.action as u8, device, self.number);
        let words = [event.addr, event.size_bytes, event.stream.0, event.time_ns];
        for (at, word) in words.into_iter().chain([event.pool.0, event.pool.1]).enumerate() {
            cell.set_long(at, word);
        }
        cell.set_word(12, stack);
        cell.set_word(13, note);
        self.push(&cell)
    }

    fn push(&mut self, cell: &Cell) -> io::Result<()> {
        self.strip.push(cell)?;
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    fn note(&mut self, event: &Event<'_>) -> io::Result<u32> {
        let (compiling, remark) = (event.compile_context, event.user_metadata);
        let doing = event.internal_metadata;
        if compiling.is_none() && remark.is_empty() && doing.is_empty() {
            return Ok(0);
        }
        if let Some(recent) = &self.recent_note
            && recent.compiling.as_deref() == compiling
            && *recent.remark == *remark
            && *recent.doing == *doing
        {
            return Ok(recent.number);
        }
        let mut given = |text: &str| if text.is_empty() { Ok(0) } else { self.text(text) };
        let (remark_text, doing_text) = (given(remark)?, given(doing)?);
        let compiling_text = compiling.map_or(Ok(0), |compiling| self.text(compiling))?;
        let texts = [compiling_text, remark_text, doing_text];
        let next = self.notes.len() as u32 + 1;
        let note = *self.notes.entry(texts).or_insert(next);
        if note == next {
            let mut cell = Cell::new(NOTE, 0, 0, self.number);
            for (at, word) in [note].into_iter().chain(texts).enumerate() {
                cell.set_word(at, word);
            }
            self.push(&cell)?;
        }
        let compiling = compiling.map(Into::into);
        let (remark, doing) = (remark.into(), doing.into());
        self.recent_note = Some(RecentNote { compiling, remark, doing, number: note });
        Ok(note)
    }

    fn text(&mut self, text: &str) -> io::Result<u32> {
        if let Some(&number) = self.texts.get(text) {
            return Ok(number);
        }
        let number = self.texts.len() as u32 + 1;
        let mut pieces = text.as_bytes().chunks(TEXT_PIECE);
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            let mut cell = Cell::new(TEXT, 0, piece.len() as u16, self.number);
            cell.set_word(0, number);
            cell.set_word(1, text.len() as u32);
            cell.set_piece(piece);
            self.push(&cell)?;
            match pieces.next() {
                Some(next) => piece = next,
                None => break,
            }
        }
        self.texts.insert(text.into(), number);
        Ok(number)
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<u32> {
        if let Some(&number) = self.frames.get(frame) {
            return Ok(number);
        }
        let (name, filename) = (self.text(&frame.name)?, self.text(&frame.filename)?);
        let number = self.frames.len() as u32 + 1;
        let mut cell = Cell::new(FRAME, 0, 0, self.number);
        for (at, word) in [number, name, filename, frame.line].into_iter().enumerate() {
            cell.set_word(at, word);
        }
        self.push(&cell)?;
        self.frames.insert(frame.clone(), number);
        Ok(number)
    }

    fn stack(&mut self, frames: &[Frame]) -> io::Result<u32> {
        let frames: Vec<u32> =
            frames.iter().map(|frame| self.frame(frame)).collect::<io::Result<_>>()?;
        if let Some(&number) = self.stacks.get(&frames) {
            return Ok(number);
        }
        let number = self.stacks.len() as u32 + 1;
        let pieces = frames.chunks(STACK_PIECE).map(<[u32]>::to_vec);
        let pieces: Vec<Vec<u32>> =
            if frames.is_empty() { vec![Vec::new()] } else { pieces.collect() };
        for piece in pieces {
            let mut cell = Cell::new(STACK, 0, piece.len() as u16, self.number);
            cell.set_word(0, number);
            cell.set_word(1, frames.len() as u32);
            for (at, &frame) in piece.iter().enumerate() {
                cell.set_word(2 + at, frame);
            }
            self.push(&cell)?;
        }
        self.stacks.insert(frames, number);
        Ok(number)
    }
}
