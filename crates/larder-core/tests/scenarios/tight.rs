//! The tight policy: a program holds what it uses.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::device::Device;
use larder_core::error::Error;
use larder_core::heap::{Filter, State};
use larder_core::record::event::Action;
use larder_core::source::SourceFunctions;
use larder_core::types::{DeviceIndex, GIB, MIB, Span};
use larder_core::{Addr, Allocator, Config, MemPool, Policy, PoolId};
use larder_sim::random::Random;
use larder_sim::{SimDevice, SimOptions, Wire};

fn tight(memory_bytes: u64) -> BenchTop {
    BenchTop::new(memory_bytes, "", Policy::tight())
}

/// So many blocks of one size, of which every other one is freed again. Returns those that are
/// left.
fn in_pieces(top: &BenchTop, count: usize, size_bytes: u64) -> Vec<Addr> {
    let addrs: Vec<Addr> = (0..count).map(|_| top.malloc(size_bytes)).collect();
    addrs.iter().step_by(2).for_each(|&addr| top.free(addr));
    addrs.into_iter().skip(1).step_by(2).collect()
}

/// Memory in pieces of 20 MiB, and a request that has to be put together of three of them.
fn tenant(top: &BenchTop) -> Addr {
    in_pieces(top, 10, 20 * MIB);
    let addr = top.malloc(60 * MIB);
    assert!(lies_in_view(top, addr));
    addr
}

fn lies_in_view(top: &BenchTop, addr: Addr) -> bool {
    let segments = top.allocator.snapshot();
    segments.iter().any(|segment| segment.view && segment.span.contains(addr))
}

/// A pool with a source that gives the device's memory.
fn sourced(top: &BenchTop) -> PoolId {
    let pool = PoolId(0, 1);
    let device = top.device.clone();
    let give = move |size_bytes, _stream| device.alloc(size_bytes).ok();
    let device = top.device.clone();
    let take = move |segment: Span, _stream| device.free(segment.addr).expect("it was given");
    let source = SourceFunctions::new(give, take);
    top.allocator.add_pool_with_source(pool, Arc::new(source)).unwrap();
    pool
}

// Views.

#[test]
fn what_is_free_in_pieces_serves_a_request_that_needs_one() {
    let top = tight(4 * GIB);
    let left = in_pieces(&top, 10, 20 * MIB);
    let (pages, used_bytes) = (top.device.page_count(), top.device.used_bytes());
    let addr = top.malloc(60 * MIB);
    assert!(lies_in_view(&top, addr));
    assert!(top.device.is_accessible(Span::new(addr, 60 * MIB)));
    assert_eq!(top.device.page_count(), pages, "no page was made");
    assert_eq!(top.device.used_bytes(), used_bytes);
    assert_eq!(top.stats().allocated_bytes.all.current as u64, (5 * 20 + 60) * MIB);
    top.free_all(&left);
    top.free(addr);
}

#[test]
fn what_all_free_pieces_together_cannot_hold_grows_by_what_is_missing() {
    let top = tight(4 * GIB);
    in_pieces(&top, 10, 20 * MIB);
    let reserved_bytes = top.stats().reserved_bytes.all.current as u64;
    top.malloc(120 * MIB);
    let more_bytes = top.stats().reserved_bytes.all.current as u64 - reserved_bytes;
    assert!((20 * MIB..=22 * MIB).contains(&more_bytes), "{more_bytes} more");
}

#[test]
fn the_last_of_a_device_is_had_in_smaller_pages() {
    let top = tight(1018 * MIB);
    let first = top.malloc(416 * MIB);
    let second = top.malloc(602 * MIB);
    assert_eq!(top.device.used_bytes(), 1018 * MIB, "in large pages it would be more");
    assert_eq!(top.stats().num_alloc_retries, 0);
    assert!(top.try_malloc(2 * MIB).is_err());
    top.free_all(&[first, second]);
}

