//! History: the calls that turn it on and off, and what it shows.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::config::Config;
use crate::error::Error;
use crate::heap::run::Run;
use crate::policy::Policy;
use crate::record::caught;
use crate::record::context::{Context, ContextHook};
use crate::record::event::{Actions, Event, Level};
use crate::record::history::{Annotation, History, Scene, Stage, TraceEntry, Wishes};
use crate::types::{Addr, DeviceIndex, PoolId};

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
    /// All bytes of the device.
    pub total_bytes: u64,
    /// How many of them may be held, if there is a cap.
    pub cap_bytes: Option<u64>,
}

impl Allocator {
    /// Remembers what happens from now on. Blocks that are live already have no context.
    pub fn record_history(&self, options: HistoryOptions) -> Result<(), Error> {
        let HistoryOptions { level, max_entries, clear, skip, context_hook, clock } = options;
        if level > Level::Never && context_hook.is_none() {
            return Err(Error::NoContextHook);
        }
        drop(self.watch.swap_hook(context_hook));
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
        drop(self.watch.swap_hook(None));
    }

    /// Whether what happens is remembered.
    pub fn is_recording(&self) -> bool {
        self.look().heap.recorder().history().is_some_and(History::is_recording)
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
        let mut inner = self.enter_as_is(Level::All);
        if let Some(history) = inner.heap.recorder_mut().listener() {
            history.annotate(name, stage);
        }
        drop(inner);
        self.leave();
    }

    /// The state of the memory, what is remembered, and the settings. The snapshot itself is an
    /// event that the next one shows.
    pub fn take_snapshot(&self, options: SnapshotOptions) -> DeviceSnapshot {
        let pool = options.pool.filter(|&pool| pool != PoolId::NONE);
        let mut inner = self.enter_as_is(Level::All);
        let history = inner.heap.recorder().history();
        let history = history.filter(|_| options.traces);
        let trace = history.map_or(Vec::new(), History::entries);
        let annotations = history.map_or(Vec::new(), History::annotations);
        let runs = inner.heap.runs(pool);
        let active_bytes = runs.iter().map(Run::active_bytes).sum();
        inner.heap.record_snapshot(active_bytes, pool.unwrap_or(PoolId::NONE));
        let (config, policy) = (inner.heap.config().clone(), inner.heap.policy().clone());
        let cap_bytes = inner.heap.cap_bytes();
        drop(inner);
        self.leave();
        DeviceSnapshot {
            device: self.device_index(),
            runs,
            trace,
            annotations,
            config,
            policy,
            total_bytes: self.device.properties().total_bytes,
            cap_bytes,
        }
    }

    /// The context in which a live block was allocated, if one was gathered.
    pub fn context_of(&self, addr: Addr) -> Option<Arc<dyn Context>> {
        self.look().heap.inventory().context_at(addr)
    }

    /// How many different contexts are kept, for blocks and entries.
    pub fn context_count(&self) -> usize {
        self.look().heap.recorder().history().map_or(0, History::context_count)
    }
}
