//! Checkpoints: the layout of a pool saved, changed, and put back.

use std::collections::BTreeSet;
use std::thread;

use crate::bench_top::Piece::{Free, Live};
use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::error::{Error, PoolProblem};
use larder_core::heap::checkpoint::Checkpoint;
use larder_core::heap::states::SegmentState;
use larder_core::types::{GIB, KIB, MIB};
use larder_core::{Addr, MemPool, StreamId};
use larder_sim::random::Random;
use larder_sim::{CallKind, Fault, FaultPlan};

fn pool(top: &BenchTop) -> MemPool {
    MemPool::new(&top.allocator).unwrap()
}

fn malloc_in(top: &BenchTop, pool: &MemPool, size_bytes: u64) -> Addr {
    pool.scope(|| top.malloc(size_bytes)).unwrap()
}

fn save(top: &BenchTop, pool: &MemPool) -> Checkpoint {
    let checkpoint = pool.checkpoint().expect("a pool that can be saved");
    top.settle();
    checkpoint
}

/// Puts a layout back, and checks that the pool looks as it did.
fn put_back(top: &BenchTop, pool: &MemPool, checkpoint: &Checkpoint) -> (Vec<Addr>, Vec<Addr>) {
    let restored = pool.restore(checkpoint).expect("a layout that can be put back");
    top.settle();
    let live: Vec<Addr> = checkpoint.live().iter().map(|span| span.addr).collect();
    assert_eq!(restored.created, live);
    assert!(pool.has_live(&live).unwrap());
    for span in checkpoint.live() {
        assert_eq!(top.allocator.usable_bytes(span.addr), Ok(span.size_bytes));
    }
    (restored.freed, restored.created)
}

/// A layout without what was asked for: that is not put back.
fn places(pool: &MemPool) -> Vec<SegmentState> {
    let mut segments = pool.snapshot();
    for block in segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
        block.requested_bytes = 0;
    }
    segments
}

fn problem<T: std::fmt::Debug>(result: Result<T, Error>) -> PoolProblem {
    match result {
        Err(Error::Pool { problem, .. }) => problem,
        other => panic!("this should be an error about a pool, but: {other:?}"),
    }
}

const EACH_KIND: [&str; 2] = ["", "expandable_segments:True"];

#[test]
fn what_died_since_is_live_again_and_what_came_since_is_gone() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let kept = malloc_in(top, &pool, 20 * MIB);
            let dies = malloc_in(top, &pool, 20 * MIB);
            let checkpoint = save(top, &pool);
            let layout = places(&pool);
            top.free(dies);
            let new = [512, 12 * MIB].map(|size_bytes| malloc_in(top, &pool, size_bytes));
            let (freed, created) = put_back(top, &pool, &checkpoint);
            assert_eq!(created, [kept, dies]);
            let mut expected = vec![kept, new[0], new[1]];
            expected.sort_unstable();
            assert_eq!(freed, expected);
            let now = places(&pool);
            for segment in &layout {
                assert!(now.contains(segment), "{segment:?} is not as it was");
            }
            // What is live again can be freed like anything else.
            top.free_all(&[kept, dies]);
            drop(pool);
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}

#[test]
fn nothing_changed_and_nothing_changes() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let blocks = [3 * MIB, 512, 12 * MIB].map(|size| malloc_in(top, &pool, size));
            top.free(blocks[1]);
            let (layout, current) = (places(&pool), top.stats().allocated_bytes.all.current);
            let checkpoint = save(top, &pool);
            for _ in 0..3 {
                put_back(top, &pool, &checkpoint);
                assert_eq!(places(&pool), layout);
                assert_eq!(top.stats().allocated_bytes.all.current, current);
            }
        });
    }
}

#[test]
fn a_live_block_between_free_ones_is_put_back_where_it_was() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let small = [(); 6].map(|()| malloc_in(top, &pool, 64 * KIB));
            top.free_all(&[small[0], small[2], small[5]]);
            let checkpoint = save(top, &pool);
            let layout = places(&pool);
            top.free_all(&[small[1], small[3], small[4]]);
            malloc_in(top, &pool, MIB);
            let (_, created) = put_back(top, &pool, &checkpoint);
            assert_eq!(created, [small[1], small[3], small[4]]);
            assert_eq!(places(&pool), layout);
            assert_eq!(malloc_in(top, &pool, 64 * KIB), small[0], "the holes are where they were");
        });
    }
}

