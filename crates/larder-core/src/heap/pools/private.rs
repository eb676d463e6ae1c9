//! Private pools: memory set apart for a graph or by a program, and the scopes that route requests
//! to it.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::ThreadId;

use crate::error::PoolProblem;
use crate::heap::ids::PoolIndex;
use crate::heap::pools::name_table::NameTable;
use crate::heap::pools::symmetric::Symmetric;
use crate::record::stats::{ByPool, Counter};
use crate::types::{PoolId, PoolKind, StreamId};

/// Which requests a scope routes to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them.
    Any,
    /// Those for this stream.
    Stream(StreamId),
    /// Those made by this thread.
    Thread(ThreadId),
    /// Those for streams under the same graph capture as this one, at the time of the request.
    Capture(StreamId),
}

/// How a scope chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Filter(Filter),
    /// Those made by this thread, in a region of a tag, or in one that leaves all regions. It is no
    /// capture's, and a capture's own pool comes before it.
    Region(ThreadId),
    /// By a function, which the shell keeps and calls.
    Function,
}

/// A request as scopes look at it.
pub(crate) struct Caller<'a> {
    pub(crate) stream: StreamId,
    pub(crate) thread: ThreadId,
    /// Of the streams that open scopes name by their captures, those whose capture the request's
    /// stream is under.
    pub(crate) captured_with: &'a [StreamId],
    /// Whether the function of this pool's scope takes the request. It is asked only where no
    /// newer scope takes it.
    pub(crate) takes: &'a dyn Fn(PoolId) -> bool,
}

/// One private pool: two pools of its own, and who holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Private {
    pub(super) small: PoolIndex,
    pub(super) large: PoolIndex,
    /// How many still use it. At 0 its memory may go back to the device.
    pub(super) uses: u32,
    /// How many requests for it are under way that may drop the lock. Until they are done it is
    /// not forgotten, whoever uses it.
    pub(super) held: u32,
    /// Its segments come from a source of its own.
    pub(super) own_source: bool,
    /// Its placement follows from the calls that all ranks make.
    pub(super) symmetric: bool,
    /// Requests that its expandable segments grew for, less the ranges of them that were unmapped.
    pub(super) growths: i64,
    /// Its memory stays where it is, because graphs or checkpoints may know it.
    pub(super) stays_put: bool,
}

impl Private {
    pub(crate) fn pool(&self, kind: PoolKind) -> PoolIndex {
        match kind {
            PoolKind::Small => self.small,
            PoolKind::Large => self.large,
        }
    }

    /// How many use it.
    pub(in crate::heap) fn uses(&self) -> u32 {
        self.uses
    }

    /// How many requests for it are under way.
    pub(in crate::heap) fn held(&self) -> u32 {
        self.held
    }

    /// Whether its placement follows from the calls that all ranks make.
    pub(in crate::heap) fn is_symmetric(&self) -> bool {
        self.symmetric
    }

    /// Whether a pool is one of its two.
    pub(in crate::heap) fn has_half(&self, pool: PoolIndex) -> bool {
        pool == self.small || pool == self.large
    }

    /// Nobody uses it any more.
    pub(crate) fn is_released(&self) -> bool {
        self.uses == 0
    }
}

/// All private pools, and the open scopes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Privates {
    pools: BTreeMap<PoolId, Private>,
    scopes: Vec<(PoolId, Rule)>,
    /// The threads whose requests get plain memory, and how often each asked for it.
    plain_threads: Vec<(ThreadId, u32)>,
    /// Those that lend free blocks to requests that would run out of memory.
    /// Their names stay when they are gone, until they are taken off.
    pub(super) lenders: NameTable,
    /// Those whose blocks are never split. As in PyTorch that goes by the name, too.
    pub(super) unsplit: BTreeSet<PoolId>,
    /// What the symmetric ones know besides.
    pub(super) symmetric: BTreeMap<PoolId, Symmetric>,
    /// Those that nobody uses any more. A policy may keep their names when they are gone.
    pub(super) released: NameTable,
    /// Bytes held of the device for each pool that ever held any. As in PyTorch they are counted on
    /// when the pool is gone.
    reserved: BTreeMap<PoolId, ByPool>,
}

