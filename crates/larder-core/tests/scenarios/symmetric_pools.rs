//! Symmetric pools on one rank: streams, captures, statistics, history, and what is refused.

use std::sync::{Arc, Barrier, Mutex};

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::allocator::history::HistoryOptions;
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::device::{Device, DeviceError};
use larder_core::error::{Error, PoolProblem};
use larder_core::record::context::RustStack;
use larder_core::record::event::Level;
use larder_core::sequence::Divergence;
use larder_core::source::{SegmentSource, SourceFunctions, SourceProperties};
use larder_core::types::{GIB, MIB, Span};
use larder_core::{Addr, MemPool, Policy, StreamId};

/// Plain memory of the device, as a source.
fn plain(top: &BenchTop) -> Arc<dyn SegmentSource> {
    let (gives, takes) = (top.device.clone(), top.device.clone());
    Arc::new(SourceFunctions::new(
        move |size_bytes, _: StreamId| gives.alloc(size_bytes).ok(),
        move |segment: Span, _: StreamId| {
            takes.free(segment.addr).expect("a segment that was given");
        },
    ))
}

fn symmetric(top: &BenchTop) -> MemPool {
    MemPool::symmetric(&top.allocator, plain(top), SymmetricOptions::default()).unwrap()
}

fn malloc_in(top: &BenchTop, pool: &MemPool, size_bytes: u64, stream: StreamId) -> Addr {
    pool.scope(|| top.try_malloc_on(size_bytes, stream)).unwrap().unwrap()
}

/// Tells the story under every policy.
fn everywhere(memory_bytes: u64, story: impl Fn(&BenchTop)) {
    for policy in Policy::all() {
        println!("policy {policy}");
        story(&BenchTop::new(memory_bytes, "", policy));
    }
}

