//! The versions of PyTorch: for each choice in which they differ, one story, and how it ends under
//! which of them.

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::heap::Filter;
use larder_core::policy::{CaptureRule, ReclaimRule, TieBreak};
use larder_core::types::{GIB, MIB, PoolId, StreamId};
use larder_core::{Policy, TorchVersion};

/// The oldest.
const TORCH: Policy = Policy::torch_2_11();

/// Each PyTorch is the one before it with the choices that it made differently.
#[test]
fn each_torch_differs_from_the_one_before_it() {
    let later = |before: Policy, version: TorchVersion| {
        let policy = Policy::of_torch(version);
        assert_ne!(Policy { name: before.name, torch: before.torch, ..policy.clone() }, before);
        Policy { name: policy.name, torch: policy.torch, ..before }
    };
    let second = Policy {
        tie_break: TieBreak::BlockNumber,
        reclaim: ReclaimRule::PoolWithReuse,
        ..later(TORCH, TorchVersion::V2_12)
    };
    assert_eq!(second, Policy::torch_2_12());
    let third = Policy {
        tie_break: TieBreak::SegmentNumber,
        capture: CaptureRule::Marked,
        cap_rounds_to_nearest: true,
        ..later(second, TorchVersion::V2_13)
    };
    assert_eq!(third, Policy::torch_2_13());
    let fourth = Policy { no_split_goes_with_pool: true, ..later(third, TorchVersion::V2_14) };
    assert_eq!(fourth, Policy::torch_2_14());
    let fifth = Policy { no_pages_beyond_segment: true, ..later(fourth, TorchVersion::V2_15) };
    assert_eq!(fifth, Policy::torch_2_15());
}

/// Which of three free blocks of a size the next request gets: the segments were made one after the
/// other, and the last lies lowest.
#[test]
fn tie_break_between_segments() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        let hole = top.malloc(20 * MIB);
        let [first, second] = [(); 2].map(|()| top.malloc(20 * MIB));
        // The device gives the lowest addresses that it has.
        top.free(hole);
        top.empty();
        let last = top.malloc(20 * MIB);
        assert!(last < first && first < second);
        for addr in [second, last, first] {
            top.free(addr);
        }
        let got = top.malloc(20 * MIB);
        if got == first {
            "first"
        } else if got == last {
            "last"
        } else {
            "second"
        }
    };
    assert_eq!(story(TORCH), "last", "the lowest");
    for policy in [Policy::torch_2_12(), Policy::torch_2_13(), Policy::torch_2_15()] {
        assert_eq!(story(policy), "first", "the one that was made first");
    }
}

/// Two free blocks of one size inside of one segment: the front was cut off for a request, and the
/// rest is what is left.
#[test]
fn tie_break_inside_of_a_segment() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        let [front, middle, rest] = [6, 8, 6].map(|size| top.malloc(size * MIB));
        assert!(front < middle && middle < rest);
        for addr in [front, rest] {
            top.free(addr);
        }
        top.malloc(6 * MIB) == front
    };
    assert!(story(TORCH) && story(Policy::torch_2_13()) && story(Policy::torch_2_15()));
    assert!(!story(Policy::torch_2_12()), "the rest has the number of the whole, which is older");
}

/// A block that was cut off, freed and merged counts as made when it was cut off.
#[test]
fn tie_break_by_blocks_moves_what_was_used() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        let [one, other] = [(); 2].map(|()| top.malloc(20 * MIB));
        for addr in [one, other] {
            top.free(addr);
        }
        let small = top.malloc(4 * MIB);
        assert_eq!(small, one);
        top.free(small);
        top.malloc(4 * MIB) == one
    };
    assert!(story(TORCH) && story(Policy::torch_2_13()));
    assert!(!story(Policy::torch_2_12()));
}

