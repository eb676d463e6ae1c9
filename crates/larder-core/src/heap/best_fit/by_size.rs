//! By size: small blocks whose frees were deferred, as stacks of one size each. The next request of
//! the size gets the block that came last, as it is; it serves no other size.
//!
//! A request for which the index has no block has the largest coalesced, before memory is asked
//! for, until one will do. What it costs are a few MiB: blocks that were not merged in time make
//! for other places, and so for a small segment more now and then.

use crate::error::Unsound;
use crate::heap::best_fit::BestFit;
use crate::heap::deferred::Deferral;
use crate::heap::free::size_stacks::{SizeAt, SizeStacks, WORDS};
use crate::heap::ids::{BlockId, LaneId};
use crate::heap::inventory::{Inventory, Parts, Pieces};
use crate::heap::size;
use crate::heap::space::block::State;
use crate::record::{Place, Record};
use crate::types::{Addr, PoolKind, StreamId};

impl BestFit {
    /// Hands out a small block whose free was deferred, if there is one of the size that a request
    /// gets.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn take_by_size(
        &self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        // Of no bytes the last one is behind all sizes.
        let last = requested_bytes.wrapping_sub(1);
        if last >= self.by_size_bytes[0] {
            return None;
        }
        let Parts { space, pools, recorder, .. } = inventory.parts();
        let kind = PoolKind::Small;
        let lane = pools.recent_lane(kind, stream)?;
        let stacks = pools.lane_mut(lane).by_size_mut()?;
        let size = SizeAt::of(requested_bytes);
        let id = stacks.first(size)?;
        let block = &mut space[id];
        debug_assert!(block.state == State::Deferred, "{id:?} is in a stack and not deferred");
        stacks.pop(size, block.shelf_next);
        block.state = State::Live;
        block.requested_bytes = requested_bytes;
        let (addr, size_bytes) = (block.addr, block.size_bytes);
        space.hint(addr, id);
        let place = Place { kind, stream, addr, size_bytes };
        recorder.record(Record::Alloc { place, requested_bytes, oversize: false });
        Some(addr)
    }

    /// Turns to the stacks of a stream, if there may be any. Says whether they were another one's
    /// until now.
    #[inline]
    pub(super) fn turn_to(&self, inventory: &mut Inventory, stream: StreamId) -> bool {
        let kind = PoolKind::Small;
        let has_stacks = self.by_size_bytes[0] > 0;
        let turns = has_stacks && inventory.pools().recent_lane(kind, stream).is_none();
        if turns {
            inventory.pools_mut().default_lane(kind, stream);
        }
        turns
    }

    /// Defers the free of a block on the fast path, if it is small and the policy wants it.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn defer(&self, inventory: &mut Inventory, id: BlockId) -> bool {
        let Parts { space, pools, deferred, recorder } = inventory.parts();
        let block = &mut space[id];
        if block.size_bytes > self.by_size_bytes[usize::from(block.expandable)] {
            return false;
        }
        let size = SizeAt::of(block.size_bytes);
        let lane = pools.lane_mut(block.lane);
        let stacks = lane.by_size_mut();
        let Some(stacks) = stacks.filter(|stacks| stacks.has_room()) else {
            return self.defer_first(inventory, id);
        };
        block.shelf_next = stacks.push(size, id);
        Deferral { id, block, lane, deferred, recorder }.begin();
        true
    }

    /// Defers the first free of a lane, or one for which there is no room.
    #[cold]
    #[inline(never)]
    fn defer_first(&self, inventory: &mut Inventory, id: BlockId) -> bool {
        let lane = inventory.space()[id].lane;
        if inventory.pools().lane(lane).by_size().is_some() {
            let mut pieces = Pieces::default();
            coalesce_lane(inventory, lane, u64::MAX, &mut pieces);
            inventory.change_pieces(pieces);
        } else {
            inventory.pools_mut().lane_mut(lane).make_by_size();
        }
        self.defer(inventory, id)
    }

    /// No free block will do for a small request on the fast path: so much is coalesced that one
    /// does. Says whether one does now.
    #[inline(never)]
    pub(super) fn coalesce_for(
        &self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> bool {
        if requested_bytes.wrapping_sub(1) >= self.by_size_bytes[0] {
            return false;
        }
        let lane = inventory.pools().recent_lane(PoolKind::Small, stream);
        let mut pieces = Pieces::default();
        let wanted_bytes = size::round_plainly(requested_bytes);
        let has_one =
            lane.is_some_and(|lane| coalesce_lane(inventory, lane, wanted_bytes, &mut pieces));
        inventory.change_pieces(pieces);
        has_one
    }

    /// What is in a lane's stacks is deferred, under its size.
    fn check_lane(inventory: &Inventory, lane: LaneId, stacks: &SizeStacks) -> Result<(), Unsound> {
        let mut count = 0;
        for (size, size_bytes) in SizeAt::all() {
            let next = |&id: &BlockId| inventory.space()[id].shelf_next;
            for id in std::iter::successors(stacks.first(size), next) {
                let block = &inventory.space()[id];
                let is_deferred = (block.state, block.lane) == (State::Deferred, lane);
                if !is_deferred || block.size_bytes != size_bytes {
                    return Err(format!("{id:?} is wrongly found by its size in {lane:?}").into());
                }
                count += 1;
            }
        }
        stacks.check(count).map_err(|said| format!("{lane:?}: {said}"))?;
        Ok(())
    }

    /// What is found by its size is deferred.
    pub(in crate::heap) fn check(inventory: &Inventory) -> Result<(), Unsound> {
        for (lane, stacks) in inventory.pools().lanes() {
            if let Some(stacks) = stacks.by_size() {
                Self::check_lane(inventory, lane, stacks)?;
            }
        }
        Ok(())
    }
}

