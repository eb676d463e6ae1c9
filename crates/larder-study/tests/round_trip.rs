//! Round trips: what comes in as a torch pickle goes out as one that says the same, key by key.

use std::fs::File;
use std::path::{Path, PathBuf};

use larder_core::record::event::Action;
use larder_core::{PoolId, StreamId};
use larder_snapshot::pickle::{self, Content, KeepAll, Limits, Objects, Pickle, Value};
use larder_snapshot::{Epoch, Snapshot};
use larder_study::recording::Recording;
use larder_tape::{Tape, TapeEvent};

/// The recordings of the repository, and those beside it where there are some.
fn recordings() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in [root.join("workloads"), root.join("../shared/traces")] {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        let is_pickle = |path: &PathBuf| path.to_string_lossy().contains(".pickle");
        files.extend(entries.map(|entry| entry.path()).filter(is_pickle));
    }
    assert!(!files.is_empty(), "the repository has recordings");
    files.sort();
    files
}

/// All of a pickle, with nothing taken over.
fn whole(bytes: &[u8]) -> Pickle<KeepAll> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let unpacked = flate2::read::MultiGzDecoder::new(bytes);
        pickle::read(unpacked, Limits::default(), KeepAll).unwrap()
    } else {
        pickle::read(bytes, Limits::default(), KeepAll).unwrap()
    }
}

fn items<T>(content: Content<'_, T>) -> &[T] {
    content.items().expect("nothing was taken over")
}

/// Says where two objects part.
fn part(one: (&Objects, Value), other: (&Objects, Value), place: &str) -> Option<String> {
    let ((one_objects, one_value), (other_objects, other_value)) = (one, other);
    match (one_value, other_value) {
        (Value::Text(one), Value::Text(other)) => {
            let (one, other) = (one_objects.text(one), other_objects.text(other));
            (one != other).then(|| format!("{place}: {one:?} became {other:?}"))
        }
        (Value::Tuple(one), Value::Tuple(other)) => {
            let (one, other) = (one_objects.tuple(one), other_objects.tuple(other));
            part_lists((one_objects, one), (other_objects, other), place)
        }
        (Value::List(one), Value::List(other)) => {
            let (one, other) = (items(one_objects.list(one)), items(other_objects.list(other)));
            part_lists((one_objects, one), (other_objects, other), place)
        }
        (Value::Dict(one), Value::Dict(other)) => {
            let (one, other) = (items(one_objects.dict(one)), items(other_objects.dict(other)));
            let key = |objects: &Objects, key: Value| match key {
                Value::Text(text) => objects.text(text).to_owned(),
                key => format!("{key:?}"),
            };
            if one.len() != other.len() {
                return Some(format!("{place}: {} keys became {}", one.len(), other.len()));
            }
            one.iter().find_map(|&(name, value)| {
                let name = key(one_objects, name);
                let found = other.iter().find(|pair| key(other_objects, pair.0) == name);
                let place = format!("{place}[{name:?}]");
                match found {
                    None => Some(format!("{place} is gone")),
                    Some(pair) => part((one_objects, value), (other_objects, pair.1), &place),
                }
            })
        }
        (one, other) => (one != other).then(|| format!("{place}: {one:?} became {other:?}")),
    }
}

fn part_lists(
    one: (&Objects, &[Value]),
    other: (&Objects, &[Value]),
    place: &str,
) -> Option<String> {
    if one.1.len() != other.1.len() {
        return Some(format!("{place}: {} items became {}", one.1.len(), other.1.len()));
    }
    let mut pairs = one.1.iter().zip(other.1).enumerate();
    pairs.find_map(|(at, (&a, &b))| part((one.0, a), (other.0, b), &format!("{place}[{at}]")))
}

fn assert_equal(before: &[u8], after: &[u8], name: &str) {
    let (before, after) = (whole(before), whole(after));
    let found = part((&before.objects, before.root), (&after.objects, after.root), "snapshot");
    assert_eq!(found, None, "{name}");
}

#[test]
fn torch_pickles_come_out_as_they_went_in() {
    for path in recordings() {
        let name = path.display().to_string();
        let before = std::fs::read(&path).unwrap();
        let snapshot = Snapshot::open(&path, |_| ()).unwrap();
        let mut after = Vec::new();
        snapshot.write_pickle(&mut after).unwrap();
        assert_equal(&before, &after, &name);
        // By way of JSON too; the long ones would only take longer.
        if before.len() < 1 << 18 {
            let mut json = Vec::new();
            snapshot.write_json(&mut json).unwrap();
            let mut after = Vec::new();
            Snapshot::read_json(&json[..]).unwrap().write_pickle(&mut after).unwrap();
            assert_equal(&before, &after, &format!("{name} by way of JSON"));
        }
    }
}

