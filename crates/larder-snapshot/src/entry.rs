//! Entry: one line of a recorded history, and the other records that a snapshot is made of.

use std::num::NonZeroU32;

use serde_json::{Map, Value};

use crate::pickle::TextId;

/// What an entry of the trace says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// The block became free: at once, or when the streams that used it were done.
    FreeCompleted,
    /// A segment came from the device.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation failed.
    OutOfMemory,
    /// The program said something about a live block, which is the entry's remark; since PyTorch
    /// 2.14.
    Annotate,
    /// A name that was not known when this was written.
    Other,
}

/// Which call stack of the snapshot; see [`Snapshot::stack`](super::Snapshot::stack).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackId(pub(super) NonZeroU32);

/// Which pool id of the snapshot; see [`Snapshot::pool_id`](super::Snapshot::pool_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey(pub(super) NonZeroU32);

/// Which pair of remarks of the snapshot; see [`Snapshot::note`](super::Snapshot::note).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoteId(pub(super) u32);

/// One entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Where. For an out-of-memory entry it is the free memory of the device instead.
    pub addr: u64,
    /// How many bytes; for a block, as many as the program asked for.
    pub size_bytes: u64,
    /// The raw handle of the stream.
    pub stream: u64,
    /// When, in microseconds since 1970; 0 if the snapshot does not say.
    pub time_us: u64,
    /// The call stack, if it was recorded; it may have no frames.
    pub stack: Option<StackId>,
    /// The remarks on it.
    pub note: NoteId,
    /// The pool, if the entry names one.
    pub pool: Option<PoolKey>,
    /// What happened.
    pub action: Action,
    /// Whether the snapshot says when.
    pub has_time: bool,
    /// Whether the snapshot says more of it than the fields here; see
    /// [`Snapshot::more_of_entry`](super::Snapshot::more_of_entry).
    pub has_more: bool,
}

/// What the program said about the time of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Note {
    /// What the compiler was doing.
    pub compile_context: Option<TextId>,
    /// What the program had set as its remark.
    pub user_metadata: Option<TextId>,
}

/// One frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: TextId,
    /// The file.
    pub filename: TextId,
    /// The line in the file.
    pub line: u32,
    /// What else the snapshot says of it, as the text of a JSON object.
    pub more: Option<TextId>,
}

/// What a block of a segment was at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// In use.
    Allocated,
    /// Given back by the program, but still awaited on some stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// A block of a segment at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The first address.
    pub addr: u64,
    /// How many bytes.
    pub size_bytes: u64,
    /// How many bytes the program asked for; stale for a free block, 0 if the snapshot is old.
    pub requested_bytes: u64,
    /// The call stack of the allocation, if it was recorded; it may have no frames.
    pub stack: Option<StackId>,
    /// What it was.
    pub state: BlockState,
    /// What else the snapshot says of it, as the text of a JSON object.
    pub more: Option<TextId>,
}

/// A segment at the end, with its blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentInfo {
    /// The device.
    pub device: u32,
    /// The first address.
    pub addr: u64,
    /// How many bytes.
    pub size_bytes: u64,
    /// The raw handle of the stream.
    pub stream: u64,
    /// The pool; (0, 0) is the default one.
    pub pool_id: (u64, u64),
    /// Whether it is one for small blocks.
    pub is_small: bool,
    /// Whether it is a mapped part of an expandable segment.
    pub is_expandable: bool,
    /// The call stack of its allocation, if it was recorded; it may have no frames.
    pub stack: Option<StackId>,
    /// All blocks, by address.
    pub blocks: Vec<BlockInfo>,
    /// What else the snapshot says of it.
    pub more: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_small() {
        // There are millions of them: the file has about 71 bytes for each.
        assert_eq!(size_of::<TraceEntry>(), 48);
    }
}
