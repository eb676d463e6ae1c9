//! The concurrent soak: many threads on one allocator over the simulated GPU.
//!
//! Each thread's choices follow from the seed and its number; how the threads meet does not, so
//! that a seed that fails may have to be run more than once to fail again. They ask for memory and
//! free it, also what others asked for; use it on other streams; open, pass on and drop private
//! pools, some with sources of their own; capture graphs; change settings, turn the history on and
//! off, cap and empty the cache. Miss callbacks free blocks and drop pools, and calls of the device
//! and of the sources fail as planned.
//!
//! That no two live blocks overlap is checked at every malloc. At quiet moments, when no thread
//! calls the allocator, the heap checks itself, and what it says is held against what the threads
//! hold, what the device gave and what each source gave. At the end everything is given back, and
//! nothing may be left. If nobody gets on for a minute the process is aborted, with the seed.

mod claims;
mod graphs;
mod ground;
mod plan;
mod private;
mod quarry;
mod quiet;
mod restless;
mod settings;
mod trouble;
mod watchdog;
mod worker;

use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use larder_core::Policy;

use super::run::panic_text;
use ground::{Counts, Ground};
use plan::Plan;
use watchdog::Watchdog;
use worker::Worker;

/// For so long nobody gets on before it counts as a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run that found nothing wrong has exercised; or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What the threads did, one by one.
    pub steps: u64,
    /// Requests that were served.
    pub mallocs: u64,
    /// Requests that ran out of memory.
    pub out_of_memory: u64,
    /// Calls that failed because the device or a source did.
    pub device_errors: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Of these, how many others had asked for.
    pub freed_by_others: u64,
    /// Requests that no cached block fitted.
    pub misses: u64,
    /// Uses of private pools begun.
    pub pools: u64,
    /// Graphs captured.
    pub captures: u64,
    /// Settings changed.
    pub changes: u64,
    /// Moments at which everything was checked.
    pub quiet_moments: u64,
}

impl Report {
    fn new(counts: &Counts) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            steps: read(&counts.steps),
            mallocs: read(&counts.mallocs),
            out_of_memory: read(&counts.out_of_memory),
            device_errors: read(&counts.device_errors),
            frees: read(&counts.frees),
            freed_by_others: read(&counts.freed_by_others),
            misses: read(&counts.misses),
            pools: read(&counts.pools),
            captures: read(&counts.captures),
            changes: read(&counts.changes),
            quiet_moments: read(&counts.quiet_moments),
        }
    }
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.steps += other.steps;
        self.mallocs += other.mallocs;
        self.out_of_memory += other.out_of_memory;
        self.device_errors += other.device_errors;
        self.frees += other.frees;
        self.freed_by_others += other.freed_by_others;
        self.misses += other.misses;
        self.pools += other.pools;
        self.captures += other.captures;
        self.changes += other.changes;
        self.quiet_moments += other.quiet_moments;
    }
}

/// A concurrent run found something wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that the run came from.
    pub seed: u64,
    /// How many threads there were.
    pub threads: usize,
    /// How many steps each of them was to do.
    pub steps: usize,
    /// What the run was, in words.
    pub plan: String,
    /// The policy that was asked for, if one was.
    pub policy: Option<String>,
    /// What was wrong first.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, threads, steps, plan, policy, reason } = self;
        writeln!(f, "seed {seed} failed: {reason}")?;
        writeln!(f, "plan: {plan}")?;
        write!(
            f,
            "repeat with: cargo testkit soak --threads {threads} --seed {seed} --steps {steps}"
        )?;
        policy.iter().try_for_each(|policy| write!(f, " --policy {policy}"))?;
        write!(f, "; threads meet as they like, so it may take some runs")
    }
}

impl std::error::Error for Failure {}

/// Runs so many threads, each for so many steps, on one allocator.
pub fn run(seed: u64, threads: usize, steps: usize) -> Result<Report, Box<Failure>> {
    run_plan(&Plan::new(seed, threads, steps), None)
}

/// Runs under a policy of the caller's choice.
pub fn run_under(
    policy: Policy,
    seed: u64,
    threads: usize,
    steps: usize,
) -> Result<Report, Box<Failure>> {
    let name = policy.name;
    run_plan(&Plan { policy, ..Plan::new(seed, threads, steps) }, Some(name))
}

fn run_plan(plan: &Plan, policy: Option<&str>) -> Result<Report, Box<Failure>> {
    let &Plan { seed, threads, steps, .. } = plan;
    let failure = |reason: String| {
        let (plan, policy) = (plan.to_string(), policy.map(str::to_owned));
        Box::new(Failure { seed, threads, steps, plan, policy, reason })
    };
    let hung = failure(format!("nobody got on for {} s", PATIENCE.as_secs()));
    let watchdog = Watchdog::new(PATIENCE, move || {
        eprintln!("{hung}");
        std::process::abort();
    });
    let ground = Ground::new(plan.clone(), watchdog);
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for number in 0..threads {
            let (ground, barrier) = (ground.clone(), &barrier);
            scope.spawn(move || take_part(&ground, number, barrier));
        }
    });
    if let Some(reason) = ground.complaint.text() {
        return Err(failure(reason));
    }
    let mut report = Report::new(&ground.counts);
    let ended = caught(|| ground.end());
    report.quiet_moments += 1;
    ended.map_err(failure).map(|()| report)
}

/// What one thread does. It comes to every quiet moment, also after something went wrong, so that
/// nobody waits for it in vain.
fn take_part(ground: &Arc<Ground>, number: usize, barrier: &Barrier) {
    let mut worker = Worker::new(ground.clone(), number);
    Ground::seed_hooks(worker.random.clone());
    let tell = |result: Result<(), String>| {
        if let Err(text) = result {
            ground.complaint.raise(text);
        }
    };
    let (total, each) = (ground.plan.steps, ground.plan.steps_between);
    for round in 0..total.div_ceil(each) {
        for _ in 0..each.min(total - round * each) {
            if !ground.complaint.is_raised() {
                tell(caught(|| worker.step()));
            }
        }
        let is_last = (round + 1) * each >= total;
        if barrier.wait().is_leader() && !ground.complaint.is_raised() {
            tell(caught(|| ground.check()));
            if is_last {
                ground.calm();
            }
        }
        barrier.wait();
    }
    // Whoever panicked may have left anything behind.
    if ground.complaint.is_raised() {
        std::mem::forget(worker);
    } else {
        tell(caught(|| worker.finish()));
    }
}

/// A panic is a finding like any other.
fn caught(act: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}
