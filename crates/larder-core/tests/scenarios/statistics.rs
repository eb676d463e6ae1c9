//! Statistics: what each operation adds to which number, exactly.

use std::collections::BTreeMap;

use crate::bench_top::{BenchTop, FAR, SIDE};
use larder_core::types::{GIB, MIB};

/// One change of a statistic's current value, or of a plain counter.
type Change<'a> = (&'a str, i64);

const FAMILIES: [&str; 9] = [
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
];
const OVERSIZE: [&str; 2] = ["oversize_allocations", "oversize_segments"];
const PLAIN: [&str; 5] = [
    "num_alloc_retries",
    "num_device_alloc",
    "num_device_free",
    "num_ooms",
    "num_sync_all_streams",
];

fn numbers(top: &BenchTop) -> BTreeMap<String, i64> {
    top.stats().entries().into_iter().collect()
}

/// A counter moved by so much in one go: sums and peak follow.
fn moved(counter: &str, by: i64, before: &BTreeMap<String, i64>, after: &BTreeMap<String, i64>) {
    let [was, is] = [before, after].map(|numbers| {
        ["current", "peak", "allocated", "freed"]
            .map(|field| numbers[&format!("{counter}.{field}")])
    });
    let current = was[0] + by;
    let expected = [current, was[1].max(current), was[2] + by.max(0), was[3] + (-by).max(0)];
    assert_eq!(is, expected, "current, peak, allocated and freed of {counter}, from {was:?}");
}

/// An operation on the given pool changes exactly these numbers.
fn tell<T>(top: &BenchTop, pool: &str, act: impl FnOnce() -> T, changes: &[Change<'_>]) -> T {
    let before = numbers(top);
    let result = act();
    let after = numbers(top);
    let by =
        |name: &str| changes.iter().find(|(changed, _)| *changed == name).map_or(0, |&(_, by)| by);
    for family in FAMILIES {
        moved(&format!("{family}.all"), by(family), &before, &after);
        for kind in ["small_pool", "large_pool"] {
            let by = if kind == pool { by(family) } else { 0 };
            moved(&format!("{family}.{kind}"), by, &before, &after);
        }
    }
    for counter in OVERSIZE {
        moved(counter, by(counter), &before, &after);
    }
    for counter in PLAIN {
        assert_eq!(after[counter], before[counter] + by(counter), "{counter}");
    }
    let known = |name: &str| FAMILIES.iter().chain(&OVERSIZE).chain(&PLAIN).any(|it| *it == name);
    assert!(changes.iter().all(|(name, _)| known(name)), "a change of nothing: {changes:?}");
    result
}

/// What taking (1) or giving back (-1) a block of this size changes, whatever else does.
fn block(sign: i64, size_bytes: u64, requested_bytes: u64) -> Vec<Change<'static>> {
    let (size, requested) = (sign * size_bytes as i64, sign * requested_bytes as i64);
    let counts = [("allocation", sign), ("active", sign)];
    let bytes = [("allocated_bytes", size), ("active_bytes", size), ("requested_bytes", requested)];
    counts.into_iter().chain(bytes).collect()
}

fn with<'a>(mut changes: Vec<Change<'a>>, more: &[Change<'a>]) -> Vec<Change<'a>> {
    changes.extend_from_slice(more);
    changes
}

const SMALL: &str = "small_pool";
const LARGE: &str = "large_pool";
const KIB: i64 = 1 << 10;
const MEG: i64 = 1 << 20;

#[test]
fn taking_from_a_segment_that_was_whole_makes_one_inactive_piece() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let segment = [
            ("segment", 1),
            ("reserved_bytes", 2 * MEG),
            ("num_device_alloc", 1),
            ("inactive_split", 1),
            ("inactive_split_bytes", 2 * MEG - 512),
        ];
        let addr = tell(top, SMALL, || top.malloc(300), &with(block(1, 512, 300), &segment));
        let whole_again = [("inactive_split", -1), ("inactive_split_bytes", -(2 * MEG - 512))];
        tell(top, SMALL, || top.free(addr), &with(block(-1, 512, 300), &whole_again));
        let first_split = [("inactive_split", 1), ("inactive_split_bytes", 2 * MEG - 1024)];
        tell(top, SMALL, || top.malloc(1000), &with(block(1, 1024, 1000), &first_split));
    });
}

