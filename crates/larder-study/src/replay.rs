//! Replay: a workload on the simulated GPU, through the allocator that programs use.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_core::device::DeviceError;
use larder_core::heap::Filter;
use larder_core::heap::checkpoint::Checkpoint;
use larder_core::policy::CaptureRule;
use larder_core::record::stats::ByPool;
use larder_core::types::{Addr, PoolId, StreamId};
use larder_core::{Allocator, Error, OutOfMemory, Policy, Stats, TorchVersion};
use larder_sim::script::{Op, Route};
use larder_sim::{Calls, SimDevice, Spent};

use crate::passes::{self, Pass, Remains};
use crate::workload::Workload;

pub use crate::setup::{DEFAULT_MEMORY_BYTES, Setup};

/// What came of a replay.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The allocator's statistics at the end.
    pub stats: Stats,
    /// The bytes held for each private pool that ever held any.
    pub reserved_by_pool: Vec<(PoolId, ByPool)>,
    /// The PyTorch whose decisions these are.
    pub torch: Option<TorchVersion>,
    /// The split limit in force, as PyTorch shows it: -1 for none.
    pub max_split_bytes: i64,
    /// Calls that reached the device.
    pub calls: Calls,
    /// The calls that got memory and gave it back, and what they would have cost on a real GPU.
    pub driver: Spent,
    /// Those of them that came in the last third of the operations: a program that repeats itself
    /// has settled by then.
    pub driver_last_third: Spent,
    /// Bytes of the device in use at the end.
    pub used_bytes: u64,
    /// Whether the time was up before the end: then nothing here is of all operations.
    pub is_cut_short: bool,
    /// Allocations that failed.
    pub ooms: u64,
    /// What the first of them said.
    pub first_oom: Option<String>,
    /// Which operation of the program that was, from 0.
    pub first_oom_index: Option<usize>,
    /// The passes, one after the other.
    pub passes: Vec<Pass>,
    /// How many operations were run, in all passes together.
    pub operations: u64,
    /// How long the operations took.
    pub elapsed: Duration,
}

impl Outcome {
    /// Peak reserved over peak active bytes: 1 is no waste.
    pub fn overhead(&self) -> f64 {
        let [reserved, active] = peaks(&self.stats);
        passes::overhead(reserved, active)
    }
}

/// Peak reserved and peak active bytes.
fn peaks(stats: &Stats) -> [u64; 2] {
    [&stats.reserved_bytes, &stats.active_bytes].map(|bytes| bytes.all.peak.max(0) as u64)
}

/// Why a replay could not go on: an error that is not out of memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayError {
    /// Which operation of the program, from 0. What ends a pass comes behind the program's own.
    pub index: usize,
    /// The operation.
    pub op: Op,
    /// What the allocator said.
    pub error: Error,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} ({}): {}", self.index + 1, self.op, self.error)
    }
}

impl std::error::Error for ReplayError {}

/// Who hears of a replay as it goes.
pub trait Audience {
    /// The operation of this number, counted from 0 through all passes, comes next.
    fn before(&mut self, allocator: &Allocator, index: usize) {
        let _ = (allocator, index);
    }

    /// An allocation got this address, or 0 if it failed.
    fn placed(&mut self, id: u64, addr: Addr) {
        let _ = (id, addr);
    }

    /// All operations are done.
    fn after(&mut self, allocator: &Allocator) {
        let _ = allocator;
    }
}

/// Nobody listens.
impl Audience for () {}

/// An allocator on a simulated GPU, and the allocations of a script by their IDs.
pub struct Replay {
    device: Arc<SimDevice>,
    allocator: Allocator,
    live: HashMap<u64, Addr>,
    /// Each checkpoint with the allocations that were live when it was made.
    checkpoints: HashMap<u32, (Checkpoint, HashMap<Addr, u64>)>,
    ooms: u64,
    first_oom: Option<String>,
    /// What the last allocation said that failed, until somebody takes it.
    failure: Option<Box<OutOfMemory>>,
    /// The PyTorch whose policy it is.
    torch: Option<TorchVersion>,
    /// Who captures, where the policy goes by that.
    hand: Option<CapturingHand>,
    deadline: Option<Instant>,
}

/// The clock is looked at before every so many operations.
const OPERATIONS_A_LOOK: usize = 1024;

