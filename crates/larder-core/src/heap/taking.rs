//! Taking: a request gets the smallest free block that will do, cut to size; under the policy tight the one of them in
//! which it strands the least.

use std::hint::select_unpredictable;

use crate::heap::block::{Block, State, split};
use crate::heap::free_index::Spot;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::size::Fineness;
use crate::heap::tight::fit::least_stranding;
use crate::heap::tight::tenancy::Followed;
use crate::heap::tight::trail;
use crate::heap::{Heap, Want, size};
use crate::record::{Place, Record};
use crate::types::{Addr, StreamId};

/// How a free block is cut for a request.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Whether there is a rest.
    splits: bool,
    /// What the request gets.
    size_bytes: u64,
    whole_bytes: u64,
    /// Whether the whole was a piece of its segment.
    was_split: bool,
}

/// What is to be known of a block that was handed out.
#[derive(Clone, Copy, Debug)]
struct Taken {
    id: BlockId,
    addr: Addr,
    segment: SegmentId,
    expandable: bool,
    oversize: bool,
}

impl Heap {
    /// The best free block for a request of the fast path for which none is deferred.
    #[inline(never)]
    pub(super) fn search(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        if self.is_tight {
            let want = self.want_rounded(requested_bytes, stream);
            return self.take_where::<true>(&want);
        }
        if self.turn_to(stream)
            && let Some(addr) = self.take_rested(requested_bytes, stream)
        {
            return Some(addr);
        }
        let want = self.want_rounded(requested_bytes, stream);
        let addr = self.take_fitting::<true, false>(&want);
        if addr.is_none() && self.yield_rested(requested_bytes, stream) {
            return self.take_fitting::<true, false>(&want);
        }
        addr
    }

    /// Hands out a free block, or none if no free block will do. A request is taken once; who tries again
    /// later for the same request says so by `take_again`.
    pub(crate) fn take(&mut self, want: &Want) -> Option<Addr> {
        let want = self.begin_search(want);
        self.take_where::<false>(&want)
    }

    /// The same for a request that found none before.
    pub(crate) fn take_again(&mut self, want: &Want) -> Option<Addr> {
        let want = self.begin_search(want);
        if self.is_tight {
            self.take_fitting::<false, true>(&want)
        } else {
            self.take_fitting::<false, false>(&want)
        }
    }

