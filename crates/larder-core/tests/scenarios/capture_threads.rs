//! Threads that capture, threads that do not, and streams that come and go: no call is ever made
//! about a stream but by whoever it belongs to.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::error::{CaptureProblem, Error};
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Allocator, MemPool, Policy, PoolId, StreamId};
use larder_sim::random::Random;
use larder_sim::{SimDevice, SimOptions};

thread_local! {
    /// The stream that a thread works on, as the program tells where it tells.
    static CURRENT: Cell<Option<StreamId>> = const { Cell::new(None) };
}

/// How a capturing thread says which requests are its capture's.
#[derive(Clone, Copy)]
enum By {
    Filter,
    Function,
    Thread,
}

/// What a program says of its captures besides.
#[derive(Clone, Copy, Default)]
struct Says {
    /// When they begin, and when they are over.
    marks: bool,
    /// Which stream each thread works on.
    current: bool,
}

/// A program that marks its captures, with and without a word on who works where.
const MARKED: [Says; 2] =
    [Says { marks: true, current: false }, Says { marks: true, current: true }];

impl Says {
    fn prepare(self, allocator: &Allocator) {
        if self.current {
            allocator.on_current_stream(|| CURRENT.get());
        }
    }
}

/// A device on which it takes a while to begin or to end a capture.
fn slow_top(settings: &str, policy: Policy) -> BenchTop {
    let pause = Duration::from_micros(200);
    BenchTop::with(SimOptions::default().pause(pause), settings, policy)
}

/// One capture after the other on two streams, each with blocks that both use. Blocks that were
/// used on both before are given to others to free.
fn capture_again_and_again(
    (device, allocator): (&SimDevice, &Arc<Allocator>),
    [main, side]: [StreamId; 2],
    (by, says): (By, Says),
    (times, given): (u32, &Sender<Addr>),
) {
    CURRENT.set(Some(main));
    for _ in 0..times {
        let eager = allocator.malloc(3 * MIB, main).unwrap();
        device.issue(side);
        allocator.record_stream(eager, side).unwrap();
        given.send(eager).unwrap();
        let pool = MemPool::for_capture(allocator).unwrap();
        match by {
            By::Filter => allocator.begin_pool(pool.id(), Filter::Capture(main)).unwrap(),
            By::Thread => {
                let own = Filter::Thread(thread::current().id());
                allocator.begin_pool(pool.id(), own).unwrap();
            }
            By::Function => {
                let takes = move |stream| stream == main || stream == side;
                allocator.begin_pool_by(pool.id(), takes).unwrap();
            }
        }
        device.begin_capture(main).unwrap();
        if says.marks {
            allocator.mark_capture_begin(main).unwrap();
        }
        let mut kept = Vec::new();
        for turn in 0..4 {
            let block = allocator.malloc((turn + 1) * MIB, main).unwrap();
            device.issue(main);
            device.follow(side, main).unwrap();
            allocator.record_stream(block, side).unwrap();
            device.issue(side);
            device.follow(main, side).unwrap();
            if turn % 2 == 0 {
                allocator.free(block).unwrap();
            } else {
                kept.push(block);
            }
        }
        device.end_capture(main).expect("nobody broke the capture");
        if says.marks {
            allocator.mark_capture_end(main);
        }
        allocator.end_pool(pool.id()).unwrap();
        allocator.drop_pool_use(pool.id()).unwrap();
        for block in kept {
            allocator.free(block).unwrap();
        }
    }
}

