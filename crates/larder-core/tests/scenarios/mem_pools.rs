//! Memory pools as values: who they serve, what they hold, and what becomes of it when they go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::bench_top::Piece::{Free, Live};
use crate::bench_top::{BenchTop, SIDE};
use larder_core::error::{Error, PoolProblem};
use larder_core::heap::Filter;
use larder_core::source::{SegmentFault, SourceFunctions};
use larder_core::types::{GIB, MIB, PoolId, Span};
use larder_core::{Addr, MemPool, Policy, StreamId};
use larder_sim::SimDevice;

fn pool(top: &BenchTop) -> MemPool {
    MemPool::new(&top.allocator).unwrap()
}

/// A request inside the pool.
fn malloc_in(top: &BenchTop, pool: &MemPool, size_bytes: u64) -> Addr {
    pool.scope(|| top.malloc(size_bytes)).unwrap()
}

/// How often a source was asked, and for how many bytes it stands.
#[derive(Default)]
struct Asks {
    allocs: AtomicU64,
    frees: AtomicU64,
}

/// A pool whose segments come from functions that count, and that take from the device themselves.
fn pool_with_functions(top: &BenchTop) -> (MemPool, Arc<Asks>) {
    use larder_core::device::Device;
    let asks = Arc::new(Asks::default());
    let (gives, takes): (Arc<SimDevice>, Arc<SimDevice>) = (top.device.clone(), top.device.clone());
    let (counts_alloc, counts_free) = (asks.clone(), asks.clone());
    let source = SourceFunctions::new(
        move |size_bytes, _: StreamId| {
            counts_alloc.allocs.fetch_add(1, Ordering::Relaxed);
            gives.alloc(size_bytes).ok()
        },
        move |segment: Span, _: StreamId| {
            counts_free.frees.fetch_add(1, Ordering::Relaxed);
            takes.free(segment.addr).expect("a segment that was given");
        },
    );
    (MemPool::with_source(&top.allocator, Arc::new(source)).unwrap(), asks)
}

fn asked(asks: &Asks) -> (u64, u64) {
    (asks.allocs.load(Ordering::Relaxed), asks.frees.load(Ordering::Relaxed))
}

#[test]
fn names_are_given_in_turn_and_tell_who_made_the_pool() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [first, second] = [pool(top), pool(top)];
        assert_eq!((first.id(), second.id()), (PoolId(0, 1), PoolId(0, 2)));
        let captured = MemPool::for_capture(&top.allocator).unwrap();
        assert_eq!(captured.id(), PoolId(1, 0));
        assert_eq!(top.allocator.name_pool(), PoolId(0, 3), "a name makes no pool");
        assert_eq!(top.allocator.pool_uses(PoolId(0, 3)), None);
        top.allocator.add_pool_use(PoolId(0, 4)).unwrap();
        assert_eq!(pool(top).id(), PoolId(0, 5), "a name that is taken is left out");
    });
}

#[test]
fn a_scope_adds_a_use_and_drops_it() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        assert_eq!(pool.uses(), 1);
        assert_eq!(pool.scope(|| pool.uses()), Ok(2));
        assert_eq!(pool.uses(), 1);
        let shared = MemPool::named(&top.allocator, pool.id()).unwrap();
        assert_eq!((pool.uses(), shared.uses()), (2, 2));
        drop(shared);
        assert_eq!(pool.uses(), 1);
    });
}

#[test]
fn a_scope_ends_whichever_way_it_is_left() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let panics = || pool.scope(|| panic!("the body goes wrong"));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(caught.is_err());
        assert_eq!(pool.uses(), 1);
        top.malloc(512);
        assert_eq!(pool.stats().segments, 0, "requests are routed no more");
        let again = pool.scope(|| pool.scope(|| ())).unwrap();
        let open = Error::Pool { pool: pool.id(), problem: PoolProblem::Open };
        assert_eq!(again, Err(open), "a pool is not nested in itself");
    });
}

#[test]
fn small_requests_share_a_segment_until_it_is_full() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (pool, asks) = pool_with_functions(top);
        malloc_in(top, &pool, MIB);
        assert_eq!((pool.snapshot().len(), asked(&asks)), (1, (1, 0)));
        top.malloc(MIB);
        malloc_in(top, &pool, MIB);
        assert_eq!(pool.snapshot().len(), 1, "2 MiB hold two of them");
        malloc_in(top, &pool, MIB);
        assert_eq!((pool.snapshot().len(), asked(&asks)), (2, (2, 0)));
        assert_eq!(pool.stats().reserved_bytes.current, 4 * MIB as i64);
        assert_eq!(top.stats().segment.all.current, 3, "and one of the default pool");
    });
}

