//! The program as a user meets it: commands, output, exit codes.

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use program::{json, larder, recorded, scratch, stdout};
use serde_json::Value;

fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads").join(name)
}

/// Exit code 1 and one sentence that names the trouble.
fn refusal(words: &[&str], file: Option<&Path>) -> String {
    refusal_with(1, words, file)
}

/// This exit code and one sentence that names the trouble.
fn refusal_with(code: i32, words: &[&str], file: Option<&Path>) -> String {
    let output = larder(words, file);
    assert_eq!(output.status.code(), Some(code), "{words:?}");
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
         alloc 1 1000 0\nalloc 2 3000000 0\n\nalloc 3 99000000000000 0\nrecord 3 1\nfree 3\nfree \
         1\n\
         alloc 4 700 0\n",
    );
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("story.placements");
    let words = ["replay", "--json", "--placements", out.to_str().expect("a plain path")];
    let stats = json(&words, &script);
    let keys: BTreeMap<String, Value> = serde_json::from_value(stats).expect("an object");
    assert!(keys.values().all(|value| !value.is_object() && !value.is_array()), "it is flat");
    assert_eq!(keys.len(), 108 + 8 + 7 + 7 + 4 + 5);
    assert_eq!(keys["operations"], 7);
    assert_eq!(keys["first_oom.operation"], 3);
    assert!(keys["first_oom"].as_str().is_some_and(|text| text.contains("out of memory")));
    let [reserved, active] =
        ["reserved_bytes.all.peak", "active_bytes.all.peak"].map(|key| keys[key].as_f64());
    let overhead = keys["overhead"].as_f64().expect("a number");
    assert!((overhead - reserved.unwrap() / active.unwrap()).abs() < 1e-12);
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
    let file = workload("gpt2_varlen.pickle.gz");
    let text = stdout(&larder(&["replay", "--policy", "larder"], Some(&file)));
    for words in ["peak", "reserved", "14.77 GiB", "overhead", "1.296", "recorded: 170779 entries"]
    {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

/// Two segments are asked for, of 2 and 20 MiB, and in the last third both go back and one comes
/// again.
#[test]
fn replay_adds_up_what_the_calls_cost() {
    let script = scratch(
        "driver_time.ops",
        "alloc 1 1000 0\nalloc 2 3000000 0\nfree 1\nfree 2\nempty\nalloc 3 1000 0\n",
    );
    let stats = json(&["replay", "--json"], &script);
    let [malloc, larger, free, larger_free] = [72_000, 72_428, 51_000, 62_000];
    let last_third = free + larger_free + malloc;
    assert_eq!(stats["driver.last_third.ns"], last_third, "{stats}");
    assert_eq!(stats["driver.ns"], malloc + larger + last_third, "{stats}");
    assert_eq!(stats["driver.last_third.calls"], 3, "{stats}");
    assert_eq!(stats["driver.calls"], 5, "{stats}");
    assert_eq!(stats["driver.measured_on"], "NVIDIA H200, driver 580, CUDA 13.0, 2026-11-15");
    let text = stdout(&larder(&["replay"], Some(&script)));
    let line = "\ndriver time    0.3 ms in 5 calls; in the last third of the operations 0.2 ms in \
    3 calls  \
                (as measured on NVIDIA H200, driver 580, CUDA 13.0, 2026-11-15)\n";
    assert!(text.contains(line), "{text}");
}

/// A segment is one call, a page needs a range, the page, its place and access to it.
#[test]
fn compare_has_the_driver_time_beside_each_row() {
    let script = scratch("driver_times.ops", "alloc 1 300000000 0\nalloc 2 300000000 0\n");
    let confs = ["compare", "--conf", "", "--conf", "expandable_segments:True"];
    let rows = json(&[&confs[..], &["--json"]].concat(), &script);
    // 286.1 MiB are asked for in pieces of 2 MiB, or of 20 MiB each with a page.
    let (plain_ns, pages, page_ns) = (72_000 + 3_000 * 286 / 126, 29, 13_500 + 1_800 + 36_000);
    assert_eq!(rows[0]["driver_calls"], 2, "{rows}");
    assert_eq!(rows[0]["driver_ns"], 2 * plain_ns, "{rows}");
    assert_eq!(rows[0]["driver_last_third_calls"], 1, "{rows}");
    assert_eq!(rows[1]["driver_ns"], 11_500 + pages * page_ns, "{rows}");
    let text = stdout(&larder(&confs, Some(&script)));
    let heading = text.lines().find(|line| line.starts_with("settings")).expect("a table");
    assert!(heading.ends_with("driver time"), "{text}");
    let times: Vec<_> = text.lines().filter(|line| line.ends_with(" ms")).collect();
    assert_eq!(times.len(), 6, "two settings under three policies:\n{text}");
    assert!(times[0].ends_with("   0.2 ms") && times[1].ends_with("   1.5 ms"), "{text}");
    assert_eq!(text.matches("as measured on NVIDIA H200").count(), 1, "{text}");
}

#[test]
fn compare_without_settings_tries_the_usual_ones() {
    let rows = json(&["compare", "--json"], &workload("prefetch_streams.pickle.gz"));
    assert_eq!(rows.as_array().map(Vec::len), Some(5));
    let text = stdout(&larder(&["compare"], Some(&workload("prefetch_streams.pickle.gz"))));
    assert!(text.contains("least memory: expandable_segments:True"), "{text}");
}

/// What PyTorch's settings are there to save, tight does not waste: it has settings of its own.
#[test]
fn compare_under_tight_tries_its_own_settings() {
    let file = workload("prefetch_streams.pickle.gz");
    let text = stdout(&larder(&["compare", "--policy", "tight"], Some(&file)));
    let rows = ["(default)", "tight_soft:1.02", "tight_most:1", "page_size_mb:2", "roundup_power2"];
    assert!(rows.iter().all(|row| text.contains(&format!("\n{row}"))), "{text}");
    assert!(!text.contains("changes nothing"), "{text}");
    // A floor for this program: 1.12 times what it uses at the peak.
    assert!(text.contains("\ntight_floor_mb:4448"), "{text}");
    assert!(
        text.contains("\nwhere time matters more: tight_floor_mb:4448 holds 4.09 GiB"),
        "{text}"
    );
}

/// A program that never repeats itself would hold less without slack, and pay for it as long as it
/// runs.
#[test]
fn what_goes_on_costing_driver_time_is_not_advised() {
    let made = Command::new("python3").arg(workload("serving.py")).arg("100").output();
    let made = String::from_utf8(made.expect("Python").stdout).expect("text");
    let script = scratch("serving.ops", &made);
    let text =
        stdout(&larder(&["compare", "--policy", "tight", "--memory", "139GiB"], Some(&script)));
    assert!(text.contains("\nleast memory: tight_most:1\n"), "{text}");
    let set = "so set LARDER_CONF=policy:tight, which needs least of all that ran and does not go \
    on paying for it";
    assert!(text.contains(&format!("\n{set};")), "{text}");
    assert!(text.contains("\ntight_most:1 holds "), "{text}");
    let words = ["tune", "--policy", "tight", "--memory", "139GiB", "--seconds", "3", "--json"];
    let best = &json(&words, &script)["choices"][0];
    assert!(!best["conf"].as_str().unwrap().contains("tight_most:1"), "{best}");
}

#[test]
fn compare_says_which_settings_the_policy_does_not_listen_to() {
    let file = workload("prefetch_streams.pickle.gz");
    let compare = |policy: &str, conf: &str| {
        stdout(&larder(&["compare", "--policy", policy, "--conf", conf], Some(&file)))
    };
    let text = compare("tight", "expandable_segments:False");
    let sentence = "expandable_segments changes nothing: under tight they are always on";
    assert!(text.contains(sentence), "{text}");
    let floored = compare("tight", "tight_floor_mb:90000");
    let sentence =
        "tight_floor_mb is no less than the 80.00 GiB that there are: memory is never spared";
    assert!(floored.contains(sentence), "{floored}");
    let limited = compare("tight", "max_split_size_mb:64");
    assert!(limited.contains("max_split_size_mb changes nothing under tight"), "{limited}");
    let fit = stdout(&larder(
        &["fit", "--policy", "tight", "--conf", "max_split_size_mb:64"],
        Some(&file),
    ));
    assert!(fit.contains("max_split_size_mb changes nothing under tight"), "{fit}");
    let enough =
        "so change nothing: the settings that it was recorded with are enough under policy ";
    assert!(text.contains(&format!("\n{enough}tight; `larder fit")), "{text}");
    let text = compare("larder", "tight_soft:1.5,tight_most:2");
    let sentence =
        "tight_soft and tight_most change nothing under larder: that is for the policy tight";
    assert!(text.contains(sentence), "{text}");
    let same = format!("\nall that ran need the same, {enough}larder; `larder fit");
    assert!(text.contains(&same), "{text}");
}

#[test]
fn replay_says_which_settings_the_policy_does_not_listen_to() {
    let file = workload("prefetch_streams.pickle.gz");
    let replay = |policy: &str, conf: &str| {
        stdout(&larder(&["replay", "--policy", policy, "--conf", conf], Some(&file)))
    };
    let text = replay("tight", "expandable_segments:False");
    assert!(text.contains("\nexpandable_segments changes nothing: under tight they are"), "{text}");
    let text = replay("larder", "tight_most:1");
    assert!(text.contains("\ntight_most changes nothing under larder: that is for"), "{text}");
    let text = replay("torch-2.11", "tight_most:1");
    assert!(text.contains("\ntight_most is Larder's own, for LARDER_CONF: stock"), "{text}");
    let text = replay("tight", "tight_most:1");
    assert!(!text.contains("changes nothing") && !text.contains("Larder's own, for"), "{text}");
}

/// A person who names no policy sees what stock PyTorch does, and what Larder does in either way.
#[test]
fn compare_shows_all_policies_and_says_which_is_which() {
    let file = workload("gpt2_varlen.pickle.gz");
    let text = stdout(&larder(&["compare", "--conf", ""], Some(&file)));
    let parts: Vec<&str> = text.split("\npolicy ").collect();
    assert_eq!(parts.len(), 4, "{text}");
    assert!(parts[0].contains("a simulated GPU with 80.00 GiB"), "{text}");
    assert!(parts[1].starts_with("torch-2.11: what stock PyTorch does"), "{text}");
    assert!(parts[2].starts_with("larder: Larder's own"), "{text}");
    assert!(parts[3].starts_with("tight: what Larder does for least memory"), "{text}");
    // Peak active is what the overhead is made of. PyTorch's peak is the recorded GPU's.
    assert!(parts[1].contains("peak active") && parts[1].contains("(default) [as recorded]"));
    let named = stdout(&larder(&["compare", "--conf", "", "--policy", "torch-2.11"], Some(&file)));
    assert!(named.contains("policy torch-2.11 (stock PyTorch)"), "{named}");
    assert!(!named.contains("Larder's own"), "{named}");
    let text = stdout(&larder(&["fit"], Some(&workload("prefetch_streams.pickle.gz"))));
    assert!(text.contains("policy torch-2.11 (stock PyTorch)"), "who recorded it decides: {text}");
}

#[test]
fn settings_that_cannot_bite_are_said_to_lie_idle() {
    let script = scratch("idle.ops", "alloc 1 50000000 0\nfree 1\nalloc 2 90000000 0\n");
    let words = ["compare", "--conf", "garbage_collection_threshold:0.8", "--policy"];
    let larders = stdout(&larder(&[&words[..], &["larder"]].concat(), Some(&script)));
    assert!(larders.contains("had nothing to do: it sets in above 64.00 GiB"), "{larders}");
    let torchs = stdout(&larder(&[&words[..], &["torch-2.11"]].concat(), Some(&script)));
    assert!(torchs.contains("does nothing in PyTorch without a memory fraction"), "{torchs}");
    let words = [&words[..], &["larder", "--memory", "150MB", "--json"]].concat();
    let rows = json(&words, &script);
    assert_eq!(rows[0]["remark"], Value::Null, "it had to collect: {rows}");
    assert_eq!(rows[0]["policy"], "larder");
}

/// The smallest memory is bought with retries; how many, and what is without any, belongs to it.
#[test]
fn fit_says_what_its_answer_costs() {
    let file = workload("gpt2_varlen.pickle.gz");
    let found = json(&["fit", "--json", "--policy", "torch-2.11"], &file);
    let [fit, calm] = ["fit_bytes", "fit_without_retries_bytes"].map(|key| found[key].as_u64());
    let retries = found["retries"].as_u64().expect("a number");
    assert!(retries > 0 && calm > fit, "{found}");
    let on = |bytes: Option<u64>| {
        let memory = format!("{}B", bytes.expect("it fits"));
        let words = ["replay", "--json", "--policy", "torch-2.11", "--memory", &memory];
        let stats = json(&words, &file);
        (stats["num_alloc_retries"].as_u64().unwrap(), stats["ooms"].as_u64().unwrap())
    };
    assert_eq!(on(fit), (retries, 0));
    assert_eq!(on(calm), (0, 0));
    let text = stdout(&larder(&["fit"], Some(&file)));
    for words in ["try again", "never", "the CUDA context, other libraries and other processes"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn options_that_could_make_no_difference_are_refused() {
    let snapshot = workload("prefetch_streams.pickle.gz");
    let script = scratch("idle_options.ops", "alloc 1 1000 0\n");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let out = |name: &str| folder.join(name).to_str().expect("a plain path").to_owned();
    let (ops, pickle) = (out("idle_options_out.ops"), out("idle_options_out.pickle"));
    // An earlier run may have left them.
    let _ = (fs::remove_file(&ops), fs::remove_file(&pickle));
    let refused: [(&[&str], &Path); 11] = [
        (&["replay", "--device", "5"], &script),
        (&["fit", "--addresses", "lowest"], &script),
        (&["compare", "--addresses", "recorded"], &script),
        (&["snapshot", "--conf", "", "-o", &pickle], &snapshot),
        (&["snapshot", "--policy", "larder", "-o", &pickle], &snapshot),
        (&["snapshot", "--memory", "1GiB", "-o", &pickle], &snapshot),
        (&["snapshot", "--memory", "1GiB", "-o", &ops], &script),
        (&["snapshot", "--device", "0", "-o", &pickle], &snapshot),
        (&["snapshot", "--device", "0", "-o", &ops], &script),
        (&["snapshot", "-o", "a-name-without-a-format"], &snapshot),
        (&["replay", "--placements", "-"], &script),
    ];
    for (words, file) in refused {
        refusal_with(2, words, Some(file));
    }
    let json = larder(&["snapshot", "--json", "-o", &pickle], Some(&snapshot));
    assert_eq!(json.status.code(), Some(2));
    assert!(!Path::new(&ops).exists() && !Path::new(&pickle).exists());
    stdout(&larder(&["snapshot", "--device", "0", "-o", &ops], Some(&snapshot)));
    stdout(&larder(&["snapshot", "--memory", "1G", "--conf", "", "-o", &pickle], Some(&script)));
}

#[test]
fn a_minus_is_standard_input_and_output() {
    let shell = |command: &str| {
        let program = env!("CARGO_BIN_EXE_larder");
        let line = command.replace("larder", program);
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        stdout(&output)
    };
    let text = shell("printf 'alloc 1 1000 0\\nfree 1\\n' | larder replay - --json");
    let stats: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(stats["operations"], 2);
    let there = "printf 'alloc 1 1000 0\\nfree 1\\n' | larder snapshot - -o - --to pickle";
    let back = shell(&format!("{there} | larder snapshot - -o - --to ops"));
    assert_eq!(back, "alloc 0 1000 0\nfree 0\n");
    let script = scratch("minus.ops", "alloc 1 1000 0\n");
    let text = refusal_with(2, &["snapshot", "-o", "-", "--to", "tape"], Some(&script));
    assert!(text.contains("a tape is written to a file"), "{text}");
}

#[test]
fn a_script_without_an_operation_is_said_to_be_one() {
    let script = scratch("nothing.ops", "# nothing to do\n\n");
    for command in ["replay", "compare", "fit", "bench"] {
        let text = refusal(&[command], Some(&script));
        assert!(text.contains("nothing.ops: there is no operation in it"), "{text}");
    }
    refusal(&["snapshot", "-o", "nothing.pickle"], Some(&script));
}

/// A program that reads a pipe gets the object that it was promised, a person a sentence.
#[test]
fn bench_speaks_to_a_person_at_a_terminal() {
    let script = scratch("bench_person.ops", "alloc 0 4096 0\nfree 0\n");
    let terminal = |options: &str| {
        let program = env!("CARGO_BIN_EXE_larder");
        let line = format!("{program} bench {} --repeat 3 {options}", script.display());
        let mut command = Command::new("script");
        let output = command.args(["-qec", &line, "/dev/null"]).output();
        output.ok().filter(|output| output.status.success()).map(|output| stdout(&output))
    };
    // Not every machine has the program that pretends to be a terminal.
    let Some(text) = terminal("") else { return };
    assert!(text.contains("ns for each of 6 operations"), "{text}");
    assert!(!text.contains('{'), "{text}");
    let text = terminal("--json").expect("it ran before");
    assert!(text.contains("\"ns_per_op\""), "{text}");
}

#[test]
fn bench_prints_one_line() {
    let script = scratch("bench.ops", "alloc 0 4096 0\nalloc 1 512 3\nfree 0\nempty\n");
    let line = json(&["bench", "--repeat", "7", "--threads", "2"], &script);
    // Three lines, and the free of what was left.
    assert_eq!(line["ops"], 4 * 7 * 2);
    assert_eq!(line["threads"], 2);
    assert!(line["ns_per_op"].as_f64().is_some_and(|time| time > 0.0));
    let cold = json(&["bench", "--repeat", "7", "--between", "64"], &script);
    assert_eq!(cold["ops"], 4 * 7);
    assert!(cold["ns_per_op"].as_f64().is_some_and(|time| time > 0.0));
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
    let text = refusal(&["replay"], Some(&cut));
    assert!(text.contains("cut.pickle.gz"), "{text}");
    assert!(text.contains("bytes are counted after unpacking"), "{text}");
    let misnamed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misnamed.ops");
    fs::write(&misnamed, b"\x80\x04]\x94.").expect("the scratch folder can be written");
    let text = refusal(&["replay"], Some(&misnamed));
    assert!(text.contains("no op script, which is text"), "{text}");
    let words = refusal(&["replay"], Some(&scratch("words.pickle", "this is no pickle")));
    assert!(words.contains("words.pickle: this is neither a pickle nor gzipped"), "{words}");
    for name in ["empty.pickle", "empty.json"] {
        let text = refusal(&["fit"], Some(&scratch(name, "")));
        assert!(text.contains("the file is empty"), "{text}");
    }
    refusal(&["replay"], Some(Path::new("no/such/file.ops")));
    // A folder is many recordings, which this command does not take.
    refusal_with(2, &["replay"], Some(Path::new(env!("CARGO_TARGET_TMPDIR"))));
    let device = refusal(&["replay", "--device", "7"], Some(&workload("gpt2_varlen.pickle.gz")));
    assert!(device.contains('7'), "{device}");
    let script = scratch("looked_at.ops", "alloc 1 1000 0\n");
    for (name, words, sentence) in [
        ("looked_at.perfetto.json", &["replay"][..], "a trace for Perfetto"),
        ("looked_at.pickle", &["replay", "--device", "3"], "`device_traces` has device 0 alone"),
    ] {
        let file = recorded(name, &script, &[]);
        let text = refusal(words, Some(&file));
        assert!(text.contains(sentence), "{text}");
    }
}

#[test]
fn bad_settings_are_named() {
    let file = workload("prefetch_streams.pickle.gz");
    let refusal = |words: &[&str]| refusal_with(2, words, Some(&file));
    let text = refusal(&["replay", "--conf", "expandable_segment:True"]);
    assert!(text.contains("expandable_segment'"), "{text}");
    let text = refusal(&["replay", "--conf", "policy:tight"]);
    assert!(text.contains("said by --policy"), "{text}");
    let text = refusal(&["replay", "--conf", "backend:cudaMallocAsync"]);
    assert!(text.contains("cudaMallocAsync"), "{text}");
    let text = refusal(&["compare", "--conf", "", "--conf", "max_split_size_mb:3"]);
    assert!(text.contains("max_split_size_mb"), "{text}");
}

#[test]
fn a_device_that_is_too_small_does_not_fit() {
    let file = workload("prefetch_streams.pickle.gz");
    let text = refusal(&["fit", "--memory", "1GiB"], Some(&file));
    assert!(text.contains("does not run in 1.00 GiB"), "{text}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let file = workload("prefetch_streams.pickle.gz");
    let wrong: [&[&str]; 7] = [
        &["replay", "--conf", "nonsense:1"],
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
    let output = larder(&["replay", "--memory", "-1"], Some(&file));
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains("a size is a number with a unit"), "{text}");
}

/// The least memory may be bought with retries.
#[test]
fn a_comparison_names_what_needs_least_without_retries_too() {
    let script = scratch(
        "calm.ops",
        "alloc 1 250000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 300000000 0\nfree 3\n\
         alloc 4 400000000 0\n",
    );
    let confs = ["", "max_split_size_mb:128", "expandable_segments:True"];
    let confs = confs.iter().chain(&confs).flat_map(|conf| ["--conf", conf]);
    let words = ["compare", "--policy", "torch-2.11", "--memory", "500MiB"];
    let words: Vec<&str> = words.into_iter().chain(confs).collect();
    let text = stdout(&larder(&words, Some(&script)));
    assert_eq!(text.matches("\nmax_split_size_mb:128 ").count(), 1, "each once: {text}");
    let verdict = "least memory: max_split_size_mb:128; least memory without retries: \
                   expandable_segments:True";
    assert!(text.contains(verdict), "{text}");
}

/// No memory is named, so it searches as far as it has to.
#[test]
fn fit_searches_beyond_the_usual_card() {
    let script = scratch("huge.ops", "alloc 1 100000000000 0\nfree 1\nalloc 2 90000000000 0\n");
    let bytes = json(&["fit", "--json"], &script)["fit_bytes"].as_u64().expect("it fits");
    assert!((100_000_000_000..100_500_000_000).contains(&bytes), "{bytes}");
}
