//! A person with the recordings of all ranks asks who is worst, who differs, and what helps all.

mod program;

use std::fs;
use std::path::{Path, PathBuf};

use program::{json, larder, recorded, scratch, stdout};
use serde_json::Value;

/// A rank of a stage: weights of its own kind, steps that come and go, and perhaps something that
/// is kept from a step on.
fn script(weights_mib: u64, keeps: bool) -> String {
    let mut script = String::new();
    let mut id = 0;
    let mut line = |text: String| script.push_str(&(text + "\n"));
    for _ in 0..4 {
        line(format!("alloc {id} {weights_mib}MiB 0"));
        id += 1;
    }
    for step in 0..20 {
        let first = id;
        for part in 0..10 {
            line(format!("alloc {id} {}MiB 0", 20 + 2 * part));
            id += 1;
        }
        (first..id).rev().for_each(|id| line(format!("free {id}")));
        if keeps && step >= 5 {
            line(format!("alloc {id} 14MiB 0"));
            id += 1;
        }
    }
    script
}

/// Eight ranks of two stages, of which rank 2 is odd, in a folder.
fn ranks(name: &str, memory: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder");
    for rank in 0..8 {
        let weights_mib = if rank < 4 { 64 } else { 96 };
        let script = scratch(&format!("{name}-{rank}.ops"), &script(weights_mib, rank == 2));
        let file = format!("{name}/rank{rank}.json");
        recorded(&file, &script, &["--policy", "torch-2.11", "--memory", memory]);
    }
    folder
}

#[test]
fn the_odd_rank_is_found_with_its_place_and_since_when() {
    let folder = ranks("odd-ranks", "80GiB");
    let found = json(&["explain", "--json"], &folder);
    assert_eq!(found["stages"], serde_json::json!([4, 4]));
    let odd = found["odd"].as_array().expect("a list");
    assert_eq!(odd.len(), 1, "{found}");
    assert_eq!(odd[0]["name"], "rank2.json");
    // Kept behind the sixth step: 4 weights, 6 steps of 10, and the first that is kept.
    assert_eq!(odd[0]["since"]["request"], 4 + 60 + 1);
    assert_eq!(
        (&odd[0]["held_bytes"], &odd[0]["others_held_bytes"]),
        (&((14 * 14) << 20).into(), &0.into())
    );
    let text = stdout(&larder(&["explain"], Some(&folder)));
    assert!(text.starts_with("8 ranks, of 2 shapes, as the stages of a pipeline are"), "{text}");
    assert!(text.contains("rank2.json differs: it asks for"), "{text}");
    assert!(text.contains("What would help all"), "{text}");
    let files: Vec<String> =
        (0..8).map(|rank| folder.join(format!("rank{rank}.json")).display().to_string()).collect();
    let words: Vec<&str> =
        ["explain"].into_iter().chain(files.iter().map(String::as_str)).collect();
    assert_eq!(stdout(&larder(&words, None)), text, "files by name are the same as their folder");
}

#[test]
fn show_fit_compare_and_report_take_a_folder_too() {
    let folder = ranks("all-ranks", "80GiB");
    let shown = stdout(&larder(&["show"], Some(&folder)));
    assert_eq!(shown.lines().filter(|line| line.contains("█")).count(), 9, "{shown}");
    let fitted = json(&["fit", "--json"], &folder);
    let bytes = fitted["fit_bytes"].as_u64().expect("it fits").to_string() + "B";
    for (memory, ooms) in [(bytes.as_str(), 0), ("400MiB", 20)] {
        let found = json(&["explain", "--json", "--memory", memory], &folder);
        let all = found["ranks"].as_array().expect("ranks");
        let failing = all.iter().filter(|rank| rank["as_it_is"]["ooms"] != 0).count();
        assert_eq!(failing > 0, ooms > 0, "{memory}");
    }
    let compared = stdout(&larder(
        &["compare", "--conf", "", "--conf", "max_split_size_mb:40"],
        Some(&folder),
    ));
    assert!(compared.contains("max_split_size_mb:40") && compared.contains("8 of 8"), "{compared}");
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ranks.html");
    let out = page.to_str().expect("a plain path");
    stdout(&larder(&["report", "-o", out], Some(&folder)));
    let page = fs::read_to_string(&page).expect("a page");
    assert!(page.contains("rank2.json differs: it asks for"), "the verdict is there");
    assert_eq!(page.matches("class=\"bar\"").count(), 8, "a row a rank");
    assert!(!page.contains("<script"), "nothing has to run before it is whole");
}

#[test]
fn what_cannot_be_read_is_told_and_the_others_are_answered_for() {
    let folder = ranks("some-ranks", "80GiB");
    fs::write(folder.join("rank9.json"), "{\"segments\": [").expect("a file");
    let text = stdout(&larder(&["explain"], Some(&folder)));
    assert!(
        text.contains("\n1 recording could not be replayed:\n  ") && text.contains("rank9.json: "),
        "{text}"
    );
    for (command, more) in
        [("replay", ""), ("tune", ""), ("explain", "--failure=1"), ("show", "--at=end")]
    {
        let words: Vec<&str> =
            [command, more].into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!(larder(&words, Some(&folder)).status.code(), Some(2), "{command}");
    }
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-ranks");
    fs::create_dir_all(&empty).expect("a folder");
    let refused = larder(&["explain"], Some(&empty));
    let sentence = String::from_utf8(refused.stderr).expect("text");
    assert!(sentence.contains("there is no recording in this folder"), "{sentence}");
}

#[test]
fn a_difference_has_a_place_a_moment_and_an_exit_code() {
    let [before, after] = [false, true].map(|keeps| {
        let name = format!("diff-{keeps}");
        recorded(
            &format!("{name}.pickle"),
            &scratch(&format!("{name}.ops"), &script(64, keeps)),
            &[],
        )
    });
    let [before, after] = [before, after].map(|file| file.display().to_string());
    let diff = |words: &[&str]| {
        let words: Vec<&str> = ["diff", &before, &after].iter().chain(words).copied().collect();
        larder(&words, None)
    };
    let text = stdout(&diff(&[]));
    assert!(text.contains("What grew") && text.contains("+196.00 MiB"), "{text}");
    let found: Value = serde_json::from_str(&stdout(&diff(&["--json"]))).expect("JSON");
    assert_eq!(found["grown_bytes"], (14 * 14) << 20);
    assert_eq!(found["changes"][0]["since"]["request"], 65);
    assert_eq!(diff(&["--grew-by", "50%"]).status.code(), Some(0));
    assert_eq!(diff(&["--grew-by", "2%"]).status.code(), Some(5));
    assert_eq!(diff(&["--grew-by", "200MiB"]).status.code(), Some(0));
    assert_eq!(diff(&["--grew-by", "much"]).status.code(), Some(2));
    let same = larder(&["diff", &before, &before, "--grew-by", "0"], None);
    assert!(stdout(&same).contains("before: the same."));
}