/// The stream on which the program works, where that decides what is captured: that of the capture
/// begun last, as a program that captures works on the stream, and else the default stream.
#[derive(Debug, Default)]
struct CapturingHand {
    captured: Vec<StreamId>,
    current: Arc<AtomicU64>,
}

impl CapturingHand {
    /// One that tells the allocator what it works on, if its policy goes by that.
    fn of(allocator: &Allocator, policy: &Policy) -> Option<CapturingHand> {
        let hand = CapturingHand::default();
        if policy.capture != CaptureRule::Marked {
            return None;
        }
        let current = hand.current.clone();
        allocator.on_current_stream(move || Some(StreamId(current.load(Ordering::Relaxed))));
        Some(hand)
    }

    fn work_on_last(&self) {
        let current = self.captured.last().map_or(0, |stream| stream.0);
        self.current.store(current, Ordering::Relaxed);
    }

    /// A capture began. One outside of all scopes is not PyTorch's, and is not marked.
    fn begin(&mut self, allocator: &Allocator, stream: StreamId) {
        self.captured.push(stream);
        self.work_on_last();
        let _ = allocator.mark_capture_begin(stream);
    }

    /// A capture is over.
    fn end(&mut self, allocator: &Allocator, stream: StreamId) {
        self.captured.retain(|&other| other != stream);
        self.work_on_last();
        allocator.mark_capture_end(stream);
    }
}

impl Replay {
    /// A fresh device and allocator for a workload.
    pub fn new(workload: &Workload, setup: &Setup) -> Replay {
        let (device, allocator) = setup.build(workload);
        let hand = CapturingHand::of(&allocator, &setup.policy);
        Replay {
            device,
            allocator,
            live: HashMap::new(),
            checkpoints: HashMap::new(),
            ooms: 0,
            first_oom: None,
            failure: None,
            torch: setup.policy.torch,
            hand,
            deadline: setup.deadline,
        }
    }

    /// The allocator that the operations are run on.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Runs all operations.
    pub fn run<A: Audience>(self, ops: &[Op], audience: &mut A) -> Result<Outcome, ReplayError> {
        self.run_passes(ops, 1, audience)
    }

