//! Expandable segments: addresses reserved ahead, pages put behind them as they are needed.

use crate::bench_top::Piece::{Free, Live, Unmapped, Waiting};
use crate::bench_top::{BenchTop, FAR, SIDE};
use larder_core::types::{GIB, MIB, Span};
use larder_core::{Addr, Policy};
use larder_sim::{FaultPlan, RESERVE_BASE, SimOptions};

const ON: &str = "expandable_segments:True";

#[test]
fn the_first_request_reserves_nine_eighths_of_the_device_and_maps_one_page() {
    BenchTop::under_each_policy(80 * GIB, ON, |top| {
        assert_eq!(top.malloc(2 * MIB), Addr(RESERVE_BASE));
        let rest = Unmapped(90 * GIB - 20 * MIB);
        assert_eq!(top.segments(), [[Live(2 * MIB), Free(18 * MIB), rest]]);
        let calls = top.device.calls();
        assert_eq!((calls.reserve, calls.create, calls.map, calls.access), (1, 1, 1, 1));
        assert_eq!(top.device.used_bytes(), 20 * MIB);
        assert_eq!(calls.alloc, 0);
    });
}

#[test]
fn the_reserved_addresses_are_a_whole_number_of_pages() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        top.malloc(512);
        top.malloc(2 * MIB);
        let sizes: Vec<_> = top.allocator.snapshot().iter().map(|it| it.span.size_bytes).collect();
        // 112.5 MiB, rounded up to pages of 2 MiB and of 20 MiB.
        assert_eq!(sizes, [114 * MIB, 120 * MIB]);
    });
}

#[test]
fn a_small_segment_grows_by_pages_of_2_mib() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let first = top.malloc(MIB);
        let second = top.malloc(MIB);
        assert_eq!(second, first.offset(MIB));
        assert_eq!(top.device.used_bytes(), 2 * MIB);
        assert_eq!(top.malloc(512), first.offset(2 * MIB));
        assert_eq!(top.device.used_bytes(), 4 * MIB);
        assert_eq!(top.device.calls().reserve, 1, "it is still the same segment");
    });
}

#[test]
fn a_segment_grows_from_its_free_tail_by_what_is_missing() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let first = top.malloc(2 * MIB);
        // 18 MiB are free at the end, 12 are missing: one more page.
        assert_eq!(top.malloc(30 * MIB), first.offset(2 * MIB));
        assert_eq!(top.backed(), [[Live(2 * MIB), Live(30 * MIB), Free(8 * MIB)]]);
        assert_eq!((top.device.calls().create, top.device.calls().access), (2, 2));
        // 92 are missing: five pages, one call for access.
        top.malloc(100 * MIB);
        assert_eq!((top.device.calls().create, top.device.calls().access), (7, 3));
        assert_eq!(top.backed()[0].last(), Some(&Free(8 * MIB)));
        assert_eq!(top.stats().num_device_alloc, 3);
    });
}

#[test]
fn each_stream_and_each_kind_of_pool_has_its_own_segment() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        for stream in [SIDE, FAR] {
            for size_bytes in [512, 2 * MIB, 1024, 3 * MIB] {
                top.malloc_on(size_bytes, stream);
            }
        }
        assert_eq!(top.device.calls().reserve, 4);
        assert_eq!(top.segments().len(), 4);
    });
}

#[test]
fn only_whole_free_pages_are_unmapped() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        // Pages end at 20 and at 40 MiB.
        let [low, middle, _high] = [10, 20, 10].map(|size| top.malloc(size * MIB));
        top.free(middle);
        top.empty();
        assert_eq!(top.backed(), [[Live(10 * MIB), Free(20 * MIB), Live(10 * MIB)]]);
        assert_eq!(top.device.calls().unmap, 0, "the free block has no page of its own");
        top.free(low);
        top.empty();
        assert_eq!(top.segments()[0][..3], [Unmapped(20 * MIB), Free(10 * MIB), Live(10 * MIB)]);
        let calls = top.device.calls();
        assert_eq!((calls.unmap, calls.release, calls.wait_stream), (1, 1, 1));
        assert_eq!(top.device.used_bytes(), 20 * MIB);
        assert_eq!(top.stats().num_device_free, 1);
    });
}

