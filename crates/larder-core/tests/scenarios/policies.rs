//! Policies: for each choice in which they differ, one story that ends in two ways.

use std::sync::Arc;

use crate::bench_top::Piece::{Free, Live, Unmapped};
use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::allocator::default_config;
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::heap::Filter;
use larder_core::policy::{CaptureRule, ReclaimRule, TieBreak};
use larder_core::record::context::{Context, Stack};
use larder_core::record::event::{Action, Level};
use larder_core::types::{Addr, GIB, MIB, PoolId};
use larder_core::{Allocator, Config, Policy, TorchVersion};
use larder_sim::{SimDevice, SimOptions};

/// The policy to which one choice at a time is added.
const TORCH: Policy = Policy::torch_2_11();

/// `larder` makes every choice and `torch-2.11` none. A policy that gains a field does not compile
/// here, which is the moment to write the story of the new one.
#[test]
fn the_two_policies_differ_in_every_choice() {
    let fields = |policy: Policy| {
        let Policy {
            name,
            torch,
            tie_break,
            search_after_recovery,
            collect_without_cap,
            split_limit_spares_expandable,
            split_by_segment_kind,
            cap_counts_pages,
            cap_rounds_to_nearest,
            oversize_is_remembered,
            make_room_skips_expandable,
            release_bare_segments,
            refuse_hopeless,
            capture,
            reclaim,
            no_split_goes_with_pool,
            no_pages_beyond_segment,
            segment_context_stays,
            pool_snapshot_is_whole,
            released_pools_go,
            merges_late,
            expandable_by_default,
            tight,
            exact_segments,
        } = policy;
        assert!(!tight && !exact_segments, "what that is has stories of its own");
        assert_eq!(tie_break, TieBreak::Address, "in this alone they agree");
        let choices = [
            search_after_recovery,
            collect_without_cap,
            split_limit_spares_expandable,
            split_by_segment_kind,
            cap_counts_pages,
            cap_rounds_to_nearest,
            oversize_is_remembered,
            make_room_skips_expandable,
            release_bare_segments,
            refuse_hopeless,
            capture == CaptureRule::OwnStream,
            reclaim == ReclaimRule::ScopeEnd,
            no_split_goes_with_pool,
            no_pages_beyond_segment,
            segment_context_stays,
            pool_snapshot_is_whole,
            released_pools_go,
            merges_late,
            expandable_by_default,
        ];
        (name, torch, choices)
    };
    let stock = Some(TorchVersion::V2_11);
    assert_eq!(fields(Policy::torch_2_11()), ("torch-2.11", stock, [false; 19]));
    assert_eq!(fields(Policy::larder()), ("larder", None, [true; 19]));
}

#[test]
fn search_after_recovery_finds_the_block_that_an_event_brought_back() {
    let story = |policy| {
        let top = BenchTop::new(20 * MIB, "", policy);
        let [_live, used] = [(); 2].map(|()| top.malloc(9 * MIB));
        top.record(used, SIDE);
        top.free(used);
        // The segment cannot go back to the device, but after the wait it has 11 MiB free.
        let served = top.try_malloc(9 * MIB).is_ok();
        (served, top.stats().num_alloc_retries, top.stats().num_ooms)
    };
    assert_eq!(story(TORCH), (false, 1, 1));
    assert_eq!(story(Policy { search_after_recovery: true, ..TORCH }), (true, 0, 0));
}

#[test]
fn search_after_recovery_does_not_help_where_nothing_fits() {
    let top = BenchTop::new(20 * MIB, "", Policy { search_after_recovery: true, ..TORCH });
    top.malloc(9 * MIB);
    top.oom(12 * MIB);
    assert_eq!((top.stats().num_alloc_retries, top.stats().num_ooms), (1, 1));
}

