//! Recordings made under memory pressure: a replay with the recorded settings and memory retries,
//! fails and reserves as the recorded allocator did, and empties the cache where the program did.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::record::context::{Context, Frame};
use larder_core::record::event::{Action, Level};
use larder_core::types::MIB;
use larder_core::{Allocator, Config, Policy, Stats};
use larder_sim::script::{Op, Script};
use larder_snapshot::{Epoch, Snapshot};
use larder_study::fidelity;
use larder_study::recording::Recording;
use larder_study::replay::{Audience, Replay, Setup};
use larder_study::workload::Workload;
use larder_testkit::generate::{GenerateOptions, Generator};

const MEMORY_BYTES: u64 = 1024 * MIB;

const SETTINGS: [&str; 7] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    "per_process_memory_fraction:0.7",
    "expandable_segments:True,per_process_memory_fraction:0.7",
    "roundup_power2_divisions:4,max_split_size_mb:40",
];

fn script(seed: u64) -> Vec<Op> {
    let options = GenerateOptions {
        steps: 500,
        streams: 1 + (seed % 3) as u32,
        live_target: 30 + (seed % 4) as usize * 15,
        live_bytes_max: MEMORY_BYTES * (6 + seed % 7) / 10,
        size_bytes_max: 200 * MIB,
        record_probability: if seed.is_multiple_of(2) { 0.05 } else { 0.0 },
        empty_probability: 0.01,
        fraction_probability: 0.0,
        reset_probability: 0.0,
        ..GenerateOptions::default()
    };
    Generator::new(seed, options).generate()
}

fn setup(conf: &str) -> Setup {
    Setup {
        policy: Policy::torch_2_11(),
        config: Config::parse(conf).expect("good settings"),
        memory_bytes: MEMORY_BYTES,
        ..Setup::default()
    }
}

/// What must come out alike.
fn facts(stats: &Stats) -> (u64, u64, i64) {
    (stats.num_alloc_retries, stats.num_ooms, stats.reserved_bytes.all.peak)
}

/// The number of an operation, counted from 1, as a call stack.
struct Operation(u32);

impl Context for Operation {
    fn fingerprint(&self) -> u64 {
        u64::from(self.0)
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        (other as &dyn Any).downcast_ref::<Operation>().is_some_and(|other| other.0 == self.0)
    }

    fn frames(&self) -> Vec<Frame> {
        vec![Frame { name: "operation".to_owned(), filename: String::new(), line: self.0 }]
    }
}

/// Counts operations for the history.
struct Counting(Arc<AtomicU32>);

impl Audience for Counting {
    fn before(&mut self, _: &Allocator, index: usize) {
        self.0.store(index as u32 + 1, Ordering::Relaxed);
    }
}

/// Runs a script with its history on.
fn remembered(ops: &[Op], setup: &Setup, level: Level) -> Allocator {
    let replay = Replay::new(&Workload::default(), setup);
    let number = Arc::new(AtomicU32::new(0));
    let current = number.clone();
    let gather = move || -> Option<Arc<dyn Context>> {
        Some(Arc::new(Operation(current.load(Ordering::Relaxed))))
    };
    let options = HistoryOptions::default().level(level).context_hook(Arc::new(gather));
    replay.allocator().record_history(options).expect("a history");
    replay.run_on(ops, &mut Counting(number)).expect("the script runs")
}

/// A run that was recorded: its statistics, its snapshot, and how often an `empty` gave memory
/// back.
fn record(ops: &[Op], setup: &Setup, level: Level) -> (Stats, Snapshot, usize) {
    let allocator = remembered(ops, setup, Level::All);
    let told = allocator.take_snapshot(SnapshotOptions::default());
    let emptied: BTreeSet<u32> = told
        .trace
        .iter()
        .filter(|entry| matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap))
        .filter_map(|entry| Some(entry.context.as_ref()?.frames().first()?.line))
        .filter(|&line| matches!(ops[line as usize - 1], Op::Empty))
        .collect();
    let stats = allocator.stats();
    let snapshot = if level == Level::All {
        Snapshot::of_allocators(&[told], Epoch::default())
    } else {
        let told = remembered(ops, setup, level).take_snapshot(SnapshotOptions::default());
        Snapshot::of_allocators(&[told], Epoch::default())
    };
    (stats, snapshot, emptied.len())
}

