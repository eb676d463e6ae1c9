//! Placement: where a request is put, and what becomes of a block that is freed. There are two
//! kinds, and a heap has one of them from the day it is made. All that differs between them is
//! asked here, and nobody else asks which one it is.

use crate::error::Unsound;
use crate::heap::best_fit::BestFit;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::inventory::{Fit, Inventory};
use crate::heap::paged::{Paged, in_place};
use crate::heap::pools::Pools;
use crate::heap::ready::Ready;
use crate::heap::rules::{Layout, Rules};
use crate::heap::size::Fineness;
use crate::heap::{State, Want};
use crate::policy::Policy;
use crate::types::{Addr, Span, StreamId};

/// How requests are placed.
#[derive(Clone, Debug)]
#[repr(u8)] // It is asked for with each request: one byte says which it is.
pub(super) enum Placement {
    /// A request gets the smallest free block that will do, as in PyTorch; small and large ones
    /// apart.
    BestFit(BestFit),
    /// All sizes share their memory, in pages that can be shown at several addresses, and a request
    /// goes where it lay the last time.
    Paged(Paged),
}

impl Placement {
    /// The placement that a policy asks for.
    pub(super) fn of(policy: &Policy) -> Placement {
        if policy.tight {
            Placement::Paged(Paged::default())
        } else {
            Placement::BestFit(BestFit::default())
        }
    }

    /// How requests share memory under it.
    pub(super) fn layout(policy: &Policy) -> Layout {
        let (shares_segments, fineness) = match policy {
            Policy { tight: true, .. } => (true, Fineness::Everywhere),
            Policy { exact_segments: true, .. } => (false, Fineness::Everywhere),
            Policy { split_by_segment_kind: true, .. } => (false, Fineness::BySegment),
            _ => (false, Fineness::ByRequest),
        };
        Layout { shares_segments, fineness }
    }

    /// Works out what follows from the rules.
    pub(super) fn derive(&mut self, rules: &Rules) {
        match self {
            Placement::BestFit(best_fit) => best_fit.derive(rules),
            Placement::Paged(_) => {}
        }
    }

