//! Tags: names for memory that goes to sleep together. A tag has a private pool of its own, so that
//! no page of it has anything else; a private pool that is first used in a region of a tag is the
//! tag's as a whole.

use std::collections::BTreeMap;
use std::thread;

use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::{Error, SleepProblem};
use crate::keeper::Keep;
use crate::types::PoolId;

/// The second numbers of tags' pools begin here, above all that programs count up to.
const TAG_POOLS: u64 = 1 << 63;

/// All tags.
#[derive(Default)]
pub(super) struct Tags {
    /// By name.
    tags: BTreeMap<String, Tag>,
    /// The private pools besides a tag's own, each with the pool of its tag.
    others: BTreeMap<PoolId, PoolId>,
}

/// One tag.
#[derive(Clone, Copy, Debug)]
struct Tag {
    pool: PoolId,
    keep: Keep,
}

/// A tag, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagState {
    /// Its name.
    pub name: String,
    /// What becomes of contents while it sleeps.
    pub keep: Keep,
    /// The private pool that is its own.
    pub pool: PoolId,
    /// Bytes held of the device for it.
    pub reserved_bytes: u64,
    /// Bytes that sleep.
    pub asleep_bytes: u64,
}

impl Tags {
    /// The pools of a tag, its own first.
    pub(super) fn pools(&self, name: &str) -> Result<Vec<PoolId>, Error> {
        let unknown = || Error::Sleep(SleepProblem::UnknownTag(name.to_owned()));
        let own = self.tags.get(name).ok_or_else(unknown)?.pool;
        let others = self.others.iter().filter(|&(_, &tag)| tag == own);
        Ok(std::iter::once(own).chain(others.map(|(&pool, _)| pool)).collect())
    }

    /// What becomes of the contents of a pool; of pools of no tag they are kept.
    pub(super) fn keep_of(&self, pool: PoolId) -> Keep {
        let own = self.others.get(&pool).copied().unwrap_or(pool);
        let tag = self.tags.values().find(|tag| tag.pool == own);
        tag.map_or(Keep::Contents, |tag| tag.keep)
    }
}

impl Allocator {
    /// Begins a region of a tag in the calling thread: its requests get memory of this tag until
    /// [`Allocator::end_region`]. Regions can be nested; the innermost counts. In a graph capture
    /// that began outside, requests stay with the capture's pool; a private pool that is first used
    /// in a region is the tag's as a whole.
    ///
    /// Memory of a tag is expandable whatever the settings say, where the device has virtual
    /// memory, so that it can sleep. `keep` says what becomes of contents from now on, and of all
    /// memory of the tag.
    pub fn begin_region(&self, tag: &str, keep: Keep) -> Result<(), Error> {
        if tag.is_empty() {
            return Err(Error::Sleep(SleepProblem::NoName));
        }
        let mut inner = self.lock();
        let pool = inner.tag_pool(&*self.device, tag, keep);
        inner.heap.pools_mut().open_region(pool, thread::current().id());
        Ok(())
    }

    /// Ends the newest region of a tag in the calling thread.
    pub fn end_region(&self, tag: &str) -> Result<(), Error> {
        let mut inner = self.lock();
        let pool = inner.tags.pools(tag)?[0];
        let closed = inner.heap.pools_mut().close_region(pool, thread::current().id());
        let not_open = || Error::Sleep(SleepProblem::NotOpen(Some(tag.to_owned())));
        closed.then_some(()).ok_or_else(not_open)
    }

    /// Leaves all regions in the calling thread, until [`Allocator::return_to_regions`].
    pub fn leave_regions(&self) {
        let mut inner = self.lock();
        inner.heap.pools_mut().open_region(PoolId::NONE, thread::current().id());
    }

    /// Ends what [`Allocator::leave_regions`] began last in the calling thread.
    pub fn return_to_regions(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        let closed = inner.heap.pools_mut().close_region(PoolId::NONE, thread::current().id());
        closed.then_some(()).ok_or(Error::Sleep(SleepProblem::NotOpen(None)))
    }

    /// Runs `body` in a region of a tag, which ends with it, also if it panics.
    pub fn region<T>(&self, tag: &str, keep: Keep, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.begin_region(tag, keep)?;
        let _end = RegionEnd { allocator: self, tag };
        Ok(body())
    }

    /// All tags, by name.
    pub fn tags(&self) -> Vec<TagState> {
        let inner = self.lock();
        let tags: Vec<(String, Tag)> =
            inner.tags.tags.iter().map(|(name, &tag)| (name.clone(), tag)).collect();
        let state = |(name, tag): (String, Tag)| {
            let pools = inner.tags.pools(&name).unwrap_or_default();
            let stats = pools.iter().filter_map(|&pool| inner.heap.pool_stats(pool));
            let reserved_bytes = stats.map(|stats| stats.reserved_bytes.current as u64).sum();
            let asleep = pools.iter().map(|&pool| inner.heap.asleep_bytes(Some(pool)).0);
            let (keep, pool, asleep_bytes) = (tag.keep, tag.pool, asleep.sum());
            TagState { name, keep, pool, reserved_bytes, asleep_bytes }
        };
        tags.into_iter().map(state).collect()
    }
}

impl Inner {
    /// The pool of a tag, made on first use; what it keeps is as said now.
    fn tag_pool(&mut self, device: &dyn Device, name: &str, keep: Keep) -> PoolId {
        if let Some(tag) = self.tags.tags.get_mut(name) {
            tag.keep = keep;
            return tag.pool;
        }
        let pool = PoolId(0, TAG_POOLS | (self.tags.tags.len() as u64 + 1));
        self.heap.pools_mut().add_tag_pool(pool, device.properties().virtual_memory);
        self.tags.tags.insert(name.to_owned(), Tag { pool, keep });
        pool
    }

    /// A scope of a private pool is opened: in a region, a pool that has no memory is the tag's.
    pub(super) fn tag_scope(&mut self, device: &dyn Device, pool: PoolId) {
        let Some(own) = self.heap.pools().region_of(thread::current().id()) else { return };
        let is_empty = self.heap.is_pool_empty(pool);
        if own == PoolId::NONE || own == pool || !is_empty {
            return;
        }
        let can_sleep = device.properties().virtual_memory;
        if can_sleep && self.heap.pools_mut().tag_pool(pool) {
            self.tags.others.insert(pool, own);
        }
    }

    /// A private pool is gone.
    pub(super) fn untag(&mut self, pool: PoolId) {
        self.tags.others.remove(&pool);
    }
}

/// Ends a region, whichever way it is left.
struct RegionEnd<'a> {
    allocator: &'a Allocator,
    tag: &'a str,
}

impl Drop for RegionEnd<'_> {
    fn drop(&mut self) {
        // Somebody who ended it by name has ended it.
        let _ = self.allocator.end_region(self.tag);
    }
}
