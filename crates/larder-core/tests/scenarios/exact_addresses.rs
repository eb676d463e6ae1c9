//! Exact: requests for memory at an address, and remarks on memory.

use crate::bench_top::Piece::{Free, Live};
use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::error::{AddressProblem, Error};
use larder_core::heap::Filter;
use larder_core::record::event::{Action, Level};
use larder_core::record::note;
use larder_core::types::{GIB, KIB, MIB};
use larder_core::{Addr, MemPool, Policy, StreamId};

const GROWING: &str = "expandable_segments:True";

fn malloc_at(top: &BenchTop, size_bytes: u64, addr: Addr) -> Result<Addr, Error> {
    malloc_at_on(top, size_bytes, MAIN, addr)
}

fn malloc_at_on(
    top: &BenchTop,
    size_bytes: u64,
    stream: StreamId,
    addr: Addr,
) -> Result<Addr, Error> {
    let taken = top.allocator.malloc_at(size_bytes, stream, addr);
    top.settle();
    taken
}

/// A request at an address that is refused and changes nothing.
fn refused(top: &BenchTop, size_bytes: u64, stream: StreamId, addr: Addr) {
    let seen = || (top.stats(), top.allocator.snapshot(), top.device.used_bytes());
    let before = seen();
    let problem = AddressProblem::NotFree;
    let error = Error::NotAt { addr, size_bytes, stream, problem };
    assert_eq!(malloc_at_on(top, size_bytes, stream, addr), Err(error));
    assert_eq!(before, seen());
}

/// The sums of handed out and given back blocks.
fn counted(top: &BenchTop) -> (i64, i64) {
    let allocation = top.stats().allocation.all;
    (allocation.allocated, allocation.freed)
}

#[test]
fn what_was_freed_is_had_again_where_it_was() {
    for policy in Policy::all() {
        for settings in ["", GROWING] {
            println!("policy {policy} with '{settings}'");
            let top = BenchTop::new(4 * GIB, settings, policy.clone());
            for sizes in [[2000, 3000, 4000], [3 * MIB, 2 * MIB, 5 * MIB]] {
                let addrs = sizes.map(|size_bytes| top.malloc(size_bytes));
                let (allocated, freed) = counted(&top);
                top.free_all(&addrs);
                // In another order than that in which they lie.
                for at in [2, 0, 1] {
                    assert_eq!(malloc_at(&top, sizes[at], addrs[at]), Ok(addrs[at]));
                    refused(&top, sizes[at], MAIN, addrs[at]);
                }
                // Only the last one had something free before it.
                assert_eq!(counted(&top), (allocated + 4, freed + 4));
                top.free_all(&addrs);
            }
        }
    }
}

#[test]
fn the_rest_is_split_off_by_the_usual_rule() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        let addr = top.malloc(2 * MIB);
        top.free(addr);
        let at = addr.offset(4 * MIB + 512);
        assert_eq!(malloc_at(top, 3 * MIB, at), Ok(at));
        let before = 4 * MIB + 512;
        assert_eq!(top.backed(), [[Free(before), Live(3 * MIB), Free(13 * MIB - 512)]]);
        let pieces = top.stats().inactive_split.all;
        assert_eq!((pieces.current, pieces.peak), (2, 2));
        top.free(at);
        // A rest that no request of the large pool could use stays with the block.
        let at = addr.offset(16 * MIB);
        assert_eq!(malloc_at(top, 3 * MIB, at), Ok(at));
        assert_eq!(top.backed(), [[Free(16 * MIB), Live(4 * MIB)]]);
        assert_eq!(top.allocator.usable_bytes(at), Ok(4 * MIB));
        top.free(at);
        assert_eq!(top.backed(), [[Free(20 * MIB)]]);
    });
}

