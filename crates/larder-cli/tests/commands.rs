//! The program as a user meets it: commands, output, exit codes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A file in the folder of this test run.
fn scratch(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).expect("the scratch folder can be written");
    path
}

fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads").join(name)
}

fn larder(words: &[&str], file: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(&words[..1]).args(file).args(&words[1..]);
    command.output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json(words: &[&str], file: &Path) -> Value {
    serde_json::from_str(&stdout(&larder(words, Some(file)))).expect("JSON")
}

/// Exit code 1 and one sentence that names the trouble.
fn refusal(words: &[&str], file: Option<&Path>) -> String {
    let output = larder(words, file);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    assert!(output.stdout.is_empty(), "nothing half done is printed");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("larder: "), "{text}");
    text
}

/// The peak that the GPU itself reported when these programs were recorded.
#[test]
fn recordings_replay_to_the_byte_under_pytorchs_policy() {
    let recordings = [
        ("gpt2_varlen.pickle.gz", 12_233_556_992_i64, 15_846_080_512_i64),
        ("prefetch_streams.pickle.gz", 4_197_159_936, 9_728_688_128),
    ];
    for (name, allocated, reserved) in recordings {
        let words = ["replay", "--policy", "torch-2.11", "--memory", "140GiB", "--json"];
        let stats = json(&words, &workload(name));
        assert_eq!(stats["allocated_bytes.all.peak"], allocated, "{name}");
        assert_eq!(stats["reserved_bytes.all.peak"], reserved, "{name}");
    }
}

/// Measured with PyTorch's own allocator on a simulated GPU: peak reserved over peak active, and
/// the smallest device over peak active.
#[test]
fn what_if_questions_get_pytorchs_own_answers() {
    let answers = [
        ("gpt2_varlen.pickle.gz", "", 1.296, 1.124),
        ("gpt2_varlen.pickle.gz", "expandable_segments:True", 1.072, 1.008),
        ("prefetch_streams.pickle.gz", "", 2.322, 1.023),
        ("prefetch_streams.pickle.gz", "expandable_segments:True", 1.180, 1.025),
    ];
    let third = |value: &Value| (value.as_f64().expect("a number") * 1e3).round() / 1e3;
    for (name, conf, overhead, fit) in answers {
        let common = ["--policy", "torch-2.11", "--addresses", "lowest", "--json", "--conf", conf];
        let file = workload(name);
        let rows = json(&[&["compare"], &common[..]].concat(), &file);
        assert!((third(&rows[0]["overhead"]) - overhead).abs() < 1e-9, "{name} {conf}: {rows}");
        let found = json(&[&["fit"], &common[..]].concat(), &file);
        assert!((third(&found["ratio"]) - fit).abs() < 1e-9, "{name} {conf}: {found}");
    }
}

