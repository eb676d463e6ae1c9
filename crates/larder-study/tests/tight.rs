//! Recordings of programs that ran under the policy tight: a replay needs to the byte what the
//! program needed, though some of its blocks lived in views.

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::config::Config;
use larder_core::heap::State;
use larder_core::types::{GIB, MIB};
use larder_core::{Allocator, Policy, Stats};
use larder_sim::script::Op;
use larder_snapshot::{Epoch, Snapshot};
use larder_study::fidelity;
use larder_study::recording::Recording;
use larder_study::replay::{Audience, Replay, Setup};
use larder_study::workload::{Addresses, Workload};
use larder_testkit::generate::{GenerateOptions, Generator};

fn setup() -> Setup {
    Setup {
        policy: Policy::tight(),
        config: Config::default(),
        memory_bytes: 80 * GIB,
        ..Setup::default()
    }
}

/// A program of one stream, with blocks of any size in any order.
fn program(seed: u64) -> Vec<Op> {
    let options = GenerateOptions {
        steps: 600,
        streams: 1,
        live_target: 30,
        live_bytes_max: 1024 * MIB,
        size_bytes_max: 150 * MIB,
        record_probability: 0.0,
        fraction_probability: 0.0,
        reset_probability: 0.0,
        ..GenerateOptions::default()
    };
    Generator::new(seed, options).generate()
}

/// Turns the history on before the operation of this number.
struct Listener(usize);

impl Audience for Listener {
    fn before(&mut self, allocator: &Allocator, index: usize) {
        if index == self.0 {
            allocator.record_history(HistoryOptions::default()).expect("a history");
        }
    }
}

/// A program on this setup that is recorded from one of its operations on: what it came to, its
/// snapshot, and how many of its blocks live in views at the end.
fn record(ops: &[Op], setup: &Setup, from: usize) -> (Stats, Snapshot, usize) {
    let replay = Replay::new(&Workload::default(), setup);
    let allocator = replay.run_on(ops, &mut Listener(from)).expect("the script runs");
    let views = allocator.snapshot().into_iter().filter(|segment| segment.view);
    let blocks = views.flat_map(|view| view.blocks);
    let tenants = blocks.filter(|block| block.state == State::Live).count();
    let told = allocator.take_snapshot(SnapshotOptions::default());
    (allocator.stats(), Snapshot::of_allocators(&[told], Epoch::default()), tenants)
}

fn peaks(stats: &Stats) -> [i64; 2] {
    [stats.reserved_bytes.all.peak, stats.active_bytes.all.peak]
}

#[test]
fn a_replay_needs_what_the_program_needed() {
    let mut tenants = 0;
    for seed in 0..60 {
        let (recorded, snapshot, in_views) = record(&program(seed), &setup(), 0);
        let workload = Workload::from(Recording::from_snapshot(&snapshot, 0).expect("a recording"));
        let outcome = Replay::new(&workload, &setup()).run(&workload.ops, &mut ());
        let replayed = outcome.expect("the recording runs").stats;
        assert_eq!(peaks(&recorded), peaks(&replayed), "seed {seed}");
        tenants += in_views;
    }
    assert!(tenants > 30, "only {tenants} blocks lived in views at the end");
}

/// Whoever starts to record later finds each block once, be it in one piece or not.
#[test]
fn what_was_there_before_the_recording_comes_in_whole_blocks() {
    let mut tenants = 0;
    for seed in 0..60 {
        let mut ops = program(seed);
        ops.push(Op::Alloc { id: u64::MAX, size_bytes: 512, stream: 0 });
        let (stats, snapshot, in_views) = record(&ops, &setup(), ops.len() - 1);
        let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        let told =
            (recording.preexisting_blocks as i64 + 1, recording.preexisting_bytes as i64 + 512);
        let live = (stats.allocation.all.current, stats.requested_bytes.all.current);
        assert_eq!(told, live, "seed {seed}");
        tenants += in_views;
    }
    assert!(tenants > 30, "only {tenants} blocks lived in views at the end");
}

/// Whoever ran out of memory asks why: a replay fails as the program did, and says so of no other
/// policy.
#[test]
fn a_program_that_ran_out_of_memory_does_so_in_a_replay() {
    let mut failed = 0;
    for seed in 0..60 {
        let ops = program(seed);
        let (ample, ..) = record(&ops, &setup(), 0);
        let short = Setup { memory_bytes: ample.active_bytes.all.peak as u64 - 4 * MIB, ..setup() };
        let (stats, snapshot, _) = record(&ops, &short, 0);
        let workload = Workload::from(Recording::from_snapshot(&snapshot, 0).expect("a recording"));
        let unlike = fidelity::check(&workload, Addresses::default()).expect("it runs");
        assert_eq!(unlike, None, "seed {seed}");
        failed += usize::from(stats.num_ooms > 0);
    }
    assert!(failed > 30, "only {failed} ran out of memory");
}

/// What is said to change nothing under tight changes nothing, where there is room and where there
/// is not.
#[test]
fn settings_that_are_about_idle_memory_change_nothing() {
    for seed in 0..30 {
        let ops = program(seed);
        let (ample, ..) = record(&ops, &setup(), 0);
        for memory_bytes in [80 * GIB, ample.active_bytes.all.peak as u64 - 4 * MIB] {
            let stats = |conf: &str| {
                let config = Config::parse(conf).expect("settings");
                let setup = Setup { config, memory_bytes, ..setup() };
                let replay = Replay::new(&Workload::default(), &setup);
                replay.run(&ops, &mut ()).expect("the script runs").stats
            };
            let fraction = "per_process_memory_fraction:0.9";
            let usual = stats(fraction);
            for conf in [
                "max_split_size_mb:30",
                "max_split_size_mb:30,max_non_split_rounding_mb:64",
                "large_segment_size_mb:64",
                "garbage_collection_threshold:0.5",
            ] {
                let changed = stats(&format!("{fraction},{conf}"));
                assert_eq!(peaks(&changed), peaks(&usual), "seed {seed}: {conf}");
                assert_eq!(changed.num_device_alloc, usual.num_device_alloc, "seed {seed}: {conf}");
            }
        }
    }
}