#[test]
fn collect_without_cap_measures_against_the_device() {
    let story = |policy| {
        let top = BenchTop::new(200 * MIB, "garbage_collection_threshold:0.25", policy);
        let idle = top.malloc(60 * MIB);
        top.free(idle);
        top.malloc(70 * MIB);
        (top.stats().num_device_free, top.stats().num_alloc_retries)
    };
    assert_eq!(story(TORCH), (0, 0));
    assert_eq!(story(Policy { collect_without_cap: true, ..TORCH }), (1, 0));
}

#[test]
fn split_limit_spares_expandable_blocks_that_merged_past_it() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "expandable_segments:True,max_split_size_mb:20", policy);
        let [wide, _guard] = [40, 20].map(|size| top.malloc(size * MIB));
        top.free(wide);
        (top.malloc(10 * MIB) == wide, top.device.used_bytes())
    };
    assert_eq!(story(TORCH), (false, 80 * MIB), "the segment grows");
    let mended = Policy { split_limit_spares_expandable: true, ..TORCH };
    assert_eq!(story(mended), (true, 60 * MIB));
}

#[test]
fn split_by_segment_kind_does_not_cut_plain_segments_into_slivers() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        let plain = top.malloc(20 * MIB);
        top.free(plain);
        top.configure("expandable_segments:True");
        assert_eq!(top.malloc(20 * MIB - 512), plain);
        top.segments()
    };
    assert_eq!(story(TORCH), [[Live(20 * MIB - 512), Free(512)]]);
    assert_eq!(story(Policy { split_by_segment_kind: true, ..TORCH }), [[Live(20 * MIB)]]);
}

#[test]
fn cap_counts_pages_and_not_the_request() {
    let story = |policy| {
        let top = BenchTop::new(100 * MIB, "expandable_segments:True", policy);
        top.allocator.set_memory_fraction(0.3).unwrap();
        let served = top.try_malloc(25 * MIB).is_ok();
        (served, top.device.used_bytes())
    };
    assert_eq!(story(TORCH), (true, 40 * MIB), "past the cap of 30 MiB");
    let mended = Policy { cap_counts_pages: true, ..TORCH };
    assert_eq!(story(mended), (false, 0));
}

#[test]
fn cap_counts_pages_where_the_request_needs_fewer_than_its_segment_would() {
    let story = |policy| {
        let settings = "expandable_segments:True,page_size_mb:2";
        let top = BenchTop::new(100 * MIB, settings, policy);
        top.allocator.set_memory_fraction(0.1).unwrap();
        top.try_malloc(4 * MIB).is_ok()
    };
    assert!(!story(TORCH), "a segment of 20 MiB would not fit under 10");
    assert!(story(Policy { cap_counts_pages: true, ..TORCH }), "two pages of 2 MiB do");
}

#[test]
fn cap_rounds_to_nearest_byte() {
    let story = |policy| {
        let top = BenchTop::new(100 * MIB, "", policy);
        top.allocator.set_memory_fraction(2.0 / 3.0).unwrap();
        top.oom(90 * MIB).cap_bytes
    };
    // Two thirds of 104,857,600 bytes are 69,905,066 and two thirds of a byte.
    assert_eq!(story(TORCH), Some(69_905_066));
    assert_eq!(story(Policy { cap_rounds_to_nearest: true, ..TORCH }), Some(69_905_067));
}

#[test]
fn oversize_is_remembered_when_the_limit_changes() {
    let story = |policy: Policy, before: &str, after: &str| {
        let top = BenchTop::new(GIB, before, policy);
        let addr = top.malloc(30 * MIB);
        top.configure(after);
        top.free(addr);
        top.stats().oversize_allocations.current
    };
    let mended = Policy { oversize_is_remembered: true, ..TORCH };
    let (none, limit) = ("", "max_split_size_mb:20");
    assert_eq!((story(TORCH, none, limit), story(TORCH, limit, none)), (-1, 1));
    assert_eq!((story(mended.clone(), none, limit), story(mended, limit, none)), (0, 0));
}

