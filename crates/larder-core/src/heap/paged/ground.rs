//! Ground: the home blocks under a place, found along the blocks themselves. A request that is told
//! where to go looks at what is there, and not at all that is free.

use std::iter::successors;

use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::paged::request_log::Spot;
use crate::heap::space::block::State;
use crate::heap::{Heap, Want};
use crate::types::{Addr, Span, StreamId};

/// Bytes at home, and the segment that they are at home in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(super) segment: SegmentId,
    pub(super) span: Span,
}

/// Bytes at home, and where a view shows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) addr: Addr,
    pub(super) home: Home,
}

impl Shown {
    /// Whether others, which a view shows at this address, come right after it, here and at home.
    pub(super) fn is_before(&self, addr: Addr, home: Home) -> bool {
        let Home { segment, span } = self.home;
        // Where one segment ends another may begin.
        self.addr.offset(span.size_bytes) == addr
            && span.end() == home.span.addr
            && segment == home.segment
    }
}

/// A place that is free for a request.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(super) segment: SegmentId,
    pub(super) span: Span,
    pub(super) site: Site,
    /// Streams whose work so far may still use it.
    pub(crate) waits: Vec<StreamId>,
}

/// Whether a place is at home or in a view.
#[derive(Clone, Debug)]
pub(super) enum Site {
    /// At home; this is the first of the blocks that it lies in.
    Home(BlockId),
    /// In this hollow block of a view. `homes` says where its bytes are at home, in order.
    View { door: BlockId, homes: Vec<Home> },
}

impl Heap {
    /// What lies under a place; none if it is not free, or not for this request.
    pub(super) fn ground(&mut self, want: &Want, segment: SegmentId, addr: Addr) -> Option<Ground> {
        // Where blocks are not split, the smallest that will do may be another one by now.
        if !want.splits {
            return None;
        }
        let span = Span::new(addr, want.size_bytes);
        let owner = self.segments.get(segment).filter(|owner| owner.span.covers(span))?;
        if !owner.is_view() {
            let mut waits = Vec::new();
            let first = self.add_waits(want, Home { segment, span }, &mut waits)?;
            return Some(Ground { segment, span, site: Site::Home(first), waits });
        }
        // Where a segment was given back, a view may have its name by now.
        if !self.can_be_in_view(want) {
            return None;
        }
        let door = self.chain(segment).find(|&id| self.blocks[id].span().covers(span))?;
        if owner.lane != want.lane || self.blocks[door].state != State::Hollow {
            return None;
        }
        let homes = self.homes_under(segment, span)?;
        let mut waits = Vec::new();
        for &home in &homes {
            self.add_waits(want, home, &mut waits)?;
        }
        Some(Ground { segment, span, site: Site::View { door, homes }, waits })
    }

    /// What lies under the place that a request was told by the request log.
    pub(super) fn ground_told(&mut self, want: &Want, spot: Spot) -> Option<Ground> {
        let addr = self.segments.get(spot.segment)?.at_unit(spot.at);
        self.ground(want, spot.segment, addr)
    }

    /// Adds the streams that a request has to wait for if it is to have these bytes, and returns
    /// the first of the blocks that they lie in; none if they are not all free, or some are of a
    /// lane that it cannot have them of.
    fn add_waits(&mut self, want: &Want, home: Home, waits: &mut Vec<StreamId>) -> Option<BlockId> {
        let first = self.first_under(home.segment, home.span.addr)?;
        let is_private = self.pools.pool(want.pool).owner.is_some();
        for id in self.blocks_from(first, home.span.end()) {
            let block = &self.blocks[id];
            if !block.state.is_unused() || !block.expandable {
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
        Some(first)
    }

    /// The stream of a lane that another one has to wait for before it has what is free there: none
    /// if it did and nothing was freed since, or if the stream is gone.
    pub(super) fn wait_for(&self, lane: LaneId, other: LaneId) -> Option<StreamId> {
        if lane == other || self.pools.has_followed(lane, other) {
            return None;
        }
        self.pools.lane(other).living_stream()
    }

    /// The request's stream waits for what these streams have been given to do so far: what is free
    /// of theirs is as good as its own, until they free more.
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
        first.into_iter().flat_map(move |first| self.blocks_from(first, home.span.end()))
    }

    /// The block of a segment that an address lies in. Notes on the way to it that say nothing any
    /// more are forgotten, and it is hinted at: who looks at a place looks again when it is taken.
    pub(super) fn first_under(&mut self, segment: SegmentId, addr: Addr) -> Option<BlockId> {
        if let Some(id) = self.block_hinted(segment, addr) {
            return Some(id);
        }
        let Heap { blocks, segments, .. } = self;
        let near = segments.forget_gone(segment, addr, |id| {
            // A block that is gone looks unmapped.
            let block = Some(&blocks[id]).filter(|block| block.state != State::Unmapped);
            block.filter(|block| block.segment == segment).map(|block| block.addr)
        });
        let id = self.block_onward(near.unwrap_or(self.segments[segment].first), addr)?;
        self.hints.note(addr, id);
        Some(id)
    }

    /// The blocks from this one on that begin before an address.
    pub(super) fn blocks_from(
        &self,
        first: BlockId,
        end: Addr,
    ) -> impl Iterator<Item = BlockId> + '_ {
        let onward = successors(Some(first), |&id| self.blocks[id].next);
        onward.take_while(move |&id| self.blocks[id].addr < end)
    }

    /// The block of a segment that an address lies in, if there is a hint of it. A block that is
    /// gone looks unmapped.
    #[inline]
    fn block_hinted(&self, segment: SegmentId, addr: Addr) -> Option<BlockId> {
        let is_it = |id: &BlockId| {
            let block = &self.blocks[*id];
            let is_there = block.segment == segment && block.state != State::Unmapped;
            is_there && addr.0.wrapping_sub(block.addr.0) < block.size_bytes
        };
        self.hints.get(addr).filter(is_it)
    }

    /// The block of a segment that an address lies in: along the blocks, from the nearest before it
    /// of which it is known where it starts.
    pub(in crate::heap) fn block_over(&self, segment: SegmentId, addr: Addr) -> Option<BlockId> {
        if let Some(id) = self.block_hinted(segment, addr) {
            return Some(id);
        }
        let is_near = |&(from, id): &(Addr, BlockId)| {
            let block = &self.blocks[id];
            // A block that is gone looks unmapped.
            let is_there = block.segment == segment && block.state != State::Unmapped;
            is_there && (from..=addr).contains(&block.addr)
        };
        let near = self.segments.noted_before(segment, addr).find(is_near).map(|(_, id)| id);
        let near = near.unwrap_or(self.segments[segment].first);
        self.block_onward(near, addr)
    }

    /// The block that an address lies in, which is this one or lies behind it.
    fn block_onward(&self, from: BlockId, addr: Addr) -> Option<BlockId> {
        let mut onward = successors(Some(from), |&id| self.blocks[id].next);
        onward.find(|&id| self.blocks[id].span().end() > addr)
    }
}
