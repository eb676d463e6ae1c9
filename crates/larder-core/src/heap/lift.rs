//! The lift: a block that was handed out and given back with nothing between.
//!
//! Programs do that all the time with what they need for a moment. To put such a block back means
//! to merge it with the rest that it was just split from; to hand it out again means the same split
//! once more. So it is only lifted off the shelf: as long as nothing else happens, the same
//! request gets it back, which is exactly what a search would find. Before anything
//! else happens it is put down, and then it is as if it had never been lifted.
//!
//! Nor is it counted each time. Given back and handed out again a block leaves every value as it was, and
//! on the way no value is higher than it had been just before the block was handed out for the first time;
//! so no peak rises, only the sums do. How often it went round is counted, and stated when it is put down.

use crate::heap::Heap;
use crate::heap::block::State;
use crate::heap::ids::{BlockId, LaneId};
use crate::heap::size;
use crate::record::Record;
use crate::types::Addr;

/// The block that was handed out last on the usual path, while nothing was freed since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lift {
    /// The block; none if there is none to lift.
    id: Option<BlockId>,
    /// Whether there is something to settle: the block is lifted, or went round.
    busy: bool,
    /// Whether it was given back, and is lifted.
    lifted: bool,
    /// Whether what follows is known. It is worked out when the block is lifted for the first time,
    /// which most blocks never are.
    known: bool,
    lane: LaneId,
    /// The request that got it.
    requested_bytes: u64,
    /// How often it was handed out from the lift.
    rounds: u64,
    /// What handing it out did to the pieces: how many more, and how many bytes more.
    pieces: (i64, i64),
}

impl Lift {
    pub(super) const NONE: Lift = Lift {
        id: None,
        busy: false,
        lifted: false,
        known: false,
        lane: LaneId(0),
        requested_bytes: 0,
        rounds: 0,
        pieces: (0, 0),
    };
}

impl Heap {
    /// A block was handed out on the usual path. Nothing is lifted then.
    #[inline]
    pub(super) fn note_last(&mut self, id: BlockId) {
        debug_assert!(!self.lift.busy);
        (self.lift.id, self.lift.known) = (Some(id), false);
    }

    /// Whether a block is lifted, or was and is yet to be counted.
    #[inline]
    pub(super) fn is_lifting(&self) -> bool {
        self.lift.busy
    }

    /// Hands out the lifted block again if the request is the same; else puts it down.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn take_lifted(&mut self, lane: LaneId, requested_bytes: u64) -> Option<Addr> {
        let lift = &mut self.lift;
        let is_same = lift.lane == lane && lift.requested_bytes == requested_bytes;
        let Some(id) = lift.id.filter(|_| lift.lifted && is_same) else {
            self.settle();
            return None;
        };
        lift.lifted = false;
        lift.rounds += 1;
        let block = &mut self.blocks[id];
        block.state = State::Live;
        Some(block.addr)
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
            self.blocks[id].state = State::Free;
            (self.lift.lifted, self.lift.busy) = (true, true);
            return true;
        }
        if self.lift.busy {
            self.settle();
        }
        self.lift.id = None;
        false
    }

    /// Works out what is to be known of a block that is lifted for the first time: how it was handed
    /// out can still be seen.
    #[inline(never)]
    fn learn(&mut self, id: BlockId) {
        let block = self.blocks[id];
        // A free block behind it is the rest of the whole: no two free blocks lie side by side.
        let is_free = |next: &BlockId| self.blocks[*next].state == State::Free;
        let (rest_bytes, behind) = match block.next.filter(is_free) {
            Some(next) => {
                // Cut off once more, it would have from the whole what was asked for last.
                self.blocks[next].requested_bytes = block.requested_bytes;
                (self.blocks[next].size_bytes, self.blocks[next].next)
            }
            None => (0, block.next),
        };
        let was_split = block.prev.is_some() || behind.is_some();
        let whole_bytes = block.size_bytes + rest_bytes;
        self.lift.pieces = if block.expandable {
            (0, 0)
        } else {
            size::pieces_of_taking(was_split, whole_bytes, block.size_bytes)
        };
        (self.lift.lane, self.lift.requested_bytes) = (block.lane, block.requested_bytes);
        (self.lift.rounds, self.lift.known) = (0, true);
    }

    /// Puts down what is lifted, counts what went round, and lets nothing be lifted that was handed out
    /// until now. Called before anything but the usual path.
    pub(crate) fn settle(&mut self) {
        let lift = std::mem::replace(&mut self.lift, Lift::NONE);
        let Some(id) = lift.id.filter(|_| lift.busy) else { return };
        let (place, requested_bytes) = self.facts(id);
        let (rounds, pieces) = (lift.rounds, lift.pieces);
        self.herald.record(Record::WentRound { place, requested_bytes, pieces, rounds });
        if lift.lifted {
            self.put_where::<true>(id);
        }
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
        assert_eq!(lifting.herald().stats(), settling.herald().stats());
    }

    #[test]
    fn what_is_given_back_at_once_is_handed_out_again() {
        let mut heaps = twins();
        let [lifting, _] = &mut heaps;
        let addr = lifting.take_plainly(700, StreamId(1)).unwrap();
        assert!(lifting.put_plainly(addr) && lifting.is_lifting());
        assert!(!lifting.put_plainly(addr), "a lifted block is not live");
        assert_eq!(lifting.take_plainly(700, StreamId(1)), Some(addr));
        assert!(lifting.put_plainly(addr) && lifting.lift.rounds == 1);
        assert_eq!(lifting.take_plainly(900, StreamId(1)), Some(addr), "found, not lifted");
        assert!(!lifting.is_lifting() && lifting.put_plainly(addr));
        let other = lifting.take_plainly(512, StreamId(1)).unwrap();
        assert!(!lifting.is_lifting() && lifting.live(other).is_some());
    }

    /// Few sizes and short lives, so that many blocks are lifted, taken again and put down.
    #[test]
    fn lifting_changes_nothing_that_can_be_seen() {
        let mut heaps = twins();
        let mut live: Vec<Addr> = Vec::new();
        let (mut random, mut from_lift, mut last) = (7_u64, 0, (500, StreamId(0)));
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let choice = random >> 40;
            if live.len() < 40 && choice % 2 == 0 {
                if choice >> 20 & 1 == 0 {
                    let size_bytes = [500, 1000, 1020, 70_000, 2 * MIB][(choice >> 8) as usize % 5];
                    last = (size_bytes, StreamId(choice >> 16 & 1));
                }
                let (size_bytes, stream) = last;
                let rounds = heaps[0].lift.rounds;
                let taken = heaps.each_mut().map(|heap| heap.take_plainly(size_bytes, stream));
                from_lift += u64::from(heaps[0].lift.rounds > rounds);
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
        assert!(from_lift > 500, "{from_lift}");
    }
}
