//! A torch memory snapshot as plain data.
//!
//! [`Snapshot::open`] reads what `torch.cuda.memory._dump_snapshot()` wrote, gzipped or not;
//! [`Snapshot::of_allocators`] and [`Snapshot::of_tape`] make one. [`Snapshot::save`] writes it for
//! PyTorch's viewer, for Perfetto, or as JSON.
#![forbid(unsafe_code)]

mod build;
mod emit;
mod entry;
mod error;
mod host;
mod json;
mod live;
mod on_failure;
mod part;
mod parts;
pub mod perfetto;
pub mod pickle;
mod room;
mod save;
mod shape;
mod source;
mod stacks;
mod tape;
mod torch;
mod tree;
mod version;
pub mod whole;
mod word;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

pub use entry::{
    Action, BlockInfo, BlockState, Frame, Note, NoteId, PoolKey, SegmentInfo, StackId, TraceEntry,
};
pub use error::SnapshotError;
pub use live::Epoch;
pub use on_failure::write_on_failure;
pub use room::Room;
pub use save::{Format, SaveError};

use larder_core::config::Config;
use serde_json::{Map, Value};

use pickle::{Interner, Limits, TextId, Texts};

/// What PyTorch on Larder says of its settings where nobody gave it any; the comma tells it from a
/// program's own.
pub(crate) const PROPOSED_CONF: &str = "expandable_segments:True,";

const EXPANDABLE_KEY: &str = "expandable_segments";

/// A snapshot: the segments at the end, and for each device what happened before.
pub struct Snapshot {
    /// All segments of all devices at the end.
    pub segments: Vec<SegmentInfo>,
    /// The settings of the recorded allocator, in its own syntax, if the snapshot has them.
    pub allocator_conf: Option<String>,
    /// What else the snapshot says, the settings and annotations among it. None if it is a list of
    /// segments and nothing else.
    pub more: Option<Map<String, Value>>,
    /// How many values there were of a kind that is not kept.
    pub unkept_values: u64,
    entries: Vec<TraceEntry>,
    entries_more: HashMap<u32, TextId>,
    traces: Vec<Range<usize>>,
    frames: Vec<Frame>,
    stacks: Interner<u32>,
    notes: Vec<Note>,
    pools: Vec<(u64, u64)>,
    texts: Texts,
}

impl Snapshot {
    /// Reads a snapshot file. `progress` is told how many bytes of the file have been read.
    pub fn open(path: &Path, progress: impl FnMut(u64)) -> Result<Snapshot, SnapshotError> {
        let file = File::open(path).map_err(SnapshotError::Open)?;
        Snapshot::read(file, Limits::default(), progress)
    }

    /// Reads a snapshot, gzipped or not, from any reader; it needs no buffer of its own.
    pub fn read(
        reader: impl Read,
        limits: Limits,
        progress: impl FnMut(u64),
    ) -> Result<Snapshot, SnapshotError> {
        match source::open(reader, progress).map_err(SnapshotError::Open)? {
            source::Source::Pickle(reader) => {
                shape::snapshot(pickle::read(reader, limits, parts::Parts::new())?)
            }
            source::Source::Zip => Err(SnapshotError::Shape(
                "this is a zip archive, as torch.save writes, not a pickled memory snapshot"
                    .to_owned(),
            )),
        }
    }

    /// The settings of the recorded allocator; the default where the snapshot has none, or some
    /// that are not known here.
    pub fn recorded_config(&self) -> Config {
        Config::parse(&self.conf_in_force().unwrap_or_default()).unwrap_or_default()
    }

    /// The settings that were in force, as a text, if the snapshot has any. The text that PyTorch
    /// shows is what it read last, and names neither what was set before nor what Larder does
    /// by itself.
    pub fn conf_in_force(&self) -> Option<String> {
        let conf = self.allocator_conf.as_deref()?;
        if conf == PROPOSED_CONF {
            return Some(format!("{conf}plain_captures:True"));
        }
        let expandable = self.settings().and_then(|settings| settings.get(EXPANDABLE_KEY));
        let is_unsaid =
            expandable.and_then(Value::as_bool) == Some(true) && !conf.contains(EXPANDABLE_KEY);
        let separator = if conf.is_empty() { "" } else { "," };
        Some(if is_unsaid {
            format!("{conf}{separator}{EXPANDABLE_KEY}:True")
        } else {
            conf.to_owned()
        })
    }

    /// How many devices there are traces for, empty ones included.
    pub fn device_count(&self) -> usize {
        self.traces.len()
    }

    /// What happened on a device, oldest first.
    pub fn trace(&self, device: u32) -> Option<&[TraceEntry]> {
        self.traces.get(device as usize).map(|range| &self.entries[range.clone()])
    }

    /// The frames of a call stack, innermost first.
    pub fn stack(&self, id: StackId) -> impl ExactSizeIterator<Item = Frame> + '_ {
        let frames = self.stacks.get(id.0.get() - 1);
        frames.iter().map(|&number| self.frames[number as usize])
    }

    /// The remarks on an entry.
    pub fn note(&self, id: NoteId) -> Note {
        self.notes[id.0 as usize]
    }

    /// The two numbers of a pool id.
    pub fn pool_id(&self, key: PoolKey) -> (u64, u64) {
        self.pools[key.0.get() as usize - 1]
    }

    /// What else the snapshot says of the entry at this place of a device's trace, as the text of a
    /// JSON object.
    pub fn more_of_entry(&self, device: u32, index: usize) -> Option<&str> {
        let range = self.traces.get(device as usize)?;
        let number = u32::try_from(range.start + index).ok()?;
        self.entries_more.get(&number).map(|&text| self.text(text))
    }

    /// The text of a frame or remark.
    pub fn text(&self, id: TextId) -> &str {
        self.texts.get(id)
    }
}
