//! Programs that are run over and over, and with other sizes than they were recorded with.

mod program;

use std::path::{Path, PathBuf};

use program::{json, larder, recorded, scratch, stdout};
use serde_json::Value;

fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads").join(name)
}

/// What is said on standard error by a command that is not used as it is meant to be.
fn misuse(words: &[&str], file: &Path) -> String {
    let output = larder(words, Some(file));
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// The values of a key in all passes.
fn passes<'a>(stats: &'a Value, key: &str) -> Vec<&'a Value> {
    stats["passes"].as_array().expect("a list").iter().map(|pass| &pass[key]).collect()
}

/// A block is left, and one that another stream uses: both are free when the program begins again.
#[test]
fn a_program_that_runs_again_finds_what_is_cached() {
    let script = scratch("again.ops", "alloc 1 1000 0\nalloc 2 3000000 0\nrecord 2 5\n");
    let stats = json(&["replay", "--json", "--passes", "3"], &script);
    assert_eq!(passes(&stats, "driver_calls"), [2, 0, 0], "{stats}");
    assert_eq!(passes(&stats, "driver_ns"), [72_000 + 72_428, 0, 0], "{stats}");
    assert_eq!(passes(&stats, "peak_reserved_bytes"), [22 << 20; 3], "{stats}");
    assert_eq!(passes(&stats, "peak_active_bytes"), [1024 + 3_000_320; 3], "{stats}");
    assert_eq!(stats["operations"], 9);
    assert_eq!(stats["allocated_bytes.all.current"], 0);
    let text = stdout(&larder(&["replay", "--passes", "3"], Some(&script)));
    assert!(text.contains("again.ops: 3 operations, 3 times over, in "), "{text}");
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("pass ")).collect();
    assert_eq!(table.len(), 5, "{text}");
    assert!(table[0].ends_with("driver calls   driver time"), "{text}");
    assert!(table[2].starts_with("1 ") && table[2].ends_with("2        0.1 ms"), "{text}");
    assert!(table[4].starts_with("3 ") && table[4].ends_with("0        0.0 ms"), "{text}");
}

#[test]
fn one_pass_is_what_a_replay_is() {
    let script = scratch("once.ops", "pool-new 1\npool-begin 1 0\nalloc 1 1000 0\n");
    let plain = json(&["replay", "--json"], &script);
    assert_eq!(plain, json(&["replay", "--json", "--passes", "1"], &script));
    assert_eq!(plain["passes"], Value::Null);
    assert_eq!(plain["allocated_bytes.all.current"], 1024, "nothing is freed at the end");
    let text = stdout(&larder(&["replay", "--passes", "1"], Some(&script)));
    assert!(!text.contains("times over") && !text.contains("\npass "), "{text}");
}

/// A scope and a capture are left open, and a pool with two uses holds a block.
#[test]
fn what_private_pools_hold_goes_at_the_end_of_each_pass() {
    let script = scratch(
        "pools_again.ops",
        "pool-new 1\npool-begin 1 capture 3\ncapture-begin 3\nalloc 1 1000 3\nlaunch 3\nalloc 2 \
         1000 0\n\
         checkpoint 1 1\n",
    );
    for policy in ["torch-2.11", "larder", "tight"] {
        let words = ["replay", "--json", "--passes", "4", "--policy", policy];
        let stats = json(&words, &script);
        let calls: Vec<u64> =
            passes(&stats, "driver_calls").iter().map(|calls| calls.as_u64().unwrap()).collect();
        assert!(calls[1] > 0 && calls[1] <= calls[0], "{policy}: {stats}");
        assert_eq!((calls[1], calls[2]), (calls[2], calls[3]), "{policy}: {stats}");
        assert_eq!(stats["allocated_bytes.all.current"], 0, "{policy}: {stats}");
        assert_eq!(passes(&stats, "ooms"), [0; 4], "{policy}: {stats}");
    }
    let stats = json(&["replay", "--json", "--passes", "4"], &script);
    assert_eq!(passes(&stats, "driver_calls"), [3, 2, 2, 2], "the pool's segment comes and goes");
    assert_eq!(stats["device.used"], 2 << 20, "the other one stays");
}

/// The first pass takes away what the second would need.
#[test]
fn a_failure_is_said_with_its_pass() {
    let script = scratch("later.ops", "alloc 1 50000000 0\nfree 1\nempty\nfraction 0.1\n");
    let common = ["replay", "--passes", "2", "--memory", "100MiB"];
    let stats = json(&[&common[..], &["--json"]].concat(), &script);
    assert_eq!(passes(&stats, "ooms"), [0, 1], "{stats}");
    assert_eq!(stats["first_oom.operation"], 1, "{stats}");
    let text = stdout(&larder(&common, Some(&script)));
    assert!(text.contains("The first allocation that failed, operation 1 of pass 2: "), "{text}");
}

