//! The hot path: once warm, a malloc that hits the cache and its free neither call the device nor
//! allocate on the host.
//!
//! It counts what the host is asked for in the host's allocator, which takes unsafe code and a
//! program of its own; so it does not stand beside the core's other stories.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use bench_top::BenchTop;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy, StreamId};

#[allow(dead_code)] // The other stories use the rest of it.
#[path = "../../larder-core/tests/scenarios/bench_top.rs"]
mod bench_top;

/// Counts what each thread asks of the host, so that threads do not disturb each other.
struct Counting;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(more_bytes: usize, fewer_bytes: usize) {
    // A thread that is going away has no counter any more, and nobody asks for it.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
    let change_bytes = more_bytes as i64 - fewer_bytes as i64;
    let _ = HELD_BYTES.try_with(|held| held.set(held.get() + change_bytes));
}

// SAFETY: every call is passed on to the system's allocator as it came, which keeps the contract;
// counting uses a thread-local that is not allocated and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`; `at` came from the system.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`; `at` came from the system.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this thread asked its host for memory, or gave some back.
fn host_requests() -> u64 {
    REQUESTS.with(Cell::get)
}

/// How much of its host's memory this thread took and did not give back.
fn held_bytes() -> i64 {
    HELD_BYTES.with(Cell::get)
}

/// Runs a piece of work until it is warm, then shows that it costs neither host nor device.
fn costs_nothing(name: &str, top: &BenchTop, mut work: impl FnMut(&BenchTop)) {
    // The tight policy has to see a program repeat itself before it knows it.
    let rounds = if top.allocator.policy().tight { 60 } else { 3 };
    for _ in 0..rounds {
        work(top);
    }
    let before = (host_requests(), top.device.total_calls());
    for _ in 0..100 {
        work(top);
    }
    let after = (host_requests(), top.device.total_calls());
    if top.allocator.policy().tight {
        // What is remembered of requests that it cannot tell from each other grows, up to a number
        // of them: now and then a list is made longer.
        assert_eq!(after.1, before.1, "device calls of: {name}");
        let more = after.0 - before.0;
        assert!(more <= 8, "{more} host requests of: {name}");
    } else {
        assert_eq!(after, before, "host requests and device calls of: {name}");
    }
    top.settle();
}

fn each_top(settings: &str, story: impl Fn(&BenchTop)) {
    for policy in Policy::all() {
        story(&BenchTop::new(80 * GIB, settings, policy));
    }
}

fn malloc(top: &BenchTop, size_bytes: u64) -> Addr {
    top.allocator.malloc(size_bytes, StreamId(0)).unwrap()
}

fn free(top: &BenchTop, addr: Addr) {
    top.allocator.free(addr).unwrap();
}

const SETTINGS: [&str; 3] =
    ["", "expandable_segments:True", "max_split_size_mb:200,roundup_power2_divisions:8"];

#[test]
fn the_counter_counts() {
    let before = host_requests();
    drop(black_box(Box::new(1_u64)));
    assert_eq!(host_requests() - before, 2);
}

#[test]
fn a_request_of_the_same_size_again_costs_nothing() {
    for settings in SETTINGS {
        for size_bytes in [1, 512, 100_000, MIB, 2 * MIB, 30 * MIB, GIB] {
            each_top(settings, |top| {
                costs_nothing("an exact hit", top, |top| free(top, malloc(top, size_bytes)));
            });
        }
    }
}

#[test]
fn splitting_and_merging_cost_nothing() {
    for settings in SETTINGS {
        for size_bytes in [512, 4096, 2 * MIB, 5 * MIB] {
            each_top(settings, |top| {
                let _guard = malloc(top, size_bytes);
                costs_nothing("split and merge", top, |top| {
                    let addrs = [(); 3].map(|()| malloc(top, size_bytes));
                    // The middle one last: it merges with both sides.
                    for at in [0, 2, 1] {
                        free(top, addrs[at]);
                    }
                });
            });
        }
    }
}

