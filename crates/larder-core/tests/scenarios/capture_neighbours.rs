//! Threads beside another's capture, or beside a scope that is no capture's: they break nothing,
//! and they get their memory back.

use std::sync::mpsc::channel;
use std::thread;

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};
use larder_core::{Policy, PoolId, StreamId};

const CAPTURED: StreamId = StreamId(8);
const GRAPH: PoolId = PoolId(1, 0);
const POOL: PoolId = PoolId(0, 1);

/// Does something in a thread of its own, and waits for it.
fn elsewhere<T: Send>(deed: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(deed).join().unwrap())
}

/// The policies under which a scope is not taken for a capture as such.
fn discerning() -> impl Iterator<Item = Policy> {
    let names = ["torch-2.11", "torch-2.12"];
    Policy::all().into_iter().filter(move |policy| !names.contains(&policy.to_string().as_str()))
}

/// Works for long with little memory: blocks that another thread says are used on another stream,
/// and whose use is over.
fn work_for_long(top: &BenchTop) {
    for round in 0..20 {
        let used = top.try_malloc_on(20 * MIB, FAR);
        let used = used.unwrap_or_else(|error| panic!("round {round}: {error}"));
        elsewhere(|| top.record(used, SIDE));
        top.free(used);
        top.device.sync(SIDE);
    }
}

/// Opens a scope for the calling thread's requests.
fn open_scope(top: &BenchTop, pool: PoolId) {
    top.allocator.begin_pool(pool, Filter::Thread(thread::current().id())).unwrap();
}

/// A stream was named before another thread began a capture, and it has joined since.
#[test]
fn a_free_and_a_malloc_leave_a_capture_alone_that_a_stream_has_joined() {
    for policy in Policy::all() {
        println!("{policy}");
        // Pages go only of the caller's own stream.
        let in_pages = policy == Policy::tight();
        let gives_back = !in_pages && discerning().any(|discerning| discerning == policy);
        let top = &BenchTop::new(64 * MIB, "", policy);
        let used = top.malloc_on(30 * MIB, FAR);
        top.device.issue(SIDE);
        top.record(used, SIDE);
        elsewhere(|| {
            top.allocator.begin_pool(GRAPH, Filter::Capture(CAPTURED)).unwrap();
            top.device.begin_capture(CAPTURED).unwrap();
            top.allocator.mark_capture_begin(CAPTURED).unwrap();
            top.malloc_on(MIB, CAPTURED);
            top.device.follow(SIDE, CAPTURED).unwrap();
        });
        let cached = top.malloc_on(28 * MIB, MAIN);
        top.free(cached);
        top.free(used);
        top.malloc_on(512, FAR);
        // Where memory is short, what others have cached is given back, and nothing is asked about
        // the stream.
        if gives_back {
            top.malloc_on(24 * MIB, FAR);
        }
        let refused = top.try_malloc_on(60 * MIB, FAR).unwrap_err();
        assert!(refused.to_string().contains("out of memory"), "{refused}");
        elsewhere(|| top.allocator.empty_cache()).unwrap();
        top.device.follow(CAPTURED, SIDE).unwrap();
        top.device.end_capture(CAPTURED).expect("nobody broke the capture");
    }
}

/// A thread opened a scope, and waits for its workers, or for something else.
#[test]
fn a_scope_that_is_no_captures_keeps_no_memory_from_others() {
    let me = thread::current().id();
    for filter in [Filter::Any, Filter::Thread(me), Filter::Stream(StreamId(9))] {
        for allocates in [false, true] {
            for policy in discerning() {
                println!("{policy}, {filter:?}, allocates {allocates}");
                let top = &BenchTop::new(128 * MIB, "", policy);
                top.allocator.begin_pool(POOL, filter).unwrap();
                if allocates {
                    top.malloc_on(MIB, MAIN);
                }
                elsewhere(|| work_for_long(top));
            }
        }
    }
}

