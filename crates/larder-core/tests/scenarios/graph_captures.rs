//! Graph capture: what is handed out and taken back while streams are captured, and after.

use crate::bench_top::Piece::{Live, Waiting};
use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::device::DeviceError;
use larder_core::error::Error;
use larder_core::heap::Filter;
use larder_core::types::{GIB, KIB, MIB};
use larder_core::{Addr, MemPool, Policy, StreamId};
use larder_sim::{CallKind, Fault, FaultPlan};

const REUSE: &str = "graph_capture_record_stream_reuse:True";

/// Runs a part of a story under a capture of the main stream, with what is captured in the pool.
fn capture<T>(top: &BenchTop, pool: &MemPool, part: impl FnOnce() -> T) -> T {
    let captured = pool.scope_for(Filter::Capture(MAIN), || {
        top.device.begin_capture(MAIN).unwrap();
        top.device.issue(MAIN);
        let result = part();
        top.device.end_capture(MAIN).expect("a capture that goes well");
        result
    });
    top.settle();
    captured.unwrap()
}

fn graph_pool(top: &BenchTop) -> MemPool {
    MemPool::for_capture(&top.allocator).unwrap()
}

/// The stream joins the capture of the other, or waits for it once more.
fn follow(top: &BenchTop, stream: StreamId, other: StreamId) {
    top.device.follow(stream, other).unwrap();
}

/// Clones a block five times over, as `b = b.clone() + 1` does: three blocks are live at most.
fn clone_over(top: &BenchTop, size_bytes: u64) -> Addr {
    let mut current = top.malloc(size_bytes);
    for _ in 0..5 {
        let copy = top.malloc(size_bytes);
        let sum = top.malloc(size_bytes);
        top.free_all(&[copy, current]);
        current = sum;
    }
    current
}

#[test]
fn a_graph_holds_what_its_largest_moment_needs_and_its_result_outlives_it() {
    // Per size: segments that the capture takes, their bytes, and the bytes of the one that stays
    // with the result when the graph is gone.
    let cases = [
        (512, 1, 2 * MIB, 2 * MIB),
        (MIB, 2, 4 * MIB, 2 * MIB),
        (MIB + 512, 1, 20 * MIB, 20 * MIB),
        (10 * MIB - 512, 2, 40 * MIB, 20 * MIB),
        (10 * MIB + 512, 3, 36 * MIB, 12 * MIB),
    ];
    for (size_bytes, segments, taken_bytes, left_bytes) in cases {
        BenchTop::under_each_policy(GIB, "", |top| {
            let input = top.malloc(size_bytes);
            let before = top.stats();
            let graph = graph_pool(top);
            let result = capture(top, &graph, || clone_over(top, size_bytes));
            let after = top.stats();
            let grown = |now: i64, then: i64| (now - then) as u64;
            let now = (after.segment.all.current, after.reserved_bytes.all.current);
            let then = (before.segment.all.current, before.reserved_bytes.all.current);
            assert_eq!((grown(now.0, then.0), grown(now.1, then.1)), (segments, taken_bytes));
            assert_eq!(grown(after.active.all.current, before.active.all.current), 1);
            assert_eq!(graph.stats().reserved_bytes.current as u64, taken_bytes);

            drop(graph);
            let after = top.stats();
            let now = (after.segment.all.current, after.reserved_bytes.all.current);
            assert_eq!((grown(now.0, then.0), grown(now.1, then.1)), (1, left_bytes));
            assert_eq!(grown(after.active.all.current, before.active.all.current), 1);
            top.free_all(&[input, result]);
            top.empty();
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}

#[test]
fn expandable_segments_hold_a_graph_in_whole_pages() {
    // In pages of 2 MiB for small blocks and of 20 MiB for large ones, and no segment counts.
    for (size_bytes, taken_bytes) in
        [(512, 2 * MIB), (MIB, 4 * MIB), (MIB + 512, 20 * MIB), (10 * MIB + 512, 40 * MIB)]
    {
        BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
            let graph = graph_pool(top);
            let result = capture(top, &graph, || clone_over(top, size_bytes));
            let stats = graph.stats();
            assert_eq!((stats.segments, stats.reserved_bytes.current as u64), (0, taken_bytes));
            drop(graph);
            top.free(result);
            top.empty();
            assert_eq!((top.device.used_bytes(), top.allocator.snapshot().len()), (0, 0));
        });
    }
}

#[test]
fn frees_of_what_other_streams_use_are_put_off_and_ask_the_device_for_nothing() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let before = top.malloc(12 * MIB);
        top.record(before, SIDE);
        let graph = graph_pool(top);
        let during = capture(top, &graph, || {
            top.free(before);
            let during = top.malloc(12 * MIB);
            follow(top, SIDE, MAIN);
            top.record(during, SIDE);
            top.free(during);
            follow(top, MAIN, SIDE);
            assert_ne!(top.malloc(12 * MIB), during, "without the setting it waits for the end");
            during
        });
        top.malloc(512);
        let calls = top.device.calls();
        assert_eq!(calls.record_event, 1, "what was captured does not run, and is not waited for");
        assert_eq!(top.segments()[0], [Waiting(12 * MIB)], "what ran is");
        top.device.sync(SIDE);
        assert_eq!(top.malloc(12 * MIB), before);
        assert_eq!(capture(top, &graph, || top.malloc(12 * MIB)), during);
    });
}

