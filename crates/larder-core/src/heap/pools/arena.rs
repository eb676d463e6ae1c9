//! The arena of pools and lanes: made on first use, found by stream, and removed once nobody names
//! them.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Unsound;
use crate::heap::free::free_index::FreeIndex;
use crate::heap::free::size_stacks::SizeStacks;
use crate::heap::ids::{LaneId, PoolIndex};
use crate::heap::pools::Pools;
use crate::heap::pools::lane::Lane;
use crate::heap::pools::pool::{Pool, PoolRole};
use crate::heap::pools::private::Privates;
use crate::policy::Policy;
use crate::types::{PoolId, PoolKind, StreamId};

/// The default pools' lanes on the first stream, which are there from the start.
const FIRST_LANES: [LaneId; 2] = [LaneId(0), LaneId(1)];

impl Pools {
    /// The two default pools.
    pub(crate) fn new(policy: &Policy) -> Pools {
        let recent = [(StreamId(0), LaneId(0)); 2];
        let (list, lanes, spare_lanes) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut pools = Pools {
            list,
            lanes,
            spare_lanes,
            recent,
            spare: Vec::new(),
            privates: Privates::default(),
            asleep: Vec::new(),
            no_split_goes_with_pool: policy.no_split_goes_with_pool,
            released_pools_go: policy.released_pools_go,
        };
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
            (pool.owner, pool.role, pool.searches) = (owner, PoolRole::Usual, 0);
            (pool.no_split, pool.had_many_lanes) = (false, false);
            return at;
        }
        let (lanes, retired, had_many_lanes) = (Vec::new(), Vec::new(), false);
        self.list.push(Pool {
            kind,
            owner,
            no_split: false,
            role: PoolRole::Usual,
            lanes,
            retired,
            had_many_lanes,
            searches: 0,
        });
        PoolIndex(u32::try_from(self.list.len() - 1).expect("few pools"))
    }

    /// Removes a pool that has no segment left.
    pub(crate) fn remove(&mut self, id: PoolIndex) {
        debug_assert!(self.lanes_of(id).all(Lane::has_no_block));
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

    /// The lane of the default pool of this kind on a stream, if it was looked up last.
    #[inline]
    pub(crate) fn recent_lane(&self, kind: PoolKind, stream: StreamId) -> Option<LaneId> {
        let (recent, lane) = self.recent[kind as usize];
        (recent == stream).then_some(lane)
    }

    /// The lane of a pool on a stream, made on first use.
    #[inline(never)]
    pub(crate) fn lane_for(&mut self, pool_id: PoolIndex, stream: StreamId) -> LaneId {
        let pool = &self.list[pool_id.0 as usize];
        match pool.lanes.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(at) => pool.lanes[at].1,
            Err(at) => {
                let id = self.add_lane(pool_id, stream, false);
                let pool = &mut self.list[pool_id.0 as usize];
                pool.lanes.insert(at, (stream, id));
                pool.had_many_lanes |= pool.lanes.len() + pool.retired.len() > 1;
                id
            }
        }
    }

    /// A lane of a pool on a stream of this name that is gone, made on first use.
    pub(super) fn retired_lane_for(&mut self, pool_id: PoolIndex, stream: StreamId) -> LaneId {
        let known = self.retired_lanes_of(pool_id).position(|lane| lane.stream == stream);
        if let Some(at) = known {
            return self.list[pool_id.0 as usize].retired[at];
        }
        let id = self.add_lane(pool_id, stream, true);
        let pool = &mut self.list[pool_id.0 as usize];
        pool.retired.push(id);
        pool.had_many_lanes |= pool.lanes.len() + pool.retired.len() > 1;
        id
    }

    /// Adds a lane that no pool lists yet.
    fn add_lane(&mut self, pool: PoolIndex, stream: StreamId, gone: bool) -> LaneId {
        let (free, by_size, unmapped) = (None, None, BTreeMap::new());
        let (kind, frees, followed) = (self.pool(pool).kind, 0, Vec::new());
        let lane = Lane { pool, kind, stream, gone, free, by_size, unmapped, frees, followed };
        if let Some(id) = self.spare_lanes.pop_first() {
            self.lanes[id.0 as usize] = lane;
            id
        } else {
            self.lanes.push(lane);
            LaneId(u32::try_from(self.lanes.len() - 1).expect("few lanes"))
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
        self.recent = FIRST_LANES.map(|lane| (StreamId(0), lane));
    }

    /// A pool's lanes whose streams are gone.
    pub(crate) fn retired_lanes_of(&self, id: PoolIndex) -> impl Iterator<Item = &Lane> + '_ {
        self.list[id.0 as usize].retired.iter().map(|&lane| self.lane(lane))
    }

    /// The lane of a pool on a stream, if there is one.
    pub(crate) fn lane_at(&self, pool: PoolIndex, stream: StreamId) -> Option<LaneId> {
        let lanes = &self.list.get(pool.0 as usize)?.lanes;
        let at = lanes.binary_search_by_key(&stream, |&(stream, _)| stream).ok()?;
        Some(lanes[at].1)
    }

    /// Removes the lanes that no segment names and that `is_leaving` takes for gone. The default
    /// pools' lanes on the first stream stay, so that there always is a lane that was looked up
    /// last.
    pub(crate) fn remove_lanes(
        &mut self,
        named: &BTreeSet<LaneId>,
        is_leaving: impl Fn(&Lane) -> bool,
    ) {
        for at in 0..self.lanes.len() {
            let (id, lane) = (LaneId(at as u32), &mut self.lanes[at]);
            lane.free.take_if(|free| free.is_empty());
            lane.by_size = None;
            let stays = named.contains(&id) || FIRST_LANES.contains(&id);
            if lane.pool == PoolIndex::NONE || stays || !is_leaving(lane) {
                continue;
            }
            debug_assert!(lane.has_no_block());
            let pool = std::mem::replace(&mut lane.pool, PoolIndex::NONE);
            let pool = &mut self.list[pool.0 as usize];
            pool.lanes.retain(|&(_, lane)| lane != id);
            pool.retired.retain(|&lane| lane != id);
            self.spare_lanes.insert(id);
        }
        while self.lanes.pop_if(|lane| lane.pool == PoolIndex::NONE).is_some() {
            self.spare_lanes.remove(&LaneId(self.lanes.len() as u32));
        }
        self.lanes.shrink_to_fit();
        // The name of a lane that is gone may be used again.
        self.lanes.iter_mut().for_each(|lane| lane.followed = Vec::new());
        for pool in &mut self.list {
            pool.lanes.shrink_to_fit();
            pool.retired.shrink_to_fit();
        }
        self.recent = FIRST_LANES.map(|lane| (StreamId(0), lane));
    }

    /// How much of the host's memory the lanes hold.
    pub(crate) fn lane_bytes(&self) -> usize {
        let indexes = self.lanes.iter().filter_map(Lane::free);
        let free: usize = indexes.map(FreeIndex::held_bytes).sum();
        let listed: usize = self.list.iter().map(|pool| pool.lanes.capacity()).sum();
        let (lane, entry) = (size_of::<Lane>(), size_of::<(StreamId, LaneId)>());
        let spare = self.spare_lanes.len() * size_of::<LaneId>();
        let stacks = self.lanes.iter().filter(|lane| lane.by_size.is_some()).count()
            * size_of::<SizeStacks>();
        free + stacks + self.lanes.capacity() * lane + listed * entry + spare
    }

    /// Whether the lane is there: its pool lists it under its stream, or among those whose streams
    /// are gone.
    pub(crate) fn has_lane(&self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(id.0 as usize) else { return false };
        let Some(pool) = self.list.get(lane.pool.0 as usize) else { return false };
        if lane.gone {
            pool.retired.contains(&id)
        } else {
            self.lane_at(lane.pool, lane.stream) == Some(id)
        }
    }

    /// Says in one sentence what is wrong with the lanes, if anything is: each is listed by its
    /// pool under its stream, or as one whose stream is gone, and those that were removed are empty
    /// and spare.
    pub(super) fn check_lanes(&self) -> Result<(), Unsound> {
        let mut listed = 0;
        for (at, pool) in self.list.iter().enumerate() {
            let retired = pool.retired.iter().map(|&id| (self.lane(id).stream, id, true));
            let lanes = pool.lanes.iter().map(|&(stream, id)| (stream, id, false));
            for (stream, id, gone) in lanes.chain(retired) {
                let lane = self.lane(id);
                if (lane.pool, lane.stream, lane.gone) != (PoolIndex(at as u32), stream, gone) {
                    return Err(format!(
                        "{id:?} is listed by a pool or stream that is not its own"
                    )
                    .into());
                }
                listed += 1;
            }
        }
        if listed + self.spare_lanes.len() != self.lanes.len() {
            return Err(
                format!("of {} lanes {listed} are listed by pools", self.lanes.len()).into()
            );
        }
        for id in &self.spare_lanes {
            let lane = self.lane(*id);
            if lane.pool != PoolIndex::NONE || !lane.has_no_block() {
                return Err(format!("{id:?} is spare and in use").into());
            }
        }
        for (lane, followed) in
            self.lanes.iter().flat_map(|lane| lane.followed.iter().map(move |at| (lane, at)))
        {
            let other = self.lanes.get(followed.0.0 as usize);
            if !other.is_some_and(|other| other.pool == lane.pool && followed.1 <= other.frees) {
                return Err(format!(
                    "{:?} was waited for in another pool, or ahead of time",
                    followed.0
                )
                .into());
            }
        }
        for (kind, (stream, lane)) in
            [PoolKind::Small, PoolKind::Large].into_iter().zip(self.recent)
        {
            if self.lane_at(PoolIndex::default_for(kind), stream) != Some(lane) {
                return Err(
                    format!("{lane:?} was looked up last and is not that of {stream:?}").into()
                );
            }
        }
        Ok(())
    }

    /// The stream of a lane waits for what that of another one has been given to do so far.
    pub(crate) fn note_followed(&mut self, id: LaneId, other: LaneId) {
        debug_assert!(id != other, "{id:?} waits for itself");
        let frees = self.lane(other).frees;
        let followed = &mut self.lane_mut(id).followed;
        match followed.iter_mut().find(|(lane, _)| *lane == other) {
            Some(known) => known.1 = frees,
            None => followed.push((other, frees)),
        }
    }

    /// Whether the stream of a lane waited for all that is free in another one.
    pub(crate) fn has_followed(&self, id: LaneId, other: LaneId) -> bool {
        self.lane(id).followed.contains(&(other, self.lane(other).frees))
    }

    /// Whether the lane is that of a pool on a stream.
    pub(crate) fn is_lane_of(&self, id: LaneId, pool: PoolIndex, stream: StreamId) -> bool {
        let is_it = |lane: &Lane| !lane.gone && (lane.pool, lane.stream) == (pool, stream);
        self.lanes.get(id.0 as usize).is_some_and(is_it)
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

    /// Whether a pool has more than one lane, or had: places that were found then do not tell what
    /// was free around them.
    #[inline]
    pub(crate) fn had_many_lanes(&self, id: PoolIndex) -> bool {
        self.list[id.0 as usize].had_many_lanes
    }

    /// A pool's lanes in the order of their streams, and behind them those whose streams are gone.
    pub(crate) fn lanes_of(&self, id: PoolIndex) -> impl Iterator<Item = &Lane> + '_ {
        let living = self.list[id.0 as usize].lanes.iter().map(|&(_, lane)| self.lane(lane));
        living.chain(self.retired_lanes_of(id))
    }

    /// All lanes.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (LaneId, &Lane)> + '_ {
        let lanes = self.lanes.iter().enumerate().map(|(at, lane)| (LaneId(at as u32), lane));
        lanes.filter(|(_, lane)| lane.pool != PoolIndex::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::heap::Heap;
    use crate::heap::release::Release;
    use crate::types::{Addr, MIB, Span};

    #[test]
    fn lanes_are_made_once_and_walked_in_the_order_of_streams() {
        let mut pools = Pools::new(&Policy::larder());
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
        let mut pools = Pools::new(&Policy::larder());
        let old = pools.default_lane(PoolKind::Small, StreamId(9));
        pools.retire(StreamId(9));
        let new = pools.default_lane(PoolKind::Small, StreamId(9));
        assert_ne!(old, new);
        assert_eq!(pools.lane(old).living_stream(), None);
        assert_eq!(pools.lane(new).living_stream(), Some(StreamId(9)));
        let streams: Vec<_> = pools.lanes_of(PoolIndex::SMALL).map(|lane| lane.stream.0).collect();
        assert_eq!(streams, [0, 9, 9], "both give back what they have");
    }

    /// Uses a stream once, and leaves what it had in the cache.
    fn use_once(heap: &mut Heap, stream: StreamId) {
        let want = heap.want(512, stream);
        let addr = heap.take_segment(&want, Span::new(Addr(stream.0 << 21), 2 * MIB));
        heap.put(heap.live(addr).unwrap());
    }

    fn give_back_all(heap: &mut Heap) {
        for release in heap.plan_release() {
            let Release::Segment(id) = release else { panic!("no segment is expandable") };
            heap.commit_release(id);
        }
    }

    #[test]
    fn streams_that_are_done_cost_nothing() {
        let mut heap = Heap::new(Config::default(), Policy::larder(), 1 << 40);
        let streams = || (1..=10_000).map(StreamId);
        let bare_bytes = heap.lane_bytes();
        streams().for_each(|stream| use_once(&mut heap, stream));
        assert!(heap.lane_bytes() > 10_000 * 4096, "the measure sees what lanes hold");
        give_back_all(&mut heap);
        heap.forget_idle_streams();
        assert_eq!(heap.check(), Ok(()));
        assert!(heap.lane_bytes() <= bare_bytes);
        for stream in streams() {
            use_once(&mut heap, stream);
            heap.forget_stream(stream);
            assert!(heap.lane_bytes() > bare_bytes, "it still has a segment");
            give_back_all(&mut heap);
            heap.forget_stream(stream);
            assert!(heap.lane_bytes() <= bare_bytes);
        }
        assert_eq!(heap.check(), Ok(()));
    }

    /// A request is on its way to the device while somebody else empties the cache.
    #[test]
    fn a_request_finds_its_lane_though_it_was_removed_meanwhile() {
        let mut heap = Heap::new(Config::default(), Policy::larder(), 1 << 40);
        let want = heap.want(512, StreamId(7));
        heap.forget_idle_streams();
        heap.want(512, StreamId(8));
        let addr = heap.take_segment(&want, Span::new(Addr(2 * MIB), 2 * MIB));
        let block = heap.live(addr).unwrap();
        assert_eq!((heap.inventory().stream_of(block), heap.check()), (StreamId(7), Ok(())));
        heap.put(block);
        assert_eq!(heap.take(&want), Some(addr));
    }

    #[test]
    fn a_lane_that_no_segment_names_is_removed_and_its_name_used_again() {
        let mut pools = Pools::new(&Policy::larder());
        let named = pools.lane_for(PoolIndex::SMALL, StreamId(3));
        let gone = pools.lane_for(PoolIndex::SMALL, StreamId(2));
        let large = pools.lane_for(PoolIndex::LARGE, StreamId(3));
        assert_eq!(pools.default_lane(PoolKind::Small, StreamId(2)), gone);
        pools.remove_lanes(&BTreeSet::from([named, large]), |lane| lane.stream == StreamId(2));
        assert_eq!(pools.check_lanes(), Ok(()));
        assert!(!pools.is_lane_of(gone, PoolIndex::SMALL, StreamId(2)));
        assert_eq!(pools.lane_for(PoolIndex::SMALL, StreamId(8)), gone);
        pools.remove_lanes(&BTreeSet::from([named]), |_| true);
        assert_eq!(pools.check_lanes(), Ok(()));
        assert_eq!(pools.lanes().map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 1, named.0]);
        assert_eq!(pools.lanes.len(), 3, "what is spare at the end is given back");
    }
}