impl Privates {
    pub(crate) fn get(&self, id: PoolId) -> Option<&Private> {
        self.pools.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: PoolId) -> Result<&mut Private, PoolProblem> {
        self.pools.get_mut(&id).ok_or(PoolProblem::Unknown)
    }

    pub(crate) fn insert(&mut self, id: PoolId, private: Private) {
        // One that is gone may have left its name.
        self.released.remove(id);
        self.pools.insert(id, private);
    }

    /// Forgets a pool; its name may stay among the released ones.
    pub(crate) fn remove(&mut self, id: PoolId, keeps_name: bool) -> Option<Private> {
        if !keeps_name {
            self.released.remove(id);
        }
        self.symmetric.remove(&id);
        self.pools.remove(&id)
    }

    /// All the pools that a private pool is made of: its two, and one for each segment of a
    /// symmetric one, in the order in which the segments came.
    pub(crate) fn parts(&self, id: PoolId) -> Vec<PoolIndex> {
        let Some(private) = self.pools.get(&id) else { return Vec::new() };
        let plots = self.symmetric.get(&id).into_iter().flat_map(Symmetric::pools);
        [private.small, private.large].into_iter().chain(plots).collect()
    }

    /// What the symmetric one of this name knows besides its blocks.
    pub(in crate::heap) fn symmetric(&self, id: PoolId) -> Option<&Symmetric> {
        self.symmetric.get(&id)
    }

    /// What each symmetric one knows besides its blocks.
    pub(in crate::heap) fn all_symmetric(&self) -> impl Iterator<Item = (PoolId, &Symmetric)> {
        self.symmetric.iter().map(|(&id, symmetric)| (id, symmetric))
    }

