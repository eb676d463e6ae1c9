//! Private pools: the calls that make, use and empty them, and the emptying of all caches.

use crate::allocator::{Allocator, Shelf};
use crate::device::Device;
use crate::error::{Error, PoolProblem};
use crate::heap::Filter;
use crate::record::event::Level;
use crate::types::PoolId;

/// Names the pool in an error about it.
fn about(pool: PoolId) -> impl FnOnce(PoolProblem) -> Error {
    move |problem| Error::Pool { pool, problem }
}

impl Allocator {
    /// Makes a private pool, or adds a use of it.
    pub fn add_pool_use(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.add_pool_use(pool).map_err(about(pool))
    }

    /// Drops a use of a private pool. When the last is dropped, the pool's memory may go back to
    /// the device; it does so when a cache is emptied next.
    pub fn drop_pool_use(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.drop_pool_use(pool).map_err(about(pool))
    }

    /// How many uses a private pool has; none if there is no such pool.
    pub fn pool_uses(&self, pool: PoolId) -> Option<u32> {
        self.lock().heap.pool_uses(pool)
    }

    /// Routes requests that the filter takes to the pool, from now until `end_pool`. Of several
    /// open scopes the newest that takes a request gets it. This adds a use of the pool, which
    /// `end_pool` does not drop.
    pub fn begin_pool(&self, pool: PoolId, filter: Filter) -> Result<(), Error> {
        self.lock().heap.open_scope(pool, filter).map_err(about(pool))
    }

    /// Routes no more requests to the pool.
    pub fn end_pool(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.close_scope(pool).map_err(about(pool))
    }

    /// Whether the pool lends its free blocks to requests that would run out of memory.
    pub fn set_pool_use_on_oom(&self, pool: PoolId, on: bool) -> Result<(), Error> {
        self.lock().heap.set_use_on_oom(pool, on).map_err(about(pool))
    }

    /// The pool's blocks are never split from now on.
    pub fn set_pool_no_split(&self, pool: PoolId) -> Result<(), Error> {
        self.lock().heap.set_no_split(pool).map_err(about(pool))
    }

    /// Gives back what a pool that nobody uses any more has cached. A pool in use keeps its memory.
    pub fn empty_pool(&self, pool: PoolId) -> Result<(), Error> {
        let mut shelf = self.enter(Level::All);
        let result = if shelf.heap.pool_uses(pool) == Some(0) {
            shelf.empty_released(&*self.device, pool)
        } else {
            Ok(())
        };
        drop(shelf);
        self.leave();
        result
    }
}

impl Shelf {
    /// Waits for the blocks of a pool that nobody uses, and empties it. While a capture is on
    /// nothing can be waited for; what is free goes all the same.
    fn empty_released(&mut self, device: &dyn Device, pool: PoolId) -> Result<(), Error> {
        if !self.heap.is_diverted() {
            self.wait_for_events_of(device, pool)?;
        }
        self.empty_private(device, pool)
    }

    /// Empties the default pools, unless a scope is open, and all pools that nobody uses.
    pub(super) fn empty(&mut self, device: &dyn Device) -> Result<(), Error> {
        if !self.heap.is_diverted() {
            self.wait_for_events(device)?;
        }
        self.flush(device)
    }

    /// Gives everything back that can go, of the default pools unless a scope is open, and of all
    /// pools that nobody uses.
    pub(super) fn flush(&mut self, device: &dyn Device) -> Result<(), Error> {
        if !self.heap.is_diverted() {
            let plan = self.heap.plan_release();
            self.release(device, &plan)?;
        }
        for pool in self.heap.released_pools() {
            self.empty_private(device, pool)?;
        }
        Ok(())
    }

    /// Empties a pool that nobody uses, and forgets it if nothing is left of it.
    fn empty_private(&mut self, device: &dyn Device, pool: PoolId) -> Result<(), Error> {
        let plan = self.heap.plan_release_private(pool);
        self.release(device, &plan)?;
        if let Some(bare) = self.heap.plan_retirement(pool) {
            self.release(device, &bare)?;
            self.heap.retire_pool(pool);
        }
        Ok(())
    }
}