    /// What was freed and not merged yet, for a request of the fast path.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    pub(super) fn take_deferred(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Ready {
        match self {
            Placement::BestFit(best_fit) => {
                match best_fit.take_by_size(inventory, requested_bytes, stream) {
                    Some(addr) => Ready::Taken(addr),
                    None => Ready::Nothing,
                }
            }
            Placement::Paged(paged) => {
                match paged.next_of_cycle(inventory, requested_bytes, stream) {
                    Some(goal) => paged.take_goal(inventory, goal, requested_bytes, stream),
                    None => Ready::Nothing,
                }
            }
        }
    }

    /// The best free block for a request of the fast path.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn search(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        match self {
            Placement::BestFit(best_fit) => best_fit.search(inventory, requested_bytes, stream),
            Placement::Paged(paged) => paged.search(inventory, requested_bytes, stream),
        }
    }

    /// Defers the merging of a block that the fast path takes back. False, and nothing is done, if
    /// it is to be merged now.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn defer(&self, inventory: &mut Inventory, id: BlockId) -> bool {
        match self {
            Placement::BestFit(best_fit) => best_fit.defer(inventory, id),
            Placement::Paged(_) => in_place::defer(inventory, id),
        }
    }

    /// Hands out a free block to a request of the slow way, or none if no free block will do.
    pub(super) fn take(&mut self, inventory: &mut Inventory, want: &Want) -> Option<Addr> {
        match self {
            Placement::BestFit(_) => {
                let fit = self.fit(want);
                inventory.take_best(want, fit).map(|(_, addr)| addr)
            }
            Placement::Paged(paged) => paged.take(inventory, want),
        }
    }

    /// Which of the free blocks that are large enough a request gets.
    pub(super) fn fit(&self, want: &Want) -> Fit {
        match self {
            Placement::BestFit(_) => Fit::Smallest,
            Placement::Paged(paged) => paged.fit(want),
        }
    }

    /// Whether a pool that lends may lend a block that can grow.
    pub(super) fn lends_growing(&self) -> bool {
        match self {
            Placement::BestFit(_) => false,
            Placement::Paged(_) => true,
        }
    }

    /// A request was put into a block.
    #[inline]
    pub(super) fn note_taken(&mut self, inventory: &Inventory, want: &Want, id: BlockId) {
        debug_assert!(inventory.space()[id].state == State::Live, "{id:?} was handed out");
        match self {
            Placement::BestFit(_) => {}
            Placement::Paged(paged) => paged.note_taken(inventory, want, id),
        }
    }

    /// A request was served by a pool that lends.
    pub(super) fn note_lent(&mut self, inventory: &mut Inventory, want: &Want) {
        match self {
            Placement::BestFit(_) => {}
            Placement::Paged(paged) => paged.forget_place(inventory, want),
        }
    }

    /// A block that is live or waiting becomes free.
    pub(super) fn reclaim(&mut self, inventory: &mut Inventory, id: BlockId) {
        match self {
            Placement::Paged(paged) if inventory.space().is_in_view(id) => {
                paged.vacate(inventory, id);
            }
            Placement::BestFit(_) | Placement::Paged(_) => inventory.reclaim(id),
        }
        debug_assert!(inventory.space()[id].state != State::Live, "{id:?} is free now");
    }

    /// So many pages were made.
    pub(super) fn note_grown(&mut self, pages: u64, bytes: u64) {
        match self {
            Placement::BestFit(_) => {}
            Placement::Paged(paged) => paged.note_grown(pages, bytes),
        }
    }

    /// A phase of the program begins; the last one used so much, and this one begins with so much.
    pub(super) fn begin_phase(&mut self, last_high_bytes: u64, active_bytes: u64) {
        match self {
            Placement::BestFit(_) => {}
            Placement::Paged(paged) => paged.begin_phase(last_high_bytes, active_bytes),
        }
    }

    /// Whether a page is shown at another address than its own.
    pub(super) fn is_shown(&self, segment: SegmentId, index: usize) -> bool {
        match self {
            Placement::BestFit(_) => false,
            Placement::Paged(paged) => paged.is_shown(segment, index),
        }
    }

    /// The views of these lanes.
    pub(super) fn views_of(
        &self,
        inventory: &Inventory,
        is_theirs: impl Fn(LaneId) -> bool,
    ) -> Vec<SegmentId> {
        match self {
            Placement::BestFit(_) => Vec::new(),
            Placement::Paged(paged) => paged.views_of(inventory, is_theirs),
        }
    }

    /// Every place at which a page is shown a second time.
    pub(super) fn shown_pages(&self, inventory: &Inventory) -> Vec<Span> {
        match self {
            Placement::BestFit(_) => Vec::new(),
            Placement::Paged(paged) => paged.shown_pages(inventory),
        }
    }

    /// Forgets what was kept for lanes that are not there any more.
    pub(super) fn forget_lanes(&mut self, pools: &Pools) {
        match self {
            Placement::BestFit(_) => {}
            Placement::Paged(paged) => paged.forget_ways(|lane| pools.has_lane(lane)),
        }
    }

    /// How much of the host's memory is kept to know the lanes' ways again.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Placement::BestFit(_) => 0,
            Placement::Paged(paged) => paged.way_bytes(),
        }
    }

    /// The pages and views, where requests are put into pages.
    #[inline]
    pub(super) fn paged(&self) -> Option<&Paged> {
        match self {
            Placement::BestFit(_) => None,
            Placement::Paged(paged) => Some(paged),
        }
    }

    #[inline]
    pub(super) fn paged_mut(&mut self) -> Option<&mut Paged> {
        match self {
            Placement::BestFit(_) => None,
            Placement::Paged(paged) => Some(paged),
        }
    }

    /// What a placement knows beside the blocks agrees with them.
    pub(super) fn check(&self, inventory: &Inventory) -> Result<(), Unsound> {
        match self {
            Placement::BestFit(_) => BestFit::check(inventory),
            Placement::Paged(paged) => paged.check(inventory),
        }
    }
}
