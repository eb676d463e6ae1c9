//! The check of the inventory: what must hold between blocks, lanes, deferred frees and counts.

use std::collections::HashMap;

use crate::error::Unsound;
use crate::heap::ids::{BlockId, LaneId, PoolIndex, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::inventory::order::is_order_right;
use crate::heap::pools::symmetric::HOME;
use crate::heap::space::block::State;
use crate::heap::space::segment::Segment;
use crate::record::history::Owner;
use crate::record::stats::{ByPool, Stats};
use crate::types::PoolKind;

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+).into());
        }
    };
}

/// What a walk over all blocks counted, per kind of pool: small, large.
#[derive(Default)]
struct Census {
    segment: [i64; 2],
    reserved_bytes: [i64; 2],
    allocation: [i64; 2],
    allocated_bytes: [i64; 2],
    active: [i64; 2],
    active_bytes: [i64; 2],
    requested_bytes: [i64; 2],
    inactive_split: [i64; 2],
    inactive_split_bytes: [i64; 2],
    free: usize,
    deferred: usize,
    unmapped: usize,
}

impl Inventory {
    /// Checks each owner that it is made of, and what holds between them; says in one sentence what
    /// does not.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        self.rules.check()?;
        self.space.check()?;
        self.pools.check()?;
        self.deferred.check()?;
        let mut census = Census::default();
        for (id, segment) in self.space.segments().iter() {
            self.check_segment(id, segment, &mut census)?;
        }
        self.check_lanes(&census)?;
        self.check_deferred(census.deferred)?;
        self.check_contexts()?;
        self.check_symmetric()?;
        check_stats(&self.recorder.stats(), &census)
    }

    /// A segment's lane and pool are there, its blocks are theirs, and each is found by its address
    /// if it is live and not otherwise.
    fn check_segment(
        &self,
        id: SegmentId,
        segment: &Segment,
        census: &mut Census,
    ) -> Result<(), Unsound> {
        let lane = self.pools.lane(segment.lane());
        ensure!(
            self.pools.has_lane(segment.lane()) && self.is_alive(lane.pool()),
            "{id:?} is in {:?}, which is gone, or its pool is",
            segment.lane()
        );
        ensure!(
            !(segment.is_expandable() && self.source_of(id).is_some()),
            "{id:?} is expandable, but its pool has a source of its own"
        );
        let at_kind = usize::from(lane.kind() == PoolKind::Large);
        if segment.is_fixed() {
            census.segment[at_kind] += 1;
        }
        ensure!(
            self.pools.is_lane_asleep(segment.lane()) == segment.is_asleep(),
            "{id:?} sleeps, or is awake, in {:?}",
            segment.lane()
        );
        census.reserved_bytes[at_kind] += segment.backed_bytes() as i64;
        for block_id in self.space.chain(id) {
            let block = &self.space[block_id];
            ensure!(
                block.kind == lane.kind() && self.may_hold(block.lane, segment),
                "{block_id:?} names another lane or kind than its own"
            );
            let is_found = self.live(block.addr) == Some(block_id);
            ensure!(
                is_found == (block.state == State::Live),
                "{block_id:?} is {:?}, and is found by its address or is not",
                block.state
            );
            self.count_block(block_id, census, at_kind)?;
        }
        Ok(())
    }

    /// Whether a block of a segment may be a lane's: of the segment's own, or, where lanes take
    /// memory from each other, of another of its pool.
    fn may_hold(&self, lane: LaneId, segment: &Segment) -> bool {
        let is_shared = self.rules.shares_segments() && segment.is_expandable();
        let pool_of = |lane| self.pools.lane(lane).pool();
        let is_kin =
            is_shared && self.pools.has_lane(lane) && pool_of(lane) == pool_of(segment.lane());
        lane == segment.lane() || is_kin
    }

    /// Whether the pool is a default pool, or half of a private pool that was not retired.
    fn is_alive(&self, pool: PoolIndex) -> bool {
        let pool = self.pools.awake_of(pool).unwrap_or(pool);
        let part = self.pools.pool(pool);
        match part.owner() {
            None => pool == PoolIndex::default_for(part.kind()),
            Some(id) => self.pools.privates().parts(id).contains(&pool),
        }
    }

    /// Counts a block as the statistics do.
    fn count_block(&self, id: BlockId, census: &mut Census, at: usize) -> Result<(), Unsound> {
        let block = &self.space[id];
        let bytes = block.size_bytes as i64;
        match block.state {
            State::Unmapped => census.unmapped += 1,
            State::Free => {
                census.free += 1;
                if block.is_split() && !block.expandable {
                    census.inactive_split[at] += 1;
                    census.inactive_split_bytes[at] += bytes;
                }
            }
            State::Live => {
                census.allocation[at] += 1;
                census.allocated_bytes[at] += bytes;
            }
            State::Deferred => census.deferred += 1,
            State::Waiting | State::Lent | State::Hollow => {}
        }
        if matches!(block.state, State::Live | State::Waiting) {
            census.active[at] += 1;
            census.active_bytes[at] += bytes;
            census.requested_bytes[at] += block.requested_bytes as i64;
            ensure!(block.requested_bytes <= block.size_bytes, "{id:?} is smaller than asked for");
        }
        Ok(())
    }

    /// Each lane's indexes hold exactly its free and its unmapped blocks, in order; and a lane
    /// whose pool is gone has none.
    fn check_lanes(&self, census: &Census) -> Result<(), Unsound> {
        let (mut free, mut unmapped) = (0, 0);
        for (lane_id, lane) in self.pools.lanes() {
            ensure!(
                lane.has_no_block() || self.is_alive(lane.pool()),
                "{lane_id:?} has blocks, but its pool is gone"
            );
            let mut last = None;
            for id in lane.free_blocks(self.space.blocks()) {
                let block = &self.space[id];
                ensure!(
                    block.state == State::Free && block.lane == lane_id,
                    "{id:?} is indexed as free in {lane_id:?}"
                );
                let key = Some((block.size_bytes, block.order));
                ensure!(last < key, "the free blocks of {lane_id:?} are out of order");
                let tie_break = self.rules.policy().tie_break;
                let is_right = is_order_right(tie_break, block, &self.space[block.segment]);
                ensure!(is_right, "{id:?} has the order {}", block.order);
                ensure!(
                    self.space.free_since(id) <= self.pools.pool(lane.pool()).searches(),
                    "{id:?} was freed in the future"
                );
                last = key;
                free += 1;
            }
            for (addr, id) in lane.unmapped() {
                let block = &self.space[id];
                ensure!(
                    block.state == State::Unmapped && block.lane == lane_id && block.addr == addr,
                    "{id:?} is indexed as unmapped in {lane_id:?}"
                );
                unmapped += 1;
            }
        }
        ensure!(free == census.free, "{free} free blocks are indexed, {} exist", census.free);
        ensure!(
            unmapped == census.unmapped,
            "{unmapped} unmapped blocks are indexed, {} exist",
            census.unmapped
        );
        Ok(())
    }

    /// Every free that is deferred is listed.
    fn check_deferred(&self, deferred: usize) -> Result<(), Unsound> {
        let listed = self.deferred_blocks().count();
        ensure!(listed == deferred, "{deferred} frees are deferred, of which {listed} are listed");
        Ok(())
    }

    /// Contexts are kept for blocks and segments that are there, and counted right.
    fn check_contexts(&self) -> Result<(), Unsound> {
        let Some(history) = self.recorder.history() else { return Ok(()) };
        history.check()?;
        let mut places = HashMap::new();
        for (_, segment) in self.space.segments().iter() {
            let mut at = Some(segment.first());
            while let Some(id) = at {
                places.insert(self.space[id].addr.0, self.space[id].state);
                at = self.space[id].next;
            }
        }
        for owner in history.owners() {
            let is_there = match owner {
                Owner::Block(addr) => {
                    matches!(places.get(&addr), Some(State::Live | State::Waiting))
                }
                Owner::Segment(addr) => places.contains_key(&addr),
            };
            if !is_there {
                return Err(format!("a context is kept for {owner:?}, which is not there").into());
            }
        }
        Ok(())
    }

    /// A symmetric pool's plots are its segments, in the order of their numbers; its live blocks
    /// are those that a call made and none freed; and the two pools that any private pool has are
    /// empty.
    fn check_symmetric(&self) -> Result<(), Unsound> {
        for (id, symmetric) in self.pools.privates().all_symmetric() {
            symmetric.check().map_err(|said| format!("{id}: {said}"))?;
            let mut live = 0;
            let segments =
                self.space.segments().iter().filter(|&(at, _)| self.owner_of(at) == Some(id));
            let mut count = 0;
            for (at, segment) in segments {
                count += 1;
                let pool = self.pools.lane(segment.lane()).pool();
                if !symmetric.has_plot(pool, segment.span()) || self.segment_stream(at) != HOME {
                    return Err(format!("{at:?} of {id} is no plot of it").into());
                }
                let blocks = self.space.chain(at).map(|block| &self.space[block]);
                let here = blocks.filter(|block| block.state == State::Live);
                live += here.filter(|block| symmetric.knows(block.addr)).count();
            }
            if (live, count) != symmetric.counts() {
                return Err(format!("{id} knows of blocks or segments that are not there").into());
            }
        }
        Ok(())
    }
}