/// Blocks on streams of this thread, and those of others that it is given, until it is told to
/// stop.
fn work(
    (device, allocator): (&SimDevice, &Allocator),
    streams: [StreamId; 2],
    (given, stop): (&Receiver<Addr>, &AtomicBool),
) {
    let mut random = Random::new(streams[0].0);
    let mut live: Vec<Addr> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        live.extend(given.try_iter());
        // PyTorch's policy holds what is freed for as long as any scope is open, which is all the
        // time here: without a rest it would soon be all memory there is.
        thread::sleep(Duration::from_micros(10));
        let own = streams[random.below(2) as usize];
        CURRENT.set(Some(own));
        match random.below(8) {
            0..4 => live.push(allocator.malloc(random.between(1, 6 * MIB), own).unwrap()),
            4 if !live.is_empty() => {
                device.issue(own);
                let block = live[random.below(live.len() as u64) as usize];
                allocator.record_stream(block, own).unwrap();
            }
            5 => device.sync(own),
            6 if random.chance(0.1) => allocator.empty_cache().unwrap(),
            _ => {}
        }
        while live.len() > 8 {
            let block = live.swap_remove(random.below(live.len() as u64) as usize);
            allocator.free(block).unwrap();
        }
    }
    live.extend(given.try_iter());
    for block in live {
        allocator.free(block).unwrap();
    }
}

fn race(settings: &str, policy: Policy, (by, says): (By, Says)) {
    println!("{policy} with '{settings}'");
    let top = slow_top(settings, policy);
    let (device, allocator) = (&*top.device, &top.allocator);
    says.prepare(allocator);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut gives = Vec::new();
        let mut workers = Vec::new();
        for streams in [[10, 11], [20, 21]] {
            let (give, given) = channel();
            gives.push(give);
            let (streams, stop) = (streams.map(StreamId), &stop);
            workers.push(scope.spawn(move || work((device, allocator), streams, (&given, stop))));
        }
        let capturers: Vec<_> = [[30, 31], [40, 41]]
            .into_iter()
            .zip(gives)
            .map(|(streams, give)| {
                let streams = streams.map(StreamId);
                scope.spawn(move || {
                    let how = (by, says);
                    capture_again_and_again((device, allocator), streams, how, (60, &give));
                })
            })
            .collect();
        let failed = capturers.into_iter().filter_map(|thread| thread.join().err()).count();
        stop.store(true, Ordering::Relaxed);
        drop(workers);
        assert_eq!(failed, 0, "a capturing thread panicked");
    });
    assert_eq!(device.trespasses(), [""; 0]);
    top.settle();
    for stream in [10, 11, 20, 21, 30, 31, 40, 41] {
        device.sync(StreamId(stream));
    }
    top.empty();
    assert_eq!((device.used_bytes(), allocator.stats().active.all.current), (0, 0));
}

#[test]
fn threads_that_capture_and_threads_that_do_not_keep_out_of_each_others_streams() {
    for settings in ["", "expandable_segments:True", "graph_capture_record_stream_reuse:True"] {
        for by in [By::Filter, By::Function, By::Thread] {
            race(settings, Policy::larder(), (by, Says::default()));
        }
    }
}

#[test]
fn so_they_do_under_torchs_policy() {
    for settings in ["", "expandable_segments:True"] {
        race(settings, Policy::torch_2_11(), (By::Filter, Says::default()));
    }
}

/// PyTorch asks about the stream that a thread works on, since 2.13, which a program may tell or
/// not.
#[test]
fn so_they_do_where_captures_are_marked() {
    for settings in ["", "expandable_segments:True", "graph_capture_record_stream_reuse:True"] {
        for says in MARKED {
            race(settings, Policy::torch_2_15(), (By::Filter, says));
            race(settings, Policy::torch_2_15(), (By::Function, says));
            race(settings, Policy::larder(), (By::Filter, says));
        }
    }
}

