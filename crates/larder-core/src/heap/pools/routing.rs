//! Routing: which pool a request goes to, and what may be done with private pools.

use std::thread::ThreadId;

use crate::error::PoolProblem;
use crate::heap::ids::{BlockId, PoolIndex, SegmentId};
use crate::heap::pools::pool::PoolRole;
use crate::heap::pools::private::{Caller, Filter, Private, Rule};
use crate::heap::pools::symmetric::Symmetric;
use crate::heap::release::Release;
use crate::heap::{Heap, Want};
use crate::record::stats::ByPool;
use crate::types::{Addr, PoolId, PoolKind};

/// A block of a pool that lends, on its way to a request.
pub(crate) struct Lent {
    block: BlockId,
    want: Want,
}

impl Heap {
    /// Whether any scope is open. A capture runs inside one, so that where none is open nothing
    /// needs to be known of captures.
    #[inline]
    pub(crate) fn is_diverted(&self) -> bool {
        self.privates.has_scope()
    }

    /// Requests of the thread get plain memory from now on, until as many ends.
    pub(crate) fn begin_plain(&mut self, thread: ThreadId) {
        self.privates.begin_plain(thread);
    }

    /// Ends what the thread began last. False if it began nothing.
    pub(crate) fn end_plain(&mut self, thread: ThreadId) -> bool {
        self.privates.end_plain(thread)
    }

    /// Whether requests of any thread get plain memory.
    #[inline]
    pub(crate) fn has_plain_threads(&self) -> bool {
        self.privates.has_plain_threads()
    }

    /// The request as its thread wants it: for plain memory, if the thread asked for that.
    pub(crate) fn want_of(&self, want: &Want, thread: ThreadId) -> Want {
        if self.privates.is_plain(thread) {
            Want { expandable: false, plain: true, ..*want }
        } else {
            *want
        }
    }

    /// Rounds a request and routes it through the open scopes.
    pub(crate) fn want_routed(&mut self, requested_bytes: u64, caller: &Caller<'_>) -> Want {
        let want = self.want(requested_bytes, caller.stream);
        let private = self.privates.route(caller).and_then(|id| self.privates.get(id));
        match private.map(|private| private.pool(want.kind)) {
            Some(pool) => self.want_from(&want, pool),
            None => want,
        }
    }

    /// The private pools that may lend to a request, in the order in which they are asked.
    pub(crate) fn lenders_for(&self, want: &Want) -> Vec<PoolId> {
        if self.pools.pool(want.pool).owner.is_some() {
            return Vec::new();
        }
        let is_open = |id: &PoolId| self.privates.get(*id).is_some_and(|p| !p.is_released());
        self.privates.lenders.iter().filter(is_open).collect()
    }

    /// Serves a request of the default pools with a free block of a pool that lends to those in
    /// need. The block stays a block of that pool.
    pub(crate) fn take_lent(&mut self, want: &Want, lender: PoolId) -> Option<Addr> {
        let lent = self.take_off_lent(want, lender)?;
        Some(self.hand_out_lent(&lent))
    }

    /// The same request to a pool that lends. A lent block must not be one that can grow, but where
    /// all can.
    fn want_lent(&mut self, want: &Want, lender: PoolId) -> Option<Want> {
        let pool = self.privates.get(lender)?.pool(want.kind);
        let lent = self.want_from(want, pool);
        Some(Want { expandable: lent.expandable && self.placement.lends_growing(), ..lent })
    }

    /// Takes the block that a pool lends out of the index, and nothing more: `hand_out_lent` is
    /// next.
    pub(crate) fn take_off_lent(&mut self, want: &Want, lender: PoolId) -> Option<Lent> {
        let lent = self.want_lent(want, lender)?;
        let block = self.take_off(&lent)?;
        self.note_lent(want);
        Some(Lent { block, want: lent })
    }

    /// Hands out what was taken off.
    pub(crate) fn hand_out_lent(&mut self, lent: &Lent) -> Addr {
        self.hand_out_unnoted(lent.block, &lent.want)
    }

    /// Makes a private pool, or adds a use of it. A new one is a graph capture's if its name is one
    /// of those that captures give.
    pub(crate) fn add_pool_use(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        if id == PoolId::NONE {
            return Err(PoolProblem::NoName);
        }
        if let Ok(private) = self.privates.get_mut(id) {
            if private.is_released() {
                return Err(PoolProblem::Released);
            }
            private.uses += 1;
            return Ok(());
        }
        self.add_private(id, false, false);
        if id.0 != 0 {
            self.note_capture_pool(id);
        }
        Ok(())
    }

    /// Makes a private pool whose segments come from a source of its own. They are never
    /// expandable.
    pub(crate) fn add_pool_with_source(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        self.check_new(id)?;
        self.add_private(id, true, false);
        Ok(())
    }

