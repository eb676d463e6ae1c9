//! Scopes that choose by a function: who is asked, when, what that means for captures, and when the
//! function goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::error::PoolProblem;
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB, PoolId, StreamId};
use larder_core::{Error, Policy};

const POOL: PoolId = PoolId(1, 0);
const OTHER: PoolId = PoolId(2, 0);

/// A function that takes one stream, and how often it was asked. Whoever holds it shows in the
/// count of the Arc.
fn takes(only: StreamId) -> (Arc<AtomicUsize>, impl Fn(StreamId) -> bool + Send + 'static) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&asked);
    (asked, move |stream| {
        counts.fetch_add(1, Ordering::Relaxed);
        stream == only
    })
}

#[test]
fn a_function_chooses_by_the_stream_of_the_request() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (asked, function) = takes(SIDE);
        top.allocator.begin_pool_by(POOL, function).unwrap();
        let (main, side) = (top.malloc(512), top.malloc_on(512, SIDE));
        assert!(top.allocator.pool_has_live(POOL, &[side]).unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 2, "once for each request");
        top.allocator.end_pool(POOL).unwrap();
        top.malloc_on(512, SIDE);
        assert_eq!(asked.load(Ordering::Relaxed), 2, "the scope is closed");
        assert!(top.allocator.pool_has_live(POOL, &[side]).unwrap());
        top.free_all(&[main, side]);
    });
}

#[test]
fn a_request_that_a_newer_scope_takes_is_not_asked_about() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (asked, function) = takes(SIDE);
        top.allocator.begin_pool_by(POOL, function).unwrap();
        top.allocator.begin_pool(OTHER, Filter::Stream(MAIN)).unwrap();
        top.malloc(512);
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        let side = top.malloc_on(512, SIDE);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(top.allocator.pool_has_live(POOL, &[side]).unwrap());
    });
}

#[test]
fn the_function_goes_with_its_scope_or_with_the_refusal_of_it() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (kept, function) = takes(SIDE);
        top.allocator.begin_pool_by(POOL, function).unwrap();
        let (refused, function) = takes(SIDE);
        let again = top.allocator.begin_pool_by(POOL, function);
        let problem = PoolProblem::Open;
        assert_eq!(again, Err(Error::Pool { pool: POOL, problem }));
        assert_eq!((Arc::strong_count(&kept), Arc::strong_count(&refused)), (2, 1));
        assert_eq!(top.allocator.pool_uses(POOL), Some(1), "nor is a use left of it");
        top.allocator.end_pool(POOL).unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}

/// Nothing but the function knows the captured stream, and still nothing is waited for there.
#[test]
fn a_capture_inside_a_scope_by_function_is_respected() {
    BenchTop::under_each_policy(100 * MIB, "expandable_segments:True", |top| {
        let used = top.malloc(20 * MIB);
        top.record(used, SIDE);
        top.free(used);
        top.allocator.begin_pool_by(POOL, |stream| stream == SIDE).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        let inside = top.malloc_on(20 * MIB, SIDE);
        assert!(top.try_malloc_on(90 * MIB, SIDE).is_err());
        top.empty();
        top.record(inside, MAIN);
        top.free(inside);
        top.device.end_capture(SIDE).expect("nobody broke the capture");
        top.allocator.end_pool(POOL).unwrap();
        assert_eq!(top.stats().num_sync_all_streams, 0);
        top.malloc(512);
        assert!(top.allocator.pool_has_live(POOL, &[]).unwrap());
    });
}

#[test]
fn what_was_held_for_a_pool_is_counted_on_when_it_is_gone() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.begin_pool(POOL, Filter::Any).unwrap();
        let (small, large) = (top.malloc(512), top.malloc(30 * MIB));
        top.allocator.end_pool(POOL).unwrap();
        let [(pool, held)] = top.allocator.reserved_by_pool()[..] else { panic!("one pool") };
        let (two, thirty) = (2 * MIB as i64, 30 * MIB as i64);
        assert_eq!((pool, held.all.current), (POOL, two + thirty));
        assert_eq!((held.small_pool.current, held.large_pool.current), (two, thirty));
        top.free_all(&[small, large]);
        top.allocator.drop_pool_use(POOL).unwrap();
        top.empty();
        assert_eq!(top.allocator.pool_uses(POOL), None, "the pool is gone");
        let [(_, gone)] = top.allocator.reserved_by_pool()[..] else { panic!("its counts stay") };
        assert_eq!((gone.all.current, gone.all.peak), (0, two + thirty));
        assert_eq!((gone.large_pool.allocated, gone.large_pool.freed), (thirty, thirty));
        top.allocator.reset_peak_stats();
        top.allocator.reset_accumulated_stats();
        let [(_, reset)] = top.allocator.reserved_by_pool()[..] else { panic!("still there") };
        assert_eq!((reset.all.peak, reset.all.allocated, reset.all.freed), (0, 0, 0));
    });
}

#[test]
fn settings_change_as_values_and_leave_alone_what_they_do_not_name() {
    let top = BenchTop::new(GIB, "page_size_mb:2,max_split_size_mb:64", Policy::larder());
    top.allocator.set_memory_fraction(0.5).unwrap();
    top.allocator.reconfigure(|config| config.expandable_segments = true).unwrap();
    let config = top.allocator.config();
    assert_eq!((config.page_bytes, config.max_split_bytes), (Some(2 * MIB), Some(64 * MIB)));
    assert!((top.allocator.memory_fraction() - 0.5).abs() < 1e-9, "the cap stays");
    top.allocator.reconfigure(|config| config.memory_fraction = 0.25).unwrap();
    assert!((top.allocator.memory_fraction() - 0.25).abs() < 1e-9);
    let before = top.allocator.config();
    let refused = top.allocator.reconfigure(|config| config.max_split_bytes = Some(1));
    assert!(refused.unwrap_err().to_string().contains("'max_split_size_mb'"));
    assert_eq!(top.allocator.config(), before);
    top.malloc(2 * MIB);
    assert!(top.allocator.has_expandable());
    let states = top.allocator.expandable_segments();
    assert_eq!(states.iter().map(|state| state.mapped_bytes).collect::<Vec<_>>(), [2 * MIB]);
    top.allocator.reconfigure(|config| config.expandable_segments = false).unwrap();
    assert!(top.allocator.has_expandable(), "the segment stays");
}
