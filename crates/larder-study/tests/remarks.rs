//! Remarks: what a program says about its memory, and what the allocator says, is in a snapshot and
//! on a tape alike.

use std::sync::Arc;
use std::{env, fs, process};

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::types::MIB;
use larder_core::{Allocator, Config, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions};
use larder_snapshot::{Action, Epoch, Snapshot};
use larder_tape::{Recorder, Tape};

/// Each entry: what happened, the program's remark, and whether the allocator says that an address
/// was named.
fn said(snapshot: &Snapshot) -> Vec<(Action, &str, bool)> {
    let entries = snapshot.trace(0).expect("one device").iter().enumerate();
    entries
        .map(|(at, entry)| {
            let remark = snapshot.note(entry.note).user_metadata;
            let more = snapshot.more_of_entry(0, at).unwrap_or_default();
            let is_named = more == r#"{"internal_metadata":"mallocWithAddress"}"#;
            assert!(is_named || more.is_empty(), "{more}");
            (entry.action, remark.map_or("", |text| snapshot.text(text)), is_named)
        })
        .collect()
}

#[test]
fn a_snapshot_and_a_tape_say_the_same() {
    let path = env::temp_dir().join(format!("larder-remarks-{}.tape", process::id()));
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    let allocator = Allocator::new(device, Config::default(), Policy::larder());
    let block = allocator.malloc(20 * MIB, StreamId(0)).unwrap();
    allocator.free(block).unwrap();
    let recorder = Recorder::create(&path).unwrap();
    recorder.listen(&allocator);
    allocator.record_history(HistoryOptions::default()).unwrap();
    let placed = allocator.malloc_at(2 * MIB, StreamId(0), block.offset(4 * MIB)).unwrap();
    allocator.annotate_memory(placed, "the weights").unwrap();
    recorder.finish().unwrap();
    // A snapshot is an event too, which comes after what it shows.
    let taped = Snapshot::of_tape(&Tape::open(&path).unwrap(), Epoch::default());
    let shown = allocator.take_snapshot(SnapshotOptions::default());
    let shown = Snapshot::of_allocators(&[shown], Epoch::default());
    fs::remove_file(&path).unwrap();
    let expected = [
        (Action::Alloc, "", true),
        (Action::Alloc, "", true),
        (Action::FreeRequested, "", true),
        (Action::FreeCompleted, "", true),
        (Action::Annotate, "the weights", false),
    ];
    assert_eq!(said(&shown), expected);
    assert_eq!(said(&taped), expected);
    let mut json = Vec::new();
    shown.write_json(&mut json).unwrap();
    assert_eq!(Snapshot::read_json(&json[..]).unwrap().trace(0), shown.trace(0));
}