#[test]
fn neighbours_are_put_back_as_blocks_of_their_own() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let pieces = [(); 4].map(|()| malloc_in(top, &pool, 4 * MIB));
            let checkpoint = save(top, &pool);
            top.free_all(&pieces);
            let whole = malloc_in(top, &pool, 16 * MIB);
            assert_eq!(whole, pieces[0]);
            let (freed, created) = put_back(top, &pool, &checkpoint);
            assert_eq!((freed, created), (vec![whole], pieces.to_vec()));
            top.free(pieces[2]);
            assert_eq!(malloc_in(top, &pool, 4 * MIB), pieces[2]);
        });
    }
}

#[test]
fn of_two_checkpoints_each_can_be_put_back_in_any_order() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let first = [(); 3].map(|()| malloc_in(top, &pool, 2 * MIB));
            let full = save(top, &pool);
            top.free(first[1]);
            let fewer = save(top, &pool);
            let (_, created) = put_back(top, &pool, &full);
            assert_eq!(created, first);
            let (freed, created) = put_back(top, &pool, &fewer);
            assert_eq!((freed, created), (first.to_vec(), vec![first[0], first[2]]));
            put_back(top, &pool, &full);
        });
    }
}

#[test]
fn an_expandable_segment_may_have_grown() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let pool = pool(top);
        let small = malloc_in(top, &pool, 2 * MIB);
        assert_eq!(top.backed(), [[Live(2 * MIB), Free(18 * MIB)]]);
        let checkpoint = save(top, &pool);
        top.free(small);
        let large = malloc_in(top, &pool, 32 * MIB);
        assert_eq!((large, top.backed()), (small, vec![vec![Live(32 * MIB), Free(8 * MIB)]]));
        put_back(top, &pool, &checkpoint);
        assert_eq!(top.backed(), [[Live(2 * MIB), Free(38 * MIB)]]);
        let grown = save(top, &pool);
        top.free(small);
        put_back(top, &pool, &grown);
        assert_eq!(top.backed(), [[Live(2 * MIB), Free(38 * MIB)]]);
    });
}

#[test]
fn segments_that_came_since_stay_and_are_free() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        malloc_in(top, &pool, 20 * MIB);
        let checkpoint = save(top, &pool);
        let later = malloc_in(top, &pool, 30 * MIB);
        put_back(top, &pool, &checkpoint);
        assert_eq!(top.segments(), [[Live(20 * MIB)], [Free(30 * MIB)]]);
        assert_eq!(malloc_in(top, &pool, 30 * MIB), later);
    });
}

#[test]
fn the_split_limit_of_the_moment_does_not_matter() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let pieces = [(); 2].map(|()| malloc_in(top, &pool, 30 * MIB));
        top.free_all(&pieces);
        let cut = [(); 2].map(|()| malloc_in(top, &pool, 15 * MIB));
        let checkpoint = save(top, &pool);
        top.configure("max_split_size_mb:20");
        top.free_all(&cut);
        let (_, created) = put_back(top, &pool, &checkpoint);
        assert_eq!(created, cut);
        assert_eq!(top.segments()[0], [Live(15 * MIB), Live(15 * MIB)]);
    });
}

#[test]
fn statistics_move_as_for_real_allocations_and_frees() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let [first, _] = [3, 4].map(|size| malloc_in(top, &pool, size * MIB));
        top.free(first);
        let checkpoint = save(top, &pool);
        let before = top.stats();
        put_back(top, &pool, &checkpoint);
        let after = top.stats();
        // One block is freed; three are handed out, of which the two free ones go again.
        let moved = |counter: larder_core::record::stats::Counter| counter.allocated;
        assert_eq!(moved(after.allocation.all) - moved(before.allocation.all), 3);
        assert_eq!(after.allocation.all.freed - before.allocation.all.freed, 3);
        let bytes = moved(after.allocated_bytes.all) - moved(before.allocated_bytes.all);
        assert_eq!(bytes, 20 * MIB as i64);
        assert_eq!(after.allocation.all.current, before.allocation.all.current);
        assert_eq!(after.num_device_alloc, before.num_device_alloc, "the device hears of nothing");
    });
}