/// What came of a recording's replay beside the run that was recorded.
struct Pair {
    what: String,
    recorded: Stats,
    replayed: Stats,
    /// With as much memory as the recording tells by itself.
    guessed: Option<Stats>,
    /// How often an `empty` gave memory back, and how many of those the recording has.
    empties: (usize, usize),
    doubtful_flushes: u64,
    /// How often the recording says that the allocator tried again, at least and at most.
    retries: (u64, u64),
}

fn pairs(level: Level) -> Vec<Pair> {
    let cases = (0..60).flat_map(|seed| SETTINGS.map(|conf| (seed, conf)));
    let pair = |(seed, conf): (u64, &str)| {
        let (ops, setup) = (script(seed), setup(conf));
        let (recorded, snapshot, emptied) = record(&ops, &setup, level);
        let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        let empties = recording.ops.iter().filter(|op| matches!(op, Op::Empty)).count();
        let retries = recording.retries;
        let (doubtful_flushes, memory) = (recording.doubtful_flushes, recording.memory);
        let workload = Workload::from(recording);
        let replay = |setup: &Setup| {
            let outcome = Replay::new(&workload, setup).run(&workload.ops, &mut ());
            outcome.expect("the recording runs").stats
        };
        let guessed = memory.map(|memory| {
            let (memory_bytes, fraction) = (memory.device_bytes, memory.fraction);
            replay(&Setup { memory_bytes, fraction, ..setup.clone() })
        });
        Pair {
            what: format!("seed {seed}, '{conf}'"),
            recorded,
            replayed: replay(&setup),
            guessed,
            empties: (emptied, empties),
            doubtful_flushes,
            retries,
        }
    };
    cases.map(pair).collect()
}

#[test]
fn with_call_stacks_a_replay_does_what_the_recorded_allocator_did() {
    let pairs = pairs(Level::All);
    for pair in &pairs {
        assert_eq!(facts(&pair.recorded), facts(&pair.replayed), "{}", pair.what);
        assert_eq!(pair.empties.0, pair.empties.1, "{}: empties", pair.what);
        assert_eq!(pair.doubtful_flushes, 0, "{}", pair.what);
        let (least, most) = pair.retries;
        let retries = pair.recorded.num_alloc_retries;
        assert!((least..=most).contains(&retries), "{}: {retries}, {:?}", pair.what, pair.retries);
    }
    // It is no test unless there was pressure.
    let sum = |of: fn(&Stats) -> u64| pairs.iter().map(|pair| of(&pair.recorded)).sum::<u64>();
    assert!(sum(|stats| stats.num_alloc_retries) > 2000);
    assert!(sum(|stats| stats.num_ooms) > 1000);
    assert!(pairs.iter().map(|pair| pair.empties.0).sum::<usize>() > 1000);
}

/// What the recording tells of the memory is enough to meet the same fate. Garbage collection goes
/// by a part of the cap, which a recording does not tell to the byte.
#[test]
fn the_memory_that_a_recording_tells_is_enough_to_retry_and_to_fail_alike() {
    let mut told = 0;
    for pair in pairs(Level::All).iter().filter(|pair| !pair.what.contains("garbage")) {
        let pressed = pair.recorded.num_alloc_retries > 0;
        assert!(pair.guessed.is_some() || !pressed, "{}", pair.what);
        if let Some(guessed) = &pair.guessed {
            assert_eq!(facts(&pair.recorded), facts(guessed), "{}", pair.what);
            told += 1;
        }
    }
    assert!(told > 200, "{told}");
}