    /// Counts a search, and finds the request's lane.
    fn begin_search(&mut self, want: &Want) -> Want {
        if self.collecting {
            self.pools.pool_mut(want.pool).searches += 1;
        }
        Want { lane: self.lane_of(want), ..*want }
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn take_where<const PLAIN: bool>(&mut self, want: &Want) -> Option<Addr> {
        if !self.is_tight {
            return self.take_fitting::<PLAIN, false>(want);
        }
        // Where plain memory lay the last time tells nothing: the trail is about pages.
        if want.expandable {
            match self.follow_trail::<PLAIN>(want) {
                Followed::Taken(addr) => return Some(addr),
                Followed::OthersHave => return None,
                Followed::Lost => {}
            }
        }
        self.take_anywhere::<PLAIN>(want)
    }

    /// Hands out a free block to a request that the trail has no place for.
    #[inline(never)]
    pub(super) fn take_anywhere<const PLAIN: bool>(&mut self, want: &Want) -> Option<Addr> {
        let addr = self.take_fitting::<PLAIN, true>(want);
        if PLAIN && addr.is_none() {
            self.note_miss(want);
        }
        addr
    }

    /// Hands out the bytes where a request was put before, if they are free and lie in the free block that
    /// they were cut out of then.
    #[inline]
    pub(super) fn take_spot<const PLAIN: bool>(
        &mut self,
        want: &Want,
        spot: trail::Spot,
    ) -> Option<Addr> {
        self.blocks.reserve();
        let before_bytes = u64::from(spot.at - spot.from) * size::BLOCK_UNIT_BYTES;
        let from = self.segments[spot.segment].at_unit(spot.from);
        #[allow(clippy::needless_bitwise_bool)] // One branch for all of it.
        let is_it = |id: &BlockId| {
            let block = &self.blocks[*id];
            let is_there = (block.addr == from) & (block.segment == spot.segment);
            let is_free = (block.state == State::Free) & (block.lane == want.lane);
            let has_room = block.size_bytes >= before_bytes + want.size_bytes;
            // Where blocks are not split, the smallest that will do may be another one by now.
            let is_right = want.splits | (block.size_bytes == want.size_bytes);
            is_there & is_free & has_room & is_right
        };
        let noted = |is_small| self.segments.noted_at(spot.segment, spot.from, is_small);
        let id = if let Some(id) = noted(spot.is_small).filter(is_it) {
            id
        } else {
            let id = noted(!spot.is_small).filter(is_it)?;
            self.note_kind(want.lane, !spot.is_small);
            id
        };
        let (slots, spare) = self.blocks.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        free.remove(slots, id);
        if before_bytes > 0 {
            split(slots, spare, id, before_bytes);
            free.insert(slots, id);
            return Some(self.take_behind::<PLAIN>(want, id));
        }
        let block = &slots[id.place()];
        let cut = cut(want, block, block.size_bytes > want.size_bytes);
        let rest = cut.splits.then(|| {
            let rest = split(slots, spare, id, cut.size_bytes);
            free.insert(slots, rest);
            rest
        });
        let taken = make_live::<PLAIN>(slots, id, want, cut.size_bytes >= self.split_limit_bytes);
        if let Some(rest) = rest {
            self.start_age::<PLAIN>(rest);
            self.note_free(rest);
        }
        self.tell_taken::<PLAIN>(want, &cut, &taken);
        Some(taken.addr)
    }

    /// Hands out what lies behind a free block, is free, in no index, and large enough.
    fn take_behind<const PLAIN: bool>(&mut self, want: &Want, before: BlockId) -> Addr {
        let id = self.blocks[before].next.expect("it was cut off just now");
        self.start_age::<PLAIN>(before);
        let cut = cut(want, &self.blocks[id], self.blocks[id].size_bytes > want.size_bytes);
        if cut.splits {
            let rest = self.blocks.split(id, cut.size_bytes);
            self.shelve(rest);
        }
        let limit_bytes = self.split_limit_bytes;
        let (slots, _) = self.blocks.parts();
        let taken = make_live::<PLAIN>(slots, id, want, cut.size_bytes >= limit_bytes);
        self.tell_taken::<PLAIN>(want, &cut, &taken);
        taken.addr
    }

    /// Hands out a free block. `PLAIN` is `self.plain`, where it is known, and `TIGHT` is `self.is_tight`.
    // What is asked of the blocks is asked of one slice of them: what is written to a block might, for
    // all that the compiler knows, change where the blocks are.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request of the usual path stays in registers.
    fn take_fitting<const PLAIN: bool, const TIGHT: bool>(&mut self, want: &Want) -> Option<Addr> {
        self.blocks.reserve();
        let found = if PLAIN { None } else { Some(self.take_off_best(want)?) };
        let fineness = self.fineness();
        let (slots, spare) = self.blocks.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        let id = match found {
            Some(id) => id,
            None if TIGHT && want.expandable && !self.tight.has_leeway() => {
                let first = free.find(slots, want.size_bytes, want.expandable)?;
                let spot = least_stranding(slots, &self.segments, free, want.size_bytes, first);
                free.remove_at(slots, spot);
                spot.id
            }
            None => free.take_first(slots, want.size_bytes, want.expandable)?,
        };
        let limit_bytes = self.split_limit_bytes;
        let block = &slots[id.place()];
        let cut = if PLAIN {
            cut_at(want, block, &self.rest_min_bytes)
        } else {
            cut_for(want, block, fineness, limit_bytes)
        };
        // No closure: it would name the heap, and would not be inlined.
        let rest = if cut.splits {
            let rest = split(slots, spare, id, cut.size_bytes);
            if !PLAIN {
                self.drawn.cut_front(slots, id, rest);
            }
            free.insert(slots, rest);
            Some(rest)
        } else {
            None
        };
        let taken = make_live::<PLAIN>(slots, id, want, cut.size_bytes >= limit_bytes);
        if let Some(rest) = rest {
            self.start_age::<PLAIN>(rest);
            if TIGHT {
                self.note_free(rest);
            }
        }
        self.tell_taken::<PLAIN>(want, &cut, &taken);
        if TIGHT && want.expandable {
            self.note_step(want, taken.id);
        }
        Some(taken.addr)
    }

    /// Takes the block that a request gets out of the index, so that it merges with nobody until it is handed out.
    pub(super) fn take_off(&mut self, want: &Want) -> Option<BlockId> {
        let want = self.begin_search(want);
        let id = self.take_off_best(&want)?;
        self.blocks[id].state = State::Live;
        Some(id)
    }

    /// Takes the block that a request gets out of the index, if the split limit lets it have one.
    fn take_off_best(&mut self, want: &Want) -> Option<BlockId> {
        let spot = self.find_best(want)?;
        let (slots, _) = self.blocks.parts();
        self.pools.lane_mut(want.lane).filled()?.remove_at(slots, spot);
        Some(spot.id)
    }

    /// Whether a free block would do for a request.
    pub(super) fn fits(&mut self, want: &Want) -> bool {
        let lane = self.lane_of(want);
        self.find_best(&Want { lane, ..*want }).is_some()
    }

    /// The block that a request gets, if the split limit lets it have one.
    fn find_best(&mut self, want: &Want) -> Option<Spot> {
        let (slots, _) = self.blocks.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        let mut spot = free.find(slots, want.size_bytes, want.expandable)?;
        if self.is_tight && want.expandable && want.splits && !self.tight.has_leeway() {
            spot = least_stranding(slots, &self.segments, free, want.size_bytes, spot);
        }
        let whole = &slots[spot.id.place()];
        let limit_bytes = self.split_limit_bytes;
        if limit_bytes != u64::MAX {
            let spared = self.policy.split_limit_spares_expandable && whole.expandable;
            let slack_bytes = self.config.max_non_split_rounding_bytes;
            // PyTorch's sum wraps round where the setting is as large as can be.
            let most_bytes = match self.policy.torch {
                Some(_) => want.size_bytes.wrapping_add(slack_bytes),
                None => want.size_bytes.saturating_add(slack_bytes),
            };
            if !spared && !split_limit_allows(want, whole, limit_bytes, most_bytes) {
                // Plain blocks lie among the pages of a paged request, and the limit is for them alone.
                let is_paged = self.is_tight && want.expandable;
                return is_paged.then(|| free.find_expandable(slots, want.size_bytes)).flatten();
            }
        }
        Some(spot)
    }

    /// Makes a block that is in no index live, split to size where that is right.
    pub(super) fn hand_out<const PLAIN: bool>(&mut self, id: BlockId, want: &Want) -> Addr {
        let addr = self.hand_out_off_trail::<PLAIN>(id, want);
        if self.is_paged(want) {
            self.note_step(want, id);
        }
        addr
    }

    /// The same for a request whose place follows from no search, so that no other one should be led there.
    pub(super) fn hand_out_off_trail<const PLAIN: bool>(
        &mut self,
        id: BlockId,
        want: &Want,
    ) -> Addr {
        let cut = cut_for(want, &self.blocks[id], self.fineness(), self.split_limit_bytes);
        self.hand_out_cut::<PLAIN>(id, want, &cut)
    }

    /// Makes the front of a block live that is in no index and larger than the request, whatever the settings say of
    /// splitting. The rest goes into the index.
    pub(super) fn hand_out_front(&mut self, id: BlockId, want: &Want) {
        let cut = cut(want, &self.blocks[id], true);
        self.hand_out_cut::<false>(id, want, &cut);
    }

    fn hand_out_cut<const PLAIN: bool>(&mut self, id: BlockId, want: &Want, cut: &Cut) -> Addr {
        if cut.splits {
            let rest = self.blocks.split(id, cut.size_bytes);
            self.order_front(id, rest);
            self.shelve(rest);
        }
        let limit_bytes = self.split_limit_bytes;
        let (slots, _) = self.blocks.parts();
        let taken = make_live::<PLAIN>(slots, id, want, cut.size_bytes >= limit_bytes);
        self.tell_taken::<PLAIN>(want, cut, &taken);
        taken.addr
    }

    /// States that a block was handed out, and remembers where it starts.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn tell_taken<const PLAIN: bool>(&mut self, want: &Want, cut: &Cut, taken: &Taken) {
        let &Cut { size_bytes, whole_bytes, was_split, .. } = cut;
        let &Taken { id, addr, segment, expandable, oversize } = taken;
        let kind = want.kind;
        // Pieces of expandable segments are not counted.
        if was_split && !expandable {
            // What is taken off a piece makes for less, and never for more.
            let blocks = u64::from(size_bytes == whole_bytes);
            self.herald.record(Record::FewerPieces { kind, blocks, bytes: size_bytes });
        } else if !expandable {
            let (blocks, bytes) = size::pieces_of_taking(false, whole_bytes, size_bytes);
            self.herald.record(Record::InactiveSplit { kind, blocks, bytes });
        }
        self.segments.note_start(segment, addr, size_bytes, id);
        self.hints.note(addr, id);
        let place = Place { kind, stream: want.stream, addr, size_bytes };
        let requested_bytes = want.requested_bytes;
        self.record_where::<PLAIN>(id, Record::Alloc { place, requested_bytes, oversize });
    }
}

