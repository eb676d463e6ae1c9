//! Recordings that PyTorch 2.11 made on an H200 under memory pressure, with
//! `torch/card/pressure.py`: a replay with the recorded settings tries again, fails and reserves as
//! the card did, to the byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_core::{Config, Policy};
use larder_sim::script::Op;
use larder_study::compare::usual;
use larder_study::explain::{Verdict, explain};
use larder_study::file::Contents;
use larder_study::question::{Posed, Question};
use larder_study::recording::Recording;
use larder_study::replay::{Outcome, Replay, Setup};
use larder_study::settings::Chosen;
use larder_study::standing::Standing;
use larder_study::tune::tune;
use larder_study::watch::Unwatched;
use larder_study::workload::Workload;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/card")
}

/// What the card did, by the program's name.
fn programs() -> BTreeMap<String, Value> {
    let entries = fs::read_dir(folder()).expect("the recordings");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let told = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    told.map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("what the card did");
        (name, serde_json::from_str(&text).expect("JSON"))
    })
    .collect()
}

fn workload(name: &str) -> Workload {
    let file = folder().join(format!("{name}.pickle.gz"));
    Workload::load(&file, 0, &Unwatched).expect("a recording")
}

/// A replay as stock PyTorch, on the memory that the recording itself tells of.
fn replay(workload: &Workload, settings: &str) -> Outcome {
    replay_with(workload, Config::parse(settings).expect("the recorded settings"))
}

fn replay_with(workload: &Workload, config: Config) -> Outcome {
    let setup = Setup { policy: Policy::torch_2_11(), config, ..Setup::default() };
    let setup = setup.with_memory(None, workload);
    Replay::new(workload, &setup).run(&workload.ops, &mut ()).expect("the recording runs")
}

/// Retries, failures, the peak of what was reserved, and of what was active.
fn facts(outcome: &Outcome) -> [u64; 4] {
    let stats = &outcome.stats;
    let peaks = [stats.reserved_bytes.all.peak, stats.active_bytes.all.peak];
    let [reserved, active] = peaks.map(|peak| u64::try_from(peak).expect("a peak"));
    [stats.num_alloc_retries, stats.num_ooms, reserved, active]
}

/// How often the card made each of these calls.
fn what_the_card_did(told: &Value) -> [u64; 4] {
    let keys =
        ["num_alloc_retries", "num_ooms", "reserved_bytes.all.peak", "active_bytes.all.peak"];
    keys.map(|key| told[key].as_u64().expect("a count"))
}

#[test]
fn a_replay_does_what_the_card_did() {
    let programs = programs();
    assert!(programs.len() >= 11, "{:?}", programs.keys());
    for (name, told) in programs {
        let settings = told["settings"].as_str().expect("the settings");
        let wanted = what_the_card_did(&told);
        assert_eq!(facts(&replay(&workload(&name), settings)), wanted, "{name}, '{settings}'");
    }
}

#[test]
fn other_settings_than_the_recorded_ones_do_something_else() {
    // So the test above compares something.
    for name in ["expandable", "split_limit", "collected", "training_expandable"] {
        let workload = workload(name);
        let told = programs().remove(name).expect("what the card did");
        let settings = told["settings"].as_str().expect("the settings").to_owned();
        let recorded = facts(&replay(&workload, &settings));
        assert_ne!(facts(&replay(&workload, "")), recorded, "{name}");
    }
}

#[test]
fn with_stacks_the_programs_own_empties_are_told_from_the_allocators() {
    let workload = workload("emptied");
    let empties = workload.ops.iter().filter(|op| matches!(op, Op::Empty)).count();
    assert_eq!(empties, 6, "the program empties its cache six times");
    let facts = workload.recording.as_ref().expect("a recording");
    assert_eq!(facts.doubtful_flushes, 0);
    assert!(facts.own_flushes > 0, "the allocator gave memory back by itself too");
}

/// The question that a person asks first: `larder replay FILE --policy torch-2.11`, and nothing
/// more.
#[test]
fn a_replay_without_settings_has_those_of_the_recording() {
    for (name, told) in programs() {
        let workload = workload(&name);
        let chosen = Chosen::recorded(&workload);
        assert_eq!(chosen.conf, told["settings"].as_str().expect("the settings"), "{name}");
        let outcome = replay_with(&workload, chosen.config);
        assert_eq!(facts(&outcome), what_the_card_did(&told), "{name}");
    }
}

/// A fraction that settings name is in force, all of the card too.
#[test]
fn a_fraction_that_is_named_holds_whatever_was_recorded() {
    let workload = workload("dies");
    assert_eq!(replay(&workload, "").ooms, 1, "held to what was recorded");
    assert_eq!(replay(&workload, "per_process_memory_fraction:1").ooms, 0);
    assert!(replay(&workload, "per_process_memory_fraction:0.001").ooms > 1);
}