    /// Runs all operations so many times over. After each time, unless there is but one, what is
    /// live is freed, all streams get done, and the private pools go.
    pub fn run_passes<A: Audience>(
        mut self,
        ops: &[Op],
        count: u64,
        audience: &mut A,
    ) -> Result<Outcome, ReplayError> {
        let start = Instant::now();
        let operations = ops.len().saturating_mul(count as usize);
        let remains = Remains::of(ops);
        let (mut first_oom_index, mut settled) = (None, Spent::default());
        let (mut number, mut passes, mut is_cut_short) = (0, Vec::new(), false);
        'passes: for _ in 0..count {
            let (spent, ooms) = (self.device.spent(), self.ooms);
            for (index, &op) in ops.iter().enumerate() {
                is_cut_short = self.is_late(number);
                if is_cut_short {
                    break 'passes;
                }
                if number == last_third(operations) {
                    settled = self.device.spent();
                }
                audience.before(&self.allocator, number);
                self.step(op, audience).map_err(|error| ReplayError { index, op, error })?;
                if self.ooms > 0 && first_oom_index.is_none() {
                    first_oom_index = Some(index);
                }
                number += 1;
            }
            self.end_pass(count, &remains, ops.len())?;
            let [peak_reserved_bytes, peak_active_bytes] = peaks(&self.allocator.stats());
            passes.push(Pass {
                peak_reserved_bytes,
                peak_active_bytes,
                ooms: self.ooms - ooms,
                driver: self.device.spent().since(spent),
            });
        }
        let elapsed = start.elapsed();
        audience.after(&self.allocator);
        Ok(Outcome {
            stats: self.allocator.stats(),
            reserved_by_pool: self.allocator.reserved_by_pool(),
            torch: self.torch,
            max_split_bytes: self.allocator.config().max_split_bytes.map_or(-1, |max| max as i64),
            calls: self.device.calls(),
            driver: self.device.spent(),
            driver_last_third: self.device.spent().since(settled),
            used_bytes: self.device.used_bytes(),
            is_cut_short,
            ooms: self.ooms,
            first_oom: self.first_oom,
            first_oom_index,
            passes,
            operations: operations as u64,
            elapsed,
        })
    }

    /// Ends one of so many passes; the only one is left as it is.
    fn end_pass(
        &mut self,
        count: u64,
        remains: &Remains,
        behind: usize,
    ) -> Result<(), ReplayError> {
        if count > 1 { self.close(remains, behind) } else { Ok(()) }
    }

    /// Ends a pass: nothing of it is left but what the allocator has cached. `behind` is how many
    /// operations the program has.
    fn close(&mut self, remains: &Remains, behind: usize) -> Result<(), ReplayError> {
        let mut live: Vec<u64> = self.live.keys().copied().collect();
        live.sort_unstable();
        let uses = |pool| self.allocator.pool_uses(pool_id(pool)).unwrap_or(0);
        for (offset, op) in remains.closing(&live, uses).into_iter().enumerate() {
            let index = behind + offset;
            self.step(op, &mut ()).map_err(|error| ReplayError { index, op, error })?;
        }
        self.checkpoints.clear();
        Ok(())
    }

    /// Runs all operations and gives the allocator, with all that it remembers.
    pub fn run_on<A: Audience>(
        mut self,
        ops: &[Op],
        audience: &mut A,
    ) -> Result<Allocator, ReplayError> {
        for (index, &op) in ops.iter().enumerate() {
            audience.before(&self.allocator, index);
            self.step(op, audience).map_err(|error| ReplayError { index, op, error })?;
        }
        Ok(self.allocator)
    }

    /// Whether the time is up before the operation of this number.
    fn is_late(&self, number: usize) -> bool {
        let looks = number.is_multiple_of(OPERATIONS_A_LOOK);
        looks && self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Runs so many times over, as `run_passes` does, until the first allocation that fails or the
    /// time is up; how often the cache was given back to try again, if all went well.
    pub fn fits(mut self, ops: &[Op], count: u64) -> Result<Option<u64>, ReplayError> {
        let remains = Remains::of(ops);
        for _ in 0..count {
            for (index, &op) in ops.iter().enumerate() {
                self.step(op, &mut ()).map_err(|error| ReplayError { index, op, error })?;
                if self.ooms > 0 || self.is_late(index) {
                    return Ok(None);
                }
            }
            self.end_pass(count, &remains, ops.len())?;
        }
        Ok(Some(self.allocator.stats().num_alloc_retries))
    }

    /// Runs until the first allocation that fails and is none of these; whether there is none.
    pub(crate) fn fits_but(
        mut self,
        ops: &[Op],
        refused: &HashSet<u64>,
    ) -> Result<bool, ReplayError> {
        for (index, &op) in ops.iter().enumerate() {
            let has_failed = self.advance(index, op)?.is_some();
            if has_failed && !matches!(op, Op::Alloc { id, .. } if refused.contains(&id)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs one operation, which is number `index` of the program; what it said if it failed for
    /// want of memory.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        op: Op,
    ) -> Result<Option<Box<OutOfMemory>>, ReplayError> {
        self.step(op, &mut ()).map_err(|error| ReplayError { index, op, error })?;
        Ok(self.failure.take())
    }

    /// What the calls for memory would have cost so far.
    pub(crate) fn spent(&self) -> Spent {
        self.device.spent()
    }

    /// The live allocations, by their IDs.
    pub(crate) fn live(&self) -> &HashMap<u64, Addr> {
        &self.live
    }

    fn step(&mut self, op: Op, audience: &mut impl Audience) -> Result<(), Error> {
        match op {
            Op::Alloc { id, size_bytes, stream } => {
                match self.allocator.malloc(size_bytes, stream_id(stream)) {
                    Ok(addr) => {
                        self.live.insert(id, addr);
                        audience.placed(id, addr);
                    }
                    Err(Error::OutOfMemory(report)) => {
                        self.ooms += 1;
                        self.first_oom.get_or_insert_with(|| report.to_string());
                        self.failure = Some(report);
                        audience.placed(id, Addr(0));
                    }
                    Err(error) => return Err(error),
                }
            }
            Op::Free { id } => {
                if let Some(addr) = self.live.remove(&id) {
                    self.allocator.free(addr)?;
                }
            }
            Op::Record { id, stream } => {
                if let Some(&addr) = self.live.get(&id) {
                    self.allocator.record_stream(addr, stream_id(stream))?;
                }
            }
            Op::Sync { stream } => self.device.sync(stream_id(stream)),
            Op::Empty => self.allocator.empty_cache()?,
            Op::Fraction { fraction } => self.allocator.set_memory_fraction(fraction)?,
            Op::ResetPeak => self.allocator.reset_peak_stats(),
            Op::ResetAccumulated => self.allocator.reset_accumulated_stats(),
            Op::Launch { stream } => self.device.issue(stream_id(stream)),
            // A wait that a capture does not allow breaks the capture, as it would a real one.
            Op::Wait { stream, other } => {
                let _ = self.device.follow(stream_id(stream), stream_id(other));
            }
            Op::CaptureBegin { stream } => {
                let begun = self.device.begin_capture(stream_id(stream));
                begun.map_err(refused("begin a capture"))?;
                if let Some(hand) = &mut self.hand {
                    hand.begin(&self.allocator, stream_id(stream));
                }
            }
            Op::CaptureEnd { stream } => {
                if !self.device.is_captured(stream_id(stream)) {
                    let error = DeviceError::NotSupported;
                    return Err(Error::Device { call: "end a capture that is not on", error });
                }
                // A capture that was broken is over too.
                let _ = self.device.end_capture(stream_id(stream));
                if let Some(hand) = &mut self.hand {
                    hand.end(&self.allocator, stream_id(stream));
                }
            }
            Op::Checkpoint { checkpoint, pool } => {
                let saved = self.allocator.checkpoint_pool(pool_id(pool))?;
                let ids = self.live.iter().map(|(&id, &addr)| (addr, id)).collect();
                self.checkpoints.insert(checkpoint, (saved, ids));
            }
            Op::Restore { checkpoint } => self.restore(checkpoint)?,
            _ => self.pool_step(op)?,
        }
        Ok(())
    }

    fn pool_step(&mut self, op: Op) -> Result<(), Error> {
        match op {
            Op::PoolNew { pool } => self.allocator.add_pool_use(pool_id(pool)),
            Op::PoolBegin { pool, route } => {
                let filter = match route {
                    Route::All => Filter::Any,
                    Route::Stream(stream) => Filter::Stream(stream_id(stream)),
                    Route::Capture(stream) => Filter::Capture(stream_id(stream)),
                };
                self.allocator.begin_pool(pool_id(pool), filter)
            }
            Op::PoolEnd { pool } => self.allocator.end_pool(pool_id(pool)),
            Op::PoolRelease { pool } => self.allocator.drop_pool_use(pool_id(pool)),
            Op::PoolEmpty { pool } => self.allocator.empty_pool(pool_id(pool)),
            Op::PoolUseOnOom { pool, on } => self.allocator.set_pool_use_on_oom(pool_id(pool), on),
            Op::PoolNoSplit { pool } => self.allocator.set_pool_no_split(pool_id(pool)),
            other => unreachable!("{other} is not about a pool"),
        }
    }

    /// Puts a checkpoint back: what it freed is no longer live, and what it brought back is live
    /// under the ID that it had.
    fn restore(&mut self, checkpoint: u32) -> Result<(), Error> {
        let (saved, ids) = &self.checkpoints[&checkpoint];
        let restored = self.allocator.restore_pool(saved)?;
        self.live.retain(|_, addr| restored.freed.binary_search(addr).is_err());
        let back = restored.created.iter().filter_map(|addr| Some((*ids.get(addr)?, *addr)));
        self.live.extend(back);
        Ok(())
    }
}

/// Where the last third of so many operations begins.
fn last_third(operations: usize) -> usize {
    operations - operations.div_ceil(3)
}

fn stream_id(stream: u32) -> StreamId {
    StreamId(u64::from(stream))
}

fn pool_id(pool: u32) -> PoolId {
    PoolId(0, u64::from(pool))
}

fn refused(call: &'static str) -> impl FnOnce(DeviceError) -> Error {
    move |error| Error::Device { call, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_third_is_no_less_than_a_third() {
        assert_eq!([0, 1, 2, 3, 4, 6, 7].map(last_third), [0, 0, 1, 2, 2, 4, 4]);
    }
}
