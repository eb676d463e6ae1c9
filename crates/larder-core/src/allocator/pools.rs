//! Private pools: the calls that make, use and empty them, and the emptying of all caches.

use std::sync::Arc;

use crate::allocator::sources::Sourced;
use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::{Error, PoolProblem};
use crate::heap::pools::private::Rule;
use crate::heap::pools::symmetric::HOME;
use crate::heap::states::{PoolStats, SegmentState};
use crate::heap::{Filter, Heap, Want};
use crate::record::caught;
use crate::record::event::Level;
use crate::record::stats::ByPool;
use crate::source::SegmentSource;
use crate::types::{DeviceIndex, PoolId, StreamId};

/// Says of a request's stream whether a scope takes the request.
pub(super) type FilterFunction = Box<dyn Fn(StreamId) -> bool + Send>;

/// A request under way keeps its pool from being forgotten: it may drop the lock, and come back
/// with a segment for it. This shows in no count of uses.
pub(super) struct Hold<'a> {
    allocator: &'a Allocator,
    pool: PoolId,
}

impl<'a> Hold<'a> {
    /// Holds the pool of a request; none for the default pools, which are always there. It must be
    /// dropped with the lock dropped.
    pub(super) fn new(
        allocator: &'a Allocator,
        inner: &mut Inner,
        want: &Want,
    ) -> Option<Hold<'a>> {
        inner.heap.pools_mut().hold_pool(want).map(|pool| Hold { allocator, pool })
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // If this unwinds out of a poisoned lock, nobody gets in any more to see the pool.
        let Ok(mut inner) = self.allocator.inner.lock() else { return };
        inner.heap.settle();
        inner.heap.pools_mut().let_go_of_pool(self.pool);
        // Whoever released and emptied the pool meanwhile could not forget it.
        if inner.heap.pools().pool_uses(self.pool) == Some(0) {
            inner.retire(self.pool);
        }
    }
}

impl Allocator {
    /// A name for a pool that a program makes, (0, n). It makes no pool.
    pub fn name_pool(&self) -> PoolId {
        self.lock_as_is().name(|numbers| {
            numbers.0 += 1;
            PoolId(0, numbers.0)
        })
    }

    /// A name for a pool that a graph capture makes, (n, 0). It makes no pool.
    pub fn name_capture_pool(&self) -> PoolId {
        self.lock_as_is().name(|numbers| {
            numbers.1 += 1;
            PoolId(numbers.1, 0)
        })
    }

    /// Makes a private pool whose segments come from a source of its own, which lives as long as
    /// the pool has memory. There must be no such pool yet. If the source panics, nothing changed
    /// hands, and the panic goes on from the call that asked for memory or gave it back.
    pub fn add_pool_with_source(
        &self,
        pool: PoolId,
        source: Arc<dyn SegmentSource>,
    ) -> Result<(), Error> {
        let result = {
            let mut inner = self.lock();
            inner.add_sourced(pool, source, self.device_index(), |heap| {
                heap.pools_mut().add_pool_with_source(pool)
            })
        };
        caught::go_on();
        result
    }

    /// The bytes held of the device for each private pool that ever held any, those of pools that
    /// are gone included.
    pub fn reserved_by_pool(&self) -> Vec<(PoolId, ByPool)> {
        self.look().heap.pools().reserved_by_pool()
    }

