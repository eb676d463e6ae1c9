//! Workloads: the operations of a file, be it an op script or a torch memory snapshot.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::str::FromStr;

use larder_core::types::Span;
use larder_sim::script::{Op, Script};

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
        if file.metadata().is_ok_and(|facts| facts.is_dir()) {
            return Err(said(&"this is a folder, not a script or a snapshot"));
        }
        let mut head = [0; 2];
        let filled = BufReader::new(&file).read(&mut head).map_err(|error| said(&error))?;
        let script = path.extension().is_some_and(|ending| ending == "ops");
        if !script && is_snapshot(&head[..filled], path) {
            let length_bytes = file.metadata().map_or(0, |facts| facts.len());
            let bar = Progress::bytes("reading", length_bytes);
            let snapshot =
                Snapshot::open(path, |read| bar.set(read)).map_err(|error| said(&error))?;
            bar.finish();
            let recording =
                Recording::from_snapshot(&snapshot, device).map_err(|error| said(&error))?;
            return Ok(Workload::from(recording));
        }
        let file = File::open(path).map_err(|error| said(&error))?;
        let ops = Script::read(BufReader::new(file)).map_err(|error| said(&error))?;
        Ok(Workload { ops, segment_addresses: Vec::new(), recording: None })
    }
}

impl From<Recording> for Workload {
    fn from(recording: Recording) -> Workload {
        Workload {
            recording: Some(RecordingFacts {
                preexisting_blocks: recording.preexisting_blocks,
                preexisting_bytes: recording.preexisting_bytes,
                ooms: recording.ooms,
                entries: recording.entries,
            }),
            ops: recording.ops,
            segment_addresses: recording.segment_addresses,
        }
    }
}

/// Whether a file starts as a gzip, a zip or a pickle of protocol 2 or later does, or is named
/// like a pickle. Scripts are text.
fn is_snapshot(head: &[u8], path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.ends_with(".pickle") || name.ends_with(".pickle.gz") || name.ends_with(".pkl")
    });
    named || matches!(head, [0x1f, 0x8b] | [b'P', b'K']) || head.first() == Some(&0x80)
}
