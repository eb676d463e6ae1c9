//! A program that runs is seen as it sees itself: the figures from its tape are its own statistics.

use std::path::Path;

use larder_core::types::MIB;
use larder_core::{Allocator, Config, Policy};
use larder_study::live::Followed;
use larder_study::replay::{Audience, Replay, Setup};
use larder_study::workload::Workload;
use larder_tape::Recorder;
use larder_testkit::generate::{GenerateOptions, Generator};

/// Looks at the tape now and then while the program runs.
struct Looking {
    followed: Followed,
    seed: u64,
    looks: u64,
}

impl Looking {
    fn compare(&mut self, allocator: &Allocator) {
        let (stats, look) = (allocator.stats(), self.followed.look().expect("a tape"));
        let sums = look.sums;
        let seen = [
            sums.requested_bytes,
            sums.reserved_bytes,
            sums.live_allocations,
            sums.allocations,
            sums.frees,
        ];
        let counted = [
            stats.requested_bytes.all.current,
            stats.reserved_bytes.all.current,
            stats.allocation.all.current,
            stats.allocation.all.allocated,
            stats.allocation.all.freed,
        ];
        assert_eq!(seen.map(|number| number as i64), counted, "seed {}", self.seed);
        assert_eq!(sums.ooms, stats.num_ooms, "seed {}", self.seed);
        let held: u64 = look.lanes.iter().map(|lane| lane.reserved_bytes).sum();
        assert_eq!(held, sums.reserved_bytes, "seed {}: lanes add up", self.seed);
        self.looks += 1;
    }
}

impl Audience for Looking {
    fn before(&mut self, allocator: &Allocator, index: usize) {
        if index.is_multiple_of(97) {
            self.compare(allocator);
        }
    }

    fn after(&mut self, allocator: &Allocator) {
        self.compare(allocator);
    }
}

#[test]
fn a_tape_tells_what_the_statistics_tell_while_the_program_runs() {
    for seed in 1..=12 {
        let options = GenerateOptions {
            steps: 800,
            streams: 1 + (seed % 3) as u32,
            size_bytes_max: 100 * MIB,
            record_probability: 0.05,
            empty_probability: 0.02,
            reset_probability: 0.0,
            ..GenerateOptions::default()
        };
        let ops = Generator::new(seed, options).generate();
        let workload = Workload { ops, ..Workload::default() };
        let conf = if seed.is_multiple_of(2) { "expandable_segments:True" } else { "" };
        let setup = Setup {
            policy: if seed.is_multiple_of(3) { Policy::torch_2_11() } else { Policy::default() },
            config: Config::parse(conf).expect("settings"),
            memory_bytes: 1024 * MIB,
            ..Setup::default()
        };
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("live-{seed}.tape"));
        let recorder = Recorder::create(&path).expect("a tape");
        let replay = Replay::new(&workload, &setup);
        recorder.listen(replay.allocator());
        let followed = Followed::open(&path).expect("it is there from the beginning");
        let mut looking = Looking { followed, seed, looks: 0 };
        replay.run(&workload.ops, &mut looking).expect("it runs");
        assert!(looking.looks > 5);
        std::fs::remove_file(&path).expect("it is there");
    }
}
