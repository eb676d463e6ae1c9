//! Absorbing: a stream that waits for another makes its own what that one has free beside its own.
//!
//! Streams that take memory from each other come to lie in between each other. Free blocks of two
//! lanes are not merged, because whoever takes the other's has to wait first: so what is free is in
//! more and smaller pieces than if it were one lane's, and requests need views for which there
//! would be room in one piece. A stream that was made to wait may have all that the other one has
//! free by then, and takes as much of it as makes larger pieces of its own. What lies apart stays
//! with the other, who would have to wait for it in turn.

use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Paged;
use crate::heap::paged::ground::wait_for;
use crate::heap::space::block::State;
use crate::types::StreamId;

impl Paged {
    /// Absorbs for a request that was told its place; false, and nothing is done, where the
    /// program repeats itself: others are told theirs as well, and blocks had better stay whose
    /// they are.
    pub(crate) fn absorb_outside_cycle(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        streams: &[StreamId],
    ) -> bool {
        let lane = inventory.lane_of(want);
        let repeats = self.way(lane).log.repeats();
        if !repeats {
            absorb(inventory, want, streams);
        }
        !repeats
    }
}

/// The free blocks of another lane that lie right beside free ones of this lane. Either lane
/// could tell them all: so both are asked by turns, until one has no more.
fn blocks_beside(inventory: &Inventory, lane: LaneId, other: LaneId) -> Vec<BlockId> {
    let is_free = |id: BlockId, lane: LaneId| {
        let block = &inventory.space()[id];
        block.state == State::Free && block.lane == lane && block.expandable
    };
    let neighbours = |id: BlockId| {
        let block = &inventory.space()[id];
        [block.prev, block.next].into_iter().flatten()
    };
    let free_blocks =
        |lane| inventory.pools().lane(lane).free_blocks_from(inventory.space().blocks(), 0);
    let (mut own, others) = (free_blocks(lane), free_blocks(other));
    let (mut told_by_own, mut told_by_others) = (Vec::new(), Vec::new());
    for theirs in others {
        if is_free(theirs, other) && neighbours(theirs).any(|id| is_free(id, lane)) {
            told_by_others.push(theirs);
        }
        let Some(ours) = own.next() else {
            // It may lie between two of them.
            told_by_own.sort_unstable();
            told_by_own.dedup();
            return told_by_own;
        };
        told_by_own.extend(neighbours(ours).filter(|&id| is_free(id, other)));
    }
    told_by_others
}

/// The request's stream waits for what these have been given to do so far: what they have free
/// beside what its own has free becomes its own. What is deferred is merged first, so that what
/// was found before may be gone.
pub(crate) fn absorb(inventory: &mut Inventory, want: &Want, streams: &[StreamId]) {
    inventory.coalesce();
    let lane = inventory.lane_of(want);
    for &stream in streams {
        let Some(other) = inventory.pools().lane_at(want.pool, stream) else { continue };
        debug_assert!(wait_for(inventory, lane, other).is_none(), "{other:?} was not waited for");
        for id in blocks_beside(inventory, lane, other) {
            inventory.hand_over(id, lane);
        }
    }
}