#[test]
fn taking_from_a_piece_shrinks_it_or_uses_it_up() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.malloc(4096);
        let shrunk = [("inactive_split_bytes", -4096)];
        let middle = tell(top, SMALL, || top.malloc(4096), &with(block(1, 4096, 4096), &shrunk));
        top.malloc(4096);
        top.free(middle);
        let used_up = [("inactive_split", -1), ("inactive_split_bytes", -4096)];
        tell(top, SMALL, || top.malloc(4000), &with(block(1, 4096, 4000), &used_up));
    });
}

#[test]
fn a_segment_that_is_one_block_has_no_inactive_piece() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let segment = [("segment", 1), ("reserved_bytes", 12 * MEG), ("num_device_alloc", 1)];
        let requested_bytes = 11 * MIB + MIB / 2;
        let taken = with(block(1, 12 * MIB, requested_bytes), &segment);
        let addr = tell(top, LARGE, || top.malloc(requested_bytes), &taken);
        tell(top, LARGE, || top.free(addr), &block(-1, 12 * MIB, requested_bytes));
        tell(top, LARGE, || top.malloc(12 * MIB), &block(1, 12 * MIB, 12 * MIB));
    });
}

/// Five blocks of 1, 2, 3, 4 and 5 KiB side by side, the rest of the segment free behind them.
/// Those in `freed` are given back; then giving back `last` changes the pieces as said.
fn give_back(freed: &[usize], last: usize, pieces: i64, bytes: i64) {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addrs = [1, 2, 3, 4, 5].map(|size| top.malloc(size << 10));
        for &at in freed {
            top.free(addrs[at]);
        }
        let size_bytes = (last as u64 + 1) << 10;
        let change = [("inactive_split", pieces), ("inactive_split_bytes", bytes)];
        let changes = with(block(-1, size_bytes, size_bytes), &change);
        tell(top, SMALL, || top.free(addrs[last]), &changes);
    });
}

#[test]
fn giving_back_changes_the_inactive_pieces_by_what_merges() {
    let rest = 2 * MEG - 15 * KIB;
    give_back(&[], 2, 1, 3 * KIB); // Alone: a new piece.
    give_back(&[], 0, 1, KIB); // At the start of the segment.
    give_back(&[1], 2, 0, 3 * KIB); // The piece below grows.
    give_back(&[3], 2, 0, 3 * KIB); // The piece above grows.
    give_back(&[1, 3], 2, -1, 3 * KIB); // Two pieces become one.
    give_back(&[], 4, 0, 5 * KIB); // The rest of the segment grows.
    give_back(&[3], 4, -1, 5 * KIB); // The rest and a piece become one.
    // The segment becomes whole: with one piece beside the block, and with two.
    give_back(&[4, 3, 2, 1], 0, -1, -(rest + 14 * KIB));
    give_back(&[0, 1, 3, 4], 2, -2, -(rest + 12 * KIB));
    give_back(&[0, 1, 2, 3], 4, -2, -(rest + 10 * KIB));
}

#[test]
fn a_free_that_waits_counts_as_two() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let addr = top.malloc(12 * MIB - 5);
        top.record(addr, SIDE);
        top.record(addr, FAR);
        let requested = [("allocation", -1), ("allocated_bytes", -12 * MEG)];
        tell(top, LARGE, || top.free(addr), &requested);
        top.device.sync(SIDE);
        tell(top, LARGE, || top.malloc(0), &[]);
        let bytes = -(12 * MEG - 5);
        let completed = [("active", -1), ("active_bytes", -12 * MEG), ("requested_bytes", bytes)];
        let gone = [
            ("segment", -1),
            ("reserved_bytes", -12 * MEG),
            ("num_device_free", 1),
            ("num_sync_all_streams", 1),
        ];
        tell(top, LARGE, || top.empty(), &with(completed.to_vec(), &gone));
    });
}