/// Since PyTorch 2.13 a capture is one that was marked, for the thread that works on a captured
/// stream.
#[test]
fn capture_is_by_mark_and_by_the_current_stream() {
    let story = |current: StreamId, is_marked: bool| {
        let top = BenchTop::new(40 * MIB, "", Policy::torch_2_13());
        let [used, cached] = [8, 20].map(|size| top.malloc(size * MIB));
        top.record(used, SIDE);
        top.free(cached);
        top.allocator.on_current_stream(move || Some(current));
        top.allocator.begin_pool(PoolId(1, 0), Filter::Stream(SIDE)).unwrap();
        let third = StreamId(7);
        top.device.begin_capture(third).unwrap();
        if is_marked {
            top.allocator.mark_capture_begin(third).unwrap();
        }
        top.free(used);
        let events = top.device.event_count();
        let is_served = top.try_malloc(30 * MIB).is_ok();
        top.device.end_capture(third).expect("nobody broke the capture");
        top.allocator.mark_capture_end(third);
        (events, is_served, top.try_malloc(30 * MIB).is_ok())
    };
    let captured = StreamId(7);
    assert_eq!(story(captured, true), (0, false, true), "put off, and brought back behind it");
    assert_eq!(story(captured, false).0, 1, "nobody said that it is one");
    assert_eq!(story(MAIN, true).0, 1, "it is another's");
}

/// PyTorch brings back what lies in the pool of a scope that is closed, if captures reuse such
/// blocks.
#[test]
fn reclaim_of_a_pool_that_reuses() {
    let story = |policy, conf| {
        let top = BenchTop::new(GIB, conf, policy);
        let elsewhere = top.malloc(20 * MIB);
        top.record(elsewhere, SIDE);
        top.allocator.begin_pool(PoolId(1, 0), Filter::Stream(MAIN)).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        let used = top.malloc(20 * MIB);
        top.record(used, SIDE);
        for addr in [used, elsewhere] {
            top.free(addr);
        }
        top.device.end_capture(MAIN).unwrap();
        top.allocator.end_pool(PoolId(1, 0)).unwrap();
        top.stats().active.all.current
    };
    let reuse = "graph_capture_record_stream_reuse:True";
    assert_eq!(story(TORCH, reuse), 2);
    assert_eq!(story(Policy::torch_2_12(), reuse), 1, "what was there before is in no pool");
    assert_eq!(story(Policy::torch_2_12(), ""), 2);
}

/// An expandable segment has an eighth more addresses than the device has memory.
#[test]
fn no_pages_beyond_a_segment() {
    let story = |policy| {
        let top = BenchTop::new(80 * MIB, "expandable_segments:True", policy);
        top.oom(200 * MIB);
        (top.device.calls().create > 0, top.stats().num_alloc_retries)
    };
    for policy in [TORCH, Policy::torch_2_14()] {
        assert_eq!(story(policy), (true, 1), "the whole device is filled with pages first");
    }
    assert_eq!(story(Policy::torch_2_15()), (false, 1));
}

/// Since PyTorch 2.15 a segment's addresses can be fewer: when they are used up there is another
/// segment.
#[test]
fn a_reserve_makes_more_segments_of_fewer_addresses() {
    let conf = "expandable_segments:True,expandable_segments_reserve:0.125";
    let top = BenchTop::new(800 * MIB, conf, Policy::torch_2_15());
    let [first, second] = [(); 2].map(|()| top.malloc(60 * MIB));
    assert_eq!(second.0 - first.0, 100 * MIB);
    top.oom(120 * MIB);
}

#[test]
fn no_split_goes_with_the_pool() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        let pool = PoolId(0, 3);
        let life = |is_marked: bool| {
            top.allocator.add_pool_use(pool).unwrap();
            if is_marked {
                top.allocator.set_pool_no_split(pool).unwrap();
            }
            top.allocator.begin_pool(pool, Filter::Any).unwrap();
            let addr = top.malloc(4 * MIB);
            let live_bytes = top.stats().allocated_bytes.all.current;
            top.allocator.end_pool(pool).unwrap();
            top.free(addr);
            for _ in 0..2 {
                top.allocator.drop_pool_use(pool).unwrap();
            }
            top.empty();
            live_bytes / MIB as i64
        };
        [life(true), life(false)]
    };
    for policy in [TORCH, Policy::torch_2_12(), Policy::torch_2_13()] {
        assert_eq!(story(policy), [20, 20], "the name is marked for good");
    }
    for policy in [Policy::torch_2_14(), Policy::torch_2_15(), Policy::larder()] {
        assert_eq!(story(Policy { expandable_by_default: false, ..policy }), [20, 4]);
    }
}
