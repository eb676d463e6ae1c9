//! Tune: the settings with which a program holds least, searched by replaying it on all cores.

mod search;
mod space;

use std::time::{Duration, Instant};

use larder_core::Policy;
use larder_sim::Spent;

use crate::crew;
use crate::fit::{self, search_limit_bytes};
use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::settings::entry_count;
use crate::standing::{Standing, standing};
use crate::watch::{Extent, Unwatched, Watch, Watched};
use crate::workload::Workload;
use crate::worth::{self, TRIFLE};

use search::Search;

/// How many choices are given.
pub const CHOICES: usize = 3;
/// How many of the best are replayed with all that a program may have been allowed.
const JUDGED: usize = 24;
/// How many of the best are fitted into the smallest card to choose from.
const FINALISTS: usize = 6;

/// One run with some settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Who decides.
    pub policy: Policy,
    /// The settings.
    pub conf: String,
    /// How many requests failed.
    pub ooms: u64,
    /// Whether it runs with all that it may have been allowed, where that was looked at.
    pub standing: Option<Standing>,
    /// How often the cache was given back to try again.
    pub retries: u64,
    /// The most that was held at once.
    pub peak_reserved_bytes: u64,
    /// The most that was in use at once.
    pub peak_active_bytes: u64,
    /// What the calls for memory would have cost.
    pub driver: Spent,
    /// Whether it goes on costing driver time that the policy's default settings do not.
    pub is_dear: bool,
    /// The smallest memory on which it runs, where that was searched for.
    pub card_bytes: Option<u64>,
}

impl Choice {
    /// `usual` is what the default settings cost in the last third.
    fn of(policy: &Policy, conf: &str, outcome: &Outcome, usual: Option<Spent>) -> Choice {
        let peak = |counter: i64| counter.max(0) as u64;
        Choice {
            policy: policy.clone(),
            conf: conf.to_owned(),
            ooms: outcome.ooms,
            standing: None,
            retries: outcome.stats.num_alloc_retries,
            peak_reserved_bytes: peak(outcome.stats.reserved_bytes.all.peak),
            peak_active_bytes: peak(outcome.stats.active_bytes.all.peak),
            driver: outcome.driver,
            is_dear: usual.is_some_and(|usual| worth::is_dear(outcome.driver_last_third, usual)),
            card_bytes: None,
        }
    }

    /// What makes one better than another: it runs, with no pause to give memory back, does not go
    /// on costing more than it saves, holds less, costs less, and says less.
    fn rank(&self) -> (u64, u64, bool, u64, u64, usize, &str) {
        let Choice { ooms, retries, is_dear, peak_reserved_bytes, driver, ref conf, .. } = *self;
        (ooms, retries, is_dear, peak_reserved_bytes, driver.ns, entry_count(conf), conf)
    }
}

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The program as it is: with its own settings, under the first of the policies.
    pub base: Choice,
    /// The best of all that was tried, best first. The one that runs on the smallest card is among
    /// them.
    pub choices: Vec<Choice>,
    /// How many settings were tried.
    pub tried: u64,
    /// Whether the time was up before the search was done.
    pub is_cut_short: bool,
    /// What the program asks for at once, where that is more than it may have: then nothing was
    /// searched, because no settings help.
    pub needed_bytes: Option<u64>,
}

