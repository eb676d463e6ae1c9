//! Questions: on what a program is replayed where a person says little of it. This is the one rule
//! for all commands, the page and Python; docs/commands.md says it in words.

use std::fmt;

use larder_core::Policy;

use crate::card::Card;
use crate::fidelity::Unlike;
use crate::fit::search_limit_bytes;
use crate::option_error::OptionError;
use crate::replay::{Replay, ReplayError, Setup};
use crate::settings::{Chosen, names_fraction, recorded_config};
use crate::told::Told;
use crate::workload::{Addresses, Workload};

/// What a person says of a run. All else is as it was recorded.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Who decides; else who decided when it was recorded, and Larder for a script.
    pub policy: Option<Policy>,
    /// The settings; else those that it was recorded with.
    pub settings: Option<Chosen>,
    /// So much memory, and all of it for the program: a recorded fraction does not hold then.
    pub memory_bytes: Option<u64>,
    /// The card that it was recorded on, of which a recorded fraction is a part.
    pub card: Option<Card>,
    /// So much of the memory for the program.
    pub cap_bytes: Option<u64>,
    /// What PyTorch's error says of the card and of the cap.
    pub told: Option<Told>,
    /// Which addresses plain memory gets.
    pub addresses: Addresses,
}

/// Why a question cannot be put to a program; one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoseError {
    /// An option does not go with the recording.
    Option(OptionError),
    /// The replay that tells who decided could not go on.
    Replay(ReplayError),
}

impl fmt::Display for PoseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoseError::Option(error) => error.fmt(f),
            PoseError::Replay(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PoseError {}

impl From<OptionError> for PoseError {
    fn from(error: OptionError) -> PoseError {
        PoseError::Option(error)
    }
}

impl From<ReplayError> for PoseError {
    fn from(error: ReplayError) -> PoseError {
        PoseError::Replay(error)
    }
}

/// A question with all that was left open filled in.
#[derive(Clone, Debug)]
pub struct Posed {
    /// What the program runs on.
    pub setup: Setup,
    /// The settings, and where they come from.
    pub settings: Chosen,
}

impl Question {
    /// Fails with a sentence where two options contradict one another.
    pub fn check(&self) -> Result<(), OptionError> {
        let names = self.settings.as_ref().is_some_and(|given| names_fraction(&given.config));
        if self.told.is_some() {
            let given = [
                ("--memory", self.memory_bytes.is_some()),
                ("--card", self.card.is_some()),
                ("--cap", self.cap_bytes.is_some()),
                ("per_process_memory_fraction", names),
            ];
            let other = given.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
            return other.map_or(Ok(()), |other| Err(OptionError::Twice("--error", other)));
        }
        match (self.memory_bytes, &self.card, self.cap_bytes) {
            (Some(_), Some(_), _) => Err(OptionError::Twice("--memory", "--card")),
            (_, _, Some(_)) if names => {
                Err(OptionError::Twice("--cap", "per_process_memory_fraction"))
            }
            _ => Ok(()),
        }
    }

    /// What the program is replayed on.
    pub fn pose(&self, workload: &Workload) -> Result<Posed, PoseError> {
        let mut settings = self.settings.clone().unwrap_or_else(|| Chosen::recorded(workload));
        if self.memory_bytes.is_some() || self.cap_bytes.is_some() {
            settings = settings.without_recorded_fraction();
        }
        let policy = match &self.policy {
            Some(policy) => policy.clone().for_recording(workload.recorded_torch()),
            None => recorded_policy(workload)?,
        };
        let (config, addresses) = (settings.config.clone(), self.addresses);
        let setup = Setup { policy, config, addresses, ..Setup::default() };
        let setup = self.allowed(self.on_device(setup, workload));
        let setup = match &self.told {
            Some(told) => told.narrow(setup, workload)?,
            None => setup,
        };
        Ok(Posed { setup, settings })
    }

    /// On what the smallest memory is searched for: no recorded cap holds, and what the recorded
    /// program had is what it may have been too little of.
    pub fn pose_fit(&self, workload: &Workload) -> Result<Posed, PoseError> {
        let limit_bytes = self.memory_bytes.unwrap_or_else(|| search_limit_bytes(workload));
        let memory_bytes = Some(limit_bytes);
        let (card, cap_bytes, told) = (None, None, None);
        Question { memory_bytes, card, cap_bytes, told, ..self.clone() }.pose(workload)
    }

    fn on_device(&self, setup: Setup, workload: &Workload) -> Setup {
        let recorded = setup.with_memory(self.memory_bytes, workload);
        let Some(card) = &self.card else { return recorded };
        let setup = Setup { memory_bytes: card.total_bytes, ..recorded };
        match recorded_config(workload) {
            // The fraction is named, so that with the card the cap is known.
            Some(Ok(config)) if names_fraction(&config) => Setup { caps: None, ..setup },
            _ if setup.fraction.is_none() => Setup { caps: None, ..setup },
            _ => Setup { cap_bytes: workload.recorded_cap_bytes(), ..setup },
        }
    }

    fn allowed(&self, setup: Setup) -> Setup {
        match self.cap_bytes {
            None => setup,
            Some(cap_bytes) => {
                let is_told = self.memory_bytes.is_some() || self.card.is_some();
                let least_bytes = if is_told { 0 } else { cap_bytes };
                let memory_bytes = setup.memory_bytes.max(least_bytes);
                Setup { memory_bytes, cap_bytes: Some(cap_bytes), caps: None, ..setup }
            }
        }
    }
}

/// Who decided when the program was recorded: whom the recording names; else stock PyTorch, unless
/// only Larder's own policy runs out of memory as the recording does. Of a script nobody knows, and
/// it is Larder.
pub fn recorded_policy(workload: &Workload) -> Result<Policy, ReplayError> {
    let Some(facts) = &workload.recording else { return Ok(Policy::default()) };
    if let Some(policy) = &facts.policy {
        return Ok(policy.clone());
    }
    // What did not run out of memory tells nothing of who decided, nor do other sizes.
    if facts.ooms == 0 || !workload.sizes.is_same() {
        return Ok(workload.stock());
    }
    let config = recorded_config(workload).and_then(Result::ok).unwrap_or_default();
    let is_alike = |policy: Policy| {
        let setup = Setup { policy, config: config.clone(), ..Setup::default() };
        let setup = setup.with_memory(None, workload);
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        Ok::<_, ReplayError>(Unlike::of(facts, &outcome).is_none())
    };
    if !is_alike(workload.stock())? && is_alike(Policy::default())? {
        return Ok(Policy::default());
    }
    Ok(workload.stock())
}