    /// Whether a private pool of this name can be made.
    pub(crate) fn check_new(&self, id: PoolId) -> Result<(), PoolProblem> {
        if id == PoolId::NONE {
            return Err(PoolProblem::NoName);
        }
        if self.privates.get(id).is_some() {
            return Err(PoolProblem::Exists);
        }
        Ok(())
    }

    pub(in crate::heap) fn add_private(&mut self, id: PoolId, own_source: bool, symmetric: bool) {
        let small = self.pools.add(PoolKind::Small, Some(id));
        let large = self.pools.add(PoolKind::Large, Some(id));
        for pool in [small, large] {
            let half = self.pools.pool_mut(pool);
            half.role = if own_source { PoolRole::OwnSource } else { PoolRole::Usual };
            half.no_split = self.privates.unsplit.contains(&id);
        }
        let (uses, held, growths) = (1, 0, 0);
        let private = Private { small, large, uses, held, own_source, symmetric, growths };
        self.privates.insert(id, private);
    }

    /// Whether it makes a difference to the request whether it is captured: then its memory is to
    /// be plain, and so is all that its pool gets from then on.
    pub(crate) fn may_be_captures_first(&self, want: &Want) -> bool {
        let pool = self.pools.pool(want.pool);
        self.config.plain_captures && pool.owner.is_some() && pool.role == PoolRole::Usual
    }

    /// The request is the first of a capture in its pool.
    pub(crate) fn want_captured(&mut self, want: &Want) -> Want {
        if let Some(owner) = self.pools.pool(want.pool).owner {
            self.note_capture_pool(owner);
        }
        Want { expandable: false, ..*want }
    }

    /// Graph captures take their memory from the pool from now on.
    pub(in crate::heap) fn note_capture_pool(&mut self, id: PoolId) {
        let Ok(private) = self.privates.get_mut(id) else { return };
        for half in [private.small, private.large] {
            let half = self.pools.pool_mut(half);
            if half.role == PoolRole::Usual {
                half.role = PoolRole::Capture;
            }
        }
    }

    /// The private pool that the request goes to, if its segments come from a source of its own.
    pub(crate) fn source_for(&self, want: &Want) -> Option<PoolId> {
        self.with_source(self.pools.pool(want.pool).owner)
    }

    /// The private pool that the segment belongs to, if it came from a source of the pool's own.
    pub(crate) fn source_of(&self, segment: SegmentId) -> Option<PoolId> {
        self.with_source(self.owner_of(segment))
    }

    fn with_source(&self, owner: Option<PoolId>) -> Option<PoolId> {
        owner.filter(|&id| self.privates.get(id).is_some_and(|private| private.own_source))
    }

    /// The private pool that a block belongs to.
    pub(crate) fn pool_of(&self, id: BlockId) -> Option<PoolId> {
        self.owner_of(self.space[id].segment)
    }

    /// The private pool that a segment belongs to.
    pub(in crate::heap) fn owner_of(&self, segment: SegmentId) -> Option<PoolId> {
        self.pools.pool(self.pools.lane(self.space[segment].lane).pool).owner
    }

    /// The expandable segments of a private pool grew for a request, or a range of them was
    /// unmapped.
    pub(in crate::heap) fn count_growth(&mut self, pool: PoolIndex, change: i64) {
        let owner = self.pools.pool(pool).owner;
        if let Some(private) = owner.and_then(|owner| self.privates.get_mut(owner).ok()) {
            private.growths += change;
        }
    }

    /// The bytes held of the device for a private pool became more or fewer.
    pub(in crate::heap) fn count_reserved(&mut self, pool: PoolIndex, change_bytes: i64) {
        let pool = self.pools.pool(pool);
        if let Some(owner) = pool.owner {
            self.privates.count_reserved(owner, pool.kind, change_bytes);
        }
    }

    /// The bytes held of the device for each private pool that ever held any.
    pub(crate) fn reserved_by_pool(&self) -> Vec<(PoolId, ByPool)> {
        self.privates.reserved().iter().map(|(&id, &reserved)| (id, reserved)).collect()
    }

    /// Peaks of the private pools' counts become the current values.
    pub(crate) fn reset_pool_peaks(&mut self) {
        for counter in self.privates.reserved_counters() {
            counter.peak = counter.current;
        }
    }

    /// Sums of the private pools' counts become zero.
    pub(crate) fn reset_pool_sums(&mut self) {
        for counter in self.privates.reserved_counters() {
            (counter.allocated, counter.freed) = (0, 0);
        }
    }

    /// Drops a use of a private pool. Without uses its memory may go back to the device.
    pub(crate) fn drop_pool_use(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let private = self.privates.get_mut(id)?;
        private.uses = private.uses.checked_sub(1).ok_or(PoolProblem::Released)?;
        if private.is_released() {
            self.privates.released.add(id);
            if self.policy.no_split_goes_with_pool {
                self.privates.unsplit.remove(&id);
                for pool in self.privates.parts(id) {
                    self.pools.pool_mut(pool).no_split = false;
                }
            }
        }
        Ok(())
    }

