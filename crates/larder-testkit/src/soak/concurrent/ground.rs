//! The ground that all threads stand on: the allocator and its device, and what they leave there
//! for each other.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use larder_core::record::context::{Context, Frame};
use larder_core::types::Span;
use larder_core::{Addr, Allocator, Error, MemPool, PoolId, StreamId};

use super::claims::{Claims, Held};
use super::plan::Plan;
use super::quarry::Quarry;
use super::restless::Restless;
use super::trouble::{Complaint, excuse, planned};
use super::watchdog::Watchdog;
use larder_sim::random::Random;
use larder_sim::{SimDevice, SimOptions};

/// How many blocks may lie on the pile.
const PILE_MAX: usize = 48;

thread_local! {
    /// What hooks choose by: they run in the thread that called the allocator.
    static HOOK_RANDOM: RefCell<Option<Random>> = const { RefCell::new(None) };
    /// The stream that a thread works on.
    static CURRENT: Cell<Option<StreamId>> = const { Cell::new(None) };
}

/// What all threads share.
pub(super) struct Ground {
    pub(super) plan: Plan,
    pub(super) sim: Arc<SimDevice>,
    pub(super) device: Arc<Restless>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) claims: Claims,
    /// Blocks that anybody may free.
    pile: Mutex<Vec<Held>>,
    /// Pools that anybody may use or drop.
    pools: Mutex<Vec<MemPool>>,
    pub(super) quarries: Mutex<Vec<(PoolId, Arc<Quarry>)>>,
    /// Every pool that there ever was.
    pub(super) names: Mutex<BTreeSet<PoolId>>,
    pub(super) complaint: Complaint,
    pub(super) counts: Counts,
    pub(super) contexts: Arc<AtomicI64>,
    pub(super) watchdog: Watchdog,
}

/// What was done so far, by all threads together.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) steps: AtomicU64,
    pub(super) mallocs: AtomicU64,
    pub(super) out_of_memory: AtomicU64,
    /// How often an observer was told of it.
    pub(super) observed: AtomicU64,
    pub(super) device_errors: AtomicU64,
    pub(super) frees: AtomicU64,
    pub(super) freed_by_others: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) pools: AtomicU64,
    pub(super) captures: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) quiet_moments: AtomicU64,
}

/// One more of something.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is in a mutex, also after a thread panicked: the panic is told of elsewhere.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context that is counted while it lives.
struct Counted {
    line: u32,
    living: Arc<AtomicI64>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Context for Counted {
    fn fingerprint(&self) -> u64 {
        u64::from(self.line)
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        (other as &dyn Any).downcast_ref::<Counted>().is_some_and(|other| other.line == self.line)
    }

    fn frames(&self) -> Vec<Frame> {
        vec![Frame { line: self.line, ..Frame::default() }]
    }
}

impl Ground {
    pub(super) fn new(plan: Plan, watchdog: Watchdog) -> Arc<Ground> {
        let complaint = Complaint::default();
        let options = SimOptions::default()
            .memory_bytes(plan.memory_bytes)
            .faults(plan.trouble.fault_plan(plan.seed));
        let sim = Arc::new(SimDevice::new(options));
        let device = Arc::new(Restless::new(sim.clone(), plan.seed, complaint.clone()));
        let allocator = Allocator::new(device.clone(), plan.config(), plan.policy.clone());
        let ground = Arc::new(Ground {
            plan,
            sim,
            device,
            allocator: Arc::new(allocator),
            claims: Claims::default(),
            pile: Mutex::default(),
            pools: Mutex::default(),
            quarries: Mutex::default(),
            names: Mutex::default(),
            complaint,
            counts: Counts::default(),
            contexts: Arc::default(),
            watchdog,
        });
        ground.hook_up();
        ground
    }

    /// Registers the hooks. They know the ground only for as long as it is there.
    fn hook_up(self: &Arc<Ground>) {
        let ground = Arc::downgrade(self);
        self.allocator.on_miss(move || Weak::upgrade(&ground).is_some_and(|it| it.missed()));
        if self.plan.tells {
            self.allocator.on_current_stream(|| CURRENT.get());
        }
        let ground = Arc::downgrade(self);
        self.allocator.on_out_of_memory(move |report| {
            let Some(ground) = Weak::upgrade(&ground) else { return };
            count(&ground.counts.observed);
            if report.total_bytes != ground.plan.memory_bytes {
                ground.complaint.raise(format!("a report is of another device: {report:?}"));
            }
            // An observer may call the allocator.
            ground.allocator.stats();
        });
    }

    /// This thread works on the stream from here on.
    pub(super) fn work_on(stream: StreamId) {
        CURRENT.set(Some(stream));
    }

    /// What this thread's hooks choose by.
    pub(super) fn seed_hooks(random: Random) {
        HOOK_RANDOM.set(Some(random));
    }

    /// No cached block fits somebody's request: at times a block is freed for it, or a pool
    /// dropped.
    fn missed(&self) -> bool {
        count(&self.counts.misses);
        let choice = HOOK_RANDOM
            .with_borrow_mut(|random| random.as_mut().map_or(9, |random| random.below(10)));
        match choice {
            0..=2 => {
                let freed = self.pick_up(0).map(|held| self.free(held));
                match freed {
                    None => false,
                    Some(Ok(left)) => {
                        let is_freed = left.is_none();
                        self.leave_anyway(left);
                        is_freed
                    }
                    Some(Err(text)) => {
                        self.complaint.raise(text);
                        false
                    }
                }
            }
            3 => self.adopt_pool(0).is_some(),
            _ => false,
        }
    }

