//! Routing: which pool a request goes to, and what may be done with private pools.

use std::collections::HashSet;
use std::thread::ThreadId;

use crate::error::{PoolProblem, Unsound};
use crate::heap::Want;
use crate::heap::ids::PoolIndex;
use crate::heap::pools::Pools;
use crate::heap::pools::pool::PoolRole;
use crate::heap::pools::private::{Caller, Filter, Private, Privates, Rule};
use crate::heap::pools::symmetric::Symmetric;
use crate::record::stats::ByPool;
use crate::types::{PoolId, PoolKind};

impl Pools {
    /// Whether any scope is open. A capture runs inside one, so that where none is open nothing
    /// needs to be known of captures.
    #[inline]
    pub(crate) fn is_diverted(&self) -> bool {
        self.privates.has_scope()
    }

    /// Whether any scope is open in which a capture may run.
    pub(crate) fn may_capture(&self) -> bool {
        self.privates.may_capture()
    }

    /// The pool that a request goes to by the open scopes.
    pub(in crate::heap) fn route(&self, caller: &Caller<'_>) -> Option<PoolId> {
        self.privates.route(caller, |id| self.is_capture_pool(id))
    }

    /// Whether graphs may be captured in a private pool.
    pub(crate) fn is_capture_pool(&self, id: PoolId) -> bool {
        let role = self.privates.get(id).map(|private| self.pool(private.small).role());
        matches!(role, Some(PoolRole::Capture | PoolRole::Tagged))
    }

    /// The pool of the newest region that is open in a thread.
    pub(crate) fn region_of(&self, thread: ThreadId) -> Option<PoolId> {
        self.privates.region_of(thread)
    }

    /// Opens a region of a tag's pool in a thread.
    pub(crate) fn open_region(&mut self, pool: PoolId, thread: ThreadId) {
        self.privates.open_region(pool, thread);
    }

    /// Closes the newest region of a pool in a thread. False if there is none.
    pub(crate) fn close_region(&mut self, pool: PoolId, thread: ThreadId) -> bool {
        self.privates.close_region(pool, thread)
    }

    /// Makes the pool of a tag. Where there is no virtual memory it is one like any other.
    pub(crate) fn add_tag_pool(&mut self, id: PoolId, virtual_memory: bool) {
        self.add_private(id, false, false);
        if virtual_memory {
            self.set_tag_role(id, PoolRole::Tag);
        }
    }

    /// A private pool is first used in a region of a tag. False, and nothing is done, if its
    /// segments are not the device's.
    pub(crate) fn tag_pool(&mut self, id: PoolId) -> bool {
        let own_source = self.privates.get(id).is_none_or(|private| private.own_source);
        if !own_source {
            self.set_tag_role(id, PoolRole::Tagged);
        }
        !own_source
    }

    /// Whether a private pool is a tag's own.
    pub(in crate::heap) fn is_tags_own(&self, id: PoolId) -> bool {
        let private = self.privates.get(id);
        private.is_some_and(|private| self.pool(private.small).role() == PoolRole::Tag)
    }

    /// The pools that are tags' own.
    pub(crate) fn tags_own(&self) -> Vec<PoolId> {
        let ids = self.privates.iter().map(|(id, _)| id);
        ids.filter(|&id| self.is_tags_own(id)).collect()
    }

    fn set_tag_role(&mut self, id: PoolId, role: PoolRole) {
        let Some(&Private { small, large, .. }) = self.privates.get(id) else { return };
        for half in [small, large] {
            self.pool_mut(half).set_role(role);
        }
    }

