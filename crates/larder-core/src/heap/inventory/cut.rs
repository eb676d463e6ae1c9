//! Cut: a free block becomes the block of a request: taken out of the index, cut to size, made
//! live.

use std::hint::select_unpredictable;

use crate::heap::free::fit::least_stranding;
use crate::heap::free::free_index::Spot;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::size::Fineness;
use crate::heap::space::block::{Block, State};
use crate::heap::{Want, size};
use crate::record::{Place, Record};
use crate::types::Addr;

/// How a free block is cut for a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct Cut {
    /// Whether there is a rest.
    pub(in crate::heap) splits: bool,
    /// What the request gets.
    pub(in crate::heap) size_bytes: u64,
    whole_bytes: u64,
    /// Whether the whole was a piece of its segment.
    was_split: bool,
}

/// Which of the free blocks that are large enough a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::heap) enum Fit {
    /// The smallest.
    Smallest,
    /// Of some from the smallest on, the one in which it strands the least.
    LeastStranding,
}

/// What is to be known of a block that was handed out.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct Taken {
    pub(in crate::heap) id: BlockId,
    pub(in crate::heap) addr: Addr,
    segment: SegmentId,
    expandable: bool,
}

impl Taken {
    /// What is stated of the block.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn record(&self, want: &Want, cut: &Cut, oversize: bool) -> Record {
        let (addr, size_bytes) = (self.addr, cut.size_bytes);
        let place = Place { kind: want.kind, stream: want.stream, addr, size_bytes };
        Record::Alloc { place, requested_bytes: want.requested_bytes, oversize }
    }
}

impl Inventory {
    /// Hands out the best free block of the request's lane.
    pub(in crate::heap) fn take_best(&mut self, want: &Want, fit: Fit) -> Option<(BlockId, Addr)> {
        debug_assert!(self.pools.is_lane_of(want.lane, want.pool, want.stream), "a lane is gone");
        let id = self.take_off_best(want, fit)?;
        Some((id, self.hand_out(id, want)))
    }

    /// Counts a search, and finds the request's lane.
    pub(in crate::heap) fn begin_search(&mut self, want: &Want) -> Want {
        if self.rules.is_collecting() {
            self.pools.pool_mut(want.pool).count_search();
        }
        Want { lane: self.lane_of(want), ..*want }
    }

    /// Takes the block that a request gets out of the index, so that it merges with nobody until it
    /// is handed out.
    pub(in crate::heap) fn take_off(&mut self, want: &Want, fit: Fit) -> Option<BlockId> {
        let want = self.begin_search(want);
        let id = self.take_off_best(&want, fit)?;
        self.space[id].state = State::Live;
        Some(id)
    }

    /// Takes the block that a request gets out of the index, if the split limit lets it have one.
    fn take_off_best(&mut self, want: &Want, fit: Fit) -> Option<BlockId> {
        let spot = self.find_best(want, fit)?;
        let (slots, _) = self.space.parts();
        self.pools.lane_mut(want.lane).filled()?.remove_at(slots, spot);
        Some(spot.id)
    }

    /// Whether a free block would do for a request.
    pub(in crate::heap) fn fits(&mut self, want: &Want, fit: Fit) -> bool {
        let lane = self.lane_of(want);
        self.find_best(&Want { lane, ..*want }, fit).is_some()
    }