/// Searches the settings under these policies, for no longer than `limit`.
pub fn tune(
    workload: &Workload,
    setup: &Setup,
    policies: &[Policy],
    limit: Duration,
    watch: &dyn Watch,
) -> Result<Tuned, ReplayError> {
    let start = Instant::now();
    let policy = policies.first().cloned().unwrap_or_default();
    let base_setup = Setup { policy, ..setup.clone() };
    let outcome = Replay::new(workload, &base_setup).run(&workload.ops, &mut ())?;
    let mut base = Choice::of(&base_setup.policy, &setup.config.text, &outcome, None);
    base.standing = Some(standing(workload, &base_setup, &workload.ops, base.ooms == 0)?);
    let allowed_bytes = setup.caps.map_or(base_setup.allowed_bytes(), |caps| caps.most_bytes);
    let needed_bytes = fit::peak_requested_bytes(&workload.ops);
    if base.ooms > 0 && needed_bytes > allowed_bytes {
        let needed_bytes = Some(needed_bytes);
        return Ok(Tuned {
            base,
            choices: Vec::new(),
            tried: 0,
            is_cut_short: false,
            needed_bytes,
        });
    }
    let mut search = Search::new(workload, setup);
    let extent = Extent::Steps(search.steps_expected(policies));
    let mut tuning = Watched::begin(watch, "tuning", extent);
    // Each policy as it is comes first, however little time there is; then each has its part of it.
    // The last part is for the smallest cards.
    for policy in policies {
        search.begin(policy, &mut tuning);
    }
    let each = limit.mul_f64(0.7) / policies.len().max(1) as u32;
    for (policy, part) in policies.iter().zip(1..) {
        search.run(policy, start + each * part, &mut tuning);
    }
    drop(tuning);
    let mut found = search.into_choices();
    let tried = found.choices.len() as u64;
    found.choices.sort_by(|one, other| one.rank().cmp(&other.rank()));
    put_plain_first(&mut found.choices);
    let ranked = judged(workload, setup, found.choices);
    let mut choices = finalists(workload, setup, ranked, start + limit, watch);
    for choice in &mut choices {
        choice.conf = setup.with_held(workload, &choice.conf);
    }
    let is_cut_short = found.is_cut_short;
    Ok(Tuned { base, choices, tried, is_cut_short, needed_bytes: None })
}

/// The ranked choices, of which the best were replayed with all that the program may have been
/// allowed: what runs with all of it comes first. Where nothing is left open, they stay as they
/// are.
fn judged(workload: &Workload, setup: &Setup, mut ranked: Vec<Choice>) -> Vec<Choice> {
    let looked_at = if setup.caps.is_some() { JUDGED.min(ranked.len()) } else { 0 };
    let standings = crew::each(
        &ranked[..looked_at],
        |choice| {
            let config = larder_core::config::Config::parse(&choice.conf).ok()?;
            let policy = choice.policy.clone();
            let setup = Setup { policy, config, ..setup.clone() };
            standing(workload, &setup, &workload.ops, choice.ooms == 0).ok()
        },
        || {},
    );
    for (choice, standing) in ranked.iter_mut().zip(standings) {
        choice.standing = standing;
    }
    for choice in &mut ranked[looked_at..] {
        let runs = choice.ooms == 0;
        let is_sure = setup.caps.is_none();
        choice.standing = match (is_sure, runs) {
            (true, true) => Some(Standing::Runs),
            (true, false) => Some(Standing::Fails),
            (false, _) => None,
        };
    }
    // What was not looked at is not said to run.
    ranked.retain(|choice| choice.standing.is_some());
    let order = |choice: &Choice| match choice.standing {
        Some(Standing::Runs) => 0,
        Some(Standing::Depends(_)) => 1,
        _ => 2,
    };
    ranked.sort_by_key(order);
    ranked
}

/// Of ranked choices that hold nearly as little as the best, those with fewest settings come first.
fn put_plain_first(ranked: &mut [Choice]) {
    let Some(best) = ranked.first().cloned() else { return };
    let limit_bytes = (best.peak_reserved_bytes as f64 * (1.0 + TRIFLE)) as u64;
    let is_near = |choice: &Choice| {
        let (ooms, retries, is_dear, bytes, ..) = choice.rank();
        (ooms, retries, is_dear) == (best.ooms, best.retries, best.is_dear) && bytes <= limit_bytes
    };
    let near = ranked.partition_point(is_near);
    ranked[..near].sort_by_key(|choice| entry_count(&choice.conf));
}

