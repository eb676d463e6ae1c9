//! Place: a request goes where the log of requests says, or, where it says nothing, to the free
//! block in which it leaves the most whole pages.

use crate::heap::ids::BlockId;
use crate::heap::inventory::{Fit, Inventory, Parts, cut};
use crate::heap::paged::Attempt;
use crate::heap::paged::Paged;
use crate::heap::paged::ground::ground_told;
use crate::heap::paged::request_log::Spot;
use crate::heap::space::block::{State, split};
use crate::heap::space::segment::Segment;
use crate::heap::{Want, size};
use crate::record::Record;
use crate::types::{Addr, StreamId};

/// What came of following the request log.
pub(crate) enum Followed {
    /// The request has its block.
    Taken(Addr),
    /// What it was told to have is free, but another lane's: it has to wait for that one's stream
    /// first.
    OthersHave,
    /// It was told nothing, or nothing that is free.
    Lost,
}

impl Paged {
    /// A request of the fast path that is not the next one of a cycle.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn search(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        let want = inventory.want_rounded(requested_bytes, stream);
        self.take_noted(inventory, &want, Attempt::First)
    }

    /// Hands out a free block to a request of the slow way.
    pub(in crate::heap) fn take(&mut self, inventory: &mut Inventory, want: &Want) -> Option<Addr> {
        self.take_noted(inventory, want, Attempt::Again)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn take_noted(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        attempt: Attempt,
    ) -> Option<Addr> {
        // Where plain memory lay the last time tells nothing: the request log is about pages.
        if want.expandable {
            match self.follow_log(inventory, want, attempt) {
                Followed::Taken(addr) => return Some(addr),
                Followed::OthersHave => return None,
                Followed::Lost => {}
            }
        }
        self.take_anywhere(inventory, want, attempt)
    }

    /// Hands out a free block to a request that the request log has no place for.
    #[inline(never)]
    pub(super) fn take_anywhere(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        attempt: Attempt,
    ) -> Option<Addr> {
        if let Some((id, addr)) = inventory.take_best(want, self.fit(want)) {
            self.note_taken(inventory, want, id);
            return Some(addr);
        }
        if attempt == Attempt::First {
            self.note_miss(want);
        }
        None
    }

    /// Which of the free blocks that are large enough a request gets that has no place.
    pub(in crate::heap) fn fit(&self, want: &Want) -> Fit {
        if !want.expandable || !want.splits || self.is_spent() {
            Fit::Smallest
        } else {
            Fit::LeastStranding
        }
    }

    /// Hands out the bytes where a request was put before, if they are free and lie in the free
    /// block that they were cut out of then.
    #[inline]
    pub(in crate::heap) fn take_spot(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        spot: Spot,
    ) -> Option<Addr> {
        inventory.space_mut().reserve();
        let before_bytes = u64::from(spot.at - spot.from) * size::BLOCK_UNIT_BYTES;
        let from = inventory.space()[spot.segment].at_unit(spot.from);
        #[allow(clippy::needless_bitwise_bool)] // One branch for all of it.
        let is_it = |id: &BlockId| {
            let block = &inventory.space()[*id];
            let is_there = (block.addr == from) & (block.segment == spot.segment);
            let is_free = (block.state == State::Free) & (block.lane == want.lane);
            let has_room = block.size_bytes >= before_bytes + want.size_bytes;
            // Where blocks are not split, the smallest that will do may be another one by now.
            let is_right = want.splits | (block.size_bytes == want.size_bytes);
            is_there & is_free & has_room & is_right
        };
        let noted =
            |is_small| inventory.space().segments().noted_at(spot.segment, spot.from, is_small);
        let id = if let Some(id) = noted(spot.is_small).filter(is_it) {
            id
        } else {
            let id = noted(!spot.is_small).filter(is_it)?;
            self.note_kind(want.lane, !spot.is_small);
            id
        };
        let Parts { space, pools, .. } = inventory.parts();
        let (slots, spare) = space.parts();
        let free = pools.lane_mut(want.lane).filled()?;
        free.remove(slots, id);
        if before_bytes > 0 {
            let block = &slots[id.place()];
            let (expandable, was_piece) = (block.expandable, block.is_split());
            let bytes = if was_piece { 0 } else { block.size_bytes as i64 };
            split(slots, spare, id, before_bytes);
            free.insert(slots, id);
            // Plain memory is counted in pieces: what lies before, and what the request is cut off.
            if !expandable {
                let (kind, blocks) = (want.kind, 2 - i64::from(was_piece));
                inventory.recorder_mut().record(Record::InactiveSplit { kind, blocks, bytes });
            }
            return Some(take_behind(inventory, want, id));
        }
        let block = &slots[id.place()];
        let cut = cut(want, block, block.size_bytes > want.size_bytes);
        let rest = cut.splits.then(|| {
            let rest = split(slots, spare, id, cut.size_bytes);
            free.insert(slots, rest);
            rest
        });
        if let Some(rest) = rest {
            inventory.start_age(rest);
            inventory.space_mut().note_begin(rest);
        }
        Some(inventory.hand_out_whole(id, want, &cut))
    }

    /// The request goes where it was put the last time, if that is free.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then it is known which attempt it is.
    pub(in crate::heap) fn follow_log(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        attempt: Attempt,
    ) -> Followed {
        let ask = want.ask();
        // A request that missed on the fast path comes once more, and is one entry all the same.
        let way = self.way(want.lane);
        let is_first = attempt == Attempt::First;
        let again = if is_first { None } else { way.missed.take() };
        let again = again.filter(|miss| miss.ask == ask);
        if again.is_some_and(|miss| miss.is_others) {
            return Followed::OthersHave;
        }
        let told = if again.is_some() { way.log.told(ask) } else { way.log.walk(want.size_bytes) };
        let in_cycle = is_first && way.log.repeats();
        let Some(spot) = told else {
            inventory.coalesce();
            return Followed::Lost;
        };
        if in_cycle {
            inventory.begin_in_place();
        }
        inventory.coalesce();
        match self.take_spot(inventory, want, spot) {
            Some(addr) => Followed::Taken(addr),
            None => self.take_told_place(inventory, want, spot, attempt),
        }
    }

    /// The request goes where it was put the last time, if that is in a view, or not its own lane's
    /// alone.
    #[inline(never)]
    pub(super) fn take_told_place(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        spot: Spot,
        attempt: Attempt,
    ) -> Followed {
        let is_view = inventory.space().segment(spot.segment).is_some_and(Segment::is_view);
        if !is_view && !inventory.pools().had_many_lanes(want.pool) {
            return Followed::Lost;
        }
        let Some(ground) = ground_told(inventory, want, spot) else { return Followed::Lost };
        if ground.waits.is_empty() {
            return self
                .settle_on(inventory, want, &ground)
                .map_or(Followed::Lost, Followed::Taken);
        }
        if attempt == Attempt::First {
            self.note_others_have(want);
        }
        Followed::OthersHave
    }
}

/// Hands out what lies behind a free block, is free, in no index, and large enough.
fn take_behind(inventory: &mut Inventory, want: &Want, before: BlockId) -> Addr {
    let id = inventory.space()[before].next.expect("it was cut off just now");
    inventory.start_age(before);
    let cut = cut(want, &inventory.space()[id], inventory.space()[id].size_bytes > want.size_bytes);
    if cut.splits {
        let rest = inventory.space_mut().split(id, cut.size_bytes);
        inventory.shelve(rest);
    }
    inventory.hand_out_whole(id, want, &cut)
}
