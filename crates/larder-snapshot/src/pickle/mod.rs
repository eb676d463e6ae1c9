//! A reader and a writer of pickles that hold plain data, as torch's memory snapshots do.
//!
//! The reader takes protocols 2 to 5 (and of 0 and 1 what is easy) from any [`Read`] in one pass.
//! Objects that the pickle shares stay shared: they are one object with one id. Nothing in a file
//! is trusted: opcodes that import or call something are refused, no length makes it allocate ahead
//! of the bytes that arrive, depth costs no host stack, and each byte of a file can cost no more
//! than about 64 bytes of memory, up to [`Limits::memory_bytes`].
//!
//! A [`Sink`] sees each dictionary when it is filled and may take it over as a record of its own,
//! so that a list of millions of small dictionaries never exists.

mod error;
mod input;
mod interner;
mod machine;
mod memo;
mod objects;
mod opcode;
mod value;
mod writer;

#[cfg(test)]
mod tests;

use std::io::Read;

pub use error::{PickleError, PickleErrorKind};
pub(crate) use interner::Interner;
pub use objects::{Content, Objects, Texts};
pub use value::{BytesId, DictId, ListId, TextId, TupleId, Value};
pub use writer::{Open, Writer};

/// How much a pickle may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes may be read, after unpacking.
    pub length_bytes: u64,
    /// How much memory may be used, the sink's included.
    pub memory_bytes: u64,
}

impl Default for Limits {
    /// 64 GiB of data and 16 GiB of memory: room for recordings of some hundred million events.
    fn default() -> Limits {
        Limits { length_bytes: 64 << 30, memory_bytes: 16 << 30 }
    }
}

/// Takes over dictionaries as soon as they are filled.
pub trait Sink {
    /// Texts that get the ids 0, 1, 2, … before reading begins, so that keys are known by number.
    fn vocabulary(&self) -> &'static [&'static str] {
        &[]
    }

    /// An empty dictionary has just got these pairs: a key, its value, a key, and so on. `Some`
    /// replaces it by that number; the pickle may not change it after that.
    fn dict_filled(&mut self, objects: &mut Objects, pairs: &[Value]) -> Option<u32>;

    /// About how much memory the sink takes; it counts towards the limit.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A sink that takes nothing over.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Sink for KeepAll {
    fn dict_filled(&mut self, _: &mut Objects, _: &[Value]) -> Option<u32> {
        None
    }
}

/// What a pickle held.
pub struct Pickle<S> {
    /// The pickled object.
    pub root: Value,
    /// The parts of it and of all objects below it.
    pub objects: Objects,
    /// The sink, with what it took over.
    pub sink: S,
}

/// Reads one pickle. What follows it is left alone.
pub fn read<R: Read, S: Sink>(
    reader: R,
    limits: Limits,
    sink: S,
) -> Result<Pickle<S>, PickleError> {
    machine::Machine::new(reader, limits, sink).run().map_err(PickleError::from)
}