/// Backward in another thread, inside a pool's scope: uses are noted by the first, and freed by the
/// second.
#[test]
fn what_one_thread_used_before_its_scope_another_can_free_in_it() {
    for policy in discerning() {
        println!("{policy}");
        let top = &BenchTop::new(256 * MIB, "", policy);
        let activations = [(); 8].map(|()| top.malloc_on(20 * MIB, MAIN));
        for activation in activations {
            top.record(activation, SIDE);
        }
        open_scope(top, POOL);
        top.malloc_on(MIB, MAIN);
        elsewhere(|| {
            for activation in activations {
                top.try_malloc_on(20 * MIB, MAIN).unwrap();
                top.free(activation);
                top.device.sync(SIDE);
            }
        });
    }
}

/// A capture that nobody marked runs in an inner scope, whose end is its end, beside another
/// thread's scope.
#[test]
fn a_capture_is_over_with_the_newest_scope_of_its_thread() {
    let top = &BenchTop::larder(128 * MIB, "");
    open_scope(top, POOL);
    top.malloc_on(512, MAIN);
    elsewhere(|| {
        open_scope(top, PoolId(0, 2));
        top.malloc_on(512, FAR);
    });
    top.allocator.begin_pool_by(GRAPH, |stream| stream == CAPTURED).unwrap();
    top.device.begin_capture(CAPTURED).unwrap();
    top.malloc_on(MIB, CAPTURED);
    top.device.end_capture(CAPTURED).unwrap();
    top.allocator.end_pool(GRAPH).unwrap();
    work_for_long(top);
}

/// A thread that helps the capturing one is the first to allocate in the capture, with or without a
/// scope of its own, and a third has a scope all the time.
#[test]
fn a_capture_that_a_helper_saw_keeps_nobody_waiting() {
    for (marks, has_scope) in [(false, false), (false, true), (true, false), (true, true)] {
        for policy in discerning() {
            println!("{policy}, marks {marks}, the helper has a scope {has_scope}");
            let top = &BenchTop::new(128 * MIB, "", policy);
            elsewhere(|| {
                open_scope(top, POOL);
                top.malloc_on(512, FAR);
            });
            top.allocator.begin_pool_by(GRAPH, |stream| stream == CAPTURED).unwrap();
            top.device.begin_capture(CAPTURED).unwrap();
            if marks {
                top.allocator.mark_capture_begin(CAPTURED).unwrap();
            }
            let (tell, told) = channel();
            let (go, gone) = channel();
            thread::scope(|scope| {
                scope.spawn(move || {
                    if has_scope {
                        let own = StreamId(51);
                        top.allocator.begin_pool(PoolId(0, 3), Filter::Stream(own)).unwrap();
                    }
                    top.malloc_on(MIB, CAPTURED);
                    tell.send(()).unwrap();
                    gone.recv().unwrap();
                    work_for_long(top);
                });
                told.recv().unwrap();
                top.device.end_capture(CAPTURED).unwrap();
                if marks {
                    top.allocator.mark_capture_end(CAPTURED);
                }
                top.allocator.end_pool(GRAPH).unwrap();
                go.send(()).unwrap();
            });
            elsewhere(|| work_for_long(top));
        }
    }
}