#[test]
fn a_waiting_block_becomes_an_inactive_piece_only_when_it_is_done() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let [_low, middle, _high] = [(); 3].map(|()| top.malloc(2048));
        let cached = top.malloc_on(2 * MIB, SIDE);
        top.record(middle, SIDE);
        let requested = [("allocation", -1), ("allocated_bytes", -2048)];
        tell(top, SMALL, || top.free(middle), &requested);
        top.device.sync(SIDE);
        tell(top, SMALL, || top.malloc(0), &[]);
        let before = numbers(top);
        top.free(cached);
        top.malloc_on(2 * MIB, SIDE);
        let after = numbers(top);
        moved("inactive_split.small_pool", 1, &before, &after);
        moved("inactive_split_bytes.small_pool", 2048, &before, &after);
        moved("active.small_pool", -1, &before, &after);
    });
}

#[test]
fn oversize_is_what_reaches_the_split_limit() {
    BenchTop::under_each_policy(GIB, "max_split_size_mb:20", |top| {
        let segment = [
            ("segment", 1),
            ("reserved_bytes", 30 * MEG),
            ("num_device_alloc", 1),
            ("oversize_segments", 1),
            ("oversize_allocations", 1),
        ];
        let taken = with(block(1, 30 * MIB, 30 * MIB), &segment);
        let addr = tell(top, LARGE, || top.malloc(30 * MIB), &taken);
        let freed = with(block(-1, 30 * MIB, 30 * MIB), &[("oversize_allocations", -1)]);
        tell(top, LARGE, || top.free(addr), &freed);
        let gone = [
            ("segment", -1),
            ("reserved_bytes", -30 * MEG),
            ("num_device_free", 1),
            ("oversize_segments", -1),
            ("num_sync_all_streams", 1),
        ];
        tell(top, LARGE, || top.empty(), &gone);
    });
}

#[test]
fn oversize_goes_by_the_block_and_not_by_the_request() {
    BenchTop::under_each_policy(GIB, "max_split_size_mb:20", |top| {
        // A request below the limit gets a segment at the limit. Cut in two it is not oversize,
        let addr = top.malloc(3 * MIB);
        let stats = top.stats();
        assert_eq!((stats.oversize_segments.current, stats.oversize_allocations.current), (1, 0));
        top.free(addr);
        // but handed out whole it is.
        top.malloc_on(19 * MIB + MIB / 2, SIDE);
        let stats = top.stats();
        assert_eq!((stats.oversize_segments.current, stats.oversize_allocations.current), (2, 1));
    });
}

#[test]
fn a_growth_of_several_pages_is_one_allocation_of_the_device() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let pages = [("reserved_bytes", 60 * MEG), ("num_device_alloc", 1)];
        let taken = with(block(1, 50 * MIB, 50 * MIB), &pages);
        let addr = tell(top, LARGE, || top.malloc(50 * MIB), &taken);
        tell(top, LARGE, || top.malloc(6 * MIB), &block(1, 6 * MIB, 6 * MIB));
        tell(top, LARGE, || top.free(addr), &block(-1, 50 * MIB, 50 * MIB));
        let gone =
            [("reserved_bytes", -40 * MEG), ("num_device_free", 1), ("num_sync_all_streams", 1)];
        tell(top, LARGE, || top.empty(), &gone);
    });
}

#[test]
fn each_hole_that_is_filled_or_made_is_a_call_of_its_own() {
    BenchTop::under_each_policy(GIB, "expandable_segments:True", |top| {
        let addrs = [(); 5].map(|()| top.malloc(20 * MIB));
        top.free_all(&[addrs[0], addrs[2]]);
        let gone =
            [("reserved_bytes", -40 * MEG), ("num_device_free", 2), ("num_sync_all_streams", 1)];
        tell(top, LARGE, || top.empty(), &gone);
        top.free(addrs[1]);
        // The hole before the free block, and the one behind it.
        let filled = [("reserved_bytes", 40 * MEG), ("num_device_alloc", 2)];
        tell(top, LARGE, || top.malloc(60 * MIB), &with(block(1, 60 * MIB, 60 * MIB), &filled));
    });
}

#[test]
fn a_failed_request_leaves_the_gauges_alone() {
    let top = BenchTop::torch(100 * MIB, "");
    top.malloc(60 * MIB);
    let failed = [("num_alloc_retries", 1), ("num_ooms", 1), ("num_sync_all_streams", 1)];
    tell(&top, LARGE, || top.oom(50 * MIB), &failed);
    let top = BenchTop::larder(100 * MIB, "");
    tell(&top, LARGE, || top.oom(101 * MIB), &[("num_ooms", 1)]);
}

