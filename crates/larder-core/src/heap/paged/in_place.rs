//! In place: what a program that repeats itself gives back stays as it is, neither merged nor in
//! the index, because the next cycle takes it from there. Each request of a cycle is told where to
//! go; it finds the block that lies there, and moves the border to the one behind it where that is
//! not as large as the request.
//!
//! It is a matter of time alone, and never of place: a request gets what it would get if all were
//! merged. Before anybody searches, and before anything but the fast path changes the heap, all of
//! it is merged and put into the index.

use std::iter::successors;

use crate::heap::Want;
use crate::heap::deferred::Deferral;
use crate::heap::ids::{BlockId, LaneId, place_of};
use crate::heap::inventory::{Inventory, Parts};
use crate::heap::paged::request_log::Spot;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::{Block, State, join, split};
use crate::types::Addr;

/// Moves the border between two blocks so that the first has so many bytes.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would cost as much as what it does.
fn move_border(slots: &mut [Block], id: BlockId, behind: BlockId, size_bytes: u64) {
    let block = &mut slots[id.place()];
    let more_bytes = size_bytes.wrapping_sub(block.size_bytes);
    block.size_bytes = size_bytes;
    let block = &mut slots[behind.place()];
    block.addr = Addr(block.addr.0.wrapping_add(more_bytes));
    block.size_bytes = block.size_bytes.wrapping_sub(more_bytes);
    block.order = block.order.wrapping_add((more_bytes as i64 >> BLOCK_UNIT_BYTES.ilog2()) as u64);
}

/// Defers the free of a block on the fast path where the program repeats itself.
#[inline(always)]
#[allow(clippy::inline_always)]
pub(in crate::heap) fn defer(inventory: &mut Inventory, id: BlockId) -> bool {
    let Parts { space, pools, deferred, recorder } = inventory.parts();
    let block = &mut space[id];
    let defers = deferred.is_in_place() && block.expandable;
    if defers {
        let lane = pools.lane_mut(block.lane);
        Deferral { id, block, lane, deferred, recorder }.begin();
    }
    defers
}

/// The free block of a request's lane that begins where it is told to go, cut off what is
/// before it if need be; and where the free block began that it was cut out of. It is deferred.
/// None if there is none, or, with one lane, if what is free there begins elsewhere now.
pub(super) fn find_deferred(
    inventory: &mut Inventory,
    want: &Want,
    spot: Spot,
) -> Option<(BlockId, Addr)> {
    let segment = inventory.space().segment(spot.segment).filter(|segment| !segment.is_view())?;
    let (addr, from) = (segment.at_unit(spot.at), segment.at_unit(spot.from));
    let near = deferred_over(inventory, want.lane, addr, spot);
    let id = near.or_else(|| inventory.space_mut().first_under(spot.segment, addr))?;
    let Block { addr: begin, state, lane, expandable, .. } = inventory.space()[id];
    // Plain memory, whose pieces are counted, is merged at once and found by the index.
    if !state.is_unused() || lane != want.lane || !expandable {
        return None;
    }
    let goes_anywhere = inventory.pools().had_many_lanes(want.pool);
    if !goes_anywhere && inventory.space()[inventory.space().first_free(id)].addr != from {
        return None;
    }
    let from = if goes_anywhere { begin } else { from };
    if begin == addr {
        return Some((id, from));
    }
    if state == State::Free {
        inventory.unshelve(id);
    }
    inventory.defer_free(id);
    let rest = inventory.space_mut().split(id, addr.0 - begin.0);
    inventory.defer_free(rest);
    Some((rest, from))
}

/// The free block of a lane that the address lies in where a request is told to go, if it
/// begins there, or where the one began that the request was cut out of the last time, or soon
/// behind that.
fn deferred_over(inventory: &Inventory, lane: LaneId, addr: Addr, spot: Spot) -> Option<BlockId> {
    let is_own = |id: &BlockId| {
        let block = &inventory.space()[*id];
        block.state.is_unused() && block.lane == lane && block.segment == spot.segment
    };
    let is_over = |id: &BlockId| inventory.space()[*id].span().end() > addr;
    let from = inventory.space()[spot.segment].at_unit(spot.from);
    let hinted = inventory
        .space()
        .hinted(from)
        .filter(|id| inventory.space()[*id].addr == from && is_own(id));
    if let Some(id) = hinted.filter(is_over) {
        return Some(id);
    }
    let noted = |unit, addr, is_small| {
        let noted = inventory.space().segments().noted_at(spot.segment, unit, is_small);
        noted.filter(|id| inventory.space()[*id].addr == addr && is_own(id))
    };
    let at = |unit, addr| noted(unit, addr, true).or_else(|| noted(unit, addr, false));
    if let Some(id) = at(spot.at, addr) {
        return Some(id);
    }
    let first = hinted.or_else(|| at(spot.from, from));
    let mut free = successors(first, |&id| inventory.space()[id].next.filter(is_own));
    free.find(is_over)
}