#[test]
fn replay_prints_every_key_and_every_placement() {
    let script = scratch(
        "story.ops",
        "# two blocks, one that does not fit, one that comes back\n\
         alloc 1 1000 0\nalloc 2 3000000 0\n\nalloc 3 99000000000000 0\nrecord 3 1\nfree 3\nfree 1\n\
         alloc 4 700 0\n",
    );
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("story.placements");
    let words = ["replay", "--json", "--placements", out.to_str().expect("a plain path")];
    let stats = json(&words, &script);
    let keys: BTreeMap<String, i64> =
        serde_json::from_value(stats).expect("a flat object of numbers");
    assert_eq!(keys.len(), 108 + 8 + 6 + 7);
    assert_eq!(keys["ooms"], 1);
    assert_eq!(keys["num_ooms"], 1);
    assert_eq!(keys["allocated_bytes.all.current"], 1024 + 3_000_320);
    assert_eq!(keys["max_split_size"], -1);
    assert_eq!(keys["device.malloc"], 2);
    assert_eq!(keys["device.used"], 22 << 20);
    let placements = fs::read_to_string(&out).expect("the placements were written");
    let lines: Vec<_> = placements.lines().map(|line| line.split_once(' ').expect("two")).collect();
    assert_eq!(lines.iter().map(|line| line.0).collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    assert_eq!(lines[2].1, "0", "out of memory");
    assert_eq!(lines[0].1, lines[3].1, "the freed block is handed out again");
    assert!(u64::from_str_radix(lines[1].1, 16).is_ok());
}

#[test]
fn replay_prints_a_summary_for_people() {
    let text = stdout(&larder(&["replay"], Some(&workload("gpt2_varlen.pickle.gz"))));
    for words in ["peak", "reserved", "14.76 GiB", "overhead", "1.295", "recorded: 170779 entries"]
    {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn compare_without_settings_tries_the_usual_ones() {
    let rows = json(&["compare", "--json"], &workload("prefetch_streams.pickle.gz"));
    assert_eq!(rows.as_array().map(Vec::len), Some(5));
    let text = stdout(&larder(&["compare"], Some(&workload("prefetch_streams.pickle.gz"))));
    assert!(text.contains("least memory: expandable_segments:True"), "{text}");
}

#[test]
fn bench_prints_one_line() {
    let script = scratch("bench.ops", "alloc 0 4096 0\nalloc 1 512 3\nfree 0\nempty\n");
    let line = json(&["bench", "--repeat", "7", "--threads", "2"], &script);
    // Three lines, and the free of what was left.
    assert_eq!(line["ops"], 4 * 7 * 2);
    assert_eq!(line["threads"], 2);
    assert!(line["ns_per_op"].as_f64().is_some_and(|time| time > 0.0));
}

#[test]
fn soak_runs_from_a_seed() {
    let text = stdout(&larder(&["soak", "--seed", "4", "--steps", "300", "--scripts", "3"], None));
    assert!(text.contains("every check held"), "{text}");
}

#[test]
fn soak_runs_many_threads_on_one_allocator() {
    let text = stdout(&larder(&["soak", "--seed", "8", "--threads", "3", "--steps", "100"], None));
    assert!(text.contains("1 runs of 3 threads, 100 steps each, from seed 8"), "{text}");
    for wrong in [&["soak", "--threads", "0"][..], &["soak", "--scripts", "2", "--seconds", "1"]] {
        assert_eq!(larder(wrong, None).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn scripts_with_pools_run() {
    let script = scratch(
        "pools.ops",
        "pool-new 1\npool-begin 1 0\nalloc 1 1000 0\npool-end 1\nalloc 2 1000 0\nfree 1\n\
         pool-release 1\npool-release 1\npool-empty 1\n",
    );
    let stats = json(&["replay", "--json"], &script);
    assert_eq!(stats["segment.all.peak"], 2, "the pool has a segment of its own");
    assert_eq!(stats["segment.all.current"], 1, "and it went back");
}

#[test]
fn a_bad_script_is_named_by_line_and_nothing_runs() {
    let script = scratch("bad.ops", "alloc 1 1000 0\nallok 2 1000 0\n");
    let text = refusal(&["replay"], Some(&script));
    assert!(
        text.contains("bad.ops") && text.contains("line 2") && text.contains("allok"),
        "{text}"
    );
}

#[test]
fn a_script_that_cannot_go_on_names_its_line_and_leaves_no_placements() {
    let script = scratch("stop.ops", "alloc 1 100 0\n\n# about to go wrong\npool-end 9\n");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stop.placements");
    let words = ["replay", "--placements", out.to_str().expect("a plain path")];
    let text = refusal(&words, Some(&script));
    assert!(text.contains("line 4: pool-end 9: pool (0, 9)"), "{text}");
    assert!(!out.exists());
}

/// A pipe is read from its first byte on.
#[test]
fn a_pipe_is_as_good_as_a_file() {
    let cat = |file: &Path| {
        let piped = format!(
            "cat '{}' | '{}' replay /dev/stdin --json",
            file.display(),
            env!("CARGO_BIN_EXE_larder")
        );
        let output = Command::new("sh").args(["-c", &piped]).output().expect("a shell");
        serde_json::from_str::<Value>(&stdout(&output)).expect("JSON")
    };
    let script = scratch("pipe.ops", "alloc 1 1000 0\nalloc 2 1000 0\n");
    assert_eq!(cat(&script)["allocation.all.allocated"], 2);
    let recording = cat(&workload("prefetch_streams.pickle.gz"));
    assert_eq!(recording["allocation.all.allocated"], 17_777);
}

/// Hundreds of MiB of marks in a file of a MiB or two: refused long before it fills a laptop.
#[test]
fn a_small_file_cannot_take_much_memory() {
    let marks = vec![b'('; 300 << 20];
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &marks).expect("in memory");
    let bomb = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bomb.pickle.gz");
    fs::write(&bomb, packed.finish().expect("in memory")).expect("the folder can be written");
    assert!(refusal(&["replay"], Some(&bomb)).contains("memory"));
}

#[test]
fn settings_beyond_any_memory_do_no_harm() {
    let script = scratch("huge.ops", "alloc 1 5000000 0\nalloc 2 5 0\n");
    for conf in ["", ",expandable_segments:True"] {
        let conf = format!("large_segment_size_mb:18446744073709551615{conf}");
        let stats = json(&["replay", "--json", "--conf", &conf], &script);
        assert_eq!(stats["ooms"], 1, "the large one needs a whole segment, the small one does not");
    }
}

#[test]
fn a_comparison_without_a_winner_says_so() {
    let script = scratch("none.ops", "alloc 1 99000000000000 0\n");
    let text = stdout(&larder(&["compare"], Some(&script)));
    assert!(text.contains("none of them ran"), "{text}");
    let script = scratch("same.ops", "alloc 1 1000 0\n");
    let words = ["compare", "--conf", "", "--conf", "max_split_size_mb:40"];
    assert!(stdout(&larder(&words, Some(&script))).contains("they all need the same"));
}

#[test]
fn a_bad_snapshot_is_one_sentence() {
    let whole = fs::read(workload("prefetch_streams.pickle.gz")).expect("it ships");
    let cut = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut.pickle.gz");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("the scratch folder can be written");
    assert!(refusal(&["replay"], Some(&cut)).contains("cut.pickle.gz"));
    let words = refusal(&["replay"], Some(&scratch("words.pickle", "this is no pickle")));
    assert!(words.contains("words.pickle: this is neither a pickle nor gzipped"), "{words}");
    refusal(&["fit"], Some(&scratch("empty.pickle", "")));
    refusal(&["replay"], Some(Path::new("no/such/file.ops")));
    refusal(&["replay"], Some(Path::new(env!("CARGO_TARGET_TMPDIR"))));
    let device = refusal(&["replay", "--device", "7"], Some(&workload("gpt2_varlen.pickle.gz")));
    assert!(device.contains('7'), "{device}");
}

#[test]
fn bad_settings_are_named() {
    let file = workload("prefetch_streams.pickle.gz");
    let text = refusal(&["replay", "--conf", "expandable_segment:True"], Some(&file));
    assert!(text.contains("expandable_segment'"), "{text}");
    let text = refusal(&["replay", "--conf", "backend:cudaMallocAsync"], Some(&file));
    assert!(text.contains("cudaMallocAsync"), "{text}");
    let text = refusal(&["compare", "--conf", "", "--conf", "max_split_size_mb:3"], Some(&file));
    assert!(text.contains("max_split_size_mb"), "{text}");
}

#[test]
fn a_device_that_is_too_small_does_not_fit() {
    let file = workload("prefetch_streams.pickle.gz");
    let text = refusal(&["fit", "--memory", "1GiB"], Some(&file));
    assert!(text.contains("does not run in 1024.00 MiB"), "{text}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let file = workload("prefetch_streams.pickle.gz");
    let wrong: [&[&str]; 6] = [
        &["replay", "--no-such-option"],
        &["replay", "--memory", "lots"],
        &["replay", "--policy", "torch-1.0"],
        &["bench", "--threads", "0"],
        &["replay", "--addresses", "highest"],
        &["no-such-command"],
    ];
    for words in wrong {
        let output = larder(words, Some(&file));
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(!output.stderr.is_empty());
    }
}
