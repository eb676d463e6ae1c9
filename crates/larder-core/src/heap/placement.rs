//! Placement: where a request is put, and what becomes of a block that is freed. There are two
//! kinds, and a heap has one of them from the day it is made. All that differs between them is
//! asked here, and nobody else asks which one it is.

use crate::heap::free::free_index::{FreeIndex, Spot};
use crate::heap::growth::Growth;
use crate::heap::ids::BlockId;
use crate::heap::size::{self, Fineness, SMALL_MAX_BYTES};
use crate::heap::space::block::Block;
use crate::heap::{Heap, Want};
use crate::policy::Policy;
use crate::types::{Addr, PoolKind, StreamId};

/// How requests are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// A request gets the smallest free block that will do, as in PyTorch; small and large ones
    /// apart.
    BestFit,
    /// All sizes share their memory, in pages that can be shown at several addresses, and a request
    /// goes where it lay the last time.
    Paged,
}

/// What a placement has at once for a request of the fast path.
pub(super) enum Ready {
    /// The request has its block.
    Taken(Addr),
    /// There is none, and the index is not to be asked either.
    Declined,
    /// Nothing: the index is next.
    Nothing,
}

impl Placement {
    /// The placement that a policy asks for.
    pub(super) fn of(policy: &Policy) -> Placement {
        if policy.tight { Placement::Paged } else { Placement::BestFit }
    }

    /// The kind of pool for a rounded size.
    #[inline]
    pub(super) fn kind(self, rounded_bytes: u64) -> PoolKind {
        match self {
            Placement::BestFit => size::kind(rounded_bytes),
            Placement::Paged => PoolKind::Large,
        }
    }

    /// Where every remainder is worth keeping.
    #[inline]
    pub(super) fn fineness(self, policy: &Policy) -> Fineness {
        match self {
            Placement::Paged => Fineness::Everywhere,
            Placement::BestFit if policy.split_by_segment_kind => Fineness::BySegment,
            Placement::BestFit => Fineness::ByRequest,
        }
    }

    /// Whether blocks of all sizes, and of all lanes of a pool, lie in one segment.
    pub(super) fn shares_segments(self) -> bool {
        match self {
            Placement::BestFit => false,
            Placement::Paged => true,
        }
    }

    /// Whether a request is put into pages, which it is unless its memory has to be plain.
    #[inline]
    pub(super) fn puts_into_pages(self, want: &Want) -> bool {
        match self {
            Placement::BestFit => false,
            Placement::Paged => want.expandable,
        }
    }

    /// What is asked of the device for a request that no free block can serve.
    pub(super) fn growth(self, want: &Want, segment_bytes: u64) -> Growth {
        match self {
            _ if !want.expandable => Growth::Segment { size_bytes: segment_bytes },
            Placement::BestFit => Growth::Expand,
            Placement::Paged => Growth::Tighten,
        }
    }

    /// Whether a pool that lends may lend a block that can grow.
    pub(super) fn lends_growing(self) -> bool {
        match self {
            Placement::BestFit => false,
            Placement::Paged => true,
        }
    }

    /// Whether a setting could make more of what is free in pieces. Pages have used them all.
    pub(super) fn leaves_pieces(self) -> bool {
        match self {
            Placement::BestFit => true,
            Placement::Paged => false,
        }
    }

    /// Blocks of at most so many bytes wait for the next request of their size, where the policy
    /// wants it.
    pub(super) fn kept_by_size_bytes(self, policy: &Policy) -> u64 {
        match self {
            Placement::BestFit if policy.merges_late => SMALL_MAX_BYTES,
            Placement::BestFit | Placement::Paged => 0,
        }
    }
}

impl Heap {
    /// Whether what is free in pieces, and whosoever it is, can be put together.
    pub(crate) fn joins_pieces(&self) -> bool {
        !self.placement.leaves_pieces()
    }

    /// What was freed and not merged yet, for a request of the fast path.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    pub(super) fn take_deferred(&mut self, requested_bytes: u64, stream: StreamId) -> Ready {
        match self.placement {
            Placement::BestFit => match self.take_by_size(requested_bytes, stream) {
                Some(addr) => Ready::Taken(addr),
                None => Ready::Nothing,
            },
            Placement::Paged => match self.next_of_cycle(requested_bytes, stream) {
                Some(goal) => self.take_goal(goal, requested_bytes, stream),
                None => Ready::Nothing,
            },
        }
    }

    /// The best free block for a request of the fast path.
    #[inline(never)]
    pub(super) fn search(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        match self.placement {
            Placement::BestFit => self.search_best_fit(requested_bytes, stream),
            Placement::Paged => self.search_paged(requested_bytes, stream),
        }
    }

    /// Defers the merging of a block that the fast path takes back. False, and nothing is done, if
    /// it is to be merged now.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn defer(&mut self, id: BlockId) -> bool {
        match self.placement {
            Placement::BestFit => self.defer_by_size(id),
            Placement::Paged => self.defer_in_place(id),
        }
    }

    /// Hands out a free block, or none if no free block will do. A request is taken once; who tries
    /// again later for the same request says so by `take_again`.
    pub(crate) fn take(&mut self, want: &Want) -> Option<Addr> {
        let want = self.begin_search(want);
        match self.placement {
            Placement::BestFit => self.take_best(&want),
            Placement::Paged => self.take_paged(&want),
        }
    }

    /// Of the free blocks that are large enough, from the smallest one on, the one that a request
    /// gets.
    pub(super) fn choose(
        &self,
        slots: &[Block],
        free: &FreeIndex,
        want: &Want,
        smallest: Spot,
    ) -> Spot {
        match self.placement {
            Placement::BestFit => smallest,
            Placement::Paged => self.least_stranding_for(slots, free, want, smallest),
        }
    }

    /// Where blocks are handed out by address, a free one is found by where it starts.
    #[inline]
    pub(super) fn note_free(&mut self, id: BlockId) {
        match self.placement {
            Placement::BestFit => {}
            Placement::Paged => self.space.note_begin(id),
        }
    }

    /// A request was put into a block.
    #[inline]
    pub(super) fn note_taken(&mut self, want: &Want, id: BlockId) {
        if self.placement.puts_into_pages(want) {
            self.note_entry(want, id);
        }
    }

    /// A request was served by a pool that lends.
    pub(super) fn note_lent(&mut self, want: &Want) {
        match self.placement {
            Placement::BestFit => {}
            Placement::Paged => self.forget_place(want),
        }
    }
}
