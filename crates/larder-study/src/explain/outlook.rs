//! Outlooks: how near a program came to failing that did not fail, what it holds and does not use,
//! and with which settings it would do better.

use larder_sim::script::Op;

use super::remedy::{self, Remedy, Verdict};
use crate::replay::{Replay, ReplayError};
use crate::setup::Setup;
use crate::watch::Watch;
use crate::workload::Workload;
use crate::worth::TRIFLE;

/// How a program fared that did not fail.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// What it ran on.
    pub setup: Setup,
    /// The most that was in use at once.
    pub peak_active_bytes: u64,
    /// The most that was held at once.
    pub peak_reserved_bytes: u64,
    /// Held and not in use when most was in use.
    pub idle_at_peak_bytes: u64,
    /// Held and not in use at the end.
    pub idle_at_end_bytes: u64,
    /// The requests that were met only when the cache had been given back, in their order.
    pub near: Vec<NearFailure>,
    /// What the calls for memory would have cost, in nanoseconds.
    pub driver_ns: u64,
    /// The settings with which a replay retried least and held least, where they are better.
    pub best: Option<Remedy>,
}

/// A request that was met only when the cache had been given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearFailure {
    /// Its operation, from 0.
    pub index: usize,
    /// Its name in the operations.
    pub id: u64,
    /// What was asked for.
    pub asked_bytes: u64,
    /// What went back to the device for it.
    pub given_back_bytes: u64,
    /// What its calls for memory would have cost, in nanoseconds.
    pub driver_ns: u64,
}

/// How a program fared, where nothing fails; none where something does.
pub fn outlook(
    workload: &Workload,
    setup: &Setup,
    watch: &dyn Watch,
) -> Result<Option<Outlook>, ReplayError> {
    let mut replay = Replay::new(workload, setup);
    let (mut near, mut idle_at_peak_bytes, mut peak_active) = (Vec::new(), 0, -1);
    let idle = |active: i64, reserved: i64| reserved.saturating_sub(active).max(0) as u64;
    let figures = |replay: &Replay| {
        let stats = replay.allocator().stats();
        let [active, reserved] =
            [&stats.active_bytes, &stats.reserved_bytes].map(|bytes| bytes.all.current);
        (stats.num_alloc_retries, active, reserved, stats.reserved_bytes.all.freed)
    };
    let mut last = figures(&replay);
    for (index, &op) in workload.ops.iter().enumerate() {
        let spent = replay.spent();
        if replay.advance(index, op)?.is_some() {
            return Ok(None);
        }
        let Op::Alloc { id, size_bytes, .. } = op else { continue };
        let (retries, active, reserved, freed) = figures(&replay);
        if active > peak_active {
            (peak_active, idle_at_peak_bytes) = (active, idle(active, reserved));
        }
        if retries > last.0 {
            near.push(NearFailure {
                index,
                id,
                asked_bytes: size_bytes,
                given_back_bytes: (freed - last.3).max(0) as u64,
                driver_ns: replay.spent().since(spent).ns,
            });
        }
        last = (retries, active, reserved, freed);
    }
    let (_, active, reserved, _) = figures(&replay);
    let stats = replay.allocator().stats();
    let peak = |counter: i64| counter.max(0) as u64;
    let mut found = Outlook {
        setup: setup.clone(),
        peak_active_bytes: peak(stats.active_bytes.all.peak),
        peak_reserved_bytes: peak(stats.reserved_bytes.all.peak),
        idle_at_peak_bytes,
        idle_at_end_bytes: idle(active, reserved),
        near,
        driver_ns: replay.spent().ns,
        best: None,
    };
    found.best = better(workload, setup, &found, watch);
    Ok(Some(found))
}

/// What is set and does better: fewer retries, or less held by more than a trifle with no more of
/// them.
fn better(
    workload: &Workload,
    setup: &Setup,
    outlook: &Outlook,
    watch: &dyn Watch,
) -> Option<Remedy> {
    let retries = outlook.near.len() as u64;
    let worth_bytes = (outlook.peak_reserved_bytes as f64 * (1.0 - TRIFLE)) as u64;
    let is_better = |remedy: &Remedy| {
        let trial = &remedy.trial;
        remedy.verdict == Verdict::Runs
            && (trial.retries < retries
                || trial.retries == retries && trial.peak_reserved_bytes < worth_bytes)
    };
    let tried = remedy::settings_tried(workload, setup, watch);
    let better = tried.into_iter().filter(is_better);
    better.min_by_key(Remedy::cost)
}
