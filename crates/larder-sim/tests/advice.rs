//! What a program that ran out of memory is told to do about it: what would have helped it, and
//! nothing that would not.

mod bench_top;

use bench_top::{BenchTop, MAIN, SIDE};
use larder_core::MemPool;
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};

/// 1000 MiB were cached as one segment, of which 300 MiB are in use now: 700 MiB lie beside them.
fn leave_700_of_1000_mib(top: &BenchTop) {
    let whole = top.malloc(1000 * MIB);
    top.free(whole);
    top.malloc(300 * MIB);
}

#[test]
fn memory_in_pieces_is_called_so_and_joined_by_expandable_segments() {
    let asked_bytes = 1403 * MIB;
    BenchTop::under_each_policy(2 * GIB, "", |top| {
        leave_700_of_1000_mib(top);
        let report = top.oom(asked_bytes);
        assert!(report.unallocated_bytes() < asked_bytes, "the cache alone has too little");
        assert!(report.free_bytes < asked_bytes, "and so has the device");
        let text = report.to_string();
        let pieces = "There are enough bytes but in pieces, 1.02 GiB to be had of the device and \
                      700.00 MiB in the cache, there the largest 700.00 MiB: set \
                      expandable_segments:True, which joins free pieces.";
        assert!(text.ends_with(pieces), "{text}");
    });
    BenchTop::under_each_policy(2 * GIB, "expandable_segments:True", |top| {
        leave_700_of_1000_mib(top);
        top.malloc(asked_bytes);
    });
}

#[test]
fn nobody_is_told_to_turn_on_what_is_on() {
    BenchTop::under_each_policy(100 * MIB, "expandable_segments:True", |top| {
        // Blocks of two streams, a little in the first page of each: the rest of those pages is bound.
        for stream in [MAIN, SIDE] {
            let whole = top.malloc_on(20 * MIB, stream);
            top.free(whole);
            top.malloc_on(2 * MIB, stream);
        }
        let text = top.oom(80 * MIB).to_string();
        assert!(text.contains("There are enough bytes but in pieces, 60.00 MiB"), "{text}");
        assert!(text.contains("free memory on the stream that asks"), "{text}");
        assert!(!text.contains("expandable_segments:True"), "{text}");
    });
}

#[test]
fn a_memory_fraction_that_stops_a_request_is_named() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.set_memory_fraction(0.25).unwrap();
        top.malloc(200 * MIB);
        let text = top.oom(100 * MIB).to_string();
        let fraction = "The memory fraction stops it: 200.00 MiB of the 256.00 MiB that it allows is \
                        reserved, while the device has 824.00 MiB free; raise the fraction.";
        assert!(text.ends_with(fraction), "{text}");
        top.allocator.set_memory_fraction(1.0).unwrap();
        top.malloc(100 * MIB);
    });
}

#[test]
fn both_ways_out_are_named_where_either_would_do() {
    BenchTop::under_each_policy(8 * GIB, "", |top| {
        top.allocator.set_memory_fraction(0.25).unwrap();
        leave_700_of_1000_mib(top);
        let text = top.oom(1403 * MIB).to_string();
        assert!(text.contains("in pieces, 1.02 GiB to be had of the device"), "{text}");
        assert!(text.contains("expandable_segments:True"), "{text}");
        assert!(
            text.contains("The memory fraction stops it: 1000.00 MiB of the 2.00 GiB"),
            "{text}"
        );
    });
}

#[test]
fn a_fraction_does_not_stop_what_other_processes_hold() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        top.device.tenant_take(1000 * MIB);
        let text = top.oom(100 * MIB).to_string();
        assert!(
            text.ends_with("Other processes hold 1000.00 MiB; stop them to make room."),
            "{text}"
        );
    });
}

#[test]
fn a_capture_that_keeps_the_cache_from_being_given_back_is_named() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let cached = top.malloc(60 * MIB);
        top.free(cached);
        let pool = MemPool::for_capture(&top.allocator).unwrap();
        let text = pool.scope_for(Filter::Capture(MAIN), || {
            top.device.begin_capture(MAIN).unwrap();
            let text = top.oom(80 * MIB).to_string();
            top.device.end_capture(MAIN).unwrap();
            text
        });
        let text = text.unwrap();
        assert!(
            text.contains("60.00 MiB free that cannot be given back while a capture"),
            "{text}"
        );
        assert!(!text.contains("expandable_segments"), "{text}");
    });
}

#[test]
fn what_a_rule_refuses_is_not_called_larger_than_the_fraction() {
    let settings = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True";
    let top = BenchTop::torch(100 * MIB, settings);
    top.allocator.set_memory_fraction(1.0).unwrap();
    top.malloc(40 * MIB);
    let text = top.oom(20 * MIB).to_string();
    assert!(text.contains("refuse at once what would pass the memory fraction"), "{text}");
    assert!(!text.contains("larger than"), "20 MiB are within half of 100 MiB: {text}");
}

#[test]
fn what_no_fraction_would_allow_is_larger_than_the_device() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        let text = top.oom(200 * MIB).to_string();
        assert!(text.ends_with("The request is larger than the whole device."), "{text}");
    });
}
