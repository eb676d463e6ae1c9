//! Remedies: what might help, and what came of the program when it was replayed with it.

use larder_core::Policy;
use larder_core::config::Config;
use larder_core::types::{Bytes, MIB, PoolId};
use larder_sim::Spent;
use larder_sim::script::Op;

use super::account::Account;
use super::change;
use crate::compare::all_policies;
use crate::crew;
use crate::fit::{self, search_limit_bytes};
use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::scene::{Failure, Scene};
use crate::settings::{FRACTION_KEY, names_fraction, with_entry, without_key};
use crate::standing::{Standing, said_up, standing};
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

/// What kind of remedy it is. Those that cost a person least come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Expandable segments.
    Expandable,
    /// Expandable segments with the smallest pages.
    FinePages,
    /// Without the split limit that is set.
    WithoutSplitLimit,
    /// Without the rounding that is set.
    WithoutRounding,
    /// Another split limit.
    SplitLimit,
    /// Other rounding.
    Rounding,
    /// Garbage collection.
    Collection,
    /// Another policy.
    Policy,
    /// The policy for least memory.
    Tight,
    /// No cap.
    Unheld,
    /// The cache emptied before the capture.
    EmptiedBefore,
    /// Private pools let go of.
    PoolsLetGo,
    /// Private pools that lend.
    PoolsLend,
    /// All streams as one.
    OneStream,
    /// More memory: a larger card, or under a cap a larger cap.
    LargerCard,
    /// Smaller sizes, as with smaller batches.
    SmallerSizes,
}

impl Family {
    /// How much it asks of a person: to set something, to take another allocator, to change the
    /// program, to have more memory or another program, to lift a cap that somebody set.
    fn effort(self) -> u8 {
        match self {
            Family::Policy | Family::Tight => 1,
            Family::EmptiedBefore | Family::PoolsLetGo | Family::PoolsLend | Family::OneStream => 2,
            Family::SmallerSizes | Family::LargerCard => 3,
            Family::Unheld => 4,
            _ => 0,
        }
    }
}

/// How far the program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// To its end.
    Runs,
    /// To its end or not, as the cap was that the recording does not tell: from so many bytes on.
    Depends(Option<u64>),
    /// Past the failure, and then it fails at this operation, from 0.
    Later(usize),
    /// No further.
    Fails,
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// How many requests failed.
    pub ooms: u64,
    /// The first of them: its operation in the program, from 0.
    pub first_failure: Option<usize>,
    /// The most that was held at once.
    pub peak_reserved_bytes: u64,
    /// The most that was in use at once.
    pub peak_active_bytes: u64,
    /// How often the cache was given back to try again.
    pub retries: u64,
    /// What the calls for memory would have cost.
    pub driver: Spent,
}

/// Something that might help, and whether it does.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// What kind it is.
    pub family: Family,
    /// What to do, in words that follow "with".
    pub words: String,
    /// The settings with it.
    pub conf: String,
    /// The policy with it.
    pub policy: Policy,
    /// The memory with it.
    pub memory_bytes: u64,
    /// How far the program gets.
    pub verdict: Verdict,
    /// What came of it.
    pub trial: Trial,
}

impl Remedy {
    /// Whether the request that failed is met, and all that failed before it too.
    pub fn gets_past(&self) -> bool {
        self.verdict != Verdict::Fails
    }

    /// Whether it is more memory that helps, or less need.
    pub fn is_memory(&self) -> bool {
        matches!(self.family.effort(), 3 | 4)
    }

    /// What it costs: another allocator more than a setting, then retries, memory and time.
    pub(crate) fn cost(&self) -> (u8, u64, u64, u64) {
        let trial = &self.trial;
        (self.family.effort(), trial.retries, trial.peak_reserved_bytes, trial.driver.ns)
    }

    /// Whether it is set in the environment, and nothing else.
    pub fn is_setting(&self) -> bool {
        matches!(self.family.effort(), 0 | 1)
    }
}

/// A remedy before it was tried.
struct Idea {
    family: Family,
    words: String,
    setup: Setup,
    /// The operations, where they are not the program's.
    ops: Option<Vec<Op>>,
}

