//! History: what an allocator remembers, for how long, and who is told of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use larder_core::allocator::history::{DeviceSnapshot, HistoryOptions, SnapshotOptions};
use larder_core::heap::{Filter, State};
use larder_core::record::context::{Context, Frame, RustStack, Stack};
use larder_core::record::event::{Action, Actions, Level};
use larder_core::record::history::Stage;
use larder_core::record::note;
use larder_core::types::{Addr, MIB, PoolId, StreamId};
use larder_core::{Allocator, Config, DeviceIndex, Error, Fleet, Policy};
use larder_sim::{SimDevice, SimOptions};

const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(1);

/// An allocator on a device of 100 MiB.
fn allocator(conf: &str, policy: Policy) -> (Arc<SimDevice>, Allocator) {
    let options = SimOptions::default().memory_bytes(100 * MIB);
    let device = Arc::new(SimDevice::new(options));
    let allocator = Allocator::new(device.clone(), Config::parse(conf).unwrap(), policy);
    (device, allocator)
}

/// A context that says which call it belongs to: the hook counts.
fn counting_hook() -> (Arc<AtomicU64>, HistoryOptions) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let hook = move || -> Option<Arc<dyn Context>> {
        Some(Arc::new(call(counted.fetch_add(1, Ordering::Relaxed) + 1)))
    };
    let options = HistoryOptions::default().context_hook(Arc::new(hook));
    (calls, options)
}

fn call(number: u64) -> Stack {
    let line = number as u32;
    Stack(vec![Frame { name: "call".to_owned(), filename: "story".to_owned(), line }])
}

fn call_of(context: Option<&Arc<dyn Context>>) -> Option<u32> {
    context.map(|context| context.frames()[0].line)
}

fn everything(allocator: &Allocator) -> DeviceSnapshot {
    allocator.take_snapshot(SnapshotOptions::default())
}

fn actions(allocator: &Allocator) -> Vec<Action> {
    everything(allocator).trace.iter().map(|entry| entry.action).collect()
}

#[test]
fn every_kind_of_event_is_remembered_in_its_order() {
    use Action::{
        Alloc, FreeCompleted, FreeRequested, OutOfMemory, SegmentAlloc, SegmentFree, SegmentMap,
        SegmentUnmap,
    };
    let (device, plain) = allocator("", Policy::torch_2_11());
    plain.record_history(HistoryOptions::default()).unwrap();
    let block = plain.malloc(3 * MIB, MAIN).unwrap();
    plain.record_stream(block, SIDE).unwrap();
    plain.free(block).unwrap();
    assert_eq!(actions(&plain), [SegmentAlloc, Alloc, FreeRequested], "the stream is awaited");
    device.sync(SIDE);
    let small = plain.malloc(100, MAIN).unwrap();
    plain.free(small).unwrap();
    assert!(plain.malloc(200 * MIB, MAIN).is_err());
    let trace = everything(&plain).trace;
    let seen: Vec<_> = trace.iter().map(|entry| (entry.action, entry.size_bytes)).collect();
    let large = 20 * MIB;
    let story = [
        (SegmentAlloc, large),
        (Alloc, 3 * MIB),
        (FreeRequested, 3 * MIB),
        (Action::Snapshot, 3 * MIB),
        (FreeCompleted, 3 * MIB),
        (SegmentAlloc, 2 * MIB),
        (Alloc, 100),
        (FreeRequested, 100),
        (FreeCompleted, 100),
        (SegmentFree, large),
        (SegmentFree, 2 * MIB),
        (OutOfMemory, 200 * MIB),
    ];
    assert_eq!(seen, story);
    assert_eq!(trace.last().unwrap().addr, 100 * MIB, "the free bytes of the device");
    assert!(trace.is_sorted_by_key(|entry| entry.time_ns));

    let (_, growing) = allocator("expandable_segments:True", Policy::torch_2_11());
    growing.record_history(HistoryOptions::default()).unwrap();
    let block = growing.malloc(3 * MIB, MAIN).unwrap();
    growing.free(block).unwrap();
    growing.empty_cache().unwrap();
    let story = [SegmentMap, Alloc, FreeRequested, FreeCompleted, SegmentUnmap];
    assert_eq!(actions(&growing), story);
}