/// Gives a free block the size of a request, out of what is free behind it and into it. It is
/// in no index then. Says whether there was enough; if not, what there was is deferred.
///
/// Mostly both it and the block behind it are deferred, and the border between them is moved.
#[inline(never)]
#[allow(clippy::needless_bitwise_bool)] // Fewer branches, which nobody can foresee.
pub(super) fn refit(
    inventory: &mut Inventory,
    lane: LaneId,
    id: BlockId,
    wanted_bytes: u64,
) -> bool {
    let (slots, _) = inventory.space_mut().parts();
    let &Block { size_bytes, next, state, .. } = &slots[id.place()];
    // The slot that stands for no block is not deferred, so that it needs no question whether
    // there is a block behind.
    let its = &slots[place_of(next)];
    let lies_behind = (its.state == State::Deferred) & (its.lane == lane);
    let has_room = size_bytes.wrapping_add(its.size_bytes) > wanted_bytes;
    let lies = (state == State::Deferred) & (size_bytes != wanted_bytes);
    let Some(behind) = next.filter(|_| lies & lies_behind & has_room) else {
        return refit_by_cut(inventory, lane, id, wanted_bytes);
    };
    move_border(slots, id, behind, wanted_bytes);
    let addr = slots[behind.place()].addr;
    inventory.space_mut().hint(addr, behind);
    true
}

/// Refits where it is not as simple as that. Mostly nothing behind the block is free, and it
/// is cut; or what is there is as large as what it lacks, and is taken in.
#[inline(never)]
fn refit_by_cut(inventory: &mut Inventory, lane: LaneId, id: BlockId, wanted_bytes: u64) -> bool {
    inventory.space_mut().reserve();
    let (slots, spare) = inventory.space_mut().parts();
    let &Block { size_bytes, next, state, .. } = &slots[id.place()];
    let its = &slots[place_of(next)];
    let is_behind = its.state.is_unused() && its.lane == lane;
    if state == State::Deferred && size_bytes > wanted_bytes && !is_behind {
        let rest = split(slots, spare, id, wanted_bytes);
        slots[rest.place()].state = State::Deferred;
        let addr = slots[rest.place()].addr;
        inventory.space_mut().hint(addr, rest);
        inventory.deferred_mut().list(rest);
    } else if let Some(behind) = next
        && state == State::Deferred
        && is_behind
        && its.state == State::Deferred
        && size_bytes + its.size_bytes == wanted_bytes
    {
        join(slots, spare, id, behind);
    } else if (state != State::Deferred || size_bytes != wanted_bytes)
        && !refit_wholly(inventory, lane, id, wanted_bytes)
    {
        return false;
    }
    true
}

/// Refits where something is in the index, or several blocks are taken in. There is a spare
/// slot.
#[inline(never)]
fn refit_wholly(inventory: &mut Inventory, lane: LaneId, id: BlockId, wanted_bytes: u64) -> bool {
    let Parts { space, pools, deferred, .. } = inventory.parts();
    let (slots, spare) = space.parts();
    let index = pools.lane_mut(lane).index();
    if slots[id.place()].state == State::Free {
        index.remove(slots, id);
        slots[id.place()].state = State::Deferred;
    }
    let behind = loop {
        let &Block { size_bytes, next, .. } = &slots[id.place()];
        if size_bytes == wanted_bytes {
            break id;
        }
        // The slot that stands for no block is not unused, so that it needs no question whether
        // there is one behind.
        let &Block { state, lane: its_lane, size_bytes: its_bytes, .. } = &slots[place_of(next)];
        let behind = next.filter(|_| state.is_unused() && its_lane == lane);
        let is_enough = size_bytes > wanted_bytes;
        match behind {
            Some(behind) if is_enough && state == State::Deferred => {
                move_border(slots, id, behind, wanted_bytes);
                break behind;
            }
            _ if is_enough => {
                let rest = split(slots, spare, id, wanted_bytes);
                slots[rest.place()].state = State::Deferred;
                deferred.list(rest);
                break rest;
            }
            Some(behind) => {
                if state == State::Free {
                    index.remove(slots, behind);
                    slots[behind.place()].state = State::Deferred;
                    deferred.list(behind);
                }
                if size_bytes + its_bytes > wanted_bytes {
                    move_border(slots, id, behind, wanted_bytes);
                    break behind;
                }
                join(slots, spare, id, behind);
            }
            None => {
                deferred.list(id);
                return false;
            }
        }
    };
    // The border is where the next request may be told to go.
    let addr = space[behind].addr;
    space.hint(addr, behind);
    true
}