/// A fraction that was set by a call is not among the settings. What the recording tells of it is
/// the most that goes with every retry and every failure.
#[test]
fn a_fraction_that_nothing_names_is_told_well_enough_to_retry_and_to_fail_alike() {
    let mut guesses = 0;
    for seed in 0..60 {
        let (recorded, mut snapshot, _) =
            record(&script(seed), &setup("per_process_memory_fraction:0.7"), Level::All);
        snapshot.allocator_conf = None;
        // PyTorch's own snapshots do not say what a device has.
        let told = snapshot.more.as_mut().and_then(|more| more.get_mut("allocator_settings"));
        if let Some(settings) = told.and_then(|settings| settings.as_object_mut()) {
            settings.remove("larder_devices");
        }
        let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        let Some(memory) = recording.memory else { continue };
        guesses += u64::from(memory.bounds.is_some_and(|bounds| {
            let allowed = memory.fraction.unwrap_or(1.0) * memory.device_bytes as f64;
            allowed > bounds.least_bytes as f64 + 1.0
        }));
        let workload = Workload::from(recording);
        let setup = setup("").with_memory(None, &workload);
        let outcome = Replay::new(&workload, &setup).run(&workload.ops, &mut ());
        let replayed = outcome.expect("the recording runs").stats;
        assert_eq!(facts(&recorded), facts(&replayed), "seed {seed}: {memory:?}");
        assert_eq!(fidelity::check(&workload, setup.addresses).expect("it runs"), None);
    }
    assert!(guesses > 20, "{guesses}");
}

/// Without call stacks a program that empties its cache just before it runs full looks like the
/// allocator that does. No `empty` is made up, and what may be lost is counted.
#[test]
fn without_call_stacks_a_replay_does_so_wherever_the_trace_can_tell() {
    let pairs = pairs(Level::Never);
    let mut wrong = 0;
    for pair in &pairs {
        assert!(pair.empties.1 <= pair.empties.0, "{}: an empty is made up", pair.what);
        if facts(&pair.recorded) != facts(&pair.replayed) {
            assert!(pair.empties.1 < pair.empties.0, "{}", pair.what);
            assert!(pair.doubtful_flushes > 0, "{}: nothing is said of it", pair.what);
            wrong += 1;
        }
    }
    assert!(wrong * 20 <= pairs.len(), "{wrong} of {} replays went another way", pairs.len());
}

/// A block is freed while another stream uses it, and the next request would fit into it. The
/// allocator waits for the block, takes no second look at it, and goes to the device again. In the
/// trace its free completes at once, and only what follows tells that it did not.
#[test]
fn a_free_that_the_retry_had_to_wait_for_is_no_plain_free() {
    let used_elsewhere = "record 3 1\nlaunch 1\nfree 3\n";
    let fails = format!(
        "alloc 1 600000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 550000000 0\n\
         {used_elsewhere}alloc 4 540000000 0\n"
    );
    let flushes = format!(
        "alloc 1 600000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 550000000 0\n\
         alloc 5 300000000 0\nfree 5\n{used_elsewhere}alloc 4 440000000 0\nalloc 6 530000000 0\n"
    );
    for (script, ooms) in [(fails, 1), (flushes, 0)] {
        let ops = Script::read(script.as_bytes()).expect("a script");
        for level in [Level::All, Level::Never] {
            let setup = setup("");
            let (recorded, snapshot, _) = record(&ops, &setup, level);
            assert_eq!((recorded.num_alloc_retries, recorded.num_ooms), (1, ooms), "{script}");
            let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
            assert_eq!(recording.waited_frees, 1, "{level:?}: {script}");
            let workload = Workload::from(recording);
            let outcome = Replay::new(&workload, &setup).run(&workload.ops, &mut ());
            let replayed = outcome.expect("the recording runs").stats;
            assert_eq!(facts(&recorded), facts(&replayed), "{level:?}: {script}");
        }
    }
}
