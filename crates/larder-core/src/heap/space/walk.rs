//! The way from an address to its block, and from a block to those beside it.

use std::collections::BTreeSet;
use std::iter::successors;

use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::space::Space;
use crate::heap::space::block::{Block, State};
use crate::heap::space::segment::Segment;
use crate::types::{Addr, Span};

impl Space {
    /// The live block that starts at `addr`, if it was noted where it starts.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn live_noted(&self, addr: Addr) -> Option<BlockId> {
        let found = self.segments.block_at(addr).filter(|&id| self.is_live_at(id, addr));
        found.or_else(|| self.segments.fine_at(addr).filter(|&id| self.is_live_at(id, addr)))
    }

    /// The live block that starts at `addr`, found along the blocks.
    #[inline(never)]
    pub(in crate::heap) fn live_along(&self, addr: Addr) -> Option<BlockId> {
        let segment = self.segments.holder_of(addr)?;
        self.block_over(segment, addr).filter(|&id| self.is_live_at(id, addr))
    }

    #[inline]
    fn is_live_at(&self, id: BlockId, addr: Addr) -> bool {
        let block = &self[id];
        block.state == State::Live && block.addr == addr
    }

    /// A segment, if it is there.
    #[inline]
    pub(in crate::heap) fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(id)
    }

    /// The blocks of a segment in the order of their addresses.
    pub(in crate::heap) fn chain(&self, segment: SegmentId) -> impl Iterator<Item = BlockId> + '_ {
        successors(Some(self[segment].first()), |&id| self[id].next)
    }

    /// The blocks from this one on that begin before an address.
    pub(in crate::heap) fn blocks_from(
        &self,
        first: BlockId,
        end: Addr,
    ) -> impl Iterator<Item = BlockId> + '_ {
        let onward = successors(Some(first), |&id| self[id].next);
        onward.take_while(move |&id| self[id].addr < end)
    }

    /// The first of the free blocks of one lane that lie side by side up to this one.
    pub(in crate::heap) fn first_free(&self, id: BlockId) -> BlockId {
        let lane = self[id].lane;
        let is_own = |id: &BlockId| self[*id].state.is_unused() && self[*id].lane == lane;
        let before = successors(Some(id), |&id| self[id].prev.filter(is_own));
        before.last().unwrap_or(id)
    }

    /// The block of a segment that an address lies in. Notes on the way to it that say nothing any
    /// more are forgotten, and it is hinted at: who looks at a place looks again when it is taken.
    pub(in crate::heap) fn first_under(
        &mut self,
        segment: SegmentId,
        addr: Addr,
    ) -> Option<BlockId> {
        if let Some(id) = self.block_hinted(segment, addr) {
            return Some(id);
        }
        let Space { blocks, segments, .. } = self;
        let near = segments.forget_gone(segment, addr, |id| {
            // A block that is gone looks unmapped.
            let block = Some(&blocks[id]).filter(|block| block.state != State::Unmapped);
            block.filter(|block| block.segment == segment).map(|block| block.addr)
        });
        let id = self.block_onward(near.unwrap_or(self[segment].first()), addr)?;
        self.hints.note(addr, id);
        Some(id)
    }

    /// The block of a segment that an address lies in, if there is a hint of it. A block that is
    /// gone looks unmapped.
    #[inline]
    fn block_hinted(&self, segment: SegmentId, addr: Addr) -> Option<BlockId> {
        let is_it = |id: &BlockId| {
            let block = &self[*id];
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
            let block = &self[id];
            // A block that is gone looks unmapped.
            let is_there = block.segment == segment && block.state != State::Unmapped;
            is_there && (from..=addr).contains(&block.addr)
        };
        let near = self.segments.noted_before(segment, addr).find(is_near).map(|(_, id)| id);
        self.block_onward(near.unwrap_or(self[segment].first()), addr)
    }

    /// The block that an address lies in, which is this one or lies behind it.
    fn block_onward(&self, from: BlockId, addr: Addr) -> Option<BlockId> {
        let mut onward = successors(Some(from), |&id| self[id].next);
        onward.find(|&id| self[id].span().end() > addr)
    }

    /// The lanes that have a segment, or a block in one.
    pub(in crate::heap) fn named_lanes(&self) -> BTreeSet<LaneId> {
        let of_segments = self.segments.iter().map(|(_, segment)| segment.lane());
        let blocks = self.segments.iter().flat_map(|(id, _)| self.chain(id));
        of_segments.chain(blocks.map(|id| self[id].lane)).collect()
    }

    /// Whether a block lives in a view.
    pub(in crate::heap) fn is_in_view(&self, id: BlockId) -> bool {
        self[self[id].segment].is_view()
    }

    /// Whether nobody lives in a view.
    pub(in crate::heap) fn is_vacant(&self, view: SegmentId) -> bool {
        let first = &self[self[view].first()];
        first.state == State::Hollow && !first.is_split()
    }

    /// Whether the segment has no page left, so that its addresses can go back too.
    pub(crate) fn is_bare(&self, id: SegmentId) -> bool {
        let first = &self[self[id].first()];
        first.state == State::Unmapped && !first.is_split()
    }

    /// Whether a segment has any of these addresses already.
    pub(crate) fn overlaps(&self, span: Span) -> bool {
        self.segments.iter().any(|(_, segment)| segment.span().overlaps(span))
    }

    /// The whole allocation of the device in which a live block lies; none if the block's segment
    /// is expandable.
    pub(crate) fn base(&self, id: BlockId) -> Option<Span> {
        let segment = &self[self[id].segment];
        segment.is_fixed().then_some(segment.span())
    }

    /// What of a free block could go back to the device as it is: whole segments and whole pages.
    pub(in crate::heap) fn idle_bytes(&self, block: &Block) -> u64 {
        let segment = &self[block.segment];
        if block.expandable {
            segment.pages_inside(block.span()).len() as u64 * segment.page_bytes()
        } else if block.is_split() {
            0
        } else {
            block.size_bytes
        }
    }
}
