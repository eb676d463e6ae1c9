//! Frees that a capture put off, and captures that nobody has seen yet: no event is recorded on a
//! stream that is captured, whoever asks for it.

use std::sync::mpsc;
use std::thread;

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::heap::Filter;
use larder_core::types::{GIB, PoolId};
use larder_sim::{CallKind, Fault, FaultPlan};

const POOL: PoolId = PoolId(1, 0);

#[test]
fn saving_a_layout_records_nothing_on_a_stream_that_is_captured() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let block = top.malloc(4096);
        top.allocator.record_stream(block, SIDE).unwrap();
        top.allocator.begin_pool(POOL, Filter::Capture(SIDE)).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.allocator.free(block).unwrap();
        // Whether the layout is settled is another matter.
        let _ = top.allocator.checkpoint_pool(POOL);
        top.device.end_capture(SIDE).unwrap();
        top.allocator.end_pool(POOL).unwrap();
        top.allocator.malloc(4096, MAIN).expect("no event belongs to the capture");
    });
}

#[test]
fn a_capture_that_its_own_thread_has_not_asked_about_is_one() {
    let top = &BenchTop::larder(GIB, "");
    let (opened, is_open) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Another thread has a scope, so that nobody may ask about all streams.
        scope.spawn(move || {
            let other = thread::current().id();
            top.allocator.begin_pool(PoolId(0, 9), Filter::Thread(other)).unwrap();
            top.allocator.malloc(512, MAIN).unwrap();
            opened.send(()).unwrap();
            is_done.recv().unwrap_err();
        });
        is_open.recv().unwrap();
        let block = top.allocator.malloc(4096, MAIN).unwrap();
        top.allocator.record_stream(block, SIDE).unwrap();
        top.allocator.begin_pool(POOL, Filter::Capture(SIDE)).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.allocator.malloc(512, SIDE).unwrap();
        top.allocator.free(block).unwrap();
        top.device.end_capture(SIDE).unwrap();
        // What the capture put off cannot be taken back now, and is tried again later.
        top.device.set_faults(FaultPlan::new(0).fail_nth(CallKind::Record, 1, Fault::Other));
        top.allocator.end_pool(POOL).unwrap();

        top.allocator.begin_pool(POOL, Filter::Capture(SIDE)).unwrap();
        top.device.begin_capture(SIDE).unwrap();
        top.allocator.malloc(4096, MAIN).unwrap();
        top.device.end_capture(SIDE).unwrap();
        top.allocator.end_pool(POOL).unwrap();
        let after = top.allocator.malloc(4096, MAIN);
        drop(done);
        after.expect("no event belongs to the capture");
    });
}