/// What a thread does about another's capture, it does without asking.
#[test]
fn beside_another_threads_capture_nothing_is_asked_about_its_streams() {
    let top = BenchTop::larder(GIB, "");
    let used = top.malloc_on(2 * MIB, FAR);
    let graph = MemPool::for_capture(&top.allocator).unwrap();
    let scope = graph.scope_for(Filter::Capture(MAIN), || {
        top.device.begin_capture(MAIN).unwrap();
        top.device.follow(SIDE, MAIN).unwrap();
        top.record(used, SIDE);
        thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                let before = top.device.calls();
                top.free(used);
                let after = top.device.calls();
                assert_eq!(
                    after.capture_of, before.capture_of,
                    "a free asks about nobody's stream"
                );
                assert_eq!(after.record_event, 0, "and it records nothing in the capture");
                top.malloc_on(2 * MIB, FAR);
                let own = top.device.calls().capture_of - after.capture_of;
                assert_eq!(own, 1, "a request asks about its own");
                top.empty();
                assert_eq!(top.device.calls().wait_stream, 0);
            });
            stranger.join().unwrap();
        });
        top.device.follow(MAIN, SIDE).unwrap();
        top.device.end_capture(MAIN).expect("nobody broke the capture");
    });
    scope.unwrap();
    assert_eq!(
        top.stats().active.all.current,
        1,
        "what was put off came back with the scope's end"
    );
}

/// Also where the first stream of the block that is freed is the captured one, and where PyTorch
/// would ask about the stream that the thread works on, which nobody tells here.
#[test]
fn a_free_beside_another_threads_capture_asks_about_nobodys_stream() {
    for settings in ["", "graph_capture_record_stream_reuse:True"] {
        for policy in Policy::all() {
            println!("{policy} with '{settings}'");
            let top = &BenchTop::new(GIB, settings, policy);
            let used = top.malloc_on(2 * MIB, SIDE);
            top.record(used, FAR);
            top.allocator.begin_pool(PoolId(1, 0), Filter::Capture(SIDE)).unwrap();
            top.device.begin_capture(SIDE).unwrap();
            top.allocator.mark_capture_begin(SIDE).unwrap();
            let before = top.device.calls();
            thread::scope(|scope| scope.spawn(|| top.free(used)).join().unwrap());
            let after = top.device.calls();
            assert_eq!((after.capture_of, after.capture_ends), (before.capture_of, 0));
            assert_eq!(after.record_event, 0, "and it records nothing in the capture");
            top.device.end_capture(SIDE).expect("nobody broke the capture");
            top.allocator.mark_capture_end(SIDE);
            top.allocator.end_pool(PoolId(1, 0)).unwrap();
            top.malloc(512);
            top.empty();
            assert_eq!(top.stats().active.all.current, 1, "the request alone");
        }
    }
}

/// A thread that works for the capturing one, in a pool of its own, may be the first to hear of the
/// capture.
#[test]
fn whoever_saw_a_capture_first_does_not_take_its_streams_for_its_own() {
    for policy in Policy::all() {
        println!("{policy}");
        let top = &BenchTop::new(GIB, "graph_capture_record_stream_reuse:True", policy);
        top.allocator.begin_pool(PoolId(1, 0), Filter::Capture(MAIN)).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        for side in [SIDE, FAR] {
            top.device.follow(side, MAIN).unwrap();
        }
        let help = || {
            let block = top.malloc_on(2 * MIB, SIDE);
            top.record(block, FAR);
            let before = top.device.calls();
            top.free(block);
            let after = top.device.calls();
            assert_eq!(after.capture_of, before.capture_of);
            assert_eq!(after.capture_ends, 0, "nothing is asked that its end might meet");
        };
        let pool = &MemPool::new(&top.allocator).unwrap();
        thread::scope(|scope| scope.spawn(|| pool.scope(help).unwrap()).join().unwrap());
        top.device.end_capture(MAIN).expect("nobody broke the capture");
        top.allocator.end_pool(PoolId(1, 0)).unwrap();
    }
}