#[test]
fn each_level_has_the_contexts_of_its_own() {
    let story = |level| {
        let (_, allocator) = allocator("", Policy::torch_2_11());
        let (calls, options) = counting_hook();
        allocator.record_history(options.level(level)).unwrap();
        let kept = allocator.malloc(100, MAIN).unwrap();
        let freed = allocator.malloc(200, MAIN).unwrap();
        allocator.free(freed).unwrap();
        let gathered = calls.load(Ordering::Relaxed);
        let shot = everything(&allocator);
        let of = |action| {
            let entry = shot.trace.iter().rfind(|entry| entry.action == action).unwrap();
            call_of(entry.context.as_ref())
        };
        let block = call_of(allocator.context_of(kept).as_ref());
        (gathered, block, of(Action::Alloc), of(Action::FreeRequested), of(Action::FreeCompleted))
    };
    assert_eq!(story(Level::Never), (0, None, None, None, None));
    assert_eq!(story(Level::State), (2, Some(1), None, None, None));
    assert_eq!(story(Level::Alloc), (2, Some(1), Some(2), Some(2), Some(2)));
    assert_eq!(story(Level::All), (3, Some(1), Some(2), Some(3), Some(3)));
}

#[test]
fn contexts_need_a_hook() {
    let (_, allocator) = allocator("", Policy::default());
    let options = HistoryOptions::default().level(Level::State);
    assert_eq!(allocator.record_history(options), Err(Error::NoContextHook));
    assert!(!allocator.is_recording());
}

#[test]
fn a_context_lives_as_long_as_something_names_it() {
    let (_, allocator) = allocator("", Policy::default());
    let seen: Arc<Mutex<Vec<Weak<Stack>>>> = Arc::default();
    let given = seen.clone();
    let hook = move || -> Option<Arc<dyn Context>> {
        let mut given = given.lock().unwrap();
        let stack = Arc::new(call(given.len() as u64));
        given.push(Arc::downgrade(&stack));
        Some(stack)
    };
    let alive = || {
        let seen = seen.lock().unwrap();
        (0..seen.len()).filter(|&at| seen[at].strong_count() > 0).collect::<Vec<_>>()
    };
    let options =
        HistoryOptions::default().level(Level::All).max_entries(2).context_hook(Arc::new(hook));
    allocator.record_history(options).unwrap();
    let first = allocator.malloc(100, MAIN).unwrap();
    let second = allocator.malloc(200, MAIN).unwrap();
    assert_eq!(alive(), [0, 1], "both blocks name theirs");
    allocator.free(first).unwrap();
    // The two newest entries are those of the free; the segment's context is the first malloc's.
    assert_eq!(alive(), [0, 1, 2]);
    allocator.free(second).unwrap();
    assert_eq!(alive(), [0, 3], "nothing names the second malloc and the first free any more");
    allocator.empty_cache().unwrap();
    assert_eq!(alive(), [3, 4], "the segment is gone, and its context with it");
    allocator.stop_history();
    assert_eq!(alive(), [] as [usize; 0]);
    assert_eq!(allocator.context_count(), 0);
}

#[test]
fn live_blocks_keep_their_contexts_when_the_history_ends() {
    let (_, allocator) = allocator("", Policy::default());
    let (calls, options) = counting_hook();
    allocator.record_history(options.level(Level::All)).unwrap();
    let block = allocator.malloc(100, MAIN).unwrap();
    allocator.stop_history();
    assert_eq!(call_of(allocator.context_of(block).as_ref()), Some(1));
    assert!(everything(&allocator).trace.is_empty());
    assert!(everything(&allocator).runs[0].context.is_none(), "the segment's is let go");
    allocator.free(block).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1, "nobody is asked any more");
    assert!(allocator.context_of(block).is_none());
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.context_count(), 0);
}

