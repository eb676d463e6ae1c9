//! Private pools: memory set apart, who is routed to it, and when it goes back.

use crate::bench_top::Piece::{Free, Live};
use std::sync::Arc;

use crate::bench_top::{BenchTop, SIDE};
use larder_core::error::PoolProblem;
use larder_core::heap::Filter;
use larder_core::source::SourceFunctions;
use larder_core::types::{GIB, KIB, MIB, PoolId};
use larder_core::{Error, Policy};

const POOL: PoolId = PoolId(0, 1);
const OTHER: PoolId = PoolId(0, 2);

/// Runs a part of a story with all requests routed to a pool, and drops the use that this adds.
fn inside<T>(top: &BenchTop, pool: PoolId, part: impl FnOnce() -> T) -> T {
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let result = part();
    top.allocator.end_pool(pool).unwrap();
    top.allocator.drop_pool_use(pool).unwrap();
    result
}

fn problem<T: std::fmt::Debug>(result: Result<T, Error>) -> PoolProblem {
    match result {
        Err(Error::Pool { problem, .. }) => problem,
        other => panic!("this should be an error about a pool, but: {other:?}"),
    }
}

#[test]
fn a_pool_has_segments_of_its_own() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        let outside = top.malloc(512);
        let within = inside(top, POOL, || top.malloc(512));
        assert_eq!(top.stats().segment.all.current, 2);
        top.free_all(&[outside, within]);
        assert_eq!(top.malloc(512), outside, "each block went back to where it came from");
        assert_eq!(inside(top, POOL, || top.malloc(512)), within);
    });
}

#[test]
fn expandable_segments_serve_pools_too() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        let outside = top.malloc(2 * MIB);
        let within = inside(top, POOL, || top.malloc(2 * MIB));
        assert_eq!(top.stats().reserved_bytes.all.current, 40 * MIB as i64);
        top.free_all(&[outside, within]);
        top.allocator.drop_pool_use(POOL).unwrap();
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn only_requests_that_the_filter_takes_are_routed() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let outside = top.malloc(512);
        top.allocator.begin_pool(POOL, Filter::Stream(SIDE)).unwrap();
        let main = top.malloc(512);
        assert_eq!(main.0, outside.0 + 512, "the main stream goes on as before");
        let side = top.malloc_on(512, SIDE);
        assert_ne!(side.0 / (2 * MIB), main.0 / (2 * MIB), "another segment");
        let here = std::thread::current().id();
        top.allocator.begin_pool(OTHER, Filter::Thread(here)).unwrap();
        top.malloc_on(512, SIDE);
        assert_eq!(top.stats().segment.all.current, 3, "the newest scope comes first");
        std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| top.malloc(512));
            assert_eq!(elsewhere.join().unwrap().0, main.0 + 512, "other threads are not routed");
        });
    });
}

#[test]
fn a_pool_in_use_keeps_its_memory() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        let block = inside(top, POOL, || top.malloc(20 * MIB));
        assert_eq!(top.allocator.pool_uses(POOL), Some(1));
        top.free(block);
        top.empty();
        top.allocator.empty_pool(POOL).unwrap();
        assert_eq!(top.device.used_bytes(), 20 * MIB);
        top.allocator.drop_pool_use(POOL).unwrap();
        assert_eq!(top.device.used_bytes(), 20 * MIB, "it goes when a cache is emptied");
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
        assert_eq!(top.allocator.pool_uses(POOL), None, "nothing is left of the pool");
    });
}

#[test]
fn blocks_may_outlive_their_pool() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let block = inside(top, POOL, || top.malloc(20 * MIB));
        assert_eq!(top.allocator.pool_uses(POOL), Some(0));
        top.allocator.empty_pool(POOL).unwrap();
        assert_eq!(top.device.used_bytes(), 20 * MIB, "somebody still has it");
        assert_eq!(problem(top.allocator.add_pool_use(POOL)), PoolProblem::Released);
        top.free(block);
        top.allocator.empty_pool(POOL).unwrap();
        assert_eq!(top.device.used_bytes(), 0);
        top.allocator.add_pool_use(POOL).unwrap();
        assert_eq!(top.allocator.pool_uses(POOL), Some(1), "the name is free again");
    });
}

#[test]
fn emptying_a_pool_waits_for_its_own_blocks_only() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let outside = top.malloc(20 * MIB);
        let within = inside(top, POOL, || top.malloc(10 * MIB));
        for block in [outside, within] {
            top.record(block, SIDE);
            top.free(block);
        }
        assert_eq!(top.device.event_count(), 2);
        top.allocator.empty_pool(POOL).unwrap();
        assert_eq!(top.stats().num_sync_all_streams, 1);
        assert_eq!(top.device.used_bytes(), 20 * MIB, "the pool's memory went back");
        assert_eq!(top.stats().active.all.current, 1, "the other block still waits");
    });
}

