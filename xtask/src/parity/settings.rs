//! The settings under which the two allocators are compared, and the devices.

/// What a random script is about besides allocating and freeing, by the word by which the writer of
/// scripts knows it, and the settings under which such scripts run.
pub(super) const FLAVOURS: [(&str, &[&str]); 5] = [
    ("plain", &PLAIN),
    // With many caps on the memory, without which garbage is never collected.
    ("capped", &CAPPED),
    // With private pools, some of them under graph capture.
    ("pooled", &POOLED),
    // With many private pools that lend to whoever runs out of memory.
    ("lending", &LENDING),
    // With captures over several streams that wait for each other, and checkpoints.
    ("graphs", &GRAPHS),
];

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

const LENDING: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:40"];

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

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A device with room to spare, and one that most scripts run out of. The second differs from seed
/// to seed, from 40 to 95 percent of what is live at most, and neither is a round number of bytes.
pub(super) fn memory_sizes(peak_bytes: u64, seed: u64) -> [u64; 2] {
    let percent = 40 + seed.wrapping_mul(37) % 56;
    [peak_bytes * 4 + GIB, (peak_bytes * percent / 100).max(2 * MIB)]
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
