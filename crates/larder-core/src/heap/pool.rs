//! Pools and lanes: where blocks are looked for.
//!
//! A pool holds the free blocks of requests of one kind. Blocks are never shared between streams,
//! so each pool has a lane per stream, and a lane is what a search runs in.

use std::collections::BTreeMap;

use crate::heap::block::BlockId;
use crate::heap::free_index::FreeIndex;
use crate::types::{Addr, PoolKind, StreamId};

/// Names a lane. Lanes are never removed, so it stays good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(pub(crate) u32);

/// Names a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolId(pub(crate) u32);

impl PoolId {
    pub(crate) const SMALL: PoolId = PoolId(0);
    pub(crate) const LARGE: PoolId = PoolId(1);

    /// The default pool for requests of this kind.
    #[inline]
    pub(crate) fn default_for(kind: PoolKind) -> PoolId {
        match kind {
            PoolKind::Small => PoolId::SMALL,
            PoolKind::Large => PoolId::LARGE,
        }
    }
}

/// One pool on one stream.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) pool: PoolId,
    pub(crate) kind: PoolKind,
    pub(crate) stream: StreamId,
    /// Free blocks, with memory behind them.
    pub(crate) free: FreeIndex,
    /// Unmapped blocks of expandable segments, by address: the lowest hole is refilled first.
    pub(crate) unmapped: BTreeMap<Addr, BlockId>,
}

/// One pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) kind: PoolKind,
    /// Its lanes in the order of their streams.
    lanes: Vec<(StreamId, LaneId)>,
    /// The lane looked up last: a program mostly stays on one stream.
    recent: Option<(StreamId, LaneId)>,
    /// How often the pool was searched while garbage collection was on; the clock of ages.
    pub(crate) searches: u64,
}

/// All pools and their lanes.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    pools: Vec<Pool>,
    lanes: Vec<Lane>,
}

impl Pools {
    /// The two default pools.
    pub(crate) fn new() -> Pools {
        let pool = |kind| Pool { kind, lanes: Vec::new(), recent: None, searches: 0 };
        Pools { pools: vec![pool(PoolKind::Small), pool(PoolKind::Large)], lanes: Vec::new() }
    }

    /// The lane of a pool on a stream, made on first use.
    #[inline]
    pub(crate) fn lane_for(&mut self, pool: PoolId, stream: StreamId) -> LaneId {
        match self.pools[pool.0 as usize].recent {
            Some((recent, lane)) if recent == stream => lane,
            _ => self.look_up_lane(pool, stream),
        }
    }

    fn look_up_lane(&mut self, pool_id: PoolId, stream: StreamId) -> LaneId {
        let pool = &mut self.pools[pool_id.0 as usize];
        let lane = match pool.lanes.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(at) => pool.lanes[at].1,
            Err(at) => {
                let lane = LaneId(u32::try_from(self.lanes.len()).expect("few lanes"));
                pool.lanes.insert(at, (stream, lane));
                self.lanes.push(Lane {
                    pool: pool_id,
                    kind: pool.kind,
                    stream,
                    free: FreeIndex::new(),
                    unmapped: BTreeMap::new(),
                });
                lane
            }
        };
        pool.recent = Some((stream, lane));
        lane
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
    pub(crate) fn pool(&self, id: PoolId) -> &Pool {
        &self.pools[id.0 as usize]
    }

    #[inline]
    pub(crate) fn pool_mut(&mut self, id: PoolId) -> &mut Pool {
        &mut self.pools[id.0 as usize]
    }

    /// A pool's lanes in the order of their streams.
    pub(crate) fn lanes_of(&self, id: PoolId) -> impl Iterator<Item = &Lane> + '_ {
        self.pools[id.0 as usize].lanes.iter().map(|&(_, lane)| self.lane(lane))
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
        let late = pools.lane_for(PoolId::SMALL, StreamId(9));
        let early = pools.lane_for(PoolId::SMALL, StreamId(2));
        let large = pools.lane_for(PoolId::LARGE, StreamId(9));
        assert_eq!(pools.lane_for(PoolId::SMALL, StreamId(9)), late);
        assert!(late != early && late != large);
        let streams: Vec<_> = pools.lanes_of(PoolId::SMALL).map(|lane| lane.stream.0).collect();
        assert_eq!(streams, [2, 9]);
        assert_eq!(pools.lanes().count(), 3);
    }
}
