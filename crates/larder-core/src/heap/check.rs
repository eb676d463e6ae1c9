//! The check: every invariant of the heap, in one place. It takes time in proportion to the heap;
//! tests and the soak command call it after each step.

use std::collections::{HashMap, HashSet};

use crate::heap::Heap;
use crate::heap::ids::{BlockId, LaneId, PoolIndex, SegmentId};
use crate::heap::pools::pool::{Pool, PoolRole};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::State;
use crate::heap::space::segment::{Backing, Segment};
use crate::record::stats::{ByPool, Stats};
use crate::types::PoolKind;

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
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
    blocks: usize,
    free: usize,
    resting: usize,
    unmapped: usize,
}

impl Heap {
    /// Checks every invariant; says in one sentence which one does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut census = Census::default();
        let mut spans = Vec::with_capacity(self.space.segments().len());
        for (id, segment) in self.space.segments().iter() {
            spans.push(segment.span);
            self.check_segment(id, segment, &mut census)?;
        }
        spans.sort_by_key(|span| span.addr);
        for pair in spans.windows(2) {
            ensure!(!pair[0].overlaps(pair[1]), "segments {:?} and {:?} overlap", pair[0], pair[1]);
        }
        ensure!(
            census.blocks == self.space.blocks().len(),
            "{} blocks are in segments, {} in the arena",
            census.blocks,
            self.space.blocks().len()
        );
        self.check_lanes(&census)?;
        self.check_deferred(census.resting)?;
        self.check_pools()?;
        self.check_pending()?;
        self.check_contexts()?;
        self.check_in_views()?;
        self.check_symmetric()?;
        let reserved: i64 = census.reserved_bytes.iter().sum();
        ensure!(
            reserved as u64 == self.space.reserved_bytes(),
            "{reserved} bytes are in segments, {} are counted",
            self.space.reserved_bytes()
        );
        check_stats(&self.herald.stats(), &census)
    }

    /// A segment's blocks tile it, are linked both ways, agree with it, and are merged.
    fn check_segment(
        &self,
        id: SegmentId,
        segment: &Segment,
        census: &mut Census,
    ) -> Result<(), String> {
        let lane = self.pools.lane(segment.lane);
        ensure!(
            self.pools.has_lane(segment.lane),
            "{id:?} is in {:?}, which was removed",
            segment.lane
        );
        let at_kind = usize::from(lane.kind == PoolKind::Large);
        if matches!(segment.backing, Backing::Fixed) {
            census.segment[at_kind] += 1;
        }
        census.reserved_bytes[at_kind] += segment.backed_bytes() as i64;
        let (mut at, mut prev, mut addr) = (Some(segment.first), None, segment.span.addr);
        while let Some(block_id) = at {
            let block = &self.space[block_id];
            ensure!(block.addr == addr, "{block_id:?} starts at {}, not at {addr}", block.addr);
            ensure!(block.prev == prev, "{block_id:?} is not linked to the block before it");
            ensure!(
                block.segment == id
                    && block.kind == lane.kind
                    && self.may_hold(block.lane, segment),
                "{block_id:?} names another segment, lane or kind than its own"
            );
            ensure!(
                block.expandable == segment.is_expandable(),
                "{block_id:?} does not know whether its segment is expandable"
            );
            ensure!(
                block.size_bytes > 0 && block.size_bytes.is_multiple_of(BLOCK_UNIT_BYTES),
                "{block_id:?} has {} bytes",
                block.size_bytes
            );
            if let Some(prev) = prev {
                let mergeable =
                    matches!(block.state, State::Free | State::Unmapped | State::Hollow);
                ensure!(
                    !(mergeable
                        && self.space[prev].state == block.state
                        && self.space[prev].lane == block.lane),
                    "{prev:?} and {block_id:?} are both {:?} and not merged",
                    block.state
                );
            }
            self.check_block(block_id, segment, census, at_kind)?;
            addr = addr.offset(block.size_bytes);
            (prev, at) = (at, block.next);
        }
        ensure!(addr == segment.span.end(), "the blocks of {:?} end at {addr}", segment.span);
        Ok(())
    }

    /// Whether a block of a segment may be a lane's: of the segment's own, or, where lanes take
    /// memory from each other, of another of its pool.
    fn may_hold(&self, lane: LaneId, segment: &Segment) -> bool {
        let is_shared = self.placement.shares_segments() && segment.is_expandable();
        let pool_of = |lane| self.pools.lane(lane).pool;
        let is_kin =
            is_shared && self.pools.has_lane(lane) && pool_of(lane) == pool_of(segment.lane);
        lane == segment.lane || is_kin && pool_of(lane) == PoolIndex::LARGE
    }

    /// A block's state agrees with the index, the address map, the pages and the counters.
    fn check_block(
        &self,
        id: BlockId,
        segment: &Segment,
        census: &mut Census,
        at_kind: usize,
    ) -> Result<(), String> {
        let block = &self.space[id];
        let bytes = block.size_bytes as i64;
        census.blocks += 1;
        if segment.is_expandable() {
            let backed = block.state != State::Unmapped;
            for page in segment.pages_over(block.span()) {
                ensure!(
                    segment.page(page).is_some() == backed,
                    "page {page} under {id:?}, which is {:?}, is wrong",
                    block.state
                );
            }
        } else {
            ensure!(block.state != State::Unmapped, "{id:?} of a fixed segment is unmapped");
        }
        match block.state {
            State::Unmapped => census.unmapped += 1,
            State::Free => {
                census.free += 1;
                if block.is_split() && !block.expandable {
                    census.inactive_split[at_kind] += 1;
                    census.inactive_split_bytes[at_kind] += bytes;
                }
            }
            State::Live => {
                ensure!(self.live(block.addr) == Some(id), "{id:?} is not found by its address");
                census.allocation[at_kind] += 1;
                census.allocated_bytes[at_kind] += bytes;
            }
            State::Deferred => census.resting += 1,
            State::Waiting | State::Lent | State::Hollow => {}
        }
        if matches!(block.state, State::Live | State::Waiting) {
            census.active[at_kind] += 1;
            census.active_bytes[at_kind] += bytes;
            census.requested_bytes[at_kind] += block.requested_bytes as i64;
            ensure!(block.requested_bytes <= block.size_bytes, "{id:?} is smaller than asked for");
        } else {
            ensure!(self.live(block.addr).is_none(), "{id:?} is found by address though not live");
        }
        let has_uses = !self.pending.uses(id).is_empty();
        let is_told = block.state == State::Live && (segment.is_view() || self.is_symmetric(id));
        ensure!(
            (has_uses || is_told) == block.used_elsewhere,
            "{id:?} is wrong about its use elsewhere"
        );
        Ok(())
    }

    /// A pool is one of the default pools or half of a living private pool, and knows which; one
    /// that is neither has no block in any lane. A private pool with a source never has expandable
    /// segments, so that all of them came from the source.
    fn check_pools(&self) -> Result<(), String> {
        for (lane_id, lane) in self.pools.lanes() {
            let is_empty = lane.has_no_block();
            ensure!(
                is_empty || self.is_alive(lane.pool),
                "{lane_id:?} has blocks, but its pool is gone"
            );
        }
        for (id, segment) in self.space.segments().iter() {
            let pool = self.pools.lane(segment.lane).pool;
            ensure!(self.is_alive(pool), "the pool of {id:?} at {:?} is gone", segment.span);
            ensure!(
                !(segment.is_expandable() && self.source_of(id).is_some()),
                "{id:?} is expandable, but its pool has a source of its own"
            );
        }
        let released = self.privates.released.iter().collect::<HashSet<_>>();
        for (id, private) in self.privates.iter() {
            ensure!(
                private.is_released() == released.contains(&id),
                "{id:?} has {} uses, which its place among the released ones belies",
                private.uses
            );
            for (pool, kind) in [(private.small, PoolKind::Small), (private.large, PoolKind::Large)]
            {
                let half = self.pools.pool(pool);
                ensure!(
                    half.owner == Some(id)
                        && half.kind == kind
                        && half.role == self.pools.pool(private.small).role
                        && (half.role == PoolRole::OwnSource) == private.own_source,
                    "{pool:?} does not know that it belongs to {id:?}"
                );
            }
        }
        Ok(())
    }

    /// Whether the pool is a default pool, or half of a private pool that was not retired.
    fn is_alive(&self, pool: PoolIndex) -> bool {
        let Pool { kind, owner, .. } = self.pools.pool(pool);
        match owner {
            None => pool == PoolIndex::default_for(*kind),
            Some(id) => self.privates.parts(*id).contains(&pool),
        }
    }

    /// Each lane's indexes hold exactly its free and its unmapped blocks, in order.
    fn check_lanes(&self, census: &Census) -> Result<(), String> {
        self.pools.check()?;
        let (mut free, mut unmapped) = (0, 0);
        for (lane_id, lane) in self.pools.lanes() {
            let mut last = None;
            for id in lane.free_blocks(self.space.blocks()) {
                let block = &self.space[id];
                ensure!(
                    block.state == State::Free && block.lane == lane_id,
                    "{id:?} is indexed as free in {lane_id:?}"
                );
                let key = Some((block.size_bytes, block.order));
                ensure!(last < key, "the free blocks of {lane_id:?} are out of order");
                ensure!(self.is_order_right(block), "{id:?} has the order {}", block.order);
                ensure!(
                    self.space.free_since(id) <= self.pools.pool(lane.pool).searches,
                    "{id:?} was freed in the future"
                );
                last = key;
                free += 1;
            }
            for (&addr, &id) in &lane.unmapped {
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

    /// Uses belong to live blocks, events to waiting ones, and each event is awaited once.
    fn check_pending(&self) -> Result<(), String> {
        let deferred: HashSet<BlockId> = self.pending.deferred().into_iter().collect();
        ensure!(deferred.len() == self.pending.deferred().len(), "a block is deferred twice");
        for id in self.pending.used_blocks() {
            let live = self.space[id].state == State::Live;
            ensure!(live || deferred.contains(&id), "{id:?} has uses but is not live");
        }
        for &id in &deferred {
            ensure!(self.space[id].state == State::Waiting, "{id:?} is deferred, does not wait");
        }
        let mut events_of: HashMap<BlockId, u32> = HashMap::new();
        let mut events = HashSet::new();
        for (event, block) in self.pending.awaited() {
            *events_of.entry(block).or_default() += 1;
            ensure!(events.insert(event), "{event:?} is awaited twice");
        }
        ensure!(events.len() == self.pending.event_count(), "awaited events are miscounted");
        let mut waiting = 0;
        for (id, count) in self.pending.waiting_blocks() {
            ensure!(self.space[id].state == State::Waiting, "{id:?} has events but does not wait");
            ensure!(events_of.get(&id) == Some(&count), "{id:?} miscounts its events");
            waiting += 1;
        }
        ensure!(events_of.len() == waiting, "an event is awaited for a block that does not wait");
        Ok(())
    }
}

/// The statistics agree with a fresh count, and with themselves.
fn check_stats(stats: &Stats, census: &Census) -> Result<(), String> {
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
