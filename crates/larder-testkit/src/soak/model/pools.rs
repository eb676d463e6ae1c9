//! The model's private pools.

use larder_core::policy::ReclaimRule;
use larder_core::types::StreamId;

use super::segment::State;
use super::{Model, Want};
use larder_sim::script::Route;

/// A private pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Private {
    pub(super) uses: u32,
    pub(super) no_split: bool,
    /// Its segments come from a source, whole.
    pub(super) has_source: bool,
    /// Graph captures take memory from it.
    pub(super) of_capture: bool,
    /// Requests that its expandable segments grew for, less the ranges that were unmapped.
    pub(super) growths: i64,
}

/// An open scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) pool: u32,
    pub(super) route: Route,
}

/// Each of these gives none where the allocator must refuse.
impl Model {
    /// A pool that is made has a source if one is given; one that is there stays as it is.
    pub(in crate::soak) fn add_pool_use(&mut self, pool: u32, has_source: bool) -> Option<()> {
        self.settle();
        match self.privates.get_mut(&pool) {
            Some(private) if private.uses == 0 => return None,
            Some(private) => private.uses += 1,
            None if pool == 0 => return None,
            None => {
                let no_split = self.unsplit.contains(&pool);
                // One that is gone may have left its number.
                self.released.remove(pool);
                let private = Private { uses: 1, no_split, has_source, ..Private::default() };
                self.privates.insert(pool, private);
            }
        }
        Some(())
    }

    pub(in crate::soak) fn drop_pool_use(&mut self, pool: u32) -> Option<()> {
        self.settle();
        let private = self.privates.get_mut(&pool)?;
        private.uses = private.uses.checked_sub(1)?;
        if private.uses == 0 {
            if self.policy.no_split_goes_with_pool {
                private.no_split = false;
                self.unsplit.remove(&pool);
            }
            self.released.insert(pool);
        }
        Some(())
    }

    pub(in crate::soak) fn begin_pool(&mut self, pool: u32, route: Route) -> Option<()> {
        self.settle();
        if self.scopes.iter().any(|scope| scope.pool == pool) {
            return None;
        }
        let is_new = !self.privates.contains_key(&pool);
        self.add_pool_use(pool, false)?;
        self.scopes.push(Scope { pool, route });
        if is_new || matches!(route, Route::Capture(_)) {
            let private = self.privates.get_mut(&pool)?;
            private.of_capture |= !private.has_source;
        }
        Some(())
    }

    pub(in crate::soak) fn end_pool(&mut self, pool: u32) -> Option<()> {
        self.settle();
        let at = self.scopes.iter().position(|scope| scope.pool == pool)?;
        self.scopes.remove(at);
        if self.scopes.is_empty() {
            self.streams.clear();
        }
        match self.policy.reclaim {
            ReclaimRule::ScopeEnd => self.record_put_off(),
            ReclaimRule::PoolWithReuse => self.reclaim_pool(pool),
            ReclaimRule::NextMalloc => {}
        }
        Some(())
    }

    pub(in crate::soak) fn set_use_on_oom(&mut self, pool: u32, on: bool) -> Option<()> {
        self.settle();
        if !on && self.lenders.remove(pool) {
            return Some(());
        }
        self.privates.get(&pool)?;
        if on {
            self.lenders.insert(pool);
        }
        Some(())
    }

    pub(in crate::soak) fn set_no_split(&mut self, pool: u32) -> Option<()> {
        self.settle();
        self.privates.get_mut(&pool)?.no_split = true;
        self.unsplit.insert(pool);
        Some(())
    }

    /// A pool that is in use, or that is not there, stays as it is.
    pub(in crate::soak) fn empty_pool(&mut self, pool: u32) {
        self.settle();
        if self.privates.get(&pool).is_none_or(|private| private.uses > 0) {
            return;
        }
        if !self.is_any_captured() {
            self.wait_for_events_of(pool);
        }
        self.release_private(pool);
    }

    fn wait_for_events_of(&mut self, pool: u32) {
        self.stats.num_sync_all_streams += 1;
        self.record_put_off();
        self.events.sort_by_key(|&(stream, ..)| stream);
        while let Some(at) = self.events.iter().position(|&(_, _, addr)| {
            let (segment, _) = self.find(addr);
            self.segments[segment].pool == Some(pool)
        }) {
            self.wait_for_event(at);
        }
    }

    /// The pool that a request goes to: that of the newest scope that takes it.
    pub(super) fn route(&self, stream: StreamId) -> Option<u32> {
        let is = |number: u32| StreamId(u64::from(number));
        let takes = |scope: &&Scope| match scope.route {
            Route::All => true,
            Route::Stream(only) => is(only) == stream,
            Route::Capture(origin) => {
                let own = self.capture_of(stream);
                own.is_some() && own == self.capture_of(is(origin))
            }
        };
        self.scopes.iter().rev().find(takes).map(|scope| scope.pool)
    }

    /// A free block of a pool that lends, for a request of the default pools. A pool that is
    /// released lends nothing. Where the end of a scope brings blocks of its pool back, they come
    /// back when the block is found, and before it is handed out.
    pub(super) fn borrow(&mut self, want: &Want) -> Option<u64> {
        if want.pool.is_some() {
            return None;
        }
        let lends = |pool: &u32| self.privates.get(pool).is_some_and(|private| private.uses > 0);
        let lenders: Vec<u32> = self.lenders.in_order().into_iter().filter(lends).collect();
        lenders.into_iter().find_map(|pool| {
            let want = Want { pool: Some(pool), expandable: false, ..*want };
            let found = self.find_best(&want).map(|spot| {
                let block = self.block_mut(spot);
                // What comes back meanwhile joins others, and not this one.
                block.state = State::Live;
                block.addr
            });
            self.reclaim_pool(pool);
            found.map(|addr| {
                let spot = self.find(addr);
                self.block_mut(spot).state = State::Free;
                self.hand_out(spot, &want)
            })
        })
    }
}
