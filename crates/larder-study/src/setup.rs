//! Setups: what a workload runs on, and what a recording says of that where nobody else does.

use std::sync::Arc;
use std::time::Instant;

use larder_core::config::Config;
use larder_core::types::{Bytes, GIB, MIB};
use larder_core::{Allocator, Policy};
use larder_sim::{SimDevice, SimOptions};

use crate::card::Card;
use crate::recording::Bounds;
use crate::settings::{
    Chosen, FRACTION_KEY, entry_of, names_fraction, recorded_config, with_entry,
};
use crate::workload::{Addresses, Workload};

/// How much memory a simulated GPU has where nobody says it.
pub const DEFAULT_MEMORY_BYTES: u64 = 80 * GIB;
/// No simulated GPU has less, or more.
pub(crate) const MEMORY_MIN_BYTES: u64 = 2 * MIB;
pub(crate) const MEMORY_MAX_BYTES: u64 = 1 << 50;

/// What a workload runs on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Who decides.
    pub policy: Policy,
    /// The settings.
    pub config: Config,
    /// How much memory the simulated GPU has.
    pub memory_bytes: u64,
    /// The part of it that the recorded program was allowed, which holds where the settings name
    /// none.
    pub fraction: Option<f64>,
    /// What the program may have of it, where that is known to the byte: it holds instead of the
    /// recorded fraction, and settings of one's own hold instead of both.
    pub cap_bytes: Option<u64>,
    /// Where the recording leaves open how much the program was allowed: from how much to how much
    /// it may have been. What the setup itself says is one of these.
    pub caps: Option<Caps>,
    /// Which addresses it gives.
    pub addresses: Addresses,
    /// When a run has to be done, if ever: one that is not is cut short.
    pub deadline: Option<Instant>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            policy: Policy::default(),
            config: Config::default(),
            memory_bytes: DEFAULT_MEMORY_BYTES,
            fraction: None,
            cap_bytes: None,
            caps: None,
            addresses: Addresses::default(),
            deadline: None,
        }
    }
}

/// From how much to how much a program may have been allowed, as far as its recording tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// There was room for so much.
    pub least_bytes: u64,
    /// There was room for no more.
    pub most_bytes: u64,
}

impl Setup {
    /// This setup with the memory that was given, or else what the recorded program had, or else
    /// what it is by default and no less than it held; more of it for a program that was made
    /// larger. The policy `torch` becomes that of the recording.
    #[must_use]
    pub fn with_memory(self, given_bytes: Option<u64>, workload: &Workload) -> Setup {
        let usual = |memory_bytes| {
            workload.sizes.scaled(memory_bytes).clamp(MEMORY_MIN_BYTES, MEMORY_MAX_BYTES)
        };
        let policy = self.policy.clone().for_recording(workload.recorded_torch());
        let setup = Setup { policy, cap_bytes: None, caps: None, ..self };
        if let Some(memory_bytes) = given_bytes {
            return Setup { memory_bytes, fraction: None, ..setup };
        }
        let Some(memory) = workload.recorded_memory() else {
            let memory_bytes = usual(default_memory_bytes(workload));
            return Setup { memory_bytes, fraction: named_fraction(workload), ..setup };
        };
        let (memory_bytes, fraction) = (usual(memory.device_bytes), memory.fraction);
        let caps = memory.bounds.map(|bounds| bounds.caps(workload));
        // Settings of one's own are in force whatever was recorded.
        let recorded = named_fraction(workload);
        let own = names_fraction(&setup.config)
            && ![fraction, recorded].contains(&Some(setup.config.memory_fraction));
        // The fraction as it was named is the one that settings are compared with.
        let fraction = fraction.and(recorded).or(fraction);
        let cap_bytes = memory.cap_bytes.filter(|_| !own).map(|cap| workload.sizes.scaled(cap));
        Setup { memory_bytes, fraction, cap_bytes, caps: caps.filter(|_| !own), ..setup }
    }

    /// This setup with all of its memory for the program.
    #[must_use]
    pub fn uncapped(self) -> Setup {
        Setup { fraction: None, cap_bytes: None, caps: None, ..self }
    }

    /// This setup where the program is allowed so much: under a cap that is the cap, and else the
    /// memory itself.
    #[must_use]
    pub fn allowing(self, bytes: u64) -> Setup {
        if self.is_capped() {
            let memory_bytes = self.memory_bytes.max(bytes);
            Setup { memory_bytes, cap_bytes: Some(bytes), caps: None, ..self }
        } else {
            Setup { memory_bytes: bytes, caps: None, ..self }
        }
    }

