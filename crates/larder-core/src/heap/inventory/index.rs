//! The index: blocks go into their lane's index and out of it, and merge on the way.

use std::hint::select_unpredictable;

use crate::heap::ids::{BlockId, LaneId, place_of};
use crate::heap::inventory::Inventory;
use crate::heap::space::block::{Block, State, join};
use crate::record::{Place, Record};

/// What a block and its free neighbours became.
pub(in crate::heap) struct Whole {
    pub(in crate::heap) id: BlockId,
    /// The block, as it was before it merged.
    pub(in crate::heap) freed: Place,
    /// What had been asked for it.
    pub(in crate::heap) requested_bytes: u64,
    pub(in crate::heap) expandable: bool,
    pub(in crate::heap) size_bytes: u64,
    /// Whether it is a piece of its segment.
    pub(in crate::heap) is_split: bool,
    /// How many neighbours were joined to the block.
    pub(in crate::heap) merged_blocks: i64,
}

/// Pieces of segments that are free: how many more there are, and how many bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::heap) struct Pieces {
    pub(in crate::heap) blocks: i64,
    pub(in crate::heap) bytes: i64,
}

impl Whole {
    /// How the pieces of its segment changed, which are counted if it is not expandable.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn pieces(&self) -> Pieces {
        // If the segment is whole again, what was merged were pieces, and this is none.
        let gone_bytes = select_unpredictable(self.is_split, 0, self.size_bytes as i64);
        Pieces {
            blocks: i64::from(self.is_split) - self.merged_blocks,
            bytes: self.freed.size_bytes as i64 - gone_bytes,
        }
    }
}

impl Inventory {
    /// Puts a block into its lane's index as free. Its age starts anew.
    pub(in crate::heap) fn shelve(&mut self, id: BlockId) {
        debug_assert!(!self.space.is_in_view(id), "{id:?} lies in a view, and is free");
        self.space[id].state = State::Free;
        self.start_age(id);
        let (slots, _) = self.space.parts();
        let lane = slots[id.place()].lane;
        self.pools.lane_mut(lane).index().insert(slots, id);
        self.note_free(id);
    }

    /// Takes a free block out of its lane's index.
    pub(in crate::heap) fn unshelve(&mut self, id: BlockId) {
        debug_assert!(self.space[id].state == State::Free, "{id:?} is in no index");
        let (slots, _) = self.space.parts();
        let lane = slots[id.place()].lane;
        self.pools.lane_mut(lane).index().remove(slots, id);
    }

