//! The lift: a block that was handed out and given back with nothing between.
//!
//! Programs do that all the time with what they need for a moment. To put such a block back means
//! to merge it with the rest that it was just split from; to hand it out again means the same split
//! once more. So it is only lifted off the shelf: as long as nothing else happens, a
//! request of its size gets it back, which is exactly what a search would find. Before anything
//! else happens it is put down, and then it is as if it had never been lifted.

use crate::heap::Heap;
use crate::heap::block::{BlockId, State};
use crate::heap::pool::LaneId;
use crate::heap::size;
use crate::record::Record;
use crate::types::Addr;

/// The block that was handed out last on the usual path, while nothing was freed since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lift {
    /// The block; none if there is none to lift.
    id: Option<BlockId>,
    /// Whether it was given back, and is lifted.
    lifted: bool,
    /// Whether what follows is known. It is worked out when the block is lifted for the first time,
    /// which most blocks never are.
    known: bool,
    lane: LaneId,
    /// The rounded size of the request that got it.
    size_bytes: u64,
    /// What handing it out did to the pieces: how many more, and how many bytes more.
    pieces: (i64, i64),
}

impl Lift {
    pub(super) const NONE: Lift = Lift {
        id: None,
        lifted: false,
        known: false,
        lane: LaneId(0),
        size_bytes: 0,
        pieces: (0, 0),
    };
}

impl Heap {
    /// A block was handed out on the usual path. Nothing is lifted then.
    #[inline]
    pub(super) fn note_last(&mut self, id: BlockId) {
        debug_assert!(!self.lift.lifted);
        (self.lift.id, self.lift.known) = (Some(id), false);
    }

    /// Whether a block is lifted.
    #[inline]
    pub(super) fn has_lifted(&self) -> bool {
        self.lift.lifted
    }

