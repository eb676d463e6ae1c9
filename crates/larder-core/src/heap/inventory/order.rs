//! The order of blocks: what a new segment begins with, and what a cut makes of it.

use crate::heap::free::order::SEGMENT_UNITS_LOG2;
use crate::heap::ids::BlockId;
use crate::heap::inventory::Inventory;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::Block;
use crate::heap::space::segment::Segment;
use crate::policy::TieBreak;
use crate::types::Addr;

impl Inventory {
    /// Where the order of a new segment begins that is the `serial`th of all.
    pub(in crate::heap) fn first_order(&mut self, addr: Addr, serial: u64) -> u64 {
        match self.rules.policy().tie_break {
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
}

/// What must hold of a block's order, as far as it can be told from its place.
pub(in crate::heap) fn is_order_right(
    tie_break: TieBreak,
    block: &Block,
    segment: &Segment,
) -> bool {
    let units = (block.addr.0 - segment.span().addr.0) / BLOCK_UNIT_BYTES;
    match tie_break {
        TieBreak::Address => block.order == segment.span().addr.0 / BLOCK_UNIT_BYTES + units,
        TieBreak::SegmentNumber => block.order == (segment.serial() << SEGMENT_UNITS_LOG2) + units,
        TieBreak::BlockNumber => block.order > 0,
    }
}
