//! Small recordings and what becomes of them.

use std::collections::HashSet;
use std::io::Cursor;

use larder_core::types::{Addr, Span};
use larder_snapshot::pickle::Limits;
use larder_snapshot::{BlockState, SnapshotError, StackId};

use super::*;

/// A real piece: four segments of a program with captured graphs, 24 entries with call stacks.
const GRAPH_PIECE: &[u8] = include_bytes!("testdata/graph_piece.pickle");
/// A real piece, gzipped: frees that wait for a stream, and no segments.
const WAITING_PIECE: &[u8] = include_bytes!("testdata/waiting_piece.pickle.gz");

/// Python data, to be pickled.
#[derive(Clone)]
enum Data {
    Number(i64),
    Text(String),
    Pair(i64, i64),
    List(Vec<Data>),
    Dict(Vec<(&'static str, Data)>),
}

impl Data {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Data::Number(number) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            Data::Text(text) => {
                out.extend([0x8c, text.len() as u8]);
                out.extend(text.as_bytes());
            }
            Data::Pair(first, second) => {
                Data::Number(*first).write(out);
                Data::Number(*second).write(out);
                out.push(0x86);
            }
            Data::List(items) => {
                out.extend(b"](");
                for item in items {
                    item.write(out);
                }
                out.push(b'e');
            }
            Data::Dict(pairs) => {
                out.extend(b"}(");
                for (key, value) in pairs {
                    Data::Text((*key).to_owned()).write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
        }
    }

    fn pickle(&self) -> Vec<u8> {
        let mut out = vec![0x80, 4];
        self.write(&mut out);
        out.push(b'.');
        out
    }
}

fn entry(action: &str, addr: i64, size: i64, stream: i64) -> Data {
    Data::Dict(vec![
        ("action", Data::Text(action.to_owned())),
        ("addr", Data::Number(addr)),
        ("size", Data::Number(size)),
        ("stream", Data::Number(stream)),
    ])
}

fn segment(addr: i64, size: i64, pool: i64, blocks: &[(i64, i64, &str)]) -> Data {
    let blocks = blocks.iter().map(|&(addr, size, state)| {
        Data::Dict(vec![
            ("address", Data::Number(addr)),
            ("size", Data::Number(size)),
            ("requested_size", Data::Number(size - 12)),
            ("state", Data::Text(state.to_owned())),
        ])
    });
    Data::Dict(vec![
        ("device", Data::Number(0)),
        ("address", Data::Number(addr)),
        ("total_size", Data::Number(size)),
        ("stream", Data::Number(0)),
        ("segment_pool_id", Data::Pair(0, pool)),
        ("segment_type", Data::Text("small".to_owned())),
        ("blocks", Data::List(blocks.collect())),
    ])
}

fn snapshot_data(segments: Vec<Data>, trace: Vec<Data>) -> Data {
    Data::Dict(vec![
        ("segments", Data::List(segments)),
        ("device_traces", Data::List(vec![Data::List(trace), Data::List(vec![])])),
    ])
}

fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    Snapshot::read(bytes, Limits::default(), |_| ())
}

fn recording(segments: Vec<Data>, trace: Vec<Data>) -> Result<Recording, RecordingError> {
    let snapshot = read(&snapshot_data(segments, trace).pickle()).unwrap();
    Recording::from_snapshot(&snapshot, 0)
}

fn script(recording: &Recording) -> Vec<String> {
    recording.ops.iter().map(ToString::to_string).collect()
}

fn complaint(data: &Data) -> String {
    match read(&data.pickle()) {
        Ok(_) => panic!("it was read"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_plain_recording_becomes_allocs_and_frees() {
    let recording = recording(
        vec![],
        vec![
            entry("segment_alloc", 1000, 2000, 0),
            entry("alloc", 1000, 10, 0),
            entry("alloc", 1512, 20, 77),
            entry("free_requested", 1000, 10, 0),
            entry("free_completed", 1000, 10, 0),
            entry("oom", 5, 99, 0),
            entry("snapshot", 0, 0, 0),
            entry("something_new", 0, 0, 0),
            entry("alloc", 1000, 30, 77),
        ],
    )
    .unwrap();
    // What failed was asked for too. The program went on without it.
    assert_eq!(
        script(&recording),
        ["alloc 0 10 0", "alloc 1 20 1", "free 0", "alloc 2 99 0", "free 2", "alloc 3 30 1"]
    );
    assert_eq!(recording.segment_addresses, [Span::new(Addr(1000), 2000)]);
    assert_eq!((recording.streams, recording.pools, recording.ooms), (2, 0, 1));
    assert_eq!((recording.allocations, recording.frees, recording.unknown_entries), (3, 1, 1));
}

#[test]
fn a_free_that_waits_is_recorded_on_a_stream_of_its_own() {
    let recording = recording(
        vec![],
        vec![
            entry("alloc", 1000, 10, 0),
            entry("alloc", 2000, 20, 0),
            entry("free_requested", 1000, 10, 0),
            entry("free_requested", 2000, 20, 0),
            entry("alloc", 3000, 30, 5),
            entry("free_completed", 1000, 10, 0),
        ],
    )
    .unwrap();
    assert_eq!(
        script(&recording),
        [
            "alloc 0 10 0",
            "alloc 1 20 0",
            "record 0 2",
            "free 0",
            "record 1 3",
            "free 1",
            "alloc 2 30 1",
            "sync 2"
        ]
    );
    assert_eq!((recording.streams, recording.waited_frees), (2, 2));
}

#[test]
fn a_recording_of_one_side_of_each_free_frees_at_once() {
    // Torch can be told to leave either side of a free out of its history.
    for side in ["free_requested", "free_completed"] {
        let trace = vec![
            entry("alloc", 1000, 10, 0),
            entry(side, 1000, 10, 0),
            entry("alloc", 1000, 10, 0),
            entry(side, 2000, 20, 0),
        ];
        assert_eq!(
            script(&recording(vec![], trace).unwrap()),
            ["alloc 0 20 0", "alloc 1 10 0", "free 1", "alloc 2 10 0", "free 0"]
        );
    }
}

#[test]
fn the_pool_is_that_of_the_segment_at_the_time() {
    let recording = recording(
        vec![segment(1000, 1000, 9, &[]), segment(5000, 1000, 0, &[])],
        vec![
            // This first segment at 1000 is freed again: default pool.
            entry("segment_alloc", 1000, 1000, 0),
            entry("alloc", 1100, 1, 0),
            entry("free_requested", 1100, 1, 0),
            entry("free_completed", 1100, 1, 0),
            entry("segment_free", 1000, 1000, 0),
            entry("segment_free", 3000, 1000, 0),
            entry("segment_alloc", 1000, 1000, 0),
            entry("alloc", 1100, 2, 0),
            entry("free_requested", 1100, 2, 0),
            entry("free_completed", 1100, 2, 0),
            entry("alloc", 1200, 3, 0),
            entry("alloc", 1300, 4, 8),
            entry("alloc", 5000, 5, 0),
            entry("alloc", 1400, 6, 0),
        ],
    )
    .unwrap();
    assert_eq!(
        script(&recording),
        [
            "alloc 0 1 0",
            "free 0",
            "empty",
            // A capture's, whose pool is made by the scope that uses it first.
            "pool-begin 1 0",
            "pool-new 1",
            "alloc 1 2 0",
            "free 1",
            "alloc 2 3 0",
            "pool-end 1",
            "pool-release 1",
            "pool-begin 1 1",
            "alloc 3 4 1",
            "pool-end 1",
            "pool-release 1",
            "alloc 4 5 0",
            "pool-begin 1 0",
            "alloc 5 6 0",
            "pool-end 1",
            "pool-release 1"
        ]
    );
    // The segments at 3000 and 5000 are older than the recording.
    let addresses: Vec<u64> = recording.segment_addresses.iter().map(|span| span.addr.0).collect();
    assert_eq!(addresses, [3000, 5000, 1000, 1000]);
}

#[test]
fn the_pool_that_an_entry_names_wins() {
    let mut alloc = entry("alloc", 1100, 2, 0);
    if let Data::Dict(pairs) = &mut alloc {
        pairs.push(("pool_id", Data::Pair(4, 0)));
    }
    let recording = recording(vec![segment(1000, 1000, 0, &[])], vec![alloc]).unwrap();
    assert_eq!(script(&recording)[..3], ["pool-begin 1 0", "pool-new 1", "alloc 0 2 0"]);
}

#[test]
fn what_was_live_before_the_recording_is_allocated_first() {
    let recording = recording(
        vec![segment(
            1000,
            4000,
            0,
            &[
                (1000, 512, "active_allocated"),
                (1512, 512, "inactive"),
                (2024, 512, "active_pending_free"),
                (4000, 512, "active_allocated"),
            ],
        )],
        vec![
            entry("free_requested", 1512, 50, 0),
            entry("free_completed", 1512, 50, 0),
            // The request for this one came before the recording began.
            entry("free_completed", 3000, 60, 6),
            entry("alloc", 4000, 500, 0),
        ],
    )
    .unwrap();
    assert_eq!(
        script(&recording),
        [
            "alloc 0 500 0",
            "alloc 1 50 0",
            "alloc 2 500 0",
            "alloc 3 60 1",
            "record 3 2",
            "free 3",
            "free 1",
            "sync 2",
            "alloc 4 500 0"
        ]
    );
    assert_eq!((recording.preexisting_blocks, recording.preexisting_bytes), (4, 1110));
    assert_eq!(recording.segment_addresses, [Span::new(Addr(1000), 4000)]);
}

#[test]
fn contradictions_name_the_entry() {
    let alloc = || entry("alloc", 4096, 10, 0);
    assert_eq!(
        recording(vec![], vec![alloc(), alloc()]).unwrap_err().to_string(),
        "device_traces[0][1] allocates 0x1000, which is in use at that time"
    );
    let free = || entry("free_requested", 4096, 10, 0);
    let done = || entry("free_completed", 4096, 10, 0);
    assert_eq!(
        recording(vec![], vec![alloc(), free(), done(), free()]).unwrap_err().to_string(),
        "device_traces[0][3] frees 0x1000, which was freed before"
    );
}

#[test]
fn a_snapshot_without_a_trace_says_what_to_do() {
    let segments = vec![segment(1000, 1000, 0, &[(1000, 512, "active_allocated")])];
    let bare = read(&Data::List(segments.clone()).pickle()).unwrap();
    assert_eq!(bare.segments[0].blocks[0].state, BlockState::Allocated);
    assert!(bare.segments[0].is_small && !bare.segments[0].is_expandable);
    assert_eq!(Recording::from_snapshot(&bare, 0), Err(RecordingError::NoTraces));
    let full = snapshot_data(segments, vec![entry("alloc", 1000, 10, 0)]);
    let full = read(&full.pickle()).unwrap();
    assert_eq!(
        Recording::from_snapshot(&full, 1),
        Err(RecordingError::EmptyTrace { device: 1, recorded_device: Some(0) })
    );
    assert_eq!(
        Recording::from_snapshot(&full, 2).unwrap_err().to_string(),
        "the snapshot has no device 2: `device_traces` has 2 devices, counted from 0"
    );
}

#[test]
fn what_is_missing_or_wrong_is_named_with_its_place() {
    let without = |data: &Data, key: &str| match data {
        Data::Dict(pairs) => {
            Data::Dict(pairs.iter().filter(|pair| pair.0 != key).cloned().collect())
        }
        data => data.clone(),
    };
    let good = entry("alloc", 1000, 10, 0);
    let bad = without(&good, "size");
    assert_eq!(
        complaint(&snapshot_data(vec![], vec![good.clone(), bad])),
        "device_traces[0][1] has no `size`"
    );
    let mut bad = without(&good, "addr");
    if let Data::Dict(pairs) = &mut bad {
        pairs.push(("addr", Data::Text("here".to_owned())));
    }
    assert_eq!(
        complaint(&snapshot_data(vec![], vec![bad])),
        "device_traces[0][0] has something of type str as `addr`, not an integer of 64 bits"
    );
    assert_eq!(
        complaint(&snapshot_data(vec![], vec![Data::Number(1)])),
        "device_traces[0][0] is of type int, not a dict"
    );
    let segment = segment(1000, 1000, 0, &[]);
    assert_eq!(
        complaint(&snapshot_data(vec![without(&segment, "total_size")], vec![])),
        "segments[0] has no `total_size`"
    );
    assert_eq!(complaint(&Data::Dict(vec![])), "the snapshot has no `segments`");
    assert_eq!(
        complaint(&Data::Number(5)),
        "this is not a memory snapshot: the file holds something of type int, not a dict"
    );
    assert!(read(b"PK\x03\x04").is_err_and(|error| error.to_string().contains("zip archive")));
}

#[test]
fn entries_that_share_a_call_stack_have_one() {
    let snapshot = read(GRAPH_PIECE).unwrap();
    let trace = snapshot.trace(0).unwrap();
    let stacks: Vec<StackId> = trace.iter().map(|entry| entry.stack.unwrap()).collect();
    let different: HashSet<StackId> = stacks.iter().copied().collect();
    assert_eq!((stacks.len(), different.len()), (24, 3));
    for frame in snapshot.stack(stacks[0]) {
        assert_eq!(snapshot.text(frame.filename), "model.py");
        assert_eq!(snapshot.text(frame.name), format!("function_{}", frame.line - 1));
    }
    let note = snapshot.note(trace[0].note);
    assert_eq!(note.compile_context.map(|text| snapshot.text(text)), Some("N/A"));
    assert_eq!(snapshot.allocator_conf.as_deref(), Some(""));
    assert!(Recording::from_snapshot(&snapshot, 0).unwrap().pools > 0);
}

#[test]
fn a_gzipped_snapshot_is_known_by_its_bytes_and_tells_its_progress() {
    let mut told = Vec::new();
    let snapshot =
        Snapshot::read(Cursor::new(WAITING_PIECE), Limits::default(), |bytes| told.push(bytes))
            .unwrap();
    assert_eq!(told.last(), Some(&(WAITING_PIECE.len() as u64)));
    assert!(told.is_sorted());
    assert_eq!(snapshot.trace(0).map(<[_]>::len), Some(16));
    let recording = Recording::from_snapshot(&snapshot, 0).unwrap();
    assert!(recording.waited_frees > 0);
}

#[test]
fn a_file_cut_short_or_damaged_never_panics() {
    for bytes in [GRAPH_PIECE, WAITING_PIECE] {
        // One byte alone does not tell what kind of file it is.
        for length in 2..bytes.len() {
            let error = read(&bytes[..length]).err().unwrap().to_string();
            assert!(error.contains("cut short"), "at {length}: {error}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x55;
            if let Ok(snapshot) = read(&damaged) {
                let _ = Recording::from_snapshot(&snapshot, 0);
            }
        }
    }
}

#[test]
fn a_small_file_cannot_unfold_into_a_large_snapshot() {
    // One segment, mentioned twice; then one list of blocks in two segments.
    let one = segment(1000, 1000, 0, &[]);
    let mut twice = b"\x80\x04](".to_vec();
    one.write(&mut twice);
    twice.extend(b"2e.");
    assert!(read(&twice).is_err_and(|error| error.to_string().contains("same object")));
    // Two entries, mentioned four times each.
    let mut often = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](".to_vec();
    for number in [0, 1] {
        entry("alloc", 1000, 10, 0).write(&mut often);
        often.extend([b'q', number]);
    }
    often.extend(b"h\x01h\0h\x01h\0h\x01h\0eeu.");
    let error = read(&often).err().unwrap().to_string();
    assert_eq!(error, "`device_traces` has more entries than the file holds");
}

/// Two segments of 20 MiB, one of them freed. What comes then is for each test to say.
fn one_idle_segment() -> Vec<Data> {
    const MIB: i64 = 1 << 20;
    vec![
        entry("segment_alloc", 100 * MIB, 20 * MIB, 0),
        entry("alloc", 100 * MIB, 15 * MIB, 0),
        entry("segment_alloc", 200 * MIB, 20 * MIB, 0),
        entry("alloc", 200 * MIB, 15 * MIB, 0),
        entry("free_requested", 200 * MIB, 15 * MIB, 0),
        entry("free_completed", 200 * MIB, 15 * MIB, 0),
    ]
}

/// What is given back before a request of so many MiB is served with new memory.
fn given_back_before(asked_mib: i64) -> Recording {
    const MIB: i64 = 1 << 20;
    let mut trace = one_idle_segment();
    trace.push(entry("segment_free", 200 * MIB, 20 * MIB, 0));
    trace.push(entry("segment_alloc", 300 * MIB, asked_mib * MIB, 0));
    trace.push(entry("alloc", 300 * MIB, asked_mib * MIB, 0));
    recording(vec![], trace).unwrap()
}

#[test]
fn what_an_allocator_gives_back_to_try_again_is_no_empty() {
    // There had been room for 40 MiB. 20 were in use, so 20 more cannot have been short of it, and
    // the idle segment would have served them anyway.
    let emptied = given_back_before(20);
    assert_eq!(script(&emptied)[3..], ["empty", "alloc 2 20971520 0"]);
    assert_eq!((emptied.empties, emptied.own_flushes, emptied.memory), (1, 0, None));
    // The idle segment is too small for 30 MiB, and nothing says that there was room for both.
    let retried = given_back_before(30);
    assert_eq!(script(&retried)[3..], ["alloc 2 31457280 0"]);
    assert_eq!((retried.empties, retried.own_flushes, retried.doubtful_flushes), (0, 1, 1));
    let memory = retried.memory.unwrap();
    assert_eq!(memory.told_by, ToldBy::Retry);
    // There was room for 50 MiB, but not for the 40 and 30 more: 68 is the most that goes with it.
    let bounds = Bounds { least_bytes: 50 << 20, below_bytes: 70 << 20 };
    assert_eq!((memory.device_bytes, memory.bounds), (68 << 20, Some(bounds)));
}

#[test]
fn the_call_stack_tells_a_retry_from_a_program_that_empties_its_cache() {
    const MIB: i64 = 1 << 20;
    let with_stack = |mut entry: Data, line: i64| {
        let frame = Data::Dict(vec![
            ("filename", Data::Text("train.py".to_owned())),
            ("line", Data::Number(line)),
            ("name", Data::Text("step".to_owned())),
        ]);
        if let Data::Dict(pairs) = &mut entry {
            pairs.push(("frames", Data::List(vec![frame])));
        }
        entry
    };
    for (line, flushes) in [(7, (0, 1, 0)), (8, (1, 0, 0))] {
        let mut trace = one_idle_segment();
        trace.push(with_stack(entry("segment_free", 200 * MIB, 20 * MIB, 0), line));
        trace.push(with_stack(entry("segment_alloc", 300 * MIB, 30 * MIB, 0), 7));
        trace.push(with_stack(entry("alloc", 300 * MIB, 30 * MIB, 0), 7));
        let found = recording(vec![], trace).unwrap();
        assert_eq!((found.empties, found.own_flushes, found.doubtful_flushes), flushes, "{line}");
    }
}

#[test]
fn pages_that_went_back_are_an_empty_too() {
    const MIB: i64 = 1 << 20;
    let trace = vec![
        entry("segment_map", 100 * MIB, 20 * MIB, 0),
        entry("alloc", 100 * MIB, 15 * MIB, 0),
        entry("free_requested", 100 * MIB, 15 * MIB, 0),
        entry("free_completed", 100 * MIB, 15 * MIB, 0),
        entry("segment_unmap", 100 * MIB, 20 * MIB, 0),
    ];
    let recording = recording(vec![], trace).unwrap();
    assert_eq!(script(&recording), ["alloc 0 15728640 0", "free 0", "empty"]);
}

#[test]
fn what_failed_tells_how_much_memory_there_was() {
    const MIB: i64 = 1 << 20;
    let failing = |free_mib: i64, asked_mib: i64| {
        let mut trace = one_idle_segment();
        trace.push(entry("segment_free", 200 * MIB, 20 * MIB, 0));
        trace.push(entry("oom", free_mib * MIB, asked_mib * MIB, 0));
        let found = recording(vec![], trace).unwrap();
        // It is the last thing that happened, so that nothing tells whether it was given back.
        assert_eq!(script(&found)[3..], [format!("alloc 2 {} 0", asked_mib * MIB)]);
        assert_eq!((found.ooms, found.empties, found.own_flushes), (1, 0, 1));
        found.memory.unwrap()
    };
    // 44 MiB free and 20 reserved: a card of 64.
    let told_by = ToldBy::Failure { free_bytes: 44 << 20, reserved_bytes: 20 << 20 };
    let whole = RecordedMemory {
        device_bytes: 64 << 20,
        fraction: None,
        told_by,
        bounds: None,
        cap_bytes: None,
    };
    assert_eq!(failing(44, 60), whole);
    // The card had room for 24 MiB. What stopped it is a cap, above the 40 MiB that there were and
    // below the 44 that there would have been; the most that goes with it is 42.
    let capped = failing(44, 24);
    assert_eq!(capped.device_bytes, 64 << 20);
    let allowed = capped.fraction.unwrap() * f64::from(64 << 20);
    assert!((allowed - f64::from(42 << 20)).abs() < 1.0, "{allowed}");
    let bounds = Bounds { least_bytes: 40 << 20, below_bytes: 44 << 20 };
    assert_eq!(capped.bounds, Some(bounds));
    assert!(capped.to_string().contains("at least 40.00 MiB and less than 44.00 MiB"), "{capped}");
}

#[test]
fn a_retry_waits_for_its_blocks_itself() {
    const MIB: i64 = 1 << 20;
    let mut trace = one_idle_segment();
    trace.truncate(5);
    trace.extend([
        // It waited for another stream. The retry waits for it, gives it back, and fails.
        entry("free_completed", 100 * MIB, 15 * MIB, 0),
        entry("segment_free", 100 * MIB, 20 * MIB, 0),
        entry("oom", 30 * MIB, 100 * MIB, 0),
        entry("snapshot", 0, 0, 0),
    ]);
    trace.insert(4, entry("free_requested", 100 * MIB, 15 * MIB, 0));
    trace.truncate(9);
    let recording = recording(vec![], trace).unwrap();
    let tail = ["record 0 1", "free 0", "record 1 2", "free 1", "alloc 2 104857600 0", "sync 1"];
    assert_eq!(script(&recording)[2..], tail);
}

/// Numbers that no device has are no reason to stop.
#[test]
fn sizes_beyond_any_memory_are_followed_as_far_as_they_go() {
    let trace = vec![
        entry("segment_alloc", i64::MAX, i64::MAX, 0),
        entry("alloc", i64::MAX, i64::MAX, 0),
        entry("segment_map", -4096, 8192, 0),
        entry("segment_free", i64::MAX, i64::MAX, 0),
        entry("oom", i64::MAX, i64::MAX, 0),
        entry("segment_unmap", i64::MAX, i64::MAX, 0),
        entry("free_completed", i64::MAX, i64::MAX, 0),
    ];
    let pickled = snapshot_data(vec![], trace).pickle();
    if let Ok(snapshot) = read(&pickled) {
        let _ = Recording::from_snapshot(&snapshot, 0);
    }
    let trace = vec![
        entry("segment_alloc", i64::MAX, i64::MAX, 0),
        entry("alloc", i64::MAX, i64::MAX, 0),
        entry("segment_free", i64::MAX, i64::MAX, 0),
        entry("oom", i64::MAX, i64::MAX, 0),
    ];
    assert_eq!(recording(vec![], trace).unwrap().ooms, 1);
}