    /// Hands out the lifted block again if it suits the request; else puts it down.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn take_lifted(
        &mut self,
        lane: LaneId,
        size_bytes: u64,
        requested_bytes: u64,
    ) -> Option<Addr> {
        let lift = self.lift;
        let Some(id) = lift.id.filter(|_| lift.lane == lane && lift.size_bytes == size_bytes)
        else {
            self.settle();
            return None;
        };
        self.lift.lifted = false;
        let block = &mut self.blocks[id];
        let last_requested_bytes = block.requested_bytes;
        block.requested_bytes = requested_bytes;
        block.state = State::Live;
        let (addr, next) = (block.addr, block.next);
        if let Some(rest) = next
            && self.blocks[rest].state == State::Free
        {
            // It is the rest of the whole: no two free blocks lie side by side.
            self.blocks[rest].requested_bytes = last_requested_bytes;
        }
        let (place, requested_bytes) = self.facts(id);
        let (blocks, bytes) = lift.pieces;
        self.recorder.record(Record::InactiveSplit { kind: place.kind, blocks, bytes });
        self.recorder.record(Record::Alloc { place, requested_bytes, oversize: false });
        Some(addr)
    }

    /// Lifts a block that is given back, if it is the one that was handed out last and nothing was
    /// freed since. Else notes that something is freed now.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn lift(&mut self, id: BlockId) -> bool {
        if self.lift.id == Some(id) {
            if !self.lift.known {
                self.learn(id);
            }
            let (place, requested_bytes) = self.facts(id);
            let (blocks, bytes) = self.lift.pieces;
            self.recorder.record(Record::Free { place, requested_bytes, oversize: false });
            let kind = place.kind;
            self.recorder.record(Record::InactiveSplit { kind, blocks: -blocks, bytes: -bytes });
            self.blocks[id].state = State::Free;
            self.lift.lifted = true;
            return true;
        }
        if self.lift.lifted {
            self.settle();
        }
        self.lift.id = None;
        false
    }

    /// Works out what is to be known of a block that is lifted for the first time: how it was handed
    /// out can still be seen.
    #[inline(never)]
    fn learn(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let rest = block.next.map(|next| &self.blocks[next]);
        // A free block behind it is the rest of the whole.
        let (rest_bytes, behind) = match rest.filter(|rest| rest.state == State::Free) {
            Some(rest) => (rest.size_bytes, rest.next),
            None => (0, block.next),
        };
        let was_split = block.prev.is_some() || behind.is_some();
        let whole_bytes = block.size_bytes + rest_bytes;
        self.lift.pieces = if block.expandable {
            (0, 0)
        } else {
            size::pieces_of_taking(was_split, whole_bytes, block.size_bytes)
        };
        self.lift.lane = block.lane;
        self.lift.size_bytes = size::round_plainly(block.requested_bytes);
        self.lift.known = true;
    }

    /// Puts down what is lifted, and lets nothing be lifted that was handed out until now. Called
    /// before anything but the usual path.
    pub(crate) fn settle(&mut self) {
        if let Some(id) = self.lift.id.filter(|_| self.lift.lifted) {
            self.merge_and_shelve::<true>(id);
        }
        self.lift = Lift::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::policy::Policy;
    use crate::types::{MIB, Span, StreamId};

    /// Two heaps with the same segments. One takes the usual path; the other puts down what is
    /// lifted after each step, so that nothing is ever handed out from the lift.
    fn twins() -> [Heap; 2] {
        [(); 2].map(|()| {
            let mut heap = Heap::new(Config::default(), Policy::larder(), 1 << 40);
            for (segment, size_bytes) in [(1, 512), (2, 3 * MIB), (3, 512)] {
                let stream = StreamId(segment % 2);
                let want = heap.want(size_bytes, stream);
                let span_bytes = heap.segment_bytes(&want);
                let addr = heap.take_segment(&want, Span::new(Addr(segment << 30), span_bytes));
                heap.put(heap.live(addr).unwrap());
            }
            heap
        })
    }

    fn assert_equal([lifting, settling]: &mut [Heap; 2]) {
        let mut lifting = lifting.clone();
        lifting.settle();
        settling.settle();
        assert_eq!(lifting.check(), Ok(()));
        assert_eq!(lifting.snapshot(), settling.snapshot());
        assert_eq!(lifting.recorder().stats(), settling.recorder().stats());
    }

    #[test]
    fn what_is_given_back_at_once_is_handed_out_again() {
        let mut heaps = twins();
        let [lifting, _] = &mut heaps;
        let addr = lifting.take_plainly(700, StreamId(1)).unwrap();
        assert!(lifting.put_plainly(addr) && lifting.has_lifted());
        assert!(!lifting.put_plainly(addr), "a lifted block is not live");
        assert_eq!(lifting.take_plainly(900, StreamId(1)), Some(addr), "1024 bytes as before");
        assert!(lifting.put_plainly(addr));
        let other = lifting.take_plainly(512, StreamId(1)).unwrap();
        assert!(!lifting.has_lifted() && lifting.live(other).is_some());
    }

    /// Few sizes and short lives, so that many blocks are lifted, taken again and put down.
    #[test]
    fn lifting_changes_nothing_that_can_be_seen() {
        let mut heaps = twins();
        let mut live: Vec<Addr> = Vec::new();
        let (mut random, mut from_lift) = (7_u64, 0);
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let choice = random >> 40;
            if live.len() < 40 && choice % 2 == 0 {
                let size_bytes = [500, 1000, 1020, 70_000, 2 * MIB][(choice >> 8) as usize % 5];
                let stream = StreamId(choice >> 16 & 1);
                from_lift += u64::from(heaps[0].has_lifted());
                let taken = heaps.each_mut().map(|heap| heap.take_plainly(size_bytes, stream));
                assert_eq!(taken[0], taken[1], "step {step}");
                live.extend(taken[0]);
            } else if !live.is_empty() {
                let newest = choice % 3 > 0;
                let at = if newest { live.len() - 1 } else { (choice >> 8) as usize % live.len() };
                let addr = live.remove(at);
                assert!(heaps.each_mut().map(|heap| heap.put_plainly(addr)) == [true, true]);
            }
            heaps[1].settle();
            if choice % 16 == 0 {
                assert_equal(&mut heaps);
            }
        }
        assert!(from_lift > 1000, "{from_lift}");
    }
}