    /// What a private pool holds; none if there is no such pool.
    pub fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        self.look().heap.pool_stats(pool)
    }

    /// Every segment and block of a private pool as it stands; none if there is no such pool.
    pub fn pool_snapshot(&self, pool: PoolId) -> Option<Vec<SegmentState>> {
        self.look().heap.snapshot_of(pool)
    }

    /// Makes a private pool, or adds a use of it.
    pub fn add_pool_use(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.pools_mut().add_pool_use(pool).map_err(Error::pool(pool))
    }

    /// Drops a use of a private pool. When the last is dropped, the pool's memory may go back to
    /// the device; it does so when a cache is emptied next.
    pub fn drop_pool_use(&self, pool: PoolId) -> Result<(), Error> {
        let result = {
            let mut inner = self.lock();
            let dropped = inner.heap.pools_mut().drop_pool_use(pool).map_err(Error::pool(pool));
            match dropped {
                Ok(()) if inner.heap.pools().pool_uses(pool) == Some(0) => {
                    inner.tell_source(pool, "release a pool", |source| source.release_pool(pool))
                }
                dropped => dropped,
            }
        };
        caught::go_on();
        result
    }

    /// How many uses a private pool has; none if there is no such pool.
    pub fn pool_uses(&self, pool: PoolId) -> Option<u32> {
        self.look().heap.pools().pool_uses(pool)
    }

    /// Routes requests that the filter takes to the pool, from now until `end_pool`. Of several
    /// open scopes the newest that takes a request gets it. This adds a use of the pool, which
    /// `end_pool` does not drop.
    ///
    /// A graph capture runs inside such a scope, which names the captured stream: it is opened
    /// before the capture begins and closed after it has ended, also if it went wrong, by the
    /// thread that begins and ends the capture. Other threads' requests on streams that join it
    /// find the scope once that thread has allocated on the stream, or has marked the capture
    /// ([`Allocator::mark_capture_begin`]).
    pub fn begin_pool(&self, pool: PoolId, filter: Filter) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.open_scope(&*self.device, pool, Rule::Filter(filter))?;
        inner.scope_opened(pool, Some(filter));
        drop(inner);
        caught::go_on();
        Ok(())
    }

    /// As [`Allocator::begin_pool`], with a function that is given a request's stream and says
    /// whether the scope takes the request. It is called under the allocator's lock and must not
    /// call the allocator; a request that a newer scope takes it is not asked about. It is dropped
    /// with no lock held when the scope ends. If it panics it did not take the request, and the
    /// panic goes on from the `malloc`, which hands out nothing.
    pub fn begin_pool_by(
        &self,
        pool: PoolId,
        takes: impl Fn(StreamId) -> bool + Send + 'static,
    ) -> Result<(), Error> {
        let takes = move |stream| caught::catch(|| takes(stream)).unwrap_or(false);
        let takes: FilterFunction = Box::new(takes);
        let mut inner = self.lock();
        inner.open_scope(&*self.device, pool, Rule::Function)?;
        inner.functions.insert(pool, takes);
        inner.scope_opened(pool, None);
        Ok(())
    }

    /// Routes no more requests to the pool.
    pub fn end_pool(&self, pool: PoolId) -> Result<(), Error> {
        let mut inner = self.enter(Level::All);
        let mut result = inner.heap.pools_mut().close_scope(pool).map_err(Error::pool(pool));
        let mut function = None;
        if result.is_ok() {
            function = inner.functions.remove(&pool);
            inner.scope_closed(&*self.device, pool);
            result = inner.tell_source(pool, "end a scope", |source| source.end_pool(pool));
        }
        drop(inner);
        drop(function);
        self.leave();
        result
    }

    /// Whether the pool lends its free blocks to requests that would run out of memory.
    pub fn set_pool_use_on_oom(&self, pool: PoolId, on: bool) -> Result<(), Error> {
        self.lock().heap.pools_mut().set_use_on_oom(pool, on).map_err(Error::pool(pool))
    }

    /// The pool's blocks are never split from now on.
    pub fn set_pool_no_split(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.pools_mut().set_no_split(pool).map_err(Error::pool(pool))
    }

    /// Gives back what a pool that nobody uses any more has cached. A pool in use keeps its memory.
    pub fn empty_pool(&self, pool: PoolId) -> Result<(), Error> {
        let mut inner = self.enter(Level::All);
        let result = if inner.heap.pools().pool_uses(pool) == Some(0) {
            inner.empty_released(&*self.device, pool)
        } else {
            Ok(())
        };
        drop(inner);
        self.leave();
        result
    }
}

impl Inner {
    /// Waits for the blocks of a pool that nobody uses, and empties it. While a capture is on
    /// nothing can be waited for; what is free goes all the same.
    fn empty_released(&mut self, device: &dyn Device, pool: PoolId) -> Result<(), Error> {
        if !self.is_any_captured(device)? {
            self.wait_for_events_of(device, pool)?;
        }
        self.empty_private(device, pool, None)
    }

    /// Makes a pool with a source, or neither.
    pub(super) fn add_sourced(
        &mut self,
        pool: PoolId,
        source: Arc<dyn SegmentSource>,
        device: DeviceIndex,
        add: impl FnOnce(&mut Heap) -> Result<(), PoolProblem>,
    ) -> Result<(), Error> {
        self.heap.pools().check_new(pool).map_err(Error::pool(pool))?;
        let began = Sourced::new(source, device);
        let sourced = began.map_err(|error| Error::Source { pool, call: "begin", error })?;
        add(&mut self.heap).map_err(Error::pool(pool))?;
        self.keep_source(pool, sourced);
        Ok(())
    }