#[test]
fn segments_of_a_source_go_back_to_it_when_the_cache_is_emptied() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (pool, asks) = pool_with_functions(top);
        let blocks = [MIB, 20 * MIB].map(|size_bytes| malloc_in(top, &pool, size_bytes));
        top.free_all(&blocks);
        top.empty();
        assert_eq!(asked(&asks), (2, 0), "the pool is in use and keeps its memory");
        let id = pool.id();
        let held = malloc_in(top, &pool, 20 * MIB);
        drop(pool);
        assert_eq!(asked(&asks), (2, 1), "what is cached goes with the pool");
        top.free(held);
        assert_eq!(asked(&asks), (2, 1));
        top.empty();
        assert_eq!((asked(&asks), top.device.used_bytes()), ((2, 2), 0));
        assert_eq!(top.allocator.pool_uses(id), None);
    });
}

#[test]
fn a_block_may_be_freed_after_pool_and_source_are_gone_from_sight() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let (pool, asks) = pool_with_functions(top);
        let block = malloc_in(top, &pool, 20 * MIB);
        let kept = Arc::downgrade(&asks);
        drop((pool, asks));
        top.free(block);
        assert!(kept.upgrade().is_some(), "the source lives as long as it has given memory");
        top.empty();
        assert!(kept.upgrade().is_none());
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn a_source_is_never_asked_for_expandable_segments() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let (pool, asks) = pool_with_functions(top);
        malloc_in(top, &pool, 3 * MIB);
        assert_eq!((asked(&asks), pool.stats().segments), ((1, 0), 1));
        assert!(pool.snapshot().iter().all(|segment| !segment.expandable));
        assert_eq!(pool.snapshot()[0].span.size_bytes, 20 * MIB);
        assert_eq!(top.device.calls().map, 0);
    });
}

#[test]
fn the_segments_of_a_source_may_begin_anywhere() {
    for policy in Policy::all() {
        let top = BenchTop::new(GIB, "", policy);
        let begin = Addr((1 << 50) + MIB + 512);
        let source = SourceFunctions::new(move |_, _| Some(begin), |_, _| ());
        let pool = MemPool::with_source(&top.allocator, Arc::new(source)).unwrap();
        let malloc = |size_bytes| pool.scope(|| top.allocator.malloc(size_bytes, SIDE)).unwrap();
        let block = malloc(600 * 1024).unwrap();
        assert_eq!(block, begin);
        assert!(top.allocator.usable_bytes(block).is_ok());
        top.allocator.free(block).unwrap();
        assert_eq!(top.allocator.check(), Ok(()));
    }
}

#[test]
fn a_source_without_memory_is_out_of_memory_and_a_wrong_one_is_told_so() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let empty = SourceFunctions::new(|_, _| None, |_, _| ());
        let pool = MemPool::with_source(&top.allocator, Arc::new(empty)).unwrap();
        pool.scope(|| top.oom(512)).unwrap();
        let wrongs = [
            (Addr(0), SegmentFault::Null),
            (Addr(513), SegmentFault::Misaligned),
            (Addr(u64::MAX - 511), SegmentFault::Endless),
        ];
        for (wrong, fault) in wrongs {
            let returned = Arc::new(AtomicU64::new(0));
            let counter = returned.clone();
            let source = SourceFunctions::new(
                move |_, _| Some(wrong),
                move |_, _| _ = counter.fetch_add(1, Ordering::Relaxed),
            );
            let pool = MemPool::with_source(&top.allocator, Arc::new(source)).unwrap();
            let refused = pool.scope(|| top.try_malloc(512)).unwrap();
            let problem = PoolProblem::BadSegment(wrong, fault);
            assert_eq!(refused, Err(Error::Pool { pool: pool.id(), problem }));
            assert_eq!(returned.load(Ordering::Relaxed), 1, "it got back what it gave");
        }
        let taken = top.malloc(512);
        let source = SourceFunctions::new(move |_, _| Some(taken), |_, _| ());
        let pool = MemPool::with_source(&top.allocator, Arc::new(source)).unwrap();
        assert!(pool.scope(|| top.try_malloc(512)).unwrap().is_err(), "the address is in use");
    });
}

