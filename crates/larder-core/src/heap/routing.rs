//! Routing: which pool a request goes to, and what may be done with private pools.

use std::thread::ThreadId;

use crate::error::PoolProblem;
use crate::heap::pool::PoolIndex;
use crate::heap::private::{Filter, Private};
use crate::heap::release::Release;
use crate::heap::{Heap, Want};
use crate::types::{Addr, PoolId, PoolKind, StreamId};

impl Heap {
    /// Whether any scope is open. A capture opens one for as long as it runs, and any open scope
    /// is taken for a capture, as in PyTorch 2.11: no event is asked for, frees that other streams
    /// use are put off, and nothing is flushed to make room.
    #[inline]
    pub(crate) fn is_diverted(&self) -> bool {
        self.privates.has_scope()
    }

    /// Rounds a request and routes it through the open scopes.
    pub(crate) fn want_routed(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
        thread: ThreadId,
    ) -> Want {
        let want = self.want(requested_bytes, stream);
        let private = self.privates.route(stream, thread).and_then(|id| self.privates.get(id));
        match private.map(|private| private.pool(want.kind)) {
            Some(pool) => self.want_from(&want, pool),
            None => want,
        }
    }

    /// Serves a request of the default pools with a free block of a pool that lends to those in
    /// need. The block stays a block of that pool.
    pub(crate) fn take_lent(&mut self, want: &Want) -> Option<Addr> {
        if self.pools.pool(want.pool).owner.is_some() {
            return None;
        }
        // PyTorch asks them in the order of a hash set, which follows from the names; ours is the
        // same.
        let order = |id: PoolId| {
            let number = if id.0 == 0 { id.1 } else { id.0 };
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let lenders = self.privates.iter().filter(|(_, private)| private.use_on_oom);
        let mut lenders: Vec<(u64, PoolIndex)> =
            lenders.map(|(id, private)| (order(id), private.pool(want.kind))).collect();
        lenders.sort_unstable();
        lenders.into_iter().find_map(|(_, pool)| {
            // A lent block must not be one that can grow.
            let want = Want { expandable: false, ..self.want_from(want, pool) };
            self.take(&want)
        })
    }

    /// Makes a private pool, or adds a use of it.
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
        let small = self.pools.add(PoolKind::Small, Some(id));
        let large = self.pools.add(PoolKind::Large, Some(id));
        let private = Private { small, large, uses: 1, use_on_oom: false };
        self.privates.insert(id, private);
        Ok(())
    }

    /// Drops a use of a private pool. Without uses its memory may go back to the device.
    pub(crate) fn drop_pool_use(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let private = self.privates.get_mut(id)?;
        private.uses = private.uses.checked_sub(1).ok_or(PoolProblem::Released)?;
        Ok(())
    }

    /// How many use a private pool.
    pub(crate) fn pool_uses(&self, id: PoolId) -> Option<u32> {
        self.privates.get(id).map(|private| private.uses)
    }

    /// Routes requests to a private pool from now on; this adds a use.
    pub(crate) fn open_scope(&mut self, id: PoolId, filter: Filter) -> Result<(), PoolProblem> {
        self.add_pool_use(id)?;
        self.privates.open(id, filter).inspect_err(|_| {
            let _ = self.drop_pool_use(id);
        })
    }

    /// Routes no more requests to a private pool. The use stays.
    pub(crate) fn close_scope(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        self.privates.close(id)
    }

    /// Whether the pool lends free blocks to requests that would run out of memory.
    pub(crate) fn set_use_on_oom(&mut self, id: PoolId, on: bool) -> Result<(), PoolProblem> {
        self.privates.get_mut(id)?.use_on_oom = on;
        Ok(())
    }

    /// The pool's blocks are never split from now on.
    pub(crate) fn set_no_split(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let private = *self.privates.get_mut(id)?;
        for pool in [private.small, private.large] {
            self.pools.pool_mut(pool).no_split = true;
        }
        Ok(())
    }

    /// The private pools whose memory may go back to the device.
    pub(crate) fn released_pools(&self) -> Vec<PoolId> {
        let released = self.privates.iter().filter(|(_, private)| private.is_released());
        released.map(|(id, _)| id).collect()
    }

    /// All that a private pool can give back, small before large.
    pub(crate) fn plan_release_private(&self, id: PoolId) -> Vec<Release> {
        let pools = self.privates.get(id).map(|private| [private.small, private.large]);
        pools.map_or(Vec::new(), |pools| self.plan_release_of(&pools))
    }

    /// What is left to give back before a released pool can be forgotten: addresses without pages.
    /// None if it still has memory.
    pub(crate) fn plan_retirement(&self, id: PoolId) -> Option<Vec<Release>> {
        let private = self.privates.get(id)?;
        let pools = [private.small, private.large];
        let bare = self.plan_release_bare(&pools);
        let segments: usize = pools.iter().map(|&pool| self.segment_count(pool)).sum();
        (segments == bare.len()).then_some(bare)
    }

    fn segment_count(&self, pool: PoolIndex) -> usize {
        let pool_of = |lane| self.pools.lane(lane).pool;
        self.segments.iter().filter(|(_, segment)| pool_of(segment.lane) == pool).count()
    }

    /// Forgets a released pool that has no segment left.
    pub(crate) fn retire_pool(&mut self, id: PoolId) {
        if let Some(private) = self.privates.remove(id) {
            self.pools.remove(private.small);
            self.pools.remove(private.large);
        }
    }
}
