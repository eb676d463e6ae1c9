//! Margins: how sure the smallest memory is that a search found. Sizes that are a little off may
//! need more, requests that were refused when the program was recorded may be refused again, and
//! what is said of a memory has to be enough for who takes it at its word.

use std::collections::HashSet;

use larder_core::types::MIB;
use larder_sim::script::Op;

use crate::crew;
use crate::fit::{self, Fit};
use crate::replay::{Replay, ReplayError};
use crate::setup::Setup;
use crate::sizes::{Jitter, Sizes};
use crate::standing::said_up;
use crate::watch::{Extent, Unwatched, Watch, Watched};
use crate::workload::Workload;

/// By how much sizes are off, in per cent, and how many times that is tried.
pub const OFF_PERCENT: f64 = 1.0;
const OFF_SEEDS: u64 = 4;
/// A program with more operations than this is not searched so often.
const OPERATIONS_MAX: usize = 3_000_000;

/// How sure a fit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Margin {
    /// The memory as it is said in two decimals, on which the program was seen to run too.
    pub said_bytes: Option<u64>,
    /// The most that it needs where sizes are off; none where that was not searched.
    pub off_bytes: Option<u64>,
    /// The requests that were refused when it was recorded, and went on.
    pub refused: Option<Refused>,
}

/// Requests that were refused, after which the program went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// The largest of them.
    pub largest_bytes: u64,
    /// The smallest memory on which nothing else fails, where that is less.
    pub memory_bytes: Option<u64>,
}

/// Says how sure a fit is.
pub fn margin(
    workload: &Workload,
    setup: &Setup,
    fit: &Fit,
    watch: &dyn Watch,
) -> Result<Margin, ReplayError> {
    let refused = refused(workload, setup, fit)?;
    let Some(memory_bytes) = fit.memory_bytes else {
        return Ok(Margin { refused, ..Margin::default() });
    };
    let fits_in = |bytes: u64| {
        let replay = Replay::new(workload, &setup.clone().sized(bytes));
        Ok::<bool, ReplayError>(replay.fits(&workload.ops, fit.passes)?.is_some())
    };
    let said = Some(said_up(memory_bytes)).filter(|&said_bytes| said_bytes <= setup.memory_bytes);
    let said_bytes = match said {
        Some(said_bytes) if fits_in(said_bytes)? => Some(said_bytes),
        _ => None,
    };
    let mut off_bytes = None;
    if workload.ops.len() <= OPERATIONS_MAX {
        let most_bytes = most_of_off(workload, setup, fit, watch);
        // What is said of others has to be enough for the program itself.
        if let Some(bytes) = most_bytes.map(|bytes| said_up(bytes.max(memory_bytes))) {
            off_bytes = Some(bytes).filter(|_| bytes <= setup.memory_bytes);
            if off_bytes.is_some() && !fits_in(bytes)? {
                off_bytes = None;
            }
        }
    }
    Ok(Margin { said_bytes, off_bytes, refused })
}

/// The most that the program needs with sizes that are off, each time otherwise.
fn most_of_off(workload: &Workload, setup: &Setup, fit: &Fit, watch: &dyn Watch) -> Option<u64> {
    let seeds: Vec<u64> = (1..=OFF_SEEDS).collect();
    let mut trying = Watched::begin(watch, "other sizes", Extent::Steps(OFF_SEEDS));
    let found = crew::each(
        &seeds,
        |&seed| {
            let mut off = workload.clone();
            let jitter = Some(Jitter { percent: OFF_PERCENT, seed });
            Sizes { scale: 1, jitter }.change(&mut off.ops);
            off.segment_addresses.clear();
            fit::fit(&off, setup, fit.passes, &Unwatched).ok()?.memory_bytes
        },
        || trying.step(),
    );
    // One that does not run in all there is says that there is no such number.
    found.into_iter().collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// The requests that were refused and went on, and the memory without them.
fn refused(workload: &Workload, setup: &Setup, fit: &Fit) -> Result<Option<Refused>, ReplayError> {
    let refused = went_on(workload);
    if refused.is_empty() {
        return Ok(None);
    }
    let sizes = workload.ops.iter().filter_map(|op| match op {
        Op::Alloc { id, size_bytes, .. } if refused.contains(id) => Some(*size_bytes),
        _ => None,
    });
    let (count, largest_bytes) = (refused.len() as u64, sizes.max().unwrap_or(0));
    let does = |memory_mb: u64| {
        let setup = setup.clone().sized(memory_mb.max(2) * MIB);
        Replay::new(workload, &setup).fits_but(&workload.ops, &refused)
    };
    let most_mb = fit.memory_bytes.unwrap_or(setup.memory_bytes) / MIB;
    let memory_bytes =
        if does(most_mb)? { Some(fit::search((0, most_mb), does)?.max(2) * MIB) } else { None };
    let memory_bytes =
        memory_bytes.filter(|&bytes| fit.memory_bytes.is_none_or(|whole| bytes < whole));
    Ok(Some(Refused { count, largest_bytes, memory_bytes }))
}

/// The requests that were refused when the program was recorded, but for the one that it ended at.
pub fn went_on(workload: &Workload) -> HashSet<u64> {
    let Some(facts) = &workload.recording else { return HashSet::new() };
    let ends = usize::from(facts.ends_at_failure);
    let count = facts.refused.len().saturating_sub(ends);
    facts.refused[..count].iter().copied().collect()
}
