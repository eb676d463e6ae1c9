//! Fallow: what a program that goes round gives back lies as it is, neither merged nor in the index, because the next
//! round takes it from there. Each request of a round is told where to go; it finds the block that lies there, and moves
//! the border to the one behind it where that is not as large as the request.
//!
//! It is a matter of time alone, and never of place: a request gets what it would get if all were merged. Before
//! anybody searches, and before anything but the usual path changes the heap, all of it is merged and put into the index.

use std::iter::successors;

use crate::heap::block::{Block, State, join, split};
use crate::heap::ids::{BlockId, LaneId, place_of};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::tight::trail::Spot;
use crate::heap::{Heap, Want};
use crate::record::{Place, Record};
use crate::types::Addr;

/// Where so many lie fallow, the next one has all of them merged, so that this never takes long.
const FALLOW_MAX: usize = 8192;

/// The blocks that may lie fallow.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct Fallow {
    /// Whether blocks that are given back lie fallow: since a request of a round was told where to go, and nothing but the
    /// usual path was taken.
    pub(in crate::heap) is_on: bool,
    /// All that do, each once, and some that are live again or gone.
    listed: Vec<BlockId>,
    /// By slot, whether it is listed.
    is_listed: Vec<bool>,
}

impl Fallow {
    #[inline]
    fn note(&mut self, id: BlockId) {
        if self.is_listed.get(id.place()) != Some(&true) {
            self.list(id);
        }
    }

    #[cold]
    #[inline(never)]
    fn list(&mut self, id: BlockId) {
        if self.is_listed.len() <= id.place() {
            self.is_listed.resize(id.place() + 1, false);
        }
        self.is_listed[id.place()] = true;
        self.listed.push(id);
        // The next request has them merged.
        self.is_on &= self.listed.len() < FALLOW_MAX;
    }

    fn pop(&mut self) -> Option<BlockId> {
        let id = self.listed.pop()?;
        self.is_listed[id.place()] = false;
        Some(id)
    }

    /// Whether nothing lies fallow, and all that is live is noted where it starts.
    pub(in crate::heap) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Those that may lie fallow.
    pub(in crate::heap) fn listed(&self) -> &[BlockId] {
        &self.listed
    }
}