/// What the program was allowed on the card, which a recording leaves open.
fn true_cap(told: &Value) -> Option<u64> {
    let conf = told["settings"].as_str().expect("the settings");
    let fraction = Config::parse(conf).expect("settings").memory_fraction;
    let device_bytes = told["device_bytes"].as_u64().expect("the card's memory");
    (fraction < 1.0).then_some((fraction * device_bytes as f64) as u64)
}

/// The same recording, as if the fraction had been set by a call.
fn without_settings(name: &str) -> Workload {
    let Ok(Contents::Snapshot(mut snapshot)) =
        Contents::load(&folder().join(format!("{name}.pickle.gz")), &Unwatched)
    else {
        panic!("a snapshot")
    };
    let conf = snapshot.allocator_conf.take().expect("settings");
    let conf = conf.replace("per_process_memory_fraction:0.012", "");
    snapshot.allocator_conf = Some(conf.trim_matches(',').to_owned());
    Workload::from(Recording::from_snapshot(&snapshot, 0).expect("a recording"))
}

/// Whether it runs at the true cap.
fn runs_truly(workload: &Workload, cap: u64, policy: &Policy, conf: &str) -> bool {
    let question = Question { cap_bytes: Some(cap), ..Question::default() };
    let Posed { setup, .. } = question.pose(workload).expect("it runs");
    let own = Config::parse(conf).expect("settings");
    let setup = Setup { policy: policy.clone(), config: own, ..setup };
    Replay::new(workload, &setup).run(&workload.ops, &mut ()).expect("it runs").ooms == 0
}

/// A verdict beside what came of a replay at the true cap.
fn check(what: &str, standing: Standing, runs: bool, cap: u64) {
    match standing {
        Standing::Runs => assert!(runs, "{what}"),
        Standing::Fails => assert!(!runs, "{what}"),
        Standing::Depends(from) => {
            let from = from.unwrap_or(cap);
            assert!(runs == (cap >= from) || cap.abs_diff(from) < 4 << 20, "{what}: from {from}");
        }
    }
}

/// What a search and a comparison say at a guessed cap is so at the true one, or depends.
#[test]
fn no_choice_of_settings_is_wrong_about_a_cap_that_is_guessed() {
    let mut checked = 0;
    for (name, told) in programs() {
        let Some(cap) = true_cap(&told) else { continue };
        let workload = without_settings(&name);
        let Posed { setup, .. } = Question::default().pose(&workload).expect("it runs");
        let limit = Duration::from_millis(200);
        let found = tune(&workload, &setup, std::slice::from_ref(&setup.policy), limit, &Unwatched);
        for choice in found.expect("it runs").choices {
            let runs = runs_truly(&workload, cap, &choice.policy, &choice.conf);
            check(&format!("{name}: {choice:?}"), choice.standing.expect("judged"), runs, cap);
            checked += 1;
        }
        let compared = usual(&workload, &setup, None, &Unwatched).expect("it runs");
        for (of, row) in
            compared.iter().flat_map(|(of, rows)| rows.iter().map(move |row| (of, row)))
        {
            let runs = runs_truly(&workload, cap, &of.policy, &row.conf);
            check(&format!("{name}: {} {}", of.policy.name, row.conf), row.standing, runs, cap);
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// What is said of a remedy at the guessed cap is so at the true one, or it is said that it
/// depends.
#[test]
fn no_remedy_is_wrong_about_a_cap_that_is_guessed() {
    let (mut checked, mut open) = (0, 0);
    for (name, told) in programs() {
        let Some(cap) = true_cap(&told) else { continue };
        for workload in [workload(&name), without_settings(&name)] {
            let Posed { setup, .. } = Question::default().pose(&workload).expect("it runs");
            if let Some(caps) = setup.caps {
                assert!((caps.least_bytes..=caps.most_bytes).contains(&cap), "{name}: {caps:?}");
            }
            let explained = explain(&workload, &setup, 1, &Unwatched).expect("it runs");
            let explained = explained.unwrap_or_else(|| panic!("{name} fails: {setup:?}"));
            for remedy in explained.remedies.iter().filter(|remedy| remedy.is_setting()) {
                let runs = runs_truly(&workload, cap, &remedy.policy, &remedy.conf);
                checked += 1;
                let standing = match remedy.verdict {
                    Verdict::Runs => Standing::Runs,
                    Verdict::Depends(from) => Standing::Depends(from),
                    _ => Standing::Fails,
                };
                open += u32::from(matches!(standing, Standing::Depends(_)));
                check(&format!("{name}: {remedy:?}"), standing, runs, cap);
            }
        }
    }
    assert!(checked > 100 && open > 0, "{checked} were looked at, {open} depend");
}
