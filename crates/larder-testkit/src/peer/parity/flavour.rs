//! Flavours: the random scripts on which the two allocators are compared, with the settings and the
//! devices of each.

use std::collections::HashMap;

use clap::ValueEnum;
use larder_core::Policy;
use larder_core::policy::CaptureRule;
use larder_core::types::{GIB, KIB, MIB};
use larder_sim::random::Random;
use larder_sim::script::Op;
use larder_testkit::generate::{GenerateOptions, Generator};

/// What a random script is about besides allocating and freeing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flavour {
    /// Nothing else.
    Plain,
    /// Many caps on the memory, without which garbage is never collected.
    Capped,
    /// Private pools, some of them under graph capture.
    Pooled,
    /// Many private pools that lend to whoever runs out of memory.
    Lending,
    /// Captures over several streams that wait for each other, and checkpoints.
    Graphs,
}

impl Flavour {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Flavour::Plain => "plain",
            Flavour::Capped => "capped",
            Flavour::Pooled => "pooled",
            Flavour::Lending => "lending",
            Flavour::Graphs => "graphs",
        }
    }

    /// The settings under which such scripts run.
    pub(super) fn settings(self) -> &'static [&'static str] {
        match self {
            Flavour::Plain => &PLAIN,
            Flavour::Capped => &CAPPED,
            Flavour::Pooled => &POOLED,
            Flavour::Lending => &LENDING,
            Flavour::Graphs => &GRAPHS,
        }
    }

    /// The script that belongs to a seed, for allocators that decide as this policy.
    pub(crate) fn script(self, seed: u64, policy: &Policy) -> Vec<Op> {
        let mut options = GenerateOptions {
            uses_stay_apart: true,
            captures_are_marked: policy.capture != CaptureRule::OpenScope,
            ..shape(seed)
        };
        let mut ops = Vec::new();
        match self {
            Flavour::Plain => {}
            Flavour::Capped => {
                options.fraction_probability = 0.01;
                ops.push(Op::Fraction { fraction: 0.5 });
            }
            Flavour::Pooled => options.pools = true,
            Flavour::Lending => {
                (options.pools, options.lending, options.pool_probability) = (true, true, 0.1);
                // A block is lent to requests on its own stream, so that there are few.
                options.streams = options.streams.min(2);
            }
            Flavour::Graphs => {
                (options.pools, options.graphs) = (true, true);
                // Uses on other streams are what captures and their reuse are about.
                options.streams = options.streams.max(2);
                options.record_probability = options.record_probability.max(0.1);
            }
        }
        ops.extend(Generator::new(seed, options).generate());
        ops
    }
}

const PLAIN: [&str; 12] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,64:4,256:8,>:1]",
    "max_split_size_mb:40,max_non_split_rounding_mb:80",
    "large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:40",
    "expandable_segments:True,large_segment_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:8",
    "per_process_memory_fraction:0.7",
    "expandable_segments:True,per_process_memory_fraction:0.6",
];

const CAPPED: [&str; 4] = [
    "",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:21,garbage_collection_threshold:0.8",
    "expandable_segments:True,garbage_collection_threshold:0.6",
];

const POOLED: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    "large_segment_size_mb:40,roundup_power2_divisions:4",
    "expandable_segments:True,max_split_size_mb:40,garbage_collection_threshold:0.5",
];

const LENDING: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    // What a scope brings back, it brings back between finding a block and handing it out.
    "graph_capture_record_stream_reuse:True",
    "expandable_segments:True,graph_capture_record_stream_reuse:True",
];

const GRAPHS: [&str; 5] = [
    "",
    "graph_capture_record_stream_reuse:True",
    "expandable_segments:True",
    "expandable_segments:True,graph_capture_record_stream_reuse:True",
    "max_split_size_mb:40,roundup_power2_divisions:4,graph_capture_record_stream_reuse:True",
];

/// Settings under which recorded programs are replayed.
pub(super) const RECORDED: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:200"];

/// What both allocators remember of a script, as options that both programs take. Mostly
/// everything, with contexts of each level in turn; now and then nothing at all, only the newest
/// entries, or not all actions.
pub(super) fn remembering(seed: u64, setting: u64) -> Option<String> {
    let turn = seed.wrapping_mul(3).wrapping_add(setting);
    let level = ["all", "alloc", "state", "never"].get((turn % 5) as usize)?;
    let mut options = format!("--level {level}");
    if turn.is_multiple_of(7) {
        options += &format!(" --max-entries {}", turn % 90 + 1);
    }
    if turn % 11 == 3 {
        options += " --skip alloc,segment_free,snapshot";
    }
    Some(options)
}

/// A device with room to spare, and one that most scripts run out of. The second differs from seed
/// to seed, from 40 to 95 percent of what is live at most, and neither is a round number of bytes.
pub(super) fn memory_sizes(peak_bytes: u64, seed: u64) -> [u64; 2] {
    let percent = 40 + seed.wrapping_mul(37) % 56;
    [peak_bytes * 4 + GIB, (peak_bytes * percent / 100).max(2 * MIB)]
}

/// What kind of script a seed gives: long or short, with few or many streams, of small or large
/// blocks. One kind alone would leave most of the allocator's paths cold.
fn shape(seed: u64) -> GenerateOptions {
    // Numbers of its own, so that the shape says nothing about the operations.
    let mut random = Random::new(!seed);
    GenerateOptions {
        steps: random.between(100, 1500) as usize,
        streams: random.between(1, 4) as u32,
        live_target: random.between(5, 200) as usize,
        live_bytes_max: *random.pick(&[256 * MIB, 2 * GIB, 40 * GIB]),
        size_bytes_max: *random.pick(&[256 * KIB, 2 * MIB, 24 * MIB, 128 * MIB, 2 * GIB]),
        record_probability: *random.pick(&[0.0, 0.02, 0.05, 0.2]),
        sync_probability: *random.pick(&[0.01, 0.03, 0.1]),
        empty_probability: *random.pick(&[0.0, 0.002, 0.02]),
        ..GenerateOptions::default()
    }
}

/// The most bytes that are live at a time, if every allocation is met.
pub(super) fn peak_bytes(ops: &[Op]) -> u64 {
    let mut sizes = HashMap::new();
    let (mut live_bytes, mut peak_bytes) = (0_u64, 0);
    for &op in ops {
        match op {
            Op::Alloc { id, size_bytes, .. } => {
                sizes.insert(id, size_bytes);
                live_bytes += size_bytes;
                peak_bytes = peak_bytes.max(live_bytes);
            }
            Op::Free { id } => live_bytes -= sizes.remove(&id).unwrap_or(0),
            _ => {}
        }
    }
    peak_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_of_all_kinds_come_up() {
        let all = (0..100).flat_map(|seed| (0..4).map(move |at| remembering(seed, at)));
        let all: Vec<Option<String>> = all.collect();
        assert!(all.contains(&None));
        let all: Vec<String> = all.into_iter().flatten().collect();
        for options in ["--level all", "--level state --max-entries", "--level never --skip"] {
            assert!(all.iter().any(|one| one.starts_with(options)), "{options}");
        }
    }

    #[test]
    fn one_device_is_roomy_and_one_is_small() {
        for seed in 0..200 {
            let [roomy, small] = memory_sizes(10 * GIB, seed);
            assert!(roomy > 40 * GIB && (4 * GIB..10 * GIB).contains(&small), "{seed}: {small}");
        }
        assert_eq!(memory_sizes(0, 1), [GIB, 2 * MIB]);
    }
}
