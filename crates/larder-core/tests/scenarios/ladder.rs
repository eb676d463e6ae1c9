//! The ladder: what a request that missed the cache tries, in which order, and how it gives up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::bench_top::Piece::{Free, Live};
use crate::bench_top::{BenchTop, MAIN, SIDE};
use crate::observed_device::ObservedDevice;
use larder_core::device::ProcessMemory;
use larder_core::error::Error;
use larder_core::out_of_memory::OutOfMemory;
use larder_core::types::{GIB, MIB};
use larder_core::{Allocator, Config, DeviceIndex, Policy};
use larder_sim::{CallKind, Fault, FaultPlan, SimDevice, SimOptions, TENANT_PID};

/// An allocator on a device of this much memory that writes its calls down.
fn watched(memory_bytes: u64, settings: &str, policy: Policy) -> (Arc<ObservedDevice>, Allocator) {
    let device = SimDevice::new(SimOptions::default().memory_bytes(memory_bytes));
    let watched = Arc::new(ObservedDevice::new(device));
    let config = Config::parse(settings).unwrap();
    let allocator = Allocator::new(watched.clone(), config, policy);
    (watched, allocator)
}

#[test]
fn the_rungs_come_in_order() {
    let settings = "max_split_size_mb:20,garbage_collection_threshold:0.6";
    let (watched, allocator) = watched(100 * MIB, settings, Policy::torch_2_11());
    allocator.set_memory_fraction(0.99).unwrap();
    watched.device.tenant_take(20 * MIB);
    let malloc = |size| allocator.malloc(size * MIB, MAIN).unwrap();
    let [idle, oversize, awaited, live] = [20, 22, 24, 10].map(malloc);
    allocator.record_stream(awaited, SIDE).unwrap();
    allocator.free(idle).unwrap();
    for _ in 0..3 {
        // The idle block ages with each search.
        allocator.free(live).unwrap();
        malloc(10);
    }
    allocator.free(oversize).unwrap();
    allocator.free(awaited).unwrap();
    let callback_calls = Arc::new(Mutex::new(None));
    let (seen, observed) = (callback_calls.clone(), watched.clone());
    allocator.on_miss(move || {
        *seen.lock().unwrap() = Some(observed.calls());
        false
    });
    watched.calls();
    // The device has 4 MiB left. Of the 76 MiB held, 16.6 are above the threshold.
    allocator.malloc(40 * MIB, MAIN).unwrap();
    let before_callback = callback_calls.lock().unwrap().take();
    assert_eq!(before_callback, Some(vec!["query_event"]), "the callback comes after the search");
    let expected = [
        "free",       // Garbage collection gives back what lay idle for long,
        "alloc",      // and the device is asked: it has 24 MiB.
        "free",       // The oversize block goes, but its 22 MiB alone are less than the request,
        "wait_event", // so all events are waited for,
        "free",       // everything cached is given back,
        "alloc",      // and the device is asked once more.
    ];
    assert_eq!(watched.calls(), expected);
    let stats = allocator.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_sync_all_streams, stats.num_ooms), (1, 1, 0));
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn when_no_rung_is_left_the_numbers_are_gathered() {
    let (watched, allocator) = watched(100 * MIB, "", Policy::torch_2_11());
    let kept = allocator.malloc(60 * MIB, MAIN).unwrap();
    watched.calls();
    assert!(allocator.malloc(50 * MIB, MAIN).is_err());
    assert_eq!(watched.calls(), ["alloc", "alloc", "memory_info", "processes"]);
    let stats = allocator.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_sync_all_streams, stats.num_ooms), (1, 1, 1));
    // The failure harmed nothing: work goes on.
    allocator.malloc(40 * MIB, MAIN).unwrap();
    allocator.free(kept).unwrap();
    assert_eq!(allocator.stats().num_ooms, 1);
}