    /// Opens a scope, unless the pool's source objects, or its memory sleeps and a graph may be
    /// captured in it.
    fn open_scope(&mut self, device: &dyn Device, pool: PoolId, rule: Rule) -> Result<(), Error> {
        let is_captures = matches!(rule, Rule::Filter(Filter::Capture(_)));
        if self.heap.is_asleep(Some(pool))
            && (is_captures || self.heap.pools().is_capture_pool(pool))
        {
            return Err(Error::pool(pool)(PoolProblem::Asleep));
        }
        self.heap.pools_mut().open_scope(pool, rule).map_err(Error::pool(pool))?;
        let told = self.tell_source(pool, "begin a scope", |source| source.begin_pool(pool));
        told.inspect_err(|_| {
            let _ = self.heap.pools_mut().close_scope(pool);
            let _ = self.heap.pools_mut().drop_pool_use(pool);
        })?;
        self.tag_scope(device, pool);
        Ok(())
    }

    /// Gives out a name that no pool has.
    fn name(&mut self, next: impl Fn(&mut (u64, u64)) -> PoolId) -> PoolId {
        loop {
            let id = next(&mut self.pools_named);
            if self.heap.pools().pool_uses(id).is_none() {
                return id;
            }
        }
    }

    /// Empties the default pools, unless a capture is on, and all pools that nobody uses.
    pub(super) fn empty(&mut self, device: &dyn Device) -> Result<(), Error> {
        let captured = self.is_any_captured(device)?;
        if !captured {
            self.wait_for_events(device)?;
        }
        self.flush(device, captured, None)
    }

    /// Gives everything back that can go, of the default pools and those of tags unless a capture
    /// is on, and of all pools that nobody uses. Where memory is shared in pages, a program's own
    /// pools give back what is free in them as the default pools do, as long as no graph can know
    /// it.
    /// `own` is the stream that is the caller's.
    pub(super) fn flush(
        &mut self,
        device: &dyn Device,
        captured: bool,
        own: Option<StreamId>,
    ) -> Result<(), Error> {
        if !captured {
            self.unite(device, own)?;
            let plan = self.heap.plan_release();
            self.release_for(device, &plan, own)?;
            // No graph uses what is free in a tag's own pool.
            for pool in self.heap.pools().tags_own() {
                let plan = self.heap.plan_release_private(pool);
                self.release_for(device, &plan, own)?;
            }
        }
        if !captured && self.heap.joins_pieces() {
            for pool in self.heap.pools().movable_pools() {
                let plan = self.heap.plan_release_private(pool);
                self.release_for(device, &plan, own)?;
            }
        }
        for pool in self.heap.pools().released_pools() {
            // What all ranks give back together goes when the program says so, and not when one of
            // them is short of memory.
            if own.is_none() || !self.is_collective(pool) {
                self.empty_private(device, pool, own)?;
            }
        }
        self.heap.forget_idle_streams();
        Ok(())
    }

    /// Before memory of a symmetric pool goes back to its source all work on it has to be done.
    pub(super) fn finish_symmetric(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
    ) -> Result<(), Error> {
        if self.heap.pools().symmetric(pool).is_err() {
            return Ok(());
        }
        self.forbid_capture(device, pool)?;
        device.wait_stream(HOME).map_err(Error::device("wait for a stream"))
    }

    /// Refuses what would wait for the default stream while a capture may be on.
    fn forbid_capture(&mut self, device: &dyn Device, pool: PoolId) -> Result<(), Error> {
        if self.heap.pools().may_capture() && self.may_anybody_capture(device)? {
            return Err(Error::pool(pool)(PoolProblem::Captured));
        }
        Ok(())
    }

    /// Empties a pool that nobody uses, and forgets it if nothing is left of it.
    fn empty_private(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
        own: Option<StreamId>,
    ) -> Result<(), Error> {
        self.shed(device, Some(pool))?;
        let plan = self.heap.plan_release_private(pool);
        if !plan.is_empty() {
            self.finish_symmetric(device, pool)?;
        }
        self.release_for(device, &plan, own)?;
        if let Some(bare) = self.heap.inventory().plan_retirement(pool) {
            self.release(device, &bare)?;
            self.retire(pool);
        }
        Ok(())
    }

    /// Forgets a pool that nobody uses, if nothing is left of it.
    fn retire(&mut self, pool: PoolId) {
        if self.heap.inventory().plan_retirement(pool).is_some_and(|bare| bare.is_empty()) {
            self.heap.pools_mut().retire_pool(pool);
            self.untag(pool);
            self.forget_contents(Some(pool));
            // What it does when it is dropped is its own, and may need locks.
            self.sources.remove(&pool).into_iter().for_each(caught::drop_later);
        }
    }
}