#[test]
fn contexts_that_say_the_same_are_kept_once() {
    let (_, allocator) = allocator("", Policy::default());
    let hook = || -> Option<Arc<dyn Context>> { Some(Arc::new(call(7))) };
    let options = HistoryOptions::default().level(Level::All).context_hook(Arc::new(hook));
    allocator.record_history(options).unwrap();
    let blocks: Vec<Addr> = (1..50).map(|size| allocator.malloc(size, MAIN).unwrap()).collect();
    assert_eq!(allocator.context_count(), 1);
    for block in blocks {
        allocator.free(block).unwrap();
    }
    assert_eq!(allocator.context_count(), 1);
}

#[test]
fn a_hook_may_look_at_the_rust_stack() {
    let (_, allocator) = allocator("", Policy::default());
    let options = HistoryOptions::default().level(Level::Alloc).context_hook(RustStack::hook());
    allocator.record_history(options).unwrap();
    let block = allocator.malloc(100, MAIN).unwrap();
    let frames = allocator.context_of(block).unwrap().frames();
    let name = "a_hook_may_look_at_the_rust_stack";
    assert!(frames.iter().any(|frame| frame.name.contains(name)), "{frames:?}");
}

#[test]
fn the_newest_entries_stay_and_some_are_skipped() {
    let (_, allocator) = allocator("", Policy::default());
    let skip: Actions = [Action::FreeRequested, Action::Snapshot].into_iter().collect();
    let options = HistoryOptions::default().max_entries(3).skip(skip);
    allocator.record_history(options.clone()).unwrap();
    for size in 1..=3 {
        let block = allocator.malloc(size, MAIN).unwrap();
        allocator.free(block).unwrap();
    }
    let sizes = |allocator: &Allocator| -> Vec<_> {
        everything(allocator).trace.iter().map(|entry| entry.size_bytes).collect()
    };
    assert_eq!(sizes(&allocator), [2, 3, 3]);
    allocator.record_history(options.clone().max_entries(4)).unwrap();
    let _block = allocator.malloc(4, MAIN).unwrap();
    assert_eq!(sizes(&allocator), [2, 3, 3, 4], "what was remembered stays");
    allocator.record_history(options.clear(true)).unwrap();
    assert!(sizes(&allocator).is_empty());
}

#[test]
fn trackers_hear_everything_under_the_lock_and_observers_outside_it() {
    let (_, allocator) = allocator("", Policy::torch_2_11());
    let allocator = Arc::new(allocator);
    let told: Arc<Mutex<Vec<Action>>> = Arc::default();
    let heard = told.clone();
    allocator.on_event(move |event| heard.lock().unwrap().push(event.action));
    let block = allocator.malloc(100, MAIN).unwrap();
    assert_eq!(*told.lock().unwrap(), [Action::SegmentAlloc, Action::Alloc], "with no history on");
    let skip: Actions = Action::ALL.into_iter().collect();
    allocator.record_history(HistoryOptions::default().skip(skip)).unwrap();
    allocator.free(block).unwrap();
    assert!(everything(&allocator).trace.is_empty());
    let expected = [Action::FreeRequested, Action::FreeCompleted, Action::Snapshot];
    assert_eq!(told.lock().unwrap()[2..], expected, "what is skipped is told all the same");
    // An observer may call the allocator: it runs once the lock is dropped.
    let (caller, seen) = (Arc::downgrade(&allocator), Arc::new(AtomicUsize::new(0)));
    let counted = seen.clone();
    allocator.on_out_of_memory(move |_| {
        let allocator = caller.upgrade().unwrap();
        counted.store(allocator.stats().num_ooms as usize, Ordering::Relaxed);
    });
    assert!(allocator.malloc(200 * MIB, MAIN).is_err());
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert_eq!(told.lock().unwrap().last(), Some(&Action::OutOfMemory));
}

