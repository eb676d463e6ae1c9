//! Pinned memory of the host: what is asked for is what is taken, blocks wait for the copies that
//! use them, and captures keep what they recorded. Requests name a stream of their own, on which no
//! work is ever issued, so that every use is one by another stream.

use crate::bench_top::Piece::{Free, Live, Waiting};
use crate::bench_top::{BenchTop, FAR, SIDE};
use larder_core::heap::Filter;
use larder_core::types::{HOST_STREAM, MIB, PoolId};
use larder_core::{Addr, Policy};
use larder_sim::SimOptions;

const POOL: PoolId = PoolId(0, 1);

fn host(memory_bytes: u64) -> BenchTop {
    let options = SimOptions::default().memory_bytes(memory_bytes).virtual_memory(false);
    BenchTop::with(options, "", Policy::pinned())
}

fn pin(top: &BenchTop, size_bytes: u64) -> Addr {
    top.malloc_on(size_bytes, HOST_STREAM)
}

fn reserved(top: &BenchTop) -> u64 {
    top.allocator.stats().reserved_bytes.all.current as u64
}

#[test]
fn five_tensors_take_what_they_are() {
    let top = host(8 << 30);
    let asked = [130, 270, 410, 600, 800].map(|mebibytes| mebibytes * MIB + 1234);
    for size_bytes in asked {
        pin(&top, size_bytes);
    }
    let asked: u64 = asked.into_iter().sum();
    assert!(reserved(&top) - asked < 5 * 4096, "a page each: {} for {asked}", reserved(&top));
}

#[test]
fn small_ones_share_a_segment_and_large_ones_a_freed_one() {
    let top = host(1 << 30);
    for _ in 0..16 {
        pin(&top, 100_000);
    }
    assert_eq!(reserved(&top), 2 * MIB);
    let whole = pin(&top, 100 * MIB);
    top.free(whole);
    let first = pin(&top, 33 * MIB);
    let second = pin(&top, 66 * MIB + 4096);
    assert_eq!((first, second), (whole, whole.offset(33 * MIB)));
    let third = pin(&top, 100_000);
    assert!(third < whole || third >= whole.offset(100 * MIB), "small ones lie apart");
    assert_eq!(reserved(&top), 102 * MIB, "a rest of less than a MiB is kept for others");
    assert_eq!(
        top.segments().pop(),
        Some(vec![Live(33 * MIB), Live(66 * MIB + 4096), Free(MIB - 4096)])
    );
}

#[test]
fn what_is_too_small_makes_room_for_what_is_asked_for_now() {
    let top = host(1 << 30);
    let first = [20, 30, 40, 50].map(|mebibytes| pin(&top, mebibytes * MIB));
    top.free_all(&first[..3]);
    pin(&top, 60 * MIB);
    assert_eq!(reserved(&top), (20 + 50 + 60) * MIB, "40 and 30 went for it");
    top.free(first[3]);
    pin(&top, 45 * MIB);
    assert_eq!(reserved(&top), (20 + 50 + 60) * MIB, "what fits is cut");
}

#[test]
fn a_block_waits_for_every_copy_and_for_nothing_else() {
    let top = host(1 << 30);
    let block = pin(&top, 40 * MIB);
    for stream in [SIDE, FAR] {
        top.device.issue(stream);
        top.allocator.record_stream(block, stream).unwrap();
    }
    top.free(block);
    assert_eq!(top.segments(), [vec![Waiting(40 * MIB)]]);
    top.device.sync(SIDE);
    let other = pin(&top, 40 * MIB);
    assert_ne!(other, block, "one copy is still under way");
    top.device.sync(FAR);
    assert_eq!(pin(&top, 40 * MIB), block);
}

#[test]
fn whoever_polls_takes_back_what_is_done() {
    let top = host(1 << 30);
    let block = pin(&top, 40 * MIB);
    top.device.issue(SIDE);
    top.record(block, SIDE);
    top.free(block);
    top.allocator.poll().unwrap();
    assert_eq!(top.segments(), [vec![Waiting(40 * MIB)]]);
    top.device.sync(SIDE);
    top.allocator.poll().unwrap();
    assert_eq!(top.segments(), [vec![Free(40 * MIB)]]);
}

#[test]
fn no_more_is_held_than_the_cap_and_what_is_free_makes_room() {
    let top = host(1 << 30);
    top.allocator.set_memory_fraction(0.5).unwrap();
    let first = pin(&top, 300 * MIB);
    let report = top.try_malloc_on(300 * MIB, HOST_STREAM).unwrap_err();
    assert!(matches!(report, larder_core::Error::OutOfMemory(_)), "{report}");
    top.free(first);
    pin(&top, 301 * MIB);
    assert_eq!(reserved(&top), 301 * MIB, "what was cached went back for it");
}