#[test]
fn small_requests_share_a_segment_and_statistics_count_them() {
    everywhere(GIB, |top| {
        let pool = symmetric(top);
        let blocks: Vec<Addr> = (0..100).map(|_| malloc_in(top, &pool, 5000, MAIN)).collect();
        let offsets: Vec<u64> =
            blocks.iter().map(|&block| pool.position_of(block).unwrap().offset_bytes).collect();
        assert_eq!(offsets, (0..100).map(|number| number * 5120).collect::<Vec<_>>());
        assert_eq!(pool.stats().reserved_bytes.current, 2 * MIB as i64);
        assert_eq!(pool.stats().allocations, 100);
        assert_eq!(pool.sequence().unwrap().calls, 101);
        top.free_all(&blocks);
        assert_eq!(pool.symmetric_segments().unwrap().len(), 1, "it stays until it is trimmed");
        assert_eq!((pool.trim(), pool.trim()), (Ok(1), Ok(0)));
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn where_a_block_lies_is_nobodys_choice() {
    everywhere(GIB, |top| {
        let pool = symmetric(top);
        let block = malloc_in(top, &pool, MIB, MAIN);
        top.free(block);
        let calls = pool.sequence().unwrap().calls;
        let asked = pool.scope(|| top.allocator.malloc_at(MIB, MAIN, block)).unwrap();
        assert_eq!(asked, Err(Error::Pool { pool: pool.id(), problem: PoolProblem::Symmetric }));
        top.settle();
        assert_eq!(pool.sequence().unwrap().calls, calls);
    });
}

#[test]
fn what_another_stream_frees_is_had_at_once_and_streams_wait_for_each_other() {
    everywhere(GIB, |top| {
        let pool = symmetric(top);
        let block = malloc_in(top, &pool, MIB, SIDE);
        top.device.issue(SIDE);
        top.allocator.record_stream(block, FAR).unwrap();
        top.device.issue(FAR);
        let [side, far] = [SIDE, FAR].map(|stream| top.device.moment(stream));
        top.free(block);
        // Nobody waited, and nobody had to: the default stream comes after both.
        assert_eq!(malloc_in(top, &pool, MIB, MAIN), block);
        assert!(!top.device.is_over(side) && !top.device.is_over(far));
        assert!(top.device.comes_after(MAIN, side) && top.device.comes_after(MAIN, far));
        top.device.issue(MAIN);
        let main = top.device.moment(MAIN);
        let other = malloc_in(top, &pool, MIB, FAR);
        assert_ne!(other, block);
        assert!(top.device.comes_after(FAR, main), "and who asks comes after the default stream");
    });
}

#[test]
fn under_a_capture_the_default_stream_alone_may_have_it() {
    let top = BenchTop::larder(GIB, "");
    let pool = symmetric(&top);
    let shared = malloc_in(&top, &pool, MIB, SIDE);
    top.device.begin_capture(SIDE).unwrap();
    let refused = pool.scope(|| top.try_malloc_on(512, SIDE)).unwrap();
    let problem = PoolProblem::Captured;
    assert_eq!(refused, Err(Error::Pool { pool: pool.id(), problem }));
    let block = malloc_in(&top, &pool, 512, MAIN);
    top.free(block);
    top.device.end_capture(SIDE).unwrap();
    top.free(shared);
    assert_eq!(pool.sequence().unwrap().calls, 6, "what was refused is a call too");
}

#[test]
fn a_rank_that_is_capped_declines_and_all_of_them_are_out_of_memory() {
    everywhere(GIB, |top| {
        let declined = Arc::new(std::sync::Mutex::new(Vec::new()));
        let notes = declined.clone();
        let (gives, takes) = (top.device.clone(), top.device.clone());
        let source = SourceFunctions::new(
            move |size_bytes, _: StreamId| gives.alloc(size_bytes).ok(),
            move |segment: Span, _: StreamId| takes.free(segment.addr).unwrap(),
        )
        .properties(SourceProperties::default().collective(true).declines(true))
        .on_decline(move |(size_bytes, _)| {
            notes.lock().unwrap().push(size_bytes);
            Ok(())
        });
        let pool =
            MemPool::symmetric(&top.allocator, Arc::new(source), SymmetricOptions::default());
        let pool = pool.unwrap();
        top.allocator.set_memory_fraction(0.01).unwrap();
        let refused = pool.scope(|| top.try_malloc_on(30 * MIB, MAIN)).unwrap();
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        assert_eq!(*declined.lock().unwrap(), [30 * MIB, 30 * MIB], "it asked twice, as others do");
        assert_eq!(pool.source_counts().unwrap().refused, 2);
    });
}

#[test]
fn a_failing_hook_leaves_things_as_they_were() {
    everywhere(GIB, |top| {
        let fails = || DeviceError::Other { code: 3, text: "not today".to_owned() };
        let none = SourceFunctions::new(|_, _: StreamId| None, |_, _: StreamId| ());
        let source = Arc::new(none.on_begin_pool(move |_| Err(fails())));
        let pool = MemPool::with_source(&top.allocator, source).unwrap();
        let refused = pool.scope(|| ()).unwrap_err().to_string();
        assert!(refused.contains("failed to begin a scope: not today"), "{refused}");
        assert_eq!(pool.uses(), 1);
        let none = SourceFunctions::new(|_, _: StreamId| None, |_, _: StreamId| ());
        let refused =
            MemPool::with_source(&top.allocator, Arc::new(none.on_init(move |_| Err(fails()))));
        assert!(refused.is_err() && top.allocator.check().is_ok());
    });
}

#[test]
fn what_would_break_the_symmetry_is_refused() {
    everywhere(GIB, |top| {
        let pool = symmetric(top);
        malloc_in(top, &pool, 512, MAIN);
        let refused = Some(PoolProblem::Symmetric);
        let problem = |result: Result<(), Error>| match result {
            Err(Error::Pool { problem, .. }) => Some(problem),
            _ => None,
        };
        assert_eq!(problem(pool.set_use_on_oom(true)), refused);
        assert_eq!(problem(pool.set_no_split()), refused);
        assert_eq!(problem(pool.checkpoint().map(|_| ())), refused);
        let plain = MemPool::new(&top.allocator).unwrap();
        assert_eq!(problem(plain.sequence().map(|_| ())), Some(PoolProblem::NotSymmetric));
        assert_eq!(problem(plain.trim().map(|_| ())), Some(PoolProblem::NotSymmetric));
    });
}

#[test]
fn a_seal_names_the_first_call_that_differs_with_the_stack_of_each_rank() {
    let ranks: Vec<(BenchTop, MemPool)> = (0..3)
        .map(|rank| {
            let top = BenchTop::larder(GIB, "");
            let options = HistoryOptions::default();
            let options = options.level(Level::All).context_hook(RustStack::hook());
            top.allocator.record_history(options).unwrap();
            let pool = symmetric(&top);
            for number in 0..40 {
                let is_odd = (rank, number) == (1, 30);
                malloc_in(&top, &pool, if is_odd { 9999 } else { 512 }, MAIN);
            }
            (top, pool)
        })
        .collect();
    let (all_said, everybody) = (Mutex::new(vec![Vec::new(); 3]), Barrier::new(3));
    let gather = &|rank: usize, said: &[u8]| {
        all_said.lock().unwrap()[rank] = said.to_vec();
        everybody.wait();
        let gathered = all_said.lock().unwrap().clone();
        everybody.wait();
        Ok(gathered)
    };
    let told: Vec<Divergence> = std::thread::scope(|scope| {
        let sealing: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, (_, pool))| {
                scope.spawn(move || match pool.seal(|said| gather(rank, said)) {
                    Err(Error::Diverged(divergence)) => *divergence,
                    other => panic!("{other:?}"),
                })
            })
            .collect();
        sealing.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(told.iter().all(|divergence| *divergence == told[0]));
    assert_eq!((told[0].call, told[0].odd_ranks()), (Some(31), vec![1]));
    assert!(told[0].ranks[1].stack.contains("malloc"), "{}", told[0].ranks[1].stack);
    for (top, pool) in &ranks {
        let again = pool.seal(|_| panic!("nobody needs to ask again")).unwrap_err();
        assert!(matches!(again, Error::Diverged(_)) && top.allocator.check().is_ok());
    }
}