/// The best few: those that rank first, and whichever of the finalists runs on the smallest card,
/// as far as the time allows to find that out.
fn finalists(
    workload: &Workload,
    setup: &Setup,
    ranked: Vec<Choice>,
    deadline: Instant,
    watch: &dyn Watch,
) -> Vec<Choice> {
    let mut finalists: Vec<Choice> = Vec::new();
    for choice in ranked {
        // Settings that come to the same in every figure are one choice, said in fewest words.
        let is_same = |other: &Choice| {
            let figures = |choice: &Choice| {
                (choice.policy.name, choice.ooms, choice.retries, choice.peak_reserved_bytes)
            };
            figures(other) == figures(&choice)
        };
        let has_expandable = |choice: &Choice| choice.conf.contains("expandable_segments:True");
        let is_first_expandable = has_expandable(&choice) && !finalists.iter().any(has_expandable);
        let is_last = finalists.len() >= FINALISTS && !is_first_expandable;
        if !is_last && !finalists.iter().any(is_same) {
            finalists.push(choice);
        }
    }
    let mut fitting = Watched::begin(watch, "fitting", Extent::Steps(finalists.len() as u64));
    let cards = crew::each(
        &finalists,
        |choice| {
            if Instant::now() > deadline {
                return None;
            }
            let config = larder_core::config::Config::parse(&choice.conf).ok()?;
            let memory_bytes = search_limit_bytes(workload);
            let policy = choice.policy.clone();
            let setup = Setup { policy, config, memory_bytes, ..setup.clone().uncapped() };
            let setup = Setup { deadline: Some(deadline), ..setup };
            let fit = fit::fit(workload, &setup, 1, &Unwatched).ok()?;
            fit.memory_bytes.filter(|_| Instant::now() <= deadline)
        },
        || fitting.step(),
    );
    for (choice, card_bytes) in finalists.iter_mut().zip(cards) {
        choice.card_bytes = card_bytes;
    }
    best(finalists)
}

fn best(mut finalists: Vec<Choice>) -> Vec<Choice> {
    let smallest = finalists
        .iter()
        .enumerate()
        .filter_map(|(at, choice)| Some((choice.standing, choice.ooms, choice.card_bytes?, at)))
        .min();
    if let Some((.., at)) = smallest.filter(|&(.., at)| at >= CHOICES) {
        let choice = finalists.remove(at);
        finalists.insert(CHOICES - 1, choice);
    }
    finalists.truncate(CHOICES);
    finalists
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(reserved: u64, card: u64) -> Choice {
        Choice {
            policy: Policy::torch_2_11(),
            conf: format!("max_split_size_mb:{reserved}"),
            ooms: 0,
            standing: None,
            retries: 0,
            peak_reserved_bytes: reserved,
            peak_active_bytes: 1,
            driver: Spent::default(),
            is_dear: false,
            card_bytes: Some(card),
        }
    }

    #[test]
    fn the_smallest_card_is_among_the_best() {
        let best = best(vec![choice(1, 9), choice(2, 9), choice(3, 9), choice(4, 5), choice(5, 9)]);
        let reserved: Vec<u64> = best.iter().map(|choice| choice.peak_reserved_bytes).collect();
        assert_eq!(reserved, [1, 2, 4]);
    }

    #[test]
    fn what_saves_a_trifle_is_not_worth_a_setting() {
        let wordy = |reserved| Choice { conf: "a:1,b:2".to_owned(), ..choice(reserved, 1) };
        let mut ranked = [wordy(1000), choice(1001, 1), choice(1002, 1), choice(1004, 1)];
        put_plain_first(&mut ranked);
        assert_eq!(ranked, [choice(1001, 1), choice(1002, 1), wordy(1000), choice(1004, 1)]);
    }

    #[test]
    fn to_run_at_all_comes_before_everything_else() {
        let fails = Choice { ooms: 1, ..choice(1, 1) };
        let pauses = Choice { retries: 1, ..choice(2, 1) };
        let dear = Choice { is_dear: true, ..choice(1, 1) };
        let wordy = Choice { conf: "a:1,b:2".to_owned(), ..choice(3, 1) };
        let mut all = [fails.clone(), pauses.clone(), dear.clone(), wordy.clone(), choice(3, 1)];
        all.sort_by(|one, other| one.rank().cmp(&other.rank()));
        assert_eq!(all, [choice(3, 1), wordy, dear, pauses, fails]);
    }
}