/// Coalesces what is deferred in a lane, the largest first, until one has become part of a free
/// block of so many bytes. Says whether one has, and adds what that makes of pieces.
fn coalesce_lane(
    inventory: &mut Inventory,
    lane: LaneId,
    wanted_bytes: u64,
    pieces: &mut Pieces,
) -> bool {
    for word in (0..WORDS).rev() {
        while let Some(stacks) = inventory.pools_mut().lane_mut(lane).by_size_mut()
            && let Some((size, mut first)) = stacks.take_size(word)
        {
            let mut count = 0;
            let mut has_one = false;
            while let Some(id) = first.filter(|_| !has_one) {
                first = inventory.space()[id].shelf_next;
                has_one = inventory.coalesce_one(id, pieces).size_bytes >= wanted_bytes;
                count += 1;
            }
            if let Some(stacks) = inventory.pools_mut().lane_mut(lane).by_size_mut() {
                stacks.put_back(size, count, first);
            }
            if has_one {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::heap::Heap;
    use crate::heap::free::size_stacks::LANE_MAX;
    use crate::policy::Policy;
    use crate::record::stats::Stats;
    use crate::types::{MIB, Span};

    const STREAM: StreamId = StreamId(1);

    /// A heap with so many small segments for each of two streams, all of it free.
    fn heap(segments: u64) -> Heap {
        let mut heap = Heap::new(Config::default(), Policy::larder(), 1 << 40);
        for segment in 1..=2 * segments {
            let want = heap.want(MIB, StreamId(1 + segment % 2));
            let span_bytes = heap.inventory().segment_bytes(&want);
            let addr = heap.take_segment(&want, Span::new(Addr(segment << 30), span_bytes));
            heap.put(heap.live(addr).unwrap());
        }
        heap
    }

    fn deferred(heap: &Heap) -> usize {
        let segments = heap.space().segments().iter();
        let blocks = segments.flat_map(|(id, _)| heap.space().chain(id));
        blocks.filter(|&id| heap.space()[id].state == State::Deferred).count()
    }

    #[test]
    fn the_next_request_of_its_size_gets_what_was_deferred() {
        let mut heap = heap(1);
        let [first, second] = [(); 2].map(|()| heap.malloc(700, STREAM).unwrap());
        assert!(heap.free(first) && heap.free(second));
        assert_eq!(deferred(&heap), 2);
        assert!(!heap.free(first), "what is deferred is not live");
        let other = heap.malloc(1025, STREAM).unwrap();
        assert!(other > second, "of another size, though what is deferred would hold it");
        assert_eq!(heap.malloc(1024, STREAM), Some(second), "the last that came");
        assert_eq!(heap.malloc(513, STREAM), Some(first));
        assert_eq!(heap.stats().requested_bytes.all.current, 1025 + 1024 + 513);
    }

    #[test]
    fn whoever_looks_sees_it_merged_and_changes_nothing() {
        let mut heap = heap(1);
        let blocks = [(); 8].map(|()| heap.malloc(4096, STREAM).unwrap());
        let look = |heap: &mut Heap| {
            let pieces = heap.stats().inactive_split.all.current;
            let blocks = heap.snapshot().into_iter().flat_map(|segment| segment.blocks);
            let spans: Vec<_> = blocks.map(|block| (block.span, block.state)).collect();
            (pieces, spans, heap.free_block_count(), heap.largest_free_bytes())
        };
        for &addr in &blocks {
            assert!(heap.free(addr));
            let before = deferred(&heap);
            let mut settled = heap.clone();
            settled.settle();
            assert_eq!(look(&mut heap), look(&mut settled));
            assert_eq!((deferred(&heap), heap.check(), settled.check()), (before, Ok(()), Ok(())));
        }
        assert_eq!((deferred(&heap), heap.stats().inactive_split.all.current), (8, 0));
        heap.settle();
        assert_eq!((deferred(&heap), heap.stats().inactive_split.all.current), (0, 0));
    }

    #[test]
    fn each_stream_has_its_own() {
        let mut heap = heap(1);
        let mut round = || {
            let streams = [StreamId(1), StreamId(2), StreamId(1)];
            let taken = streams.map(|stream| heap.malloc(512, stream).unwrap());
            assert!(taken.iter().all(|&addr| heap.free(addr)));
            (taken, deferred(&heap))
        };
        let (first, waiting) = round();
        let (second, still) = round();
        assert_eq!((waiting, still), (3, 3));
        assert_eq!([second[1], second[2], second[0]], [first[1], first[0], first[2]]);
    }

    #[test]
    fn it_is_closed_until_the_next_usual_request() {
        let mut heap = heap(1);
        let [first, second] = [(); 2].map(|()| heap.malloc(512, STREAM).unwrap());
        heap.settle();
        assert!(heap.free(first));
        assert_eq!((deferred(&heap), heap.check()), (0, Ok(())));
        assert_eq!(heap.malloc(512, STREAM), Some(first));
        assert!(heap.free(second));
        assert_eq!(deferred(&heap), 1);
    }

    /// The segment is full of deferred blocks: a larger request gets the room of as few of them as
    /// will do.
    #[test]
    fn a_request_that_nothing_free_will_do_for_gets_the_room_of_the_largest() {
        let mut heap = heap(1);
        let small: Vec<_> = (0..16).map(|_| heap.malloc(512, STREAM).unwrap()).collect();
        let large: Vec<_> = (0..3).map(|_| heap.malloc(MIB / 2, STREAM).unwrap()).collect();
        let rest_bytes = MIB / 2 - 16 * 512;
        let rest = heap.malloc(rest_bytes, STREAM).unwrap();
        for addr in small.into_iter().chain(large).chain([rest]) {
            assert!(heap.free(addr));
        }
        assert_eq!(deferred(&heap), 20);
        assert!(heap.malloc(MIB, STREAM).is_some());
        assert_eq!(deferred(&heap), 18);
        assert_eq!(heap.malloc(MIB, STREAM), None, "it takes the small ones, too");
        assert_eq!(deferred(&heap), 0);
        heap.settle();
        assert_eq!(heap.check(), Ok(()));
    }

    #[test]
    fn there_is_room_for_so_many_and_then_those_are_put_down() {
        let mut heap = heap(2);
        let blocks: Vec<_> = (0..=LANE_MAX).map(|_| heap.malloc(512, STREAM).unwrap()).collect();
        let (last, others) = blocks.split_last().unwrap();
        assert!(others.iter().all(|&addr| heap.free(addr)));
        assert_eq!(deferred(&heap), LANE_MAX as usize);
        assert!(heap.free(*last));
        assert_eq!((deferred(&heap), heap.check()), (1, Ok(())));
    }

    /// Against a heap where nothing is ever deferred for longer than a step: what is live, and how
    /// much, is the same, no block is handed out twice, and put down both are the same memory in
    /// the same order.
    #[test]
    fn it_changes_nothing_but_which_block_a_request_gets() {
        let mut heaps = [heap(40), heap(40)];
        let mut live: Vec<[Addr; 2]> = Vec::new();
        let (mut random, mut from_deferred) = (7_u64, 0);
        for step in 0..40_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let choice = random >> 33;
            if live.len() < 200 && choice % 2 == 0 || live.is_empty() {
                let sizes = [1, 512, 700, 4096, 4000, 70_000, MIB / 3, MIB];
                let size_bytes = sizes[(choice >> 8) as usize % sizes.len()];
                let stream = StreamId(1 + (choice >> 16 & 1));
                let before = deferred(&heaps[0]);
                let taken = heaps.each_mut().map(|heap| heap.malloc(size_bytes, stream));
                from_deferred += u64::from(deferred(&heaps[0]) + 1 == before);
                if let [Some(one), Some(other)] = taken {
                    live.push([one, other]);
                } else {
                    assert_eq!(taken, [None; 2], "step {step}: neither has room");
                }
            } else {
                let [one, other] = live.swap_remove((choice >> 8) as usize % live.len());
                let [lazy, settling] = &mut heaps;
                assert!(lazy.free(one) && settling.free(other), "step {step}");
            }
            heaps[1].settle();
            if (choice >> 20).is_multiple_of(64) {
                let mut settled = heaps[0].clone();
                settled.settle();
                let checks = [&heaps[0], &settled, &heaps[1]].map(Heap::check);
                assert_eq!(checks, [Ok(()), Ok(()), Ok(())], "step {step}");
                let [shown, one, other] = [heaps[0].stats(), settled.stats(), heaps[1].stats()];
                assert_eq!(shown.inactive_split.all.current, one.inactive_split.all.current);
                let bytes = |stats: &Stats| stats.inactive_split_bytes.small_pool.current;
                assert_eq!(bytes(&shown), bytes(&one), "step {step}");
                assert_eq!(spans(&heaps[0]), spans(&settled), "step {step}");
                assert_eq!(one.allocated_bytes, other.allocated_bytes, "step {step}");
                assert_eq!(one.requested_bytes, other.requested_bytes, "step {step}");
                assert_eq!(one.active, other.active, "step {step}");
                let live_now = live.iter().filter(|[addr, _]| settled.live(*addr).is_some());
                assert_eq!(live_now.count(), live.len(), "step {step}");
            }
        }
        for [one, other] in live {
            assert!(heaps[0].free(one) && heaps[1].free(other));
        }
        heaps.iter_mut().for_each(Heap::settle);
        let [one, other] = heaps.each_ref().map(spans);
        assert!(one == other, "merged, both are the same memory");
        assert!(from_deferred > 5000, "{from_deferred}");
    }

    /// Where blocks lie and what they are. What was asked for last, which a free one remembers, is
    /// another matter.
    fn spans(heap: &Heap) -> Vec<(Span, State)> {
        let blocks = heap.snapshot().into_iter().flat_map(|segment| segment.blocks);
        blocks.map(|block| (block.span, block.state)).collect()
    }
}
