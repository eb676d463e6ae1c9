//! One file and more than one who would write to it: recorders at one place, and forked processes.

use std::env;
use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use larder_core::record::event::Action;
use larder_core::{Allocator, Config, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions};
use larder_tape::{Recorder, Tape};

/// Set for the program that forks: where its tape is.
const TAPE: &str = "LARDER_TEST_FORK_TAPE";
/// More cells than one strip of the file has.
const ROUNDS: u64 = 9_000;

fn file(name: &str) -> PathBuf {
    env::temp_dir().join(format!("larder-{}-{name}.tape", std::process::id()))
}

fn allocator() -> Allocator {
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    Allocator::new(device, Config::default(), Policy::default())
}

fn work(allocator: &Allocator, rounds: u64) {
    for round in 1..=rounds {
        let block = allocator.malloc(round, StreamId(0)).unwrap();
        allocator.free(block).unwrap();
    }
}

fn rounds_on(path: &Path) -> u64 {
    let tape = Tape::open(path).unwrap();
    tape.events.iter().filter(|event| event.action == Action::Alloc).count() as u64
}

#[test]
fn a_tape_that_is_recorded_to_cannot_be_created_again() {
    let path = file("twice");
    let allocator = allocator();
    let first = Recorder::create(&path).unwrap();
    first.listen(&allocator);
    work(&allocator, 10);
    let error = Recorder::create(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    let sentence = error.to_string();
    assert!(sentence.contains("records to") && sentence.contains("twice"), "{sentence}");
    work(&allocator, ROUNDS);
    first.finish().unwrap();
    assert_eq!(rounds_on(&path), 10 + ROUNDS, "the first one goes on undisturbed");

    drop((first, allocator));
    Recorder::create(&path).unwrap();
    assert_eq!(rounds_on(&path), 0, "a tape to which nobody records any more is replaced");
    fs::remove_file(&path).unwrap();
}

#[test]
fn what_happens_after_a_cut_is_written_too_until_the_end() {
    let path = file("cut");
    let allocator = allocator();
    let recorder = Recorder::create(&path).unwrap();
    recorder.listen(&allocator);
    // Each cut is somewhere else in a page, and many pages of cells come after it.
    for cut in 1..=5 {
        work(&allocator, 1_000 * cut + cut);
        recorder.finish().unwrap();
        assert_eq!(rounds_on(&path), (1..=cut).map(|cut| 1_001 * cut).sum::<u64>());
    }
    let length = fs::metadata(&path).unwrap().len();
    recorder.end().unwrap();
    work(&allocator, ROUNDS);
    drop(allocator);
    assert_eq!(fs::metadata(&path).unwrap().len(), length, "nothing comes after the end");
    fs::remove_file(&path).unwrap();
}

#[test]
fn who_removes_the_file_and_creates_it_again_harms_nobody() {
    let path = file("removed");
    let allocators = [allocator(), allocator()];
    let first = Recorder::create(&path).unwrap();
    first.listen(&allocators[0]);
    let mut hidden = fs::File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = Recorder::create(&path).unwrap();
    second.listen(&allocators[1]);
    work(&allocators[0], ROUNDS);
    work(&allocators[1], 3);
    first.finish().unwrap();
    second.finish().unwrap();
    assert_eq!(rounds_on(&path), 3);
    let mut bytes = Vec::new();
    hidden.seek(SeekFrom::Start(0)).unwrap();
    hidden.read_to_end(&mut bytes).unwrap();
    assert_eq!(Tape::read(&bytes[..]).unwrap().events.len() as u64, 1 + 3 * ROUNDS);
    fs::remove_file(&path).unwrap();
}

#[test]
fn what_is_no_plain_file_is_left_alone() {
    let error = Recorder::create(Path::new("/dev/null")).err().unwrap();
    assert!(error.to_string().contains("not a plain file"), "{error}");
    assert!(Path::new("/dev/null").exists());
}

/// The program that forks: parent and child both work, at the same time.
fn fork_and_work(path: &Path) {
    let allocator = allocator();
    let recorder = Recorder::create(path).unwrap();
    recorder.listen(&allocator);
    work(&allocator, 10);
    // SAFETY: the child does no more than what the parent's only other thread, which waits for this
    // one, can have no lock for; then it exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        work(&allocator, ROUNDS);
        let refused = recorder.finish().is_err_and(|error| error.to_string().contains("fork"));
        let own = Recorder::create(&path.with_extension("child")).unwrap();
        own.listen(&allocator);
        work(&allocator, 7);
        let written = own.finish().unwrap();
        // SAFETY: exiting so runs nothing of the parent's.
        unsafe { libc::_exit(i32::from(!(refused && written >= 21))) };
    }
    work(&allocator, 2 * ROUNDS);
    let mut status = 0;
    // SAFETY: the child is this process's own, and the status is a place for a number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    recorder.finish().unwrap();
}

#[test]
fn the_child_of_a_fork_writes_nothing_to_its_parents_tape() {
    if let Some(path) = env::var_os(TAPE) {
        return fork_and_work(Path::new(&path));
    }
    let path = file("fork");
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_child_of_a_fork_writes_nothing_to_its_parents_tape"])
        .env(TAPE, &path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(rounds_on(&path), 10 + 2 * ROUNDS);
    assert_eq!(rounds_on(&path.with_extension("child")), 7);
    fs::remove_file(path.with_extension("child")).unwrap();
    fs::remove_file(&path).unwrap();
}
