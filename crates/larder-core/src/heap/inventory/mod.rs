//! The inventory: every block and what it is, in the lanes of the pools, with a record of each
//! change. It composes the space, the rules, the pools, the deferred frees and the record, and is
//! what both placements and the heap stand on; it calls none of them.

pub(crate) mod asleep;
mod check;
pub mod checkpoint;
mod cut;
mod exact;
pub(crate) mod growth;
mod index;
mod merging;
mod order;
mod pieces;
mod records;
pub(crate) mod release;
pub mod run;
pub mod states;
mod symmetric;
mod want;

pub(in crate::heap) use cut::{Fit, cut, cut_at, make_live};
pub(in crate::heap) use index::{Pieces, Whole};

use crate::heap::Want;
use crate::heap::deferred::Deferred;
use crate::heap::free::order::Drawn;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::pools::Pools;
use crate::heap::pools::lane::Lane;
use crate::heap::rules::Rules;
use crate::heap::space::Space;
use crate::record::{Place, Recorder};
use crate::types::{Addr, PoolId, Span, StreamId};

/// Every block and what it is.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    space: Space,
    rules: Rules,
    pools: Pools,
    deferred: Deferred,
    recorder: Recorder,
    drawn: Drawn,
}

/// What the inventory is made of, side by side, for whoever changes several parts at once.
pub(in crate::heap) struct Parts<'a> {
    pub(in crate::heap) space: &'a mut Space,
    pub(in crate::heap) pools: &'a mut Pools,
    pub(in crate::heap) deferred: &'a mut Deferred,
    pub(in crate::heap) recorder: &'a mut Recorder,
}

impl Inventory {
    /// Nothing, under these rules.
    pub(in crate::heap) fn new(rules: Rules) -> Inventory {
        Inventory {
            space: Space::new(rules.shares_segments()),
            pools: Pools::new(rules.policy()),
            deferred: Deferred::default(),
            recorder: Recorder::default(),
            drawn: Drawn::new(rules.policy().tie_break),
            rules,
        }
    }

    /// Blocks and segments.
    #[inline]
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    #[inline]
    pub(in crate::heap) fn space_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    /// Settings, policy and cap.
    #[inline]
    pub(in crate::heap) fn rules(&self) -> &Rules {
        &self.rules
    }

    #[inline]
    pub(in crate::heap) fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Pools and lanes.
    #[inline]
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    #[inline]
    pub(in crate::heap) fn pools_mut(&mut self) -> &mut Pools {
        &mut self.pools
    }

    /// Frees that are not merged yet.
    #[inline]
    pub(in crate::heap) fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    #[inline]
    pub(in crate::heap) fn deferred_mut(&mut self) -> &mut Deferred {
        &mut self.deferred
    }

    /// What is counted and remembered.
    #[inline]
    pub(in crate::heap) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    #[inline]
    pub(in crate::heap) fn recorder_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// Several of them side by side.
    #[inline]
    pub(in crate::heap) fn parts(&mut self) -> Parts<'_> {
        let Inventory { space, pools, deferred, recorder, .. } = self;
        Parts { space, pools, deferred, recorder }
    }

    /// Whether the block is uncounted as oversize when it is freed.
    #[inline]
    pub(in crate::heap) fn counts_as_oversize(&self, id: BlockId) -> bool {
        let block = &self.space[id];
        if self.rules.policy().oversize_is_remembered {
            block.oversize
        } else {
            block.size_bytes >= self.rules.split_limit_bytes()
        }
    }

    /// What records say of a block.
    #[inline]
    pub(in crate::heap) fn facts(&self, id: BlockId) -> (Place, u64) {
        let block = &self.space[id];
        let stream = self.pools.lane(block.lane).stream();
        let place =
            Place { kind: block.kind, stream, addr: block.addr, size_bytes: block.size_bytes };
        (place, block.requested_bytes)
    }

    /// The live block that starts at `addr`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn live(&self, addr: Addr) -> Option<BlockId> {
        self.space.live_noted(addr).or_else(|| self.live_in_cycle(addr))
    }

    /// The live block at an address that a cycle may have handed out and not noted.
    #[inline(never)]
    fn live_in_cycle(&self, addr: Addr) -> Option<BlockId> {
        let may_be = self.rules.shares_segments() && !self.deferred.is_empty();
        may_be.then(|| self.space.live_along(addr))?
    }

    /// Where a block starts.
    pub(crate) fn addr_of(&self, id: BlockId) -> Addr {
        self.space[id].addr
    }

    /// The size of a live block, which is at least what was asked for.
    pub(crate) fn size_of(&self, id: BlockId) -> u64 {
        self.space[id].size_bytes
    }

    /// The stream that a live block was handed out on.
    pub(crate) fn stream_of(&self, id: BlockId) -> StreamId {
        self.pools.lane(self.space[id].lane).stream()
    }

    /// The stream and the private pool of a lane.
    pub(in crate::heap) fn side_of(&self, lane: LaneId) -> (StreamId, PoolId) {
        let lane = self.pools.lane(lane);
        (lane.stream(), self.pools.pool(lane.pool()).owner().unwrap_or(PoolId::NONE))
    }

    /// The stream whose requests a segment serves.
    pub(crate) fn segment_stream(&self, id: SegmentId) -> StreamId {
        self.pools.lane(self.space[id].lane()).stream()
    }

    /// The addresses of a segment.
    pub(crate) fn segment_span(&self, id: SegmentId) -> Span {
        self.space[id].span()
    }

    /// The symmetric pool that a request goes to, if it goes to one.
    pub(crate) fn symmetric_for(&self, want: &Want) -> Option<PoolId> {
        self.pools.with_symmetry(self.pools.pool(want.pool).owner())
    }

    /// The symmetric pool that a block belongs to, if it does to one.
    pub(crate) fn symmetric_of(&self, id: BlockId) -> Option<PoolId> {
        self.pools.with_symmetry(self.owner_of(self.space[id].segment))
    }

    pub(in crate::heap) fn is_symmetric(&self, id: BlockId) -> bool {
        self.symmetric_of(id).is_some()
    }

    /// Removes the lanes that no segment names and that are leaving.
    pub(in crate::heap) fn remove_lanes(&mut self, is_leaving: impl Fn(&Lane) -> bool) {
        assert!(self.deferred.is_empty(), "lanes go while frees are deferred in them");
        self.pools.remove_lanes(&self.space.named_lanes(), is_leaving);
    }
}