#[test]
fn exactly_the_live_blocks_are_named_or_it_is_not_so() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let outside = top.malloc(512);
        let [first, second] = [(); 2].map(|()| malloc_in(top, &pool, 512));
        assert_eq!(pool.has_live(&[second, first]), Ok(true), "the order does not matter");
        assert_eq!(pool.has_live(&[first]), Ok(false));
        assert_eq!(pool.has_live(&[first, second, outside]), Ok(false));
        top.free(first);
        assert_eq!((pool.has_live(&[second]), pool.has_live(&[first])), (Ok(true), Ok(false)));
        top.free(second);
        assert_eq!(pool.has_live(&[]), Ok(true));
    });
}

#[test]
fn threads_outside_the_scope_leave_the_pool_alone() {
    for (settings, segments) in [("", 4), ("expandable_segments:True", 2)] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let small = malloc_in(top, &pool, 16);
            top.free(small);
            assert_eq!(pool.snapshot().len(), 1);
            let three = || {
                let blocks = [(); 3].map(|()| top.allocator.malloc(20 * MIB, SIDE).unwrap());
                for block in blocks {
                    top.allocator.free(block).unwrap();
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    pool.scope(|| (0..10).for_each(|_| three())).unwrap();
                    three();
                });
                scope.spawn(|| {
                    for _ in 0..10 {
                        let blocks = [(); 2].map(|()| top.allocator.malloc(20 * MIB, MAIN));
                        for block in blocks {
                            top.allocator.free(block.unwrap()).unwrap();
                        }
                    }
                });
            });
            top.settle();
            assert_eq!(pool.snapshot().len(), segments);
        });
    }
}

#[test]
fn a_block_that_another_stream_uses_or_awaits_is_in_the_way() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        let blocks = [(); 2].map(|()| malloc_in(top, &pool, 2 * MIB));
        let checkpoint = save(top, &pool);
        top.record(blocks[1], SIDE);
        let (stats, layout) = (top.stats(), top.allocator.snapshot());
        assert_eq!(problem(pool.restore(&checkpoint)), PoolProblem::Unsettled(blocks[1]));
        assert_eq!((top.stats(), top.allocator.snapshot()), (stats, layout), "nothing changed");
        top.free(blocks[1]);
        assert_eq!(problem(pool.checkpoint()), PoolProblem::Unsettled(blocks[1]));
        assert_eq!(problem(pool.restore(&checkpoint)), PoolProblem::Unsettled(blocks[1]));
        top.device.sync(SIDE);
        top.malloc(512);
        put_back(top, &pool, &checkpoint);
    });
}

#[test]
fn a_block_in_use_elsewhere_is_freed_in_the_end_if_its_segment_came_since() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let pool = pool(top);
        malloc_in(top, &pool, 20 * MIB);
        let checkpoint = save(top, &pool);
        let later = malloc_in(top, &pool, 30 * MIB);
        top.record(later, SIDE);
        top.device.set_faults(FaultPlan::new(0).fail_nth(CallKind::Record, 1, Fault::Other));
        assert!(matches!(pool.restore(&checkpoint), Err(Error::Device { .. })));
        assert_eq!(top.stats().allocation.all.current, 2, "nothing changed");
        let (freed, _) = put_back(top, &pool, &checkpoint);
        assert!(freed.contains(&later));
        assert_eq!(top.stats().active.all.current, 2, "it waits for the other stream");
        top.device.sync(SIDE);
        assert_eq!(malloc_in(top, &pool, 30 * MIB) == later, top.stats().segment.all.current == 2);
    });
}

#[test]
fn a_segment_that_is_gone_is_named_and_nothing_is_half_done() {
    BenchTop::under_each_policy(100 * MIB, "max_split_size_mb:20", |top| {
        let pool = pool(top);
        let [small, large] = [512, 80 * MIB].map(|size_bytes| malloc_in(top, &pool, size_bytes));
        let checkpoint = save(top, &pool);
        top.free(large);
        // The pool's own oversize block is too large for the request, and goes to make room for it.
        let other = malloc_in(top, &pool, 50 * MIB);
        let layout = top.allocator.snapshot();
        assert_eq!(problem(pool.restore(&checkpoint)), PoolProblem::SegmentGone(large));
        assert_eq!(top.allocator.snapshot(), layout);
        assert!(pool.has_live(&[small, other]).unwrap());
        let text = pool.restore(&checkpoint).unwrap_err().to_string();
        assert!(text.ends_with(&format!("the segment at {large} is not as the checkpoint has it")));
    });
}

