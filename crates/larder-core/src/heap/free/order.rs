//! Order: what decides between free blocks of one size, by the policy's tie-break.
//!
//! A block carries one number for it, and the index compares nothing else. By address it is the
//! address; by segment it counts on from a place that each segment has to itself, the later one the
//! higher. Both rise along a segment, so that whoever cuts a block finds the number of the rest by
//! its place alone. Numbers of blocks do not, and are seen to here; a heap that draws them is never
//! on the fast path.

use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::Block;
use crate::policy::TieBreak;
use crate::types::Addr;

/// A segment has so many units of addresses, as a power of two: 8 TiB.
const SEGMENT_UNITS_LOG2: u32 = 34;

/// The numbers that were drawn for blocks; none where blocks have no numbers of their own.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct Drawn(Option<u64>);

impl Drawn {
    pub(in crate::heap) fn new(tie_break: TieBreak) -> Drawn {
        Drawn((tie_break == TieBreak::BlockNumber).then_some(0))
    }

    /// Whether blocks have numbers of their own.
    #[inline]
    pub(in crate::heap) fn is_on(self) -> bool {
        self.0.is_some()
    }

    /// The next number, if blocks have any.
    fn next(&mut self) -> Option<u64> {
        let last = self.0.as_mut()?;
        *last += 1;
        Some(*last)
    }

    /// A block was cut: what lies in front is new, and the rest keeps the number of the whole.
    #[inline]
    pub(in crate::heap) fn cut_front(
        &mut self,
        slots: &mut [Block],
        front: BlockId,
        rest: BlockId,
    ) {
        if let Some(number) = self.next() {
            slots[rest.place()].order = slots[front.place()].order;
            slots[front.place()].order = number;
        }
    }
}

impl Heap {
    /// Where the order of a new segment begins that is the `serial`th of all.
    pub(in crate::heap) fn first_order(&mut self, addr: Addr, serial: u64) -> u64 {
        match self.policy.tie_break {
            TieBreak::Address => addr.0 / BLOCK_UNIT_BYTES,
            TieBreak::SegmentNumber => serial << SEGMENT_UNITS_LOG2,
            TieBreak::BlockNumber => self.drawn.next().unwrap_or(0),
        }
    }

    /// A block was cut: what lies in front is new.
    pub(in crate::heap) fn order_front(&mut self, front: BlockId, rest: BlockId) {
        let (slots, _) = self.space.parts();
        self.drawn.cut_front(slots, front, rest);
    }

    /// A block was cut: the rest is new.
    pub(in crate::heap) fn order_rest(&mut self, rest: BlockId) {
        if let Some(number) = self.drawn.next() {
            self.space[rest].order = number;
        }
    }

    /// What must hold of a block's order, as far as it can be told from its place.
    pub(in crate::heap) fn is_order_right(&self, block: &Block) -> bool {
        let segment = &self.space[block.segment];
        let units = (block.addr.0 - segment.span.addr.0) / BLOCK_UNIT_BYTES;
        match self.policy.tie_break {
            TieBreak::Address => block.order == segment.span.addr.0 / BLOCK_UNIT_BYTES + units,
            TieBreak::SegmentNumber => {
                block.order == (segment.serial << SEGMENT_UNITS_LOG2) + units
            }
            TieBreak::BlockNumber => block.order > 0,
        }
    }
}
