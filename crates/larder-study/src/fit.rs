//! Fit: the smallest device on which a workload runs with no out-of-memory.

use std::collections::HashMap;

use larder_core::types::MIB;
use larder_sim::script::Op;

use crate::replay::{DEFAULT_MEMORY_BYTES, Replay, ReplayError, Setup};
use crate::setup::MEMORY_MAX_BYTES;
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Fit {
    /// How many times over the program runs there, in one process.
    pub passes: u64,
    /// The smallest memory that was seen to suffice; none if the setup's own does not.
    pub memory_bytes: Option<u64>,
    /// How often the cache is given back there, to try again, in all passes together.
    pub retries: u64,
    /// The smallest memory that was seen to suffice without that; none if the setup's own does not.
    pub calm_bytes: Option<u64>,
    /// The most that was in use at once in any pass, on the setup's own memory.
    pub peak_active_bytes: u64,
    /// How often the cache is given back on the setup's own memory.
    pub roomy_retries: u64,
}

impl Fit {
    /// The memory over what was in use at the peak.
    pub fn ratio(&self) -> Option<f64> {
        let memory_bytes = self.memory_bytes? as f64;
        (self.peak_active_bytes > 0).then(|| memory_bytes / self.peak_active_bytes as f64)
    }
}

/// How finely the memory is searched: 8 MiB, or 0.2 % where that is more.
fn resolution_mb(memory_mb: u64) -> u64 {
    (memory_mb / 500).max(8)
}

/// How much memory is searched through where nobody says it: more than usual if the program ran out
/// of memory on a device that was larger than usual, or holds more than that has room for.
pub fn search_limit_bytes(workload: &Workload) -> u64 {
    let recorded_bytes = workload.recorded_memory().map_or(0, |memory| memory.device_bytes);
    let recorded_bytes = workload.sizes.scaled(recorded_bytes);
    let needed_bytes = recorded_bytes.max(peak_requested_bytes(&workload.ops));
    needed_bytes.saturating_mul(4).clamp(DEFAULT_MEMORY_BYTES, MEMORY_MAX_BYTES)
}

/// The most that the operations hold at once, as they ask for it.
pub(crate) fn peak_requested_bytes(ops: &[Op]) -> u64 {
    let mut live: HashMap<u64, u64> = HashMap::new();
    let (mut held_bytes, mut peak_bytes) = (0_u64, 0);
    for op in ops {
        match *op {
            Op::Alloc { id, size_bytes, .. } => {
                live.insert(id, size_bytes);
                held_bytes = held_bytes.saturating_add(size_bytes);
                peak_bytes = peak_bytes.max(held_bytes);
            }
            Op::Free { id } => {
                let freed_bytes = live.remove(&id).unwrap_or(0);
                held_bytes = held_bytes.saturating_sub(freed_bytes);
            }
            _ => {}
        }
    }
    peak_bytes
}

/// Searches the smallest memory on which nothing fails, and the smallest on which nothing is tried
/// twice either, where the program runs so many times over in one process: a later pass begins with
/// what the one before it left cached, and may need more. What it found is worth nothing if the
/// setup's time was up by then.
pub fn fit(
    workload: &Workload,
    setup: &Setup,
    passes: u64,
    watch: &dyn Watch,
) -> Result<Fit, ReplayError> {
    let outcome = Replay::new(workload, setup).run_passes(&workload.ops, passes, &mut ())?;
    let peak_active_bytes = outcome.stats.active_bytes.all.peak as u64;
    if outcome.ooms > 0 {
        return Ok(Fit {
            passes,
            memory_bytes: None,
            retries: 0,
            calm_bytes: None,
            peak_active_bytes,
            roomy_retries: outcome.stats.num_alloc_retries,
        });
    }
    let retries_on = |memory_mb: u64| {
        let tried = setup.clone().sized(memory_mb * MIB);
        Replay::new(workload, &tried).fits(&workload.ops, passes)
    };
    let given_mb = setup.cap_bytes.unwrap_or(setup.memory_bytes) / MIB;
    let reserved_mb = (outcome.stats.reserved_bytes.all.peak as u64).div_ceil(MIB);
    let low_mb = (peak_active_bytes / MIB).saturating_sub(1);
    let high_mb = (reserved_mb + 2).min(given_mb);
    let fits = |memory_mb| Ok(retries_on(memory_mb)?.is_some());
    let memory_mb = smallest((low_mb, high_mb, given_mb), fits, watch)?;
    let retries = retries_on(memory_mb)?.unwrap_or(0);
    let calm_mb = if retries == 0 {
        Some(memory_mb)
    } else if outcome.stats.num_alloc_retries > 0 {
        None
    } else {
        let high_mb = high_mb.max(memory_mb);
        let is_calm = |memory_mb| Ok(retries_on(memory_mb)? == Some(0));
        Some(smallest((memory_mb, high_mb, given_mb), is_calm, watch)?)
    };
    Ok(Fit {
        passes,
        memory_bytes: Some(memory_mb * MIB),
        retries,
        calm_bytes: calm_mb.map(|memory_mb| memory_mb * MIB),
        peak_active_bytes,
        roomy_retries: outcome.stats.num_alloc_retries,
    })
}

/// The smallest number of MiB with which something does, between one that does not and one that
/// does.
pub(crate) fn search(
    (mut low_mb, mut high_mb): (u64, u64),
    does: impl Fn(u64) -> Result<bool, ReplayError>,
) -> Result<u64, ReplayError> {
    while high_mb > low_mb && high_mb - low_mb > resolution_mb(high_mb) {
        let middle_mb = low_mb.midpoint(high_mb);
        if does(middle_mb)? {
            high_mb = middle_mb;
        } else {
            low_mb = middle_mb;
        }
    }
    Ok(high_mb)
}

/// Searches by halving, in whole MiB, between what is too little, as what was active at the peak
/// is, and what was reserved at the peak, with which every device call can go as it went. What is
/// given is known to do.
fn smallest(
    (mut low_mb, mut high_mb, given_mb): (u64, u64, u64),
    does: impl Fn(u64) -> Result<bool, ReplayError>,
    watch: &dyn Watch,
) -> Result<u64, ReplayError> {
    // Settings may measure against the device's size, so a smaller one is not sure to do.
    let mut is_sure = high_mb == given_mb;
    let rounds = (high_mb - low_mb.min(high_mb)) / resolution_mb(high_mb);
    let extent = Extent::Steps(u64::from((rounds + 1).ilog2()) + 1);
    let mut fitting = Watched::begin(watch, "fitting", extent);
    loop {
        while high_mb > low_mb && high_mb - low_mb > resolution_mb(high_mb) {
            let middle_mb = low_mb.midpoint(high_mb);
            if does(middle_mb)? {
                (high_mb, is_sure) = (middle_mb, true);
            } else {
                low_mb = middle_mb;
            }
            fitting.step();
        }
        if is_sure || does(high_mb)? {
            return Ok(high_mb);
        }
        (low_mb, high_mb, is_sure) = (high_mb, given_mb, true);
    }
}
