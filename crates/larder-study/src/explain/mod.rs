//! Explain: why a request failed, and what would have helped, found by replaying under each remedy.

mod account;
mod cause;
mod change;
mod outlook;
mod remedy;

use crate::margin;
use crate::replay::{Replay, ReplayError, Setup};
use crate::scene::{Failure, Scene};
use crate::watch::Watch;
use crate::workload::Workload;

pub use account::Account;
pub use cause::Cause;
pub use outlook::{NearFailure, Outlook, outlook};
pub(crate) use remedy::settings_tried;
pub use remedy::{Family, Remedy, Trial, Verdict};

/// Why a request failed, and what would have helped.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What the program ran on.
    pub setup: Setup,
    /// All memory when it failed.
    pub scene: Scene,
    /// The request.
    pub failure: Failure,
    /// What is free, and where.
    pub account: Account,
    /// The cause.
    pub cause: Cause,
    /// Whether a replay without the cause gets past the failure.
    pub is_proven: bool,
    /// What was tried, what helps first.
    pub remedies: Vec<Remedy>,
    /// How many requests fail in all, as it is.
    pub failures: u64,
    /// After how many requests that were refused the recorded program went on.
    pub went_on: u64,
}

impl Explanation {
    /// The remedy that costs least of those with which the program runs to its end.
    pub fn best(&self) -> Option<&Remedy> {
        let runs = |remedy: &&Remedy| remedy.verdict == Verdict::Runs;
        self.remedies.iter().find(runs)
    }

    /// What the whole program has in use at its peak, as seen on a card on which it runs as it is.
    pub fn peak_active_bytes(&self) -> Option<u64> {
        let mut cards = self.remedies.iter().filter(|remedy| remedy.family == Family::LargerCard);
        cards
            .find(|remedy| remedy.verdict == Verdict::Runs)
            .map(|card| card.trial.peak_active_bytes)
    }

    /// The remedy that costs least of those with which it may run, as the cap was, where it costs
    /// less than the best of those with which it runs.
    pub fn likely(&self) -> Option<&Remedy> {
        let depends = |remedy: &&Remedy| matches!(remedy.verdict, Verdict::Depends(_));
        let found = self.remedies.iter().find(depends)?;
        let is_easier = |best: &Remedy| best.is_memory() && !found.is_memory();
        self.best().is_none_or(is_easier).then_some(found)
    }

    /// Whether no setting, policy or change of the program's ways helps: only more memory, or less
    /// need.
    pub fn needs_memory(&self) -> bool {
        self.best().is_none_or(Remedy::is_memory)
    }
}

/// Explains the failure of this number, counted from 1; none if there are not so many. Where nobody
/// names one it is the first, or else the last if that had the recording written.
pub fn explain(
    workload: &Workload,
    setup: &Setup,
    number: impl Into<Option<u64>>,
    watch: &dyn Watch,
) -> Result<Option<Explanation>, ReplayError> {
    let number = match number.into() {
        Some(number) => number,
        None if workload.recording.as_ref().is_some_and(|facts| facts.on_failure) => {
            let outcome = Replay::new(workload, setup).run(&workload.ops, &mut ())?;
            outcome.ooms.max(1)
        }
        None => 1,
    };
    let Some((scene, failure)) = Scene::of_failure(workload, setup, number)? else {
        return Ok(None);
    };
    let account = Account::of(&scene, &failure);
    let remedies = remedy::try_all(workload, setup, &scene, &failure, &account, watch);
    let candidates = Cause::candidates(setup, &failure, &account);
    let proven = candidates.iter().copied().find(|cause| cause.is_proven(&remedies));
    let likeliest = proven.or_else(|| candidates.first().copied()).unwrap_or(Cause::Demand);
    // What more memory alone mends is want of memory, however scattered the free part of it is.
    let is_mended = remedies.iter().any(|remedy| remedy.gets_past() && !remedy.is_memory());
    let cause = match likeliest {
        Cause::Pieces if proven.is_none() && !is_mended => Cause::Demand,
        other => other,
    };
    let as_it_is = Replay::new(workload, setup).run(&workload.ops, &mut ())?;
    Ok(Some(Explanation {
        setup: setup.clone(),
        scene,
        failure,
        account,
        cause,
        is_proven: proven.is_some(),
        remedies,
        failures: as_it_is.ooms,
        went_on: margin::went_on(workload).len() as u64,
    }))
}