#[test]
fn a_pool_told_to_lend_does_so_and_no_other() {
    BenchTop::under_each_policy(60 * MIB, "", |top| {
        let lender = pool(top);
        let other = pool(top);
        lender.set_use_on_oom(true).unwrap();
        let block = malloc_in(top, &lender, 40 * MIB);
        top.free(block);
        assert_eq!(top.malloc(40 * MIB), block, "a request of the default pools is lent to");
        top.free(block);
        other.scope(|| top.oom(40 * MIB)).unwrap();
        lender.set_use_on_oom(false).unwrap();
        let report = top.oom(40 * MIB);
        assert_eq!((report.private_free_bytes, report.unallocated_bytes()), (40 * MIB, 0));
        assert!(report.to_string().contains("40.00 MiB is kept by private pools"));
    });
}

#[test]
fn a_pool_that_was_dropped_lends_nothing_and_asks_for_no_harm() {
    BenchTop::under_each_policy(60 * MIB, "", |top| {
        let lender = pool(top);
        lender.set_use_on_oom(true).unwrap();
        let block = malloc_in(top, &lender, 40 * MIB);
        drop(lender);
        top.oom(40 * MIB);
        top.free(block);
        top.malloc(40 * MIB);
        assert_eq!(top.device.used_bytes(), 40 * MIB);
    });
}

#[test]
fn a_pool_that_does_not_split_hands_out_whole_segments() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        pool.set_no_split().unwrap();
        let first = malloc_in(top, &pool, 2 * MIB);
        assert_eq!(top.segments(), [[Live(20 * MIB)]]);
        malloc_in(top, &pool, 2 * MIB);
        assert_eq!(pool.stats().segments, 2);
        top.free(first);
        assert_eq!(malloc_in(top, &pool, 4 * MIB), first, "a whole block is used again");
    });
}

#[test]
fn nested_pools_get_what_is_asked_for_in_the_innermost() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [outer, middle, inner] = [(); 3].map(|()| pool(top));
        outer
            .scope(|| {
                top.malloc(20 * MIB);
                let nested = middle.scope(|| {
                    top.malloc(20 * MIB);
                    inner.scope(|| top.malloc(20 * MIB)).unwrap();
                    top.malloc(20 * MIB);
                });
                nested.unwrap();
                top.malloc(20 * MIB);
            })
            .unwrap();
        let segments = [&outer, &middle, &inner].map(|pool| pool.stats().segments);
        assert_eq!(segments, [2, 2, 1]);
        assert_eq!(top.stats().segment.all.current, 5);
    });
}

#[test]
fn expandable_segments_serve_a_pool_and_go_with_it() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let pool = pool(top);
        let block = malloc_in(top, &pool, 2 * MIB);
        let stats = pool.stats();
        assert_eq!((stats.segments, stats.reserved_bytes.current), (0, 20 * MIB as i64));
        assert_eq!((stats.allocated_bytes, stats.free_bytes), (2 * MIB, 18 * MIB));
        top.free(block);
        drop(pool);
        assert_eq!((top.device.used_bytes(), top.allocator.snapshot().len()), (0, 0));
    });
}

#[test]
fn a_pool_counts_what_it_holds_apart_from_the_others() {
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let [first, second] = [pool(top), pool(top)];
            let blocks = [30, 40].map(|size| malloc_in(top, &first, size * MIB));
            malloc_in(top, &second, 20 * MIB);
            top.malloc(20 * MIB);
            let held = if settings.is_empty() { 70 } else { 80 };
            let stats = first.stats();
            assert_eq!((stats.allocations, stats.allocated_bytes), (2, 70 * MIB));
            assert_eq!(stats.reserved_bytes.current, held * MIB as i64);
            assert_eq!(second.stats().reserved_bytes.current, 20 * MIB as i64);
            top.record(blocks[0], SIDE);
            top.free_all(&blocks);
            let stats = first.stats();
            assert_eq!((stats.allocations, stats.active_bytes), (0, 30 * MIB), "one waits");
            assert_eq!(first.snapshot().len(), if settings.is_empty() { 2 } else { 1 });
            assert!(first.snapshot().iter().all(|segment| segment.pool == Some(first.id())));
            top.allocator.reset_accumulated_stats();
            top.allocator.reset_peak_stats();
            let reserved = first.stats().reserved_bytes;
            assert_eq!((reserved.peak, reserved.allocated), (held * MIB as i64, 0));
        });
    }
}