#[test]
fn a_block_comes_back_inside_the_capture_once_its_stream_waited_for_the_other() {
    BenchTop::under_each_policy(GIB, REUSE, |top| {
        let graph = graph_pool(top);
        capture(top, &graph, || {
            let block = top.malloc(12 * MIB);
            follow(top, SIDE, MAIN);
            top.record(block, SIDE);
            top.device.issue(SIDE);
            top.free(block);
            assert_ne!(top.malloc(12 * MIB), block, "the other stream may still use it");
            follow(top, MAIN, SIDE);
            assert_eq!(top.malloc(12 * MIB), block);
        });
        assert_eq!(graph.stats().segments, 2);
        assert_eq!(top.device.calls().create_event, 0);
    });
}

#[test]
fn of_four_streams_all_that_used_a_block_have_to_be_waited_for() {
    BenchTop::under_each_policy(GIB, REUSE, |top| {
        let last = StreamId(3);
        let graph = graph_pool(top);
        capture(top, &graph, || {
            let block = top.malloc(12 * MIB);
            for stream in [SIDE, FAR, last] {
                follow(top, stream, MAIN);
                top.record(block, stream);
                top.device.issue(stream);
            }
            top.free(block);
            for stream in [SIDE, FAR, last] {
                assert_ne!(top.malloc(12 * MIB), block, "{stream} was not waited for");
                // By way of another stream is as good.
                follow(top, FAR, stream);
                follow(top, MAIN, FAR);
            }
            assert_eq!(top.malloc(12 * MIB), block);
        });
    });
}

#[test]
fn a_block_goes_back_to_its_own_stream_only() {
    BenchTop::under_each_policy(GIB, REUSE, |top| {
        let graph = graph_pool(top);
        capture(top, &graph, || {
            let block = top.malloc(12 * MIB);
            follow(top, SIDE, MAIN);
            top.record(block, SIDE);
            top.device.issue(SIDE);
            top.free(block);
            let other = top.malloc_on(12 * MIB, SIDE);
            assert_ne!(other, block);
            assert_eq!(
                top.stats().active.all.current,
                2,
                "a request of another stream frees it not"
            );
            follow(top, MAIN, SIDE);
            assert_eq!(top.malloc(12 * MIB), block);
        });
    });
}

#[test]
fn what_is_used_outside_of_the_capture_waits_for_its_end() {
    BenchTop::under_each_policy(GIB, REUSE, |top| {
        let graph = graph_pool(top);
        let block = capture(top, &graph, || {
            let block = top.malloc(12 * MIB);
            top.record(block, FAR);
            top.free(block);
            top.device.issue(MAIN);
            assert_ne!(top.malloc(12 * MIB), block, "a stream that is not captured uses it");
            block
        });
        top.malloc(512);
        top.device.sync(FAR);
        top.malloc(512);
        assert_eq!(capture(top, &graph, || top.malloc(12 * MIB)), block);
    });
}

/// A stream that used a block before the capture and joined it is waited for all the same: its
/// earlier work is not in the graph. As since PyTorch 2.12.
#[test]
fn a_use_from_before_the_capture_is_not_forgotten() {
    let top = BenchTop::larder(GIB, REUSE);
    let graph = graph_pool(&top);
    let block = capture(&top, &graph, || top.malloc(12 * MIB));
    top.device.issue(SIDE);
    top.record(block, SIDE);
    capture(&top, &graph, || {
        follow(&top, SIDE, MAIN);
        top.record(block, SIDE);
        top.device.issue(SIDE);
        top.free(block);
        follow(&top, MAIN, SIDE);
        assert_ne!(top.malloc(12 * MIB), block);
    });
    assert_eq!(top.device.calls().record_event, 1, "it is waited for when the scope is closed");
    assert_ne!(capture(&top, &graph, || top.malloc(12 * MIB)), block);
    top.device.sync(SIDE);
    top.malloc(512);
    assert_eq!(capture(&top, &graph, || top.malloc(12 * MIB)), block);
}