#[test]
fn a_checkpoint_of_another_allocator_changes_nothing() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let own = pool(top);
        let block = malloc_in(top, &own, 20 * MIB);
        BenchTop::under_each_policy(GIB, "", |stranger| {
            let others = pool(stranger);
            assert_eq!(own.id(), others.id(), "the names alone do not tell");
            let checkpoint = save(stranger, &others);
            assert_eq!(problem(own.restore(&checkpoint)), PoolProblem::OtherAllocator);
            assert!(own.has_live(&[block]).unwrap());
        });
        top.free(block);
    });
}

#[test]
fn a_checkpoint_is_of_one_pool_and_of_a_pool_in_use() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [first, second] = [pool(top), pool(top)];
        let block = malloc_in(top, &first, 20 * MIB);
        let checkpoint = save(top, &first);
        assert_eq!(problem(second.restore(&checkpoint)), PoolProblem::OtherPool);
        drop(first);
        assert_eq!(problem(top.allocator.restore_pool(&checkpoint)), PoolProblem::Released);
        top.free(block);
        top.empty();
        assert_eq!(problem(top.allocator.restore_pool(&checkpoint)), PoolProblem::Unknown);
    });
}

/// A tree of graphs: after A and B ran, either C or D is captured next, and each finds the pool as
/// B left it.
#[test]
fn branches_of_a_tree_of_graphs_start_from_the_same_layout() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let pool = pool(top);
            let trunk =
                [512, 3 * MIB, 12 * MIB].map(|size_bytes| malloc_in(top, &pool, size_bytes));
            top.free(trunk[1]);
            let after_trunk = save(top, &pool);
            let branch = || [MIB, 2 * MIB, 24 * MIB].map(|size| malloc_in(top, &pool, size));
            let first = branch();
            top.free(trunk[0]);
            put_back(top, &pool, &after_trunk);
            assert_eq!(branch(), first, "the other branch gets the very same addresses");
            // A block that both layouts have is freed and live again, and stays one block.
            let (freed, created) = put_back(top, &pool, &after_trunk);
            assert!(freed.contains(&trunk[2]) && created.contains(&trunk[2]));
            top.free(trunk[0]);
            assert_eq!(top.allocator.free(trunk[0]), Err(Error::UnknownAddress(trunk[0])));
        });
    }
}

/// Like the forward passes of a real network: hundreds of blocks of all sizes, some of them dying,
/// under many checkpoints.
#[test]
fn many_blocks_come_back_exactly() {
    for settings in EACH_KIND {
        BenchTop::under_each_policy(8 * GIB, settings, |top| {
            let mut random = Random::new(11);
            let pool = pool(top);
            let mut saved: Vec<(Checkpoint, BTreeSet<Addr>)> = Vec::new();
            let mut live: BTreeSet<Addr> = BTreeSet::new();
            for round in 0..300 {
                let size_bytes = *random.pick(&[512, 64 * KIB, MIB, 3 * MIB, 11 * MIB, 30 * MIB]);
                let stream = StreamId(random.below(2));
                let inside = pool.scope(|| top.allocator.malloc(size_bytes, stream));
                live.insert(inside.unwrap().unwrap());
                if random.chance(0.4) {
                    let all: Vec<Addr> = live.iter().copied().collect();
                    let dies = *random.pick(&all);
                    live.remove(&dies);
                    top.allocator.free(dies).unwrap();
                }
                if round % 25 == 0 {
                    saved.push((save(top, &pool), live.clone()));
                }
                if round % 40 == 39 {
                    let (checkpoint, then) = random.pick(&saved).clone();
                    put_back(top, &pool, &checkpoint);
                    live = then;
                }
            }
            let all: Vec<Addr> = live.into_iter().collect();
            assert_eq!(pool.has_live(&all), Ok(true));
            top.free_all(&all);
            drop(pool);
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}
