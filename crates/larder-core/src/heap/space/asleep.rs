//! Asleep: segments whose addresses stay while there is no memory behind them. Their blocks are
//! found as ever.

use crate::heap::ids::{LaneId, SegmentId};
use crate::heap::space::Space;
use crate::heap::space::block::State;
use crate::types::{PageHandle, Span};

impl Space {
    /// Which pages a segment that sleeps waits for: those under its blocks.
    pub(in crate::heap) fn pages_awaited(&self, id: SegmentId) -> Vec<usize> {
        let segment = &self[id];
        if !segment.is_asleep() || segment.is_view() {
            return Vec::new();
        }
        let blocks = self.chain(id).map(|block| &self[block]);
        let backed = blocks.filter(|block| block.state != State::Unmapped);
        let mut pages: Vec<usize> =
            backed.flat_map(|block| segment.pages_over(block.span())).collect();
        pages.dedup();
        pages
    }

    /// A segment falls asleep, in this lane: its pages are gone, and its addresses lead to its
    /// blocks all the same.
    pub(in crate::heap) fn fall_asleep(&mut self, id: SegmentId, lane: LaneId) {
        let segment = &mut self[id];
        assert!(!segment.is_asleep(), "{id:?} sleeps already");
        segment.set_asleep(true, lane);
        let whole = segment.span();
        if segment.is_expandable() {
            for index in segment.pages_over(whole).rev() {
                if segment.page(index).is_some() {
                    segment.set_page(index, None);
                }
            }
        }
    }

    /// A segment wakes, in this lane, with these pages behind its blocks.
    pub(in crate::heap) fn wake_with(
        &mut self,
        id: SegmentId,
        lane: LaneId,
        pages: impl Iterator<Item = (usize, PageHandle)>,
    ) {
        let segment = &mut self[id];
        assert!(segment.is_asleep(), "{id:?} is awake");
        segment.set_asleep(false, lane);
        for (index, page) in pages {
            segment.set_page(index, Some(page));
        }
    }

    /// Nothing waits for memory at this span of a segment that sleeps: it leads to no block.
    pub(in crate::heap) fn shed(&mut self, id: SegmentId, span: Span) {
        assert!(self[id].is_asleep(), "{id:?} is awake");
        self.segments.uncover(id, span);
    }
}