/// Tries everything that could make a difference, on all cores. Of several values of one setting
/// the best is left. What helps most comes first.
pub(super) fn try_all(
    workload: &Workload,
    setup: &Setup,
    scene: &Scene,
    failure: &Failure,
    account: &Account,
    watch: &dyn Watch,
) -> Vec<Remedy> {
    let mut ideas = settings_ideas(setup);
    ideas.extend(policy_ideas(setup));
    ideas.extend(unheld_idea(workload, setup));
    ideas.extend(program_ideas(workload, setup, scene, account));
    ideas.extend((1..=10).map(|step| smaller_idea(workload, setup, 100 - 5 * step)));
    let mut remedies = tried(workload, ideas, scene.index, watch);
    remedies.extend(larger_card(workload, setup, scene, failure));
    remedies.sort_by_key(|remedy| {
        let trial = &remedy.trial;
        let reach = match remedy.verdict {
            Verdict::Runs => 0,
            Verdict::Depends(_) => 1,
            Verdict::Later(_) => 2,
            Verdict::Fails => 3,
        };
        let order = (remedy.family.effort(), trial.retries, trial.peak_reserved_bytes);
        (reach, order, remedy.family)
    });
    remedies
}

/// Tries all that is set, the best of each family.
pub(crate) fn settings_tried(workload: &Workload, setup: &Setup, watch: &dyn Watch) -> Vec<Remedy> {
    let mut ideas = settings_ideas(setup);
    ideas.extend(policy_ideas(setup));
    tried(workload, ideas, 0, watch)
}

/// What came of each idea, the best of each family.
fn tried(
    workload: &Workload,
    ideas: Vec<Idea>,
    failed_at: usize,
    watch: &dyn Watch,
) -> Vec<Remedy> {
    let mut trying = Watched::begin(watch, "trying", Extent::Steps(ideas.len() as u64 + 1));
    // A change that a program cannot take, as where streams are captured, is no remedy.
    let tried = crew::each(
        &ideas,
        |idea| {
            let ops = idea.ops.as_deref().unwrap_or(&workload.ops);
            let outcome = Replay::new(workload, &idea.setup).run(ops, &mut ()).ok()?;
            let standing = standing(workload, &idea.setup, ops, outcome.ooms == 0).ok()?;
            Some((trial(&outcome, ops, &workload.ops), standing))
        },
        || trying.step(),
    );
    let mut remedies: Vec<Remedy> = Vec::new();
    for (idea, trial) in ideas.into_iter().zip(tried) {
        let Some((trial, standing)) = trial else { continue };
        keep_best(&mut remedies, judged(idea, trial, standing, failed_at));
    }
    remedies
}

fn trial(outcome: &Outcome, ops: &[Op], original: &[Op]) -> Trial {
    let failed = outcome.first_oom_index.and_then(|index| match ops.get(index) {
        Some(Op::Alloc { id, .. }) => {
            original.iter().position(|op| matches!(op, Op::Alloc { id: other, .. } if other == id))
        }
        _ => None,
    });
    Trial {
        ooms: outcome.ooms,
        first_failure: failed,
        peak_reserved_bytes: outcome.stats.reserved_bytes.all.peak.max(0) as u64,
        peak_active_bytes: outcome.stats.active_bytes.all.peak.max(0) as u64,
        retries: outcome.stats.num_alloc_retries,
        driver: outcome.driver,
    }
}

fn judged(idea: Idea, trial: Trial, standing: Standing, failed_at: usize) -> Remedy {
    let verdict = match (standing, trial.first_failure) {
        (Standing::Runs, _) => Verdict::Runs,
        (Standing::Depends(from_bytes), _) => Verdict::Depends(from_bytes),
        (Standing::Fails, Some(index)) if index > failed_at => Verdict::Later(index),
        _ => Verdict::Fails,
    };
    Remedy {
        family: idea.family,
        words: idea.words,
        conf: idea.setup.config.text.clone(),
        policy: idea.setup.policy,
        memory_bytes: idea.setup.memory_bytes,
        verdict,
        trial,
    }
}

/// Adds a remedy, unless there is one of its family that is no worse.
fn keep_best(remedies: &mut Vec<Remedy>, remedy: Remedy) {
    let reach = |remedy: &Remedy| match remedy.verdict {
        Verdict::Runs => (0, 0),
        Verdict::Depends(from_bytes) => (1, from_bytes.unwrap_or(u64::MAX)),
        Verdict::Later(index) => (2, u64::MAX - index as u64),
        Verdict::Fails => (3, 0),
    };
    let cost = |remedy: &Remedy| {
        // The least that suffices is what a person wants to know of sizes, and they come in that
        // order.
        let is_ordered = remedy.family == Family::SmallerSizes;
        let (retries, bytes) = (remedy.trial.retries, remedy.trial.peak_reserved_bytes);
        (reach(remedy), if is_ordered { (0, 0) } else { (retries, bytes) })
    };
    match remedies.iter_mut().find(|other| other.family == remedy.family) {
        None => remedies.push(remedy),
        Some(other) if cost(&remedy) < cost(other) => *other = remedy,
        Some(_) => {}
    }
}