#[test]
fn a_view_is_remembered() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    top.free(addr);
    let calls = top.device.total_calls();
    assert_eq!(top.malloc(60 * MIB), addr);
    top.free(addr);
    let smaller = top.malloc(50 * MIB);
    assert!(lies_in_view(&top, smaller), "a part of the view will do as well");
    assert_eq!(top.device.total_calls(), calls);
}

#[test]
fn the_bytes_of_a_tenant_that_went_serve_ordinary_requests() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    let held = top.stats().reserved_bytes.all.current;
    top.free(addr);
    let calls = top.device.total_calls();
    let addrs = [(); 5].map(|()| top.malloc(20 * MIB));
    assert!(addrs.iter().all(|&addr| !lies_in_view(&top, addr)));
    assert_eq!(top.device.total_calls(), calls);
    assert_eq!(top.stats().reserved_bytes.all.current, held);
}

#[test]
fn a_tenant_and_its_home_are_one_memory() {
    let top = tight(4 * GIB);
    in_pieces(&top, 10, 20 * MIB);
    let home = top.malloc(20 * MIB);
    top.device.write(home, 7);
    top.free(home);
    let addr = top.malloc(80 * MIB);
    let bytes = (0..80).map(|mib| top.device.read(addr.offset(mib * MIB)));
    assert!(bytes.flatten().any(|byte| byte == 7), "it lies on what was free");
}

#[test]
fn other_streams_that_used_a_tenant_are_waited_for() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    top.record(addr, SIDE);
    top.free(addr);
    let waits = |top: &BenchTop| {
        let segments = top.allocator.snapshot();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == State::Waiting).count()
    };
    assert_eq!(waits(&top), 1);
    assert_ne!(top.malloc(60 * MIB), addr);
    top.device.sync(SIDE);
    top.malloc(512);
    assert_eq!(waits(&top), 0);
}

#[test]
fn emptying_the_cache_gives_everything_back() {
    let top = tight(4 * GIB);
    let left = in_pieces(&top, 10, 20 * MIB);
    let addr = top.malloc(60 * MIB);
    let side = top.malloc_on(30 * MIB, SIDE);
    top.free_all(&left);
    top.free_all(&[addr, side]);
    top.empty();
    assert_eq!((top.device.used_bytes(), top.device.page_count()), (0, 0));
    assert_eq!(top.allocator.snapshot(), []);
    let calls = top.device.calls();
    assert_eq!(calls.reserve, calls.unreserve, "no addresses are left");
}

#[test]
fn emptying_the_cache_leaves_a_tenant_what_it_lies_on() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    top.device.write(addr.offset(59 * MIB), 9);
    top.empty();
    assert_eq!(top.device.read(addr.offset(59 * MIB)), Some(9));
    assert_eq!(top.stats().reserved_bytes.all.current as u64, 160 * MIB);
}

// Programs.

/// One pass of a program: requests of all sizes, freed in an order of their own.
fn pass(top: &BenchTop, seed: u64, steps: usize, size_max_bytes: u64) {
    let mut random = Random::new(seed);
    let mut live = Vec::new();
    for _ in 0..steps {
        if live.len() < 12 || random.chance(0.5) {
            let limit_bytes = size_max_bytes >> random.below(6);
            let size_bytes = random.between(1, limit_bytes);
            live.push(top.allocator.malloc(size_bytes, MAIN).unwrap());
        } else {
            let at = random.below(live.len() as u64) as usize;
            top.allocator.free(live.swap_remove(at)).unwrap();
        }
    }
    top.free_all(&live);
}

#[test]
fn a_program_that_repeats_itself_makes_no_call_from_the_third_pass_on() {
    for seed in 1..=8 {
        let top = tight(80 * GIB);
        for _ in 0..2 {
            pass(&top, seed, 300, 200 * MIB);
        }
        let calls = top.device.total_calls();
        for number in 3..=6 {
            pass(&top, seed, 300, 200 * MIB);
            assert_eq!(top.device.total_calls(), calls, "seed {seed}, pass {number}");
        }
    }
}

