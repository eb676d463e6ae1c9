//! Blocks: how requests round, which free block serves them, how blocks split and merge.

use crate::bench_top::Piece::{Free, Live, Unmapped};
use crate::bench_top::{BenchTop, FAR, MAIN, Piece, SIDE};
use larder_core::error::Error;
use larder_core::types::{GIB, MIB, Span};
use larder_core::{Addr, Allocator, Config, Policy};
use larder_sim::PLAIN_BASE;

/// A request on an empty cache: its size, and the blocks of the segment that it brings.
type Row<'a> = (u64, &'a [Piece]);

fn tell(settings: &str, rows: &[Row<'_>]) {
    for &(request_bytes, blocks) in rows {
        BenchTop::under_each_policy(80 * GIB, settings, |top| {
            let addr = top.malloc(request_bytes);
            assert_eq!(top.backed(), [blocks], "a request of {request_bytes} bytes");
            let Live(rounded_bytes) = blocks[0] else { panic!("the low part is handed out") };
            assert_eq!(top.allocator.usable_bytes(addr), Ok(rounded_bytes));
            let stats = top.stats();
            assert_eq!(stats.allocated_bytes.all.current as u64, rounded_bytes);
            assert_eq!(stats.requested_bytes.all.current as u64, request_bytes);
            assert_eq!(stats.reserved_bytes.all.current as u64, top.device.used_bytes());
        });
    }
}

#[test]
fn a_request_on_an_empty_cache_brings_a_segment_of_the_right_size() {
    tell(
        "",
        &[
            (1, &[Live(512), Free(2 * MIB - 512)]),
            (511, &[Live(512), Free(2 * MIB - 512)]),
            (512, &[Live(512), Free(2 * MIB - 512)]),
            (513, &[Live(1024), Free(2 * MIB - 1024)]),
            (MIB, &[Live(MIB), Free(MIB)]),
            (MIB + 1, &[Live(MIB + 512), Free(19 * MIB - 512)]),
            (10 * MIB - 512, &[Live(10 * MIB - 512), Free(10 * MIB + 512)]),
            (10 * MIB, &[Live(10 * MIB)]),
            (10 * MIB + 512, &[Live(10 * MIB + 512), Free(2 * MIB - 512)]),
            (11 * MIB + 512 * 1024, &[Live(12 * MIB)]),
            (GIB, &[Live(GIB)]),
        ],
    );
}

#[test]
fn a_request_on_an_expandable_segment_brings_whole_pages() {
    tell(
        "expandable_segments:True",
        &[
            (1, &[Live(512), Free(2 * MIB - 512)]),
            (MIB, &[Live(MIB), Free(MIB)]),
            (2 * MIB, &[Live(2 * MIB), Free(18 * MIB)]),
            (32 * MIB, &[Live(32 * MIB), Free(8 * MIB)]),
            (40 * MIB, &[Live(40 * MIB)]),
            (40 * MIB - 512, &[Live(40 * MIB - 512), Free(512)]),
        ],
    );
}

#[test]
fn divisions_of_a_power_of_two_round_the_block_and_not_the_request() {
    tell(
        "roundup_power2_divisions:4",
        &[
            (84 * MIB, &[Live(96 * MIB)]),
            (64 * MIB, &[Live(64 * MIB)]),
            (1200, &[Live(1536), Free(2 * MIB - 1536)]),
            (5000, &[Live(5120), Free(2 * MIB - 5120)]),
        ],
    );
    tell("roundup_power2_divisions:1", &[(84 * MIB - 1, &[Live(84 * MIB)])]);
    tell(
        "roundup_power2_divisions:[64:8,128:2,>:1]",
        &[(33 * MIB, &[Live(36 * MIB)]), (129 * MIB, &[Live(192 * MIB)])],
    );
}

#[test]
fn a_third_request_of_1_mib_needs_a_second_segment() {
    BenchTop::under_each_policy(GIB, "", |top| {
        for _ in 0..3 {
            top.malloc(MIB);
        }
        assert_eq!(top.segments(), [vec![Live(MIB), Live(MIB)], vec![Live(MIB), Free(MIB)]]);
        assert_eq!(top.device.calls().alloc, 2);
    });
}

#[test]
fn a_second_request_just_below_10_mib_fits_into_the_same_segment() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let first = top.malloc(10 * MIB - 512);
        let second = top.malloc(10 * MIB - 512);
        assert_eq!(second, first.offset(10 * MIB - 512));
        // What is left over is too small for the large pool: it stays with the second block.
        assert_eq!(top.segments(), [[Live(10 * MIB - 512), Live(10 * MIB + 512)]]);
        assert_eq!(top.allocator.usable_bytes(second), Ok(10 * MIB + 512));
    });
}