    /// Makes a context that is counted.
    pub(super) fn gather(&self) -> impl Fn() -> Option<Arc<dyn Context>> + Send + Sync + 'static {
        let (living, made) = (self.contexts.clone(), AtomicU64::new(0));
        move || {
            let line = (made.fetch_add(1, Ordering::Relaxed) % 100) as u32;
            living.fetch_add(1, Ordering::Relaxed);
            Some(Arc::new(Counted { line, living: living.clone() }))
        }
    }

    /// Asks for memory, and claims what it gets; none if there is none, or if a fault was planned.
    pub(super) fn malloc(
        &self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Result<Option<Held>, String> {
        Ground::work_on(stream);
        let addr = match self.allocator.malloc(requested_bytes, stream) {
            Ok(addr) => addr,
            Err(error) => {
                excuse(&error)?;
                let is_out = matches!(error, Error::OutOfMemory(_));
                count(if is_out { &self.counts.out_of_memory } else { &self.counts.device_errors });
                return Ok(None);
            }
        };
        count(&self.counts.mallocs);
        let (size_bytes, home) = self
            .allocator
            .block_at(addr)
            .map_err(|error| format!("{addr} is fresh, but {error}"))?;
        let span = Span::new(addr, size_bytes);
        let held = Held { span, requested_bytes, stream };
        self.claims.take(held)?;
        if home != stream || size_bytes < requested_bytes {
            return Err(format!("{held:?} is of {home}, or too small"));
        }
        if self.has_memory(span) {
            Ok(Some(held))
        } else {
            Err(format!("there is no memory behind {held:?}"))
        }
    }

    /// Whether there is memory behind the whole span, of the device or of a quarry.
    pub(super) fn has_memory(&self, span: Span) -> bool {
        match Quarry::number_of(span.addr) {
            None => self.sim.is_accessible(span),
            Some(number) => {
                let quarry = lock(&self.quarries).get(number as usize).map(|(_, it)| it.clone());
                quarry.is_some_and(|quarry| quarry.covers(span))
            }
        }
    }

    /// Gives a block back. If the device fails as planned the block stays live, and is returned.
    pub(super) fn free(&self, held: Held) -> Result<Option<Held>, String> {
        self.claims.give(held)?;
        match planned(self.allocator.free(held.span.addr)) {
            Ok(Some(())) => {
                count(&self.counts.frees);
                Ok(None)
            }
            Ok(None) => {
                count(&self.counts.device_errors);
                self.claims.take(held)?;
                Ok(Some(held))
            }
            Err(text) => Err(format!("{held:?}: {text}")),
        }
    }

    /// Leaves a block for others, unless there are too many already; then it is returned.
    pub(super) fn leave(&self, held: Held) -> Option<Held> {
        let mut pile = lock(&self.pile);
        if pile.len() >= PILE_MAX {
            return Some(held);
        }
        pile.push(held);
        None
    }

    /// Leaves it for others, however many there are.
    pub(super) fn leave_anyway(&self, held: Option<Held>) {
        lock(&self.pile).extend(held);
    }

    /// A block that somebody left.
    pub(super) fn pick_up(&self, at: u64) -> Option<Held> {
        let mut pile = lock(&self.pile);
        let index = at.checked_rem(pile.len() as u64)? as usize;
        Some(pile.swap_remove(index))
    }

    /// Leaves a pool for others.
    pub(super) fn leave_pool(&self, pool: MemPool) {
        lock(&self.pools).push(pool);
    }

    /// A pool that somebody left.
    pub(super) fn adopt_pool(&self, at: u64) -> Option<MemPool> {
        let mut pools = lock(&self.pools);
        let index = at.checked_rem(pools.len() as u64)? as usize;
        Some(pools.swap_remove(index))
    }

    /// The name of some pool that there is or was.
    pub(super) fn some_name(&self, at: u64) -> Option<PoolId> {
        let names = lock(&self.names);
        let index = at.checked_rem(names.len() as u64)? as usize;
        names.iter().nth(index).copied()
    }

    /// A pool whose segments come from a new quarry.
    pub(super) fn quarry_pool(&self, random: &mut Random) -> Result<MemPool, Error> {
        let mut quarries = lock(&self.quarries);
        let (number, memory_bytes) = (quarries.len() as u64, random.between(4, 64) << 20);
        let own = Random::new(random.next_u64());
        let quarry = Arc::new(Quarry::new(number, memory_bytes, own, self.complaint.clone()));
        let pool = MemPool::with_source(&self.allocator, quarry.clone())?;
        quarries.push((pool.id(), quarry));
        drop(quarries);
        self.note_pool(pool.id());
        Ok(pool)
    }

    /// There is a pool of this name now.
    pub(super) fn note_pool(&self, pool: PoolId) {
        count(&self.counts.pools);
        lock(&self.names).insert(pool);
    }

    /// Whether the address is no block's start; asking changes nothing.
    pub(super) fn is_stranger(&self, addr: Addr) -> bool {
        self.allocator.free(addr) == Err(Error::UnknownAddress(addr))
    }
}