#[test]
fn a_device_that_is_hardly_larger_than_the_peak_suffices() {
    for seed in 1..=4 {
        let top = tight(80 * GIB);
        pass(&top, seed, 500, 512 * MIB);
        let peak_bytes = top.stats().active_bytes.all.peak as u64;
        assert!(peak_bytes > 2 * GIB);
        let top = tight(peak_bytes + peak_bytes / 100);
        pass(&top, seed, 500, 512 * MIB);
    }
}

/// Few live blocks of all sizes, so that much lies in pieces: whatever happens, every invariant
/// holds.
#[test]
fn random_requests_keep_every_invariant() {
    for seed in 1..=40 {
        let top = tight(4 * GIB);
        let mut random = Random::new(seed);
        let mut live: Vec<Addr> = Vec::new();
        for _ in 0..400 {
            match random.below(100) {
                0..=59 => {
                    let limit_bytes = 1 << random.between(10, 27);
                    live.extend(top.try_malloc(random.between(1, limit_bytes)));
                }
                60 => top.empty(),
                _ if live.is_empty() => {}
                _ => {
                    let at = random.below(live.len() as u64) as usize;
                    top.free(live.swap_remove(at));
                }
            }
        }
        top.free_all(&live);
        top.empty();
        assert_eq!(top.device.used_bytes(), 0, "seed {seed}");
    }
}

/// Whoever makes memory known to a library by its addresses, as NCCL's registration does, hears of
/// all of them: what is handed out lies in what was told as mapped, in a view or at home, and what
/// is told as unmapped was mapped before.
#[test]
fn trackers_hear_of_every_address_that_is_handed_out() {
    for seed in 1..=20 {
        let top = tight(4 * GIB);
        let mapped: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
        let told = Arc::clone(&mapped);
        top.allocator.on_event(move |event| match event.action {
            Action::SegmentMap => add(&mut told.lock().unwrap(), event.addr, event.size_bytes),
            Action::SegmentUnmap => remove(&mut told.lock().unwrap(), event.addr, event.size_bytes),
            _ => {}
        });
        let mut random = Random::new(seed);
        let (mut live, mut in_views): (Vec<Addr>, _) = (Vec::new(), 0);
        for _ in 0..300 {
            match random.below(100) {
                0..=59 => {
                    let limit_bytes = 1 << random.between(10, 27);
                    let size_bytes = random.between(1, limit_bytes);
                    let Ok(addr) = top.try_malloc(size_bytes) else { continue };
                    assert!(is_mapped(&mapped.lock().unwrap(), addr.0, size_bytes), "seed {seed}");
                    in_views += u32::from(lies_in_view(&top, addr));
                    live.push(addr);
                }
                60 => top.empty(),
                _ if live.is_empty() => {}
                _ => top.free(live.swap_remove(random.below(live.len() as u64) as usize)),
            }
        }
        assert!(in_views > 0, "seed {seed}");
        top.free_all(&live);
        top.empty();
        assert!(mapped.lock().unwrap().is_empty(), "seed {seed}");
    }
}

/// Units of pages by their address: spans are told in other pieces than they were mapped in.
const PAGE_BYTES: u64 = 2 * MIB;

fn pages_of(addr: u64, size_bytes: u64) -> impl Iterator<Item = u64> {
    (addr / PAGE_BYTES..(addr + size_bytes).div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES)
}

fn add(mapped: &mut BTreeSet<u64>, addr: u64, size_bytes: u64) {
    for page in pages_of(addr, size_bytes) {
        assert!(mapped.insert(page), "{page:#x} is mapped twice");
    }
}

fn remove(mapped: &mut BTreeSet<u64>, addr: u64, size_bytes: u64) {
    for page in pages_of(addr, size_bytes) {
        assert!(mapped.remove(&page), "{page:#x} was not mapped");
    }
}

fn is_mapped(mapped: &BTreeSet<u64>, addr: u64, size_bytes: u64) -> bool {
    pages_of(addr, size_bytes).all(|page| mapped.contains(&page))
}

