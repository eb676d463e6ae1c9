//! The dropped lock: what others do while a malloc waits for a callback or for the device, and what
//! becomes of the malloc then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::bench_top::{BenchTop, MAIN};
use larder_core::allocator::history::HistoryOptions;
use larder_core::device::DeviceError;
use larder_core::heap::Filter;
use larder_core::record::context::{Context, Stack};
use larder_core::record::event::Level;
use larder_core::source::SegmentSource;
use larder_core::types::{GIB, MIB, Span};
use larder_core::{Addr, MemPool, PoolId, StreamId};

const POOL: PoolId = PoolId(0, 77);

/// Somebody closes the scope, drops the pool's last uses, and empties everything.
fn abandon(top: &BenchTop, pool: PoolId) {
    let allocator = &top.allocator;
    let _ = allocator.end_pool(pool);
    while allocator.drop_pool_use(pool).is_ok() {}
    allocator.empty_pool(pool).unwrap();
    allocator.empty_cache().unwrap();
    allocator.check().unwrap();
}

/// Calls `work` at the next miss, once.
fn at_the_next_miss(top: &BenchTop, work: impl Fn(&BenchTop) + Send + Sync + 'static) {
    let inner = top.clone();
    let (inner, done) = (Mutex::new(Some(inner)), AtomicBool::new(false));
    top.allocator.on_miss(move || {
        if !done.swap(true, Ordering::Relaxed) {
            // The allocator must not keep itself alive.
            let inner = inner.lock().unwrap().take().unwrap();
            work(&inner);
        }
        false
    });
}

/// A source of segments that knows what it gave.
#[derive(Default)]
struct Well {
    given: Mutex<Vec<Span>>,
    /// What happens while somebody waits for memory.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl SegmentSource for Well {
    fn alloc(&self, size_bytes: u64, _: StreamId) -> Result<Addr, DeviceError> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let mut given = self.given.lock().unwrap();
        let addr = Addr(0x7000_0000_0000 + given.len() as u64 * GIB);
        given.push(Span::new(addr, size_bytes));
        Ok(addr)
    }

    fn free(&self, segment: Span, _: StreamId) -> Result<(), DeviceError> {
        let mut given = self.given.lock().unwrap();
        let at = given.iter().position(|&span| span == segment).expect("what this source gave");
        given.remove(at);
        Ok(())
    }
}