#[test]
fn many_sizes_cost_nothing() {
    for settings in SETTINGS {
        each_top(settings, |top| {
            let mut live = vec![Addr(0); 300];
            costs_nothing("many sizes", top, |top| {
                for (at, addr) in live.iter_mut().enumerate() {
                    let step = at as u64;
                    let size_bytes = if at % 3 == 0 { step * 70_000 + 1 } else { step * 700 + 1 };
                    *addr = malloc(top, size_bytes);
                }
                // Every other one first, so that holes of all sizes are on the shelf at once.
                live.iter().step_by(2).for_each(|&addr| free(top, addr));
                live.iter().skip(1).step_by(2).for_each(|&addr| free(top, addr));
            });
        });
    }
}

/// Enough of them that the free index keeps them in several rows.
#[test]
fn many_blocks_of_one_size_cost_nothing() {
    for settings in SETTINGS {
        each_top(settings, |top| {
            let mut live = vec![Addr(0); 3000];
            costs_nothing("many blocks of one size", top, |top| {
                for addr in &mut live {
                    *addr = malloc(top, 2048);
                }
                live.iter().step_by(2).for_each(|&addr| free(top, addr));
                live.iter().skip(1).step_by(2).for_each(|&addr| free(top, addr));
            });
        });
    }
}

#[test]
fn many_streams_cost_nothing() {
    let one_after_the_other = |top: &BenchTop| {
        for stream in 0..20 {
            let addr = top.allocator.malloc(4096, StreamId(stream)).unwrap();
            free(top, addr);
        }
    };
    BenchTop::under_each_policy(80 * GIB, "", |top| {
        costs_nothing("a stream after the other", top, one_after_the_other);
    });
    // Under the tight policy they have the same bytes in turns, and follow each other.
    let top = BenchTop::new(80 * GIB, "", Policy::tight());
    one_after_the_other(&top);
    let (pages, maps) = (top.device.page_count(), top.device.calls().map);
    (0..100).for_each(|_| one_after_the_other(&top));
    assert_eq!((top.device.page_count(), top.device.calls().map), (pages, maps));
}

/// Streams that hold what they need at once have it to themselves from then on. Under the tight
/// policy it lies in views, and who lives there is noted on the host.
#[test]
fn streams_that_repeat_themselves_beside_each_other_call_no_device() {
    each_top("", |top| {
        let mut live = vec![Addr(0); 60];
        let mut calls = 0;
        for round in 0..40 {
            for (at, addr) in live.iter_mut().enumerate() {
                let (stream, size_bytes) = (StreamId(at as u64 % 3), (at as u64 + 1) * 90_000);
                *addr = top.allocator.malloc(size_bytes, stream).unwrap();
            }
            live.iter().step_by(2).for_each(|&addr| free(top, addr));
            live.iter().skip(1).step_by(2).for_each(|&addr| free(top, addr));
            if round > 10 {
                assert_eq!(top.device.total_calls(), calls, "round {round}");
            }
            calls = top.device.total_calls();
        }
    });
}

#[test]
fn looking_at_a_block_costs_nothing() {
    each_top("", |top| {
        let addr = malloc(top, 4096);
        costs_nothing("looking", top, |top| {
            top.allocator.usable_bytes(addr).unwrap();
            let base = top.allocator.base_allocation(addr);
            assert_eq!(base.is_ok(), !top.allocator.policy().tight);
            assert!(top.allocator.free(addr.offset(512)).is_err());
        });
    });
}

/// Not a path that is hot, but the same measure: what is kept for a stream goes when its memory
/// does.
#[test]
fn streams_that_were_used_once_leave_nothing_on_the_host() {
    each_top("", |top| {
        let use_streams = |streams: std::ops::Range<u64>| {
            for stream in streams {
                let addr = top.allocator.malloc(512, StreamId(stream)).unwrap();
                top.allocator.free(addr).unwrap();
            }
            top.allocator.empty_cache().unwrap();
        };
        use_streams(1..10);
        let before_bytes = held_bytes();
        (1..1000).for_each(|ten| use_streams(ten * 10..ten * 10 + 10));
        let more_bytes = held_bytes() - before_bytes;
        // The tight policy remembers requests, up to a number of them.
        let limit_bytes = if top.allocator.policy().tight { 10_000 * 256 } else { 4096 };
        assert!(more_bytes < limit_bytes, "{more_bytes} bytes more for 10,000 streams");
    });
}