#[test]
fn make_room_skips_expandable_blocks_on_its_way_to_one_that_makes_room() {
    let story = |policy| {
        let top = BenchTop::new(210 * MIB, "expandable_segments:True", policy);
        let expandable = top.malloc(60 * MIB);
        top.configure("expandable_segments:False,max_split_size_mb:20");
        let plain = [80, 40, 26].map(|size| top.malloc(size * MIB));
        top.free(expandable);
        top.free_all(&plain);
        // 4 MiB are left on the device. 80 MiB are too much for the request, yet make room for it.
        top.malloc(60 * MIB);
        assert_eq!(top.stats().num_alloc_retries, 0);
        let sizes: Vec<_> = top.backed().iter().map(|row| row[0]).collect();
        sizes
    };
    let (kept, asked) = (Free(80 * MIB), Live(60 * MIB));
    assert_eq!(story(TORCH), [Free(60 * MIB), kept, asked], "40 and 26 MiB went");
    let mended = Policy { make_room_skips_expandable: true, ..TORCH };
    let row = [Free(60 * MIB), asked, Free(40 * MIB), Free(26 * MIB)];
    assert_eq!(story(mended), row, "80 MiB went");
}

#[test]
fn release_bare_segments_gives_back_addresses_that_a_failure_left() {
    let story = |policy| {
        let top = BenchTop::new(100 * MIB, "expandable_segments:True", policy);
        top.device.tenant_take(90 * MIB);
        top.oom(20 * MIB);
        let left = top.segments();
        top.empty();
        let calls = top.device.calls();
        (left, calls.reserve - calls.unreserve, top.segments().len())
    };
    let bare = vec![vec![Unmapped(120 * MIB)]];
    assert_eq!(story(TORCH), (bare.clone(), 1, 1));
    assert_eq!(story(Policy { release_bare_segments: true, ..TORCH }), (bare, 0, 0));
}

#[test]
fn refuse_hopeless_keeps_the_cache() {
    let story = |policy, fraction, request_bytes| {
        let top = BenchTop::new(100 * MIB, "", policy);
        top.allocator.set_memory_fraction(fraction).unwrap();
        let [cached, used] = [(); 2].map(|()| top.malloc(20 * MIB));
        top.record(used, SIDE);
        top.free_all(&[cached, used]);
        top.oom(request_bytes);
        let stats = top.stats();
        (top.device.used_bytes(), stats.num_sync_all_streams, stats.num_ooms)
    };
    let mended = Policy { refuse_hopeless: true, ..TORCH };
    for (fraction, request_bytes) in [(1.0, 100 * MIB + 1), (0.5, 50 * MIB + 1)] {
        assert_eq!(story(TORCH, fraction, request_bytes), (0, 1, 1));
        assert_eq!(story(mended.clone(), fraction, request_bytes), (40 * MIB, 0, 1));
    }
    // Exactly what the cap allows is worth the trouble.
    let top = BenchTop::new(100 * MIB, "", mended);
    top.allocator.set_memory_fraction(0.5).unwrap();
    let cached = top.malloc(20 * MIB);
    top.free(cached);
    top.malloc(50 * MIB);
}

#[test]
fn capture_is_by_stream_and_a_scope_alone_is_none() {
    let story = |policy| {
        let top = BenchTop::new(40 * MIB, "", policy);
        let [used, cached] = [8, 20].map(|size| top.malloc(size * MIB));
        top.record(used, SIDE);
        top.free(cached);
        top.allocator.begin_pool(PoolId(0, 1), Filter::Any).unwrap();
        top.free(used);
        let events = top.device.event_count();
        // Only with the cache given back is there room for it.
        (events, top.try_malloc(30 * MIB).is_ok())
    };
    assert_eq!(story(TORCH), (0, false), "the free is put off, and nothing is given back");
    let mended = Policy { capture: CaptureRule::OwnStream, ..TORCH };
    assert_eq!(story(mended), (1, true));
    assert_eq!(story(Policy::torch_2_12()), (0, false));
    for policy in [Policy::torch_2_13(), Policy::torch_2_14(), Policy::torch_2_15()] {
        assert_eq!(story(policy), (1, true), "no capture is marked");
    }
}

