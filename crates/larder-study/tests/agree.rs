//! All answers to one question agree: random programs, recorded with random settings, caps and
//! memories, are asked about with random options, and replay, fit, compare, tune, explain and the
//! page say the same of whether it runs, and of the peak. Ten thousand of them:
//!
//! ```sh
//! LARDER_AGREE=10000 cargo test --release -p larder-study --test agree
//! ```
//!
//! `LARDER_AGREE=7..8` is the one with seed 7.

use std::time::Duration;

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::record::event::Level;
use larder_core::types::MIB;
use larder_core::{Config, Policy};
use larder_sim::random::Random;
use larder_sim::script::Op;
use larder_snapshot::{Epoch, Snapshot};
use larder_study::card::Card;
use larder_study::compare::compare;
use larder_study::explain::{Verdict, explain, outlook};
use larder_study::fit::fit;
use larder_study::margin::margin;
use larder_study::question::{Posed, Question};
use larder_study::recording::Recording;
use larder_study::replay::{Outcome, Replay, Setup};
use larder_study::settings::Chosen;
use larder_study::standing::Standing;
use larder_study::timeline::Timeline;
use larder_study::tune::tune;
use larder_study::watch::Unwatched;
use larder_study::workload::Workload;
use larder_testkit::generate::{GenerateOptions, Generator};

const SETTINGS: [&str; 9] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    "per_process_memory_fraction:0.7",
    "expandable_segments:True,per_process_memory_fraction:0.5",
    "roundup_power2_divisions:4,max_split_size_mb:40",
    "per_process_memory_fraction:1",
    "large_segment_size_mb:32",
];

/// Says which seed it was, where one fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("seed {seed}: LARDER_AGREE={seed}..{} has it alone", seed + 1);
        }
    }
}

fn one<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

fn policy(random: &mut Random) -> Policy {
    let policies = [Policy::torch_2_11(), Policy::default(), Policy::tight(), Policy::torch_2_11()];
    policies[random.below(policies.len() as u64) as usize].clone()
}

/// A program with its recording, or the program alone.
fn workload(random: &mut Random) -> Workload {
    let memory_bytes = (200 + random.below(800)) * MIB;
    let options = GenerateOptions {
        steps: 60 + random.below(240) as usize,
        streams: 1 + random.below(3) as u32,
        live_target: 10 + random.below(50) as usize,
        live_bytes_max: memory_bytes * (5 + random.below(8)) / 10,
        size_bytes_max: 200 * MIB,
        record_probability: 0.03,
        empty_probability: 0.01,
        fraction_probability: 0.0,
        reset_probability: 0.0,
        ..GenerateOptions::default()
    };
    let ops: Vec<Op> = Generator::new(random.next_u64(), options).generate();
    let script = Workload { ops: ops.clone(), ..Workload::default() };
    if random.below(5) == 0 {
        return script;
    }
    let config = Config::parse(one(random, &SETTINGS)).expect("settings");
    let setup = Setup { policy: policy(random), config, memory_bytes, ..Setup::default() };
    let replay = Replay::new(&script, &setup);
    replay.allocator().record_history(HistoryOptions::default().level(Level::Never)).expect("on");
    let allocator = replay.run_on(&ops, &mut ()).expect("it runs");
    let told = allocator.take_snapshot(SnapshotOptions::default());
    let mut snapshot = Snapshot::of_allocators(&[told], Epoch::default());
    // As if the fraction had been set by a call, and as stock PyTorch writes it.
    if random.below(3) == 0 {
        snapshot.allocator_conf = None;
    }
    match Recording::from_snapshot(&snapshot, 0) {
        Ok(recording) => Workload::from(recording),
        Err(_) => script,
    }
}

fn question(random: &mut Random) -> Question {
    let settings = (random.below(2) == 0).then(|| {
        let conf = one(random, &SETTINGS);
        Chosen::given(conf, Config::parse(conf).expect("settings"))
    });
    let size = |random: &mut Random| (50 + random.below(1200)) * MIB;
    let (mut memory_bytes, mut card, mut cap_bytes) = (None, None, None);
    match random.below(6) {
        0 => memory_bytes = Some(size(random)),
        1 => {
            let size = format!("{}MiB", size(random) / MIB);
            card = Some(Card::parse(&size).expect("a card"));
        }
        2 => cap_bytes = Some(size(random)),
        3 => (memory_bytes, cap_bytes) = (Some(size(random)), Some(size(random))),
        _ => {}
    }
    let policy = (random.below(2) == 0).then(|| policy(random));
    let question =
        Question { policy, settings, memory_bytes, card, cap_bytes, ..Question::default() };
    // What is refused is no question.
    match question.check() {
        Ok(()) => question,
        Err(_) => Question { cap_bytes: None, card: None, ..question },
    }
}

/// Failures, retries, and the peaks of what was held and in use.
fn facts(outcome: &Outcome) -> (u64, u64, u64, u64) {
    let stats = &outcome.stats;
    let [reserved, active] =
        [&stats.reserved_bytes, &stats.active_bytes].map(|bytes| bytes.all.peak.max(0) as u64);
    (outcome.ooms, stats.num_alloc_retries, reserved, active)
}

fn replay(workload: &Workload, setup: &Setup) -> (u64, u64, u64, u64) {
    facts(&Replay::new(workload, setup).run(&workload.ops, &mut ()).expect("it runs"))
}

fn with(setup: &Setup, policy: &Policy, conf: &str) -> Setup {
    let config = Config::parse(conf).expect("settings");
    Setup { policy: policy.clone(), config, ..setup.clone() }
}

