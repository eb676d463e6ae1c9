//! The allocator: the lock, and every device call.
//!
//! Each call locks the heap, lets it plan, makes the device calls that the plan asks for, and
//! commits what came of them. Hooks run with the lock dropped.

mod calls;
mod capture;
mod checkpoint;
mod declared;
mod events;
mod exact;
pub mod fleet;
pub mod history;
mod hooks;
mod inferred;
mod ladder;
pub mod mem_pool;
mod pages;
pub mod plain;
mod pools;
mod reserves;
pub mod share;
mod share_bytes;
mod shed;
pub mod sleep;
mod sources;
mod streams;
pub mod symmetric;
pub mod tags;
mod tight;
mod unused;
mod views;
mod waiting;
mod wake;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use larder_lock::{TurnGuard, TurnLock};

use crate::config::Config;
use crate::device::{Device, MemoryInfo};
use crate::error::{Error, Unsound};
use crate::heap::size::REQUEST_LIMIT_BYTES;
use crate::heap::states::{ExpandableState, SegmentState};
use crate::heap::{Heap, Want};
use crate::out_of_memory::OutOfMemory;
use crate::policy::Policy;
use crate::record::caught;
use crate::record::event::Level;
use crate::record::stats::Stats;
use crate::types::{Addr, PoolId, Span, StreamId};
use calls::{Watch, lost};
use capture::Walks;
use declared::Declared;
use events::EventPool;
use history::Clock;
use hooks::Hooks;
use inferred::Observed;
use pages::Orphan;
use pools::FilterFunction;
use share::{Exports, Imports};
use sleep::Asleep;
use sources::Sourced;
use tags::Tags;
use unused::Looks;
use views::DeadView;

/// A caching allocator for one device. It can be shared between threads.
///
/// Memory is handed out on a stream and, once freed, handed out again on that stream at once: work
/// on a stream runs in order, so whoever gets it next comes after whoever had it. Use on another
/// stream must be told by [`Allocator::record_stream`].
///
/// Whoever names a stream in a call has it for the time of the call: no other thread begins or ends
/// a capture of it, or destroys it, meanwhile. A stream that was named lives until
/// [`Allocator::forget_stream`] was called for it.
///
/// Dropping the allocator gives the cache back to the device, that of private pools included.
/// Memory that is still live then stays with the device: somebody may be using it.
pub struct Allocator {
    device: Arc<dyn Device>,
    inner: TurnLock<Inner>,
    hooks: Hooks,
    watch: Watch,
    imports: Mutex<Imports>,
    /// How many allocators there were before it: checkpoints know by it whose they are.
    serial: u64,
}

/// How many allocators there have been.
static ALLOCATORS: AtomicU64 = AtomicU64::new(0);

/// What the lock guards: the heap, and what device calls left over.
struct Inner {
    heap: Heap,
    events: EventPool,
    orphans: Vec<Orphan>,
    dead_views: Vec<DeadView>,
    /// For each private pool with a source of its own, that source.
    sources: HashMap<PoolId, Sourced>,
    /// For each open scope that chooses by a function, that function.
    functions: HashMap<PoolId, FilterFunction>,
    walks: Walks,
    declared: Declared,
    observed: Observed,
    /// How many names were given to pools that programs make, and to those that captures make.
    pools_named: (u64, u64),
    /// The clock of the history, if it is not the device's.
    clock: Option<Clock>,
    exports: Exports,
    looks: Looks,
    tags: Tags,
    asleep: Asleep,
}

impl Allocator {
    /// An allocator for a device, with the cap that the settings ask for. Expandable segments stay
    /// off on a device that has no virtual memory.
    pub fn new(device: Arc<dyn Device>, config: Config, policy: Policy) -> Allocator {
        let policy = fit_policy(policy, &*device);
        let config = fit(config, &policy, &*device);
        let heap = Heap::new(config, policy, device.properties().total_bytes);
        let inner = Inner {
            heap,
            events: EventPool::default(),
            orphans: Vec::new(),
            dead_views: Vec::new(),
            sources: HashMap::new(),
            functions: HashMap::new(),
            walks: Walks::default(),
            declared: Declared::default(),
            observed: Observed::default(),
            pools_named: (0, 0),
            clock: None,
            exports: Exports::default(),
            looks: Looks::default(),
            tags: Tags::default(),
            asleep: Asleep::default(),
        };
        let (inner, hooks, watch) = (TurnLock::new(inner), Hooks::default(), Watch::default());
        let serial = ALLOCATORS.fetch_add(1, Ordering::Relaxed);
        Allocator { device, inner, hooks, watch, imports: Mutex::default(), serial }
    }

