//! Pools and lanes: where blocks are looked for.
//!
//! A pool holds the free blocks of requests of one kind. Blocks are never shared between streams,
//! so each pool has a lane per stream, and a lane is what a search runs in.

use std::collections::BTreeMap;

use crate::heap::block::BlockId;
use crate::heap::free_index::FreeIndex;
use crate::types::{Addr, PoolId, PoolKind, StreamId};

/// Names a lane. Lanes are never removed, so it stays good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(pub(crate) u32);

/// Names a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolIndex(pub(crate) u32);

impl PoolIndex {
    pub(crate) const SMALL: PoolIndex = PoolIndex(0);
    pub(crate) const LARGE: PoolIndex = PoolIndex(1);

    /// The default pool for requests of this kind.
    #[inline]
    pub(crate) fn default_for(kind: PoolKind) -> PoolIndex {
        match kind {
            PoolKind::Small => PoolIndex::SMALL,
            PoolKind::Large => PoolIndex::LARGE,
        }
    }
}

/// One pool on one stream.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) pool: PoolIndex,
    pub(crate) kind: PoolKind,
    pub(crate) stream: StreamId,
    /// The stream is gone: its blocks serve nobody, and go back when they are free.
    pub(crate) gone: bool,
    /// Free blocks, with memory behind them.
    pub(crate) free: FreeIndex,
    /// Unmapped blocks of expandable segments, by address: the lowest hole is refilled first.
    pub(crate) unmapped: BTreeMap<Addr, BlockId>,
}

impl Lane {
    /// Its stream, if that is still there.
    pub(crate) fn living_stream(&self) -> Option<StreamId> {
        (!self.gone).then_some(self.stream)
    }
}

/// One pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) kind: PoolKind,
    /// The private pool it is half of; none for the default pools.
    pub(crate) owner: Option<PoolId>,
    /// Its blocks are never split.
    pub(crate) no_split: bool,
    /// Its segments are never expandable.
    pub(crate) never_expands: bool,
    /// Its lanes in the order of their streams.
    lanes: Vec<(StreamId, LaneId)>,
    /// Its lanes whose streams are gone.
    retired: Vec<LaneId>,
    /// How often the pool was searched while garbage collection was on; the clock of ages.
    pub(crate) searches: u64,
}

/// All pools and their lanes.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    list: Vec<Pool>,
    lanes: Vec<Lane>,
    /// The lanes of the default pools that were looked up last: a program mostly stays on one
    /// stream.
    recent: [(StreamId, LaneId); 2],
    /// Pools that were removed.
    spare: Vec<PoolIndex>,
}

impl Pools {
    /// The two default pools.
    pub(crate) fn new() -> Pools {
        let recent = [(StreamId(0), LaneId(0)); 2];
        let mut pools = Pools { list: Vec::new(), lanes: Vec::new(), recent, spare: Vec::new() };
        for (at, kind) in [PoolKind::Small, PoolKind::Large].into_iter().enumerate() {
            let pool = pools.add(kind, None);
            pools.recent[at].1 = pools.lane_for(pool, StreamId(0));
        }
        pools
    }

    /// Adds a pool. The place of one that was removed is used again, with its lanes, all empty.
    pub(crate) fn add(&mut self, kind: PoolKind, owner: Option<PoolId>) -> PoolIndex {
        let spare = self.spare.iter().position(|&at| self.pool(at).kind == kind);
        if let Some(at) = spare.map(|at| self.spare.swap_remove(at)) {
            let pool = self.pool_mut(at);
            (pool.owner, pool.no_split, pool.searches) = (owner, false, 0);
            pool.never_expands = false;
            return at;
        }
        let (lanes, retired) = (Vec::new(), Vec::new());
        let (no_split, never_expands) = (false, false);
        self.list.push(Pool { kind, owner, no_split, never_expands, lanes, retired, searches: 0 });
        PoolIndex(u32::try_from(self.list.len() - 1).expect("few pools"))
    }

    /// Removes a pool that has no segment left.
    pub(crate) fn remove(&mut self, id: PoolIndex) {
        debug_assert!(
            self.lanes_of(id).all(|lane| lane.free.is_empty() && lane.unmapped.is_empty())
        );
        self.spare.push(id);
    }

    /// The lane of the default pool of this kind on a stream.
    #[inline]
    pub(crate) fn default_lane(&mut self, kind: PoolKind, stream: StreamId) -> LaneId {
        let (recent, lane) = self.recent[kind as usize];
        if recent == stream {
            return lane;
        }
        let lane = self.lane_for(PoolIndex::default_for(kind), stream);
        self.recent[kind as usize] = (stream, lane);
        lane
    }