/// The large block that the first round leaves cached is broken by the small request that begins
/// the second, and then serves none of the large ones. Tight shows its pages again, and needs no
/// more for two rounds.
#[test]
fn a_second_round_may_need_a_larger_device() {
    let script = scratch(
        "broken.ops",
        "alloc 1 12000000 0\nalloc 2 60000000 0\nfree 1\nfree 2\nempty\nalloc 3 70000000 0\n",
    );
    let fit =
        |policy, passes| json(&["fit", "--json", "--policy", policy, "--passes", passes], &script);
    let needed = |found: &Value| found["fit_bytes"].as_u64().expect("it runs");
    let [once, twice] = ["1", "2"].map(|passes| fit("torch-2.11", passes));
    assert!((72_000_000..85_000_000).contains(&needed(&once)), "{once}");
    assert!((130_000_000..145_000_000).contains(&needed(&twice)), "{twice}");
    assert_eq!((&once["passes"], &twice["passes"]), (&Value::Null, &Value::from(2)));
    let tight = fit("tight", "2");
    assert!(needed(&tight) < 90_000_000, "{tight}");
    // What it says of the device holds there, and the device for one round is too small for two.
    let on = |bytes: u64| {
        let memory = format!("{bytes}B");
        let words = ["replay", "--json", "--policy", "torch-2.11", "--passes", "2", "--memory"];
        json(&[&words[..], &[&memory]].concat(), &script)
    };
    let (enough, too_small) = (on(needed(&twice)), on(needed(&once)));
    assert_eq!(passes(&enough, "ooms"), [0, 0], "{enough}");
    assert_eq!(enough["num_alloc_retries"], twice["retries"], "{enough}");
    assert_eq!(passes(&too_small, "ooms"), [0, 1], "{too_small}");
}

#[test]
fn a_fit_says_how_many_times_over_the_program_runs() {
    let script = scratch("over.ops", "alloc 1 50000000 0\n");
    let text = |words: &[&str]| stdout(&larder(&[&["fit"], words].concat(), Some(&script)));
    let thrice = text(&["--passes", "3"]);
    assert!(thrice.starts_with("over.ops: runs 3 times over in "), "{thrice}");
    let once = text(&["--passes", "1"]);
    assert_eq!(once, text(&[]), "one pass is what a fit is");
    assert!(once.starts_with("over.ops: runs in "), "{once}");
    let output = larder(&["fit", "--passes", "3", "--memory", "30MiB"], Some(&script));
    let sentence = String::from_utf8_lossy(&output.stderr);
    assert!(sentence.contains("over.ops: does not run 3 times over in 30.00 MiB;"), "{sentence}");
}

/// Each round gives a block back to have room for a larger one, and what that costs is told of all
/// together.
#[test]
fn the_retries_of_a_fit_are_those_of_all_rounds() {
    let script =
        scratch("gives.ops", "alloc 1 50000000 0\nfree 1\nalloc 2 60000000 0\nfree 2\nempty\n");
    let text = |passes| {
        let words = ["fit", "--policy", "torch-2.11", "--passes", passes];
        stdout(&larder(&words, Some(&script)))
    };
    let [once, thrice] = ["1", "3"].map(text);
    assert!(once.contains(" try again 1 time, each of which costs time; "), "{once}");
    assert!(thrice.contains(" try again 3 times in all, each of which costs time; "), "{thrice}");
}

#[test]
fn a_larger_program_gets_a_larger_device() {
    let script = scratch("larger.ops", "alloc 1 60000000000 0\n");
    let stats = json(&["replay", "--json", "--scale", "4"], &script);
    assert_eq!((&stats["ooms"], &stats["scale"]), (&Value::from(0), &Value::from(4)), "{stats}");
    assert_eq!(stats["requested_bytes.all.peak"], 240_000_000_000_u64, "{stats}");
    let text = stdout(&larder(&["replay", "--scale", "4"], Some(&script)));
    assert!(text.contains("a simulated GPU with 320.00 GiB\nsizes: 4 times as large\n"), "{text}");
    let small = json(&["replay", "--json", "--scale", "4", "--memory", "80GiB"], &script);
    assert_eq!(small["ooms"], 1, "a size that is given stays as it is given: {small}");
    let found = json(&["fit", "--json", "--scale", "4"], &script);
    assert!(found["fit_bytes"].as_u64() > Some(240_000_000_000), "{found}");
    let rows = json(&["compare", "--json", "--scale", "4", "--conf", ""], &script);
    assert_eq!((&rows[0]["ooms"], &rows[0]["scale"]), (&Value::from(0), &Value::from(4)), "{rows}");
}

/// Twice the program on twice the device fails as it did, and nothing is said of how it was
/// recorded.
#[test]
fn a_larger_program_that_ran_out_of_memory_does_so_again() {
    let script = scratch("full.ops", "alloc 1 5000000000 0\nalloc 2 5000000000 0\n");
    let snapshot = recorded("full.pickle", &script, &["--memory", "8GiB"]);
    let text = stdout(&larder(&["replay", "--scale", "2"], Some(&snapshot)));
    assert!(text.contains("a simulated GPU with 16.00 GiB\n"), "{text}");
    assert!(text.contains("out of memory  1 "), "{text}");
    assert!(!text.contains("trust none"), "{text}");
}

