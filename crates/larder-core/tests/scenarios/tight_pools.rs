//! Pools under the policy tight: a program's own pools have views, take what is free in others, and
//! give back what they do not use. Pools of graphs stay as they are.

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::error::{Error, PoolProblem};
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy, PoolId};
use larder_sim::random::Random;

const POOL: PoolId = PoolId(0, 1);
const OTHER: PoolId = PoolId(0, 2);

/// An allocator with two pools of the program's own.
fn with_pools(memory_bytes: u64) -> BenchTop {
    let top = BenchTop::new(memory_bytes, "", Policy::tight());
    top.allocator.add_pool_use(POOL).unwrap();
    top.allocator.add_pool_use(OTHER).unwrap();
    top
}

/// Does something while requests go to a pool.
fn inside<T>(top: &BenchTop, pool: PoolId, work: impl FnOnce() -> T) -> T {
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let done = work();
    top.allocator.end_pool(pool).unwrap();
    top.allocator.drop_pool_use(pool).unwrap();
    done
}

fn reserved_bytes(top: &BenchTop) -> u64 {
    top.stats().reserved_bytes.all.current as u64
}

fn held_of(top: &BenchTop, pool: PoolId) -> u64 {
    top.allocator.pool_stats(pool).unwrap().reserved_bytes.current as u64
}

/// A pool of 100 MiB of which every other 10 MiB are in use.
fn in_pieces(top: &BenchTop) -> Vec<Addr> {
    let addrs: Vec<Addr> = (0..10).map(|_| top.malloc(10 * MIB)).collect();
    addrs.iter().step_by(2).for_each(|&addr| top.free(addr));
    addrs.into_iter().skip(1).step_by(2).collect()
}

fn is_in_view(top: &BenchTop, addr: Addr) -> bool {
    let segments = top.allocator.snapshot();
    segments.iter().any(|segment| segment.view && segment.span.contains(addr))
}

// What a pool holds.

/// Weights are loaded into an open pool, and each is then replaced by a tensor that is a little
/// larger, in some order.
#[test]
fn weights_that_are_converted_in_an_open_pool_are_held_once() {
    for seed in 0..4 {
        let top = with_pools(32 * GIB);
        inside(&top, POOL, || {
            let mut random = Random::new(seed);
            let mut weights = Vec::new();
            for _ in 0..40 {
                weights.push(top.malloc(240 * MIB));
                top.malloc(random.between(1, 256) << 10);
            }
            while !weights.is_empty() {
                let at = if seed == 0 { 0 } else { random.below(weights.len() as u64) as usize };
                top.malloc(252 * MIB);
                top.free(weights.remove(at));
            }
        });
        let stats = top.stats();
        let live_bytes = stats.active_bytes.all.current as f64;
        let ratio = stats.reserved_bytes.all.peak as f64 / live_bytes;
        assert!(ratio < 1.05, "seed {seed}: {ratio:.3} of what is live");
    }
}

#[test]
fn a_pool_of_a_program_has_views() {
    let top = with_pools(GIB);
    inside(&top, POOL, || {
        let left = in_pieces(&top);
        let held_bytes = held_of(&top, POOL);
        let addr = top.malloc(30 * MIB);
        assert!(is_in_view(&top, addr));
        assert_eq!(held_of(&top, POOL), held_bytes);
        let live = top.allocator.pool_stats(POOL).unwrap();
        assert_eq!((live.allocations, live.allocated_bytes), (6, 80 * MIB));
        top.free_all(&left);
        top.free(addr);
    });
    top.allocator.drop_pool_use(POOL).unwrap();
    top.empty();
    assert_eq!(top.allocator.pool_uses(POOL), None, "nothing of it is left");
    assert_eq!(top.device.used_bytes(), 0);
}

#[test]
fn streams_in_one_pool_take_what_the_others_have_free() {
    let top = with_pools(GIB);
    inside(&top, POOL, || {
        let addr = top.malloc_on(40 * MIB, SIDE);
        top.free(addr);
        assert_eq!(top.malloc(40 * MIB), addr);
        assert_eq!(top.device.calls().follow_event, 1);
    });
}

// What a pool in use gives back.

#[test]
fn a_pool_in_use_gives_back_what_is_free_in_it_when_the_cache_is_emptied() {
    let top = with_pools(GIB);
    inside(&top, POOL, || {
        let left = in_pieces(&top);
        let tenant = top.malloc(30 * MIB);
        top.free(tenant);
        top.empty();
        assert_eq!(held_of(&top, POOL), 50 * MIB, "though its scope is open");
        assert_eq!(top.device.used_bytes(), 50 * MIB);
        let again = in_pieces(&top);
        top.free_all(&left);
        top.free_all(&again);
    });
    top.empty();
    assert_eq!(top.device.used_bytes(), 0, "though the pool is in use");
    assert_eq!(top.allocator.pool_uses(POOL), Some(1));
}

#[test]
fn a_pool_in_use_gives_back_for_a_request_that_would_run_out_of_memory() {
    // Below the floor nothing is asked of other pools before memory runs out.
    let top = BenchTop::new(100 * MIB, "tight_floor_mb:1000", Policy::tight());
    for pool in [POOL, OTHER] {
        top.allocator.add_pool_use(pool).unwrap();
    }
    let addr = inside(&top, POOL, || top.malloc(80 * MIB));
    top.free(addr);
    let addr = top.malloc(60 * MIB);
    assert_eq!(top.stats().num_alloc_retries, 1);
    top.free(addr);
    inside(&top, OTHER, || top.malloc(90 * MIB));
    assert_eq!(top.stats().num_alloc_retries, 2);
}

