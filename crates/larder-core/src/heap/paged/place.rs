//! Place: a request goes where the log of requests says, or, where it says nothing, to the free
//! block in which it leaves the most whole pages.

use crate::heap::cut::cut;
use crate::heap::free::free_index::{FreeIndex, Spot as FreeSpot};
use crate::heap::ids::BlockId;
use crate::heap::paged::Attempt;
use crate::heap::paged::fit::least_stranding;
use crate::heap::paged::lending::Followed;
use crate::heap::paged::request_log::Spot;
use crate::heap::space::block::{Block, State, split};
use crate::heap::{Heap, Want, size};
use crate::types::{Addr, StreamId};

impl Heap {
    /// A request of the fast path that is not the next one of a cycle.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn search_paged(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        let want = self.want_rounded(requested_bytes, stream);
        self.take_noted(&want, Attempt::First)
    }

    /// Hands out a free block to a request of the slow way.
    pub(in crate::heap) fn take_paged(&mut self, want: &Want) -> Option<Addr> {
        self.take_noted(want, Attempt::Again)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn take_noted(&mut self, want: &Want, attempt: Attempt) -> Option<Addr> {
        // Where plain memory lay the last time tells nothing: the request log is about pages.
        if want.expandable {
            match self.follow_log(want, attempt) {
                Followed::Taken(addr) => return Some(addr),
                Followed::OthersHave => return None,
                Followed::Lost => {}
            }
        }
        self.take_anywhere(want, attempt)
    }

    /// Hands out a free block to a request that the request log has no place for.
    #[inline(never)]
    pub(super) fn take_anywhere(&mut self, want: &Want, attempt: Attempt) -> Option<Addr> {
        let addr = self.take_best(want);
        if attempt == Attempt::First && addr.is_none() {
            self.note_miss(want);
        }
        addr
    }

    /// Of the free blocks that are large enough the one in which a request strands the least.
    pub(in crate::heap) fn least_stranding_for(
        &self,
        slots: &[Block],
        free: &FreeIndex,
        want: &Want,
        smallest: FreeSpot,
    ) -> FreeSpot {
        if !want.expandable || !want.splits || self.paged.has_slack() {
            return smallest;
        }
        least_stranding(slots, self.space.segments(), free, want.size_bytes, smallest)
    }

    /// Hands out the bytes where a request was put before, if they are free and lie in the free
    /// block that they were cut out of then.
    #[inline]
    pub(in crate::heap) fn take_spot(&mut self, want: &Want, spot: Spot) -> Option<Addr> {
        self.space.reserve();
        let before_bytes = u64::from(spot.at - spot.from) * size::BLOCK_UNIT_BYTES;
        let from = self.space[spot.segment].at_unit(spot.from);
        #[allow(clippy::needless_bitwise_bool)] // One branch for all of it.
        let is_it = |id: &BlockId| {
            let block = &self.space[*id];
            let is_there = (block.addr == from) & (block.segment == spot.segment);
            let is_free = (block.state == State::Free) & (block.lane == want.lane);
            let has_room = block.size_bytes >= before_bytes + want.size_bytes;
            // Where blocks are not split, the smallest that will do may be another one by now.
            let is_right = want.splits | (block.size_bytes == want.size_bytes);
            is_there & is_free & has_room & is_right
        };
        let noted = |is_small| self.space.segments().noted_at(spot.segment, spot.from, is_small);
        let id = if let Some(id) = noted(spot.is_small).filter(is_it) {
            id
        } else {
            let id = noted(!spot.is_small).filter(is_it)?;
            self.note_kind(want.lane, !spot.is_small);
            id
        };
        let (slots, spare) = self.space.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        free.remove(slots, id);
        if before_bytes > 0 {
            split(slots, spare, id, before_bytes);
            free.insert(slots, id);
            return Some(self.take_behind(want, id));
        }
        let block = &slots[id.place()];
        let cut = cut(want, block, block.size_bytes > want.size_bytes);
        let rest = cut.splits.then(|| {
            let rest = split(slots, spare, id, cut.size_bytes);
            free.insert(slots, rest);
            rest
        });
        if let Some(rest) = rest {
            self.start_age(rest);
            self.space.note_begin(rest);
        }
        Some(self.hand_out_whole(id, want, &cut))
    }

    /// Hands out what lies behind a free block, is free, in no index, and large enough.
    fn take_behind(&mut self, want: &Want, before: BlockId) -> Addr {
        let id = self.space[before].next.expect("it was cut off just now");
        self.start_age(before);
        let cut = cut(want, &self.space[id], self.space[id].size_bytes > want.size_bytes);
        if cut.splits {
            let rest = self.space.split(id, cut.size_bytes);
            self.shelve(rest);
        }
        self.hand_out_whole(id, want, &cut)
    }
}