#[test]
fn a_hit_climbs_nothing() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let called = Arc::new(AtomicUsize::new(0));
        let count = called.clone();
        top.allocator.on_miss(move || count.fetch_add(1, Ordering::Relaxed) > usize::MAX / 2);
        let addr = top.malloc(12 * MIB);
        assert_eq!(called.load(Ordering::Relaxed), 1, "a miss, though the device has room");
        top.free(addr);
        top.malloc(12 * MIB);
        assert_eq!(called.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_callback_that_says_it_freed_something_is_believed() {
    for (says, device_allocs) in [(true, 1), (false, 2)] {
        BenchTop::under_each_policy(GIB, "", |top| {
            let held = top.malloc(12 * MIB);
            let allocator = Arc::downgrade(&top.allocator);
            top.allocator.on_miss(move || {
                let allocator = allocator.upgrade().unwrap();
                allocator.free(held).is_ok() && says
            });
            let addr = top.malloc(12 * MIB);
            assert_eq!(addr == held, says);
            assert_eq!(top.device.calls().alloc, device_allocs);
        });
    }
}

#[test]
fn every_callback_is_called_even_if_the_first_freed_something() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let called = Arc::new(AtomicUsize::new(0));
        for says in [true, false, true] {
            let count = called.clone();
            top.allocator.on_miss(move || {
                count.fetch_add(1, Ordering::Relaxed);
                says
            });
        }
        top.malloc(512);
        assert_eq!(called.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_callback_may_call_the_allocator() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let cached = top.malloc(512);
        let allocator = Arc::downgrade(&top.allocator);
        top.allocator.on_miss(move || {
            let allocator = allocator.upgrade().unwrap();
            // A hit, so that the callback does not call itself.
            allocator.malloc(512, MAIN).and_then(|addr| allocator.free(addr)).unwrap();
            allocator.empty_cache().unwrap();
            allocator.stats().segment.all.current == 0
        });
        top.malloc(12 * MIB);
        top.free(cached);
    });
}

#[test]
fn out_of_memory_is_told_in_numbers() {
    let top = BenchTop::torch(100 * MIB, "");
    let [live, cached] = [40, 20].map(|size| top.malloc(size * MIB));
    top.free(cached);
    top.device.tenant_take(10 * MIB);
    let report = top.oom(51 * MIB + 1);
    let own = ProcessMemory { pid: std::process::id(), own: true, used_bytes: 40 * MIB };
    let tenant = ProcessMemory { pid: TENANT_PID, own: false, used_bytes: 10 * MIB };
    let mut expected = OutOfMemory::new(DeviceIndex(0), 51 * MIB + 1);
    expected.rounded_bytes = 51 * MIB + 512;
    expected.tried_bytes = 52 * MIB;
    expected.free_bytes = 50 * MIB;
    expected.total_bytes = 100 * MIB;
    expected.allocated_bytes = 40 * MIB;
    expected.reserved_bytes = 40 * MIB;
    expected.processes = vec![own, tenant];
    expected.pieces.can_expand = true;
    expected.pieces.page_bytes = 20 * MIB;
    assert_eq!(report, expected);
    top.free(live);
}

#[test]
fn out_of_memory_is_told_in_words_that_name_the_other_tenants() {
    let top = BenchTop::torch(100 * MIB, "");
    top.malloc(40 * MIB);
    top.device.tenant_take(50 * MIB);
    top.allocator.set_memory_fraction(0.9).unwrap();
    let error = top.try_malloc(20 * MIB).unwrap_err();
    let text = error.to_string();
    for words in [
        "out of memory",
        "Tried to allocate 20.00 MiB",
        "GPU 0 has a total capacity of 100.00 MiB of which 10.00 MiB is free",
        "Process 4294967295 holds 50.00 MiB",
        "90.00 MiB allowed",
        "40.00 MiB is in live allocations, and 0 bytes is reserved but unallocated",
    ] {
        assert!(text.contains(words), "'{words}' is not in: {text}");
    }
}