#[test]
fn a_free_block_loses_its_middle_and_keeps_its_ends() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [_low, wide, _high] = [5, 50, 5].map(|size| top.malloc(size * MIB));
        top.free(wide);
        top.empty();
        let ends = [Live(5 * MIB), Free(15 * MIB), Unmapped(20 * MIB), Free(15 * MIB)];
        assert_eq!(top.segments()[0][..4], ends);
        assert_eq!(top.malloc(50 * MIB), wide, "the hole is filled again");
        assert_eq!(top.backed(), [[Live(5 * MIB), Live(50 * MIB), Live(5 * MIB)]]);
    });
}

#[test]
fn unmapping_waits_for_the_segments_stream() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let addr = top.malloc_on(20 * MIB, SIDE);
        top.device.issue(SIDE);
        top.device.issue(FAR);
        top.free(addr);
        top.empty();
        assert!(!top.device.is_busy(SIDE), "its work may use the page");
        assert!(top.device.is_busy(FAR));
    });
}

#[test]
fn the_lowest_hole_is_refilled_first() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let addrs = [(); 5].map(|()| top.malloc(20 * MIB));
        top.free_all(&[addrs[3], addrs[1]]);
        top.empty();
        assert_eq!(top.device.used_bytes(), 60 * MIB);
        assert_eq!(top.malloc(20 * MIB), addrs[1]);
        assert_eq!(top.malloc(20 * MIB), addrs[3]);
        assert_eq!(top.malloc(20 * MIB), addrs[4].offset(20 * MIB));
    });
}

#[test]
fn a_hole_that_is_too_small_is_passed_over() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let addrs = [(); 3].map(|()| top.malloc(20 * MIB));
        top.free(addrs[1]);
        top.empty();
        assert_eq!(top.malloc(21 * MIB), addrs[2].offset(20 * MIB));
        assert_eq!(top.malloc(19 * MIB), addrs[2].offset(41 * MIB), "what is mapped comes first");
        assert_eq!(top.malloc(2 * MIB), addrs[1]);
    });
}

#[test]
fn a_hole_is_refilled_together_with_the_free_blocks_around_it() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [low, wide, _high] = [15, 30, 15].map(|size| top.malloc(size * MIB));
        top.free(wide);
        top.empty();
        assert_eq!(top.segments()[0][1..4], [Free(5 * MIB), Unmapped(20 * MIB), Free(5 * MIB)]);
        assert_eq!(top.malloc(26 * MIB), low.offset(15 * MIB));
        assert_eq!(top.backed()[0][1..3], [Live(26 * MIB), Free(4 * MIB)]);
    });
}

#[test]
fn the_growable_tail_is_taken_last() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [hole, _guard] = [10, 6].map(|size| top.malloc(size * MIB));
        top.free(hole);
        // The tail of 4 MiB is the best fit, but all the unmapped addresses follow it.
        assert_eq!(top.malloc(3 * MIB), hole);
        let row = [Live(3 * MIB), Free(7 * MIB), Live(6 * MIB), Free(4 * MIB)];
        assert_eq!(top.backed(), [row]);
        assert_eq!(top.malloc(5 * MIB), hole.offset(3 * MIB));
        assert_eq!(top.malloc(3 * MIB), hole.offset(16 * MIB), "only the tail fits now");
    });
}

#[test]
fn of_two_holes_that_cannot_grow_the_smaller_is_taken() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [wide, _one, narrow, _two] = [6, 2, 4, 2].map(|size| top.malloc(size * MIB));
        top.free_all(&[wide, narrow]);
        assert_eq!(top.malloc(3 * MIB), narrow);
        assert_eq!(top.malloc(3 * MIB), wide);
    });
}

#[test]
fn of_two_equally_large_holes_that_cannot_grow_the_lower_is_taken() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [low, _one, high, _two] = [4, 2, 4, 2].map(|size| top.malloc(size * MIB));
        top.free_all(&[high, low]);
        assert_eq!(top.malloc(3 * MIB), low);
        assert_eq!(top.malloc(3 * MIB), high);
    });
}