// What goes from pool to pool.

#[test]
fn pages_that_are_free_in_one_pool_serve_another_and_the_default_pool() {
    let top = with_pools(4 * GIB);
    let addr = top.malloc(400 * MIB);
    top.free(addr);
    let held_bytes = reserved_bytes(&top);
    let addr = inside(&top, POOL, || top.malloc(300 * MIB));
    assert_eq!(reserved_bytes(&top), held_bytes);
    assert_eq!(held_of(&top, POOL), 300 * MIB);
    top.free(addr);
    let addr = inside(&top, OTHER, || top.malloc(350 * MIB));
    assert!(reserved_bytes(&top) <= held_bytes + 4 * MIB, "{}", reserved_bytes(&top));
    top.free(addr);
    top.malloc(400 * MIB);
    assert!(reserved_bytes(&top) <= held_bytes + 4 * MIB, "{}", reserved_bytes(&top));
}

#[test]
fn no_more_goes_to_another_pool_than_it_needs() {
    let top = with_pools(4 * GIB);
    let addr = top.malloc(GIB);
    top.free(addr);
    let unmapped = top.device.calls().unmap;
    inside(&top, POOL, || top.malloc(8 * MIB));
    let pages = top.device.calls().unmap - unmapped;
    assert!(pages <= 4, "{pages} pages went");
}

/// Two pools that are used by turns, as long as the program runs, end up with what both need, and
/// with no call.
#[test]
fn pools_that_are_used_by_turns_stop_taking_from_each_other() {
    let top = with_pools(4 * GIB);
    let turn = || {
        let addr = inside(&top, POOL, || top.malloc(200 * MIB));
        top.free(addr);
        let addr = top.malloc(200 * MIB);
        top.free(addr);
    };
    turn();
    assert!(reserved_bytes(&top) < 210 * MIB, "at first they do");
    (0..10).for_each(|_| turn());
    let calls = top.device.calls();
    (0..10).for_each(|_| turn());
    let after = top.device.calls();
    assert_eq!((after.create, after.map, after.unmap), (calls.create, calls.map, calls.unmap));
    assert!(reserved_bytes(&top) >= 400 * MIB);
}

// What graphs know stays.

#[test]
fn a_pool_that_something_was_captured_in_gives_nothing_and_has_no_views() {
    let top = with_pools(4 * GIB);
    top.allocator.begin_pool(POOL, Filter::Any).unwrap();
    let left = in_pieces(&top);
    top.device.begin_capture(MAIN).unwrap();
    let captured = top.malloc(4 * MIB);
    top.device.end_capture(MAIN).expect("it is whole");
    top.free(captured);
    let addr = top.malloc(30 * MIB);
    assert!(!is_in_view(&top, addr));
    top.free(addr);
    let held_bytes = held_of(&top, POOL);
    let calls = top.device.calls();
    top.empty();
    top.allocator.end_pool(POOL).unwrap();
    top.malloc(500 * MIB);
    assert_eq!(held_of(&top, POOL), held_bytes);
    assert_eq!(top.device.calls().unmap, calls.unmap);
    top.free_all(&left);
}

#[test]
fn while_something_is_captured_no_pool_gives_anything() {
    let top = with_pools(4 * GIB);
    let addr = top.malloc(300 * MIB);
    top.free(addr);
    top.allocator.begin_pool(POOL, Filter::Capture(SIDE)).unwrap();
    top.device.begin_capture(SIDE).unwrap();
    top.malloc_on(200 * MIB, SIDE);
    assert_eq!(top.device.calls().unmap, 0);
    top.device.end_capture(SIDE).expect("it is whole");
    top.allocator.end_pool(POOL).unwrap();
    assert_eq!(top.device.trespasses(), Vec::<String>::new());
}

#[test]
fn a_checkpoint_holds_a_pool_where_it_is() {
    let top = with_pools(4 * GIB);
    let left = inside(&top, POOL, || in_pieces(&top));
    let checkpoint = top.allocator.checkpoint_pool(POOL).unwrap();
    let calls = top.device.calls();
    top.empty();
    assert_eq!(top.device.calls().unmap, calls.unmap);
    let addr = inside(&top, POOL, || top.malloc(30 * MIB));
    assert!(!is_in_view(&top, addr));
    let restored = top.allocator.restore_pool(&checkpoint).unwrap();
    assert_eq!(restored.freed.len(), 6);
    assert_eq!(restored.created, left);
}

#[test]
fn a_layout_that_no_checkpoint_can_name_is_refused() {
    let refused = |top: &BenchTop| match top.allocator.checkpoint_pool(POOL) {
        Err(Error::Pool { problem: PoolProblem::Spread(_), .. }) => {}
        other => panic!("a checkpoint of it was made, or not for this reason: {other:?}"),
    };
    let in_view = with_pools(4 * GIB);
    inside(&in_view, POOL, || {
        in_pieces(&in_view);
        in_view.malloc(30 * MIB);
    });
    refused(&in_view);
    let with_holes = with_pools(4 * GIB);
    inside(&with_holes, POOL, || in_pieces(&with_holes));
    with_holes.empty();
    refused(&with_holes);
}