#[test]
fn threads_are_routed_each_by_its_own_scope() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pools: Vec<MemPool> = (0..4).map(|_| pool(top)).collect();
        let all_open = Barrier::new(pools.len() + 1);
        thread::scope(|scope| {
            for pool in &pools {
                let (all_open, allocator) = (&all_open, &top.allocator);
                scope.spawn(move || {
                    let inside = pool.scope(|| {
                        all_open.wait();
                        let block = allocator.malloc(20 * MIB, StreamId(0)).unwrap();
                        all_open.wait();
                        block
                    });
                    allocator.free(inside.unwrap()).unwrap();
                });
            }
            all_open.wait();
            top.allocator.malloc(30 * MIB, StreamId(0)).unwrap();
            all_open.wait();
        });
        top.settle();
        assert!(pools.iter().all(|pool| pool.stats().segments == 1 && pool.uses() == 1));
        assert_eq!(
            top.stats().segment.all.current,
            5,
            "the one thread without a scope has its own"
        );
        drop(pools);
        assert_eq!(top.device.used_bytes(), 30 * MIB);
    });
}

#[test]
fn pools_come_and_go_in_many_threads_at_once() {
    BenchTop::under_each_policy(GIB, "", |top| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let pool = MemPool::new(&top.allocator).unwrap();
                        let inside = pool.scope(|| top.allocator.malloc(2 * MIB, StreamId(0)));
                        top.allocator.free(inside.unwrap().unwrap()).unwrap();
                        drop(pool);
                        top.allocator.empty_cache().unwrap();
                    }
                });
            }
        });
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn a_scope_for_every_stream_takes_other_threads_too() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let inside = pool.scope_for(Filter::Any, || {
            thread::scope(|scope| {
                scope.spawn(|| top.allocator.malloc(512, SIDE).unwrap()).join().unwrap()
            })
        });
        assert!(pool.has_live(&[inside.unwrap()]).unwrap());
    });
}

/// As since PyTorch 2.13: a memory pool in use is no graph capture.
#[test]
fn inside_a_scope_memory_is_won_back_as_outside() {
    let top = BenchTop::larder(40 * MIB, "");
    let cached = top.malloc(30 * MIB);
    top.free(cached);
    let pool = pool(&top);
    let block = malloc_in(&top, &pool, 30 * MIB);
    assert_eq!(top.stats().num_alloc_retries, 1, "the cache was given back to make room");
    pool.scope(|| {
        top.record(block, SIDE);
        top.free(block);
        assert_eq!(top.device.event_count(), 1, "the free is not put off");
        top.device.sync(SIDE);
        assert_eq!(top.malloc(30 * MIB), block);
        top.free(block);
        top.empty();
    })
    .unwrap();
    assert_eq!(top.stats().num_sync_all_streams, 2, "emptying the cache waits for events");

    let torch = BenchTop::torch(40 * MIB, "");
    let cached = torch.malloc(30 * MIB);
    torch.free(cached);
    MemPool::new(&torch.allocator).unwrap().scope(|| torch.oom(30 * MIB)).unwrap();
}

#[test]
fn a_released_pool_is_emptied_while_another_scope_is_open() {
    let (torch, larder) = (BenchTop::torch(GIB, ""), BenchTop::larder(GIB, ""));
    for (top, kept_bytes) in [(&torch, 20 * MIB), (&larder, 0)] {
        let [open, gone] = [pool(top), pool(top)];
        let block = malloc_in(top, &gone, 20 * MIB);
        drop(gone);
        top.free(block);
        let cached = top.malloc(20 * MIB);
        top.free(cached);
        open.scope(|| top.empty()).unwrap();
        let why = "an open scope keeps PyTorch from emptying the default pools";
        assert_eq!(top.device.used_bytes(), kept_bytes, "{why}");
    }
}

#[test]
fn the_order_of_reuse_is_that_of_addresses_whatever_was_split_and_merged() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let all = || [(); 3].map(|()| malloc_in(top, &pool, 20 * MIB));
        let blocks = all();
        top.free_all(&[blocks[2], blocks[0], blocks[1]]);
        let parts = [(); 2].map(|()| malloc_in(top, &pool, 10 * MIB));
        assert_eq!(parts, [blocks[0], blocks[0].offset(10 * MIB)]);
        top.free_all(&parts);
        assert_eq!(top.segments(), [[Free(20 * MIB)]; 3]);
        assert_eq!(all(), blocks);
    });
}