/// A stream may have joined another thread's capture since it was named, unless the one who frees
/// named it last.
#[test]
fn a_free_records_nothing_where_somebody_else_worked_last() {
    for named_inside in [false, true] {
        for policy in Policy::all() {
            println!("{policy}, named inside the capture's scope {named_inside}");
            let top = &BenchTop::new(GIB, "", policy);
            let used = top.malloc_on(2 * MIB, FAR);
            let note_use = || top.record(used, SIDE);
            let capture = || {
                top.allocator.begin_pool(PoolId(1, 0), Filter::Capture(MAIN)).unwrap();
                if named_inside {
                    top.malloc_on(2 * MIB, SIDE);
                }
                top.device.begin_capture(MAIN).unwrap();
                top.allocator.mark_capture_begin(MAIN).unwrap();
                top.device.follow(SIDE, MAIN).unwrap();
            };
            if named_inside {
                note_use();
            } else {
                thread::scope(|scope| scope.spawn(note_use).join().unwrap());
            }
            thread::scope(|scope| scope.spawn(capture).join().unwrap());
            top.free(used);
            assert_eq!(top.device.calls().record_event, 0, "it would be part of the capture");
            top.device.follow(MAIN, SIDE).unwrap();
            top.device.end_capture(MAIN).expect("nobody broke the capture");
            top.allocator.mark_capture_end(MAIN);
            top.allocator.end_pool(PoolId(1, 0)).unwrap();
            top.malloc(512);
            top.empty();
            let left = 1 + i64::from(named_inside);
            assert_eq!(top.stats().active.all.current, left, "it came back");
        }
    }
}

/// The one who frees named the stream last, and cannot know that it has joined another's capture
/// since.
#[test]
fn an_event_that_came_into_a_capture_keeps_nobody_waiting_for_ever() {
    for waits in [false, true] {
        for policy in Policy::all().into_iter().filter(Policy::capture_is_by_stream) {
            println!("{policy}, waits {waits}");
            let top = &BenchTop::new(GIB, "", policy);
            let used = top.malloc_on(2 * MIB, FAR);
            let capture = || {
                top.allocator.begin_pool(PoolId(1, 0), Filter::Capture(MAIN)).unwrap();
                top.device.begin_capture(MAIN).unwrap();
            };
            thread::scope(|scope| scope.spawn(capture).join().unwrap());
            top.device.issue(SIDE);
            top.record(used, SIDE);
            top.device.follow(SIDE, MAIN).unwrap();
            top.free(used);
            assert_eq!(top.device.calls().record_event, 1, "into the capture");
            top.device.follow(MAIN, SIDE).unwrap();
            top.device.end_capture(MAIN).unwrap();
            top.allocator.end_pool(PoolId(1, 0)).unwrap();
            if waits {
                top.empty();
            } else {
                top.malloc(512);
                assert!(top.device.calls().record_event > 1, "once more, where it really is");
                top.device.sync(SIDE);
                top.malloc(512);
            }
            let left = if waits { 0 } else { 2 };
            assert_eq!(top.stats().active.all.current, left, "it came back");
            assert_eq!(top.allocator.check(), Ok(()));
        }
    }
}

/// A capture is over, its scope was left open, and another thread captures the same stream.
#[test]
fn a_scope_that_was_left_open_asks_no_more_about_a_stream_that_another_captures() {
    for policy in Policy::all() {
        println!("{policy}");
        let top = &BenchTop::new(GIB, "", policy);
        let used = top.malloc_on(2 * MIB, FAR);
        top.record(used, MAIN);
        let capture = |pool| {
            top.allocator.begin_pool(pool, Filter::Capture(SIDE)).unwrap();
            top.device.begin_capture(SIDE).unwrap();
        };
        capture(PoolId(1, 0));
        top.device.end_capture(SIDE).unwrap();
        thread::scope(|scope| scope.spawn(|| capture(PoolId(2, 0))).join().unwrap());
        let before = top.device.calls().capture_of;
        top.free(used);
        top.empty();
        assert_eq!(top.device.calls().capture_of, before);
    }
}