#[test]
fn a_segment_without_pages_gives_its_addresses_back() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [first, second] = [20, 30].map(|size| top.malloc(size * MIB));
        let other = top.malloc_on(20 * MIB, SIDE);
        top.free_all(&[first, second]);
        top.empty();
        assert_eq!(top.device.calls().unreserve, 1);
        assert_eq!(top.backed(), [[Live(20 * MIB)]]);
        top.free(other);
        top.empty();
        assert!(top.segments().is_empty());
        assert_eq!((top.device.used_bytes(), top.device.page_count()), (0, 0));
        assert_eq!(top.device.calls().unreserve, 2);
    });
}

#[test]
fn while_the_setting_is_off_expandable_blocks_are_passed_over_and_then_used_again() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let expandable = top.malloc(20 * MIB);
        let live = top.malloc(20 * MIB);
        top.free(expandable);
        top.configure("expandable_segments:False");
        let plain = top.malloc(20 * MIB);
        assert_eq!(top.device.calls().alloc, 1);
        top.free(plain);
        assert_eq!(top.malloc(20 * MIB), plain, "the plain one is found behind the expandable one");
        top.free(live);
        top.configure(ON);
        assert_eq!(top.malloc(20 * MIB), expandable);
        let calls = top.device.calls();
        assert_eq!((calls.alloc, calls.reserve, calls.create), (1, 1, 2));
    });
}

#[test]
fn while_the_setting_is_off_a_small_block_that_could_grow_serves_nobody() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let expandable = top.malloc(512);
        top.configure("expandable_segments:False");
        let plain = [(); 2].map(|()| top.malloc(512));
        top.free(expandable);
        let next = top.malloc(512);
        assert!(top.allocator.base_allocation(next).is_ok(), "{next} and {plain:?}");
    });
}

#[test]
fn while_the_setting_is_off_the_cache_still_gives_pages_back() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let addr = top.malloc(20 * MIB);
        top.configure("expandable_segments:False");
        top.free(addr);
        top.empty();
        assert!(top.segments().is_empty());
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn once_the_setting_is_on_plain_blocks_are_still_used() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let plain = top.malloc(20 * MIB);
        top.free(plain);
        top.configure(ON);
        assert_eq!(top.malloc(20 * MIB), plain);
        assert_eq!(top.malloc(20 * MIB), Addr(RESERVE_BASE));
    });
}

#[test]
fn a_plain_block_is_preferred_to_a_tail_that_can_grow() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let plain = top.malloc(20 * MIB);
        top.configure(ON);
        let expandable = top.malloc(4 * MIB);
        top.free(plain);
        // The tail of 16 MiB fits better, but with what it can grow into it is far larger.
        assert_eq!(top.malloc(16 * MIB), plain);
        assert_ne!(top.malloc(16 * MIB), expandable);
    });
}

#[test]
fn pages_can_be_made_smaller() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True,page_size_mb:2", |top| {
        let first = top.malloc(3 * MIB);
        assert_eq!(top.backed(), [[Live(3 * MIB), Free(MIB)]]);
        assert_eq!(top.device.calls().create, 2);
        let second = top.malloc(30 * MIB);
        assert_eq!(second, first.offset(3 * MIB));
        assert_eq!(top.device.used_bytes(), 34 * MIB);
        top.free(first);
        top.empty();
        assert_eq!(top.device.used_bytes(), 32 * MIB, "one of its two pages is shared");
    });
}

#[test]
fn the_size_of_a_large_segment_is_that_of_a_page_and_of_a_plain_segment() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True,large_segment_size_mb:40", |top| {
        top.malloc(2 * MIB);
        assert_eq!(top.backed(), [[Live(2 * MIB), Free(38 * MIB)]]);
        top.configure("expandable_segments:False");
        top.malloc(2 * MIB);
        assert_eq!(top.backed()[1], [Live(2 * MIB), Free(38 * MIB)]);
    });
}