#[test]
fn streams_that_join_the_capture_are_served_from_its_pool() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let graph = graph_pool(top);
        let blocks = capture(top, &graph, || {
            let outside = top.malloc_on(2 * MIB, SIDE);
            follow(top, SIDE, MAIN);
            let inside = [MAIN, SIDE].map(|stream| top.malloc_on(2 * MIB, stream));
            assert!(graph.has_live(&inside).unwrap(), "what came before it joined is not there");
            follow(top, MAIN, SIDE);
            [outside, inside[0], inside[1]]
        });
        let after = top.malloc_on(2 * MIB, SIDE);
        assert!(graph.has_live(&blocks[1..]).unwrap());
        assert_eq!(after, blocks[0].offset(2 * MIB), "after the capture it is as before");
        assert_eq!(graph.stats().segments, 2, "a segment belongs to one stream");
    });
}

#[test]
fn a_capture_that_is_repeated_needs_no_more() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let graph = graph_pool(top);
        let mut results = Vec::new();
        for _ in 0..10 {
            let result = capture(top, &graph, || clone_over(top, 3 * MIB));
            top.free(result);
            results.push((result, top.device.used_bytes()));
        }
        results.dedup();
        assert_eq!(results.len(), 1, "ten captures are alike: {results:?}");
    });
}

#[test]
fn graphs_that_share_a_pool_share_memory_and_those_that_do_not_do_not() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let first = graph_pool(top);
        let second = MemPool::named(&top.allocator, first.id()).unwrap();
        let [one, two] = [&first, &second].map(|graph| {
            let result = capture(top, graph, || top.malloc(20 * MIB));
            top.free(result);
            result
        });
        assert_eq!(one, two);
        let apart = graph_pool(top);
        assert_ne!(capture(top, &apart, || top.malloc(20 * MIB)), one);
        drop(first);
        assert_eq!(top.device.used_bytes(), 40 * MIB, "the second graph still has the pool");
        drop(second);
        assert_eq!(top.device.used_bytes(), 20 * MIB);
    });
}

#[test]
fn a_request_that_fails_in_a_capture_breaks_nothing() {
    BenchTop::under_each_policy(40 * MIB, "", |top| {
        let cached = top.malloc(30 * MIB);
        top.free(cached);
        let graph = graph_pool(top);
        capture(top, &graph, || {
            top.oom(20 * MIB);
            top.empty();
            assert_eq!(top.device.used_bytes(), 30 * MIB, "nothing is given back in a capture");
        });
        assert_eq!(top.stats().num_sync_all_streams, 0);
        assert_eq!(capture(top, &graph, || top.malloc(10 * MIB)).0 % 512, 0);
        drop(graph);
        top.empty();
    });
}

#[test]
fn a_capture_in_a_scope_of_its_thread_is_seen_too() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let cached = top.malloc(20 * MIB);
        top.free(cached);
        let graph = graph_pool(top);
        let scope = graph.scope(|| {
            top.device.begin_capture(MAIN).unwrap();
            top.malloc(20 * MIB);
            top.empty();
            top.device.end_capture(MAIN).expect("nobody broke the capture");
        });
        scope.unwrap();
        assert_eq!(top.device.used_bytes(), 40 * MIB, "the cache was not emptied beside it");
    });
}

#[test]
fn a_capture_that_fails_leaves_nothing_behind() {
    for settings in ["", REUSE, "expandable_segments:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let graph = graph_pool(top);
            let scope = graph.scope_for(Filter::Capture(MAIN), || {
                top.device.begin_capture(MAIN).unwrap();
                top.device.issue(MAIN);
                follow(top, SIDE, MAIN);
                let [used, held] = [(); 2].map(|()| top.malloc(12 * MIB));
                top.record(used, SIDE);
                top.free(used);
                // The program waits for work that is not captured, which breaks the capture.
                assert!(top.device.follow(MAIN, FAR).is_err());
                let more = top.malloc(12 * MIB);
                assert!(top.device.end_capture(MAIN).is_err());
                [held, more]
            });
            let blocks = scope.unwrap();
            assert_eq!(graph.uses(), 1);
            drop(graph);
            top.free_all(&blocks);
            top.empty();
            assert_eq!((top.device.used_bytes(), top.allocator.snapshot().len()), (0, 0));
            assert_eq!(top.stats().active.all.current, 0);
        });
    }
}