#[test]
fn what_is_not_understood_is_kept() {
    let json = r#"{
        "segments": [{
            "device": 0, "address": 4096, "total_size": 512, "allocated_size": 0, "stream": -8,
            "segment_type": "small", "segment_pool_id": [1, 2], "is_expandable": true,
            "frames": [{"name": "f", "filename": "a.py", "line": 3, "fx_node_op": "call"}],
            "blocks": [{"address": 4096, "size": 512, "requested_size": 7, "state": "inactive",
                        "frames": [], "forward_frames": ["x", "y"]}],
            "new_key": {"deep": [1, 2.5, null, true]}
        }],
        "device_traces": [[
            {"action": "frobnicate", "addr": 1, "size": 2, "stream": 0, "priority": 3},
            {"action": "oom", "device_free": 9, "size": 2, "stream": 0, "time_us": 5,
             "compile_context": "N/A", "user_metadata": "remark", "frames": []}
        ], []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:b", "threshold": 0.0},
        "external_annotations": [{"name": "step", "stage": "START"}],
        "version": 7
    }"#;
    let snapshot = Snapshot::read_json(json.as_bytes()).unwrap();
    assert_eq!(snapshot.allocator_conf.as_deref(), Some("a:b"));
    let mut pickle = Vec::new();
    snapshot.write_pickle(&mut pickle).unwrap();
    let again = Snapshot::read(&pickle[..], Limits::default(), |_| ()).unwrap();
    assert_eq!(again.unkept_values, 0);
    let mut text = Vec::new();
    again.write_json(&mut text).unwrap();
    let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
    assert_eq!(value(&text), value(json.as_bytes()));
}

#[test]
fn shared_stacks_stay_shared() {
    let path = recordings().into_iter().find(|path| path.to_string_lossy().contains("stacks"));
    let Some(path) = path else { return };
    let mut pickle = Vec::new();
    Snapshot::open(&path, |_| ()).unwrap().write_pickle(&mut pickle).unwrap();
    let mut unpacked = flate2::read::MultiGzDecoder::new(File::open(&path).unwrap());
    let before = std::io::copy(&mut unpacked, &mut std::io::sink()).unwrap();
    assert!((pickle.len() as u64) < 2 * before, "{} of {before} bytes", pickle.len());
}

#[test]
fn a_snapshot_that_went_round_replays_alike() {
    for path in recordings() {
        if path.metadata().unwrap().len() > 1 << 20 {
            continue;
        }
        let snapshot = Snapshot::open(&path, |_| ()).unwrap();
        let mut json = Vec::new();
        snapshot.write_json(&mut json).unwrap();
        let again = Snapshot::read_json(&json[..]).unwrap();
        let recording = |snapshot| Recording::from_snapshot(snapshot, 0).unwrap();
        assert_eq!(recording(&again), recording(&snapshot), "{}", path.display());
    }
}

/// A tape of one device on which these happened: action, address, size.
fn tape(events: &[(Action, u64, u64)]) -> Tape {
    let event = |&(action, addr, size_bytes): &(Action, u64, u64)| TapeEvent {
        action,
        device: 0,
        addr,
        size_bytes,
        stream: StreamId(0),
        time_ns: 0,
        pool: PoolId(u64::MAX, 0),
        stack: None,
        note: None,
    };
    Tape { events: events.iter().map(event).collect(), ..Tape::default() }
}

#[test]
fn what_a_damaged_tape_says_of_sizes_and_pools_goes_from_format_to_format() {
    const LAST: u64 = i64::MAX as u64;
    let snapshot = Snapshot::of_tape(
        &tape(&[
            (Action::SegmentMap, 0, LAST),
            (Action::SegmentMap, 4096, LAST - 4096),
            (Action::SegmentUnmap, 8192, LAST - 8192),
            (Action::SegmentAlloc, 1 << 20, LAST - (1 << 20)),
            (Action::Alloc, 1 << 20, LAST - (1 << 20)),
            (Action::Alloc, 2 << 20, LAST - (2 << 20)),
            (Action::Alloc, LAST - 600, 600),
        ]),
        Epoch::default(),
    );
    let mut json = Vec::new();
    snapshot.write_json(&mut json).unwrap();
    let again = Snapshot::read_json(&json[..]).unwrap();
    let mut pickle = Vec::new();
    again.write_pickle(&mut pickle).unwrap();
    let read = Snapshot::read(&pickle[..], Limits::default(), |_| ()).unwrap();
    let mut twice = Vec::new();
    read.write_json(&mut twice).unwrap();
    assert_eq!(String::from_utf8_lossy(&twice), String::from_utf8_lossy(&json));
}

#[test]
fn numbers_that_torch_cannot_write_are_refused() {
    let text = |addr: u64, size: u64| {
        format!(
            r#"{{"segments":[],"device_traces":[[
                {{"action":"alloc","addr":{addr},"size":{size},"stream":0}}]]}}"#
        )
    };
    let refusal = |text: &str| Snapshot::read_json(text.as_bytes()).err().unwrap().to_string();
    assert!(Snapshot::read_json(text(1 << 62, 512).as_bytes()).is_ok());
    assert!(refusal(&text(1 << 63, 512)).contains("9223372036854775808 has more than 63 bits"));
    assert!(refusal(&text(1 << 62, 1 << 62)).contains("reaches past the last address"));
}
