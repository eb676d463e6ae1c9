//! The search: from each beginning to better neighbours, for as long as there are any.

use std::collections::HashSet;
use std::time::Instant;

use larder_core::Policy;
use larder_core::config::Config;

use super::Choice;
use super::space::{beginnings, dimensions, neighbours};
use crate::crew;
use crate::replay::{Replay, Setup};
use crate::watch::Watched;
use crate::workload::Workload;

/// How many of the best are gone on from, and how often.
const FRONT: usize = 3;
const ROUNDS: usize = 4;

/// A search under way.
pub(super) struct Search<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    deadline: Instant,
    choices: Vec<Choice>,
    is_cut_short: bool,
}

/// What was found.
pub(super) struct Found {
    pub(super) choices: Vec<Choice>,
    pub(super) is_cut_short: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(workload: &'a Workload, setup: &'a Setup, deadline: Instant) -> Search<'a> {
        Search { workload, setup, deadline, choices: Vec::new(), is_cut_short: false }
    }

    /// About how many settings will be tried.
    pub(super) fn steps_expected(&self, policies: &[Policy]) -> u64 {
        let around = |policy: &Policy| {
            let size = neighbours("", &dimensions(policy, self.setup)).len();
            size * (beginnings(policy).len() + FRONT)
        };
        policies.iter().map(around).sum::<usize>() as u64
    }

    /// Searches under one policy.
    pub(super) fn run(&mut self, policy: &Policy, tuning: &mut Watched<'_>) {
        let dimensions = dimensions(policy, self.setup);
        let mut tried: HashSet<String> = HashSet::new();
        let mut expanded: HashSet<String> = HashSet::new();
        let mut front = beginnings(policy);
        let from = self.choices.len();
        for _ in 0..ROUNDS {
            let mut confs: Vec<String> = Vec::new();
            for conf in &front {
                expanded.insert(conf.clone());
                let around = neighbours(conf, &dimensions).into_iter();
                confs.extend(std::iter::once(conf.clone()).chain(around));
            }
            confs.retain(|conf| tried.insert(conf.clone()));
            self.try_each(policy, &confs, tuning);
            self.choices[from..].sort_by(|one, other| one.rank().cmp(&other.rank()));
            let best = self.choices[from..].iter().take(FRONT).map(|choice| choice.conf.clone());
            front = best.filter(|conf| !expanded.contains(conf)).collect();
            if front.is_empty() || self.is_cut_short {
                break;
            }
        }
    }

    fn try_each(&mut self, policy: &Policy, confs: &[String], tuning: &mut Watched<'_>) {
        let (workload, setup, deadline) = (self.workload, self.setup, self.deadline);
        let ran = crew::each(
            confs,
            |conf| {
                if Instant::now() > deadline {
                    return None;
                }
                let config = Config::parse(conf).ok()?;
                let setup = Setup { policy: policy.clone(), config, ..setup.clone() };
                let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ()).ok()?;
                Some(Choice::of(policy, conf, &outcome))
            },
            || tuning.step(),
        );
        self.is_cut_short |= Instant::now() > deadline;
        self.choices.extend(ran.into_iter().flatten());
    }

    pub(super) fn into_choices(self) -> Found {
        Found { choices: self.choices, is_cut_short: self.is_cut_short }
    }
}
