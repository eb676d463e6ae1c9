//! Streams: memory that several of them use, and the events that say when they are done with it.

use crate::bench_top::Piece::{Free, Live, Waiting};
use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::error::Error;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy, StreamId};
use larder_sim::FaultPlan;

/// A block of 12 MiB of the default stream that the given streams use too, freed.
fn freed_after_use_on(top: &BenchTop, streams: &[StreamId]) -> Addr {
    let addr = top.malloc(12 * MIB);
    for &stream in streams {
        top.record(addr, stream);
    }
    top.free(addr);
    addr
}

#[test]
fn a_block_used_on_another_stream_is_not_handed_out_until_that_stream_is_done() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let used = freed_after_use_on(top, &[SIDE]);
        assert_eq!(top.segments(), [[Waiting(12 * MIB)]]);
        let other = top.malloc(12 * MIB);
        assert_ne!(other, used);
        top.device.sync(SIDE);
        assert_eq!(top.malloc(12 * MIB), used);
        assert_eq!(top.device.calls().alloc, 2);
    });
}

#[test]
fn the_event_is_recorded_when_the_block_is_freed_and_not_before() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc(12 * MIB);
        top.record(addr, SIDE);
        assert_eq!(top.device.calls().create_event, 0, "telling of a use costs no device call");
        top.device.issue(SIDE);
        top.device.sync(SIDE);
        top.device.issue(SIDE);
        top.free(addr);
        let calls = top.device.calls();
        assert_eq!((calls.create_event, calls.record_event), (1, 1));
        assert_ne!(top.malloc(12 * MIB), addr, "what was issued last is not done");
        top.device.sync(SIDE);
        top.device.issue(SIDE);
        assert_eq!(top.malloc(12 * MIB), addr, "work issued after the free does not matter");
    });
}

#[test]
fn events_are_asked_for_at_the_next_malloc_only() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let live = top.malloc(512);
        let used = freed_after_use_on(top, &[SIDE]);
        top.device.sync(SIDE);
        top.free(live);
        assert_eq!(top.device.calls().query_event, 0, "a free asks for nothing");
        assert_eq!(top.stats().active.all.current, 1);
        top.malloc(512);
        assert_eq!(top.device.calls().query_event, 1);
        assert_eq!(top.stats().active.large_pool.current, 0);
        assert_eq!(top.malloc(12 * MIB), used);
        assert_eq!(top.device.calls().query_event, 1, "nothing is awaited any more");
    });
}

#[test]
fn a_malloc_that_asks_for_nothing_does_not_poll() {
    BenchTop::under_each_policy(GIB, "", |top| {
        freed_after_use_on(top, &[SIDE]);
        top.device.sync(SIDE);
        top.malloc(0);
        assert_eq!(top.device.calls().query_event, 0);
    });
}

#[test]
fn an_event_that_is_not_done_holds_up_those_behind_it_on_its_stream() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [first, second] = [(); 2].map(|()| top.malloc(12 * MIB));
        top.record(first, SIDE);
        top.record(second, SIDE);
        // The first block's event will be late by exactly one query.
        top.device.set_faults(FaultPlan::new(1).late_events(1.0, 1));
        top.free(first);
        top.device.set_faults(FaultPlan::default());
        top.free(second);
        top.device.sync(SIDE);
        top.malloc(512);
        assert_eq!(top.device.calls().query_event, 1, "the second one is not even asked for");
        assert_eq!(top.stats().active.large_pool.current, 2);
        top.malloc(512);
        assert_eq!(top.device.calls().query_event, 3);
        assert_eq!(top.stats().active.large_pool.current, 0);
    });
}

#[test]
fn an_event_that_is_not_done_does_not_hold_up_other_streams() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let slow = freed_after_use_on(top, &[SIDE]);
        let quick = freed_after_use_on(top, &[FAR]);
        top.device.sync(FAR);
        assert_eq!(top.malloc(12 * MIB), quick);
        assert_ne!(top.malloc(12 * MIB), slow);
        top.device.sync(SIDE);
        assert_eq!(top.malloc(12 * MIB), slow);
    });
}

#[test]
fn a_block_waits_until_all_streams_that_used_it_are_done() {
    let streams = [SIDE, FAR, StreamId(u64::MAX)];
    for last in streams {
        BenchTop::under_each_policy(GIB, "", |top| {
            let addr = freed_after_use_on(top, &streams);
            assert_eq!(top.device.calls().record_event, 3);
            for stream in streams.into_iter().filter(|&stream| stream != last) {
                top.device.sync(stream);
            }
            top.malloc(512);
            assert_eq!(top.segments()[0], [Waiting(12 * MIB)]);
            top.device.sync(last);
            assert_eq!(top.malloc(12 * MIB), addr);
        });
    }
}

#[test]
fn use_on_the_blocks_own_stream_needs_no_event() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc_on(12 * MIB, SIDE);
        top.record(addr, SIDE);
        top.free(addr);
        assert_eq!(top.segments(), [[Free(12 * MIB)]]);
        assert_eq!(top.device.calls().create_event, 0);
    });
}

#[test]
fn a_stream_told_twice_is_waited_for_once() {
    BenchTop::under_each_policy(GIB, "", |top| {
        freed_after_use_on(top, &[SIDE, FAR, SIDE, SIDE]);
        assert_eq!(top.device.calls().record_event, 2);
    });
}

#[test]
fn the_uses_of_a_block_end_with_its_free() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = freed_after_use_on(top, &[SIDE]);
        top.device.sync(SIDE);
        assert_eq!(top.malloc(12 * MIB), addr);
        top.free(addr);
        assert_eq!(top.device.calls().record_event, 1, "the new owner used no other stream");
        assert_eq!(top.segments(), [[Free(12 * MIB)]]);
    });
}

