//! Lane states: what each stream has in each pool, added up over its segments.

use std::collections::BTreeMap;

use crate::heap::space::block::State;
use crate::heap::states::SegmentState;
use crate::types::{PoolId, PoolKind, StreamId};

/// What one stream has in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The stream.
    pub stream: StreamId,
    /// The private pool, if it is one.
    pub pool: Option<PoolId>,
    /// Whether it is for small or for large requests.
    pub kind: PoolKind,
    /// How many segments it has.
    pub segments: u64,
    /// Bytes held of the device.
    pub reserved_bytes: u64,
    /// Bytes in live allocations, or lent to them.
    pub live_bytes: u64,
    /// Bytes that were freed and are still awaited by a stream.
    pub waiting_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// In how many pieces they are.
    pub free_pieces: u64,
    /// The largest of these.
    pub largest_bytes: u64,
}

/// All lanes that have memory, the default pools' first, then by stream.
pub fn lane_states(segments: &[SegmentState]) -> Vec<LaneState> {
    let mut lanes = BTreeMap::new();
    // A view has no memory of its own, and what sleeps has none.
    for segment in segments.iter().filter(|segment| !segment.view && !segment.asleep) {
        let pool = segment.pool.map(|pool| (pool.0, pool.1));
        let key = (pool, segment.stream, segment.kind == PoolKind::Small);
        let lane = lanes.entry(key).or_insert(LaneState {
            stream: segment.stream,
            pool: segment.pool,
            kind: segment.kind,
            segments: 0,
            reserved_bytes: 0,
            live_bytes: 0,
            waiting_bytes: 0,
            free_bytes: 0,
            free_pieces: 0,
            largest_bytes: 0,
        });
        lane.segments += 1;
        lane.reserved_bytes += segment.backed_bytes;
        for block in &segment.blocks {
            let size_bytes = block.span.size_bytes;
            match block.state {
                State::Live | State::Lent => lane.live_bytes += size_bytes,
                State::Waiting => lane.waiting_bytes += size_bytes,
                State::Free | State::Deferred => {
                    lane.free_bytes += size_bytes;
                    lane.free_pieces += 1;
                    lane.largest_bytes = lane.largest_bytes.max(size_bytes);
                }
                State::Unmapped | State::Hollow => {}
            }
        }
    }
    lanes.into_values().filter(|lane| lane.reserved_bytes > 0).collect()
}
