//! Recordings of programs that were short of memory, as a user asks what they need.

mod program;

use std::fs;
use std::path::Path;

use program::{json, larder, recorded, scratch, stdout};
use serde_json::Value;

/// A script is recorded on a device that is too small, and its snapshot asked what it needs.
#[test]
fn a_program_that_ran_out_of_memory_is_told_what_it_needs() {
    let script = scratch("oom.ops", "alloc 1 5000000000 0\nalloc 2 5000000000 0\n");
    let recording = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oom.pickle");
    let out = recording.to_str().expect("a plain path");
    stdout(&larder(&["snapshot", "--memory", "8GiB", "-o", out], Some(&script)));
    for policy in ["larder", "torch-2.11"] {
        let words = ["fit", "--json", "--policy", policy];
        let (needed, found) = (json(&words, &script), json(&words, &recording));
        assert_eq!(needed["fit_bytes"], found["fit_bytes"], "{policy}");
        let bytes = found["fit_bytes"].as_u64().expect("it fits");
        assert!((10_000_000_000..10_030_000_000).contains(&bytes), "{bytes}");
        // At the size of the recorded card, which the recording tells.
        for words in [&["--memory", "8GiB"][..], &[]] {
            let words = [&["compare", "--json", "--conf", "", "--policy", policy], words].concat();
            let rows = json(&words, &recording);
            assert_eq!(
                (&rows[0]["ooms"], &rows[0]["memory_bytes"]),
                (&1.into(), &(8_u64 << 30).into())
            );
        }
    }
    let text = stdout(&larder(&["replay"], Some(&recording)));
    let told = "8.00 GiB (the recorded one's: 3.34 GiB free and 4.66 GiB reserved when it ran out; \
                without what other processes and the CUDA context took)";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("the program itself ran out of memory 1 time"), "{text}");
    assert!(text.contains("The first allocation that failed, operation 2"), "{text}");
}

/// The settings of the recorded program are compared too, and its memory fraction holds for all.
#[test]
fn a_recording_is_compared_as_it_was_recorded() {
    let script = scratch("fraction.ops", "alloc 1 3000000000 0\nalloc 2 3000000000 0\n");
    let recording = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fraction.pickle");
    let out = recording.to_str().expect("a plain path");
    let conf = "per_process_memory_fraction:0.5";
    let words = ["snapshot", "--memory", "8GiB", "--conf", conf, "-o", out];
    stdout(&larder(&words, Some(&script)));
    let rows = json(&["compare", "--json", "--conf", ""], &recording);
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    for (row, conf, is_recorded) in [(&rows[0], "", false), (&rows[1], conf, true)] {
        assert_eq!((&row["conf"], &row["recorded"]), (&conf.into(), &is_recorded.into()));
        assert_eq!(row["ooms"], 1, "half of the card is not enough: {rows}");
    }
    let text = stdout(&larder(&["replay"], Some(&recording)));
    assert!(text.contains("of which the program was allowed 4.00 GiB"), "{text}");
    assert!(text.contains(", with per_process_memory_fraction:0.5"), "{text}");
}

/// The fraction was set by a call, which no recording tells. All that is known lies between what there
/// was room for and what was refused, and what goes with it is not held against other settings.
#[test]
fn a_fraction_that_the_recording_does_not_tell_is_said_to_be_a_guess() {
    let script = scratch(
        "told_fraction.ops",
        "fraction 0.5\nalloc 1 250000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 300000000 0\n",
    );
    let words = ["--policy", "torch-2.11", "--memory", "1GiB"];
    let recording = recorded("told_fraction.pickle", &script, &words);
    let text = stdout(&larder(&["compare", "--policy", "torch-2.11"], Some(&recording)));
    let known =
        "allowed at least 240.00 MiB and less than 528.00 MiB, more the recording does not tell";
    assert!(text.contains(known), "{text}");
    assert!(
        text.contains("give --memory: the card's size, or what the program was allowed"),
        "{text}"
    );
    assert!(!text.contains("none of them ran"), "{text}");
    let rows = json(&["compare", "--policy", "torch-2.11", "--json"], &recording);
    let ooms: Vec<_> = rows.as_array().expect("rows").iter().map(|row| &row["ooms"]).collect();
    assert_eq!(ooms, [1, 0, 0, 1, 1], "as recorded, and as the script itself has it");
    let told = json(&["compare", "--policy", "torch-2.11", "--json", "--memory", "1GiB"], &script);
    for (told, guessed) in told.as_array().expect("rows").iter().zip(ooms) {
        assert_eq!(&told["ooms"], guessed, "{told}");
    }
}

/// Nothing failed, but the allocator had to try again. What it had at most is not held against others.
#[test]
fn memory_that_only_a_retry_tells_is_as_much_as_it_can_have_been() {
    let script = scratch(
        "told_retry.ops",
        "alloc 1 300000000 0\nfree 1\nalloc 2 320000000 0\nalloc 3 400000000 0\n",
    );
    let words = ["--policy", "torch-2.11", "--memory", "700MiB"];
    let recording = recorded("told_retry.pickle", &script, &words);
    let text = stdout(&larder(&["replay", "--policy", "torch-2.11"], Some(&recording)));
    assert!(text.contains("at least 688.00 MiB and less than"), "{text}");
    assert!(text.contains("retried: 1)") && text.contains("out of memory  0"), "{text}");
    assert!(!text.contains("trust none"), "{text}");
    let doubt = "gave memory back by itself 1 time (which may have been an empty_cache call: ";
    assert!(text.contains(doubt), "{text}");
}

/// A recording that says of itself what cannot be: a request fails beside idle memory that fits it.
#[test]
fn a_replay_that_goes_another_way_than_the_recorded_program_says_so() {
    let script = scratch("unlike.ops", "alloc 1 15000000 0\nalloc 2 15000000 0\nfree 1\n");
    let recording = recorded("unlike.json", &script, &["--policy", "torch-2.11"]);
    let text = fs::read_to_string(&recording).expect("it was written");
    let mut snapshot: Value = serde_json::from_str(&text).expect("JSON");
    let trace = snapshot["device_traces"][0].as_array_mut().expect("a trace");
    let failure = serde_json::json!({
        "action": "oom", "device_free": 0, "size": 14_000_000, "stream": 0, "time_us": 9,
    });
    trace.push(failure);
    fs::write(&recording, snapshot.to_string()).expect("the folder can be written");
    for command in ["replay", "compare"] {
        let text = stdout(&larder(&[command], Some(&recording)));
        let words = "the recorded failure does not happen in a replay";
        assert_eq!(text.matches(words).count(), 1, "{text}");
    }
}