    /// The block that a request gets, if the split limit lets it have one.
    fn find_best(&mut self, want: &Want, fit: Fit) -> Option<Spot> {
        let (slots, _) = self.space.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        let smallest = free.find(slots, want.size_bytes, want.expandable)?;
        let (slots, free) = (self.space.slots(), self.pools.lane(want.lane).free()?);
        let spot = match fit {
            Fit::Smallest => smallest,
            Fit::LeastStranding => {
                let segments = self.space.segments();
                least_stranding(slots, segments, free, want.size_bytes, smallest)
            }
        };
        let whole = &slots[spot.id.place()];
        let limit_bytes = self.rules.split_limit_bytes();
        if limit_bytes != u64::MAX {
            let spared = self.rules.policy().split_limit_spares_expandable && whole.expandable;
            let slack_bytes = self.rules.config().max_non_split_rounding_bytes;
            // PyTorch's sum wraps round where the setting is as large as can be.
            let most_bytes = match self.rules.policy().torch {
                Some(_) => want.size_bytes.wrapping_add(slack_bytes),
                None => want.size_bytes.saturating_add(slack_bytes),
            };
            if !spared && !split_limit_allows(want, whole, limit_bytes, most_bytes) {
                // Plain blocks lie among the pages of a request for pages, and the limit is for
                // them alone.
                let is_paged = self.rules.puts_into_pages(want);
                let (slots, _) = self.space.parts();
                let free = self.pools.lane_mut(want.lane).filled()?;
                return is_paged.then(|| free.find_expandable(slots, want.size_bytes)).flatten();
            }
        }
        Some(spot)
    }

    /// Makes a block that is in no index live, split to size where that is right.
    pub(in crate::heap) fn hand_out(&mut self, id: BlockId, want: &Want) -> Addr {
        debug_assert!(self.space[id].size_bytes >= want.size_bytes, "{id:?} is too small");
        let fineness = self.rules.fineness();
        let cut = cut_for(want, &self.space[id], fineness, self.rules.split_limit_bytes());
        self.hand_out_cut(id, want, &cut)
    }

    /// Makes the front of a block live that is in no index and larger than the request, whatever
    /// the settings say of splitting. The rest goes into the index.
    pub(in crate::heap) fn hand_out_front(&mut self, id: BlockId, want: &Want) {
        assert!(self.space[id].size_bytes > want.size_bytes, "{id:?} has no more than that");
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
    pub(in crate::heap) fn hand_out_whole(&mut self, id: BlockId, want: &Want, cut: &Cut) -> Addr {
        let oversize = cut.size_bytes >= self.rules.split_limit_bytes();
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
    pub(in crate::heap) fn note_cut(&mut self, want: &Want, cut: &Cut, taken: &Taken) {
        let &Cut { size_bytes, whole_bytes, was_split, .. } = cut;
        let &Taken { id, addr, segment, expandable } = taken;
        let kind = want.kind;
        // Pieces of expandable segments are not counted.
        if was_split && !expandable {
            // What is taken off a piece makes for less, and never for more.
            let blocks = u64::from(size_bytes == whole_bytes);
            self.recorder.record(Record::FewerPieces { kind, blocks, bytes: size_bytes });
        } else if !expandable {
            let (blocks, bytes) = size::pieces_of_taking(false, whole_bytes, size_bytes);
            self.recorder.record(Record::InactiveSplit { kind, blocks, bytes });
        }
        self.space.note_start(segment, addr, size_bytes, id);
        self.space.hint(addr, id);
    }
}

/// Makes a block live that is in no index and was cut to size.
#[inline(always)]
#[allow(clippy::inline_always)]
pub(in crate::heap) fn make_live(slots: &mut [Block], id: BlockId, want: &Want) -> Taken {
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
pub(in crate::heap) fn cut_at(want: &Want, block: &Block, rest_min_bytes: &[[u64; 2]; 2]) -> Cut {
    let rest_bytes = block.size_bytes - want.size_bytes;
    let min_bytes = rest_min_bytes[want.kind as usize][usize::from(block.expandable)];
    cut(want, block, rest_bytes >= min_bytes)
}

#[inline(always)]
#[allow(clippy::inline_always)]
pub(in crate::heap) fn cut(want: &Want, block: &Block, splits: bool) -> Cut {
    let whole_bytes = block.size_bytes;
    // Which it is, is anybody's guess, so that there is no branch on it.
    let size_bytes = select_unpredictable(splits, want.size_bytes, whole_bytes);
    Cut { splits, size_bytes, whole_bytes, was_split: block.is_split() }
}