/// The addresses of one segment begin where those of another end.
#[test]
fn no_block_reaches_from_one_segment_into_the_next() {
    let top = tight(16 * MIB);
    let mut blocks: Vec<Addr> = (0..7).map(|_| top.malloc(2 * MIB)).collect();
    let side = top.malloc_on(2 * MIB, SIDE);
    // Nothing is left at its beginning, so that the segment reaches its end.
    top.free(blocks.remove(0));
    top.free(blocks.remove(0));
    top.empty();
    top.free(blocks.pop().unwrap());
    let last = top.malloc(6 * MIB);
    let segments = top.allocator.snapshot();
    assert_eq!(last.offset(6 * MIB), segments[0].span.end());
    assert_eq!(segments[0].span.end(), segments[1].span.addr);
    top.free_all(&[last, side]);
    top.malloc(8 * MIB);
}

// Streams.

#[test]
fn a_stream_takes_what_another_has_done_with_and_follows_it() {
    let top = tight(4 * GIB);
    let addr = top.malloc(100 * MIB);
    top.device.issue(MAIN);
    let last_use = top.device.moment(MAIN);
    top.free(addr);
    let (pages, follows) = (top.device.page_count(), top.device.calls().follow_event);
    assert!(!top.device.comes_after(SIDE, last_use));
    assert_eq!(top.malloc_on(100 * MIB, SIDE), addr);
    assert_eq!(top.device.page_count(), pages, "no page was made");
    assert_eq!(top.device.calls().follow_event, follows + 1);
    assert!(top.device.comes_after(SIDE, last_use));
    assert!(top.device.is_busy(MAIN), "the host waited for nobody");
}

/// Whoever waited for a stream has waited for all that is free there, until more is freed.
#[test]
fn a_stream_that_was_followed_is_followed_again_only_when_it_freed_more() {
    let top = tight(4 * GIB);
    let blocks: Vec<Addr> = (0..6).map(|_| top.malloc(20 * MIB)).collect();
    top.free_all(&[blocks[0], blocks[2]]);
    let follows = || top.device.calls().follow_event;
    assert_eq!(top.malloc_on(20 * MIB, SIDE), blocks[0]);
    assert_eq!(follows(), 1);
    assert_eq!(top.malloc_on(20 * MIB, SIDE), blocks[2]);
    assert_eq!(follows(), 1, "what was free then was waited for");
    top.device.issue(MAIN);
    let last_use = top.device.moment(MAIN);
    top.free(blocks[4]);
    assert_eq!(top.malloc_on(20 * MIB, SIDE), blocks[4]);
    assert_eq!(follows(), 2);
    assert!(top.device.comes_after(SIDE, last_use));
}

#[test]
fn a_view_of_two_streams_memory_follows_the_other() {
    let top = tight(4 * GIB);
    let blocks: Vec<Addr> = [MAIN, SIDE]
        .into_iter()
        .cycle()
        .take(10)
        .map(|stream| top.malloc_on(20 * MIB, stream))
        .collect();
    let [main, side] = [0, 1].map(|at| blocks.iter().copied().skip(at).step_by(2));
    top.device.issue(SIDE);
    let last_use = top.device.moment(SIDE);
    let freed: Vec<Addr> = main.step_by(2).chain(side.step_by(2)).collect();
    top.free_all(&freed);
    let pages = top.device.page_count();
    top.malloc_on(100 * MIB, MAIN);
    assert_eq!(top.device.page_count(), pages, "no page was made");
    assert!(top.device.comes_after(MAIN, last_use));
}

#[test]
fn a_program_with_one_stream_records_no_event() {
    let top = tight(80 * GIB);
    pass(&top, 3, 500, 300 * MIB);
    let calls = top.device.calls();
    assert_eq!((calls.record_event, calls.follow_event, calls.wait_stream), (0, 0, 0));
}