#[test]
fn the_smallest_free_block_that_fits_is_taken() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [large, small, middle] = [16, 12, 14].map(|size| top.malloc(size * MIB));
        top.free_all(&[large, small, middle]);
        assert_eq!(top.malloc(13 * MIB), middle);
        assert_eq!(top.malloc(12 * MIB), small);
        assert_eq!(top.malloc(12 * MIB), large);
        assert_eq!(top.device.calls().alloc, 3, "nothing new was asked of the device");
    });
}

#[test]
fn of_equally_large_free_blocks_the_lowest_is_taken() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        BenchTop::under_each_policy(GIB, "", |top| {
            let addrs = [(); 3].map(|()| top.malloc(12 * MIB));
            top.free_all(&order.map(|at| addrs[at]));
            assert_eq!([(); 3].map(|()| top.malloc(12 * MIB)), addrs);
        });
    }
}

#[test]
fn equally_large_pieces_of_one_segment_are_taken_from_the_lowest_up() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addrs = [(); 6].map(|()| top.malloc(4096));
        // Every other one, so that they cannot merge; the highest first.
        top.free_all(&[addrs[4], addrs[2], addrs[0]]);
        assert_eq!([(); 3].map(|()| top.malloc(4000)), [addrs[0], addrs[2], addrs[4]]);
    });
}

#[test]
fn neighbours_merge_in_whatever_order_they_are_freed() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        BenchTop::under_each_policy(GIB, "", |top| {
            let addrs = [(); 3].map(|()| top.malloc(1024));
            top.free_all(&order.map(|at| addrs[at]));
            assert_eq!(top.segments(), [[Free(2 * MIB)]]);
            assert_eq!(top.allocator.free_block_count(), 1);
        });
    }
}

#[test]
fn a_live_block_keeps_its_neighbours_apart() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [low, middle, high] = [(); 3].map(|()| top.malloc(512));
        top.free(low);
        top.free(high);
        assert_eq!(top.segments(), [[Free(512), Live(512), Free(2 * MIB - 1024)]]);
        top.free(middle);
        assert_eq!(top.segments(), [[Free(2 * MIB)]]);
    });
}

#[test]
fn a_small_block_is_split_to_the_last_512_bytes() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [first, ..] = [2048, MIB, MIB - 2048].map(|bytes| top.malloc(bytes));
        top.free(first);
        assert_eq!(top.malloc(1536), first);
        assert_eq!(top.segments()[0][..2], [Live(1536), Free(512)]);
    });
}

#[test]
fn a_large_block_is_split_only_if_more_than_1_mib_is_left() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc(20 * MIB);
        top.free(addr);
        for (request_bytes, blocks) in [
            (19 * MIB, vec![Live(20 * MIB)]),
            (19 * MIB - 512, vec![Live(19 * MIB - 512), Free(MIB + 512)]),
        ] {
            assert_eq!(top.malloc(request_bytes), addr);
            assert_eq!(top.segments(), [blocks]);
            top.free(addr);
            assert_eq!(top.segments(), [[Free(20 * MIB)]]);
        }
    });
}