    /// Whether blocks of a pool of this name are never split.
    pub(in crate::heap) fn is_unsplit(&self, id: PoolId) -> bool {
        self.unsplit.contains(&id)
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Private)> + '_ {
        self.pools.iter().map(|(&id, private)| (id, private))
    }

    /// All uses are dropped and all scopes closed.
    pub(crate) fn abandon(&mut self) {
        self.scopes.clear();
        for (&id, private) in &mut self.pools {
            private.uses = 0;
            self.released.add(id);
        }
    }

    /// The bytes held of the device for a pool became more or fewer.
    pub(crate) fn count_reserved(&mut self, id: PoolId, kind: PoolKind, change_bytes: i64) {
        let reserved = self.reserved.entry(id).or_default();
        let of_kind = match kind {
            PoolKind::Small => &mut reserved.small_pool,
            PoolKind::Large => &mut reserved.large_pool,
        };
        for counter in [of_kind, &mut reserved.all] {
            counter.current += change_bytes;
            counter.peak = counter.peak.max(counter.current);
            counter.allocated += change_bytes.max(0);
            counter.freed += (-change_bytes).max(0);
        }
    }

    /// The bytes held of the device for each pool that ever held any.
    pub(crate) fn reserved(&self) -> &BTreeMap<PoolId, ByPool> {
        &self.reserved
    }

    /// Every count of the bytes held.
    pub(crate) fn reserved_counters(&mut self) -> impl Iterator<Item = &mut Counter> + '_ {
        self.reserved.values_mut().flat_map(|reserved| {
            [&mut reserved.all, &mut reserved.small_pool, &mut reserved.large_pool]
        })
    }

    /// Requests of the thread get plain memory from now on, until as many ends.
    pub(crate) fn begin_plain(&mut self, thread: ThreadId) {
        match self.plain_threads.iter_mut().find(|(plain, _)| *plain == thread) {
            Some((_, depth)) => *depth += 1,
            None => self.plain_threads.push((thread, 1)),
        }
    }

    /// Ends what the thread began last. False if it began nothing.
    pub(crate) fn end_plain(&mut self, thread: ThreadId) -> bool {
        let at = self.plain_threads.iter().position(|&(plain, _)| plain == thread);
        let Some(at) = at else { return false };
        self.plain_threads[at].1 -= 1;
        if self.plain_threads[at].1 == 0 {
            self.plain_threads.swap_remove(at);
        }
        true
    }

    /// Whether requests of any thread get plain memory.
    #[inline]
    pub(crate) fn has_plain_threads(&self) -> bool {
        !self.plain_threads.is_empty()
    }

    /// Whether requests of the thread get plain memory.
    pub(crate) fn is_plain(&self, thread: ThreadId) -> bool {
        self.plain_threads.iter().any(|&(plain, _)| plain == thread)
    }

    /// Whether any scope is open.
    #[inline]
    pub(crate) fn has_scope(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Whether any scope is open in which a capture may run.
    pub(crate) fn may_capture(&self) -> bool {
        self.scopes.iter().any(|&(_, rule)| !matches!(rule, Rule::Region(_)))
    }

    /// The pool of the newest scope that takes requests of this caller; around a region, that of
    /// the newest capture that does.
    pub(crate) fn route(
        &self,
        caller: &Caller<'_>,
        is_captures: impl Fn(PoolId) -> bool,
    ) -> Option<PoolId> {
        let takes = |pool, rule| match rule {
            Rule::Filter(Filter::Any) => true,
            Rule::Filter(Filter::Stream(only)) => only == caller.stream,
            Rule::Filter(Filter::Thread(only)) | Rule::Region(only) => only == caller.thread,
            Rule::Filter(Filter::Capture(origin)) => caller.captured_with.contains(&origin),
            Rule::Function => (caller.takes)(pool),
        };
        let mut region = None;
        for &(pool, rule) in self.scopes.iter().rev() {
            let may_take = region.is_none() || is_captures(pool);
            if !may_take || !takes(pool, rule) {
                continue;
            }
            if !matches!(rule, Rule::Region(_)) {
                return Some(pool);
            }
            region = region.or(Some(pool));
        }
        region
    }

    /// The pool of the newest region that is open in a thread.
    pub(crate) fn region_of(&self, thread: ThreadId) -> Option<PoolId> {
        let regions = self.scopes.iter().rev();
        let mut own = regions.filter(|&&(_, rule)| rule == Rule::Region(thread));
        own.next().map(|&(pool, _)| pool)
    }

    /// Opens a region in a thread, which may have some open.
    pub(crate) fn open_region(&mut self, pool: PoolId, thread: ThreadId) {
        self.scopes.push((pool, Rule::Region(thread)));
    }

    /// Closes the newest region of a pool in a thread. False if there is none.
    pub(crate) fn close_region(&mut self, pool: PoolId, thread: ThreadId) -> bool {
        let at = self.scopes.iter().rposition(|&scope| scope == (pool, Rule::Region(thread)));
        at.map(|at| self.scopes.remove(at)).is_some()
    }

    pub(crate) fn open(&mut self, id: PoolId, rule: Rule) -> Result<(), PoolProblem> {
        if self.scopes.iter().any(|&(open, _)| open == id) {
            return Err(PoolProblem::Open);
        }
        self.scopes.push((id, rule));
        Ok(())
    }

    pub(crate) fn close(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let at = self.scopes.iter().position(|&(open, _)| open == id);
        self.scopes.remove(at.ok_or(PoolProblem::NotOpen)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes where only the pools of (n, 0) are captures'.
    fn route(privates: &Privates, caller: &Caller<'_>) -> Option<PoolId> {
        privates.route(caller, |pool| pool.1 == 0)
    }

    #[test]
    fn a_region_takes_what_its_thread_asks_for_but_in_a_capture() {
        let mut privates = Privates::default();
        let thread = std::thread::current().id();
        let (origin, stream) = (StreamId(7), StreamId(7));
        let captured = [origin];
        let caller = |captured_with| Caller { stream, thread, captured_with, takes: &|_| false };
        privates.open(PoolId(1, 0), Rule::Filter(Filter::Capture(origin))).unwrap();
        privates.open(PoolId(0, 1), Rule::Filter(Filter::Any)).unwrap();
        privates.open_region(PoolId(0, 2), thread);
        privates.open_region(PoolId(0, 2), thread);
        assert_eq!(route(&privates, &caller(&[])), Some(PoolId(0, 2)));
        assert_eq!(route(&privates, &caller(&captured)), Some(PoolId(1, 0)));
        privates.open_region(PoolId::NONE, thread);
        assert_eq!(route(&privates, &caller(&[])), Some(PoolId::NONE), "it is left");
        assert_eq!(privates.region_of(thread), Some(PoolId::NONE));
        assert!(privates.close_region(PoolId::NONE, thread));
        assert!(privates.close_region(PoolId(0, 2), thread));
        assert_eq!(privates.region_of(thread), Some(PoolId(0, 2)));
        assert!(privates.close_region(PoolId(0, 2), thread));
        assert!(!privates.close_region(PoolId(0, 2), thread));
        assert_eq!(route(&privates, &caller(&[])), Some(PoolId(0, 1)));
    }

    #[test]
    fn the_newest_scope_that_takes_a_request_gets_it() {
        let mut privates = Privates::default();
        let thread = std::thread::current().id();
        let caller = |stream| Caller { stream, thread, captured_with: &[], takes: &|_| false };
        privates.open(PoolId(0, 1), Rule::Filter(Filter::Any)).unwrap();
        privates.open(PoolId(0, 2), Rule::Filter(Filter::Stream(StreamId(7)))).unwrap();
        assert_eq!(route(&privates, &caller(StreamId(7))), Some(PoolId(0, 2)));
        assert_eq!(route(&privates, &caller(StreamId(8))), Some(PoolId(0, 1)));
        assert_eq!(privates.open(PoolId(0, 1), Rule::Filter(Filter::Any)), Err(PoolProblem::Open));
        privates.close(PoolId(0, 1)).unwrap();
        assert_eq!(route(&privates, &caller(StreamId(8))), None);
        assert_eq!(privates.close(PoolId(0, 1)), Err(PoolProblem::NotOpen));
    }

    #[test]
    fn a_scope_of_a_capture_takes_all_streams_that_are_under_it() {
        let mut privates = Privates::default();
        let (origin, stream) = (StreamId(7), StreamId(8));
        privates.open(PoolId(1, 0), Rule::Filter(Filter::Capture(origin))).unwrap();
        let thread = std::thread::current().id();
        let takes = &|_| false;
        let caller = |captured_with| Caller { stream, thread, captured_with, takes };
        assert_eq!(route(&privates, &caller(&[])), None);
        assert_eq!(route(&privates, &caller(&[origin])), Some(PoolId(1, 0)));
    }

    #[test]
    fn a_function_is_asked_only_where_no_newer_scope_takes_the_request() {
        let mut privates = Privates::default();
        let asked = std::cell::RefCell::new(Vec::new());
        let takes = |pool| {
            asked.borrow_mut().push(pool);
            pool == PoolId(0, 1)
        };
        for number in 1..=3 {
            privates.open(PoolId(0, number), Rule::Function).unwrap();
        }
        privates.open(PoolId(0, 4), Rule::Filter(Filter::Stream(StreamId(7)))).unwrap();
        let thread = std::thread::current().id();
        let caller = |stream| Caller { stream, thread, captured_with: &[], takes: &takes };
        assert_eq!(route(&privates, &caller(StreamId(7))), Some(PoolId(0, 4)));
        assert!(asked.borrow().is_empty());
        assert_eq!(route(&privates, &caller(StreamId(8))), Some(PoolId(0, 1)));
        assert_eq!(*asked.borrow(), [PoolId(0, 3), PoolId(0, 2), PoolId(0, 1)]);
    }

    #[test]
    fn bytes_are_counted_by_pool_and_kind() {
        let mut privates = Privates::default();
        privates.count_reserved(PoolId(1, 0), PoolKind::Small, 2);
        privates.count_reserved(PoolId(1, 0), PoolKind::Large, 20);
        privates.count_reserved(PoolId(1, 0), PoolKind::Large, -20);
        let reserved = privates.reserved()[&PoolId(1, 0)];
        let counter = |current, peak, allocated, freed| Counter { current, peak, allocated, freed };
        assert_eq!(reserved.all, counter(2, 22, 22, 20));
        assert_eq!(reserved.small_pool, counter(2, 2, 2, 0));
        assert_eq!(reserved.large_pool, counter(0, 20, 20, 20));
    }
}
