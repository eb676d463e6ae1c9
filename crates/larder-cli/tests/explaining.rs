//! A person with an out-of-memory error asks why, what to set, and to look.

mod program;

use std::path::{Path, PathBuf};
use std::process::Command;

use program::{as_stock, json, larder, recorded, scratch, stdout};

/// 160 MiB free in a segment that a live block keeps, and a request of 220 on a GPU of 400.
const PINNED: &str = "alloc 1 200MiB 0\nfree 1\nalloc 2 40MiB 0\nalloc 3 220MiB 0\n";
const SMALL: [&str; 4] = ["--memory", "400MiB", "--policy", "torch-2.11"];

fn failed(name: &str) -> PathBuf {
    let script = scratch(&format!("{name}.ops"), PINNED);
    recorded(&format!("{name}.pickle"), &script, &SMALL)
}

#[test]
fn an_explanation_names_the_cause_and_a_line_that_a_replay_proves() {
    let file = failed("explained");
    let text = stdout(&larder(&["explain"], Some(&file)));
    assert!(text.contains("policy torch-2.11 (stock PyTorch)"), "{text}");
    assert!(text.contains("asked for 220.00 MiB on stream 0"), "{text}");
    assert!(
        text.contains("Why: fragmentation. 160.00 MiB are free on this stream in 1 piece"),
        "{text}"
    );
    assert!(text.ends_with("\n\n  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"), "{text}");
    let command =
        text.split('`').find(|part| part.starts_with("larder replay ")).expect("a command");
    let line = command.replacen("larder", env!("CARGO_BIN_EXE_larder"), 1) + " --json";
    let proof = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    let proof: serde_json::Value = serde_json::from_slice(&proof.stdout).expect("JSON");
    assert_eq!(proof["ooms"], 0, "{command}");
    let object = json(&["explain", "--json"], &file);
    assert_eq!(object["cause"]["name"], "fragmentation");
    assert_eq!(object["best"]["set"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    assert_eq!(object["kept"][0]["free_bytes"], 160 << 20);
}

#[test]
fn where_nothing_failed_it_says_so() {
    let script = scratch("calm.ops", "alloc 1 5MiB 0\n");
    let asked = |words: &[&str]| {
        let output = larder(&[&["explain"], words].concat(), Some(&script));
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, text) = asked(&[]);
    assert!(text.contains("nothing failed: 5.00 MiB were in use at the peak"), "{text}");
    assert!(text.contains("none had to have the cache given back"), "{text}");
    assert_eq!(code, Some(4), "nothing failed, and nothing nearly did");
    let (_, text) = asked(&["--json"]);
    let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&object["outcome"], &object["failure"]), (&"calm".into(), &().into()));
    let output = larder(&["explain", "--failure", "0"], Some(&script));
    assert_eq!(output.status.code(), Some(2));
}