#[test]
fn the_amount_tried_is_that_of_the_segment() {
    for (request_bytes, tried_bytes) in [
        (512, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ] {
        let top = BenchTop::torch(100 * MIB, "");
        top.device.tenant_take(100 * MIB);
        assert_eq!(top.oom(request_bytes).tried_bytes, tried_bytes);
    }
}

#[test]
fn a_device_that_does_not_know_its_free_memory_does_not_spoil_the_report() {
    let top = BenchTop::torch(100 * MIB, "");
    top.device.set_faults(
        FaultPlan::new(0).fail_from(CallKind::MemoryInfo, 1, Fault::Other).fail_from(
            CallKind::Processes,
            1,
            Fault::Other,
        ),
    );
    let report = top.oom(200 * MIB);
    assert_eq!((report.free_bytes, report.total_bytes), (0, 100 * MIB));
    assert_eq!(report.processes, []);
    assert!(top.allocator.memory_info().is_err(), "who asks for it is told");
}

#[test]
fn observers_are_told_without_the_lock_held() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        top.malloc(60 * MIB);
        let told = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..2 {
            let (told, allocator) = (told.clone(), Arc::downgrade(&top.allocator));
            top.allocator.on_out_of_memory(move |report| {
                let allocator = allocator.upgrade().unwrap();
                let ooms = allocator.stats().num_ooms;
                let addr = allocator.malloc(512, MAIN).unwrap();
                allocator.free(addr).unwrap();
                told.lock().unwrap().push((report.clone(), ooms));
            });
        }
        let report = top.oom(50 * MIB);
        assert_eq!(*told.lock().unwrap(), [(report.clone(), 1), (report, 1)]);
        top.malloc(30 * MIB);
        assert_eq!(
            told.lock().unwrap().len(),
            2,
            "a request that was met is none of their business"
        );
    });
}

#[test]
fn half_of_the_memory_is_just_too_much_for_half_of_the_device() {
    // The memory of a real 80 GB GPU is no multiple of 2 MiB, and neither is half of it.
    let total_bytes = 84_974_239_744_u64;
    BenchTop::under_each_policy(total_bytes, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        assert_eq!(top.allocator.memory_fraction().to_bits(), 0.5_f64.to_bits());
        let nearly_half = top.malloc((total_bytes as f64 * 0.499) as u64);
        top.free(nearly_half);
        top.empty();
        let report = top.oom(total_bytes / 2);
        assert_eq!(report.cap_bytes, Some(total_bytes / 2));
        assert_eq!(top.device.calls().alloc, 1, "the device is not asked past the cap");
        top.allocator.set_memory_fraction(1.0).unwrap();
        top.malloc(total_bytes / 2);
    });
}

#[test]
fn a_fraction_is_between_0_and_1_and_comes_back_as_it_was_set() {
    let top = BenchTop::larder(100 * MIB, "per_process_memory_fraction:0.25");
    let fraction = || top.allocator.memory_fraction().to_bits();
    assert_eq!(fraction(), 0.25_f64.to_bits(), "applied when the allocator was made");
    for value in [0.0, 0.5, 1.0] {
        top.allocator.set_memory_fraction(value).unwrap();
        assert_eq!(fraction(), value.to_bits());
    }
    for value in [-0.1, 1.1, f64::INFINITY, f64::NAN] {
        let refusal = top.allocator.set_memory_fraction(value);
        assert!(matches!(refusal, Err(Error::BadFraction(_))), "{value} is refused: {refusal:?}");
        assert_eq!(fraction(), 1.0_f64.to_bits(), "nothing changed");
    }
    top.configure("per_process_memory_fraction:0.5");
    assert_eq!(fraction(), 1.0_f64.to_bits(), "the setting is not applied again");
}

