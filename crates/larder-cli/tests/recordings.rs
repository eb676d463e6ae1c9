//! Recordings of programs that were short of memory, as a user asks what they need.

mod program;

use std::fs;
use std::path::Path;

use program::{as_stock, json, larder, recorded, scratch, stdout};
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
    let conf = "per_process_memory_fraction:0.5";
    let words = ["--memory", "8GiB", "--conf", conf];
    let recording = recorded("fraction.json", &script, &words);
    let text = stdout(&larder(&["replay"], Some(&recording)));
    assert!(text.contains("of which the program was allowed 4.00 GiB;"), "{text}");
    assert!(text.contains("by per_process_memory_fraction:0.5\n"), "{text}");
    let recording = as_stock("fraction_stock.json", &recording);
    let rows = json(&["compare", "--json", "--conf", ""], &recording);
    assert_eq!(rows.as_array().map(Vec::len), Some(3));
    let all = "per_process_memory_fraction:1";
    // Half of the card is not enough, and all of it is.
    let expected = [("", false, 1), (all, false, 0), (conf, true, 1)];
    for (row, (conf, is_recorded, ooms)) in rows.as_array().expect("rows").iter().zip(expected) {
        assert_eq!((&row["conf"], &row["recorded"]), (&conf.into(), &is_recorded.into()));
        assert_eq!(row["ooms"], ooms, "{rows}");
    }
    let text = stdout(&larder(&["replay"], Some(&recording)));
    assert!(text.contains("the program was allowed at least 4.00 GiB and less than"), "{text}");
    assert!(text.contains(", with per_process_memory_fraction:0.5"), "{text}");
}

/// Which rows are held to the recorded fraction is said in words, whatever the sizes.
#[test]
fn a_comparison_says_what_its_rows_are_held_to() {
    let script = scratch("held.ops", "alloc 1 3000000000 0\nalloc 2 3000000000 0\n");
    let conf = "expandable_segments:True,per_process_memory_fraction:0.5";
    let recording = recorded("held.pickle", &script, &["--memory", "8GiB", "--conf", conf]);
    let compare = |more: &[&str]| {
        let words = [&["compare", "--policy", "torch-2.11", "--conf", ""], more].concat();
        stdout(&larder(&words, Some(&recording)))
    };
    let held = "every row is held to the recorded memory fraction of 0.5, about ";
    let but = ", but for those that name per_process_memory_fraction themselves";
    for (more, allowed) in [(&[][..], "4.00 GiB"), (&["--scale", "2"], "8.00 GiB")] {
        let text = compare(more);
        assert!(text.contains(&format!("{held}{allowed}{but}")), "{text}");
        let without = "\nper_process_memory_fraction:1,expandable_segments:True ";
        assert_eq!(text.matches(without).count(), 1, "all else as recorded: {text}");
    }
    let text = compare(&["--memory", "8GiB"]);
    assert!(text.contains("fraction of 0.5 holds for no row that does not name it"), "{text}");
    let named = "per_process_memory_fraction:1,max_split_size_mb:64";
    let text = compare(&["--conf", named]);
    assert_eq!(text.matches("\nper_process_memory_fraction:1").count(), 1, "{text}");
}

/// Who gives no settings asks about the program as it was.
#[test]
fn a_replay_and_a_fit_have_the_settings_of_the_recording() {
    let script = scratch("own_settings.ops", "alloc 1 3000000000 0\nalloc 2 3000000000 0\n");
    let conf = "expandable_segments:True,per_process_memory_fraction:0.5";
    let recording = recorded("own_settings.pickle", &script, &["--memory", "8GiB", "--conf", conf]);
    let replay = |words: &[&str]| stdout(&larder(&[&["replay"], words].concat(), Some(&recording)));
    let text = replay(&[]);
    assert!(text.contains(&format!("settings as recorded: {conf}, on a")), "{text}");
    assert!(text.contains(" 0 malloc, 0 free, ") && text.contains("out of memory  1 "), "{text}");
    let text = replay(&["--conf", ""]);
    assert!(text.contains("default settings, on a") && text.contains("1 malloc"), "{text}");
    assert!(text.contains("held to the recorded memory fraction of 0.5, about 4.00 GiB"), "{text}");
    let text = replay(&["--conf", "per_process_memory_fraction:1"]);
    assert!(text.contains("out of memory  0 "), "{text}");
    let words = "allowed 8.00 GiB of that by per_process_memory_fraction:1, whatever was recorded";
    assert!(text.contains(words), "{text}");
    let text = stdout(&larder(&["fit"], Some(&recording)));
    let words = "settings as recorded, without the memory fraction: expandable_segments:True\n";
    assert!(text.contains("runs in 5.6") && text.contains(words), "{text}");
}

