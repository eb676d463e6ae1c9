//! Standing: whether a program runs, where its recording leaves open how much it was allowed. Then
//! it is replayed at both ends of what goes with the recording, and between them.

use larder_core::types::{GIB, KIB, MIB};
use larder_sim::script::Op;

use crate::replay::{Replay, ReplayError};
use crate::setup::Setup;
use crate::workload::Workload;

/// Whether it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// With all that it may have been allowed.
    Runs,
    /// That depends on it: from so many bytes on. None where it runs with some and not with more,
    /// as some settings have it.
    Depends(Option<u64>),
    /// With nothing that it may have been allowed.
    Fails,
}

/// So finely it is searched from which cap on a program runs.
const FINE_BYTES: u64 = 2 * MIB;

/// Whether these operations run with all that a setup leaves open. `runs` says whether they do with
/// what it names.
pub fn standing(
    workload: &Workload,
    setup: &Setup,
    ops: &[Op],
    runs: bool,
) -> Result<Standing, ReplayError> {
    let Some(caps) = setup.caps else {
        return Ok(if runs { Standing::Runs } else { Standing::Fails });
    };
    let runs_at = |bytes: u64| {
        let replay = Replay::new(workload, &setup.clone().allowing(bytes));
        Ok::<bool, ReplayError>(replay.fits(ops, 1)?.is_some())
    };
    let middle_bytes = caps.least_bytes.midpoint(caps.most_bytes);
    let mut points = vec![(setup.allowed_bytes().clamp(caps.least_bytes, caps.most_bytes), runs)];
    for bytes in [caps.least_bytes, middle_bytes, caps.most_bytes] {
        points.push((bytes, runs_at(bytes)?));
    }
    points.sort_unstable();
    let running = points.iter().filter(|&&(_, runs)| runs).count();
    if running == points.len() {
        return Ok(Standing::Runs);
    }
    if running == 0 {
        return Ok(Standing::Fails);
    }
    // From the last that fails on all have to run.
    let last = points.iter().rposition(|&(_, runs)| !runs).unwrap_or(0);
    let Some(&(mut high_bytes, _)) = points.get(last + 1) else {
        return Ok(Standing::Depends(None));
    };
    let mut low_bytes = points[last].0;
    while high_bytes - low_bytes > FINE_BYTES {
        let bytes = low_bytes.midpoint(high_bytes);
        if runs_at(bytes)? {
            high_bytes = bytes;
        } else {
            low_bytes = bytes;
        }
    }
    Ok(Standing::Depends(Some(high_bytes)))
}

/// The next size that people write with two decimals: what is said has to be enough for who takes
/// it at its word.
pub fn said_up(size_bytes: u64) -> u64 {
    let unit_bytes = [GIB, MIB, KIB].into_iter().find(|&unit_bytes| size_bytes >= unit_bytes);
    let unit_bytes = u128::from(unit_bytes.unwrap_or(100));
    let hundredths = (u128::from(size_bytes) * 100).div_ceil(unit_bytes);
    (hundredths * unit_bytes / 100) as u64
}

#[cfg(test)]
mod tests {
    use larder_core::types::Bytes;

    use super::*;

    #[test]
    fn what_is_said_is_enough() {
        for size_bytes in [1, 99, KIB, 5 * MIB + 1, GIB - 1, 1_862_270_976, 7 * GIB + 12_345] {
            let said = said_up(size_bytes);
            assert!(said >= size_bytes && said - size_bytes <= size_bytes / 90 + 1, "{size_bytes}");
            assert_eq!(said_up(said), said, "it is what it says");
        }
        assert_eq!(Bytes(said_up(1_862_270_976)).to_string(), "1.74 GiB");
    }
}