#[test]
fn nothing_fits_under_a_cap_of_zero() {
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(100 * MIB, settings, |top| {
            let cached = top.malloc(512);
            top.free(cached);
            top.allocator.set_memory_fraction(0.0).unwrap();
            assert_eq!(top.malloc(512), cached, "what is cached may still be used");
            assert_eq!(top.oom(2 * MIB).cap_bytes, Some(0));
        });
    }
}

#[test]
fn what_is_cached_is_given_back_to_stay_under_the_cap() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        let cached = top.malloc(40 * MIB);
        top.free(cached);
        top.malloc(42 * MIB);
        let stats = top.stats();
        assert_eq!((stats.num_alloc_retries, stats.num_device_free), (1, 1));
        assert_eq!(top.device.calls().alloc, 2, "the cap is known without asking the device");
    });
}

#[test]
fn a_block_above_the_split_limit_is_not_broken_into() {
    BenchTop::under_each_policy(GIB, "max_split_size_mb:40", |top| {
        let oversize = top.malloc(40 * MIB);
        top.free(oversize);
        let small = top.malloc(40 * MIB - 512);
        assert_ne!(small, oversize);
        assert_eq!(top.segments(), [[Free(40 * MIB)], [Live(40 * MIB)]]);
        assert_eq!(top.malloc(40 * MIB), oversize);
    });
}

#[test]
fn an_oversize_request_takes_a_block_that_is_a_little_larger_whole() {
    BenchTop::under_each_policy(GIB, "max_split_size_mb:40", |top| {
        let addr = top.malloc(58 * MIB);
        top.free(addr);
        assert_eq!(top.malloc(40 * MIB), addr);
        assert_eq!(top.segments(), [[Live(58 * MIB)]]);
    });
    BenchTop::under_each_policy(GIB, "max_split_size_mb:40", |top| {
        let addr = top.malloc(60 * MIB);
        top.free(addr);
        assert_ne!(top.malloc(40 * MIB), addr, "20 MiB too much is too much");
    });
    let generous = "max_split_size_mb:40,max_non_split_rounding_mb:30";
    BenchTop::under_each_policy(GIB, generous, |top| {
        let addr = top.malloc(60 * MIB);
        top.free(addr);
        assert_eq!(top.malloc(40 * MIB), addr);
    });
}

#[test]
fn a_limit_that_was_restored_to_the_largest_number_is_none() {
    for policy in [Policy::torch_2_11(), Policy::larder()] {
        let (_, allocator) = watched(GIB, "max_split_size_mb:20", policy);
        allocator.configure("max_split_size_mb:17592186044415").unwrap();
        assert_eq!(allocator.config().max_split_bytes, Some(u64::MAX - MIB + 1));
        let large = allocator.malloc(60 * MIB, MAIN).unwrap();
        allocator.free(large).unwrap();
        let piece = allocator.malloc(30 * MIB, MAIN).unwrap();
        assert_eq!((piece, allocator.stats().oversize_allocations.current), (large, 0));
    }
}

#[test]
fn a_request_for_a_segment_larger_than_any_device_is_out_of_memory() {
    for settings in [
        "large_segment_size_mb:18446744073709551615",
        "large_segment_size_mb:17592186044415,expandable_segments:True",
    ] {
        let (_, allocator) = watched(GIB, settings, Policy::torch_2_11());
        assert!(
            matches!(allocator.malloc(3 * MIB, MAIN), Err(Error::OutOfMemory(_))),
            "{settings}"
        );
        allocator.malloc(30 * MIB, MAIN).ok();
        allocator.malloc(3, MAIN).unwrap();
    }
}

#[test]
fn below_the_split_limit_blocks_are_split_as_ever() {
    BenchTop::under_each_policy(GIB, "max_split_size_mb:40", |top| {
        let addr = top.malloc(38 * MIB);
        top.free(addr);
        assert_eq!(top.malloc(12 * MIB), addr);
        assert_eq!(top.segments(), [[Live(12 * MIB), Free(26 * MIB)]]);
    });
}