/// Makes a block live that is in no index and was cut to size.
#[inline(always)]
#[allow(clippy::inline_always)]
fn make_live<const PLAIN: bool>(
    slots: &mut [Block],
    id: BlockId,
    want: &Want,
    exceeds_limit: bool,
) -> Taken {
    let oversize = !PLAIN && exceeds_limit;
    let block = &mut slots[id.place()];
    block.requested_bytes = want.requested_bytes;
    block.state = State::Live;
    if !PLAIN {
        block.oversize = oversize;
    }
    let (addr, segment, expandable) = (block.addr, block.segment, block.expandable);
    Taken { id, addr, segment, expandable, oversize }
}

/// Whether the split limit lets this block serve this request: neither is a block above the limit
/// broken into for a small request, nor is far too much given to a large one.
fn split_limit_allows(want: &Want, block: &Block, limit_bytes: u64, most_bytes: u64) -> bool {
    block.size_bytes < if want.size_bytes < limit_bytes { limit_bytes } else { most_bytes }
}

/// How a block is cut for a request that it is large enough for.
fn cut_for(want: &Want, block: &Block, fineness: Fineness, limit_bytes: u64) -> Cut {
    let fine = size::cuts_finely(want.kind, fineness, block.expandable, want.expandable);
    let rest_bytes = block.size_bytes - want.size_bytes;
    // What is worth keeping everywhere is no reason to cut what the limit wants whole.
    let is_whole = fineness == Fineness::Everywhere && !block.expandable;
    let is_limited = is_whole && want.size_bytes >= limit_bytes;
    let should_split = size::should_split(fine, want.size_bytes, rest_bytes, limit_bytes);
    let splits = want.splits && should_split && !is_limited;
    cut(want, block, splits)
}

/// The same on the usual path, where the smallest rest is looked up.
#[inline(always)]
#[allow(clippy::inline_always)]
fn cut_at(want: &Want, block: &Block, rest_min_bytes: &[[u64; 2]; 2]) -> Cut {
    let rest_bytes = block.size_bytes - want.size_bytes;
    let min_bytes = rest_min_bytes[want.kind as usize][usize::from(block.expandable)];
    cut(want, block, rest_bytes >= min_bytes)
}

#[inline(always)]
#[allow(clippy::inline_always)]
fn cut(want: &Want, block: &Block, splits: bool) -> Cut {
    let whole_bytes = block.size_bytes;
    // Which it is, is anybody's guess, so that there is no branch on it.
    let size_bytes = select_unpredictable(splits, want.size_bytes, whole_bytes);
    Cut { splits, size_bytes, whole_bytes, was_split: block.is_split() }
}
