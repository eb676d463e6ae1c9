//! Plain memory among expandable: for those who ask for it, and for graph captures.

use std::thread;

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::allocator::default_config;
use larder_core::heap::states::SegmentState;
use larder_core::heap::{Filter, State};
use larder_core::types::{GIB, MIB, PoolId};
use larder_core::{Addr, MemPool, Policy, StreamId};

/// With what a program has that gives no settings.
fn by_default(policy: Policy) -> BenchTop {
    let conf = default_config(&policy).text_in_force();
    BenchTop::new(4 * GIB, &conf, policy)
}

/// Tells the story under both policies whose memory is expandable by default.
fn under_each_default(story: impl Fn(&BenchTop)) {
    for policy in [Policy::larder(), Policy::tight()] {
        println!("policy {policy}");
        story(&by_default(policy));
    }
}

fn segment_of(top: &BenchTop, addr: Addr) -> SegmentState {
    let segments = top.allocator.snapshot().into_iter();
    segments.into_iter().find(|segment| segment.span.contains(addr)).expect("a segment")
}

fn is_plain(top: &BenchTop, addr: Addr) -> bool {
    let segment = segment_of(top, addr);
    !segment.expandable && !segment.view
}

/// A request on a stream that is captured, whose scope takes what is under the capture.
fn malloc_captured(top: &BenchTop, pool: PoolId, size_bytes: u64, filter: Filter) -> Addr {
    top.allocator.begin_pool(pool, filter).unwrap();
    top.device.begin_capture(SIDE).unwrap();
    let addr = top.allocator.malloc(size_bytes, SIDE).unwrap();
    top.device.end_capture(SIDE).unwrap();
    top.allocator.end_pool(pool).unwrap();
    addr
}

#[test]
fn whoever_asks_for_plain_memory_gets_it_and_nobody_else() {
    under_each_default(|top| {
        let before = top.malloc(3 * MIB);
        let plain = {
            let _plain = top.allocator.plain_memory();
            [3 * MIB, 512, 100 * MIB].map(|size_bytes| top.malloc(size_bytes))
        };
        let after = top.malloc(3 * MIB);
        assert!(plain.iter().all(|&addr| is_plain(top, addr)));
        assert!(segment_of(top, before).expandable);
        assert_eq!(segment_of(top, plain[2]).pool, None, "it is the default pool's");
        top.free_all(&[before, after]);
        top.free_all(&plain);
        top.empty();
        assert_eq!(top.backed_bytes(), 0, "it is given back like all other memory");
    });
}

#[test]
fn plain_memory_is_split_and_cached() {
    under_each_default(|top| {
        let _plain = top.allocator.plain_memory();
        let [first, second] = [3 * MIB, 5 * MIB].map(|size_bytes| top.malloc(size_bytes));
        assert_eq!(top.stats().num_device_alloc, 1, "both lie in one segment of 20 MiB");
        top.free(first);
        assert_eq!(top.malloc(3 * MIB), first);
        top.free_all(&[first, second]);
        let calls = top.device.calls().alloc;
        top.malloc(15 * MIB);
        assert_eq!(top.device.calls().alloc, calls, "what was freed serves again, whole");
    });
}

#[test]
fn plain_memory_is_the_asking_threads_alone_and_asking_can_be_nested() {
    under_each_default(|top| {
        let outer = top.allocator.plain_memory();
        drop(top.allocator.plain_memory());
        assert!(is_plain(top, top.malloc(MIB)), "the inner end is not the outer one's");
        let elsewhere = thread::scope(|scope| {
            scope.spawn(|| top.allocator.malloc(30 * MIB, MAIN).unwrap()).join().unwrap()
        });
        assert!(!is_plain(top, elsewhere));
        drop(outer);
        assert!(!top.allocator.end_plain(), "there is nothing left to end");
        assert!(!is_plain(top, top.malloc(40 * MIB)));
    });
}

#[test]
fn a_program_that_repeats_itself_does_not_put_plain_requests_onto_pages() {
    under_each_default(|top| {
        for round in 0..40 {
            let pages: Vec<Addr> = (1..20).map(|n| top.malloc(n * MIB)).collect();
            // The same request as in the rounds before, which came without asking for plain memory.
            let asks = round >= 30;
            let plain = asks.then(|| top.allocator.plain_memory());
            let addr = top.malloc(7 * MIB);
            assert_eq!(is_plain(top, addr), asks, "round {round}");
            drop(plain);
            top.free_all(&pages);
            top.free(addr);
        }
    });
}

#[test]
fn captures_pools_are_plain_and_all_others_are_not() {
    under_each_default(|top| {
        let by_scope = malloc_captured(top, PoolId(0, 7), 3 * MIB, Filter::Stream(SIDE));
        let by_name = MemPool::for_capture(&top.allocator).unwrap();
        let named = by_name.scope(|| top.malloc(3 * MIB)).unwrap();
        let programs = MemPool::new(&top.allocator).unwrap();
        let own = programs.scope(|| top.malloc(3 * MIB)).unwrap();
        assert!(is_plain(top, by_scope) && is_plain(top, named));
        assert!(!is_plain(top, own) && !is_plain(top, top.malloc(3 * MIB)));
    });
}