    /// Memory of at least `size_bytes`, for use on `stream`. No bytes are at address 0.
    #[inline]
    pub fn malloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        match self.malloc_fast(size_bytes, stream) {
            Some(addr) => Ok(addr),
            None => self.malloc_slow(size_bytes, stream),
        }
    }

    /// The fast path alone: what it gives back fits into registers, which an error does not.
    #[inline(never)]
    fn malloc_fast(&self, size_bytes: u64, stream: StreamId) -> Option<Addr> {
        let malloc = |inner: &mut Inner| inner.heap.malloc(size_bytes, stream);
        self.inner.run(malloc).unwrap_or_else(|poisoned| lost(poisoned))
    }

    /// The slow way of all that the fast path declines: somebody listens, a stream has to be waited
    /// for, something special is on, or nothing free will do.
    #[inline(never)]
    fn malloc_slow(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        if size_bytes == 0 {
            return Ok(Addr(0));
        }
        if self.watch.is_on()
            && let Some(addr) = self.malloc_listed(size_bytes, stream)
        {
            return Ok(addr);
        }
        let mut inner = self.enter_as_is(Level::State);
        if let Some(addr) = inner.heap.malloc_with_history(size_bytes, stream) {
            drop(inner);
            return self.leave_with(Ok(addr));
        }
        if let Some(taken) = inner.take_after_others(&*self.device, size_bytes, stream).transpose()
        {
            drop(inner);
            return self.leave_with(taken);
        }
        inner.heap.settle();
        let result = self.serve(inner, size_bytes, stream);
        self.leave_with(result)
    }

    /// The end of a call that hands out memory, once its lock is dropped.
    fn leave_with(&self, result: Result<Addr, Error>) -> Result<Addr, Error> {
        // Where a panic goes on nobody learns of the address, so that nobody could free it.
        if caught::has_panic()
            && let Ok(addr) = result
        {
            let _ = self.take_back(self.lock(), addr);
        }
        self.leave();
        result
    }

    fn serve<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Addr, Error> {
        if size_bytes >= REQUEST_LIMIT_BYTES {
            let report = self.report(&inner, size_bytes, size_bytes);
            return Err(Error::OutOfMemory(Box::new(report)));
        }
        let want = inner.want(&*self.device, size_bytes, stream)?;
        if let Some(pool) = inner.heap.inventory().symmetric_for(&want) {
            return self.serve_symmetric(inner, &want, pool);
        }
        match inner.heap.take(&want) {
            Some(addr) => Ok(addr),
            None => match inner.take_from_others(&*self.device, &want)? {
                Some(addr) => Ok(addr),
                None => self.climb(inner, &want),
            },
        }
    }

    /// Gives back memory that `malloc` gave. It goes into the cache: at once, or when the streams
    /// that [`Allocator::record_stream`] named are done with it. An address that is not live is an
    /// error and changes nothing; address 0 is none.
    #[inline]
    pub fn free(&self, addr: Addr) -> Result<(), Error> {
        if self.free_fast(addr) { Ok(()) } else { self.free_slow(addr) }
    }

    #[inline(never)]
    fn free_fast(&self, addr: Addr) -> bool {
        let free = |inner: &mut Inner| inner.heap.free(addr);
        self.inner.run(free).unwrap_or_else(|poisoned| lost(poisoned))
    }

    /// The slow way of all that the fast path declines: somebody listens, other streams use the
    /// block, it is one of a view or of a symmetric pool, or there is none at the address.
    #[inline(never)]
    fn free_slow(&self, addr: Addr) -> Result<(), Error> {
        if addr == Addr(0) {
            return Ok(());
        }
        if self.watch.is_on() && self.free_listed(addr) {
            return Ok(());
        }
        let mut inner = self.enter_as_is(Level::All);
        let result = if inner.heap.free_with_history(addr) {
            drop(inner);
            Ok(())
        } else {
            self.take_back(inner, addr)
        };
        self.leave();
        result
    }

    fn take_back(&self, mut inner: TurnGuard<'_, Inner>, addr: Addr) -> Result<(), Error> {
        let Some(block) = inner.heap.live(addr) else {
            return Err(Error::UnknownAddress(addr));
        };
        if inner.heap.put_in_view(block) {
            return Ok(());
        }
        inner.heap.settle();
        if let Some(pool) = inner.heap.inventory().symmetric_of(block) {
            return inner.free_symmetric(&*self.device, pool, block);
        }
        if inner.heap.uses(block).is_empty() {
            inner.heap.put(block);
            Ok(())
        } else {
            inner.free_used_elsewhere(&*self.device, block)
        }
    }

    /// The memory is used on this stream too: once freed it is handed out again only when the
    /// work issued there by then is done.
    pub fn record_stream(&self, addr: Addr, stream: StreamId) -> Result<(), Error> {
        if addr == Addr(0) {
            return Ok(());
        }
        let mut inner = self.lock_as_is();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        inner.heap.settle();
        inner.note_use(&*self.device, block, stream)?;
        let Some(pool) = inner.heap.inventory().pool_of(block) else { return Ok(()) };
        let span = Span::new(addr, inner.heap.inventory().size_of(block));
        let told =
            inner.tell_source(pool, "note a use", |source| source.record_stream(span, stream));
        drop(inner);
        caught::go_on();
        told
    }

    /// Waits for all events and gives everything cached back to the device. While a capture is on
    /// only private pools that nobody uses any more are emptied.
    pub fn empty_cache(&self) -> Result<(), Error> {
        let mut inner = self.enter(Level::All);
        let emptied = inner.empty(&*self.device);
        inner.heap.begin_phase();
        let reset = inner.tell_sources("reset", |source| source.reset());
        drop(inner);
        self.leave();
        emptied.and(reset)
    }

    /// All statistics.
    pub fn stats(&self) -> Stats {
        self.lock_as_is().heap.stats()
    }

    /// Peaks become the current values.
    pub fn reset_peak_stats(&self) {
        self.lock_as_is().heap.reset_peaks();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub fn reset_accumulated_stats(&self) {
        self.lock_as_is().heap.reset_sums();
    }

    /// How much memory the device has, and how much nobody holds.
    pub fn memory_info(&self) -> Result<MemoryInfo, Error> {
        self.device.memory_info().map_err(Error::device("tell its free memory"))
    }

    /// The largest block that the next request could get without anything being given back: of
    /// the cache on any stream, or of the device.
    pub fn largest_available_bytes(&self) -> Result<u64, Error> {
        let free_bytes = self.memory_info()?.free_bytes;
        Ok(free_bytes.max(self.look().heap.largest_free_bytes()))
    }

    /// The largest free block of the cache, on any stream, private pools included.
    pub fn largest_free_bytes(&self) -> u64 {
        self.look().heap.largest_free_bytes()
    }

    /// Caps what may be held of the device at this part of it; 1 lifts the cap.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::BadFraction(fraction));
        }
        let mut inner = self.lock();
        let told = inner
            .tell_sources("take a memory fraction", |source| source.set_memory_fraction(fraction));
        if told.is_ok() {
            inner.heap.set_fraction(fraction);
        }
        drop(inner);
        caught::go_on();
        told
    }

    /// The part of the device that may be held.
    pub fn memory_fraction(&self) -> f64 {
        let total_bytes = self.device.properties().total_bytes;
        self.look().heap.cap_bytes().map_or(1.0, |cap| cap as f64 / total_bytes as f64)
    }

    /// The whole allocation of the device in which a live block lies. Blocks of expandable segments
    /// have none.
    pub fn base_allocation(&self, addr: Addr) -> Result<Span, Error> {
        let inner = self.look();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        let segment = inner.heap.space().base(block).ok_or(Error::NoBaseAllocation(addr))?;
        let base = inner.base_by_source(block, segment);
        drop(inner);
        caught::go_on();
        base
    }

    /// How many bytes a live block has: what was asked for, rounded up.
    pub fn usable_bytes(&self, addr: Addr) -> Result<u64, Error> {
        Ok(self.block_at(addr)?.0)
    }

    /// How many bytes a live block has, and the stream that it was handed out on.
    pub fn block_at(&self, addr: Addr) -> Result<(u64, StreamId), Error> {
        let inner = self.look();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        Ok((inner.heap.inventory().size_of(block), inner.heap.inventory().stream_of(block)))
    }

    /// The settings in force.
    pub fn config(&self) -> Config {
        self.look().heap.config().clone()
    }

    /// Who decides.
    pub fn policy(&self) -> Policy {
        self.look().heap.policy().clone()
    }

    /// Changes settings while running, as PyTorch does. A text that cannot be read, or that the
    /// PyTorch of the policy does not know, changes nothing.
    pub fn configure(&self, text: &str) -> Result<(), Error> {
        let mut inner = self.lock();
        let config = inner.heap.config().update(text)?;
        config.check_known(inner.heap.policy().torch)?;
        let config = fit(config, inner.heap.policy(), &*self.device);
        inner.heap.set_config(config);
        Ok(())
    }

    /// Changes settings while running, as values. Values that no text could set change nothing. The
    /// cap stays as it is, unless the memory fraction of the settings is changed.
    ///
    /// The change is made to a copy, with no lock held; if somebody else changed the settings
    /// meanwhile, it is made once more to a copy of those. So no change is lost, and a change that
    /// panics changes nothing.
    pub fn reconfigure(&self, mut change: impl FnMut(&mut Config)) -> Result<(), Error> {
        loop {
            let before = self.config();
            let mut config = before.clone();
            change(&mut config);
            config.check()?;
            let mut inner = self.lock();
            if *inner.heap.config() != before {
                continue;
            }
            let fraction = config.memory_fraction;
            let config = fit(config, inner.heap.policy(), &*self.device);
            inner.heap.set_config(config);
            #[allow(clippy::float_cmp)] // The same number again is no change.
            if fraction != before.memory_fraction {
                inner.heap.set_fraction(fraction);
            }
            return Ok(());
        }
    }

    /// Every segment and block as it stands.
    pub fn snapshot(&self) -> Vec<SegmentState> {
        self.look().heap.snapshot()
    }

    /// Every expandable segment in short.
    pub fn expandable_segments(&self) -> Vec<ExpandableState> {
        self.look().heap.expandable_segments()
    }

    /// Whether there is an expandable segment at this moment.
    pub fn has_expandable(&self) -> bool {
        self.look().heap.has_expandable()
    }

    /// How many free blocks the cache has.
    pub fn free_block_count(&self) -> usize {
        self.look().heap.free_block_count()
    }

    /// Checks every invariant of the heap; for tests. Says in one sentence what does not hold.
    pub fn check(&self) -> Result<(), Unsound> {
        let inner = self.look();
        inner.heap.check()?;
        inner.check_sources()
    }

    /// Registers a callback that is run whenever no cached block fits, and says whether it freed
    /// anything. It may call the allocator.
    pub fn on_miss(&self, callback: impl Fn() -> bool + Send + Sync + 'static) {
        self.hooks.on_miss(Arc::new(callback));
    }

    /// Registers an observer that is told of every request that could not be met, before `malloc`
    /// returns. It may call the allocator.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.hooks.on_out_of_memory(Arc::new(observer));
    }

    /// Has this write down what there is when a request could not be met, before the observers are
    /// told; it says to which file, which the error then names.
    pub fn write_on_out_of_memory(
        &self,
        writer: impl Fn(&Allocator, &OutOfMemory) -> Option<String> + Send + Sync + 'static,
    ) {
        self.hooks.write_on_out_of_memory(Arc::new(writer));
    }
}