#[test]
fn remarks_compile_contexts_and_annotations_go_with_the_events() {
    let (_, allocator) = allocator("", Policy::default());
    allocator.annotate("before", Stage::Start);
    allocator.record_history(HistoryOptions::default()).unwrap();
    allocator.annotate("step", Stage::Start);
    note::set_user_metadata("batch 3");
    let block = allocator.malloc(100, MAIN).unwrap();
    note::push_compile_context("graph 1");
    allocator.free(block).unwrap();
    note::pop_compile_context();
    note::set_user_metadata("");
    allocator.annotate("step", Stage::End);
    let shot = everything(&allocator);
    let notes: Vec<_> = shot
        .trace
        .iter()
        .map(|entry| (entry.compile_context.as_deref(), &*entry.user_metadata))
        .collect();
    let [alone, both] = [(None, "batch 3"), (Some("graph 1"), "batch 3")];
    assert_eq!(notes, [alone, alone, both, both]);
    let annotations: Vec<_> =
        shot.annotations.iter().map(|annotation| (&*annotation.name, annotation.stage)).collect();
    assert_eq!(annotations, [("step", Stage::Start), ("step", Stage::End)]);
    let bare = allocator.take_snapshot(SnapshotOptions::default().traces(false));
    assert!(bare.annotations.is_empty(), "they belong to the history");
    allocator.record_history(HistoryOptions::default()).unwrap();
    assert!(everything(&allocator).annotations.is_empty(), "as in PyTorch");
}

#[test]
fn a_snapshot_shows_one_pool_or_everything_with_or_without_traces() {
    let (_, allocator) = allocator("", Policy::torch_2_11());
    allocator.record_history(HistoryOptions::default()).unwrap();
    let pool = PoolId(0, 7);
    allocator.begin_pool(pool, Filter::Any).unwrap();
    let inside = allocator.malloc(100, MAIN).unwrap();
    allocator.end_pool(pool).unwrap();
    let _outside = allocator.malloc(300, MAIN).unwrap();
    let all = everything(&allocator);
    assert_eq!(all.runs.len(), 2);
    assert_eq!(all.trace.iter().filter(|entry| entry.pool == pool).count(), 2);
    let only = SnapshotOptions::default().pool(Some(pool)).traces(false);
    let one = allocator.take_snapshot(only);
    assert!(one.trace.is_empty());
    let [run] = &one.runs[..] else { panic!("one segment: {:?}", one.runs) };
    assert_eq!((run.pool, run.addr, run.blocks[0].state), (pool, inside, State::Live));
    assert_eq!((run.allocated_bytes(), run.requested_bytes()), (512, 100));
    let none = SnapshotOptions::default().pool(Some(PoolId(0, 8))).traces(true);
    assert!(allocator.take_snapshot(none).runs.is_empty());
    let shots: Vec<_> = everything(&allocator)
        .trace
        .iter()
        .filter(|entry| entry.action == Action::Snapshot)
        .map(|entry| (entry.pool, entry.size_bytes))
        .collect();
    assert_eq!(shots, [(PoolId::NONE, 1024), (pool, 512), (PoolId(0, 8), 0)]);
}

#[test]
fn a_context_is_the_callers_although_the_lock_is_dropped_in_the_middle() {
    let (_, allocator) = allocator("release_lock_on_cudamalloc:True", Policy::torch_2_11());
    let allocator = Arc::new(allocator);
    let (_, options) = counting_hook();
    allocator.record_history(options.level(Level::All)).unwrap();
    // The callback of a miss allocates too, between the miss and the segment.
    let (caller, is_inside) = (Arc::downgrade(&allocator), AtomicUsize::new(0));
    allocator.on_miss(move || {
        if is_inside.fetch_add(1, Ordering::Relaxed) == 0 {
            let allocator = caller.upgrade().unwrap();
            let block = allocator.malloc(3 * MIB, MAIN).unwrap();
            allocator.free(block).unwrap();
        }
        false
    });
    let block = allocator.malloc(100, MAIN).unwrap();
    let trace = everything(&allocator).trace;
    let calls: Vec<_> =
        trace.iter().map(|entry| (entry.action, call_of(entry.context.as_ref()))).collect();
    let expected = [
        (Action::SegmentAlloc, Some(2)),
        (Action::Alloc, Some(2)),
        (Action::FreeRequested, Some(3)),
        (Action::FreeCompleted, Some(3)),
        (Action::SegmentAlloc, Some(1)),
        (Action::Alloc, Some(1)),
    ];
    assert_eq!(calls, expected);
    assert_eq!(call_of(allocator.context_of(block).as_ref()), Some(1));
}

