//! Order: what decides between free blocks of one size, by the policy's tie-break.
//!
//! A block carries one number for it, and the index compares nothing else. By address it is the
//! address; by segment it counts on from a place that each segment has to itself, the later one the
//! higher. Both rise along a segment, so that whoever cuts a block finds the number of the rest by
//! its place alone. Numbers of blocks do not, and are seen to here; a heap that draws them is never
//! on the fast path.

use crate::heap::ids::BlockId;
use crate::heap::space::block::Block;
use crate::policy::TieBreak;

/// A segment has so many units of addresses, as a power of two: 8 TiB.
pub(in crate::heap) const SEGMENT_UNITS_LOG2: u32 = 34;

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
    pub(in crate::heap) fn next(&mut self) -> Option<u64> {
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
