//! Streams that are gone: no call is made about them, whatever is open, whoever captures, and
//! whoever still holds memory that they used.

use std::cell::Cell;
use std::thread;

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::error::{CaptureProblem, Error};
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, MemPool, Policy, PoolId, StreamId};

const POOL: PoolId = PoolId(0, 1);
/// Settings under which pages are waited for, or not, and graphs are walked.
const SETTINGS: [&str; 3] =
    ["", "expandable_segments:True", "graph_capture_record_stream_reuse:True"];

thread_local! {
    /// The stream that a story's thread works on, where it tells.
    static CURRENT: Cell<Option<StreamId>> = const { Cell::new(None) };
}

/// Tells a story under each policy, with each of the settings, and with and without a word on which
/// stream the thread works on.
fn tell_everywhere(story: impl Fn(&BenchTop)) {
    for settings in SETTINGS {
        for policy in Policy::all() {
            for tells in [false, true] {
                println!("{policy} with '{settings}', tells {tells}");
                let top = BenchTop::new(GIB, settings, policy.clone());
                if tells {
                    top.allocator.on_current_stream(|| CURRENT.get());
                }
                story(&top);
                assert_eq!(top.device.trespasses(), [""; 0]);
            }
        }
    }
}

/// Blocks that a stream has and uses, of each kind that asks something of it later.
fn use_stream(top: &BenchTop, stream: StreamId) -> Vec<Addr> {
    let [own, cached, used, both] =
        [stream, stream, FAR, stream].map(|on| top.malloc_on(2 * MIB, on));
    top.record(used, stream);
    top.record(both, FAR);
    top.free(cached);
    vec![own, used, both]
}

/// Whatever may ask about a stream later, when it is gone.
fn go_on(top: &BenchTop, blocks: &[Addr]) {
    top.empty();
    let later = top.malloc_on(2 * MIB, FAR);
    top.record(later, MAIN);
    top.free_all(blocks);
    top.free(later);
    top.empty();
}

#[test]
fn a_stream_that_is_forgotten_is_never_named_again() {
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let own = top.malloc_on(2 * MIB, SIDE);
            let cached = top.malloc_on(30 * MIB, SIDE);
            let [used, awaited] = [(); 2].map(|()| top.malloc_on(2 * MIB, FAR));
            top.record(used, SIDE);
            top.record(awaited, SIDE);
            top.free_all(&[awaited, cached]);
            top.device.issue(SIDE);
            top.allocator.forget_stream(SIDE).unwrap();
            top.device.destroy_stream(SIDE);
            assert_eq!(top.allocator.stats().active.all.current, 2, "nobody waits for it any more");
            assert!(top.device.used_bytes() < 70 * MIB, "and what was cached for it went back");
            top.free_all(&[used, own]);
            assert_eq!(top.stats().active.all.current, 0);
            top.empty();
            assert_eq!(top.device.used_bytes(), 0);
            assert_eq!(top.device.trespasses(), [""; 0]);
        });
    }
}

/// The block of a stream that is gone is freed while a scope is open, and another stream used it.
#[test]
fn nothing_is_asked_about_a_stream_that_is_gone_inside_a_scope() {
    for policy in Policy::all() {
        let top = BenchTop::new(GIB, "graph_capture_record_stream_reuse:True", policy);
        let block = top.malloc_on(2 * MIB, SIDE);
        top.record(block, FAR);
        top.allocator.forget_stream(SIDE).unwrap();
        top.device.destroy_stream(SIDE);
        top.allocator.begin_pool(POOL, Filter::Any).unwrap();
        top.free(block);
        top.allocator.end_pool(POOL).unwrap();
        top.empty();
        assert_eq!(top.stats().active.all.current, 0);
        assert_eq!(top.device.trespasses(), [""; 0]);
    }
}

#[test]
fn a_stream_with_the_handle_of_one_that_is_gone_starts_with_nothing() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let held = top.malloc_on(12 * MIB, SIDE);
        top.allocator.forget_stream(SIDE).unwrap();
        top.device.destroy_stream(SIDE);
        top.free(held);
        top.device.create_stream(SIDE);
        assert_ne!(top.malloc_on(12 * MIB, SIDE), held, "that was the other's");
        top.empty();
        assert_eq!(top.device.used_bytes(), 12 * MIB, "which goes when the cache is emptied");
    });
}

