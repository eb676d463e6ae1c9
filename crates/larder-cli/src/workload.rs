//! Workloads: the operations of a file, be it an op script or a torch memory snapshot.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::str::FromStr;

use larder_core::types::{GIB, MIB, Span};
use larder_sim::script::{Op, Script};

use crate::pickle::Limits;
use crate::progress::Progress;
use crate::snapshot::{Recording, Snapshot};

/// Which addresses the simulated GPU gives to plain allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Those that the recorded GPU gave, while they last; then the lowest.
    #[default]
    Recorded,
    /// The lowest that are free.
    Lowest,
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(word: &str) -> Result<Addresses, String> {
        match word {
            "recorded" => Ok(Addresses::Recorded),
            "lowest" => Ok(Addresses::Lowest),
            _ => Err(format!("addresses are 'recorded' or 'lowest', not '{word}'")),
        }
    }
}

/// What a file asks of an allocator.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The addresses that the recorded GPU gave to segments; a script has none.
    pub segment_addresses: Vec<Span>,
    /// What there is to say about a recording besides its operations.
    pub recording: Option<RecordingFacts>,
}

/// What a summary says about a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingFacts {
    /// Blocks that were live before the recording began; they are allocated first.
    pub preexisting_blocks: u64,
    /// Bytes of those blocks.
    pub preexisting_bytes: u64,
    /// Out-of-memory errors that the program saw while it was recorded.
    pub ooms: u64,
    /// Entries of the trace.
    pub entries: u64,
    /// Entries of a kind that is not known; they are not replayed.
    pub unknown_entries: u64,
}

/// Why a file is no workload; one sentence.
#[derive(Debug)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

impl Workload {
    /// Reads a file: a torch snapshot if it looks like one, else an op script. Of a snapshot the
    /// trace of `device` is taken.
    pub fn load(path: &Path, device: u32) -> Result<Workload, LoadError> {
        let said = |what: &dyn fmt::Display| LoadError(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| said(&error))?;
        let facts = file.metadata().map_err(|error| said(&error))?;
        if facts.is_dir() {
            return Err(said(&"this is a folder, not a script or a snapshot"));
        }
        // Read through one handle from the beginning to the end: a pipe cannot be opened twice.
        let mut reader = BufReader::new(file);
        let head = reader.fill_buf().map_err(|error| said(&error))?;
        let is_script = path.extension().is_some_and(|ending| ending == "ops");
        if is_script || !is_snapshot(head, path) {
            let ops = Script::read(reader).map_err(|error| said(&error))?;
            return Ok(Workload { ops, segment_addresses: Vec::new(), recording: None });
        }
        if !starts_a_snapshot(head) {
            return Err(said(&"this is neither a pickle nor gzipped"));
        }
        let limits = limits_for(facts.is_file().then_some(facts.len()));
        let bar = Progress::bytes("reading", facts.len());
        let snapshot =
            Snapshot::read(reader, limits, |read| bar.set(read)).map_err(|error| said(&error))?;
        bar.finish();
        let recording =
            Recording::from_snapshot(&snapshot, device).map_err(|error| said(&error))?;
        Ok(Workload::from(recording))
    }
}

/// How much memory reading may take. A snapshot needs about its own size, and gzip packs it up to
/// twenty times; what asks for far more than that is no snapshot, however small the file.
fn limits_for(file_bytes: Option<u64>) -> Limits {
    let limits = Limits::default();
    let memory_bytes = file_bytes.map_or(4 * GIB, |bytes| 256 * MIB + 64 * bytes);
    Limits { memory_bytes: memory_bytes.min(limits.memory_bytes), ..limits }
}

impl From<Recording> for Workload {
    fn from(recording: Recording) -> Workload {
        Workload {
            recording: Some(RecordingFacts {
                preexisting_blocks: recording.preexisting_blocks,
                preexisting_bytes: recording.preexisting_bytes,
                ooms: recording.ooms,
                entries: recording.entries,
                unknown_entries: recording.unknown_entries,
            }),
            ops: recording.ops,
            segment_addresses: recording.segment_addresses,
        }
    }
}

/// Whether the bytes are the beginning of a gzip, a zip or a pickle of protocol 2 or later, or of
/// the dictionary or list of an older pickle.
fn starts_a_snapshot(head: &[u8]) -> bool {
    matches!(head, [0x1f, 0x8b, ..] | [b'P', b'K', ..] | [0x80 | b'}' | b']' | b'(' | b'I', ..])
}

/// Whether a file is to be read as a snapshot: by its name, or because no text starts so.
fn is_snapshot(head: &[u8], path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.ends_with(".pickle") || name.ends_with(".pickle.gz") || name.ends_with(".pkl")
    });
    named || matches!(head, [0x1f, 0x8b, ..] | [b'P', b'K', ..] | [0x80, ..])
}