    /// This setup with another size: that of the cap where there is one to the byte, and else that
    /// of the memory.
    pub(crate) fn sized(self, bytes: u64) -> Setup {
        if self.cap_bytes.is_some() {
            self.allowing(bytes)
        } else {
            Setup { memory_bytes: bytes, ..self }
        }
    }

    /// Whether it is a cap that says how much the program may have, and not its own settings.
    pub fn is_capped(&self) -> bool {
        self.fraction.is_some() || self.cap_bytes.is_some()
    }

    /// What part of the memory the program may have: by its own settings, by the cap, or as it was
    /// recorded.
    pub(crate) fn effective_fraction(&self) -> f64 {
        let named = names_fraction(&self.config).then_some(self.config.memory_fraction);
        let is_recorded = named.is_none() || named == self.fraction;
        match (self.cap_bytes, self.fraction) {
            (Some(cap), Some(fraction))
                if is_recorded && (fraction * self.memory_bytes as f64) as u64 == cap =>
            {
                fraction
            }
            // Half a byte more, so that what is cut off is not the last byte of the cap.
            (Some(cap), _) if is_recorded => {
                ((cap as f64 + 0.5) / self.memory_bytes.max(1) as f64).min(1.0)
            }
            (None, Some(fraction)) if is_recorded => fraction.clamp(0.0, 1.0),
            _ => self.config.memory_fraction,
        }
    }

    /// How much of the memory the program may have.
    pub fn allowed_bytes(&self) -> u64 {
        (self.effective_fraction() * self.memory_bytes as f64) as u64
    }

    /// Settings as a person has to set them to be held to the recorded fraction as this setup is,
    /// where it was named among the settings: who leaves it out lifts it.
    pub(crate) fn with_held(&self, workload: &Workload, conf: &str) -> String {
        let recorded = workload.recorded_conf().unwrap_or_default();
        let is_held = self.fraction.is_some() && self.fraction == named_fraction(workload);
        let is_open = entry_of(conf, FRACTION_KEY).is_none();
        match entry_of(recorded, FRACTION_KEY) {
            Some(entry) if is_held && is_open => with_entry(conf, entry),
            _ => conf.to_owned(),
        }
    }

    /// The settings that the program was recorded with, as they are in force here: a recorded
    /// fraction is left out where something else holds in its place.
    pub(crate) fn recorded_config(&self, workload: &Workload) -> Option<Config> {
        let recorded = Chosen::recorded(workload);
        let config = recorded_config(workload)?.ok()?;
        if !names_fraction(&config) || self.fraction == Some(config.memory_fraction) {
            return Some(config);
        }
        Some(recorded.without_recorded_fraction().config)
    }

    /// A fresh simulated GPU and an allocator on it, for a workload.
    pub fn build(&self, workload: &Workload) -> (Arc<SimDevice>, Allocator) {
        let recorded_addresses = match self.addresses {
            Addresses::Recorded => workload.segment_addresses.clone(),
            Addresses::Lowest => Vec::new(),
        };
        let device = Arc::new(SimDevice::new(
            SimOptions::default()
                .memory_bytes(self.memory_bytes)
                .recorded_addresses(recorded_addresses),
        ));
        let mut config = self.config.clone();
        config.memory_fraction = self.effective_fraction();
        let allocator = Allocator::new(device.clone(), config, self.policy.clone());
        (device, allocator)
    }
}

impl Bounds {
    fn caps(&self, workload: &Workload) -> Caps {
        let scaled = |bytes| workload.sizes.scaled(bytes);
        let (least_bytes, most_bytes) = (scaled(self.least_bytes), scaled(self.below_bytes - 1));
        Caps { least_bytes, most_bytes }
    }
}

impl std::fmt::Display for Caps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", Bytes(self.least_bytes), Bytes(self.most_bytes))
    }
}

/// The memory of a program whose recording tells nothing of it: the usual, or a card that has room
/// for all that it held.
fn default_memory_bytes(workload: &Workload) -> u64 {
    let held_bytes = workload.recording.as_ref().map_or(0, |facts| facts.held_bytes);
    let needed_bytes = held_bytes as f64 / named_fraction(workload).unwrap_or(1.0).max(1e-9);
    let needed_bytes = needed_bytes.ceil() as u64;
    if needed_bytes <= DEFAULT_MEMORY_BYTES {
        return DEFAULT_MEMORY_BYTES;
    }
    Card::with_at_least(needed_bytes).map_or(needed_bytes, |card| card.total_bytes)
}

/// The fraction that the recorded settings name, where it is not all.
fn named_fraction(workload: &Workload) -> Option<f64> {
    let config = recorded_config(workload)?.ok()?;
    let is_part = names_fraction(&config) && config.memory_fraction < 1.0;
    is_part.then_some(config.memory_fraction)
}