/// Frees oversize blocks of these sizes on a device they fill up, then asks for one more.
fn make_room(cached_mib: &[u64], request_mib: u64) -> (BenchTop, u64) {
    let memory_bytes = cached_mib.iter().sum::<u64>() * MIB;
    let top = BenchTop::torch(memory_bytes, "max_split_size_mb:20");
    let addrs: Vec<_> = cached_mib.iter().map(|size| top.malloc(size * MIB)).collect();
    top.free_all(&addrs);
    top.malloc(request_mib * MIB);
    let frees = top.device.calls().free;
    (top, frees)
}

#[test]
fn room_is_made_by_giving_back_one_block_that_is_large_enough() {
    let (top, frees) = make_room(&[24, 66, 90, 30], 40);
    assert_eq!(frees, 1, "the smallest that is large enough");
    assert_eq!(top.allocator.largest_available_bytes(), Ok(90 * MIB));
    let stats = top.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_sync_all_streams), (0, 0));
}

#[test]
fn room_is_made_by_giving_back_several_blocks_from_the_largest_down() {
    let (top, frees) = make_room(&[24, 30, 26, 22], 50);
    assert_eq!(frees, 2, "30 and 26");
    assert_eq!(top.stats().num_alloc_retries, 0);
    assert_eq!(top.backed().iter().filter(|row| row[0] == Free(24 * MIB)).count(), 1);
}

#[test]
fn room_is_made_for_a_small_request_by_one_oversize_block() {
    let (top, frees) = make_room(&[24, 30], 2);
    assert_eq!(frees, 1, "any block above the limit has room for it: the smallest goes");
    assert_eq!(top.segments()[1], [Free(30 * MIB)]);
}

#[test]
fn room_that_does_not_suffice_is_made_all_the_same() {
    let (top, frees) = make_room(&[24, 30, 18], 60);
    assert_eq!(frees, 3, "two to make room, then all the rest");
    assert_eq!(top.stats().num_alloc_retries, 1);
}

#[test]
fn room_is_not_made_on_other_streams() {
    let top = BenchTop::torch(60 * MIB, "max_split_size_mb:20");
    let side = top.malloc_on(60 * MIB, SIDE);
    top.free(side);
    top.malloc(40 * MIB);
    assert_eq!(top.stats().num_alloc_retries, 1, "only giving everything back helped");
}

const COLLECT: &str = "garbage_collection_threshold:0.5";

#[test]
fn garbage_collection_gives_back_what_is_older_than_the_average() {
    BenchTop::under_each_policy(200 * MIB, COLLECT, |top| {
        top.allocator.set_memory_fraction(0.9).unwrap();
        let [old, young, live] = [40, 30, 50].map(|size| top.malloc(size * MIB));
        top.free(old);
        for _ in 0..4 {
            top.free(live);
            assert_eq!(top.malloc(50 * MIB), live);
        }
        top.free(young);
        // 120 MiB are held, 90 are the threshold: 30 too many.
        top.malloc(60 * MIB);
        assert_eq!(top.segments()[0], [Free(30 * MIB)], "the young one stays: {young}");
        let stats = top.stats();
        assert_eq!((stats.num_device_free, stats.num_alloc_retries), (1, 0));
        assert_eq!(stats.num_sync_all_streams, 0, "nothing is waited for");
    });
}

#[test]
fn garbage_collection_goes_on_while_it_is_not_enough() {
    BenchTop::under_each_policy(200 * MIB, COLLECT, |top| {
        top.allocator.set_memory_fraction(0.9).unwrap();
        let [old, young, live] = [20, 30, 70].map(|size| top.malloc(size * MIB));
        top.free(old);
        top.free(live);
        top.malloc(70 * MIB);
        top.free(young);
        // 30 MiB too many: the old block has only 20, so the young one follows it.
        top.malloc(60 * MIB);
        assert_eq!(top.stats().num_device_free, 2);
    });
}