#[test]
fn threads_record_at_once_and_every_event_is_there() {
    let (_, allocator) = allocator("", Policy::default());
    let (_, options) = counting_hook();
    allocator.record_history(options.level(Level::All)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let allocator = &allocator;
            scope.spawn(move || {
                note::set_user_metadata(&format!("thread {thread}"));
                for size in 1..=200 {
                    let block = allocator.malloc(size, StreamId(thread)).unwrap();
                    allocator.free(block).unwrap();
                }
            });
        }
    });
    let trace = everything(&allocator).trace;
    for thread in 0..4 {
        let remark = format!("thread {thread}");
        let own: Vec<_> = trace.iter().filter(|entry| *entry.user_metadata == *remark).collect();
        assert!(own.iter().all(|entry| entry.stream == StreamId(thread)));
        let allocs = own.iter().filter(|entry| entry.action == Action::Alloc);
        assert!(allocs.map(|entry| entry.size_bytes).eq(1..=200));
    }
    assert!(trace.is_sorted_by_key(|entry| entry.time_ns));
    allocator.check().unwrap();
}

#[test]
fn a_fleet_remembers_on_every_device() {
    let allocators = (0..2).map(|index| {
        let device = SimDevice::new(SimOptions::default().index(index));
        Allocator::new(Arc::new(device), Config::default(), Policy::default())
    });
    let fleet = Fleet::new(allocators.collect());
    fleet.record_history(&HistoryOptions::default()).unwrap();
    let _block = fleet.malloc(DeviceIndex(1), 100, MAIN).unwrap();
    let shots = fleet.take_snapshots(SnapshotOptions::default());
    let lengths: Vec<_> = shots.iter().map(|shot| (shot.device.0, shot.trace.len())).collect();
    assert_eq!(lengths, [(0, 0), (1, 2)]);
    fleet.stop_history();
    assert!(fleet.allocators().iter().all(|allocator| !allocator.is_recording()));
}

/// Contexts are turned off between the moment in which one is gathered and the call that it is for,
/// by the hook itself here: it is nobody's, or what merges and splits later would lose track of
/// whose it is.
#[test]
fn a_context_that_comes_too_late_is_let_go_of() {
    for turns_off in [false, true] {
        let (_, allocator) = allocator("", Policy::torch_2_11());
        let allocator = Arc::new(allocator);
        let weak = Arc::downgrade(&allocator);
        let hook = move || -> Option<Arc<dyn Context>> {
            let allocator = weak.upgrade()?;
            if turns_off {
                allocator.stop_history();
            } else {
                allocator.record_history(HistoryOptions::default()).unwrap();
            }
            Some(Arc::new(call(1)))
        };
        let level = Level::All;
        let context_hook = Some(Arc::new(hook) as _);
        let mut options = HistoryOptions::default().level(level);
        options.context_hook = context_hook;
        allocator.record_history(options).unwrap();
        let blocks = [0, 1].map(|_| allocator.malloc(6 * MIB, MAIN).unwrap());
        assert_eq!(allocator.context_count(), 0);
        for block in blocks {
            allocator.free(block).unwrap();
        }
        assert_eq!(allocator.check(), Ok(()));
    }
}

/// While a request has let go of the lock its context is taken along, and comes back too late.
#[test]
fn a_context_that_comes_back_too_late_is_let_go_of() {
    let (_, allocator) = allocator("", Policy::torch_2_11());
    let allocator = Arc::new(allocator);
    let (_, options) = counting_hook();
    allocator.record_history(options.level(Level::All)).unwrap();
    let weak = Arc::downgrade(&allocator);
    allocator.on_miss(move || {
        let entries = HistoryOptions::default().clear(true);
        weak.upgrade().unwrap().record_history(entries).unwrap();
        false
    });
    let block = allocator.malloc(6 * MIB, MAIN).unwrap();
    assert_eq!((allocator.context_count(), allocator.check()), (0, Ok(())));
    allocator.free(block).unwrap();
    assert_eq!(allocator.check(), Ok(()));
}