impl Heap {
    /// Lets a block lie that the fast path takes back while blocks lie fallow. False, and nothing is
    /// done, if none do.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn lie(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks[id];
        if !self.fallow.is_on || !block.expandable {
            return false;
        }
        debug_assert!(block.state == State::Live && !block.used_elsewhere, "{id:?} is not free");
        block.state = State::Resting;
        let &mut Block { addr, size_bytes, requested_bytes, kind, lane, .. } = block;
        let lane = self.pools.lane_mut(lane);
        lane.frees += 1;
        let place = Place { kind, stream: lane.stream, addr, size_bytes };
        self.fallow.note(id);
        self.herald.record(Record::Free { place, requested_bytes, oversize: false });
        true
    }

    /// The first of the free blocks of one lane that lie side by side up to this one.
    pub(in crate::heap) fn first_free(&self, id: BlockId) -> BlockId {
        let lane = self.blocks[id].lane;
        let is_own =
            |id: &BlockId| self.blocks[*id].state.is_unused() && self.blocks[*id].lane == lane;
        let before = successors(Some(id), |&id| self.blocks[id].prev.filter(is_own));
        before.last().unwrap_or(id)
    }

    /// The free block of a request's lane that begins where it is told to go, cut off what is before it if need be; and where
    /// the free block began that it was cut out of. It lies fallow. None if there is none, or, with one lane, if what is free
    /// there begins elsewhere now.
    pub(super) fn find_lying(&mut self, want: &Want, spot: Spot) -> Option<(BlockId, Addr)> {
        let segment = self.segments.get(spot.segment).filter(|segment| !segment.is_view())?;
        let (addr, from) = (segment.at_unit(spot.at), segment.at_unit(spot.from));
        let near = self.lying_over(want.lane, addr, spot);
        let id = near.or_else(|| self.first_under(spot.segment, addr))?;
        let Block { addr: begin, state, lane, .. } = self.blocks[id];
        if !state.is_unused() || lane != want.lane {
            return None;
        }
        let goes_anywhere = self.pools.had_many_lanes(want.pool);
        if !goes_anywhere && self.blocks[self.first_free(id)].addr != from {
            return None;
        }
        let from = if goes_anywhere { begin } else { from };
        if begin == addr {
            return Some((id, from));
        }
        if state == State::Free {
            self.unshelve(id);
        }
        self.leave_fallow(id);
        let rest = self.blocks.split(id, addr.0 - begin.0);
        self.leave_fallow(rest);
        Some((rest, from))
    }

    /// The free block of a lane that the address lies in where a request is told to go, if it begins there, or where the
    /// one began that the request was cut out of the last time, or soon behind that.
    fn lying_over(&self, lane: LaneId, addr: Addr, spot: Spot) -> Option<BlockId> {
        let is_own = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.state.is_unused() && block.lane == lane && block.segment == spot.segment
        };
        let is_over = |id: &BlockId| self.blocks[*id].span().end() > addr;
        let from = self.segments[spot.segment].at_unit(spot.from);
        let hinted = self.hints.get(from).filter(|id| self.blocks[*id].addr == from && is_own(id));
        if let Some(id) = hinted.filter(is_over) {
            return Some(id);
        }
        let noted = |unit, addr, is_small| {
            let noted = self.segments.noted_at(spot.segment, unit, is_small);
            noted.filter(|id| self.blocks[*id].addr == addr && is_own(id))
        };
        let at = |unit, addr| noted(unit, addr, true).or_else(|| noted(unit, addr, false));
        if let Some(id) = at(spot.at, addr) {
            return Some(id);
        }
        let first = hinted.or_else(|| at(spot.from, from));
        let mut free = successors(first, |&id| self.blocks[id].next.filter(is_own));
        free.find(is_over)
    }

    /// A free block that is in no index lies fallow from now on. The next round may ask for what lies there.
    pub(in crate::heap) fn leave_fallow(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Resting;
        self.hints.note(block.addr, id);
        self.fallow.note(id);
    }

    /// Gives a free block the size of a request, out of what is free behind it and into it. It is in no index then. Says
    /// whether there was enough; if not, what there was lies fallow.
    ///
    /// Mostly it lies fallow, and so does the block behind it, and the border between them is moved.
    #[inline(never)]
    #[allow(clippy::needless_bitwise_bool)] // Fewer branches, which nobody can foresee.
    pub(super) fn refit(&mut self, lane: LaneId, id: BlockId, wanted_bytes: u64) -> bool {
        let (slots, _) = self.blocks.parts();
        let &Block { size_bytes, next, state, .. } = &slots[id.place()];
        // Nobody lies fallow, so that it needs no question whether there is a block behind.
        let its = &slots[place_of(next)];
        let lies_behind = (its.state == State::Resting) & (its.lane == lane);
        let has_room = size_bytes.wrapping_add(its.size_bytes) > wanted_bytes;
        let lies = (state == State::Resting) & (size_bytes != wanted_bytes);
        let Some(behind) = next.filter(|_| lies & lies_behind & has_room) else {
            return self.refit_by_cut(lane, id, wanted_bytes);
        };
        move_border(slots, id, behind, wanted_bytes);
        self.hints.note(slots[behind.place()].addr, behind);
        true
    }

    /// The same where it is not as simple as that. Mostly nothing behind the block is free, and it is cut; or what is there is
    /// as large as what it lacks, and is taken in.
    #[inline(never)]
    fn refit_by_cut(&mut self, lane: LaneId, id: BlockId, wanted_bytes: u64) -> bool {
        self.blocks.reserve();
        let (slots, spare) = self.blocks.parts();
        let &Block { size_bytes, next, state, .. } = &slots[id.place()];
        let its = &slots[place_of(next)];
        let is_behind = its.state.is_unused() && its.lane == lane;
        if state == State::Resting && size_bytes > wanted_bytes && !is_behind {
            let rest = split(slots, spare, id, wanted_bytes);
            slots[rest.place()].state = State::Resting;
            self.hints.note(slots[rest.place()].addr, rest);
            self.fallow.note(rest);
        } else if let Some(behind) = next
            && state == State::Resting
            && is_behind
            && its.state == State::Resting
            && size_bytes + its.size_bytes == wanted_bytes
        {
            join(slots, spare, id, behind);
        } else if (state != State::Resting || size_bytes != wanted_bytes)
            && !self.refit_wholly(lane, id, wanted_bytes)
        {
            return false;
        }
        true
    }

    /// The same where something is in the index, or several blocks are taken in. There is a spare slot.
    #[inline(never)]
    fn refit_wholly(&mut self, lane: LaneId, id: BlockId, wanted_bytes: u64) -> bool {
        let (slots, spare) = self.blocks.parts();
        let index = self.pools.lane_mut(lane).index();
        if slots[id.place()].state == State::Free {
            index.remove(slots, id);
            slots[id.place()].state = State::Resting;
        }
        let behind = loop {
            let &Block { size_bytes, next, .. } = &slots[id.place()];
            if size_bytes == wanted_bytes {
                break id;
            }
            // Nobody is not free, so that it needs no question whether there is a block behind.
            let &Block { state, lane: its_lane, size_bytes: its_bytes, .. } =
                &slots[place_of(next)];
            let behind = next.filter(|_| state.is_unused() && its_lane == lane);
            let is_enough = size_bytes > wanted_bytes;
            match behind {
                Some(behind) if is_enough && state == State::Resting => {
                    move_border(slots, id, behind, wanted_bytes);
                    break behind;
                }
                _ if is_enough => {
                    let rest = split(slots, spare, id, wanted_bytes);
                    slots[rest.place()].state = State::Resting;
                    self.fallow.note(rest);
                    break rest;
                }
                Some(behind) => {
                    if state == State::Free {
                        index.remove(slots, behind);
                        slots[behind.place()].state = State::Resting;
                        self.fallow.note(behind);
                    }
                    if size_bytes + its_bytes > wanted_bytes {
                        move_border(slots, id, behind, wanted_bytes);
                        break behind;
                    }
                    join(slots, spare, id, behind);
                }
                None => {
                    self.fallow.note(id);
                    return false;
                }
            }
        };
        // The border is where the next request may be told to go.
        self.hints.note(self.blocks[behind].addr, behind);
        true
    }

    /// Merges all that lies fallow, and puts it into the index. What is live again is noted where it starts: in a round it was
    /// not, because its hint is mostly enough, and there are more notes than the processor keeps at hand.
    #[inline]
    pub(in crate::heap) fn till(&mut self) {
        if !self.fallow.is_empty() {
            self.till_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn till_all(&mut self) {
        while let Some(id) = self.fallow.pop() {
            let &Block { state, lane, .. } = &self.blocks[id];
            match state {
                State::Resting => {
                    let whole = self.merge_and_shelve::<true>(id).id;
                    self.note_free(whole);
                    // It was given back before.
                    self.pools.lane_mut(lane).frees -= 1;
                }
                State::Live => self.note_begin(id),
                _ => {}
            }
        }
    }

    /// Puts back a tenant that nobody else uses while a program goes round: what was lent to it lies fallow. False, and nothing
    /// is done, if it is none.
    pub(crate) fn put_tenant(&mut self, id: BlockId) -> bool {
        let is_one = self.fallow.is_on && self.is_tenant(id) && self.uses(id).is_empty();
        if is_one {
            self.put(id);
        }
        is_one
    }

    /// Nothing lies fallow any more, until the next request of a round.
    #[inline]
    pub(in crate::heap) fn end_fallow(&mut self) {
        self.fallow.is_on = false;
        self.till();
    }

    /// Blocks lie fallow from now on: a request of a round went where it was told.
    #[inline]
    pub(in crate::heap) fn go_round(&mut self) {
        self.fallow.is_on = true;
        if self.fallow.listed.len() >= FALLOW_MAX {
            self.till();
        }
    }
}

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
