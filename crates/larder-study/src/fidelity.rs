//! Fidelity: whether a replay of a recording under its own settings goes as the recorded program
//! went. Where it does not, what it says of other settings is worth little.

use larder_core::Policy;
use larder_core::config::Config;

use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::settings::recorded_config;
use crate::workload::{Addresses, RecordingFacts, Workload};

/// How a replay differs from what was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// The policy of Larder's under which it was recorded, and so replayed; none for stock
    /// PyTorch's.
    pub policy: Option<&'static str>,
    /// How often the recorded program ran out of memory.
    pub recorded_ooms: u64,
    /// How often the replay did.
    pub ooms: u64,
    /// How often the recorded allocator tried again: at least, and at most.
    pub recorded_retries: (u64, u64),
    /// How often the replay did.
    pub retries: u64,
}

impl Unlike {
    /// Compares what was recorded with what came of a replay, if they differ.
    pub fn of(facts: &RecordingFacts, outcome: &Outcome) -> Option<Unlike> {
        let retries = outcome.stats.num_alloc_retries;
        let (least, most) = facts.retries;
        let is_alike = outcome.ooms == facts.ooms && (least..=most).contains(&retries);
        (!is_alike).then_some(Unlike {
            policy: facts.policy.as_ref().map(|policy| policy.name),
            recorded_ooms: facts.ooms,
            ooms: outcome.ooms,
            recorded_retries: facts.retries,
            retries,
        })
    }
}

/// Replays a recording that ran short of memory, with its own settings, its own memory and the
/// policy that it names or else stock PyTorch's, and says where that goes another way. A recording
/// that Larder's policy replays as it was is one of Larder, and no other way either. With other
/// sizes there is nothing to compare.
pub fn check(workload: &Workload, addresses: Addresses) -> Result<Option<Unlike>, ReplayError> {
    let is_told = |facts: &&RecordingFacts| facts.memory.is_some() && workload.sizes.is_same();
    let Some(facts) = workload.recording.as_ref().filter(is_told) else { return Ok(None) };
    let config = recorded_config(workload).unwrap_or_else(|| Ok(Config::default()));
    let Ok(config) = config else { return Ok(None) };
    let unlike = |policy: Policy| {
        let setup = Setup { policy, config: config.clone(), addresses, ..Setup::default() };
        let setup = setup.with_memory(None, workload);
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        Ok(Unlike::of(facts, &outcome))
    };
    match unlike(facts.policy.clone().unwrap_or_else(|| workload.stock()))? {
        Some(found) => Ok(unlike(Policy::default())?.and(Some(found))),
        None => Ok(None),
    }
}