/// A capture takes long. What was used before it began, on a stream that may have been left to it,
/// is freed and needed again: it is there when the thread has named that stream once more, or when
/// the capture is over.
#[test]
fn what_is_freed_beside_a_capture_is_there_when_its_stream_is_known_to_be_outside() {
    for (marks, names) in [(false, false), (false, true), (true, false), (true, true)] {
        for policy in discerning() {
            println!("{policy}, marks {marks}, names {names}");
            let top = &BenchTop::new(256 * MIB, "", policy);
            let blocks = [(); 8].map(|()| top.malloc_on(20 * MIB, FAR));
            for block in blocks {
                top.record(block, SIDE);
            }
            elsewhere(|| {
                top.allocator.begin_pool(GRAPH, Filter::Capture(CAPTURED)).unwrap();
                top.device.begin_capture(CAPTURED).unwrap();
                if marks {
                    top.allocator.mark_capture_begin(CAPTURED).unwrap();
                }
                top.malloc_on(512, CAPTURED);
            });
            top.free_all(&blocks);
            let kept = top.malloc_on(512, FAR);
            let refused = top.try_malloc_on(200 * MIB, FAR).unwrap_err().to_string();
            assert!(refused.contains("160.00 MiB of it was freed beside a capture"), "{refused}");
            let end = || top.device.end_capture(CAPTURED).expect("nobody broke the capture");
            if names {
                top.record(kept, SIDE);
            } else {
                end();
                elsewhere(|| top.allocator.end_pool(GRAPH)).unwrap();
            }
            for _ in blocks {
                top.try_malloc_on(20 * MIB, FAR).unwrap();
            }
            if names {
                end();
            }
        }
    }
}

/// Captures follow each other without a pause, and somebody works beside them who names his stream
/// again and again.
#[test]
fn what_is_freed_beside_captures_that_follow_each_other_comes_back() {
    for policy in discerning() {
        println!("{policy}");
        let top = &BenchTop::new(GIB, "", policy);
        let begin = |at: u64| {
            let (pool, stream) = (PoolId(at + 1, 0), StreamId(30 + at % 2));
            top.allocator.begin_pool(pool, Filter::Capture(stream)).unwrap();
            top.device.begin_capture(stream).unwrap();
        };
        let end = |at: u64| {
            top.device.end_capture(StreamId(30 + at % 2)).expect("nobody broke the capture");
            top.allocator.end_pool(PoolId(at + 1, 0)).unwrap();
        };
        elsewhere(|| begin(0));
        for round in 1..50 {
            let used = top.malloc_on(20 * MIB, FAR);
            top.record(used, SIDE);
            elsewhere(|| begin(round));
            top.free(used);
            top.device.sync(SIDE);
            elsewhere(|| end(round - 1));
        }
        assert!(top.device.used_bytes() < 200 * MIB, "a few blocks, and not all");
    }
}

/// Nobody told of the capture, and nothing was allocated in it; but its thread frees a block, or
/// notes a use.
#[test]
fn what_a_thread_is_told_of_other_streams_does_not_end_the_suspicion_that_it_captures() {
    for frees in [false, true] {
        let top = &BenchTop::larder(GIB, "expandable_segments:True");
        let cached = top.malloc_on(20 * MIB, CAPTURED);
        top.free(cached);
        let used = top.malloc_on(2 * MIB, FAR);
        if frees {
            top.record(used, SIDE);
        }
        top.allocator.begin_pool_by(GRAPH, |stream| stream == CAPTURED).unwrap();
        top.device.begin_capture(CAPTURED).unwrap();
        if frees {
            top.free(used);
        } else {
            top.record(used, SIDE);
        }
        elsewhere(|| top.allocator.empty_cache()).unwrap();
        top.device.end_capture(CAPTURED).expect("nobody broke the capture");
    }
}

/// A capture that was never marked is said to be over.
#[test]
fn a_word_about_another_stream_ends_no_mark() {
    let top = &BenchTop::new(64 * MIB, "", Policy::torch_2_15());
    let cached = top.malloc_on(40 * MIB, FAR);
    top.free(cached);
    top.allocator.begin_pool(GRAPH, Filter::Capture(CAPTURED)).unwrap();
    top.device.begin_capture(CAPTURED).unwrap();
    top.allocator.mark_capture_begin(CAPTURED).unwrap();
    elsewhere(|| top.allocator.mark_capture_end(SIDE));
    let refused = top.try_malloc_on(40 * MIB, CAPTURED);
    assert!(refused.is_err(), "nothing is given back inside a capture");
}
