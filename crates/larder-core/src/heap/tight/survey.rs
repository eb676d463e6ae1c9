//! The survey: what is free and may be had, by address, whosoever it is.

use std::collections::BTreeMap;

use crate::heap::ids::BlockId;
use crate::heap::pool::Lane;
use crate::heap::{Heap, Want};
use crate::types::{Addr, Span, StreamId};

/// Free blocks by address, with their lanes: all that a request may have.
pub(super) type Survey = BTreeMap<Addr, (u64, BlockId)>;

impl Heap {
    /// Free blocks side by side in one segment, whosoever they are. Where one segment ends another may
    /// begin, and no block reaches from one into the other.
    pub(super) fn spans_in(&self, survey: &Survey) -> Vec<Span> {
        let mut runs: Vec<Span> = Vec::new();
        for (&addr, &(size_bytes, id)) in survey {
            let is_first = self.segments[self.blocks[id].segment].span.addr == addr;
            match runs.last_mut() {
                Some(run) if run.end() == addr && !is_first => run.size_bytes += size_bytes,
                _ => runs.push(Span::new(addr, size_bytes)),
            }
        }
        runs
    }

    /// The free blocks that a request may have: its own lane's, those of lanes whose streams are gone or
    /// can be waited for.
    pub(super) fn survey(&self, want: &Want, open: &[StreamId]) -> Survey {
        let is_private = self.pools.pool(want.pool).owner.is_some();
        let is_open = |lane: &Lane| match lane.living_stream() {
            Some(stream) => stream == want.stream || open.contains(&stream),
            None => !is_private,
        };
        let lanes = self.pools.lanes_of(want.pool).filter(|lane| is_open(lane));
        let blocks = lanes.flat_map(|lane| lane.free_blocks(&self.blocks));
        let blocks = blocks.filter(|&id| self.blocks[id].expandable);
        blocks.map(|id| (self.blocks[id].addr, (self.blocks[id].size_bytes, id))).collect()
    }
}