#[test]
fn a_freed_block_serves_its_own_stream_only() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let main = top.malloc_on(12 * MIB, MAIN);
        top.free(main);
        let side = top.malloc_on(12 * MIB, SIDE);
        assert_ne!(side, main);
        assert_eq!(top.device.calls().alloc, 2);
        assert_eq!(top.malloc_on(12 * MIB, MAIN), main);
        top.free(side);
        assert_eq!(top.malloc_on(12 * MIB, SIDE), side);
        assert_ne!(top.malloc_on(512, FAR), top.malloc_on(512, MAIN));
        assert_eq!(top.device.calls().alloc, 4);
    });
}

#[test]
fn small_and_large_requests_do_not_share_segments() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let large = top.malloc(MIB + 512);
        top.free(large);
        let small = top.malloc(MIB);
        assert_eq!(top.segments(), [vec![Free(20 * MIB)], vec![Live(MIB), Free(MIB)]]);
        top.free(small);
        assert_eq!(top.malloc(2 * MIB), large, "the free 2 MiB of the small pool are not taken");
    });
}

#[test]
fn no_bytes_are_at_address_zero_and_cost_nothing() {
    BenchTop::under_each_policy(GIB, "", |top| {
        assert_eq!(top.try_malloc(0), Ok(Addr(0)));
        top.free(Addr(0));
        top.record(Addr(0), SIDE);
        assert_eq!(top.stats().allocation.all.allocated, 0);
        assert_eq!(top.device.total_calls(), 0);
    });
}

#[test]
fn a_request_of_1_eib_is_refused_before_anything_is_tried() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let cached = top.malloc(20 * MIB);
        top.free(cached);
        let stats = top.stats();
        for request_bytes in [1 << 60, u64::MAX] {
            let report = top.oom(request_bytes);
            assert_eq!(
                (report.requested_bytes, report.tried_bytes),
                (request_bytes, request_bytes)
            );
        }
        assert_eq!(top.stats(), stats, "it is not even counted");
        assert_eq!(top.device.calls().alloc, 1);
        assert_eq!(top.malloc(20 * MIB), cached, "the cache is still there");
    });
}

#[test]
fn a_request_just_below_1_eib_is_an_ordinary_failure() {
    for settings in ["", "expandable_segments:True", "roundup_power2_divisions:8"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let report = top.oom((1 << 60) - 1);
            assert_eq!((report.requested_bytes, report.tried_bytes), ((1 << 60) - 1, 1 << 60));
            assert_eq!(top.stats().num_ooms, 1);
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}

/// All addresses that must not be taken for a live block, around a live one of 4096 bytes.
fn strangers(live: Addr, freed: Addr) -> [Addr; 7] {
    let below = Addr(live.0 - 1);
    [below, live.offset(1), live.offset(512), live.offset(4095), live.offset(4096), freed, Addr(8)]
}

#[test]
fn an_address_that_is_not_live_is_an_error_everywhere_and_harms_nothing() {
    type Call = fn(&Allocator, Addr) -> Result<(), Error>;
    let calls: [Call; 4] = [
        Allocator::free,
        |allocator, addr| allocator.record_stream(addr, SIDE),
        |allocator, addr| allocator.base_allocation(addr).map(drop),
        |allocator, addr| allocator.usable_bytes(addr).map(drop),
    ];
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let [freed, live] = [(); 2].map(|()| top.malloc(4096));
            top.free(freed);
            let before = (top.allocator.snapshot(), top.stats());
            for addr in strangers(live, freed) {
                for call in calls {
                    assert_eq!(call(&top.allocator, addr), Err(Error::UnknownAddress(addr)));
                }
            }
            top.settle();
            assert_eq!((top.allocator.snapshot(), top.stats()), before);
            top.free(live);
        });
    }
}