#[test]
fn a_captures_pool_has_memory_of_its_own_and_gives_it_back_when_nobody_uses_it() {
    let top = host(1 << 30);
    let cached = pin(&top, 10 * MIB);
    top.free(cached);
    top.device.begin_capture(SIDE).unwrap();
    // The request names the host's stream: the filter goes by what the program works on.
    top.allocator.begin_pool(POOL, Filter::Any).unwrap();
    let inside = pin(&top, 10 * MIB);
    assert_ne!(inside, cached);
    top.allocator.record_stream(inside, SIDE).unwrap();
    top.allocator.end_pool(POOL).unwrap();
    top.device.end_capture(SIDE).unwrap();
    assert_eq!(pin(&top, 10 * MIB), cached, "outside the cache is there");
    top.free(inside);
    top.allocator.drop_pool_use(POOL).unwrap();
    top.allocator.empty_cache().unwrap();
    assert_eq!(reserved(&top), 10 * MIB);
}

#[test]
fn what_lay_free_for_long_goes_back_and_what_was_used_since_stays() {
    const AGE_NS: u64 = 60_000_000_000;
    let top = host(1 << 30);
    let look = |spared_bytes: u64| top.allocator.release_unused(AGE_NS, spared_bytes).unwrap();
    let first = [10, 20, 30, 40].map(|mebibytes| pin(&top, mebibytes * MIB));
    let small = pin(&top, 1000);
    top.free_all(&first[..3]);
    top.free(small);
    assert_eq!(look(0), 0, "nobody had looked before");
    top.device.advance(AGE_NS / 2);
    let again = pin(&top, 20 * MIB);
    assert_eq!(again, first[1]);
    top.free(again);
    assert_eq!(look(0), 0, "it is not that long ago");
    top.device.advance(AGE_NS / 2);
    assert_eq!(look(0), (10 + 30 + 2) * MIB, "20 was used since, and 40 is");
    top.device.advance(AGE_NS / 2);
    assert_eq!(look(20 * MIB), 0, "it is ready for a request of that size");
    assert_eq!(look(0), 20 * MIB);
    assert_eq!(reserved(&top), 40 * MIB);
    top.allocator.check().unwrap();
}

#[test]
fn what_copies_still_use_is_not_given_back_however_old_it_is() {
    let top = host(1 << 30);
    let block = pin(&top, 10 * MIB);
    top.device.issue(SIDE);
    top.record(block, SIDE);
    top.free(block);
    for _ in 0..3 {
        assert_eq!(top.allocator.release_unused(1, 0).unwrap(), 0);
        top.device.advance(10);
    }
    top.device.sync(SIDE);
    assert_eq!(top.allocator.release_unused(1, 0).unwrap(), 0, "it is free just now");
    top.device.advance(10);
    assert_eq!(top.allocator.release_unused(1, 0).unwrap(), 10 * MIB);
}

#[test]
fn what_is_larger_than_may_be_cached_goes_back_once_nobody_uses_it() {
    let top = host(1 << 30);
    let blocks = [10, 20, 30].map(|mebibytes| pin(&top, mebibytes * MIB));
    let above = || top.allocator.release_above(10 * MIB).unwrap();
    top.device.issue(SIDE);
    top.record(blocks[2], SIDE);
    top.free_all(&blocks);
    assert_eq!(above(), 20 * MIB, "a copy uses 30");
    top.device.sync(SIDE);
    assert_eq!((above(), reserved(&top)), (30 * MIB, 10 * MIB));
}

#[test]
fn memory_is_got_ahead_of_the_request_that_needs_it() {
    let top = host(1 << 30);
    top.allocator.set_memory_fraction(0.5).unwrap();
    let ahead = || top.allocator.grow_ahead(200 * MIB, HOST_STREAM).unwrap();
    assert!(ahead(), "there is none");
    assert!(!ahead(), "there is one");
    let before = top.device.calls().alloc;
    let block = pin(&top, 150 * MIB);
    assert_eq!(top.device.calls().alloc, before, "the request asked for nothing");
    assert!(ahead());
    assert_eq!(reserved(&top), 400 * MIB);
    pin(&top, 200 * MIB);
    assert!(!ahead(), "the cap leaves no room");
    assert_eq!(reserved(&top), 400 * MIB, "and nothing was given back for it");
    top.free(block);
    assert!(!ahead(), "what was freed will do");
    top.allocator.check().unwrap();
}
