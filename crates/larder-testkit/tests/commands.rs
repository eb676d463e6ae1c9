//! The program: its commands, what they print, and exit codes.

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder-testkit")).args(words).output().expect("it starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn soak_runs_from_a_seed() {
    let text = stdout(&run(&["soak", "--seed", "4", "--steps", "300", "--scripts", "3"]));
    assert!(text.contains("every check held"), "{text}");
}

#[test]
fn soak_runs_under_a_policy() {
    for more in [&["--scripts", "2"][..], &["--threads", "2"]] {
        let soak = ["soak", "--seed", "4", "--steps", "200", "--policy", "tight"];
        let text = stdout(&run(&[&soak[..], more].concat()));
        assert!(text.contains("every check held"), "{text}");
    }
    let wrong = run(&["soak", "--policy", "loose"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn sleep_runs_from_a_seed() {
    let text = stdout(&run(&["sleep", "--seed", "4", "--scripts", "3"]));
    assert!(text.contains("3 programs of 80 steps from seed 4"), "{text}");
    assert!(text.contains("every check held"), "{text}");
}

#[test]
fn soak_runs_many_threads_on_one_allocator() {
    let text = stdout(&run(&["soak", "--seed", "8", "--threads", "3", "--steps", "100"]));
    assert!(text.contains("1 run of 3 threads, 100 steps each, from seed 8"), "{text}");
    for wrong in [&["soak", "--threads", "0"][..], &["soak", "--scripts", "2", "--seconds", "1"]] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