#[test]
fn a_stream_with_the_handle_of_one_that_is_gone_is_another_one() {
    for policy in Policy::all() {
        let top = BenchTop::new(GIB, "", policy);
        let held = top.malloc_on(12 * MIB, SIDE);
        top.allocator.forget_stream(SIDE).unwrap();
        top.device.destroy_stream(SIDE);
        top.device.create_stream(SIDE);
        top.device.issue(SIDE);
        top.record(held, SIDE);
        top.free(held);
        assert_eq!(top.stats().active.all.current, 1, "it is still in use there");
        top.device.sync(SIDE);
        top.malloc(512);
        top.empty();
        assert_eq!(top.stats().active.all.current, 1, "the request alone");
    }
}

#[test]
fn a_stream_that_is_gone_already_is_waited_for_with_the_whole_device() {
    let top = BenchTop::larder(GIB, "expandable_segments:True");
    let block = top.malloc_on(2 * MIB, FAR);
    top.record(block, SIDE);
    top.device.issue(SIDE);
    top.device.destroy_stream(SIDE);
    let graph = MemPool::for_capture(&top.allocator).unwrap();
    let scope = graph.scope_for(Filter::Capture(MAIN), || {
        top.device.begin_capture(MAIN).unwrap();
        let refused = top.allocator.stream_is_gone(SIDE);
        top.device.end_capture(MAIN).expect("nobody broke the capture");
        refused
    });
    let problem = CaptureProblem::DeviceBusy;
    assert_eq!(scope.unwrap(), Err(Error::Capture { stream: SIDE, problem }));
    top.allocator.stream_is_gone(SIDE).unwrap();
    top.free(block);
    assert_eq!(top.stats().active.all.current, 0);
    assert_eq!((top.device.calls().wait_device, top.device.trespasses().len()), (1, 0));
}

#[test]
fn the_default_stream_and_a_captured_one_are_not_forgotten() {
    let top = BenchTop::larder(GIB, "");
    let refused = |stream| match top.allocator.forget_stream(stream) {
        Err(Error::Capture { problem, .. }) => problem,
        other => panic!("this should be refused, but: {other:?}"),
    };
    assert_eq!(refused(MAIN), CaptureProblem::Default);
    let graph = MemPool::for_capture(&top.allocator).unwrap();
    let scope = graph.scope_for(Filter::Capture(SIDE), || {
        top.device.begin_capture(SIDE).unwrap();
        let problem = refused(SIDE);
        top.device.end_capture(SIDE).expect("nobody broke the capture");
        problem
    });
    assert_eq!(scope.unwrap(), CaptureProblem::Captured);
}

/// The one that is said to be gone was named inside a scope, by requests, as a user or by the scope
/// itself.
#[test]
fn whoever_is_told_of_one_that_is_gone_does_not_ask_about_it() {
    for filter in [Filter::Any, Filter::Stream(SIDE), Filter::Capture(SIDE)] {
        tell_everywhere(|top| {
            CURRENT.set(Some(SIDE));
            top.allocator.begin_pool(POOL, filter).unwrap();
            let blocks = use_stream(top, SIDE);
            top.device.destroy_stream(SIDE);
            // The program has not noticed yet that it works on a stream that is not there.
            top.allocator.stream_is_gone(SIDE).unwrap();
            CURRENT.set(Some(FAR));
            go_on(top, &blocks);
            top.allocator.end_pool(POOL).unwrap();
        });
    }
}

/// A stream may be forgotten before it is destroyed.
#[test]
fn a_scope_forgets_the_stream_that_it_was_opened_for() {
    for filter in [Filter::Any, Filter::Stream(SIDE), Filter::Capture(SIDE)] {
        tell_everywhere(|top| {
            CURRENT.set(Some(SIDE));
            top.allocator.begin_pool(POOL, filter).unwrap();
            let blocks = use_stream(top, SIDE);
            CURRENT.set(Some(FAR));
            top.allocator.forget_stream(SIDE).unwrap();
            top.device.destroy_stream(SIDE);
            go_on(top, &blocks);
            top.allocator.end_pool(POOL).unwrap();
        });
    }
}