#[test]
fn the_peak_of_all_pools_is_not_the_sum_of_their_peaks() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let small = top.malloc(MIB);
        top.free(small);
        top.malloc(12 * MIB);
        let bytes = top.stats().allocated_bytes;
        let peaks = [bytes.small_pool.peak, bytes.large_pool.peak, bytes.all.peak];
        assert_eq!(peaks, [MEG, 12 * MEG, 12 * MEG]);
    });
}

/// Something of everything: two blocks live, one freed, one waiting, a failure.
fn busy() -> BenchTop {
    let top = BenchTop::torch(100 * MIB, "max_split_size_mb:20");
    let [_live, freed, waiting] = [30, 20, 12].map(|size| top.malloc(size * MIB));
    top.malloc(512);
    top.free(freed);
    top.oom(90 * MIB);
    top.record(waiting, SIDE);
    top.free(waiting);
    top
}

#[test]
fn resetting_the_peaks_makes_them_the_current_values_and_nothing_else() {
    let top = busy();
    let before = numbers(&top);
    assert_eq!(before["allocated_bytes.all.peak"], 62 * MEG + 512);
    top.allocator.reset_peak_stats();
    for (name, value) in numbers(&top) {
        let source = name.replace(".peak", ".current");
        assert_eq!(value, before[&source], "{name}");
    }
}

#[test]
fn resetting_the_sums_makes_them_and_the_plain_counters_zero_and_nothing_else() {
    let top = busy();
    let before = numbers(&top);
    assert_eq!((before["num_ooms"], before["num_device_free"]), (1, 1));
    top.allocator.reset_accumulated_stats();
    for (name, value) in numbers(&top) {
        let (_, field) = name.rsplit_once('.').unwrap_or(("", ""));
        let kept = field == "current" || field == "peak";
        assert_eq!(value, if kept { before[&name] } else { 0 }, "{name}");
    }
    // From here on the sums start anew.
    let freed = [("active", -1), ("active_bytes", -12 * MEG), ("requested_bytes", -12 * MEG)];
    let gone = [
        ("segment", -1),
        ("reserved_bytes", -12 * MEG),
        ("num_device_free", 1),
        ("num_sync_all_streams", 1),
    ];
    tell(&top, LARGE, || top.empty(), &with(freed.to_vec(), &gone));
}

/// Where small blocks rest, pieces are counted when somebody looks: there were at least so many,
/// whoever looks and when.
#[test]
fn looking_makes_no_pieces() {
    let pieces = |top: &BenchTop| top.stats().inactive_split.small_pool;
    let story = |top: &BenchTop, looks: bool| {
        let blocks: Vec<_> = (0..4096).map(|_| top.malloc(512)).collect();
        blocks.iter().step_by(2).for_each(|&addr| top.free(addr));
        let seen = looks.then(|| pieces(top));
        top.malloc(768 * 1024);
        let again: Vec<_> = (0..1024).map(|_| top.malloc(512)).collect();
        top.free_all(&again);
        if let Some(seen) = seen {
            let now = pieces(top);
            assert!(now.peak >= seen.peak && now.allocated >= seen.allocated, "{seen:?} {now:?}");
        }
        pieces(top)
    };
    let settings = "expandable_segments:False";
    let truth = story(&BenchTop::torch(GIB, settings), true);
    for looks in [true, false] {
        let seen = story(&BenchTop::larder(GIB, settings), looks);
        assert_eq!(seen.current, truth.current);
        assert!(seen.peak <= truth.peak && seen.allocated <= truth.allocated, "{seen:?} {truth:?}");
        assert_eq!(seen.allocated - seen.freed, seen.current);
    }
}

#[test]
fn rejections_are_reset_with_the_other_counters() {
    let top = BenchTop::torch(100 * MIB, "throw_on_cudamalloc_oom:True");
    top.oom(102 * MIB);
    assert_eq!(top.stats().num_oom_rejections, 1);
    top.allocator.reset_peak_stats();
    assert_eq!(top.stats().num_oom_rejections, 1);
    top.allocator.reset_accumulated_stats();
    assert_eq!(top.stats().num_oom_rejections, 0);
}