/// A scope that is no capture's was opened by a thread when it worked on a stream that another
/// captures now.
#[test]
fn a_stream_that_was_left_to_another_thread_is_not_asked_about() {
    let filters = [Filter::Capture(SIDE), Filter::Stream(SIDE)];
    let cases = Policy::all().into_iter().flat_map(|policy| filters.map(|by| (policy.clone(), by)));
    for (policy, filter) in cases {
        println!("{policy}, {filter:?}");
        let top = &BenchTop::new(GIB, "", policy);
        top.allocator.on_current_stream(|| CURRENT.get());
        CURRENT.set(Some(SIDE));
        top.allocator.begin_pool(PoolId(0, 1), Filter::Thread(thread::current().id())).unwrap();
        CURRENT.set(Some(FAR));
        let capture = || {
            CURRENT.set(Some(SIDE));
            top.allocator.begin_pool(PoolId(1, 0), filter).unwrap();
            top.device.begin_capture(SIDE).unwrap();
        };
        thread::scope(|scope| scope.spawn(capture).join().unwrap());
        let before = top.device.calls().capture_of;
        top.malloc_on(2 * MIB, FAR);
        assert_eq!(top.device.calls().capture_of - before, 1, "it asks about its own");
    }
}

/// A thread that works for the capturing one finds the scope by the mark.
#[test]
fn a_mark_tells_other_threads_of_a_capture() {
    let top = BenchTop::larder(GIB, "");
    let graph = MemPool::for_capture(&top.allocator).unwrap();
    let malloc_elsewhere =
        || thread::scope(|scope| scope.spawn(|| top.malloc_on(2 * MIB, SIDE)).join().unwrap());
    let problem = |problem| Err(Error::Capture { stream: MAIN, problem });
    assert_eq!(top.allocator.mark_capture_begin(MAIN), problem(CaptureProblem::NoScope));
    let scope = graph.scope_for(Filter::Capture(MAIN), || {
        assert_eq!(top.allocator.mark_capture_begin(MAIN), problem(CaptureProblem::NotCaptured));
        top.device.begin_capture(MAIN).unwrap();
        top.device.follow(SIDE, MAIN).unwrap();
        let unmarked = malloc_elsewhere();
        assert!(graph.has_live(&[]).unwrap(), "nobody knows yet which capture the scope is of");
        top.allocator.mark_capture_begin(MAIN).unwrap();
        let marked = malloc_elsewhere();
        assert!(graph.has_live(&[marked]).unwrap());
        top.device.follow(MAIN, SIDE).unwrap();
        top.device.end_capture(MAIN).unwrap();
        top.allocator.mark_capture_end(MAIN);
        [unmarked, marked]
    });
    top.free_all(&scope.unwrap());
}

/// A capture that was never said to be over, and a newer one on its stream: each token ends its
/// own.
#[test]
fn a_token_ends_its_own_capture_and_once() {
    let top = BenchTop::larder(GIB, "");
    let graph = MemPool::for_capture(&top.allocator).unwrap();
    let malloc_elsewhere =
        || thread::scope(|scope| scope.spawn(|| top.malloc_on(2 * MIB, SIDE)).join().unwrap());
    let blocks = graph.scope_for(Filter::Capture(MAIN), || {
        top.device.begin_capture(MAIN).unwrap();
        let first = top.allocator.begin_capture(MAIN).unwrap();
        top.device.end_capture(MAIN).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        let second = top.allocator.begin_capture(MAIN).unwrap();
        assert_ne!(first, second);
        assert_eq!(top.allocator.end_capture(first), Ok(()));
        assert_eq!(top.allocator.end_capture(first), Err(Error::NotDeclared(first)));
        top.device.follow(SIDE, MAIN).unwrap();
        let during = malloc_elsewhere();
        assert!(graph.has_live(&[during]).unwrap(), "the newer capture goes on");
        top.device.follow(MAIN, SIDE).unwrap();
        top.device.end_capture(MAIN).unwrap();
        // Any thread may say that it is over.
        let end = || top.allocator.end_capture(second);
        assert_eq!(thread::scope(|scope| scope.spawn(end).join().unwrap()), Ok(()));
        let after = malloc_elsewhere();
        assert!(graph.has_live(&[during]).unwrap(), "what comes after it is not its own");
        top.allocator.mark_capture_end(MAIN);
        [during, after]
    });
    top.free_all(&blocks.unwrap());
}