/// It is said during a capture, when nothing can be waited for, by the capturing thread or by
/// another one.
#[test]
fn one_that_cannot_be_waited_for_yet_is_left_alone() {
    for elsewhere in [false, true] {
        tell_everywhere(|top| {
            CURRENT.set(Some(FAR));
            let blocks = use_stream(top, SIDE);
            top.allocator.begin_pool(POOL, Filter::Capture(MAIN)).unwrap();
            top.device.begin_capture(MAIN).unwrap();
            top.allocator.mark_capture_begin(MAIN).unwrap();
            let lose = || {
                top.device.destroy_stream(SIDE);
                let problem = CaptureProblem::DeviceBusy;
                let refused = top.allocator.stream_is_gone(SIDE);
                assert_eq!(refused, Err(Error::Capture { stream: SIDE, problem }));
                go_on(top, &blocks);
                assert_eq!(top.device.trespasses(), [""; 0]);
            };
            if elsewhere {
                thread::scope(|scope| scope.spawn(lose).join().unwrap());
            } else {
                lose();
            }
            top.device.end_capture(MAIN).expect("nobody broke the capture");
            top.allocator.mark_capture_end(MAIN);
            top.allocator.end_pool(POOL).unwrap();
            go_on(top, &[]);
            assert_ne!(top.stats().active.all.current, 0, "nobody waited for it yet");
            top.allocator.stream_is_gone(SIDE).unwrap();
            top.malloc(512);
            top.empty();
            assert_eq!(top.stats().active.all.current, 1, "the request alone");
        });
    }
}

/// A stream's handle is another thread's stream by the time that it is said to be gone.
#[test]
fn what_another_thread_captures_on_a_stream_of_that_name_stays_its_own() {
    tell_everywhere(|top| {
        CURRENT.set(None);
        let _old = top.malloc_on(2 * MIB, SIDE);
        top.device.destroy_stream(SIDE);
        top.device.create_stream(SIDE);
        top.allocator.begin_pool(POOL, Filter::Capture(SIDE)).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.allocator.mark_capture_begin(SIDE).unwrap();
        let first = top.malloc_on(2 * MIB, SIDE);
        let said = || top.allocator.stream_is_gone(SIDE).unwrap_err();
        thread::scope(|scope| scope.spawn(said).join().unwrap());
        let second = top.malloc_on(2 * MIB, SIDE);
        let is_its_own = top.allocator.pool_has_live(POOL, &[first, second]);
        assert_eq!(is_its_own, Ok(true), "the graph's memory is its pool's");
    });
}

/// It could not be waited for, and nobody said again that it is gone; then another one has its
/// handle.
#[test]
fn another_one_of_that_name_can_be_captured() {
    tell_everywhere(|top| {
        CURRENT.set(Some(FAR));
        top.allocator.begin_pool(POOL, Filter::Capture(MAIN)).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        top.allocator.mark_capture_begin(MAIN).unwrap();
        top.device.destroy_stream(SIDE);
        top.allocator.stream_is_gone(SIDE).unwrap_err();
        top.device.end_capture(MAIN).unwrap();
        top.allocator.mark_capture_end(MAIN);
        top.allocator.end_pool(POOL).unwrap();
        top.device.create_stream(SIDE);
        top.allocator.begin_pool(PoolId(0, 2), Filter::Capture(SIDE)).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.allocator.mark_capture_begin(SIDE).expect("it is captured");
    });
}

/// A thread captures where no scope tells of it, and nothing was allocated yet.
#[test]
fn the_device_is_not_waited_for_where_the_caller_may_be_capturing() {
    tell_everywhere(|top| {
        CURRENT.set(None);
        top.malloc_on(512, SIDE);
        top.allocator.begin_pool_by(POOL, |stream| stream == MAIN).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        top.device.destroy_stream(SIDE);
        top.allocator.stream_is_gone(SIDE).unwrap_err();
        top.device.end_capture(MAIN).expect("nobody broke the capture");
    });
}
