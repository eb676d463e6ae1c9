//! Prehistory: the blocks that were there before the recording began.

use std::collections::HashMap;

use larder_core::types::Addr;
use larder_snapshot::{Action, BlockState, Snapshot, TraceEntry};

use super::RecordingError;
use super::places::Places;

/// A block from before the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OldBlock {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    pub(super) pool_id: (u64, u64),
    /// The program had given it back already; only its streams were not done.
    pub(super) is_waiting: bool,
}

/// What is known of an address at one point of the trace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    Waiting,
    Freed,
}

/// Which of the two sides of a free a trace tells; torch can be told to leave either out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tells {
    pub(super) requests: bool,
    pub(super) completions: bool,
}

impl Tells {
    pub(super) fn of(trace: &[TraceEntry]) -> Tells {
        let has = |action| trace.iter().any(|entry| entry.action == action);
        Tells { requests: has(Action::FreeRequested), completions: has(Action::FreeCompleted) }
    }
}

/// Reads the whole trace once. An address that is freed without having been allocated was live
/// before; so was a block that is live at the end and that no allocation explains. They come in
/// the order of their addresses.
pub(super) fn old_blocks(
    snapshot: &Snapshot,
    device: u32,
    trace: &[TraceEntry],
    places: &Places<'_>,
) -> Result<Vec<OldBlock>, RecordingError> {
    let tells = Tells::of(trace);
    let mut old = Vec::new();
    let mut fates: HashMap<u64, Fate> = HashMap::new();
    for (index, entry) in trace.iter().enumerate() {
        let next = match entry.action {
            Action::Alloc => Fate::Live,
            Action::FreeRequested if tells.completions => Fate::Waiting,
            Action::FreeRequested | Action::FreeCompleted => Fate::Freed,
            _ => continue,
        };
        let addr = Addr(entry.addr);
        match (fates.insert(entry.addr, next), next) {
            (Some(Fate::Live | Fate::Waiting), Fate::Live) => {
                return Err(RecordingError::AllocatedTwice { device, entry: index, addr });
            }
            (Some(Fate::Waiting), Fate::Waiting)
            | (Some(Fate::Freed), Fate::Waiting | Fate::Freed) => {
                return Err(RecordingError::FreedTwice { device, entry: index, addr });
            }
            (None, Fate::Waiting | Fate::Freed) => old.push(OldBlock {
                addr: entry.addr,
                size_bytes: entry.size_bytes,
                stream: entry.stream,
                pool_id: places.pool_of(entry),
                is_waiting: entry.action == Action::FreeCompleted && tells.requests,
            }),
            _ => {}
        }
    }
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            if matches!(fates.get(&block.addr), None | Some(Fate::Freed)) {
                old.push(OldBlock {
                    addr: block.addr,
                    size_bytes: match block.requested_bytes {
                        0 => block.size_bytes,
                        requested_bytes => requested_bytes,
                    },
                    stream: segment.stream,
                    pool_id: segment.pool_id,
                    is_waiting: false,
                });
            }
        }
    }
    old.sort_by_key(|block| block.addr);
    Ok(old)
}
