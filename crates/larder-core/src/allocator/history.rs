//! History: the calls that turn it on and off, and how a call that is remembered begins and ends.
//!
//! A call's context is gathered before the lock is taken, and contexts that nobody names any more
//! are dropped after it is: either may need locks of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_lock::TurnGuard;

use crate::allocator::{Allocator, Shelf};
use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::heap::run::Run;
use crate::policy::Policy;
use crate::record::caught;
use crate::record::context::{Context, ContextHook};
use crate::record::event::{Actions, Event, Level};
use crate::record::history::{Annotation, History, Scene, Stage, Ticket, TraceEntry, Wishes};
use crate::record::note;
use crate::types::{Addr, DeviceIndex, PoolId, StreamId};

/// Tells the time in nanoseconds since some fixed moment; it never runs backwards.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a history remembers.
#[derive(Clone)]
#[non_exhaustive]
pub struct HistoryOptions {
    /// For what contexts are gathered.
    pub level: Level,
    /// How many entries are kept, and how many annotations; the oldest go first. At least one is.
    pub max_entries: usize,
    /// Whether to forget what was remembered before.
    pub clear: bool,
    /// What is not remembered. Trackers are told of it all the same.
    pub skip: Actions,
    /// Gathers the contexts. Every level but `Never` needs one.
    pub context_hook: Option<ContextHook>,
    /// Tells the time; without one, the device does. A program that records a lot wants one that
    /// answers in a few nanoseconds.
    pub clock: Option<Clock>,
}

impl Default for HistoryOptions {
    /// All entries, without contexts.
    fn default() -> HistoryOptions {
        HistoryOptions {
            level: Level::Never,
            max_entries: usize::MAX,
            clear: false,
            skip: Actions::default(),
            context_hook: None,
            clock: None,
        }
    }
}

/// Each takes the options as they are so far, and gives them back with one of them set.
impl HistoryOptions {
    /// Gathers contexts for this.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Keeps so many entries.
    #[must_use]
    pub fn max_entries(mut self, max_entries: usize) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// Whether to forget what was remembered before.
    #[must_use]
    pub fn clear(mut self, clear: bool) -> Self {
        self.clear = clear;
        self
    }

    /// Does not remember these.
    #[must_use]
    pub fn skip(mut self, skip: Actions) -> Self {
        self.skip = skip;
        self
    }

    /// Gathers contexts so.
    #[must_use]
    pub fn context_hook(mut self, context_hook: ContextHook) -> Self {
        self.context_hook = Some(context_hook);
        self
    }

    /// Tells the time so.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }
}

impl fmt::Debug for HistoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HistoryOptions { level, max_entries, clear, skip, .. } = self;
        write!(f, "{level:?}, {max_entries} entries, clear {clear}, skip {skip:?}")
    }
}

/// What a snapshot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The memory of this private pool alone. A pool that is not there has none.
    pub pool: Option<PoolId>,
    /// Whether the history is part of it, annotations included.
    pub traces: bool,
}

impl Default for SnapshotOptions {
    /// Everything.
    fn default() -> SnapshotOptions {
        SnapshotOptions { pool: None, traces: true }
    }
}

/// Each takes the options as they are so far, and gives them back with one of them set.
impl SnapshotOptions {
    /// Shows the memory of this private pool alone.
    #[must_use]
    pub fn pool(mut self, pool: impl Into<Option<PoolId>>) -> Self {
        self.pool = pool.into();
        self
    }

    /// Whether the history is part of it, annotations included.
    #[must_use]
    pub fn traces(mut self, traces: bool) -> Self {
        self.traces = traces;
        self
    }
}

/// The state of one device's memory, what happened before, and the settings.
#[derive(Clone, Debug)]
pub struct DeviceSnapshot {
    /// The device.
    pub device: DeviceIndex,
    /// All memory held of the device, in the order of its addresses.
    pub runs: Vec<Run>,
    /// What happened, oldest first. This snapshot itself shows in the next one.
    pub trace: Vec<TraceEntry>,
    /// The parts of the program that began and ended meanwhile.
    pub annotations: Vec<Annotation>,
    /// The settings in force.
    pub config: Config,
    /// Who decides.
    pub policy: Policy,
}

/// What stands beside the lock: all that is asked before it is taken.
#[derive(Default)]
pub(super) struct Watch {
    /// Whether calls are told to a history.
    on: AtomicBool,
    level: AtomicU8,
    /// Whether contexts may wait to be dropped.
    keeps_contexts: AtomicBool,
    hook: Mutex<Option<ContextHook>>,
}