#[test]
fn a_pool_lends_to_requests_that_would_run_out_of_memory() {
    BenchTop::under_each_policy(40 * MIB, "", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        let block = inside(top, POOL, || top.malloc(30 * MIB));
        top.free(block);
        top.oom(25 * MIB);
        top.allocator.set_pool_use_on_oom(POOL, true).unwrap();
        let lent = top.malloc(25 * MIB);
        assert_eq!(lent, block);
        assert_eq!(top.stats().num_ooms, 1);
        top.free(lent);
        assert_eq!(inside(top, POOL, || top.malloc(30 * MIB)), block, "it is the pool's again");
    });
}

#[test]
fn a_pool_that_does_not_split_gives_whole_blocks() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        top.allocator.set_pool_no_split(POOL).unwrap();
        inside(top, POOL, || top.malloc(4 * KIB));
        assert_eq!(top.segments(), [[Live(2 * MIB)]]);
        top.malloc(4 * KIB);
        assert_eq!(
            top.segments()[1],
            [Live(4 * KIB), Free(2 * MIB - 4 * KIB)],
            "the default pool goes on splitting"
        );
    });
}

#[test]
fn a_pool_that_nobody_uses_lends_nothing() {
    BenchTop::under_each_policy(40 * MIB, "", |top| {
        top.allocator.add_pool_use(POOL).unwrap();
        top.allocator.set_pool_use_on_oom(POOL, true).unwrap();
        let [live, cached] = inside(top, POOL, || [10, 20].map(|size| top.malloc(size * MIB)));
        top.free(cached);
        top.allocator.drop_pool_use(POOL).unwrap();
        let served = top.malloc(20 * MIB);
        assert_eq!(top.stats().num_alloc_retries, 1, "its memory went back to the device first");
        top.free_all(&[live, served]);
        top.empty();
        assert_eq!((top.device.used_bytes(), top.allocator.pool_uses(POOL)), (0, None));
    });
}

#[test]
fn misuse_is_named_and_changes_nothing() {
    let top = BenchTop::larder(GIB, "");
    let pools = &top.allocator;
    assert_eq!(problem(pools.drop_pool_use(POOL)), PoolProblem::Unknown);
    assert_eq!(problem(pools.end_pool(POOL)), PoolProblem::NotOpen);
    assert_eq!(problem(pools.set_pool_no_split(POOL)), PoolProblem::Unknown);
    assert_eq!(problem(pools.set_pool_use_on_oom(POOL, true)), PoolProblem::Unknown);
    assert_eq!(problem(pools.add_pool_use(PoolId::NONE)), PoolProblem::NoName);
    pools.begin_pool(POOL, Filter::Any).unwrap();
    assert_eq!(problem(pools.begin_pool(POOL, Filter::Any)), PoolProblem::Open);
    assert_eq!(pools.pool_uses(POOL), Some(1), "the refused scope added no use");
    pools.end_pool(POOL).unwrap();
    pools.drop_pool_use(POOL).unwrap();
    assert_eq!(problem(pools.drop_pool_use(POOL)), PoolProblem::Released);
    let bytes = Arc::new(SourceFunctions::new(|_, _| None, |_, _| ()));
    assert_eq!(problem(pools.add_pool_with_source(POOL, bytes)), PoolProblem::Exists);
    assert_eq!(problem(pools.checkpoint_pool(POOL)), PoolProblem::Released);
    assert_eq!(problem(pools.checkpoint_pool(OTHER)), PoolProblem::Unknown);
    assert_eq!(problem(pools.pool_has_live(OTHER, &[])), PoolProblem::Unknown);
    assert_eq!((pools.pool_stats(OTHER), pools.pool_snapshot(OTHER)), (None, None));
    let text = pools.drop_pool_use(POOL).unwrap_err().to_string();
    assert_eq!(text, "pool (0, 1) cannot be used so: its last use was released");
}

#[test]
fn dropping_the_allocator_gives_back_what_pools_have_cached() {
    for (settings, policy) in
        ["", "expandable_segments:True"].into_iter().zip([Policy::torch_2_11(), Policy::larder()])
    {
        let top = BenchTop::new(GIB, settings, policy);
        top.allocator.add_pool_use(POOL).unwrap();
        let cached = inside(&top, POOL, || top.malloc(20 * MIB));
        top.free(cached);
        top.allocator.begin_pool(OTHER, Filter::Any).unwrap();
        let [cached, _live] = [(); 2].map(|()| top.malloc(20 * MIB));
        top.free(cached);
        assert_eq!(top.device.used_bytes(), 60 * MIB);
        let BenchTop { device, allocator, .. } = top;
        drop(allocator);
        assert_eq!(device.used_bytes(), 20 * MIB, "only what is live stays");
    }
}

#[test]
fn many_pools_come_and_go() {
    BenchTop::under_each_policy(GIB, "", |top| {
        for round in 1..50 {
            let pool = PoolId(round, 0);
            let blocks = inside(top, pool, || [top.malloc(512), top.malloc_on(3 * MIB, SIDE)]);
            top.free_all(&blocks);
            top.empty();
            assert_eq!(top.device.used_bytes(), 0);
        }
    });
}