#[test]
fn sizes_that_are_off_follow_from_their_seed() {
    let file = workload("prefetch_streams.pickle.gz");
    let words = |jitter| ["replay", "--json", "--policy", "torch-2.11", "--jitter", jitter];
    let [plain, same, other] = ["3", "3:1", "3:2"].map(|jitter| json(&words(jitter), &file));
    assert_eq!(plain, same, "without a seed it is 1");
    assert_eq!(
        (&plain["jitter_percent"], &plain["jitter_seed"]),
        (&Value::from(3.0), &Value::from(1))
    );
    let requested = |stats: &Value| stats["requested_bytes.all.allocated"].as_f64().unwrap();
    let recorded = json(&["replay", "--json", "--policy", "torch-2.11"], &file);
    for jittered in [&plain, &other] {
        let factor = requested(jittered) / requested(&recorded);
        assert!((0.97..1.03).contains(&factor) && (factor - 1.0).abs() > 1e-9, "{factor}");
    }
    assert!((requested(&plain) - requested(&other)).abs() > 1.0);
    assert_eq!(recorded["jitter_seed"], Value::Null);
    let sentence = "sizes: each up to 3 % off (seed 7)\n";
    for command in [&["replay"][..], &["fit"], &["compare", "--conf", ""]] {
        let text = stdout(&larder(&[command, &["--jitter", "3:7"]].concat(), Some(&file)));
        assert!(text.contains(sentence), "{command:?}: {text}");
    }
}

#[test]
fn a_failure_says_the_seed() {
    let script = scratch("stops.ops", "alloc 1 1000 0\npool-end 3\n");
    let output = larder(&["replay", "--jitter", "3:7"], Some(&script));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("line 2: pool-end 3: ") && text.contains("(seed 7)"), "{text}");
    let script = scratch("hopeless.ops", "alloc 1 1000000000 0\n");
    let output = larder(&["fit", "--memory", "100MiB", "--jitter", "3:8"], Some(&script));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("does not run in 100.00 MiB") && text.contains("(seed 8)"), "{text}");
}

#[test]
fn bad_values_are_told_in_a_sentence() {
    let file = workload("prefetch_streams.pickle.gz");
    for command in ["replay", "compare", "fit"] {
        for bad in ["0", "-2", "1.5", "2000"] {
            let text = misuse(&[command, "--scale", bad], &file);
            let sentence = format!("a scale is a whole number from 1 to 1024, not '{bad}'");
            assert!(text.contains(&sentence), "{text}");
        }
        for bad in ["100", "-3", "3:x", "much"] {
            let text = misuse(&[command, "--jitter", bad], &file);
            assert!(text.contains("a jitter is a percentage from 0 to below 100"), "{text}");
        }
        let text = misuse(&[command, "--scale", "2", "--addresses", "recorded"], &file);
        assert!(text.contains("--addresses recorded: segments have those addresses"), "{text}");
    }
    for command in ["replay", "fit"] {
        let text = misuse(&[command, "--passes", "0"], &file);
        assert!(text.contains("0 is not in 1..="), "{text}");
    }
}

/// Only one of the policies is stock PyTorch's.
#[test]
fn tight_is_named_for_what_it_is() {
    let file = workload("prefetch_streams.pickle.gz");
    let replayed = stdout(&larder(&["replay", "--policy", "tight"], Some(&file)));
    let fitted = stdout(&larder(&["fit", "--policy", "tight"], Some(&file)));
    let compared = stdout(&larder(&["compare", "--policy", "tight", "--conf", ""], Some(&file)));
    for text in [replayed, fitted, compared] {
        assert!(text.contains("policy tight (Larder's for least memory)"), "{text}");
        assert!(!text.contains("stock PyTorch"), "{text}");
    }
    for command in ["replay", "compare", "fit", "bench", "snapshot"] {
        let text = stdout(&larder(&[command, "--help"], None));
        assert!(text.contains("tight"), "{text}");
    }
}

/// A person who tries no settings sees one line of it: what people try first is not for it.
#[test]
fn compare_has_a_row_for_tight() {
    let file = workload("prefetch_streams.pickle.gz");
    let text = stdout(&larder(&["compare"], Some(&file)));
    let (others, tight) = text.split_once("\npolicy tight: ").expect("its part");
    assert_eq!(others.matches("expandable_segments:True ").count(), 2, "{text}");
    let rows: Vec<&str> = tight.lines().filter(|line| line.ends_with(" ms")).collect();
    assert!(rows.len() == 1 && rows[0].starts_with("(default) [as recorded] "), "{text}");
    let found = json(&["fit", "--json", "--policy", "tight"], &file);
    let usual = json(&["fit", "--json"], &file);
    assert_eq!(found["policy"], "tight");
    assert!(found["ratio"].as_f64() < usual["ratio"].as_f64(), "{found} {usual}");
}
