//! What a comparison comes to: in every case there is an answer, and a command that tells more.

mod program;

use std::path::{Path, PathBuf};
use std::process::Command;

use program::{json, larder, recorded, scratch, stdout};

/// A recording that PyTorch made on a card under memory pressure.
fn card(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../larder-study/tests/card");
    folder.join(format!("{name}.pickle.gz"))
}

fn compare(words: &[&str], file: &Path) -> String {
    stdout(&larder(&[&["compare"], words].concat(), Some(file)))
}

/// The commands that a text names are run as a person would paste them.
fn run_commands(text: &str) {
    let program = env!("CARGO_BIN_EXE_larder");
    let commands = text.split('`').filter(|part| part.starts_with("larder "));
    for command in commands {
        let line = command.replacen("larder", program, 1);
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn where_a_fraction_is_the_cause_it_is_named() {
    let depends = compare(&[], &card("dies"));
    let open = "whether any of these runs depends on what the program was allowed: ";
    assert!(depends.contains(open), "{depends}");
    run_commands(&depends);
    for words in [&["--card", "H200"][..], &["--card", "H200", "--policy", "torch-2.11"]] {
        let text = compare(words, &card("dies"));
        let cause = "the memory fraction is the cause: held to it nothing here runs, and without \
        it \
                     per_process_memory_fraction:1 under policy ";
        assert!(text.contains(cause), "{text}");
        assert!(text.trim_end().ends_with(" says how much memory it needs"), "{text}");
        run_commands(&text);
    }
}

#[test]
fn where_nothing_ran_it_is_said_what_came_nearest() {
    let script = scratch(
        "nearest.ops",
        "alloc 1 60000000 0\nfree 1\nalloc 2 20000000 0\nalloc 3 50000000 0\nalloc 4 90000000 0\n",
    );
    let words = ["--policy", "torch-2.11", "--memory", "80MiB"];
    let confs = ["--conf", "", "--conf", "expandable_segments:True"];
    let text = compare(&[&words[..], &confs].concat(), &script);
    let nearest = "; nearest came expandable_segments:True, with 1 failure\n";
    assert!(text.contains(nearest), "{text}");
    let why = "--memory 80MiB --policy torch-2.11 --conf expandable_segments:True` says what \
    failed first";
    assert!(text.contains(why), "{text}");
    run_commands(&text);
    let all = compare(&["--memory", "10MiB"], &script);
    assert!(all.contains("nothing here ran: each had 4 failures\n"), "{all}");
}

#[test]
fn which_policy_ran_it_is_said_where_another_did_not() {
    let text = compare(&[], &card("full_card"));
    let ran = "it runs under policy tight, and under torch-2.11 and larder with none of these\n";
    assert!(text.contains(ran), "{text}");
    assert!(text.contains("so set LARDER_CONF=policy:tight, which alone ran; "), "{text}");
    run_commands(&text);
}

/// PyTorch refuses settings of Larder's in its own variable, so each has its own.
#[test]
fn each_variable_is_named_apart() {
    let script = scratch("variables.ops", "alloc 1 30000000 0\nfree 1\nalloc 2 40000000 0\n");
    let conf = "expandable_segments:True,page_size_mb:2";
    let larders = compare(&["--policy", "larder", "--conf", "", "--conf", conf], &script);
    let apart = "so set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and \
                 LARDER_CONF=policy:larder,page_size_mb:2, which";
    assert!(larders.contains(apart), "{larders}");
    let torchs = compare(&["--policy", "torch-2.11", "--conf", conf], &script);
    let foreign = "page_size_mb is Larder's own, for LARDER_CONF: stock PyTorch does not have it";
    assert!(torchs.contains(foreign), "{torchs}");
    let stock = compare(&["--policy", "torch-2.11", "--conf", "", "--conf", conf], &script);
    assert!(stock.contains("so the default settings need least"), "{stock}");
    run_commands(&larders);
}

/// A block that fits into the smallest segment needs the same whatever is set: to set anything
/// would not help.
#[test]
fn where_all_need_the_same_nothing_is_to_be_set() {
    let script = scratch("level.ops", "alloc 1 1000 0\nfree 1\n");
    let off = "expandable_segments:False";
    let asked: [(&[&str], &str); 7] = [
        (&[], "; "),
        (&["--policy", "torch-2.11"], "; "),
        (&["--policy", "larder"], " under policy larder; "),
        (&["--policy", "tight"], " under policy tight; "),
        (&["--policy", "torch-2.11", "--conf", off, "--conf", "max_split_size_mb:128"], "; "),
        (&["--policy", "larder", "--conf", off], " under policy larder; "),
        (&["--policy", "torch-2.11", "--conf", off], "; "),
    ];
    for (words, under) in asked {
        let text = compare(words, &script);
        let enough = format!("so set nothing: the default settings are enough{under}`larder fit ");
        assert!(text.contains(&enough) && !text.contains("_CONF="), "{words:?}: {text}");
        run_commands(&text);
    }
    let tried = ["--conf", "expandable_segments:True", "--conf", "max_split_size_mb:128"];
    for policy in ["torch-2.11", "larder"] {
        let text = compare(&[&["--policy", policy], &tried[..]].concat(), &script);
        let level = "all that ran need the same, so nothing speaks for any of these settings; ";
        assert!(text.contains(level) && !text.contains("_CONF="), "{text}");
    }
    let alone = compare(&["--policy", "torch-2.11", "--conf", "max_split_size_mb:64"], &script);
    let with = "it runs with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64; `larder fit ";
    assert!(alone.contains(with), "{alone}");
}

#[test]
fn where_nothing_needs_less_a_search_advises_nothing() {
    let script = scratch("least.ops", "alloc 1 1000 0\nfree 1\n");
    for words in [&["tune", "--seconds", "5"][..], &["tune", "--policy", "torch-2.11"]] {
        let text = stdout(&larder(words, Some(&script)));
        assert!(text.contains("none of them needs less than the program as it is"), "{text}");
        assert!(!text.contains("_CONF="), "{text}");
    }
}

#[test]
fn where_all_need_the_same_what_was_recorded_stays() {
    let script = scratch("stays.ops", "alloc 1 1000 0\nfree 1\n");
    let settings = ["", "expandable_segments:True", "max_split_size_mb:128"];
    for (number, conf) in settings.into_iter().enumerate() {
        let words = ["--policy", "torch-2.11", "--conf", conf];
        let recording = recorded(&format!("stays_{number}.pickle"), &script, &words);
        for (words, under) in [
            (&[][..], "; "),
            (&["--policy", "torch-2.11"], "; "),
            (&["--policy", "larder"], " under policy larder; "),
            (&["--policy", "tight"], " under policy tight; "),
        ] {
            let text = compare(words, &recording);
            let enough = format!(
                "all that ran need the same, so change nothing: the settings that it was recorded \
                 with are \
                 enough{under}`larder fit "
            );
            assert!(text.contains(&enough) && !text.contains("_CONF="), "{conf} {words:?}: {text}");
        }
    }
}

/// Larder makes segments expandable by itself. Where that comes to the same as the default of stock
/// PyTorch, nobody has to take it back; where it comes to more, somebody has.
#[test]
fn what_a_policy_does_by_itself_is_taken_back_only_where_that_helps() {
    let confs = ["", "expandable_segments:True,plain_captures:True", "roundup_power2_divisions:2"];
    let confs = confs.iter().flat_map(|conf| ["--conf", conf]);
    let words: Vec<&str> = ["--policy", "larder"].into_iter().chain(confs).collect();
    let level = scratch("itself.ops", "alloc 1 20971520 0\n");
    let text = compare(&words, &level);
    assert!(text.contains("\nso set LARDER_CONF=policy:larder, which needs least of"), "{text}");
    run_commands(&text);
    let larger = scratch("back.ops", "alloc 1 22020096 0\n");
    let text = compare(&words, &larger);
    let back = "so set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False and \
    LARDER_CONF=policy:larder, which";
    assert!(text.contains(back), "{text}");
}

/// Fewer retries with as much memory are worth a setting.
#[test]
fn who_tries_again_less_often_is_better_among_equals() {
    let script = scratch("again_less.ops", "alloc 1 30000000 0\nfree 1\nalloc 2 40000000 0\n");
    let text = compare(&["--policy", "torch-2.11", "--memory", "50MiB"], &script);
    let fewer = "so set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; none of the others \
    needs less, and \
                 some try again more often; `larder fit ";
    assert!(text.contains(fewer), "{text}");
}

/// What a program would have needed that died is not known, nor is what a fraction hides.
#[test]
fn a_fit_says_what_it_does_not_know() {
    let fit = |words: &[&str], name: &str| larder(&[&["fit"], words].concat(), Some(&card(name)));
    let ends =
        "the recording ends where the program ran out of memory: what it would have needed later";
    let text = stdout(&fit(&[], "dies"));
    assert!(text.contains(ends), "{text}");
    let text = stdout(&fit(&[], "streams"));
    let conf = ["--conf", "per_process_memory_fraction:0.012"];
    let held = stdout(&fit(&conf, "training"));
    assert!(!text.contains("that part of the device") && !text.contains(ends), "{text}");
    assert!(held.contains("per_process_memory_fraction:0.012 lets it have that part of"), "{held}");
    let small = fit(&["--memory", "1GiB"], "dies");
    let sentence = String::from_utf8_lossy(&small.stderr).into_owned();
    assert!(sentence.contains("; leave --memory out to find out how much it needs"), "{sentence}");
}

/// An operation of a recording has a number that leads somewhere.
#[test]
fn the_operation_that_failed_can_be_seen() {
    let file = card("dies");
    let text = stdout(&larder(&["replay", "--policy", "torch-2.11"], Some(&file)));
    let see = format!("`larder snapshot {} -o operations.ops`, line 13\n", file.display());
    assert!(text.contains("operation 13: ") && text.contains(&see), "{text}");
    let ops = stdout(&larder(&["snapshot", "-o", "-", "--to", "ops"], Some(&file)));
    let line = ops.lines().nth(12).expect("a line");
    assert!(line.starts_with("alloc "), "{line}");
    assert!(
        text.contains("so give --card with the card's size if you know it, or --cap"),
        "{text}"
    );
}

/// A name with a space, other sizes and another memory: what is said can be pasted.
#[test]
fn commands_have_all_that_was_said() {
    let script = scratch("a program.ops", "alloc 1 50000000 0\nalloc 2 60000000 0\n");
    let words = ["--scale", "2", "--jitter", "3:7", "--memory", "100MiB", "--conf", ""];
    let text = compare(&words, &script);
    assert!(text.contains("--scale 2 --jitter 3:7 --memory 100MiB --policy "), "{text}");
    assert!(text.contains("a program.ops' --scale 2 --jitter 3:7 --policy "), "{text}");
    run_commands(&text);
}

/// What was recorded needs no `--conf`: a replay has it by itself.
#[test]
fn recorded_settings_are_not_said_again() {
    let script = scratch("said.ops", "alloc 1 30000000 0\nfree 1\nalloc 2 40000000 0\n");
    let recording = recorded("said.pickle", &script, &["--conf", "expandable_segments:True"]);
    let text = compare(&["--policy", "torch-2.11", "--conf", ""], &recording);
    let least = "so the settings that it was recorded with need least; `larder fit ";
    assert!(text.contains(least) && text.contains("said.pickle --policy torch-2.11`"), "{text}");
    let rows = json(&["compare", "--policy", "torch-2.11", "--conf", "", "--json"], &recording);
    assert_eq!(rows[1]["recorded"], true);
}

/// A card that has room says yes, and one that has not says what helps or no: each is what a replay
/// on what the card has for the program gives.
#[test]
fn fit_says_of_each_card_whether_the_program_runs_there() {
    let script = scratch(
        "cards.ops",
        "alloc 1 15GiB 0\nfree 1\nalloc 2 9GiB 0\nalloc 3 13GiB 0\nfree 2\nfree 3\n\
         alloc 4 20GiB 0\n",
    );
    let words = ["fit", "--policy", "torch-2.11", "--cards", "16,L4,32GiB,H200"];
    let found = json(&[&words[..], &["--json"]].concat(), &script);
    let cards = found["cards"].as_array().expect("cards");
    let names: Vec<_> = cards.iter().map(|card| card["card"].as_str().expect("a name")).collect();
    assert_eq!(names, ["16.00 GiB", "L4", "32.00 GiB", "H200"]);
    for card in cards {
        let room = format!("{}B", card["room_bytes"]);
        let words = ["replay", "--json", "--policy", "torch-2.11", "--memory", &room];
        let replayed = json(&words, &script);
        assert_eq!(replayed["ooms"], card["ooms"], "{card}");
        assert_eq!(replayed["num_alloc_retries"], card["retries"], "{card}");
        if let Some(conf) = card["remedy"]["conf"].as_str() {
            let policy = card["remedy"]["policy"].as_str().expect("a policy");
            let words = ["replay", "--json", "--memory", &room, "--policy", policy, "--conf", conf];
            assert_eq!(json(&words, &script)["ooms"], 0, "{card}");
        }
    }
    let runs: Vec<_> = cards.iter().map(|card| &card["runs"]).collect();
    assert_eq!(runs, [false, false, true, true]);
    let text = stdout(&larder(&words, Some(&script)));
    assert!(text.lines().any(|line| line.starts_with("H200 ") && line.ends_with("yes")), "{text}");
    let wrong = larder(&["fit", "--cards", "H2000"], Some(&script));
    assert_eq!(wrong.status.code(), Some(2));
}

/// What shells and `man` read names every command, and each command's help ends in examples.
#[test]
fn the_command_line_is_told_to_shells_and_to_man() {
    let run = |words: &[&str]| stdout(&larder(words, None));
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        for word in ["explain", "completions", "cards"] {
            assert!(script.contains(word), "{shell} knows no {word}");
        }
    }
    let page = run(&["man"]);
    assert!(page.contains(".TH larder 1") && page.contains("explain"), "{page}");
    assert!(run(&["man", "fit"]).contains("cards"));
    let commands = "replay compare show explain fit tune top bench snapshot report completions man";
    for command in commands.split(' ') {
        assert!(run(&[command, "--help"]).contains("Examples:\n  larder "), "{command}");
    }
}