    /// The lane of a pool on a stream, made on first use.
    #[inline(never)]
    pub(crate) fn lane_for(&mut self, pool_id: PoolIndex, stream: StreamId) -> LaneId {
        let pool = &mut self.list[pool_id.0 as usize];
        match pool.lanes.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(at) => pool.lanes[at].1,
            Err(at) => {
                let lane = LaneId(u32::try_from(self.lanes.len()).expect("few lanes"));
                pool.lanes.insert(at, (stream, lane));
                self.lanes.push(Lane {
                    pool: pool_id,
                    kind: pool.kind,
                    stream,
                    gone: false,
                    free: FreeIndex::new(),
                    unmapped: BTreeMap::new(),
                });
                lane
            }
        }
    }

    /// Retires the lanes of a stream: the next request on a stream of this name gets a new one. The
    /// default stream stays, whose lanes are looked up without asking whether they are there.
    pub(crate) fn retire(&mut self, stream: StreamId) {
        debug_assert_ne!(stream, StreamId(0));
        for pool in &mut self.list {
            if let Ok(at) = pool.lanes.binary_search_by_key(&stream, |&(stream, _)| stream) {
                let (_, lane) = pool.lanes.remove(at);
                self.lanes[lane.0 as usize].gone = true;
                pool.retired.push(lane);
            }
        }
        for kind in [PoolKind::Small, PoolKind::Large] {
            if self.recent[kind as usize].0 == stream {
                let lane = self.lane_for(PoolIndex::default_for(kind), StreamId(0));
                self.recent[kind as usize] = (StreamId(0), lane);
            }
        }
    }

    /// A pool's lanes whose streams are gone.
    pub(crate) fn retired_lanes_of(&self, id: PoolIndex) -> impl Iterator<Item = &Lane> + '_ {
        self.list[id.0 as usize].retired.iter().map(|&lane| self.lane(lane))
    }

    #[inline]
    pub(crate) fn lane(&self, id: LaneId) -> &Lane {
        &self.lanes[id.0 as usize]
    }

    #[inline]
    pub(crate) fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[id.0 as usize]
    }

    #[inline]
    pub(crate) fn pool(&self, id: PoolIndex) -> &Pool {
        &self.list[id.0 as usize]
    }

    #[inline]
    pub(crate) fn pool_mut(&mut self, id: PoolIndex) -> &mut Pool {
        &mut self.list[id.0 as usize]
    }

    /// A pool's lanes in the order of their streams, and behind them those whose streams are gone.
    pub(crate) fn lanes_of(&self, id: PoolIndex) -> impl Iterator<Item = &Lane> + '_ {
        let living = self.list[id.0 as usize].lanes.iter().map(|&(_, lane)| self.lane(lane));
        living.chain(self.retired_lanes_of(id))
    }

    /// All lanes.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (LaneId, &Lane)> + '_ {
        self.lanes.iter().enumerate().map(|(at, lane)| (LaneId(at as u32), lane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_made_once_and_walked_in_the_order_of_streams() {
        let mut pools = Pools::new();
        let late = pools.lane_for(PoolIndex::SMALL, StreamId(9));
        let early = pools.lane_for(PoolIndex::SMALL, StreamId(2));
        let large = pools.lane_for(PoolIndex::LARGE, StreamId(9));
        assert_eq!(pools.lane_for(PoolIndex::SMALL, StreamId(9)), late);
        assert!(late != early && late != large);
        let streams: Vec<_> = pools.lanes_of(PoolIndex::SMALL).map(|lane| lane.stream.0).collect();
        assert_eq!(streams, [0, 2, 9], "the first stream's lanes are there from the start");
        assert_eq!(pools.lanes().count(), 5);
    }

    #[test]
    fn a_stream_of_the_same_name_as_one_that_is_gone_gets_lanes_of_its_own() {
        let mut pools = Pools::new();
        let old = pools.default_lane(PoolKind::Small, StreamId(9));
        pools.retire(StreamId(9));
        let new = pools.default_lane(PoolKind::Small, StreamId(9));
        assert_ne!(old, new);
        assert_eq!(pools.lane(old).living_stream(), None);
        assert_eq!(pools.lane(new).living_stream(), Some(StreamId(9)));
        let streams: Vec<_> = pools.lanes_of(PoolIndex::SMALL).map(|lane| lane.stream.0).collect();
        assert_eq!(streams, [0, 9, 9], "both give back what they have");
    }
}
