//! Fit: the smallest device on which a workload runs with no out-of-memory.

use larder_core::types::MIB;

use crate::replay::{Replay, ReplayError, Setup};
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The smallest memory that was seen to suffice; none if the setup's own does not.
    pub memory_bytes: Option<u64>,
    /// The most that was in use at once, on the setup's own memory.
    pub peak_active_bytes: u64,
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

/// Searches by halving, in whole MiB, between what was active at the peak, which must fit, and
/// what was reserved at the peak, with which every device call can go as it went.
pub fn fit(workload: &Workload, setup: &Setup, watch: &dyn Watch) -> Result<Fit, ReplayError> {
    let outcome = Replay::new(workload, setup).run(&workload.ops, &mut ())?;
    let peak_active_bytes = outcome.stats.active_bytes.all.peak as u64;
    if outcome.ooms > 0 {
        return Ok(Fit { memory_bytes: None, peak_active_bytes });
    }
    let fits = |memory_mb: u64| {
        let tried = Setup { memory_bytes: memory_mb * MIB, ..setup.clone() };
        Replay::new(workload, &tried).fits(&workload.ops)
    };
    let given_mb = setup.memory_bytes / MIB;
    let reserved_mb = (outcome.stats.reserved_bytes.all.peak as u64).div_ceil(MIB);
    let mut low_mb = (peak_active_bytes / MIB).saturating_sub(1);
    let mut high_mb = (reserved_mb + 2).min(given_mb);
    // Settings may measure against the device's size, so a smaller one is not sure to do.
    let mut is_sure = high_mb == given_mb;
    let rounds = (high_mb - low_mb.min(high_mb)) / resolution_mb(high_mb);
    let extent = Extent::Steps(u64::from((rounds + 1).ilog2()) + 1);
    let mut fitting = Watched::begin(watch, "fitting", extent);
    loop {
        while high_mb > low_mb && high_mb - low_mb > resolution_mb(high_mb) {
            let middle_mb = low_mb.midpoint(high_mb);
            if fits(middle_mb)? {
                (high_mb, is_sure) = (middle_mb, true);
            } else {
                low_mb = middle_mb;
            }
            fitting.step();
        }
        if is_sure || fits(high_mb)? {
            return Ok(Fit { memory_bytes: Some(high_mb * MIB), peak_active_bytes });
        }
        (low_mb, high_mb, is_sure) = (high_mb, given_mb, true);
    }
}