#[test]
fn an_address_that_cannot_be_had_changes_nothing() {
    for policy in Policy::all() {
        let top = BenchTop::new(4 * GIB, GROWING, policy);
        let [first, second] = [3 * MIB, 3 * MIB].map(|size_bytes| top.malloc(size_bytes));
        top.free(second);
        refused(&top, 2 * MIB, MAIN, first);
        refused(&top, 2 * MIB, MAIN, first.offset(512));
        refused(&top, 2 * MIB, SIDE, second);
        refused(&top, 2 * MIB, MAIN, Addr(0));
        refused(&top, 2 * MIB, MAIN, Addr(u64::MAX - 511));
        refused(&top, 1 << 62, MAIN, second);
        // Behind the last page there are addresses, and nothing behind them.
        refused(&top, 40 * MIB, MAIN, second);
        refused(&top, 2 * MIB, MAIN, first.offset(200 * MIB));
        let addr = second.offset(100);
        let problem = AddressProblem::Unaligned(512);
        let (size_bytes, stream) = (2 * MIB, MAIN);
        let error = Error::NotAt { addr, size_bytes, stream, problem };
        assert!(error.to_string().ends_with("it is no multiple of 512 bytes"));
        assert_eq!(malloc_at(&top, 2 * MIB, addr), Err(error));
        assert_eq!(malloc_at(&top, 0, addr), Ok(Addr(0)));
        assert_eq!(malloc_at(&top, 2 * MIB, second), Ok(second));
        top.free_all(&[first, second]);
    }
}

#[test]
fn what_is_awaited_is_taken_back_first() {
    for policy in Policy::all() {
        let top = BenchTop::new(4 * GIB, "", policy);
        let addr = top.malloc(3 * MIB);
        top.record(addr, SIDE);
        top.free(addr);
        refused(&top, 4 * MIB, SIDE, addr);
        assert!(malloc_at(&top, 3 * MIB, addr).is_err(), "the other stream still works with it");
        top.device.sync(SIDE);
        assert_eq!(malloc_at(&top, 3 * MIB, addr), Ok(addr));
    }
}

#[test]
fn a_private_pool_has_its_own_addresses() {
    for policy in Policy::all() {
        let top = BenchTop::new(4 * GIB, "", policy);
        let pool = MemPool::new(&top.allocator).unwrap();
        let plain = top.malloc(3 * MIB);
        let own = pool.scope(|| top.malloc(3 * MIB)).unwrap();
        top.free_all(&[plain, own]);
        refused(&top, 3 * MIB, MAIN, own);
        pool.scope(|| {
            refused(&top, 3 * MIB, MAIN, plain);
            assert_eq!(malloc_at(&top, 2 * MIB, own.offset(512)), Ok(own.offset(512)));
        })
        .unwrap();
        assert_eq!(malloc_at(&top, 3 * MIB, plain), Ok(plain));
        top.free_all(&[plain, own.offset(512)]);
    }
}

#[test]
fn a_pool_that_does_not_split_gives_all_from_the_address_on() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        let pool = MemPool::new(&top.allocator).unwrap();
        pool.scope(|| {
            let addr = top.malloc(3 * MIB);
            top.free(addr);
            pool.set_no_split().unwrap();
            assert_eq!(malloc_at(top, 2 * MIB, addr.offset(5 * MIB)), Ok(addr.offset(5 * MIB)));
            assert_eq!(top.backed(), [[Free(5 * MIB), Live(15 * MIB)]]);
            top.free(addr.offset(5 * MIB));
        })
        .unwrap();
    });
}

#[test]
fn a_capture_has_its_blocks_where_they_were() {
    for policy in Policy::all() {
        let top = BenchTop::new(4 * GIB, "", policy);
        let pool = MemPool::for_capture(&top.allocator).unwrap();
        let record = |part: &dyn Fn() -> Addr| {
            pool.scope_for(Filter::Capture(MAIN), || {
                top.device.begin_capture(MAIN).unwrap();
                let addr = part();
                top.device.end_capture(MAIN).unwrap();
                addr
            })
            .unwrap()
        };
        let first = record(&|| top.malloc(300 * KIB));
        top.free(first);
        let at = first.offset(64 * KIB);
        assert_eq!(record(&|| malloc_at(&top, 100 * KIB, at).unwrap()), at);
        top.free(at);
    }
}

