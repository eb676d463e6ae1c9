//! Pools of what sleeps: each pool that has memory asleep has a second pool of its owner, in whose
//! lanes the blocks of that memory are meanwhile. No request is routed there, so that nobody gets
//! what has no memory behind it; and what is freed there merges as anywhere.

use crate::heap::ids::{LaneId, PoolIndex};
use crate::heap::pools::Pools;

impl Pools {
    /// The pool in which memory of this one sleeps, if any does.
    pub(in crate::heap) fn asleep_of(&self, pool: PoolIndex) -> Option<PoolIndex> {
        self.asleep.iter().find(|&&(awake, _)| awake == pool).map(|&(_, asleep)| asleep)
    }

    /// The pool whose memory sleeps in this one, if it is one for that.
    pub(in crate::heap) fn awake_of(&self, pool: PoolIndex) -> Option<PoolIndex> {
        self.asleep.iter().find(|&&(_, asleep)| asleep == pool).map(|&(awake, _)| awake)
    }

    /// Whether the lane is one of memory that sleeps.
    pub(in crate::heap) fn is_lane_asleep(&self, lane: LaneId) -> bool {
        !self.asleep.is_empty() && self.awake_of(self.lane(lane).pool()).is_some()
    }

    /// The lane for what sleeps of this one, made on first use.
    pub(in crate::heap) fn lane_asleep(&mut self, lane: LaneId) -> LaneId {
        let pool = self.lane(lane).pool();
        let asleep = self.asleep_of(pool).unwrap_or_else(|| {
            let (kind, owner) = (self.pool(pool).kind(), self.pool(pool).owner());
            let asleep = self.add(kind, owner);
            self.asleep.push((pool, asleep));
            asleep
        });
        self.lane_like(asleep, lane)
    }

    /// The lane in which what sleeps in this one is awake.
    pub(in crate::heap) fn lane_awake(&mut self, lane: LaneId) -> LaneId {
        let pool = self.awake_of(self.lane(lane).pool()).expect("what sleeps was awake");
        self.lane_like(pool, lane)
    }

    /// The lane of a pool on the stream of another lane, be that still there or gone.
    fn lane_like(&mut self, pool: PoolIndex, lane: LaneId) -> LaneId {
        let (stream, gone) = (self.lane(lane).stream(), self.lane(lane).is_gone());
        if gone { self.retired_lane_for(pool, stream) } else { self.lane_for(pool, stream) }
    }

    /// Nothing sleeps in this pool's second one any more.
    pub(in crate::heap) fn forget_asleep(&mut self, pool: PoolIndex) {
        let Some(at) = self.asleep.iter().position(|&(awake, _)| awake == pool) else { return };
        let (_, asleep) = self.asleep.swap_remove(at);
        self.remove(asleep);
    }
}