#[test]
fn a_pool_abandoned_by_a_miss_callback_still_gets_its_segment_and_nobody_else_does() {
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(4 * GIB, settings, |top| {
            at_the_next_miss(top, |top| abandon(top, POOL));
            top.allocator.begin_pool(POOL, Filter::Any).unwrap();
            let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
            top.allocator.check().unwrap();
            assert_eq!(top.allocator.pool_uses(POOL), Some(0), "released, and not forgotten");
            assert_eq!(top.allocator.pool_snapshot(POOL).unwrap().len(), 1);

            // The next pool has nothing of it.
            let next = MemPool::new(&top.allocator).unwrap();
            assert!(next.snapshot().is_empty());
            let other = next.scope(|| top.allocator.malloc(5 * MIB, MAIN)).unwrap().unwrap();
            top.allocator.free(block).unwrap();
            top.allocator.empty_cache().unwrap();
            assert_eq!(top.allocator.pool_uses(POOL), None, "now nothing is left of it");
            top.allocator.free(other).unwrap();
            drop(next);
            top.allocator.empty_cache().unwrap();
            top.allocator.check().unwrap();
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}

#[test]
fn a_pool_abandoned_while_the_device_is_asked_is_there_when_the_answer_comes() {
    BenchTop::under_each_policy(4 * GIB, "release_lock_on_cudamalloc:True", |top| {
        let well = Arc::new(Well::default());
        top.allocator.add_pool_with_source(POOL, well.clone()).unwrap();
        let inner = top.clone();
        *well.meanwhile.lock().unwrap() = Some(Box::new(move || abandon(&inner, POOL)));
        top.allocator.begin_pool(POOL, Filter::Any).unwrap();
        let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
        top.allocator.check().unwrap();

        let next = MemPool::new(&top.allocator).unwrap();
        let other = next.scope(|| top.allocator.malloc(5 * MIB, MAIN)).unwrap().unwrap();
        assert_eq!(well.given.lock().unwrap().len(), 1, "the next pool asks the device");
        top.allocator.free(block).unwrap();
        top.allocator.empty_cache().unwrap();
        assert!(well.given.lock().unwrap().is_empty(), "what came from the source went back to it");
        assert_eq!(Arc::strong_count(&well), 1, "and nobody needs the source any more");
        top.allocator.free(other).unwrap();
    });
}

#[test]
fn a_pool_is_not_forgotten_by_the_recovery_of_its_own_request() {
    BenchTop::under_each_policy(64 * MIB, "", |top| {
        let full = top.allocator.malloc(40 * MIB, MAIN).unwrap();
        top.allocator.free(full).unwrap();
        at_the_next_miss(top, |top| {
            top.allocator.end_pool(POOL).unwrap();
            top.allocator.drop_pool_use(POOL).unwrap();
        });
        top.allocator.begin_pool(POOL, Filter::Stream(StreamId(9))).unwrap();
        // The device has no room until the whole cache was given back, empty pools and all.
        let block = top.allocator.malloc(40 * MIB, StreamId(9)).unwrap();
        top.allocator.check().unwrap();
        assert_eq!(top.allocator.pool_snapshot(POOL).unwrap().len(), 1);
        top.allocator.free(block).unwrap();
        top.allocator.empty_cache().unwrap();
        assert_eq!((top.allocator.pool_uses(POOL), top.device.used_bytes()), (None, 0));
    });
}

#[test]
fn a_pool_whose_last_request_failed_is_forgotten_with_it() {
    BenchTop::under_each_policy(64 * MIB, "", |top| {
        at_the_next_miss(top, |top| abandon(top, POOL));
        top.allocator.begin_pool(POOL, Filter::Any).unwrap();
        top.allocator.malloc(GIB, MAIN).unwrap_err();
        assert_eq!(top.allocator.pool_uses(POOL), None);
        top.allocator.add_pool_use(POOL).unwrap();
        top.allocator.check().unwrap();
    });
}

#[test]
fn a_request_follows_what_was_decided_while_it_waited() {
    // Its pool splits no blocks any more.
    let top = BenchTop::larder(4 * GIB, "");
    at_the_next_miss(&top, |top| top.allocator.set_pool_no_split(POOL).unwrap());
    top.allocator.begin_pool(POOL, Filter::Any).unwrap();
    let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
    assert_eq!(top.allocator.usable_bytes(block), Ok(20 * MIB));
    // Expandable segments were turned off.
    let top = BenchTop::larder(4 * GIB, "expandable_segments:True");
    at_the_next_miss(&top, |top| top.allocator.configure("expandable_segments:False").unwrap());
    let _block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
    assert!(!top.allocator.has_expandable());
    top.allocator.check().unwrap();
}

#[test]
fn two_requests_at_once_do_not_pass_the_cap_together() {
    let settings = "release_lock_on_cudamalloc:True,per_process_memory_fraction:0.5";
    let top = BenchTop::larder(64 * MIB, settings);
    let well = Arc::new(Well::default());
    let pool = MemPool::with_source(&top.allocator, well.clone()).unwrap();
    let allocator = top.allocator.clone();
    let (told, hears) = mpsc::channel();
    // While the source is asked for 20 of 32 MiB, somebody else asks the device for 20 more.
    *well.meanwhile.lock().unwrap() = Some(Box::new(move || {
        let other = thread::spawn(move || allocator.malloc(20 * MIB, MAIN)).join().unwrap();
        told.send(other.is_err()).unwrap();
    }));
    let first = pool.scope(|| top.allocator.malloc(20 * MIB, MAIN)).unwrap().unwrap();
    assert!(hears.recv().unwrap(), "there was no room under the cap");
    top.allocator.free(first).unwrap();
    drop(pool);
    let _second = top.allocator.malloc(20 * MIB, MAIN).unwrap();
    top.allocator.check().unwrap();
}

#[test]
fn a_history_that_is_turned_off_meanwhile_keeps_no_context_of_the_call() {
    let top = BenchTop::larder(4 * GIB, "");
    at_the_next_miss(&top, |top| {
        top.allocator.check().unwrap();
        top.allocator.stop_history();
        top.allocator.check().unwrap();
    });
    let hook = || -> Option<Arc<dyn Context>> { Some(Arc::new(Stack(Vec::new()))) };
    let options = HistoryOptions::default().level(Level::All).context_hook(Arc::new(hook));
    top.allocator.record_history(options).unwrap();
    let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
    top.allocator.check().unwrap();
    top.allocator.free(block).unwrap();
    assert_eq!(top.allocator.context_count(), 0);
}

/// Says at its end that it is over.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pools_come_and_go_under_requests_that_wait() {
    for settings in ["release_lock_on_cudamalloc:True", ""] {
        let top = BenchTop::larder(2 * GIB, settings);
        top.allocator.on_miss(|| {
            thread::yield_now();
            false
        });
        let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            // Also if something goes wrong here, or the others would never end.
            let _stop = Stop(&stop);
            for worker in 0..3_u64 {
                let (top, stop, served) = (&top, &stop, &served);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Ok(addr) = top.allocator.malloc(3 * MIB, StreamId(worker)) {
                            served.fetch_add(1, Ordering::Relaxed);
                            top.allocator.free(addr).unwrap();
                        }
                    }
                });
            }
            // On a busy machine the others may come late.
            let mut round = 0;
            while round < 400 || served.load(Ordering::Relaxed) == 0 {
                let pool = PoolId(0, 1 + round % 7);
                if top.allocator.begin_pool(pool, Filter::Any).is_ok() {
                    thread::yield_now();
                    abandon(&top, pool);
                }
                round += 1;
            }
        });
        top.allocator.empty_cache().unwrap();
        top.allocator.check().unwrap();
        assert_eq!(top.device.used_bytes(), 0, "no byte is lost");
        assert!((1..=7).all(|number| top.allocator.pool_uses(PoolId(0, number)).is_none()));
    }
}