    /// A request for a private pool is under way: the pool is not forgotten until it is let go of.
    pub(crate) fn hold_pool(&mut self, want: &Want) -> Option<PoolId> {
        let id = self.pools.pool(want.pool).owner?;
        self.privates.get_mut(id).ok()?.held += 1;
        Some(id)
    }

    /// The request is done.
    pub(crate) fn let_go_of_pool(&mut self, id: PoolId) {
        if let Ok(private) = self.privates.get_mut(id) {
            private.held -= 1;
        }
    }

    /// Nobody uses any private pool, and no requests come any more.
    pub(crate) fn abandon_pools(&mut self) {
        self.privates.abandon();
    }

    /// How many use a private pool.
    pub(crate) fn pool_uses(&self, id: PoolId) -> Option<u32> {
        self.privates.get(id).map(|private| private.uses)
    }

    /// Routes requests to a private pool from now on; this adds a use. A pool that was not there
    /// before is a graph capture's: a program makes its own before it uses them.
    pub(crate) fn open_scope(&mut self, id: PoolId, rule: Rule) -> Result<(), PoolProblem> {
        let is_new = self.privates.get(id).is_none();
        self.add_pool_use(id)?;
        self.privates.open(id, rule).inspect_err(|_| {
            let _ = self.drop_pool_use(id);
        })?;
        if is_new || matches!(rule, Rule::Filter(Filter::Capture(_))) {
            self.note_capture_pool(id);
        }
        Ok(())
    }

    /// Routes no more requests to a private pool. The use stays.
    pub(crate) fn close_scope(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        self.privates.close(id)
    }

    /// Whether the pool lends free blocks to requests that would run out of memory. As in PyTorch
    /// that goes by its name: one that lent when it was retired lends when it is made anew.
    pub(crate) fn set_use_on_oom(&mut self, id: PoolId, on: bool) -> Result<(), PoolProblem> {
        if !on && self.privates.lenders.remove(id) {
            return Ok(());
        }
        // What it lent would lie where no other rank has it.
        if self.privates.get_mut(id)?.symmetric {
            return Err(PoolProblem::Symmetric);
        }
        if on {
            self.privates.lenders.add(id);
        }
        Ok(())
    }

    /// The pool's blocks are never split from now on, nor, unless the policy lets the mark go with
    /// the pool, are those of a later pool of its name.
    pub(crate) fn set_no_split(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let is_bound = self.privates.symmetric.get(&id).is_some_and(Symmetric::has_begun);
        if is_bound {
            return Err(PoolProblem::Symmetric);
        }
        self.privates.get_mut(id)?;
        self.privates.unsplit.insert(id);
        for pool in self.privates.parts(id) {
            self.pools.pool_mut(pool).no_split = true;
        }
        Ok(())
    }

    /// Bytes in free blocks of private pools.
    pub(crate) fn private_free_bytes(&self) -> u64 {
        let pools = self.privates.iter().flat_map(|(id, _)| self.privates.parts(id));
        let lanes = pools.flat_map(|pool| self.pools.lanes_of(pool));
        let free = lanes.flat_map(|lane| lane.free_blocks(self.space.blocks()));
        free.map(|id| self.space[id].size_bytes).sum()
    }

    /// The private pools whose memory may go back to the device.
    pub(crate) fn released_pools(&self) -> Vec<PoolId> {
        self.privates.released.iter().collect()
    }

    /// All that a private pool can give back, small before large.
    pub(crate) fn plan_release_private(&self, id: PoolId) -> Vec<Release> {
        self.plan_release_of(&self.privates.parts(id))
    }

    /// What is left to give back before a released pool can be forgotten: addresses without pages.
    /// None if it still has memory, or if a request for it is under way.
    pub(crate) fn plan_retirement(&self, id: PoolId) -> Option<Vec<Release>> {
        self.privates.get(id).filter(|private| private.held == 0)?;
        let pools = self.privates.parts(id);
        let bare = self.plan_release_bare(&pools);
        let segments: usize = pools.iter().map(|&pool| self.segment_count(pool)).sum();
        (segments == bare.len()).then_some(bare)
    }

    fn segment_count(&self, pool: PoolIndex) -> usize {
        let pool_of = |lane| self.pools.lane(lane).pool;
        self.space.segments().iter().filter(|(_, segment)| pool_of(segment.lane) == pool).count()
    }

    /// Forgets a released pool that has no segment left.
    pub(crate) fn retire_pool(&mut self, id: PoolId) {
        let differs = self.privates.get(id).is_some_and(|private| private.growths != 0);
        let keeps_name = differs && !self.policy.released_pools_go;
        if let Some(private) = self.privates.remove(id, keeps_name) {
            self.pools.remove(private.small);
            self.pools.remove(private.large);
        }
    }
}