fn settings_ideas(setup: &Setup) -> Vec<Idea> {
    let config = &setup.config;
    let mut ideas = Vec::new();
    let mut add = |family: Family, conf: String, words: &str| {
        if let Ok(config) = Config::parse(&conf) {
            let setup = Setup { config, ..setup.clone() };
            ideas.push(Idea { family, words: words.to_owned(), setup, ops: None });
        }
    };
    let conf = &config.text;
    let with = |entry: &str| with_entry(conf, entry);
    let expandable = "expandable_segments:True";
    if !config.expandable_segments && !setup.policy.tight {
        add(Family::Expandable, with(expandable), expandable);
    }
    let fine = "page_size_mb:2";
    if setup.policy.tight {
        // Its segments are expandable, and it has no splits and no idle memory that a setting could
        // be about.
        add(Family::FinePages, with(fine), fine);
    } else if !setup.policy.is_stock() {
        let words = format!("{expandable},{fine}");
        add(Family::FinePages, with_entry(&with(expandable), fine), &words);
    }
    if config.max_split_bytes.is_some() {
        let words = "no max_split_size_mb";
        add(Family::WithoutSplitLimit, without_key(conf, "max_split_size_mb"), words);
    }
    if has_key(conf, "roundup_power2_divisions") {
        let words = "no roundup_power2_divisions";
        add(Family::WithoutRounding, without_key(conf, "roundup_power2_divisions"), words);
    }
    for limit_mb in [32, 64, 128, 256, 512, 1024].into_iter().filter(|_| !setup.policy.tight) {
        let entry = format!("max_split_size_mb:{limit_mb}");
        add(Family::SplitLimit, with(&entry), &entry);
    }
    for divisions in [2, 4, 8, 16] {
        let entry = format!("roundup_power2_divisions:{divisions}");
        add(Family::Rounding, with(&entry), &entry);
    }
    // Without a cap stock PyTorch does not collect.
    let may_collect = setup.policy.collect_without_cap || setup.effective_fraction() < 1.0;
    if may_collect && !setup.policy.tight {
        for threshold in ["0.6", "0.8"] {
            let entry = format!("garbage_collection_threshold:{threshold}");
            add(Family::Collection, with(&entry), &entry);
        }
    }
    ideas
}

fn has_key(conf: &str, key: &str) -> bool {
    without_key(conf, key) != without_key(conf, "")
}

fn policy_ideas(setup: &Setup) -> Vec<Idea> {
    let others = all_policies(Policy::torch()).into_iter().filter(|policy| *policy != setup.policy);
    // Whoever runs Larder already does not go back for memory's sake.
    let others = others.filter(|policy| !policy.is_stock());
    let ideas = others.map(|policy| Idea {
        family: if policy.tight { Family::Tight } else { Family::Policy },
        words: format!("Larder's policy {}", policy.name),
        setup: Setup { policy, ..setup.clone() },
        ops: None,
    });
    ideas.collect()
}

fn unheld_idea(workload: &Workload, setup: &Setup) -> Option<Idea> {
    let sets_one = workload.ops.iter().any(|op| matches!(op, Op::Fraction { .. }));
    if setup.effective_fraction() >= 1.0 && !sets_one {
        return None;
    }
    let conf = &setup.config.text;
    let conf =
        if names_fraction(&setup.config) { without_key(conf, FRACTION_KEY) } else { conf.clone() };
    let config = Config::parse(&conf).ok()?;
    Some(Idea {
        family: Family::Unheld,
        words: "no cap".to_owned(),
        setup: Setup { config, ..setup.clone().uncapped() },
        ops: sets_one.then(|| change::unheld(&workload.ops)),
    })
}

