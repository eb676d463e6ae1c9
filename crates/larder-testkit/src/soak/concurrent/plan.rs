//! Plans: what a concurrent run does, as far as one seed decides it.

use std::fmt;

use larder_core::types::{Bytes, GIB, MIB};
use larder_core::{Config, Policy};

use super::super::plan::{Trouble, settings};
use larder_sim::random::Random;

/// What one run does.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own; any mixture is a plan.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) threads: usize,
    /// Steps of each thread.
    pub(super) steps: usize,
    /// Steps of each thread between two quiet moments.
    pub(super) steps_between: usize,
    pub(super) policy: Policy,
    pub(super) settings: String,
    pub(super) memory_bytes: u64,
    pub(super) trouble: Trouble,
    /// Whether sums are set back to zero on the way, after which they cannot be counted.
    pub(super) resets_sums: bool,
    /// Whether a history is turned on and off.
    pub(super) remembers: bool,
    /// Whether settings change on the way.
    pub(super) changes: bool,
    /// Whether graphs are captured.
    pub(super) captures: bool,
    /// Whether captures are marked, without which some policies know of none.
    pub(super) marks: bool,
    /// Whether the program tells which stream each thread works on.
    pub(super) tells: bool,
}

impl Plan {
    pub(super) fn new(seed: u64, threads: usize, steps: usize) -> Plan {
        let mut random = Random::new(seed);
        let policy = if seed & 1 == 0 { Policy::larder() } else { Policy::torch_2_11() };
        let tight = random.chance(0.7);
        let each_bytes = if tight { random.between(16, 64) * MIB } else { GIB };
        let memory_bytes = each_bytes * threads as u64;
        let expandable = random.chance(0.5);
        let settings = settings(&mut random, expandable);
        let trouble = if random.chance(0.4) {
            Trouble::from_random(&mut random, memory_bytes)
        } else {
            Trouble::default()
        };
        Plan {
            seed,
            threads,
            steps,
            steps_between: random.between(50, 400) as usize,
            policy,
            settings,
            memory_bytes,
            trouble,
            resets_sums: random.chance(0.3),
            remembers: random.chance(0.7),
            changes: random.chance(0.7),
            captures: random.chance(0.7),
            marks: random.chance(0.8),
            // Of the seeds that one policy has, every second one.
            tells: seed & 2 != 0,
        }
    }

    pub(super) fn config(&self) -> Config {
        Config::parse(&self.settings).expect("plans have settings that can be read")
    }

    /// The random numbers of one thread: its own, whatever the others do.
    pub(super) fn random(&self, thread: usize) -> Random {
        Random::new(self.seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings =
            if self.settings.is_empty() { "the default settings" } else { &self.settings };
        write!(f, "policy {} with {settings}; {}", self.policy, Bytes(self.memory_bytes))?;
        write!(f, " of memory, {} threads", self.threads)?;
        for (is_on, words) in [
            (self.captures, "captures"),
            (self.marks, "marks"),
            (self.tells, "a word on who works where"),
            (self.changes, "settings that change"),
            (self.remembers, "a history that comes and goes"),
            (self.trouble != Trouble::default(), "faults"),
        ] {
            if is_on {
                write!(f, ", {words}")?;
            }
        }
        Ok(())
    }
}
