//! Cut: a free block becomes the block of a request: taken out of the index, cut to size, made
//! live.

use std::hint::select_unpredictable;

use crate::heap::free::free_index::Spot;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::size::Fineness;
use crate::heap::space::block::{Block, State};
use crate::heap::{Heap, Want, size};
use crate::record::{Place, Record};
use crate::types::Addr;

/// How a free block is cut for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Whether there is a rest.
    pub(super) splits: bool,
    /// What the request gets.
    pub(super) size_bytes: u64,
    whole_bytes: u64,
    /// Whether the whole was a piece of its segment.
    was_split: bool,
}

/// What is to be known of a block that was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) id: BlockId,
    pub(super) addr: Addr,
    segment: SegmentId,
    expandable: bool,
}

impl Taken {
    /// What is stated of the block.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn record(&self, want: &Want, cut: &Cut, oversize: bool) -> Record {
        let (addr, size_bytes) = (self.addr, cut.size_bytes);
        let place = Place { kind: want.kind, stream: want.stream, addr, size_bytes };
        Record::Alloc { place, requested_bytes: want.requested_bytes, oversize }
    }
}

impl Heap {
    /// Hands out the best free block to a request that found none before.
    pub(crate) fn take_again(&mut self, want: &Want) -> Option<Addr> {
        let want = self.begin_search(want);
        self.take_best(&want)
    }

    /// Hands out the best free block of the request's lane.
    pub(super) fn take_best(&mut self, want: &Want) -> Option<Addr> {
        let id = self.take_off_best(want)?;
        Some(self.hand_out(id, want))
    }

    /// Counts a search, and finds the request's lane.
    pub(super) fn begin_search(&mut self, want: &Want) -> Want {
        if self.collecting {
            self.pools.pool_mut(want.pool).searches += 1;
        }
        Want { lane: self.lane_of(want), ..*want }
    }

    /// Takes the block that a request gets out of the index, so that it merges with nobody until it
    /// is handed out.
    pub(super) fn take_off(&mut self, want: &Want) -> Option<BlockId> {
        let want = self.begin_search(want);
        let id = self.take_off_best(&want)?;
        self.space[id].state = State::Live;
        Some(id)
    }

    /// Takes the block that a request gets out of the index, if the split limit lets it have one.
    fn take_off_best(&mut self, want: &Want) -> Option<BlockId> {
        let spot = self.find_best(want)?;
        let (slots, _) = self.space.parts();
        self.pools.lane_mut(want.lane).filled()?.remove_at(slots, spot);
        Some(spot.id)
    }

    /// Whether a free block would do for a request.
    pub(super) fn fits(&mut self, want: &Want) -> bool {
        let lane = self.lane_of(want);
        self.find_best(&Want { lane, ..*want }).is_some()
    }

    /// The block that a request gets, if the split limit lets it have one.
    pub(super) fn find_best(&mut self, want: &Want) -> Option<Spot> {
        let (slots, _) = self.space.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        let smallest = free.find(slots, want.size_bytes, want.expandable)?;
        let (slots, free) = (self.space.slots(), self.pools.lane(want.lane).free()?);
        let spot = self.choose(slots, free, want, smallest);
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
                // Plain blocks lie among the pages of a request for pages, and the limit is for
                // them alone.
                let is_paged = self.placement.puts_into_pages(want);
                let (slots, _) = self.space.parts();
                let free = self.pools.lane_mut(want.lane).filled()?;
                return is_paged.then(|| free.find_expandable(slots, want.size_bytes)).flatten();
            }
        }
        Some(spot)
    }

    /// Makes a block that is in no index live, split to size where that is right.
    pub(super) fn hand_out(&mut self, id: BlockId, want: &Want) -> Addr {
        let addr = self.hand_out_unnoted(id, want);
        self.note_taken(want, id);
        addr
    }

    /// The same for a request whose place follows from no search, so that no other one should be
    /// led there.
    pub(super) fn hand_out_unnoted(&mut self, id: BlockId, want: &Want) -> Addr {
        let fineness = self.placement.fineness(&self.policy);
        let cut = cut_for(want, &self.space[id], fineness, self.split_limit_bytes);
        self.hand_out_cut(id, want, &cut)
    }

    /// Makes the front of a block live that is in no index and larger than the request, whatever
    /// the settings say of splitting. The rest goes into the index.
    pub(super) fn hand_out_front(&mut self, id: BlockId, want: &Want) {
        let cut = cut(want, &self.space[id], true);
        self.hand_out_cut(id, want, &cut);
    }

    fn hand_out_cut(&mut self, id: BlockId, want: &Want, cut: &Cut) -> Addr {
        if cut.splits {
            let rest = self.space.split(id, cut.size_bytes);
            self.order_front(id, rest);
            self.shelve(rest);
        }
        self.hand_out_whole(id, want, cut)
    }

    /// Makes a block live that is in no index and was cut to size, and states that it was handed
    /// out.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn hand_out_whole(&mut self, id: BlockId, want: &Want, cut: &Cut) -> Addr {
        let oversize = cut.size_bytes >= self.split_limit_bytes;
        let (slots, _) = self.space.parts();
        slots[id.place()].oversize = oversize;
        let taken = make_live(slots, id, want);
        self.note_cut(want, cut, &taken);
        self.record_of(id, taken.record(want, cut, oversize));
        taken.addr
    }

    /// Counts what a block that is handed out makes of pieces, and remembers where it starts.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn note_cut(&mut self, want: &Want, cut: &Cut, taken: &Taken) {
        let &Cut { size_bytes, whole_bytes, was_split, .. } = cut;
        let &Taken { id, addr, segment, expandable } = taken;
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
        self.space.note_start(segment, addr, size_bytes, id);
        self.space.hint(addr, id);
    }
}

/// Makes a block live that is in no index and was cut to size.
#[inline(always)]
#[allow(clippy::inline_always)]
pub(super) fn make_live(slots: &mut [Block], id: BlockId, want: &Want) -> Taken {
    let block = &mut slots[id.place()];
    block.requested_bytes = want.requested_bytes;
    block.state = State::Live;
    let (addr, segment, expandable) = (block.addr, block.segment, block.expandable);
    Taken { id, addr, segment, expandable }
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

/// How a block is cut on the fast path, where the smallest rest is looked up.
#[inline(always)]
#[allow(clippy::inline_always)]
pub(super) fn cut_at(want: &Want, block: &Block, rest_min_bytes: &[[u64; 2]; 2]) -> Cut {
    let rest_bytes = block.size_bytes - want.size_bytes;
    let min_bytes = rest_min_bytes[want.kind as usize][usize::from(block.expandable)];
    cut(want, block, rest_bytes >= min_bytes)
}

#[inline(always)]
#[allow(clippy::inline_always)]
pub(super) fn cut(want: &Want, block: &Block, splits: bool) -> Cut {
    let whole_bytes = block.size_bytes;
    // Which it is, is anybody's guess, so that there is no branch on it.
    let size_bytes = select_unpredictable(splits, want.size_bytes, whole_bytes);
    Cut { splits, size_bytes, whole_bytes, was_split: block.is_split() }
}