/// The statistics agree with a fresh count, and with themselves.
fn check_stats(stats: &Stats, census: &Census) -> Result<(), Unsound> {
    let families: [(&str, &ByPool, [i64; 2]); 9] = [
        ("segment", &stats.segment, census.segment),
        ("reserved_bytes", &stats.reserved_bytes, census.reserved_bytes),
        ("allocation", &stats.allocation, census.allocation),
        ("allocated_bytes", &stats.allocated_bytes, census.allocated_bytes),
        ("active", &stats.active, census.active),
        ("active_bytes", &stats.active_bytes, census.active_bytes),
        ("requested_bytes", &stats.requested_bytes, census.requested_bytes),
        ("inactive_split", &stats.inactive_split, census.inactive_split),
        ("inactive_split_bytes", &stats.inactive_split_bytes, census.inactive_split_bytes),
    ];
    for (name, family, [small, large]) in families {
        let counted = [family.small_pool.current, family.large_pool.current, family.all.current];
        let expected = [small, large, small + large];
        ensure!(counted == expected, "{name} is {counted:?} by count and {expected:?} in truth");
        for counter in [family.all, family.small_pool, family.large_pool] {
            ensure!(
                counter.peak >= counter.current && counter.allocated >= 0 && counter.freed >= 0,
                "{name} has a peak below its value, or a sum below zero"
            );
        }
    }
    Ok(())
}