/// As in PyTorch 2.13: where the thread's stream is captured, what it frees is freed in the
/// capture.
#[test]
fn a_free_is_part_of_the_capture_that_its_threads_stream_is_under() {
    let top = BenchTop::larder(GIB, "");
    let captured = thread::current().id();
    top.allocator.on_current_stream(move || (thread::current().id() == captured).then_some(SIDE));
    let [inside, outside] = [(); 2].map(|()| top.malloc_on(2 * MIB, FAR));
    top.record(inside, MAIN);
    let (opened, wait) = channel();
    let (close, until) = channel::<()>();
    thread::scope(|scope| {
        // Another thread's scope, so that nothing may be asked but about one's own stream.
        let (allocator, pool) = (&top.allocator, MemPool::new(&top.allocator).unwrap());
        scope.spawn(move || {
            pool.scope(|| {
                allocator.malloc(512, StreamId(7)).unwrap();
                opened.send(()).unwrap();
                let _ = until.recv();
            })
            .unwrap();
        });
        wait.recv().unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.free(inside);
        assert_eq!(top.device.calls().record_event, 0, "it waits for the end of the capture");
        let elsewhere = scope.spawn(|| {
            top.record(outside, StreamId(9));
            top.free(outside);
        });
        elsewhere.join().unwrap();
        assert_eq!(top.device.calls().record_event, 1, "a thread that captures nothing");
        top.device.end_capture(SIDE).unwrap();
        drop(close);
    });
    top.malloc(512);
    assert_eq!(top.device.calls().record_event, 2, "and then for the use that runs");
}

#[test]
fn streams_come_and_go_beside_captures() {
    come_and_go(Policy::larder(), Says::default());
    for policy in Policy::all() {
        for says in MARKED {
            come_and_go(policy.clone(), says);
        }
    }
}

fn come_and_go(policy: Policy, says: Says) {
    println!("{policy}");
    let top = slow_top("expandable_segments:True", policy);
    let (device, allocator) = (&*top.device, &top.allocator);
    says.prepare(allocator);
    let (give, given) = channel();
    thread::scope(|scope| {
        let goer = scope.spawn(move || {
            for round in 0..60_u64 {
                let stream = StreamId(10 + round % 3);
                CURRENT.set(Some(stream));
                device.create_stream(stream);
                let blocks: Vec<Addr> = given.try_iter().collect();
                let own = allocator.malloc((1 + round % 4) * MIB, stream).unwrap();
                device.issue(stream);
                for &block in &blocks {
                    allocator.record_stream(block, stream).unwrap();
                }
                if round % 2 == 0 {
                    allocator.free(own).unwrap();
                }
                for block in blocks {
                    allocator.free(block).unwrap();
                }
                allocator.forget_stream(stream).unwrap();
                CURRENT.set(None);
                device.destroy_stream(stream);
                if round % 2 == 1 {
                    allocator.free(own).unwrap();
                }
            }
            given
        });
        let streams = [30, 31].map(StreamId);
        let how = (By::Filter, says);
        capture_again_and_again((device, allocator), streams, how, (60, &give));
        drop(give);
        for block in &goer.join().unwrap() {
            allocator.free(block).unwrap();
        }
    });
    assert_eq!(device.trespasses(), [""; 0]);
    top.settle();
    for stream in [30, 31] {
        device.sync(StreamId(stream));
    }
    top.empty();
    assert_eq!((device.used_bytes(), allocator.stats().active.all.current), (0, 0));
}
