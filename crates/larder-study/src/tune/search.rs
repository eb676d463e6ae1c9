//! The search: from each beginning to better neighbours, for as long as there are any.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use larder_core::Policy;
use larder_core::config::Config;
use larder_sim::Spent;

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
    choices: Vec<Choice>,
    /// What the default settings of each policy cost in the last third of the program, by the
    /// policy's name.
    usual: HashMap<&'static str, Spent>,
    /// What was tried under each policy, by the policy's name.
    tried: HashSet<(&'static str, String)>,
    is_cut_short: bool,
}

/// What was found.
pub(super) struct Found {
    pub(super) choices: Vec<Choice>,
    pub(super) is_cut_short: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(workload: &'a Workload, setup: &'a Setup) -> Search<'a> {
        let (choices, usual, tried) = (Vec::new(), HashMap::new(), HashSet::new());
        Search { workload, setup, choices, usual, tried, is_cut_short: false }
    }

    /// Tries where the search under a policy begins, however long that takes: at its default
    /// settings first.
    pub(super) fn begin(&mut self, policy: &Policy, tuning: &mut Watched<'_>) {
        for conf in beginnings(policy) {
            self.try_each(policy, vec![conf], None, tuning);
        }
    }

    /// About how many settings will be tried.
    pub(super) fn steps_expected(&self, policies: &[Policy]) -> u64 {
        let around = |policy: &Policy| {
            let size = neighbours("", &dimensions(policy, self.setup)).len();
            size * (beginnings(policy).len() + FRONT)
        };
        policies.iter().map(around).sum::<usize>() as u64
    }

    /// Searches under one policy, from where it began.
    pub(super) fn run(&mut self, policy: &Policy, deadline: Instant, tuning: &mut Watched<'_>) {
        let dimensions = dimensions(policy, self.setup);
        let mut expanded: HashSet<String> = HashSet::new();
        let mut front = beginnings(policy);
        for _ in 0..ROUNDS {
            let mut confs: Vec<String> = Vec::new();
            for conf in &front {
                expanded.insert(conf.clone());
                confs.extend(neighbours(conf, &dimensions));
            }
            let is_cut = self.try_each(policy, confs, Some(deadline), tuning);
            self.choices.sort_by(|one, other| one.rank().cmp(&other.rank()));
            let own = self.choices.iter().filter(|choice| choice.policy == *policy);
            let best = own.take(FRONT).map(|choice| choice.conf.clone());
            front = best.filter(|conf| !expanded.contains(conf)).collect();
            if front.is_empty() || is_cut {
                break;
            }
        }
    }

    /// Tries those that were not tried yet, and says whether the time was up.
    fn try_each(
        &mut self,
        policy: &Policy,
        mut confs: Vec<String>,
        deadline: Option<Instant>,
        tuning: &mut Watched<'_>,
    ) -> bool {
        let (workload, setup) = (self.workload, self.setup);
        confs.retain(|conf| self.tried.insert((policy.name, conf.clone())));
        let is_up = || deadline.is_some_and(|deadline| Instant::now() > deadline);
        let usual = self.usual.get(policy.name).copied();
        let ran = crew::each(
            &confs,
            |conf| {
                if is_up() {
                    return None;
                }
                let config = Config::parse(conf).ok()?;
                let setup = Setup { policy: policy.clone(), config, deadline, ..setup.clone() };
                let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ()).ok()?;
                let choice = Choice::of(policy, conf, &outcome, usual);
                (!outcome.is_cut_short).then_some((choice, outcome.driver_last_third))
            },
            || tuning.step(),
        );
        let is_cut = is_up();
        self.is_cut_short |= is_cut;
        for (choice, late) in ran.into_iter().flatten() {
            self.usual.entry(policy.name).or_insert(late);
            self.choices.push(choice);
        }
        is_cut
    }

    pub(super) fn into_choices(self) -> Found {
        Found { choices: self.choices, is_cut_short: self.is_cut_short }
    }
}
