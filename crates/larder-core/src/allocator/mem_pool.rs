//! Memory pools as values: a pool that is released when it is dropped, and scopes that end.

use std::fmt;
use std::sync::Arc;
use std::thread;

use crate::allocator::Allocator;
use crate::allocator::checkpoint::check_owner;
use crate::allocator::symmetric::{Exchange, SequenceState, SymmetricOptions};
use crate::error::{Error, ExchangeError};
use crate::heap::Filter;
use crate::heap::checkpoint::{Checkpoint, Restored};
use crate::heap::states::{PoolStats, SegmentState};
use crate::sequence::Position;
use crate::source::{SegmentSource, SourceCounts};
use crate::types::{Addr, PoolId, Span};

/// A private pool of memory. Dropping it gives its cached memory back; blocks that are still live
/// stay good, and their memory goes back when they are freed and a cache is emptied.
///
/// ```
/// # use std::sync::Arc;
/// # use larder_core::{Allocator, Error, MemPool, StreamId};
/// # fn example(allocator: Arc<Allocator>) -> Result<(), Error> {
/// let pool = MemPool::new(&allocator)?;
/// let block = pool.scope(|| allocator.malloc(1 << 20, StreamId(0)))??;
/// drop(pool);
/// allocator.free(block)
/// # }
/// ```
pub struct MemPool {
    allocator: Arc<Allocator>,
    id: PoolId,
}

impl MemPool {
    /// A new pool of a program.
    pub fn new(allocator: &Arc<Allocator>) -> Result<MemPool, Error> {
        MemPool::named(allocator, allocator.name_pool())
    }

    /// A new pool for a graph capture.
    pub fn for_capture(allocator: &Arc<Allocator>) -> Result<MemPool, Error> {
        MemPool::named(allocator, allocator.name_capture_pool())
    }

    /// A new pool whose segments come from a source of its own.
    pub fn with_source(
        allocator: &Arc<Allocator>,
        source: Arc<dyn SegmentSource>,
    ) -> Result<MemPool, Error> {
        let id = allocator.name_pool();
        allocator.add_pool_with_source(id, source)?;
        Ok(MemPool { allocator: allocator.clone(), id })
    }

    /// A new symmetric pool: where a block lies in it follows from the sequence of requests and
    /// frees alone, whatever addresses the source gives and whatever streams are doing. Ranks that
    /// make the same calls have every block in the same segment at the same offset, and
    /// [`MemPool::seal`] proves it, or tells all of them the first call that differs.
    ///
    /// Its memory is ordered by the default stream: requests on other streams wait for it, and it
    /// waits for them when they free. Its segments stay until [`MemPool::trim`], or until the pool
    /// is dropped.
    pub fn symmetric(
        allocator: &Arc<Allocator>,
        source: Arc<dyn SegmentSource>,
        options: SymmetricOptions,
    ) -> Result<MemPool, Error> {
        let id = allocator.name_pool();
        allocator.add_symmetric_pool(id, source, options)?;
        Ok(MemPool { allocator: allocator.clone(), id })
    }

    /// One more use of the pool of this name, which is made if there is none.
    pub fn named(allocator: &Arc<Allocator>, id: PoolId) -> Result<MemPool, Error> {
        allocator.add_pool_use(id)?;
        Ok(MemPool { allocator: allocator.clone(), id })
    }

    /// Its name.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// How many use it, this value included.
    pub fn uses(&self) -> u32 {
        self.allocator.pool_uses(self.id).unwrap_or(0)
    }

    /// Runs `body` with all requests of this thread routed to the pool. Scopes can be nested, but
    /// for those of the same pool; the innermost gets a request.
    pub fn scope<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.scope_for(Filter::Thread(thread::current().id()), body)
    }

    /// Runs `body` with all requests routed to the pool that the filter takes. The scope ends with
    /// `body`, also if it panics.
    pub fn scope_for<T>(&self, filter: Filter, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.allocator.begin_pool(self.id, filter)?;
        let _end = ScopeEnd(self);
        Ok(body())
    }

    /// Whether the pool lends its free blocks to requests that would run out of memory.
    pub fn set_use_on_oom(&self, on: bool) -> Result<(), Error> {
        self.allocator.set_pool_use_on_oom(self.id, on)
    }

    /// The pool's blocks are never split from now on.
    pub fn set_no_split(&self) -> Result<(), Error> {
        self.allocator.set_pool_no_split(self.id)
    }

    /// What it holds.
    pub fn stats(&self) -> PoolStats {
        self.allocator.pool_stats(self.id).unwrap_or_default()
    }

    /// Every segment and block of it.
    pub fn snapshot(&self) -> Vec<SegmentState> {
        self.allocator.pool_snapshot(self.id).unwrap_or_default()
    }

    /// Saves its layout. See [`Allocator::checkpoint_pool`].
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        self.allocator.checkpoint_pool(self.id)
    }

    /// Puts a layout of this pool back. See [`Allocator::restore_pool`].
    pub fn restore(&self, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        check_owner(self.id, checkpoint)?;
        self.allocator.restore_pool(checkpoint)
    }

    /// What its source was asked for so far; none if it has no source of its own.
    pub fn source_counts(&self) -> Option<SourceCounts> {
        self.allocator.source_counts(self.id)
    }

    /// Compares the calls of all ranks of a symmetric pool. See [`Allocator::seal_pool`].
    pub fn seal(
        &self,
        mut exchange: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>,
    ) -> Result<u64, Error> {
        let exchange: Exchange<'_> = &mut exchange;
        self.allocator.seal_pool(self.id, exchange)
    }

    /// Gives back the empty segments of a symmetric pool. See [`Allocator::trim_pool`].
    pub fn trim(&self) -> Result<u64, Error> {
        self.allocator.trim_pool(self.id)
    }

    /// Where a live block lies in this symmetric pool: the same on every rank that made the same
    /// calls.
    pub fn position_of(&self, addr: Addr) -> Result<Position, Error> {
        self.allocator.position_of(addr)
    }

    /// The segments of a symmetric pool, with their numbers, in the order in which they came.
    pub fn symmetric_segments(&self) -> Result<Vec<(u64, Span)>, Error> {
        self.allocator.symmetric_segments(self.id)
    }

    /// How many calls a symmetric pool has seen, and their hash.
    pub fn sequence(&self) -> Result<SequenceState, Error> {
        self.allocator.sequence_of(self.id)
    }

    /// Whether exactly these of its blocks are live.
    pub fn has_live(&self, expected: &[Addr]) -> Result<bool, Error> {
        self.allocator.pool_has_live(self.id, expected)
    }
}

impl fmt::Debug for MemPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemPool").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        // It lends nothing that its owner has done with.
        if self.uses() == 1 {
            let _ = self.allocator.set_pool_use_on_oom(self.id, false);
        }
        let _ = self.allocator.drop_pool_use(self.id);
        // What the device refuses now goes when a cache is emptied next.
        let _ = self.allocator.empty_pool(self.id);
    }
}

/// Ends a scope, whichever way it is left.
struct ScopeEnd<'a>(&'a MemPool);

impl Drop for ScopeEnd<'_> {
    fn drop(&mut self) {
        // Somebody who ended it by name has dropped its use by name too.
        if self.0.allocator.end_pool(self.0.id).is_ok() {
            let _ = self.0.allocator.drop_pool_use(self.0.id);
        }
    }
}