#[test]
fn garbage_collection_does_nothing_below_its_threshold() {
    BenchTop::under_each_policy(200 * MIB, COLLECT, |top| {
        top.allocator.set_memory_fraction(0.9).unwrap();
        let [idle, _live] = [40, 50].map(|size| top.malloc(size * MIB));
        top.free(idle);
        top.malloc(60 * MIB);
        assert_eq!(top.stats().num_device_free, 0);
    });
}

#[test]
fn garbage_collection_leaves_small_and_split_and_expandable_blocks_alone() {
    BenchTop::under_each_policy(200 * MIB, "expandable_segments:True", |top| {
        let expandable = top.malloc(20 * MIB);
        top.configure("expandable_segments:False,garbage_collection_threshold:0.5");
        top.allocator.set_memory_fraction(0.9).unwrap();
        let small = top.malloc(512);
        let [split, _kept, _live] = [9, 9, 60].map(|size| top.malloc(size * MIB));
        top.free_all(&[expandable, small, split]);
        top.malloc(62 * MIB);
        assert_eq!(top.stats().num_device_free, 0);
    });
}

#[test]
fn a_request_above_the_share_is_rejected_at_once_if_the_settings_say_so() {
    let settings = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True";
    BenchTop::under_each_policy(100 * MIB, settings, |top| {
        // The rule is for the setting, not for the cap, which would refuse the request first.
        top.allocator.set_memory_fraction(1.0).unwrap();
        let cached = top.malloc(30 * MIB);
        top.free(cached);
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        top.allocator.on_out_of_memory(move |report| {
            assert!(report.rejected);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let report = top.oom(40 * MIB);
        assert!(report.rejected);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        let stats = top.stats();
        assert_eq!((stats.num_oom_rejections, stats.num_ooms, stats.num_alloc_retries), (1, 0, 0));
        assert_eq!(top.segments(), [[Free(30 * MIB)]], "the cache is kept");
        assert_eq!(top.device.calls().alloc, 1);
        top.malloc(20 * MIB);
    });
}

#[test]
fn what_can_never_be_met_is_rejected_too() {
    BenchTop::under_each_policy(100 * MIB, "throw_on_cudamalloc_oom:True", |top| {
        assert!(top.oom(200 * MIB).rejected);
        let stats = top.stats();
        assert_eq!((stats.num_oom_rejections, stats.num_ooms), (1, 0));
    });
}

#[test]
fn with_the_whole_device_as_share_only_more_than_the_device_is_rejected() {
    let top = BenchTop::torch(100 * MIB, "throw_on_cudamalloc_oom:True");
    top.malloc(60 * MIB);
    assert!(top.oom(42 * MIB).rejected);
    top.device.tenant_take(20 * MIB);
    assert!(!top.oom(40 * MIB).rejected, "that the device is full is another matter");
    let stats = top.stats();
    assert_eq!((stats.num_oom_rejections, stats.num_ooms), (1, 1));
}

#[test]
fn the_lock_is_free_while_the_device_allocates_if_the_settings_say_so() {
    for policy in [Policy::larder(), Policy::torch_2_11()] {
        let (watched, allocator) = watched(GIB, "release_lock_on_cudamalloc:True", policy);
        let cached = allocator.malloc(512, MAIN).unwrap();
        allocator.free(cached).unwrap();
        watched.close();
        watched.calls();
        thread::scope(|scope| {
            let slow = scope.spawn(|| allocator.malloc(20 * MIB, MAIN));
            while watched.calls().is_empty() {
                thread::yield_now();
            }
            // The slow request is in the device now, and nobody waits for it.
            assert_eq!(allocator.malloc(512, MAIN), Ok(cached));
            assert_eq!(allocator.stats().segment.all.current, 1);
            assert!(!slow.is_finished());
            watched.open();
            slow.join().unwrap().unwrap();
        });
        assert_eq!(allocator.stats().segment.all.current, 2);
        assert_eq!(allocator.check(), Ok(()));
    }
}