/// The cache is given back for the second request, which expandable segments would not need.
#[test]
fn what_nearly_failed_is_told_with_what_would_be_better() {
    let script = scratch("near.ops", "alloc 1 30000000 0\nfree 1\nalloc 2 40000000 0\n");
    let words = ["explain", "--policy", "torch-2.11", "--memory", "50MiB"];
    let output = larder(&words, Some(&script));
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(3), "nothing failed, and something nearly did");
    let near = "Near failures: 1 request was met only when the cache had been given back";
    assert!(text.contains(near), "{text}");
    assert!(text.contains("operation 3 asked for 38.15 MiB: 30.00 MiB given back"), "{text}");
    let best = "Best: with expandable_segments:True it holds 40.00 MiB, as much, with 0 retries";
    assert!(text.contains(best), "{text}");
    let output = larder(&[&words[..], &["--json"]].concat(), Some(&script));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["outcome"], "retried");
    assert_eq!(object["near_failures"][0]["operation"], 3);
    assert_eq!(object["best"]["set"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
}

#[test]
fn tuning_gives_three_choices_and_the_line_to_paste() {
    let file = failed("tuned");
    let object = json(&["tune", "--json", "--seconds", "5"], &file);
    let choices = object["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 3, "{object}");
    assert_eq!((&choices[0]["ooms"], &choices[0]["policy"]), (&0.into(), &"torch-2.11".into()));
    assert_eq!(object["as_it_is"]["ooms"], 1);
    let text = stdout(&larder(&["tune", "--seconds", "5"], Some(&file)));
    assert!(text.contains("best with stock PyTorch"), "{text}");
    assert!(text.contains("best with `python -m larder`"), "{text}");
    assert!(text.contains("  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), "{text}");
}

#[test]
fn a_terminal_shows_the_map_at_the_failure_the_peak_and_the_end() {
    let file = failed("shown");
    let text = stdout(&larder(&["show"], Some(&file)));
    assert!(text.contains("At operation 4 of 4 (the first failure): 40.00 MiB live"), "{text}");
    let map = format!("stream 0, large\n  {}{}\n", "█".repeat(20), "·".repeat(80 - 8));
    assert!(text.contains(&map[..60]), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where there is no terminal");
    let text = stdout(&larder(&["show", "--at", "peak"], Some(&file)));
    assert!(text.contains("At operation 1 of 4 (most in use): 200.00 MiB live"), "{text}");
    let object = json(&["show", "--at", "3", "--json"], &file);
    assert_eq!((&object["operation"], &object["allocated_bytes"]), (&3.into(), &(40 << 20).into()));
    let output = larder(&["show", "--at", "noon"], Some(&file));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_snapshot_with_no_history_is_shown_as_it_was_taken() {
    let segments = r#"[{"device": 0, "address": 4194304, "total_size": 20971520, "stream": 0,
        "segment_type": "large", "segment_pool_id": [0, 0], "is_expandable": false, "frames": [],
        "blocks": [{"address": 4194304, "size": 10485760, "requested_size": 10485760,
                    "state": "active_allocated", "frames": []},
                   {"address": 14680064, "size": 10485760, "requested_size": 0, "state": "inactive",
                    "frames": []}]}]"#;
    let file =
        scratch("bare.json", &format!(r#"{{"segments": {segments}, "device_traces": [[]]}}"#));
    let text = stdout(&larder(&["show"], Some(&file)));
    assert!(
        text.contains("When it was taken: 10.00 MiB live, 10.00 MiB in use, 20.00 MiB held"),
        "{text}"
    );
    assert!(text.contains("stream 0, large\n  █████·····\n"), "{text}");
}

#[test]
fn top_shows_what_is_on_a_tape_so_far() {
    let script =
        scratch("running.ops", "alloc 1 30MiB 0\nalloc 2 5MiB 3\nfree 1\nalloc 3 900GiB 0\n");
    let tape = recorded("running.tape", &script, &[]);
    let text = stdout(&larder(&["top", "--once"], Some(&tape)));
    let held = json(&["replay", "--json"], &script)["reserved_bytes.all.current"].as_u64();
    assert_eq!(held, Some(50 << 20), "what is cached stays where it could not help");
    assert!(text.contains("held           50.00 MiB"), "{text}");
    assert!(text.contains("requested       5.00 MiB"), "{text}");
    assert!(
        text.contains("1 live allocations in 2 segments; 2 allocations, 1 frees, out of memory 1"),
        "{text}"
    );
    let output = larder(&["top", "--once"], Some(Path::new("/nowhere.tape")));
    assert_eq!(output.status.code(), Some(1));
}

/// A recording in which every name would colour a terminal, and a request fails.
const HOSTILE: &str = r#"{"segments": [], "allocator_settings": {
  "PYTORCH_CUDA_ALLOC_CONF": "\u001b[31mkey:1"},
 "device_traces": [[
  {"action": "segment_alloc", "addr": 4194304, "size": 209715200, "stream": 0, "time_us": 1,
   "frames": []},
  {"action": "alloc", "addr": 4194304, "size": 209715200, "stream": 0, "time_us": 1,
   "user_metadata": "\u001b]0;title\u0007", "frames": [HOSTILE]},
  {"action": "annotate", "addr": 4194304, "size": 209715200, "stream": 0, "time_us": 1,
   "user_metadata": "\u001b[2J", "frames": []},
  {"action": "oom", "device_free": 104857600, "size": 230686720, "stream": 0, "time_us": 9,
   "frames": [HOSTILE]}
]]}"#;

#[test]
fn no_command_reports_an_escape_sequence_out_of_a_file() {
    let frame =
        r#"{"name": "\u001b[31mforward\u009b2J", "filename": "\u001b[1mtrain.py", "line": 7}"#;
    let file = scratch("hos\u{1b}[32mtile.json", &HOSTILE.replace("HOSTILE", frame));
    let is_calm = |text: &str| {
        let told = text.chars().filter(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(told.collect::<String>(), "", "{text:?}");
    };
    for words in [
        &["replay"][..],
        &["compare", "--policy", "torch-2.11"],
        &["explain"],
        &["explain", "--json"],
        &["show"],
        &["show", "--json"],
        &["fit"],
        &["tune", "--seconds", "1"],
    ] {
        let output = larder(words, Some(&file));
        is_calm(&String::from_utf8_lossy(&output.stderr));
        is_calm(&String::from_utf8_lossy(&output.stdout));
    }
    let text = stdout(&larder(&["explain"], Some(&file)));
    assert!(text.starts_with("hos\\u001b[32mtile.json: "), "{text}");
    assert!(text.contains("at \\u001b[1mtrain.py:7 \\u001b[31mforward\\u009b2J\n"), "{text}");
    let missing = larder(&["replay"], Some(Path::new("/no\u{1b}[31mwhere.ops")));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no\\u001b[31mwhere.ops"));
    is_calm(&String::from_utf8_lossy(&missing.stderr));
}

/// A fraction that a call set is not among the settings; what PyTorch's error says of it narrows
/// what the recording leaves open, and an error of another run is refused.
#[test]
fn an_error_in_a_log_narrows_the_cap() {
    let story = format!("fraction 0.4\n{PINNED}");
    let script = scratch("told.ops", &story);
    let file = recorded("told.json", &script, &["--memory", "1GiB", "--policy", "torch-2.11"]);
    let stock = as_stock("told-stock.json", &file);
    let allowed = |words: &[&str], file: &PathBuf| {
        let found = json(&[&["explain", "--json"], words].concat(), file);
        let allowed = found["allowed_bytes"].as_u64().expect("a size");
        let bytes = |key: &str| found["caps"][key].as_u64().unwrap_or(allowed);
        (bytes("least_bytes"), bytes("most_bytes"))
    };
    let cap = (0.4 * f64::from(1 << 30)) as u64;
    assert_eq!(allowed(&[], &file), (cap, cap), "Larder's own snapshot says it");
    let (least, most) = allowed(&[], &stock);
    assert!(least < cap && cap < most && most - least > 16 << 20, "{least} to {most}");
    let message = |allowed: &str| {
        format!(
            "Tried to allocate 220.00 MiB. GPU 0 has a total capacity of 1.00 GiB of which 824.00 \
             MiB is free. {allowed} MiB allowed; Of the allocated memory 40.00 MiB is allocated by \
             PyTorch, and 160.00 MiB is reserved by PyTorch but unallocated."
        )
    };
    let log = scratch("told.log", &message("409.60"));
    let log = log.to_str().expect("a plain path");
    let (least, most) = allowed(&["--error", log], &stock);
    assert!(least <= cap && cap <= most && most - least < 16 << 10, "{least} to {most}");
    let other = scratch("told-other.log", &message("500.00"));
    let words = ["explain", "--error", other.to_str().expect("a plain path")];
    let refused = larder(&words, Some(&stock));
    let sentence = String::from_utf8(refused.stderr).expect("text");
    assert!(sentence.contains("it is of another run"), "{sentence}");
    let empty = scratch("told-empty.log", "all is well\n");
    let words = ["explain", "--error", empty.to_str().expect("a plain path")];
    assert_eq!(larder(&words, Some(&stock)).status.code(), Some(2));
    let words = ["explain", "--error", log, "--cap", "300MiB"];
    assert_eq!(larder(&words, Some(&stock)).status.code(), Some(2));
}