#[test]
fn an_odd_segment_size_gives_pages_that_the_device_can_map() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True,large_segment_size_mb:11", |top| {
        top.malloc(2 * MIB);
        assert_eq!(top.backed(), [[Live(2 * MIB), Free(10 * MIB)]]);
    });
    BenchTop::under_each_policy(GIB, "large_segment_size_mb:11", |top| {
        let [first, second] = [2, 4].map(|size| top.malloc(size * MIB));
        assert_eq!(second, first.offset(2 * MIB));
        assert_eq!(top.segments(), [[Live(2 * MIB), Live(4 * MIB), Free(5 * MIB)]]);
        top.free_all(&[first, second]);
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn a_segment_keeps_its_page_size_when_the_setting_changes() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True,page_size_mb:4", |top| {
        let addr = top.malloc(4 * MIB);
        top.configure("page_size_mb:32");
        top.malloc(4 * MIB);
        assert_eq!(top.device.used_bytes(), 8 * MIB);
        top.free(addr);
        top.empty();
        assert_eq!(top.device.used_bytes(), 4 * MIB);
        top.malloc_on(4 * MIB, SIDE);
        assert_eq!(top.device.used_bytes(), 36 * MIB, "a new segment has the new pages");
    });
}

#[test]
fn expandable_segments_are_counted_neither_as_segments_nor_as_split() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [first, second] = [2, 30].map(|size| top.malloc(size * MIB));
        top.malloc(512);
        top.free(first);
        let stats = top.stats();
        assert_eq!(stats.segment.all.allocated, 0);
        assert_eq!(stats.inactive_split.all.allocated, 0);
        assert_eq!(stats.inactive_split_bytes.all.allocated, 0);
        assert_eq!(stats.reserved_bytes.all.current, 42 * MIB as i64);
        top.free(second);
        top.empty();
        let stats = top.stats();
        assert_eq!((stats.segment.all.freed, stats.inactive_split.all.freed), (0, 0));
        assert_eq!(stats.reserved_bytes.all.current, 2 * MIB as i64);
    });
}

#[test]
fn a_waiting_block_is_neither_grown_into_nor_unmapped() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let [first, second] = [(); 2].map(|()| top.malloc(20 * MIB));
        top.record(first, SIDE);
        top.free_all(&[first, second]);
        assert_eq!(top.malloc(30 * MIB), second, "the free tail and one page more");
        assert_eq!(top.backed()[0][..2], [Waiting(20 * MIB), Live(30 * MIB)]);
    });
}

#[test]
fn a_device_without_virtual_memory_gets_plain_segments() {
    for policy in Policy::all() {
        let options = SimOptions::default().virtual_memory(false);
        let top = BenchTop::with(options, ON, policy);
        assert!(!top.allocator.config().expandable_segments);
        let addr = top.malloc(2 * MIB);
        assert_eq!(top.segments(), [[Live(2 * MIB), Free(18 * MIB)]]);
        top.configure(ON);
        assert!(!top.allocator.config().expandable_segments, "it cannot be turned on either");
        assert_eq!(top.allocator.base_allocation(addr), Ok(Span::new(addr, 20 * MIB)));
        assert_eq!(top.device.calls().failed, 0, "nothing was even tried");
    }
}

#[test]
fn pages_that_run_out_midway_are_all_given_back() {
    BenchTop::under_each_policy(GIB, ON, |top| {
        let live = top.malloc(20 * MIB);
        top.device.set_faults(FaultPlan::new(0).page_limit(3));
        let report = top.oom(60 * MIB);
        assert_eq!(report.tried_bytes, 60 * MIB);
        assert_eq!(top.device.page_count(), 1);
        assert_eq!(top.backed(), [[Live(20 * MIB)]]);
        assert_eq!(top.malloc(40 * MIB), live.offset(20 * MIB), "two pages there are");
    });
}

#[test]
fn a_segment_full_of_addresses_is_followed_by_a_second_one() {
    // Two streams share 100 MiB; each segment has 120 MiB of addresses. Holes that no request
    // fits into use up the first one.
    BenchTop::under_each_policy(100 * MIB, "expandable_segments:True,page_size_mb:20", |top| {
        let addrs = [(); 4].map(|()| top.malloc(20 * MIB));
        top.free_all(&[addrs[0], addrs[2]]);
        top.empty();
        assert_eq!(top.device.used_bytes(), 40 * MIB);
        // Free addresses: 20, 20, and 40 at the end; 41 fit nowhere.
        top.malloc(41 * MIB);
        assert_eq!(top.device.calls().reserve, 2);
        assert_eq!(top.segments()[1][..2], [Live(41 * MIB), Free(19 * MIB)]);
    });
}