#[test]
fn the_history_says_that_an_address_was_named() {
    for policy in Policy::all() {
        let top = BenchTop::new(4 * GIB, "", policy);
        let addr = top.malloc(20 * MIB);
        top.free(addr);
        top.allocator.record_history(HistoryOptions::default()).unwrap();
        note::set_user_metadata("step 7");
        let at = addr.offset(5 * MIB);
        malloc_at(&top, 2 * MIB, at).unwrap();
        note::set_user_metadata("");
        top.free(at);
        let trace = top.allocator.take_snapshot(SnapshotOptions::default()).trace;
        let told: Vec<_> = trace
            .iter()
            .map(|entry| {
                let said = (&*entry.user_metadata, &*entry.internal_metadata);
                (entry.action, entry.addr - addr.0, entry.size_bytes, said)
            })
            .collect();
        let (own, later) = (("step 7", "mallocWithAddress"), ("", ""));
        let expected = [
            (Action::Alloc, 0, 5 * MIB, own),
            (Action::Alloc, 5 * MIB, 2 * MIB, own),
            (Action::FreeRequested, 0, 5 * MIB, own),
            (Action::FreeCompleted, 0, 5 * MIB, own),
            (Action::FreeRequested, 5 * MIB, 2 * MIB, later),
            (Action::FreeCompleted, 5 * MIB, 2 * MIB, later),
        ];
        assert_eq!(told, expected);
    }
}

#[test]
fn a_tracker_that_panics_costs_no_memory() {
    let top = BenchTop::larder(4 * GIB, "");
    let addr = top.malloc(3 * MIB);
    top.free(addr);
    top.allocator.on_event(|event| {
        assert!(event.internal_metadata.is_empty() || event.action != Action::Alloc, "no");
    });
    let allocator = top.allocator.clone();
    let asked = std::thread::spawn(move || allocator.malloc_at(2 * MIB, MAIN, addr.offset(MIB)));
    assert!(asked.join().is_err());
    top.settle();
    assert_eq!(top.stats().allocation.all.current, 0);
    assert_eq!(top.backed(), [[Free(20 * MIB)]]);
}

#[test]
fn tight_gives_what_is_free_at_home_and_nothing_in_views() {
    let top = BenchTop::new(4 * GIB, "", Policy::tight());
    let blocks: Vec<Addr> = (0..10).map(|_| top.malloc(20 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&addr| top.free(addr));
    let view = top.malloc(60 * MIB);
    let segments = top.allocator.snapshot();
    assert!(segments.iter().any(|segment| segment.view && segment.span.contains(view)));
    top.free(view);
    let refuse = |size_bytes, addr| {
        assert!(matches!(malloc_at(&top, size_bytes, addr), Err(Error::NotAt { .. })));
    };
    refuse(60 * MIB, view);
    refuse(2 * MIB, view);
    // At home one piece of it is free, and the next is in use.
    let at = blocks[2].offset(5 * MIB);
    refuse(20 * MIB, at);
    assert_eq!(malloc_at(&top, 4 * MIB, at), Ok(at));
    // Small and large lie side by side.
    assert_eq!(malloc_at(&top, 700, blocks[2].offset(512)), Ok(blocks[2].offset(512)));
    top.free_all(&[at, blocks[2].offset(512)]);
    assert_eq!(malloc_at(&top, 20 * MIB, blocks[2]), Ok(blocks[2]));
}

#[test]
fn a_remark_on_a_block_is_an_entry_of_its_own() {
    let top = BenchTop::larder(4 * GIB, "");
    let pool = MemPool::new(&top.allocator).unwrap();
    let unknown = |addr| Err(Error::UnknownAddress(addr));
    assert_eq!(top.allocator.annotate_memory(Addr(0), "nothing"), unknown(Addr(0)));
    let addr = pool.scope(|| top.malloc_on(1000, SIDE)).unwrap();
    top.allocator.annotate_memory(addr, "nobody listens").unwrap();
    let hook = || Some(std::sync::Arc::new(larder_core::record::context::Stack(Vec::new())) as _);
    let options = HistoryOptions::default().level(Level::Alloc);
    top.allocator.record_history(options.context_hook(std::sync::Arc::new(hook))).unwrap();
    note::set_user_metadata("step 1");
    top.allocator.annotate_memory(addr, "the weights").unwrap();
    assert_eq!(note::user_metadata(), "step 1");
    note::set_user_metadata("");
    top.free(addr);
    assert_eq!(top.allocator.annotate_memory(addr, "too late"), unknown(addr));
    top.settle();
    let trace = top.allocator.take_snapshot(SnapshotOptions::default()).trace;
    assert_eq!(trace.len(), 3);
    let entry = &trace[0];
    let said = (entry.action, entry.addr, entry.size_bytes, entry.stream, &*entry.user_metadata);
    assert_eq!(said, (Action::Annotate, addr.0, 1000, SIDE, "the weights"));
    assert_eq!((entry.pool, &*entry.internal_metadata), (pool.id(), ""));
    assert!(entry.context.is_some());
}
