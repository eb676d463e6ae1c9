//! Programs as users write them: the examples, and a new one that copies the README.
// They ask for real GPUs too, to see what a machine without one is told.
#![cfg(feature = "cuda")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// What a program said, if it ended well.
fn said(output: &Output, what: &str) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{what} failed:\n{out}\n{err}");
    out.into_owned()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_example_runs_where_there_is_no_gpu() {
    let mut names: Vec<String> = fs::read_dir(folder().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 9, "{names:?}");
    for name in names {
        let path = folder().join("examples").join(format!("{name}.rs"));
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!((15..=80).contains(&lines), "{name} has {lines} lines");
        let mut run = cargo();
        run.args(["run", "--quiet", "--features", "cudarc", "--example", &name]);
        let words = said(&run.current_dir(folder()).output().unwrap(), &name);
        assert!(!words.is_empty(), "{name} shows nothing");
    }
}

/// The first program in Rust that the README shows.
fn first_example(readme: &str) -> &str {
    let (_, rest) = readme.split_once("```rust\n").expect("an example in Rust");
    rest.split_once("```").expect("its end").0
}

/// Makes a new crate that depends on this one and holds the program.
fn new_program(at: &Path, program: &str) {
    fs::create_dir_all(at.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"new-program\"\nedition = \"2024\"\n\n[dependencies]\n\
         larder = {{ path = \"{}\" }}\n\n[workspace]\n",
        folder().display()
    );
    fs::write(at.join("Cargo.toml"), manifest).unwrap();
    fs::write(at.join("src/main.rs"), program).unwrap();
    // The versions that are here already; a new program would fetch them.
    fs::copy(folder().join("../../Cargo.lock"), at.join("Cargo.lock")).unwrap();
}

#[test]
fn a_new_program_that_copies_the_readme_runs() {
    let readme = fs::read_to_string(folder().join("../../README.md")).unwrap();
    let program = first_example(&readme);
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-program");
    let run = |program: &str| {
        new_program(&at, program);
        let mut run = cargo();
        run.args(["run", "--quiet"]).current_dir(&at).env("CARGO_TARGET_DIR", at.join("target"));
        run.output().unwrap()
    };
    let words = said(&run(program), "the README's example");
    assert!(words.contains("bytes"), "{words}");

    // One word makes it a program for a real GPU. Where there is none it says so, in one sentence.
    let real = program.replacen("simulated", "cuda", 1);
    assert_ne!(real, program, "the example is simulated");
    let output = run(&real);
    if larder_cuda::driver::is_present() {
        said(&output, "the README's example on a GPU");
    } else {
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains("NoDriver"), "{words}");
    }
}