#[test]
fn pages_of_a_captured_stream_stay_until_it_can_be_waited_for() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let gone = MemPool::new(&top.allocator).unwrap();
        let block = gone.scope(|| top.malloc(2 * MIB)).unwrap();
        top.free(block);
        let graph = graph_pool(top);
        capture(top, &graph, || {
            drop(gone);
            top.empty();
            assert_eq!(top.device.used_bytes(), 20 * MIB);
        });
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn a_device_that_will_not_tell_of_its_captures_costs_the_call_and_no_more() {
    let refused = |call| Err(Error::Device { call, error: Fault::Other.error() });
    let top = BenchTop::larder(GIB, REUSE);
    let graph = graph_pool(&top);
    capture(&top, &graph, || {
        let block = top.malloc(12 * MIB);
        follow(&top, SIDE, MAIN);
        top.record(block, SIDE);
        top.device.issue(SIDE);
        let fail = |kind| top.device.set_faults(FaultPlan::new(0).fail_from(kind, 1, Fault::Other));
        fail(CallKind::CaptureOf);
        let told = refused("tell whether a stream is captured");
        assert_eq!(top.allocator.free(block), told);
        assert_eq!(top.allocator.record_stream(block, FAR), told);
        assert_eq!(top.try_malloc(512).map(drop), told);
        fail(CallKind::CaptureEnds);
        assert_eq!(top.allocator.free(block), refused("tell what was captured last"));
        assert_eq!(top.segments(), [[Live(12 * MIB)]], "the block is live as if nothing was asked");
        top.device.set_faults(FaultPlan::default());
        top.free(block);
        follow(&top, MAIN, SIDE);
        fail(CallKind::NodeDependencies);
        let told = refused("tell what a captured node depends on");
        assert_eq!(top.try_malloc(12 * MIB).map(drop), told);
        top.device.set_faults(FaultPlan::default());
        assert_eq!(top.malloc(12 * MIB), block, "the walk begins again where it was");
    });
}

/// The simulated GPU refuses what a real one would; an allocator that asked for it would break the
/// captures of its user.
#[test]
fn no_event_is_asked_for_and_nothing_waited_for_on_a_captured_stream() {
    BenchTop::under_each_policy(100 * MIB, "expandable_segments:True", |top| {
        let used = top.malloc(20 * MIB);
        top.record(used, SIDE);
        top.free(used);
        let graph = graph_pool(top);
        capture(top, &graph, || {
            follow(top, SIDE, MAIN);
            for stream in [MAIN, SIDE] {
                top.malloc_on(20 * MIB, stream);
                let _ = top.try_malloc_on(90 * MIB, stream);
            }
            top.empty();
            follow(top, MAIN, SIDE);
        });
        let stats = top.stats();
        assert_eq!((stats.num_sync_all_streams, stats.num_ooms), (0, 2));
    });
}

#[test]
fn two_captures_at_once_have_each_its_own_pool() {
    BenchTop::under_each_policy(GIB, REUSE, |top| {
        let graphs = [graph_pool(top), graph_pool(top)];
        let nested = graphs[0].scope_for(Filter::Capture(MAIN), || {
            graphs[1].scope_for(Filter::Capture(SIDE), || {
                for stream in [MAIN, SIDE] {
                    top.device.begin_capture(stream).unwrap();
                    top.device.issue(stream);
                }
                let blocks = [MAIN, SIDE, FAR].map(|stream| top.malloc_on(12 * MIB, stream));
                top.record(blocks[0], SIDE);
                top.free(blocks[0]);
                assert_ne!(top.malloc(12 * MIB), blocks[0], "the two graphs know no order");
                for stream in [MAIN, SIDE] {
                    top.device.end_capture(stream).unwrap();
                }
                blocks
            })
        });
        let blocks = nested.unwrap().unwrap();
        assert!(graphs[1].has_live(&blocks[1..2]).unwrap());
        assert_eq!(graphs.each_ref().map(|graph| graph.stats().segments), [2, 1]);
        assert_eq!(
            top.stats().segment.all.current,
            4,
            "and one of the stream that is not captured"
        );
    });
}

/// Beside a capture, streams that are not captured go on as ever under our own policy.
#[test]
fn beside_a_capture_other_streams_are_served_as_ever() {
    let top = BenchTop::new(70 * MIB, "", Policy::larder());
    let graph = graph_pool(&top);
    let used = top.malloc_on(30 * MIB, FAR);
    top.record(used, SIDE);
    capture(&top, &graph, || {
        let inside = top.malloc(20 * MIB);
        top.record(inside, FAR);
        top.free(inside);
        top.free(used);
        assert_eq!(top.device.event_count(), 1, "its streams are not captured");
        top.malloc_on(40 * MIB, FAR);
        assert_eq!(
            top.stats().num_alloc_retries,
            1,
            "events were waited for, and the cache emptied"
        );
        assert_eq!(top.stats().active.all.current, 2, "what the capture put off stays put off");
    });
    let unsupported = top.device.end_capture(MAIN);
    assert!(matches!(unsupported, Err(DeviceError::Other { .. })), "there is none any more");
    assert_eq!(top.malloc_on(4 * KIB, FAR).0 % 512, 0);
}