    /// The private pools.
    pub(in crate::heap) fn privates(&self) -> &Privates {
        &self.privates
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

    /// The private pools that may lend to a request, in the order in which they are asked.
    pub(crate) fn lenders_for(&self, want: &Want) -> Vec<PoolId> {
        if self.pool(want.pool).owner().is_some() {
            return Vec::new();
        }
        let is_open = |id: &PoolId| self.privates.get(*id).is_some_and(|p| !p.is_released());
        self.privates.lenders.iter().filter(is_open).collect()
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
        assert!(self.privates.get(id).is_none(), "{id} is there already");
        let small = self.add(PoolKind::Small, Some(id));
        let large = self.add(PoolKind::Large, Some(id));
        let no_split = self.privates.unsplit.contains(&id);
        for pool in [small, large] {
            let half = self.pool_mut(pool);
            half.set_role(if own_source { PoolRole::OwnSource } else { PoolRole::Usual });
            half.set_no_split(no_split);
        }
        let (uses, held, growths, stays_put) = (1, 0, 0, own_source);
        let private =
            Private { small, large, uses, held, own_source, symmetric, growths, stays_put };
        self.privates.insert(id, private);
    }

    /// Graph captures take their memory from the pool from now on.
    pub(in crate::heap) fn note_capture_pool(&mut self, id: PoolId) {
        let Ok(private) = self.privates.get_mut(id) else { return };
        private.stays_put = true;
        let private = *private;
        for half in [private.small, private.large] {
            let half = self.pool_mut(half);
            if half.role() == PoolRole::Usual {
                half.set_role(PoolRole::Capture);
            }
        }
    }

    /// A checkpoint of the pool was made: its memory stays where it is from now on.
    pub(in crate::heap) fn note_checkpoint(&mut self, id: PoolId) {
        if let Ok(private) = self.privates.get_mut(id) {
            private.stays_put = true;
        }
    }

    /// Whether what is free in a pool may be shown elsewhere, go to other streams, and be given
    /// back. In a private pool it may as long as the pool is a program's own and no graph can know
    /// its addresses.
    pub(in crate::heap) fn is_movable(&self, id: PoolIndex) -> bool {
        let pool = self.pool(id);
        let Some(private) = pool.owner().and_then(|owner| self.privates.get(owner)) else {
            return pool.owner().is_none();
        };
        !private.stays_put && !pool.no_split() && pool.role() == PoolRole::Usual
    }

    /// Whether there is any private pool.
    pub(in crate::heap) fn has_private(&self) -> bool {
        self.privates.iter().next().is_some()
    }

    /// The pools whose free memory may go to this one: the default pools and those of programs, and
    /// those of any kind that nobody uses any more. What all ranks give back together is not among
    /// them.
    pub(in crate::heap) fn givers(&self, taker: PoolIndex) -> Vec<PoolIndex> {
        let may_give = |&(_, private): &(PoolId, &Private)| {
            let is_over = private.is_released() && !private.own_source;
            !private.symmetric && (is_over || self.is_movable(private.large))
        };
        let private = self.privates.iter().filter(may_give);
        let private = private.flat_map(|(_, private)| [private.large, private.small]);
        let givers = [PoolIndex::LARGE, PoolIndex::SMALL].into_iter().chain(private);
        givers.filter(|&giver| giver != taker).collect()
    }

    /// The private pools whose free memory may go back to the device though they are in use.
    pub(crate) fn movable_pools(&self) -> Vec<PoolId> {
        let movable = |private: &Private| !private.is_released() && self.is_movable(private.large);
        self.privates.iter().filter(|(_, one)| movable(one)).map(|(id, _)| id).collect()
    }

    pub(in crate::heap) fn with_source(&self, owner: Option<PoolId>) -> Option<PoolId> {
        owner.filter(|&id| self.privates.get(id).is_some_and(|private| private.own_source))
    }

    /// The expandable segments of a private pool grew for a request, or a range of them was
    /// unmapped.
    pub(in crate::heap) fn count_growth(&mut self, pool: PoolIndex, change: i64) {
        let owner = self.pool(pool).owner();
        if let Some(private) = owner.and_then(|owner| self.privates.get_mut(owner).ok()) {
            private.growths += change;
        }
    }

    /// The bytes held of the device for a private pool became more or fewer.
    pub(in crate::heap) fn count_reserved(&mut self, pool: PoolIndex, change_bytes: i64) {
        let pool = self.pool(pool);
        if let Some(owner) = pool.owner() {
            self.privates.count_reserved(owner, pool.kind(), change_bytes);
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
            if self.no_split_goes_with_pool {
                self.privates.unsplit.remove(&id);
                for pool in self.privates.parts(id) {
                    self.pool_mut(pool).set_no_split(false);
                }
            }
        }
        Ok(())
    }

    /// A request for a private pool is under way: the pool is not forgotten until it is let go of.
    pub(crate) fn hold_pool(&mut self, want: &Want) -> Option<PoolId> {
        let id = self.pool(want.pool).owner()?;
        self.privates.get_mut(id).ok()?.held += 1;
        Some(id)
    }

    /// The request is done.
    pub(crate) fn let_go_of_pool(&mut self, id: PoolId) {
        if let Ok(private) = self.privates.get_mut(id) {
            private.held = private.held.checked_sub(1).expect("it was held");
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
            self.pool_mut(pool).set_no_split(true);
        }
        Ok(())
    }

    /// The private pools whose memory may go back to the device.
    pub(crate) fn released_pools(&self) -> Vec<PoolId> {
        self.privates.released.iter().collect()
    }

    /// Forgets a released pool that has no segment left.
    pub(crate) fn retire_pool(&mut self, id: PoolId) {
        debug_assert!(self.privates.get(id).is_none_or(|one| one.is_released() && one.held == 0));
        let differs = self.privates.get(id).is_some_and(|private| private.growths != 0);
        let keeps_name = differs && !self.released_pools_go;
        if let Some(private) = self.privates.remove(id, keeps_name) {
            for half in [private.small, private.large] {
                self.forget_asleep(half);
                self.remove(half);
            }
        }
    }

    /// Lanes and private pools are what their pools say.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        self.check_lanes()?;
        self.check_privates()
    }

    /// A private pool is released exactly if nobody uses it, and its halves know whose they are.
    fn check_privates(&self) -> Result<(), Unsound> {
        let released = self.privates.released.iter().collect::<HashSet<_>>();
        for (id, private) in self.privates.iter() {
            if private.is_released() != released.contains(&id) {
                let uses = private.uses;
                return Err(
                    format!("{id} has {uses} uses, and is released or not all the same").into()
                );
            }
            let role = self.pool(private.small).role();
            for kind in [PoolKind::Small, PoolKind::Large] {
                let half = self.pool(private.pool(kind));
                let is_half = (half.owner(), half.kind(), half.role()) == (Some(id), kind, role);
                if !is_half || (role == PoolRole::OwnSource) != private.own_source {
                    return Err(format!("a half of {id} does not know that it is one").into());
                }
            }
        }
        Ok(())
    }
}