#[test]
fn a_programs_pool_is_plain_from_its_first_capture_on() {
    for filter in [Filter::Stream(SIDE), Filter::Capture(SIDE)] {
        under_each_default(|top| {
            let pool = MemPool::new(&top.allocator).unwrap();
            let eager = pool.scope(|| top.malloc_on(30 * MIB, SIDE)).unwrap();
            top.free(eager);
            let captured = malloc_captured(top, pool.id(), 3 * MIB, filter);
            assert!(!is_plain(top, eager) && is_plain(top, captured));
            assert!(is_plain(top, pool.scope(|| top.malloc_on(3 * MIB, SIDE)).unwrap()));
        });
    }
}

#[test]
fn whoever_sets_expandable_segments_has_them_in_captures_too() {
    let captured = |conf: &str, policy: Policy| {
        let top = BenchTop::new(4 * GIB, conf, policy);
        let addr = malloc_captured(&top, PoolId(3, 0), 3 * MIB, Filter::Capture(SIDE));
        !is_plain(&top, addr)
    };
    assert!(captured("expandable_segments:True", Policy::larder()));
    assert!(captured("expandable_segments:True", Policy::tight()));
    assert!(captured("expandable_segments:True", Policy::torch_2_13()));
    assert!(!captured("expandable_segments:True,plain_captures:True", Policy::larder()));
    let top = by_default(Policy::larder());
    top.configure("expandable_segments:True");
    let addr = malloc_captured(&top, PoolId(3, 0), 3 * MIB, Filter::Capture(SIDE));
    assert!(!is_plain(&top, addr), "also where it is set on the way");
}

#[test]
fn captures_segments_soon_grow_with_their_pool_alone() {
    let top = by_default(Policy::larder());
    let pool = MemPool::for_capture(&top.allocator).unwrap();
    let held = |sizes: &[u64]| {
        let all: Vec<Addr> = pool
            .scope(|| sizes.iter().map(|&size_bytes| top.malloc(size_bytes)).collect())
            .unwrap();
        (pool.stats().reserved_bytes.current as u64 / MIB, all.len())
    };
    assert_eq!(held(&[3 * MIB]).0, 20, "as all others at first");
    assert_eq!(held(&[64 * MIB, 64 * MIB]).0, 148);
    assert_eq!(held(&[9 * MIB, 9 * MIB]).0, 166, "then an eighth of what the pool holds");
    assert_eq!(held(&[9 * MIB]).0, 166, "which the next request finds");
    assert_eq!(held(&[9 * MIB]).0, 186);
}

/// A pool of one stream grows by what that stream's segments hold: those of another serve it
/// nothing. With a small segment here, what is small would be cut from the largest block instead,
/// which then serves no large request again.
#[test]
fn another_streams_segments_do_not_make_a_captures_segments_small() {
    let top = by_default(Policy::larder());
    let pool = MemPool::for_capture(&top.allocator).unwrap();
    let on = |stream: StreamId, sizes: &[u64]| {
        pool.scope(|| {
            for &size_bytes in sizes {
                top.allocator.malloc(size_bytes, stream).unwrap();
            }
        })
        .unwrap();
        pool.stats().reserved_bytes.current as u64 / MIB
    };
    assert_eq!(on(MAIN, &[64 * MIB, 3 * MIB]), 72, "the second is sized by what the pool holds");
    assert_eq!(on(SIDE, &[3 * MIB]), 92, "and no other stream's first is");
}

#[test]
fn full_cards_give_plain_memory_back_for_pages_and_pages_for_plain_memory() {
    under_each_default(|top| {
        let paged = top.malloc(3 * GIB);
        top.free(paged);
        let plain = {
            let _plain = top.allocator.plain_memory();
            top.malloc(3 * GIB)
        };
        assert!(is_plain(top, plain));
        top.free(plain);
        assert!(top.try_malloc_on(7 * GIB / 2, StreamId(2)).is_ok());
    });
}

/// Whoever repeats itself is served in plain memory too, by the way of a cycle, and each piece of
/// it is counted all the same.
#[test]
fn pieces_of_plain_memory_are_counted_in_a_cycle() {
    let top = by_default(Policy::tight());
    let plain = {
        let _plain = top.allocator.plain_memory();
        top.malloc(512)
    };
    top.free(plain);
    for round in 0..60 {
        let addr = top.malloc(512);
        assert!(is_plain(&top, addr), "round {round}");
        let segment = segment_of(&top, addr);
        let free = segment.blocks.iter().filter(|block| block.state == State::Free).count();
        assert_eq!(top.stats().inactive_split.all.current, free as i64, "round {round}");
        top.free(addr);
        assert_eq!(top.stats().inactive_split.all.current, 0, "round {round}");
    }
}