#[test]
fn a_captured_stream_takes_nothing_of_others_and_follows_nobody() {
    for in_scope in [true, false] {
        let top = tight(4 * GIB);
        let addr = top.malloc(100 * MIB);
        top.free(addr);
        let pool = PoolId(0, 1);
        if in_scope {
            top.allocator.begin_pool(pool, Filter::Capture(SIDE)).unwrap();
        }
        top.device.begin_capture(SIDE).unwrap();
        let captured = top.malloc_on(100 * MIB, SIDE);
        assert_ne!(captured, addr);
        assert_eq!(top.device.calls().follow_event, 0);
        top.device.end_capture(SIDE).expect("it is whole");
    }
}

/// What lies before the addresses where memory grows may be another's, who cannot be waited for.
#[test]
fn growth_does_not_begin_in_what_the_request_cannot_have() {
    let top = tight(4 * GIB);
    let addr = top.malloc_on(4 * MIB, SIDE);
    top.free(addr);
    let taken = top.malloc(4 * MIB);
    assert_eq!(taken, addr, "the main stream has it now, where the other's memory grows");
    top.free(taken);
    top.device.begin_capture(SIDE).unwrap();
    let captured = top.malloc_on(MIB, SIDE);
    assert!(top.device.is_accessible(Span::new(captured, MIB)) && captured != addr);
    top.device.end_capture(SIDE).expect("it is whole");
}

#[test]
fn what_a_destroyed_stream_left_serves_others_with_no_event() {
    let top = tight(4 * GIB);
    // A piece of its page is in use, so that the page stays.
    let kept = top.malloc_on(512, SIDE);
    let addr = top.malloc_on(MIB, SIDE);
    top.allocator.forget_stream(SIDE).unwrap();
    top.device.destroy_stream(SIDE);
    top.free(addr);
    let calls = top.device.calls();
    assert_eq!(top.malloc(MIB), addr);
    assert_eq!(top.device.calls(), calls);
    top.free_all(&[kept, addr]);
    top.empty();
    assert_eq!(top.device.used_bytes(), 0);
    assert_eq!(top.device.trespasses(), Vec::<String>::new());
}

// What is told of it.

#[test]
fn a_tenant_whose_free_was_put_off_is_no_worse_for_a_stream_that_goes() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    top.allocator.record_stream(addr, SIDE).unwrap();
    let pool = MemPool::for_capture(&top.allocator).unwrap();
    pool.scope_for(Filter::Capture(MAIN), || {
        top.device.begin_capture(MAIN).unwrap();
        top.free(addr);
        top.allocator.forget_stream(SIDE).unwrap();
        assert_eq!(top.allocator.check(), Ok(()));
        top.device.end_capture(MAIN).unwrap();
    })
    .unwrap();
    top.allocator.empty_cache().unwrap();
    assert_eq!(top.allocator.check(), Ok(()));
}

#[test]
fn large_blocks_are_counted_as_oversize_wherever_they_are_put() {
    let top = BenchTop::new(4 * GIB, "max_split_size_mb:30", Policy::tight());
    let oversize = || top.stats().oversize_allocations.current;
    // Far more often than it takes to be put where it lay the last time.
    for _ in 0..60 {
        let addr = top.malloc(40 * MIB);
        assert_eq!(oversize(), 1);
        top.free(addr);
        assert_eq!(oversize(), 0);
    }
    let addr = tenant(&top);
    assert_eq!(oversize(), 1);
    top.free(addr);
    assert_eq!(oversize(), 0);
}

#[test]
fn the_blocks_of_a_pool_that_is_not_split_stay_whole() {
    let top = tight(4 * GIB);
    let pool = PoolId(0, 1);
    top.allocator.add_pool_use(pool).unwrap();
    top.allocator.set_pool_no_split(pool).unwrap();
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let large = top.malloc(40 * MIB);
    top.free(large);
    // Where there are several streams, a request looks further for what it was told to have.
    top.malloc_on(512, SIDE);
    for number in 0..60 {
        let addr = top.malloc(30 * MIB);
        let size_bytes = top.allocator.usable_bytes(addr).unwrap();
        assert_eq!((addr, size_bytes), (large, 40 * MIB), "time {number}");
        top.free(addr);
    }
}