impl Watch {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What the hook says, if the level asks for it.
    fn gather(&self, level: Level) -> Option<Arc<dyn Context>> {
        if self.level.load(Ordering::Relaxed) < level as u8 {
            return None;
        }
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hook.and_then(|hook| hook())
    }
}

impl Shelf {
    /// A call begins that is told to the history. Contexts may have been turned off since this one
    /// was gathered: then it comes too late, and nobody would keep track of whose it is.
    fn begin(&mut self, device: &dyn Device, context: Option<Arc<dyn Context>>) {
        let time_ns = self.now_ns(device);
        let mut late = context;
        if let Some(history) = self.heap.herald_mut().listener() {
            let context = if history.level() > Level::Never { late.take() } else { None };
            history.begin(time_ns, context, note::current());
        }
        if let Some(late) = late {
            caught::drop_later(late);
        }
    }

    /// The same, if nothing but entries is asked of the history.
    #[inline]
    fn begin_simply(&mut self, device: &dyn Device) -> bool {
        if self.heap.herald_mut().simple_listener().is_none() {
            return false;
        }
        // A clock that panics is left to the careful path, at whose end the panic can go on.
        let Some(time_ns) = self.try_now_ns(device) else { return false };
        if let Some(history) = self.heap.herald_mut().simple_listener() {
            match note::current() {
                None => history.begin_simply(time_ns),
                note => history.begin(time_ns, None, note),
            }
        }
        true
    }

    #[inline]
    fn try_now_ns(&self, device: &dyn Device) -> Option<u64> {
        match &self.clock {
            None => Some(device.now_ns()),
            Some(clock) => caught::catch(|| clock()),
        }
    }

    fn now_ns(&self, device: &dyn Device) -> u64 {
        self.try_now_ns(device).unwrap_or_else(|| device.now_ns())
    }

    /// A device call took its time.
    pub(super) fn tick(&mut self, device: &dyn Device) {
        if self.heap.herald().is_listening() {
            let time_ns = self.now_ns(device);
            if let Some(history) = self.heap.herald_mut().listener() {
                history.set_time(time_ns);
            }
        }
    }

    /// What is to be kept of the call while the lock is dropped in its middle.
    pub(super) fn suspend(&mut self) -> Option<Ticket> {
        self.heap.herald_mut().listener().map(History::send_away)
    }
}

impl Allocator {
    /// Hands out a free block as the fast path does while a history is on that asks for entries
    /// alone.
    #[inline(never)]
    pub(super) fn malloc_listed(&self, size_bytes: u64, stream: StreamId) -> Option<Addr> {
        let mut shelf = self.lock_as_is();
        shelf.begin_simply(&*self.device).then(|| shelf.heap.malloc_listed(size_bytes, stream))?
    }

    /// Takes back a block as the fast path does, likewise.
    #[inline(never)]
    pub(super) fn free_listed(&self, addr: Addr) -> bool {
        let mut shelf = self.lock_as_is();
        shelf.begin_simply(&*self.device) && shelf.heap.free_listed(addr)
    }