#[test]
fn events_are_used_again() {
    BenchTop::under_each_policy(GIB, "", |top| {
        for _ in 0..100 {
            freed_after_use_on(top, &[SIDE, FAR]);
            top.device.sync(SIDE);
            top.device.sync(FAR);
        }
        assert_eq!(top.device.event_count(), 2);
        assert_eq!(top.device.calls().record_event, 200);
        assert_eq!(top.device.calls().alloc, 1);
    });
}

#[test]
fn as_many_events_exist_as_were_ever_awaited_at_once() {
    BenchTop::under_each_policy(GIB, "", |top| {
        for round in 0..3 {
            for _ in 0..5 {
                freed_after_use_on(top, &[SIDE]);
            }
            top.device.sync(SIDE);
            top.malloc(512);
            assert_eq!(top.device.event_count(), 5, "round {round}");
        }
    });
}

#[test]
fn a_waiting_block_is_active_but_not_allocated() {
    BenchTop::under_each_policy(GIB, "", |top| {
        freed_after_use_on(top, &[SIDE]);
        let stats = top.stats();
        assert_eq!((stats.allocation.all.current, stats.allocated_bytes.all.current), (0, 0));
        let bytes = 12 * MIB as i64;
        assert_eq!((stats.active.all.current, stats.active_bytes.all.current), (1, bytes));
        assert_eq!(stats.requested_bytes.all.current, bytes);
        top.device.sync(SIDE);
        top.malloc(512);
        let stats = top.stats();
        assert_eq!(stats.active_bytes.large_pool.current, 0);
        assert_eq!(stats.requested_bytes.large_pool.current, 0);
    });
}

#[test]
fn a_waiting_block_does_not_merge_until_it_is_done() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [low, middle, high] = [(); 3].map(|()| top.malloc(4 * MIB));
        top.record(middle, SIDE);
        top.free_all(&[middle, low, high]);
        let apart = [Free(4 * MIB), Waiting(4 * MIB), Free(12 * MIB)];
        assert_eq!(top.segments(), [apart]);
        top.device.sync(SIDE);
        top.malloc(512);
        assert_eq!(top.segments()[0], [Free(20 * MIB)]);
    });
}

#[test]
fn late_events_only_delay() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.device.set_faults(FaultPlan::new(7).late_events(1.0, 3));
        let addr = freed_after_use_on(top, &[SIDE]);
        top.device.sync(SIDE);
        let mallocs = (1..10).find(|_| {
            top.malloc(512);
            top.stats().active.large_pool.current == 0
        });
        assert!((2..=4).contains(&mallocs.unwrap()), "{mallocs:?} mallocs");
        assert_eq!(top.malloc(12 * MIB), addr);
    });
}

#[test]
fn a_request_that_finds_no_room_waits_for_the_events() {
    let story = |policy: Policy| {
        let top = BenchTop::new(20 * MIB, "", policy);
        let addr = top.malloc(20 * MIB);
        top.record(addr, SIDE);
        top.record(addr, FAR);
        top.free(addr);
        // Nobody says that the streams are done: the allocator must wait for them itself.
        assert_eq!(top.malloc(20 * MIB), addr);
        assert_eq!(top.device.calls().wait_event, 2);
        let stats = top.stats();
        assert_eq!((stats.num_sync_all_streams, stats.num_ooms), (1, 0));
        (stats.num_alloc_retries, top.device.calls().free)
    };
    assert_eq!(story(Policy::torch_2_11()), (1, 1), "given back, and asked for once more");
    assert_eq!(story(Policy::larder()), (0, 0), "taken from the cache");
}

#[test]
fn a_request_on_another_stream_gets_the_memory_by_way_of_the_device() {
    BenchTop::under_each_policy(20 * MIB, "", |top| {
        let addr = top.malloc(20 * MIB);
        top.record(addr, SIDE);
        top.free(addr);
        assert_eq!(top.malloc_on(20 * MIB, SIDE), addr);
        let calls = top.device.calls();
        assert_eq!((calls.wait_event, calls.free), (1, 1));
        assert_eq!(top.stats().num_alloc_retries, 1);
    });
}

#[test]
fn emptying_the_cache_waits_for_the_events_and_counts_it() {
    BenchTop::under_each_policy(GIB, "", |top| {
        freed_after_use_on(top, &[SIDE, FAR]);
        top.empty();
        assert_eq!(top.device.calls().wait_event, 2);
        assert!(!top.device.is_busy(SIDE) && !top.device.is_busy(FAR));
        assert_eq!(top.device.used_bytes(), 0);
        top.empty();
        assert_eq!(top.stats().num_sync_all_streams, 2, "also when there is nothing to wait for");
    });
}

#[test]
fn a_block_of_one_stream_may_be_used_by_the_default_stream() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc_on(12 * MIB, SIDE);
        top.record(addr, MAIN);
        top.free(addr);
        assert_eq!(top.segments(), [[Waiting(12 * MIB)]]);
        top.device.sync(MAIN);
        assert_eq!(top.malloc_on(12 * MIB, SIDE), addr);
        assert_eq!(top.segments(), [[Live(12 * MIB)]]);
    });
}

#[test]
fn telling_of_a_use_of_memory_that_is_not_live_is_an_error() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = freed_after_use_on(top, &[SIDE]);
        let refusal = Err(Error::UnknownAddress(addr));
        assert_eq!(top.allocator.record_stream(addr, FAR), refusal, "it waits");
        top.device.sync(SIDE);
        top.malloc(512);
        assert_eq!(top.allocator.record_stream(addr, FAR), refusal, "it is free");
    });
}