impl Inner {
    /// What a request does first: it takes back what has become free, as far as it may ask, and is
    /// rounded and routed.
    #[inline]
    fn want(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Want, Error> {
        let want = if self.heap.pools().is_diverted() {
            self.want_diverted(device, size_bytes, stream)?
        } else {
            if !self.heap.is_idle() {
                self.poll_events(device)?;
            }
            self.heap.want(size_bytes, stream)
        };
        if self.heap.pools().has_plain_threads() {
            return Ok(self.heap.want_of(&want, thread::current().id()));
        }
        Ok(want)
    }
}

/// The settings with which a program runs under a policy if it names none.
pub fn default_config(policy: &Policy) -> Config {
    let expands = policy.expandable_by_default;
    Config { expandable_segments: expands, plain_captures: expands, ..Config::default() }
}

/// Turns off what the device cannot do, and on what the policy is made of.
fn fit(mut config: Config, policy: &Policy, device: &dyn Device) -> Config {
    config.expandable_segments |= policy.tight;
    config.expandable_segments &= device.properties().virtual_memory;
    config
}

/// The policy, or what comes closest to it on a device that has no virtual memory.
fn fit_policy(policy: Policy, device: &dyn Device) -> Policy {
    if policy.tight && !device.properties().virtual_memory { Policy::larder() } else { policy }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // A lock that a panic poisoned guards a heap that nobody should trust with device calls.
        let Ok(inner) = self.inner.get_mut() else { return };
        inner.heap.settle();
        // Nobody is left to use a private pool, nor to be told of what the device refuses now.
        inner.heap.pools_mut().abandon_pools();
        let _ = inner.empty(&*self.device);
        inner.events.destroy_spare(&*self.device);
        // Whoever drops an allocator does not expect to hear of a panic of its sources.
        caught::end_here();
    }
}