    /// Locks for a call in which something may happen that is remembered. Its context is gathered
    /// before, if contexts of this level are.
    #[inline]
    pub(super) fn enter(&self, level: Level) -> TurnGuard<'_, Shelf> {
        let mut shelf = self.enter_as_is(level);
        shelf.heap.settle();
        shelf
    }

    /// The same for a call that does not change the heap, or not yet.
    pub(super) fn enter_as_is(&self, level: Level) -> TurnGuard<'_, Shelf> {
        if !self.watch.is_on() {
            return self.lock_as_is();
        }
        let context = self.watch.gather(level);
        let mut shelf = self.lock_as_is();
        shelf.begin(&*self.device, context);
        shelf
    }

    /// Locks again in the middle of a call.
    pub(super) fn lock_again(&self, ticket: Option<&Ticket>) -> TurnGuard<'_, Shelf> {
        let mut shelf = self.lock();
        let device = self.device_index();
        if let Some(ticket) = ticket {
            shelf.heap.change_history(device, |history| history.bring_back(ticket));
            // What it may have let go of is dropped when the call ends.
            self.watch.keeps_contexts.store(true, Ordering::Relaxed);
        }
        shelf.tick(&*self.device);
        shelf
    }

    /// The end of a call that was entered, once its lock is dropped: what nobody names any more
    /// goes, and a panic that was caught under the lock goes on.
    #[inline]
    pub(super) fn leave(&self) {
        if self.watch.keeps_contexts.load(Ordering::Relaxed) {
            self.change_history(|history| history.resume(Scene::default()));
        }
        caught::go_on();
    }

    /// Changes the history, notes what malloc and free have to know of it, and drops the contexts
    /// that nobody names any more.
    fn change_history<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        let device = self.device_index();
        let mut shelf = self.lock_as_is();
        let (result, level, keeps_contexts, dropped) =
            shelf.heap.change_history(device, |history| {
                let result = change(history);
                let keeps = history.has_contexts() || history.level() > Level::Never;
                (result, history.level(), keeps, history.take_dropped())
            });
        let is_on = shelf.heap.herald().is_listening();
        self.watch.level.store(level as u8, Ordering::Relaxed);
        self.watch.keeps_contexts.store(keeps_contexts, Ordering::Relaxed);
        self.watch.on.store(is_on, Ordering::Relaxed);
        drop(shelf);
        drop(dropped);
        result
    }

    /// Remembers what happens from now on. Blocks that are live already have no context.
    pub fn record_history(&self, options: HistoryOptions) -> Result<(), Error> {
        let HistoryOptions { level, max_entries, clear, skip, context_hook, clock } = options;
        if level > Level::Never && context_hook.is_none() {
            return Err(Error::NoContextHook);
        }
        let old_hook = {
            let mut hook = self.watch.hook.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *hook, context_hook)
        };
        drop(old_hook);
        let old_clock = std::mem::replace(&mut self.lock_as_is().clock, clock);
        drop(old_clock);
        self.change_history(|history| {
            history.set(Some(Wishes { level, max_entries, skip }), clear);
        });
        Ok(())
    }

    /// Remembers nothing from now on, and forgets what was remembered. Live blocks keep their
    /// contexts until they are freed. Where contexts stay with segments, these let go of them: they
    /// may outlive everything else that was remembered, and a later history would show them.
    pub fn stop_history(&self) {
        let stays = self.look().heap.policy().segment_context_stays;
        self.change_history(|history| {
            history.resume(Scene::default());
            history.set(None, true);
            if stays {
                history.disown_segments();
            }
        });
        let hook = self.watch.hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(hook);
    }

    /// Whether what happens is remembered.
    pub fn is_recording(&self) -> bool {
        self.look().heap.herald().history().is_some_and(History::is_recording)
    }

    /// Registers a tracker that is told of every event from now on, for as long as the allocator
    /// lives, whether or not it is remembered. It is called under the allocator's lock: it must not
    /// call the allocator, and everyone waits for it. If it panics, the call that it was told of is
    /// finished all the same, and the panic goes on from there; memory that was handed out in it
    /// goes back.
    pub fn on_event(&self, tracker: impl Fn(&Event<'_>) + Send + Sync + 'static) {
        let tracker = move |event: &Event<'_>| _ = caught::catch(|| tracker(event));
        self.change_history(|history| history.track(Arc::new(tracker)));
    }

    /// A part of the program begins or ends; remembered beside the events while a history is on.
    pub fn annotate(&self, name: &str, stage: Stage) {
        let mut shelf = self.enter_as_is(Level::All);
        if let Some(history) = shelf.heap.herald_mut().listener() {
            history.annotate(name, stage);
        }
        drop(shelf);
        self.leave();
    }

    /// The state of the memory, what is remembered, and the settings. The snapshot itself is an
    /// event that the next one shows.
    pub fn take_snapshot(&self, options: SnapshotOptions) -> DeviceSnapshot {
        let pool = options.pool.filter(|&pool| pool != PoolId::NONE);
        let mut shelf = self.enter_as_is(Level::All);
        let history = shelf.heap.herald().history();
        let history = history.filter(|_| options.traces);
        let trace = history.map_or(Vec::new(), History::entries);
        let annotations = history.map_or(Vec::new(), History::annotations);
        let runs = shelf.heap.runs(pool);
        let active_bytes = runs.iter().map(Run::active_bytes).sum();
        shelf.heap.record_snapshot(active_bytes, pool.unwrap_or(PoolId::NONE));
        let (config, policy) = (shelf.heap.config().clone(), shelf.heap.policy().clone());
        drop(shelf);
        self.leave();
        DeviceSnapshot { device: self.device_index(), runs, trace, annotations, config, policy }
    }

    /// The context in which a live block was allocated, if one was gathered.
    pub fn context_of(&self, addr: Addr) -> Option<Arc<dyn Context>> {
        self.look().heap.inventory().context_at(addr)
    }

    /// How many different contexts are kept, for blocks and entries.
    pub fn context_count(&self) -> usize {
        self.look().heap.herald().history().map_or(0, History::context_count)
    }
}