/// A setting of a later PyTorch, say. The program can be asked about all the same.
#[test]
fn recorded_settings_that_cannot_be_read_are_said_to_be_left_out() {
    let script = scratch("later_torch.ops", "alloc 1 3000000 0\n");
    let recording = recorded("later_torch.json", &script, &["--conf", "max_split_size_mb:64"]);
    let text = fs::read_to_string(&recording).expect("it was written");
    assert!(text.contains("max_split_size_mb:64"), "{text}");
    let later = text.replace("max_split_size_mb:64", "of_a_later_torch:64");
    fs::write(&recording, later).expect("the folder can be written");
    for command in ["replay", "fit"] {
        let text = stdout(&larder(&[command], Some(&recording)));
        let words =
            "the recorded settings are not used, because there is no setting 'of_a_later_torch'";
        assert!(text.contains(words) && text.contains("default settings"), "{text}");
    }
}

/// The fraction was set by a call, which no recording tells. All that is known lies between what
/// there was room for and what was refused, and what goes with it is not held against other
/// settings.
#[test]
fn a_fraction_that_the_recording_does_not_tell_is_said_to_be_a_guess() {
    let script = scratch(
        "told_fraction.ops",
        "fraction 0.5\nalloc 1 250000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 300000000 0\n",
    );
    let words = ["--policy", "torch-2.11", "--memory", "1GiB"];
    let recording = recorded("told_fraction.json", &script, &words);
    let sure = stdout(&larder(&["compare", "--policy", "torch-2.11"], Some(&recording)));
    assert!(sure.contains("of which the program was allowed 512.00 MiB;"), "{sure}");
    let recording = as_stock("told_fraction_stock.json", &recording);
    let text = stdout(&larder(&["compare", "--policy", "torch-2.11"], Some(&recording)));
    let known =
        "allowed at least 240.00 MiB and less than 528.00 MiB, more the recording does not tell";
    assert!(text.contains(known), "{text}");
    assert!(
        text.contains("--card with the card's size, or --cap with what the program was allowed"),
        "{text}"
    );
    assert!(!text.contains("none of them ran"), "{text}");
    let rows = json(&["compare", "--policy", "torch-2.11", "--json"], &recording);
    let ooms: Vec<_> = rows.as_array().expect("rows").iter().map(|row| &row["ooms"]).collect();
    let unheld = "and the last one without the fraction";
    assert_eq!(ooms, [1, 0, 0, 1, 1, 0], "as recorded, and as the script itself has it, {unheld}");
    let told = json(&["compare", "--policy", "torch-2.11", "--json", "--memory", "1GiB"], &script);
    for (told, guessed) in told.as_array().expect("rows").iter().zip(ooms) {
        assert_eq!(&told["ooms"], guessed, "{told}");
    }
}

/// Nothing failed, but the allocator had to try again. What it had at most is not held against
/// others.
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

/// A recording that held more than the usual card has is replayed on one that has room for it, in
/// every command, and with no retry that never was.
#[test]
fn a_recording_gets_no_less_than_it_held() {
    let script =
        scratch("large.ops", "alloc 1 70GiB 0\nfree 1\nalloc 2 63GiB 0\nalloc 3 69GiB 0\n");
    let words = ["--memory", "139GiB", "--policy", "torch-2.11"];
    let recording = recorded("large.pickle", &script, &words);
    let told = json(&["replay", "--json"], &recording);
    assert_eq!((&told["ooms"], &told["num_alloc_retries"]), (&0.into(), &0.into()), "{told}");
    let rows = json(&["compare", "--json", "--conf", ""], &recording);
    assert_eq!((&rows[0]["ooms"], &rows[0]["retries"]), (&0.into(), &0.into()), "{rows}");
    assert_eq!(rows[0]["memory_bytes"], 150_109_880_320_u64);
    let text = stdout(&larder(&["show"], Some(&recording)));
    assert!(
        text.contains("with 139.80 GiB (the smallest card that has room for the 139"),
        "{text}"
    );
}

/// All of a memory that is named is the program's, whatever was recorded, and in every command.
#[test]
fn a_memory_that_is_named_means_the_same_to_every_command() {
    let script =
        scratch("same_memory.ops", "alloc 1 3GiB 0\nalloc 2 3GiB 0\nfree 1\nalloc 3 1GiB 0\n");
    let conf = "per_process_memory_fraction:0.5";
    let words = ["--memory", "8GiB", "--policy", "torch-2.11", "--conf", conf];
    let recording = recorded("same_memory.pickle", &script, &words);
    for (room, ooms) in [(&["--memory", "7GiB"][..], 0), (&[], 1), (&["--card", "8GiB"], 1)] {
        let asked = |words: &[&str]| json(&[words, room].concat(), &recording);
        assert_eq!(asked(&["replay", "--json"])["ooms"], ooms, "replay {room:?}");
        let rows = asked(&["compare", "--json", "--conf", ""]);
        let recorded = rows.as_array().expect("rows").iter().find(|row| row["recorded"] == true);
        assert_eq!(recorded.expect("a row")["ooms"], ooms, "compare {room:?}");
        let tuned = asked(&["tune", "--json", "--seconds", "1"]);
        assert_eq!(tuned["as_it_is"]["ooms"], ooms, "tune {room:?}");
        let explained = larder(&[&["explain", "--json"], room].concat(), Some(&recording));
        assert_eq!(explained.status.code() == Some(0), ooms > 0, "explain {room:?}");
    }
    assert!(json(&["fit", "--json"], &recording)["fit_bytes"].as_u64() <= Some(7 << 30));
}