/// What the program could do another way.
fn program_ideas(
    workload: &Workload,
    setup: &Setup,
    scene: &Scene,
    account: &Account,
) -> Vec<Idea> {
    let mut ideas = Vec::new();
    let mut add = |family: Family, words: String, ops: Vec<Op>| {
        ideas.push(Idea { family, words, setup: setup.clone(), ops: Some(ops) });
    };
    let ops = &workload.ops;
    let number = |&(PoolId(_, number), _): &(PoolId, u64)| u32::try_from(number).ok();
    let pools: Vec<u32> = account.by_pool.iter().filter_map(number).collect();
    if !pools.is_empty() {
        let names: Vec<String> = pools.iter().map(|pool| format!("(0, {pool})")).collect();
        let (noun, names) = (if pools.len() == 1 { "pool" } else { "pools" }, names.join(", "));
        let words = format!("private {noun} {names} let go of and emptied before it");
        add(Family::PoolsLetGo, words, change::letting_go(ops, scene.index, &pools));
        let words =
            format!("private {noun} {names} lending to requests that would fail (use_on_oom)");
        add(Family::PoolsLend, words, change::lending(ops, &pools));
    }
    let streams = change::stream_count(ops);
    if streams > 1 {
        let words = format!("one stream for its allocations instead of {streams}");
        add(Family::OneStream, words, change::on_one_stream(ops, workload.own_streams));
    }
    if let Some(changed) = change::emptying_before_capture(ops, scene.index) {
        add(Family::EmptiedBefore, "the cache emptied before the capture".to_owned(), changed);
    }
    ideas
}

fn smaller_idea(workload: &Workload, setup: &Setup, percent: u64) -> Idea {
    Idea {
        family: Family::SmallerSizes,
        words: format!("every size {} % smaller, as with a smaller batch", 100 - percent),
        setup: setup.clone(),
        ops: Some(change::shrunk(&workload.ops, percent)),
    }
}

/// The smallest card on which the program runs as it is, or under a cap the smallest cap.
fn larger_card(
    workload: &Workload,
    setup: &Setup,
    scene: &Scene,
    failure: &Failure,
) -> Option<Remedy> {
    let most_bytes = search_limit_bytes(workload).max(setup.memory_bytes.saturating_mul(2));
    // A fraction of one's own stays what it is of the card.
    let is_cap = setup.is_capped() && !names_own_fraction(setup);
    let roomy = if is_cap {
        setup.clone().allowing(most_bytes)
    } else {
        Setup { memory_bytes: most_bytes, caps: None, ..setup.clone() }
    };
    let runs = |mb: u64| {
        let replay = Replay::new(workload, &roomy.clone().sized(mb * MIB));
        Ok::<bool, ReplayError>(replay.fits(&workload.ops, 1)?.is_some())
    };
    // A program may happen to run with less than it failed with: that is nothing to go by.
    let had_bytes = if is_cap { setup.allowed_bytes() } else { setup.memory_bytes };
    let had_mb = setup.caps.map_or(had_bytes, |caps| caps.most_bytes) / MIB;
    let mut high_mb = had_mb + had_mb / 4 + 1;
    while !runs(high_mb).ok()? {
        if high_mb >= most_bytes / MIB {
            return None;
        }
        high_mb = (high_mb * 2).min(most_bytes / MIB);
    }
    let mut bytes = said_up(fit::search((had_mb, high_mb), runs).ok()? * MIB);
    // What is said in two decimals is a little more, and has to do too.
    if Replay::new(workload, &roomy.clone().sized(bytes)).fits(&workload.ops, 1).ok()?.is_none() {
        bytes = said_up(high_mb * MIB);
    }
    let is_card = !is_cap || bytes > setup.memory_bytes;
    let found = roomy.sized(bytes);
    let setup = Setup { memory_bytes: bytes.max(setup.memory_bytes), ..found };
    let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ()).ok()?;
    let more = Bytes(bytes.saturating_sub(failure.report.total_bytes));
    let words = if is_card {
        format!("a card with {} for it, {more} more", Bytes(bytes))
    } else {
        format!("a cap of {}", Bytes(bytes))
    };
    let idea = Idea { family: Family::LargerCard, words, setup, ops: None };
    let standing = if outcome.ooms == 0 { Standing::Runs } else { Standing::Fails };
    Some(judged(idea, trial(&outcome, &workload.ops, &workload.ops), standing, scene.index))
}

/// Whether the settings name a fraction that is not the recorded one.
fn names_own_fraction(setup: &Setup) -> bool {
    names_fraction(&setup.config) && setup.fraction != Some(setup.config.memory_fraction)
}