#[test]
fn all_answers_to_a_question_agree() {
    let asked = std::env::var("LARDER_AGREE").unwrap_or_else(|_| "200".to_owned());
    let (first, end) = asked.split_once("..").unwrap_or(("0", &asked));
    let range = first.parse().expect("a seed")..end.parse().expect("a number of seeds");
    let (mut ran, mut failed, mut open) = (0, 0, 0);
    for seed in range {
        let guard = Seed(seed);
        let mut random = Random::new(seed);
        let (workload, question) = (workload(&mut random), question(&mut random));
        let Posed { setup, settings } = question.pose(&workload).expect("it runs");
        let told = replay(&workload, &setup);
        let runs = told.0 == 0;
        (ran, failed) = (ran + u64::from(runs), failed + u64::from(!runs));
        open += u64::from(setup.caps.is_some());
        compared(&workload, &setup, &settings, told);
        tuned(&workload, &setup, told);
        explained(&workload, &setup, told);
        let timeline = Timeline::of(&workload, &setup, &Unwatched).expect("it runs");
        assert_eq!(facts(&timeline.outcome), told, "the page");
        fitted(&workload, &question);
        drop(guard);
    }
    // It is no test unless there was something of each.
    assert!(ran + failed < 100 || ran > 20 && failed > 20 && open > 5, "{ran}, {failed}, {open}");
}

fn compared(workload: &Workload, setup: &Setup, settings: &Chosen, told: (u64, u64, u64, u64)) {
    let asked = vec![(settings.conf.clone(), setup.config.clone())];
    let rows = compare(workload, setup, asked, &Unwatched).expect("it runs");
    assert_eq!(facts(&rows[0].outcome), told, "compare");
    for row in &rows {
        let alone = Setup { config: row.config.clone(), ..setup.clone() };
        assert_eq!(replay(workload, &alone), facts(&row.outcome), "{}", row.conf);
        if setup.caps.is_none() {
            let standing = if row.outcome.ooms == 0 { Standing::Runs } else { Standing::Fails };
            assert_eq!(row.standing, standing, "{}", row.conf);
        }
    }
}

fn tuned(workload: &Workload, setup: &Setup, told: (u64, u64, u64, u64)) {
    let policies = [setup.policy.clone()];
    let found = tune(workload, setup, &policies, Duration::from_millis(5), &Unwatched);
    let found = found.expect("it runs");
    let figures = |choice: &larder_study::tune::Choice| {
        (choice.ooms, choice.retries, choice.peak_reserved_bytes, choice.peak_active_bytes)
    };
    assert_eq!(figures(&found.base), told, "tune");
    for choice in &found.choices {
        let alone = with(setup, &choice.policy, &choice.conf);
        assert_eq!(replay(workload, &alone), figures(choice), "{}", choice.conf);
        if setup.caps.is_none() {
            assert_eq!(choice.standing == Some(Standing::Runs), choice.ooms == 0);
        }
    }
    if found.needed_bytes.is_some() {
        assert!(told.0 > 0, "no settings help what runs");
    }
}

fn explained(workload: &Workload, setup: &Setup, told: (u64, u64, u64, u64)) {
    let found = explain(workload, setup, 1, &Unwatched).expect("it runs");
    let calm = outlook(workload, setup, &Unwatched).expect("it runs");
    assert_eq!((found.is_some(), calm.is_none()), (told.0 > 0, told.0 > 0));
    if let Some(calm) = calm {
        let figures = (0, calm.near.len() as u64, calm.peak_reserved_bytes, calm.peak_active_bytes);
        // One request may be tried again more than once.
        assert!(figures.1 <= told.1 && (figures.1 == 0) == (told.1 == 0));
        assert_eq!((figures.2, figures.3), (told.2, told.3));
        if let Some(best) = calm.best {
            assert_eq!(replay(workload, &with(setup, &best.policy, &best.conf)).0, 0);
        }
    }
    let Some(found) = found else { return };
    assert_eq!(found.failures, told.0);
    for remedy in found.remedies.iter().filter(|remedy| remedy.is_setting()) {
        let alone = replay(workload, &with(setup, &remedy.policy, &remedy.conf));
        let trial = &remedy.trial;
        let figures =
            (trial.ooms, trial.retries, trial.peak_reserved_bytes, trial.peak_active_bytes);
        assert_eq!(alone, figures, "{remedy:?}");
        if setup.caps.is_none() {
            assert_eq!(remedy.verdict == Verdict::Runs, trial.ooms == 0, "{remedy:?}");
        }
    }
}

fn fitted(workload: &Workload, question: &Question) {
    let Posed { setup, .. } = question.pose_fit(workload).expect("it runs");
    let found = fit(workload, &setup, 1, &Unwatched).expect("it runs");
    let margin = margin(workload, &setup, &found, &Unwatched).expect("it runs");
    // As a person asks who takes the number at its word.
    let at = |memory_bytes: u64| {
        let (memory_bytes, card, cap_bytes) = (Some(memory_bytes), None, None);
        let asked = Question { memory_bytes, card, cap_bytes, ..question.clone() };
        replay(workload, &asked.pose(workload).expect("it runs").setup)
    };
    let Some(memory_bytes) = found.memory_bytes else {
        assert!(at(setup.memory_bytes).0 > 0, "fit says that it does not run there");
        return;
    };
    let (ooms, retries, ..) = at(memory_bytes);
    assert_eq!((ooms, retries), (0, found.retries), "fit, at {memory_bytes}");
    let others = [found.calm_bytes, margin.said_bytes, margin.off_bytes];
    for bytes in others.into_iter().flatten() {
        assert_eq!(at(bytes).0, 0, "fit names {bytes}");
    }
    if let Some(calm_bytes) = found.calm_bytes {
        assert_eq!(at(calm_bytes).1, 0, "fit says that nothing is tried again at {calm_bytes}");
    }
}