    /// A free block's age starts, where ages are counted.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn start_age(&mut self, id: BlockId) {
        if self.rules.has_ages() {
            let lane = self.pools.lane(self.space[id].lane);
            self.space.set_free_since(id, self.pools.pool(lane.pool()).searches());
        }
    }

    /// Frees a block that is in no index: merges it with its free neighbours, and puts the whole
    /// into the index.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would spend more on saving registers.
    pub(in crate::heap) fn merge_and_shelve(&mut self, id: BlockId) -> Whole {
        self.merge_freed(id, self.drawn.is_on(), self.rules.has_ages())
    }

    /// Merges and puts into the index, where it is known whether blocks are numbered and have ages.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn merge_freed(
        &mut self,
        id: BlockId,
        is_numbered: bool,
        has_ages: bool,
    ) -> Whole {
        let (slots, spare) = self.space.parts();
        let block = &mut slots[id.place()];
        block.state = State::Free;
        let &mut Block { addr, size_bytes, requested_bytes, expandable, kind, .. } = block;
        let (prev, next, lane_id, order) = (block.prev, block.next, block.lane, block.order);
        let lane = self.pools.lane_mut(lane_id);
        let freed = Place { kind, stream: lane.stream(), addr, size_bytes };
        lane.count_free();
        let free = lane.index();
        let (mut whole, mut merged_blocks) = (id, 0);
        // Nobody is not free, so that it needs no branch of its own whether there is a neighbour.
        // What lanes took from each other lies side by side, and is merged where it is one lane's.
        #[allow(clippy::needless_bitwise_bool)] // One branch for both.
        let merges =
            |neighbour: &Block| (neighbour.state == State::Free) & (neighbour.lane == lane_id);
        if merges(&slots[place_of(next)]) {
            let next = next.unwrap_or(id);
            free.remove(slots, next);
            join(slots, spare, id, next);
            merged_blocks += 1;
        }
        if merges(&slots[place_of(prev)]) {
            let prev = prev.unwrap_or(id);
            free.remove(slots, prev);
            join(slots, spare, prev, id);
            merged_blocks += 1;
            whole = prev;
        }
        if is_numbered {
            slots[whole.place()].order = order;
        }
        free.insert(slots, whole);
        let block = &mut slots[whole.place()];
        block.requested_bytes = requested_bytes;
        debug_assert!(block.state == State::Free && block.lane == lane_id, "{whole:?} is not free");
        let (size_bytes, is_split) = (block.size_bytes, block.is_split());
        if has_ages {
            self.start_age(whole);
        }
        Whole { id: whole, freed, requested_bytes, expandable, size_bytes, is_split, merged_blocks }
    }

    /// Joins an unmapped block that is in no map with its unmapped neighbours, which are taken out
    /// of theirs. Returns the whole.
    pub(in crate::heap) fn merge_unmapped(&mut self, id: BlockId) -> BlockId {
        debug_assert!(self.space[id].state == State::Unmapped, "{id:?} has memory");
        let unmapped = |id: &BlockId| self.space[*id].state == State::Unmapped;
        let block = &self.space[id];
        let (prev, next) = (block.prev.filter(unmapped), block.next.filter(unmapped));
        let order = block.order;
        if let Some(next) = next {
            self.forget_unmapped(next);
            self.space.join(id, next);
        }
        if let Some(prev) = prev {
            self.forget_unmapped(prev);
            self.space.join(prev, id);
        }
        let whole = prev.unwrap_or(id);
        if self.drawn.is_on() {
            self.space[whole].order = order;
        }
        whole
    }

    /// Takes an unmapped block out of its lane's map of holes.
    pub(in crate::heap) fn forget_unmapped(&mut self, id: BlockId) {
        let Block { lane, addr, state, .. } = self.space[id];
        debug_assert_eq!(state, State::Unmapped);
        self.pools.lane_mut(lane).remove_unmapped(addr);
    }

    /// A block was freed and became part of a whole: there are more or fewer pieces.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn count_pieces(&mut self, whole: &Whole) {
        if !whole.expandable {
            let Pieces { blocks, bytes } = whole.pieces();
            self.recorder.record(Record::InactiveSplit { kind: whole.freed.kind, blocks, bytes });
        }
    }

    /// A free block goes to another lane, and merges with what is free there. That counts as a
    /// free: whoever waited for that lane has not waited for this.
    pub(in crate::heap) fn hand_over(&mut self, id: BlockId, lane: LaneId) {
        debug_assert!(self.pools.has_lane(lane), "{lane:?} is gone");
        self.unshelve(id);
        self.space[id].lane = lane;
        let whole = self.merge_and_shelve(id).id;
        self.note_free(whole);
    }

    /// Where blocks are handed out by address, a free one is found by where it starts.
    #[inline]
    pub(in crate::heap) fn note_free(&mut self, id: BlockId) {
        if self.rules.shares_segments() {
            self.space.note_begin(id);
        }
    }

    /// Frees a block that is live or waiting, and lies at home: merges it, and counts pieces.
    pub(in crate::heap) fn reclaim(&mut self, id: BlockId) {
        debug_assert!(!self.space.is_in_view(id), "{id:?} lives in a view");
        let whole = self.merge_and_shelve(id);
        self.count_pieces(&whole);
    }

    /// Puts back a live block at home that no other stream uses.
    pub(in crate::heap) fn put(&mut self, id: BlockId) {
        self.record_free(id);
        self.reclaim(id);
    }

    /// States that a live block is freed that no other stream uses.
    pub(in crate::heap) fn record_free(&mut self, id: BlockId) {
        debug_assert!(self.space[id].state == State::Live, "{id:?} is not live");
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.record_of(id, Record::Free { place, requested_bytes, oversize });
    }

    /// Takes back a live block on the fast path, and merges it at once: blocks have neither ages
    /// nor numbers, and nobody listens.
    #[inline(never)]
    pub(in crate::heap) fn merge_plainly(&mut self, id: BlockId) {
        debug_assert!(!self.drawn.is_on() && !self.rules.has_ages(), "nothing special is on");
        let whole = self.merge_freed(id, false, false);
        let (place, requested_bytes) = (whole.freed, whole.requested_bytes);
        self.recorder.record(Record::Free { place, requested_bytes, oversize: false });
        self.count_pieces(&whole);
    }

    /// States that a live block is freed that other streams use.
    pub(in crate::heap) fn record_free_requested(&mut self, id: BlockId) {
        assert!(self.space[id].state == State::Live, "{id:?} is not live");
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.record_of(id, Record::FreeRequested { place, requested_bytes, oversize });
    }

    /// States that a block that waited is awaited by nobody any more.
    pub(in crate::heap) fn record_free_completed(&mut self, id: BlockId) {
        assert!(self.space[id].state == State::Waiting, "{id:?} does not wait");
        let (place, requested_bytes) = self.facts(id);
        self.record_of(id, Record::FreeCompleted { place, requested_bytes });
    }
}
