//! Reserves: how many addresses expandable segments take, by the settings, by classes of streams,
//! and by a hook.

use std::sync::{Arc, Mutex};

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::types::MIB;
use larder_core::{Policy, StreamId};

const BY_CLASS: &str = "expandable_segments:True,expandable_segments_reserve:0.5,\
                        expandable_segments_reserve_by_class:[serve:0.125,train:2.0]";

/// The addresses that the segments of a stream reserve, in MiB.
fn reserved(top: &BenchTop, stream: StreamId) -> Vec<u64> {
    let segments = top.allocator.snapshot().into_iter();
    let own = segments.filter(|segment| segment.stream == stream);
    own.map(|segment| segment.span.size_bytes / MIB).collect()
}

fn policies() -> [Policy; 2] {
    [Policy::torch_2_15(), Policy::larder()]
}

#[test]
fn a_stream_reserves_what_its_class_says() {
    for policy in policies() {
        let top = BenchTop::new(800 * MIB, BY_CLASS, policy);
        top.allocator.set_stream_class(SIDE, "serve");
        top.allocator.set_stream_class(FAR, "train");
        for stream in [MAIN, SIDE, FAR] {
            top.malloc_on(60 * MIB, stream);
        }
        assert_eq!([MAIN, SIDE, FAR].map(|stream| reserved(&top, stream)), [[400], [100], [900]]);
        // A class counts when a segment is made, and not for those that are there.
        top.allocator.set_stream_class(SIDE, "");
        assert_eq!(top.allocator.stream_class(SIDE), None);
        top.malloc_on(30 * MIB, SIDE);
        assert_eq!(reserved(&top, SIDE), [100], "there was room");
        top.malloc_on(60 * MIB, SIDE);
        assert_eq!(reserved(&top, SIDE), [100, 400]);
        top.allocator.set_stream_class(StreamId(9), "nobody knows it");
        top.malloc_on(60 * MIB, StreamId(9));
        assert_eq!(reserved(&top, StreamId(9)), [400]);
    }
}

#[test]
fn a_stream_that_is_gone_leaves_no_class_to_the_next() {
    let top = BenchTop::new(800 * MIB, BY_CLASS, Policy::larder());
    top.allocator.set_stream_class(SIDE, "serve");
    assert_eq!(top.allocator.stream_class(SIDE).as_deref(), Some("serve"));
    top.allocator.forget_stream(SIDE).unwrap();
    assert_eq!(top.allocator.stream_class(SIDE), None);
}

#[test]
fn a_hook_is_asked_whenever_a_segment_may_come() {
    for policy in policies() {
        let top = BenchTop::new(800 * MIB, BY_CLASS, policy);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (told, allocator) = (asked.clone(), Arc::downgrade(&top.allocator));
        top.allocator.on_reserve(|_, _| unreachable!("another one takes its place"));
        top.allocator.on_reserve(move |stream, device_bytes| {
            // No lock is held.
            allocator.upgrade().expect("it is calling").stats();
            told.lock().unwrap().push((stream, device_bytes / MIB));
            (stream == SIDE).then_some(70 * MIB)
        });
        top.malloc_on(60 * MIB, MAIN);
        top.malloc_on(60 * MIB, SIDE);
        let addr = top.malloc_on(60 * MIB, SIDE);
        top.free(addr);
        top.malloc_on(60 * MIB, SIDE);
        assert_eq!(reserved(&top, MAIN), [400], "as the settings say");
        assert_eq!(reserved(&top, SIDE), [80, 80], "whole pages");
        assert_eq!(*asked.lock().unwrap(), [(MAIN, 800), (SIDE, 800), (SIDE, 800)]);
        // Without expandable segments there is nothing to ask.
        top.configure("expandable_segments:False");
        top.malloc_on(90 * MIB, FAR);
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}

#[test]
fn a_hook_that_panics_costs_no_memory() {
    let top = BenchTop::new(800 * MIB, BY_CLASS, Policy::larder());
    top.allocator.on_reserve(|_, _| panic!("no answer"));
    let allocator = top.allocator.clone();
    assert!(std::thread::spawn(move || allocator.malloc(60 * MIB, MAIN)).join().is_err());
    top.settle();
    assert_eq!(top.stats().allocation.all.current, 0);
    assert_eq!(reserved(&top, MAIN), [400], "as the settings say");
}