#[test]
fn a_pool_lends_to_requests_that_would_run_out_of_memory() {
    let top = tight(40 * MIB);
    let pool = PoolId(0, 1);
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let block = top.malloc(30 * MIB);
    top.allocator.end_pool(pool).unwrap();
    top.free(block);
    top.oom(25 * MIB);
    top.allocator.set_pool_use_on_oom(pool, true).unwrap();
    let [first, second] = [12, 15].map(|mib| top.malloc(mib * MIB));
    assert_eq!([first, second], [block, block.offset(12 * MIB)]);
    top.free(first);
    top.free(second);
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    assert_eq!(top.malloc(30 * MIB), block, "it is the pool's again");
}

/// A source gives whole segments, and all sizes share them to the last 512 bytes.
#[test]
fn what_a_source_gave_is_cut_to_size() {
    let top = tight(GIB);
    let pool = sourced(&top);
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let [first, second] = [(); 2].map(|()| top.malloc(MIB));
    assert_eq!(second, first.offset(MIB), "both have room in a segment of 2 MiB");
}

/// The split limit holds for what a source gave as it does elsewhere: a large block is whole, and
/// goes back whole.
#[test]
fn what_a_source_gave_is_left_whole_above_the_split_limit() {
    let top = BenchTop::new(GIB, "max_split_size_mb:20", Policy::tight());
    let pool = sourced(&top);
    top.allocator.begin_pool(pool, Filter::Any).unwrap();
    let large = top.malloc(21 * MIB + 512);
    assert_eq!(top.allocator.usable_bytes(large), Ok(22 * MIB));
    let small = top.malloc(512);
    assert!(!Span::new(large, 22 * MIB).contains(small));
}

/// There are no settings left that would help: what is free in pieces was used.
#[test]
fn who_runs_out_of_memory_is_given_no_advice_that_does_not_help() {
    let top = tight(100 * MIB);
    in_pieces(&top, 10, 10 * MIB);
    let text = top.oom(60 * MIB).to_string();
    for useless in ["expandable_segments", "page_size_mb", "max_split_size_mb"] {
        assert!(!text.contains(useless), "{text}");
    }
    in_pieces(&top, 50, MIB);
    assert!(top.oom(10 * MIB).to_string().contains("which no view can show side by side"));
}

// Others.

#[test]
fn a_peer_that_comes_later_can_use_what_lies_in_views() {
    let top = tight(4 * GIB);
    let addr = tenant(&top);
    let peer = DeviceIndex(1);
    top.allocator.open_to_peer(peer).unwrap();
    assert!(top.device.is_open_to_peer(Span::new(addr, 60 * MIB), peer));
    top.free(addr);
    let next = top.malloc(70 * MIB);
    assert!(top.device.is_open_to_peer(Span::new(next, 70 * MIB), peer), "and what comes");
}

#[test]
fn a_tenant_is_shared_with_other_processes_as_its_pages() {
    let wire = Wire::default();
    let options = SimOptions::default().memory_bytes(4 * GIB).wire(wire.clone());
    let top = BenchTop::with(options, "", Policy::tight());
    let addr = tenant(&top);
    assert_eq!(top.allocator.base_allocation(addr), Err(Error::NoBaseAllocation(addr)));
    let other = Arc::new(SimDevice::new(SimOptions::default().wire(wire)));
    let process = Allocator::new(other.clone(), Config::default(), Policy::larder());
    let shared = top.allocator.share(addr).unwrap();
    let opened = process.open_shared(&shared.bytes).unwrap();
    assert!(other.is_accessible(Span::new(opened.offset(shared.offset_bytes), 60 * MIB)));
    process.close_shared(opened).unwrap();
    top.free(addr);
    top.settle();
}

#[test]
fn a_device_without_virtual_memory_is_served_as_ever() {
    let options = SimOptions::default().memory_bytes(GIB).virtual_memory(false);
    let top = BenchTop::with(options, "", Policy::tight());
    let addr = top.malloc(100 * MIB);
    assert!(
        top.device.properties().total_bytes == GIB
            && top.device.is_accessible(Span::new(addr, MIB))
    );
    top.free(addr);
    top.empty();
}