#[test]
fn capture_is_by_stream_and_a_real_one_is_left_alone() {
    for policy in [TORCH, Policy { capture: CaptureRule::OwnStream, ..TORCH }] {
        let top = BenchTop::new(40 * MIB, "", policy);
        let [used, cached] = [8, 20].map(|size| top.malloc(size * MIB));
        top.record(used, SIDE);
        top.free(cached);
        top.allocator.begin_pool(PoolId(1, 0), Filter::Any).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        top.free(used);
        assert_eq!(top.device.event_count(), 0);
        top.oom(30 * MIB);
        top.empty();
        top.device.end_capture(MAIN).expect("nobody broke the capture");
    }
}

#[test]
fn reclaim_at_scope_end_brings_back_what_a_capture_put_off() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "", policy);
        top.allocator.begin_pool(PoolId(1, 0), Filter::Stream(MAIN)).unwrap();
        top.device.begin_capture(MAIN).unwrap();
        let used = top.malloc(20 * MIB);
        top.record(used, SIDE);
        top.free(used);
        top.device.end_capture(MAIN).unwrap();
        top.allocator.end_pool(PoolId(1, 0)).unwrap();
        let after_scope = top.stats().active.all.current;
        top.malloc(512);
        (after_scope, top.stats().active.large_pool.current)
    };
    assert_eq!(story(TORCH), (1, 0), "it comes back with the next malloc");
    assert_eq!(story(Policy { reclaim: ReclaimRule::ScopeEnd, ..TORCH }), (0, 0));
}

#[test]
fn released_pools_go_when_their_memory_is_gone() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "expandable_segments:True", policy);
        top.allocator.record_history(HistoryOptions::default()).unwrap();
        // Two growths each, which are unmapped as one.
        for pool in [1, 2, 5, 4].map(|name| PoolId(0, name)) {
            let both = in_pool(&top, pool, 2);
            for addr in both {
                top.free(addr);
            }
            top.allocator.drop_pool_use(pool).unwrap();
            top.allocator.empty_pool(pool).unwrap();
        }
        let last = [3, 11].map(|name| PoolId(0, name));
        let addrs = last.map(|pool| in_pool(&top, pool, 1)[0]);
        for (pool, addr) in last.into_iter().zip(addrs) {
            top.free(addr);
            top.allocator.drop_pool_use(pool).unwrap();
        }
        top.empty();
        let told = top.allocator.take_snapshot(SnapshotOptions::default());
        let unmapped = told.trace.iter().filter(|entry| entry.action == Action::SegmentUnmap);
        let order: Vec<_> = unmapped.map(|entry| Addr(entry.addr)).collect();
        assert_eq!(order.len(), 6);
        [order[4], order[5]] == addrs
    };
    assert!(!story(TORCH), "with four names that stayed the later pool comes first");
    assert!(story(Policy { released_pools_go: true, ..TORCH }));
}

/// So many blocks of a private pool, which the story uses from here on.
fn in_pool(top: &BenchTop, pool: PoolId, count: usize) -> Vec<Addr> {
    top.allocator.add_pool_use(pool).unwrap();
    top.allocator.begin_pool(pool, Filter::Stream(MAIN)).unwrap();
    let addrs = (0..count).map(|_| top.malloc(20 * MIB)).collect();
    top.allocator.end_pool(pool).unwrap();
    top.allocator.drop_pool_use(pool).unwrap();
    addrs
}

