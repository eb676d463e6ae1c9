//! Ground: the home blocks under a place, found along the blocks themselves. A request that is told where to
//! go looks at what is there, and not at all that is free.

use std::iter::successors;

use crate::heap::block::State;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::tight::trail::Spot;
use crate::heap::{Heap, Want};
use crate::types::{Addr, Span, StreamId};

/// Bytes at home, and the segment that they are at home in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(super) segment: SegmentId,
    pub(super) span: Span,
}

/// A place that is free for a request.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(super) segment: SegmentId,
    pub(super) span: Span,
    /// The hollow block of a view that the place lies in; none if it is at home.
    pub(super) door: Option<BlockId>,
    /// Where its bytes are at home, in order; nothing if the place is at home itself.
    pub(super) homes: Vec<Home>,
    /// Streams whose work so far may still use it.
    pub(crate) waits: Vec<StreamId>,
}

impl Heap {
    /// What lies under a place; none if it is not free, or not for this request.
    pub(super) fn ground(&self, want: &Want, segment: SegmentId, addr: Addr) -> Option<Ground> {
        // Where blocks are not split, the smallest that will do may be another one by now.
        if !want.splits {
            return None;
        }
        let span = Span::new(addr, want.size_bytes);
        let owner = self.segments.get(segment).filter(|owner| owner.span.covers(span))?;
        if !owner.is_view() {
            let waits = self.waits_for(want, &[Home { segment, span }])?;
            return Some(Ground { segment, span, door: None, homes: Vec::new(), waits });
        }
        let door = self.chain(segment).find(|&id| self.blocks[id].span().covers(span))?;
        if owner.lane != want.lane || self.blocks[door].state != State::Hollow {
            return None;
        }
        let homes = self.homes_under(segment, span)?;
        let waits = self.waits_for(want, &homes)?;
        Some(Ground { segment, span, door: Some(door), homes, waits })
    }

    /// What lies under the place that a request was told by the trail.
    pub(super) fn ground_told(&self, want: &Want, spot: Spot) -> Option<Ground> {
        let addr = self.segments.get(spot.segment)?.at_unit(spot.at);
        self.ground(want, spot.segment, addr)
    }

    /// The streams that a request has to wait for if it is to have these bytes; none if they are not all
    /// free, or some are of a lane that it cannot have them of.
    fn waits_for(&self, want: &Want, homes: &[Home]) -> Option<Vec<StreamId>> {
        let is_private = self.pools.pool(want.pool).owner.is_some();
        let mut waits = Vec::new();
        for id in homes.iter().flat_map(|&home| self.blocks_under(home)) {
            let block = &self.blocks[id];
            if block.state != State::Free || !block.expandable {
                return None;
            }
            if block.lane == want.lane {
                continue;
            }
            if is_private || self.pools.lane(block.lane).pool != want.pool {
                return None;
            }
            waits.extend(
                self.wait_for(want.lane, block.lane).filter(|stream| !waits.contains(stream)),
            );
        }
        Some(waits)
    }

    /// The stream of a lane that another one has to wait for before it has what is free there: none if it did
    /// and nothing was freed since, or if the stream is gone.
    pub(super) fn wait_for(&self, lane: LaneId, other: LaneId) -> Option<StreamId> {
        if lane == other || self.pools.has_followed(lane, other) {
            return None;
        }
        self.pools.lane(other).living_stream()
    }

    /// The request's stream waits for what these streams have been given to do so far: what is free of theirs
    /// is as good as its own, until they free more.
    pub(crate) fn note_followed(&mut self, want: &Want, streams: &[StreamId]) {
        let lane = self.lane_of(want);
        for &stream in streams {
            if let Some(other) = self.pools.lane_at(want.pool, stream) {
                self.pools.note_followed(lane, other);
            }
        }
    }

    /// The blocks under bytes at home, in order.
    pub(super) fn blocks_under(&self, home: Home) -> impl Iterator<Item = BlockId> + '_ {
        let first = self.block_over(home.segment, home.span.addr);
        let onward = successors(first, |&id| self.blocks[id].next);
        onward.take_while(move |&id| self.blocks[id].addr < home.span.end())
    }

    /// The block of a segment that an address lies in: along the blocks, from the nearest before it of which it
    /// is known where it starts.
    pub(in crate::heap) fn block_over(&self, segment: SegmentId, addr: Addr) -> Option<BlockId> {
        let is_near = |&(from, id): &(Addr, BlockId)| {
            let block = &self.blocks[id];
            // A block that is gone looks unmapped.
            let is_there = block.segment == segment && block.state != State::Unmapped;
            is_there && (from..=addr).contains(&block.addr)
        };
        let near = self.segments.noted_before(segment, addr).find(is_near).map(|(_, id)| id);
        let near = near.unwrap_or(self.segments[segment].first);
        let mut onward = successors(Some(near), |&id| self.blocks[id].next);
        onward.find(|&id| self.blocks[id].span().end() > addr)
    }
}