#[test]
fn a_second_free_is_an_error_also_while_the_block_waits() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc(4096);
        top.record(addr, SIDE);
        top.free(addr);
        assert_eq!(top.allocator.free(addr), Err(Error::UnknownAddress(addr)));
        assert_eq!(top.stats().active.all.current, 1);
        assert_eq!(top.device.calls().record_event, 1);
    });
}

#[test]
fn a_live_block_names_the_device_allocation_it_lies_in() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [first, second] = [(); 2].map(|()| top.malloc(4 * MIB));
        let base = Span::new(Addr(PLAIN_BASE), 20 * MIB);
        assert_eq!(first, base.addr);
        assert_eq!(top.allocator.base_allocation(first), Ok(base));
        assert_eq!(top.allocator.base_allocation(second), Ok(base));
        top.free(first);
        assert_eq!(top.allocator.base_allocation(second), Ok(base), "it does not move");
    });
}

#[test]
fn a_block_of_an_expandable_segment_has_no_base_allocation() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let addr = top.malloc(4 * MIB);
        let refusal = Err(Error::NoBaseAllocation(addr));
        assert_eq!(top.allocator.base_allocation(addr), refusal);
        assert_eq!(top.allocator.usable_bytes(addr), Ok(4 * MIB));
    });
}

#[test]
fn the_largest_available_block_is_of_the_device_or_of_the_cache() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let largest = || top.allocator.largest_available_bytes().unwrap();
        assert_eq!(largest(), 100 * MIB);
        let wide = top.malloc_on(50 * MIB, SIDE);
        let narrow = top.malloc(30 * MIB);
        assert_eq!(largest(), 20 * MIB, "the device has more than the cache");
        top.free(narrow);
        assert_eq!(largest(), 30 * MIB);
        top.free(wide);
        assert_eq!(largest(), 50 * MIB, "whatever stream it is on");
    });
}

#[test]
fn emptying_the_cache_gives_back_exactly_the_segments_that_are_all_free() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [kept, gone] = [(); 2].map(|()| top.malloc(4 * MIB));
        let large = top.malloc(30 * MIB);
        let small = top.malloc(512);
        let side = top.malloc_on(512, SIDE);
        top.free_all(&[gone, large, side]);
        top.empty();
        let small_segment = vec![Live(512), Free(2 * MIB - 512)];
        assert_eq!(top.segments(), [vec![Live(4 * MIB), Free(16 * MIB)], small_segment]);
        assert_eq!(top.device.calls().free, 2);
        assert_eq!(top.device.used_bytes(), 22 * MIB);
        top.free_all(&[kept, small]);
        top.empty();
        assert!(top.segments().is_empty());
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn dropping_the_allocator_gives_the_cache_back_and_leaves_live_memory_alone() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let device = top.device.clone();
        let allocator = Allocator::new(device.clone(), Config::default(), Policy::default());
        let live = allocator.malloc(30 * MIB, MAIN).unwrap();
        let cached = allocator.malloc(40 * MIB, MAIN).unwrap();
        let waiting = allocator.malloc(50 * MIB, MAIN).unwrap();
        allocator.record_stream(waiting, SIDE).unwrap();
        allocator.free(waiting).unwrap();
        allocator.free(cached).unwrap();
        drop(allocator);
        assert_eq!(device.used_bytes(), 30 * MIB);
        assert!(device.is_accessible(Span::new(live, 30 * MIB)));
        assert_eq!(device.event_count(), 0);
    });
}

#[test]
fn the_addresses_of_an_expandable_segment_run_past_its_memory() {
    BenchTop::under_each_policy(80 * MIB, "expandable_segments:True", |top| {
        let addr = top.malloc(20 * MIB);
        assert_eq!(top.segments(), [[Live(20 * MIB), Unmapped(80 * MIB)]]);
        assert!(top.device.is_accessible(Span::new(addr, 20 * MIB)));
        assert!(!top.device.is_accessible(Span::new(addr, 20 * MIB + 1)));
    });
}