#[test]
fn segment_context_stays_although_blocks_split_and_merge() {
    let story = |policy, level| {
        let top = BenchTop::new(GIB, "", policy);
        let hook = || -> Option<Arc<dyn Context>> { Some(Arc::new(Stack::default())) };
        let options = HistoryOptions::default().level(level).context_hook(Arc::new(hook));
        top.allocator.record_history(options).unwrap();
        let has_context =
            || top.allocator.take_snapshot(SnapshotOptions::default()).runs[0].context.is_some();
        let block = top.malloc(3 * MIB);
        let split = has_context();
        top.free(block);
        (split, has_context())
    };
    let ours = Policy { segment_context_stays: true, ..TORCH };
    assert_eq!(story(TORCH, Level::Alloc), (false, false));
    assert_eq!(story(ours.clone(), Level::Alloc), (true, true));
    // Who wants the contexts of what is allocated, and no others, gets no others.
    assert_eq!(story(ours, Level::State), (false, false));
}

#[test]
fn pool_snapshot_is_whole_beyond_the_first_hole() {
    let story = |policy| {
        let top = BenchTop::new(GIB, "expandable_segments:True", policy);
        let pool = PoolId(0, 1);
        top.allocator.begin_pool(pool, Filter::Any).unwrap();
        let [first, second] = [(); 2].map(|()| top.malloc(40 * MIB));
        top.allocator.end_pool(pool).unwrap();
        top.free(first);
        for _ in 0..top.allocator.pool_uses(pool).unwrap() {
            top.allocator.drop_pool_use(pool).unwrap();
        }
        top.allocator.empty_pool(pool).unwrap();
        let options = SnapshotOptions::default().pool(Some(pool)).traces(false);
        let runs = top.allocator.take_snapshot(options).runs;
        let all = top.allocator.take_snapshot(SnapshotOptions::default()).runs;
        assert_eq!((all.len(), all[0].addr), (1, second));
        runs.len()
    };
    assert_eq!(story(TORCH), 0);
    assert_eq!(story(Policy { pool_snapshot_is_whole: true, ..TORCH }), 1);
}

#[test]
fn merges_late_hands_out_small_blocks_as_they_were() {
    let story = |policy: Policy| {
        let device = Arc::new(SimDevice::new(SimOptions::default().memory_bytes(GIB)));
        let allocator = Allocator::new(device, Config::default(), policy);
        let malloc = |size_bytes| allocator.malloc(size_bytes, MAIN).unwrap();
        let [first, second, third] = [(); 3].map(|()| malloc(4096));
        allocator.free(first).unwrap();
        allocator.free(second).unwrap();
        let (double, single) = (malloc(8192), malloc(4096));
        // Nobody sees blocks side by side that are free and not merged.
        allocator.free(third).unwrap();
        allocator.free(double).unwrap();
        allocator.free(single).unwrap();
        let blocks = allocator.snapshot()[0].blocks.len();
        (double.0 - first.0, single.0 - first.0, blocks)
    };
    assert_eq!(story(TORCH), (0, 3 * 4096, 1), "where the two were, and behind the third");
    let late = story(Policy { merges_late: true, ..TORCH });
    assert_eq!(late, (3 * 4096, 4096, 1), "behind the third, and where the second was");
}

#[test]
fn expandable_by_default_holds_what_is_used_where_nobody_gives_settings() {
    let story = |policy: Policy| {
        let device = Arc::new(SimDevice::new(SimOptions::default().memory_bytes(GIB)));
        let allocator = Allocator::new(device, default_config(&policy), policy);
        let first = allocator.malloc(30 * MIB, MAIN).unwrap();
        allocator.free(first).unwrap();
        allocator.malloc(50 * MIB, MAIN).unwrap();
        allocator.stats().reserved_bytes.all.current as u64 / MIB
    };
    assert_eq!(story(TORCH), 30 + 50);
    assert_eq!(story(Policy { expandable_by_default: true, ..TORCH }), 60, "pages of 20 MiB");
}
