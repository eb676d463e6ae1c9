//! A program that dies in the middle: everything up to its last event is on the tape.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, abort};
use std::sync::Arc;

use larder_core::allocator::history::HistoryOptions;
use larder_core::record::context::{Context, Frame, Stack};
use larder_core::record::event::{Action, Level};
use larder_core::record::note;
use larder_core::{Allocator, Config, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions};
use larder_tape::{Recorder, Tape, TapeError, TapeNote};

/// Set for the program that dies: where its tape is.
const TAPE: &str = "LARDER_TEST_TAPE";
/// More cells than one strip of the file has, so that it dies with a part of another.
const ROUNDS: u64 = 12_000;

fn file(name: &str) -> PathBuf {
    env::temp_dir().join(format!("larder-{}-{name}.tape", std::process::id()))
}

fn allocator() -> Allocator {
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    Allocator::new(device, Config::default(), Policy::default())
}

/// Records rounds of a malloc and a free.
fn work(path: &Path, rounds: u64) -> (Allocator, Recorder) {
    let allocator = allocator();
    let recorder = Recorder::create(path).unwrap();
    recorder.listen(&allocator);
    for round in 1..=rounds {
        let block = allocator.malloc(round, StreamId(0)).unwrap();
        allocator.free(block).unwrap();
    }
    (allocator, recorder)
}

/// The sizes that were allocated, which are those of the rounds.
fn rounds_on(tape: &Tape) -> Vec<u64> {
    let allocs = tape.events.iter().filter(|event| event.action == Action::Alloc);
    allocs.map(|event| event.size_bytes).collect()
}

/// The program that dies: this test itself, started once more.
fn die_in_the_middle(path: &Path) -> ! {
    let (allocator, _recorder) = work(path, ROUNDS);
    let _last = allocator.malloc(ROUNDS + 1, StreamId(0)).unwrap();
    abort();
}

#[test]
fn everything_up_to_the_last_event_survives_an_abort() {
    if let Some(path) = env::var_os(TAPE) {
        die_in_the_middle(Path::new(&path));
    }
    let path = file("abort");
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", "everything_up_to_the_last_event_survives_an_abort"])
        .env(TAPE, &path)
        .output()
        .unwrap()
        .status;
    assert!(!status.success(), "it aborts");
    let tape = Tape::open(&path).unwrap();
    assert_eq!(rounds_on(&tape), (1..=ROUNDS + 1).collect::<Vec<_>>());
    assert_eq!(tape.events.len() as u64, 1 + 3 * ROUNDS + 1, "a segment, the rounds, and the last");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_tape_that_is_cut_ends_with_its_last_whole_record() {
    let path = file("cut");
    let (_allocator, recorder) = work(&path, 10);
    assert_eq!(recorder.finish().unwrap(), 31);
    let whole = fs::read(&path).unwrap();
    assert_eq!(whole.len(), 64 * 32, "a header and the cells");
    for length in 64..whole.len() {
        let tape = Tape::read(&whole[..length]).unwrap();
        assert_eq!(tape.events.len(), length / 64 - 1);
    }
    assert!(matches!(Tape::read(&whole[..63]), Err(TapeError::NoTape)));
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_damaged_tape_is_refused_with_the_place() {
    let path = file("damaged");
    let (_allocator, recorder) = work(&path, 3);
    recorder.finish().unwrap();
    let whole = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let damage = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        Tape::read(&bytes[..]).unwrap_err().to_string()
    };
    let cell = 64 * 3;
    assert_eq!(damage(0, 0), "this is not a tape, or one of another version");
    assert_eq!(damage(cell, 99), "the tape is damaged: cell 2 is of no known kind");
    assert_eq!(damage(cell + 1, 99), "the tape is damaged: cell 2 is an event of no known action");
    assert_eq!(damage(cell + 4, 9), "the tape is damaged: cell 2 is out of order");
    let named = "the tape is damaged: cell 2 names something that did not come before it";
    assert_eq!(damage(cell + 8 + 48, 9), named);
    let past = "the tape is damaged: cell 2 is an event past the last address";
    assert_eq!(damage(cell + 8 + 7, 0x80), past);
    assert_eq!(damage(cell + 16 + 7, 0xff), past);
}

#[test]
fn contexts_and_remarks_are_on_the_tape() {
    let path = file("contexts");
    let allocator = allocator();
    let long = "a name longer than what one cell takes ".repeat(3);
    let frames: Vec<Frame> = (0..30)
        .map(|line| Frame { name: long.clone(), filename: "story.py".to_owned(), line })
        .collect();
    let stack = Stack(frames.clone());
    let hook = move || -> Option<Arc<dyn Context>> { Some(Arc::new(stack.clone())) };
    let options = HistoryOptions::default().level(Level::All).context_hook(Arc::new(hook));
    allocator.record_history(options).unwrap();
    let recorder = Recorder::create(&path).unwrap();
    recorder.listen(&allocator);
    note::set_user_metadata("batch 1");
    note::push_compile_context("graph");
    let block = allocator.malloc(100, StreamId(3)).unwrap();
    note::pop_compile_context();
    allocator.free(block).unwrap();
    note::set_user_metadata("");
    let placed = allocator.malloc_at(100, StreamId(3), block.offset(512)).unwrap();
    allocator.annotate_memory(placed, "the weights").unwrap();
    recorder.finish().unwrap();
    let tape = Tape::open(&path).unwrap();
    assert_eq!((tape.frames.len(), tape.stacks.len(), tape.notes.len()), (30, 1, 4));
    let read: Vec<Frame> = tape.stacks[0]
        .iter()
        .map(|&frame| {
            let (name, file, line) = tape.frames[frame];
            let (name, filename) = (tape.texts[name].clone(), tape.texts[file].clone());
            Frame { name, filename, line }
        })
        .collect();
    assert_eq!(read, frames);
    let remarks: Vec<_> = tape
        .events
        .iter()
        .map(|event| {
            let note = event.note.map_or_else(TapeNote::default, |note| tape.notes[note]);
            let texts = [note.compiling, note.remark, note.doing];
            texts.map(|text| text.map(|text| tape.texts[text].as_str()))
        })
        .collect();
    let [both, alone] = [[Some("graph"), Some("batch 1"), None], [None, Some("batch 1"), None]];
    let placed = [None, None, Some("mallocWithAddress")];
    let remark = [None, Some("the weights"), None];
    assert_eq!(remarks, [both, both, alone, alone, placed, placed, placed, placed, remark]);
    assert!(tape.events.iter().all(|event| event.stream.0 == 3));
    assert_eq!(tape.events.last().unwrap().action, Action::Annotate);
    fs::remove_file(&path).unwrap();
}
