//! Cycles: the requests of a program that repeats itself. Each is told where to go, and mostly
//! finds there what is deferred: then it is handed out with nothing searched for. This is the fast
//! path of the policy tight, and so is what such a program gives back.

use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId, PoolIndex, place_of};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Attempt;
use crate::heap::paged::Paged;
use crate::heap::paged::in_place::{find_deferred, refit};
use crate::heap::paged::place::Followed;
use crate::heap::paged::request_log::Goal;
use crate::heap::ready::Ready;
use crate::heap::size;
use crate::heap::space::block::{Block, State};
use crate::record::{Place, Record};
use crate::types::{Addr, PoolKind, StreamId};

impl Paged {
    /// A request of the fast path comes. Where it is told to go, if the program repeats itself and
    /// it is the next of the cycle.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    pub(in crate::heap) fn next_of_cycle(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<(LaneId, Goal)> {
        if !inventory.deferred().is_in_place() {
            return None;
        }
        let lane = inventory.pools_mut().default_lane(PoolKind::Large, stream);
        let goal = self.walk_cycle(lane, size::round_usual(requested_bytes))?;
        Some((lane, goal))
    }

    /// Puts a request of a cycle where it is told to go.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn take_goal(
        &mut self,
        inventory: &mut Inventory,
        (lane, goal): (LaneId, Goal),
        requested_bytes: u64,
        stream: StreamId,
    ) -> Ready {
        if let Some(id) = fit_deferred(inventory, lane, goal, size::round_usual(requested_bytes)) {
            return Ready::Taken(hand_out_deferred(inventory, id, requested_bytes, stream));
        }
        self.find_goal(inventory, requested_bytes, stream).map_or(Ready::Declined, Ready::Taken)
    }

    /// A request of a cycle where it is not known which block lies where it is told to go, or that
    /// one will not do.
    #[inline(never)]
    fn find_goal(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        let want = inventory.want_rounded(requested_bytes, stream);
        if let Some(spot) = self.way(want.lane).log.told(want.ask()) {
            if spot.was_others {
                // It probably is again, and is looked at where it can be waited for.
                self.note_others_have(&want);
                return None;
            }
            if let Some((id, from)) = find_deferred(inventory, &want, spot)
                && refit(inventory, want.lane, id, want.size_bytes)
            {
                let addr = hand_out_deferred(inventory, id, requested_bytes, stream);
                inventory.space_mut().hint(addr, id);
                // It may have been in the index, and then it is not among those that are noted
                // later.
                inventory.space_mut().note_begin(id);
                // Its segment may lie elsewhere by now.
                if addr != spot.addr || from != inventory.space()[spot.segment].at_unit(spot.from) {
                    self.note_place(inventory, &want, spot.segment, addr, from);
                }
                return Some(addr);
            }
            // In a view, or not its own lane's alone: that does not depend on what is merged.
            match self.take_told_place(inventory, &want, spot, Attempt::First) {
                Followed::Taken(addr) => return Some(addr),
                Followed::OthersHave => return None,
                Followed::Lost => {}
            }
        }
        inventory.coalesce();
        self.take_anywhere(inventory, &want, Attempt::First)
    }

    /// A request of a cycle that missed on the fast path, because what it was told to have was
    /// probably another lane's, and that is not free. If it finds nothing else, it is as if it had
    /// missed for want of that.
    pub(crate) fn take_lost(&mut self, inventory: &mut Inventory, want: &Want) -> Option<Addr> {
        self.note_miss(want);
        inventory.coalesce();
        self.take_anywhere(inventory, want, Attempt::Again)
    }
}

/// Makes a block live that was deferred and has the size of the request.
#[inline(always)]
#[allow(clippy::inline_always)]
fn hand_out_deferred(
    inventory: &mut Inventory,
    id: BlockId,
    requested_bytes: u64,
    stream: StreamId,
) -> Addr {
    let block = &mut inventory.space_mut()[id];
    (block.state, block.requested_bytes) = (State::Live, requested_bytes);
    let &mut Block { addr, size_bytes, .. } = block;
    let place = Place { kind: PoolKind::Large, stream, addr, size_bytes };
    inventory.recorder_mut().record(Record::Alloc { place, requested_bytes, oversize: false });
    addr
}

/// The block that is deferred where a request is told to go, once it has the request's size.
/// None where it is not known which one that is, or there is not enough.
#[inline(always)]
#[allow(clippy::inline_always, clippy::needless_bitwise_bool)] // One branch for all of it.
fn fit_deferred(
    inventory: &mut Inventory,
    lane: LaneId,
    goal: Goal,
    size_bytes: u64,
) -> Option<BlockId> {
    let id = inventory.space().hinted(goal.addr())?;
    let slots = inventory.space().slots();
    let block = &slots[id.place()];
    let lies = (block.addr == goal.addr()) & (block.state == State::Deferred);
    // What is free there begins where it did; or there are several lanes, and places are kept
    // all the same.
    let before = &slots[place_of(block.prev)];
    let is_inside = before.state.is_unused() & (before.lane == lane);
    let is_first = goal.is_first() & !is_inside;
    let pool = PoolIndex::default_for(PoolKind::Large);
    if !(lies & (block.lane == lane)) || !is_first && !inventory.pools().had_many_lanes(pool) {
        return None;
    }
    (block.size_bytes == size_bytes || refit(inventory, lane, id, size_bytes)).then_some(id)
}
