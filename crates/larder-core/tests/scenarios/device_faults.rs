//! Faults: whatever device call fails, and wherever it stands in a sequence of calls, the heap
//! stays sound, the failed call has no outside effect, and work goes on once the device does.

use std::collections::BTreeMap;

use crate::bench_top::Piece::{Free, Live, Unmapped, Waiting};
use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::error::Error;
use larder_core::heap::Filter;
use larder_core::types::{MIB, PoolKind, Span};
use larder_core::{Addr, Policy, PoolId, StreamId};
use larder_sim::{CallKind, Calls, Fault, FaultPlan};

/// One step of a scenario; blocks go by number.
#[derive(Clone, Copy, Debug)]
enum Step {
    Malloc(u32, u64, StreamId),
    Release(u32),
    Use(u32, StreamId),
    Sync(StreamId),
    Empty,
    /// Requests go to the private pool, until they do not.
    Open,
    Close,
}
use Step::{Close, Empty, Malloc, Open, Release, Sync, Use};

/// A program's own pool.
const POOL: PoolId = PoolId(0, 1);

/// Plain segments on 100 MiB: misses, events polled and waited for, the whole ladder.
const PLAIN: &[Step] = &[
    Malloc(1, 512, MAIN),
    Malloc(2, 30 * MIB, MAIN),
    Malloc(3, 20 * MIB, SIDE),
    Use(2, SIDE),
    Use(2, FAR),
    Release(2),
    Malloc(4, 30 * MIB, MAIN),
    Release(4),
    Malloc(5, 40 * MIB, MAIN), // The device has 18 MiB: two events are waited for, two segments go.
    Use(5, SIDE),
    Release(5),
    Sync(SIDE),
    Malloc(6, 40 * MIB, MAIN),
    Release(3),
    Empty,
    Malloc(7, 5 * MIB, SIDE),
    Use(6, FAR),
    Release(6),
    Empty,
];

/// Expandable segments on 100 MiB: growth over several pages, holes, unmapping, the ladder.
const EXPANDABLE: &[Step] = &[
    Malloc(1, 512, MAIN),
    Malloc(2, 30 * MIB, MAIN),
    Malloc(3, 20 * MIB, SIDE),
    Use(2, SIDE),
    Use(2, FAR),
    Release(2),
    Malloc(4, 10 * MIB, MAIN),
    Sync(SIDE),
    Sync(FAR),
    Malloc(5, 35 * MIB, MAIN), // Behind block 4: the hole of block 2 is too small.
    Release(3),
    Empty, // One segment goes whole, of the other one page.
    Malloc(6, 18 * MIB, MAIN),
    Release(5),
    Malloc(7, 40 * MIB, SIDE), // The device has 18 MiB: pages of the main stream must go.
    Release(6),
    Empty,
];

/// Under the tight policy, on 100 MiB: views, memory that goes from one stream to another, views of
/// both streams' memory, growth by what is missing, and giving back.
const TIGHT: &[Step] = &[
    Malloc(1, 10 * MIB, MAIN),
    Malloc(2, 10 * MIB, MAIN),
    Malloc(3, 10 * MIB, MAIN),
    Malloc(4, 10 * MIB, MAIN),
    Malloc(5, 10 * MIB, SIDE),
    Malloc(6, 10 * MIB, SIDE),
    Release(1),
    Release(3),
    Malloc(7, 18 * MIB, MAIN), // In a view of two pieces.
    Use(7, SIDE),
    Release(5),
    Malloc(8, 11 * MIB, MAIN), // The other stream's block, or its pages and a new one.
    Release(7),                // The view waits.
    Malloc(9, 24 * MIB, SIDE),
    Sync(SIDE),
    Malloc(10, 20 * MIB, SIDE), // What was waited for, in pieces of both streams.
    Release(2),
    Release(4),
    Release(8),
    Malloc(11, 30 * MIB, FAR), // A view of what all have left.
    Empty,
    Release(9),
    Malloc(12, 40 * MIB, MAIN),
    Release(11),
    Use(12, FAR),
    Release(12),
    Malloc(13, 60 * MIB, SIDE), // Too much before what waits is waited for.
    Empty,
];

/// Under the tight policy, on 100 MiB: a private pool with views, pages that go from pool to pool,
/// and a pool in use that gives back.
const POOLS: &[Step] = &[
    Malloc(1, 10 * MIB, MAIN),
    Malloc(2, 30 * MIB, MAIN),
    Release(2),
    Open,
    Malloc(3, 12 * MIB, MAIN), // In pages that the default pool gives back.
    Malloc(4, 10 * MIB, MAIN),
    Malloc(5, 12 * MIB, MAIN),
    Release(3),
    Release(5),
    Malloc(6, 20 * MIB, MAIN), // In a view of the pool's own pages.
    Close,
    Release(6),
    Malloc(9, 28 * MIB, MAIN), // In pages that the pool gives back, which a view shows.
    Empty,
    Malloc(10, 45 * MIB, SIDE),
    Empty,
];

/// The numbered blocks, on a bench top.
struct World {
    top: BenchTop,
    blocks: BTreeMap<u32, Addr>,
}

impl World {
    fn new(settings: &str, policy: Policy) -> World {
        let top = BenchTop::new(100 * MIB, settings, policy);
        top.allocator.add_pool_use(POOL).unwrap();
        World { top, blocks: BTreeMap::new() }
    }

    fn perform(&mut self, step: Step) -> Result<(), Error> {
        let allocator = &self.top.allocator;
        match step {
            Malloc(block, size_bytes, stream) => {
                let addr = allocator.malloc(size_bytes, stream)?;
                self.blocks.insert(block, addr);
            }
            Release(block) => {
                allocator.free(self.blocks[&block])?;
                self.blocks.remove(&block);
            }
            Use(block, stream) => allocator.record_stream(self.blocks[&block], stream)?,
            Sync(stream) => self.top.device.sync(stream),
            Empty => allocator.empty_cache()?,
            Open => allocator.begin_pool(POOL, Filter::Any)?,
            Close => allocator.end_pool(POOL)?,
        }
        Ok(())
    }

    /// What the program can see: its blocks, and that they are what is counted as allocated.
    fn outside(&self) -> Vec<(Addr, u64)> {
        let allocator = &self.top.allocator;
        let size_of = |addr| allocator.usable_bytes(addr).expect("a live block");
        let blocks: Vec<_> = self.blocks.values().map(|&addr| (addr, size_of(addr))).collect();
        let stats = self.top.stats();
        assert_eq!(stats.allocation.all.current as usize, blocks.len());
        let bytes = blocks.iter().map(|&(_, size_bytes)| size_bytes).sum::<u64>();
        assert_eq!(stats.allocated_bytes.all.current as u64, bytes);
        blocks
    }

    /// The heap is sound, its blocks have memory behind them, and the device's books agree. Pages
    /// that the device would not take back are the one thing it may have on top.
    fn check(&self, pages_may_linger: bool) {
        assert_eq!(self.top.allocator.check(), Ok(()));
        for (addr, size_bytes) in self.outside() {
            assert!(self.top.device.is_accessible(Span::new(addr, size_bytes)), "{addr}");
        }
        let (used, backed) = (self.top.device.used_bytes(), self.top.backed_bytes());
        assert!(used == backed || pages_may_linger && used > backed, "{used} used, {backed} ours");
    }

    /// Frees everything, and finds the device as it was in the beginning.
    fn wind_up(mut self, policy: &Policy) {
        for block in self.blocks.keys().copied().collect::<Vec<_>>() {
            self.perform(Release(block)).unwrap();
        }
        while self.top.allocator.drop_pool_use(POOL).is_ok() {}
        self.perform(Empty).unwrap();
        self.check(false);
        let device = self.top.device.clone();
        assert_eq!((device.used_bytes(), device.page_count()), (0, 0));
        if policy.release_bare_segments {
            assert_eq!(self.top.segments().len(), 0);
            assert_eq!(device.calls().reserve, device.calls().unreserve);
        }
        drop(self);
        assert_eq!(device.event_count(), 0);
    }
}

/// Runs a scenario under a plan. A step that fails must have had no outside effect, and is done
/// again on a device that works.
fn run(steps: &[Step], settings: &str, policy: &Policy, plan: FaultPlan, lingering: bool) -> Calls {
    let mut world = World::new(settings, policy.clone());
    world.top.device.set_faults(plan);
    for &step in steps {
        let before = world.outside();
        if let Err(error) = world.perform(step) {
            assert!(matches!(error, Error::Device { .. } | Error::OutOfMemory(_)), "{error}");
            assert_eq!(world.outside(), before, "{step:?} failed");
            world.check(lingering);
            world.top.device.set_faults(FaultPlan::default());
            world.perform(step).expect("the device works again");
        }
        world.check(lingering);
    }
    world.top.device.set_faults(FaultPlan::default());
    let calls = world.top.device.calls();
    world.wind_up(policy);
    calls
}

/// Every kind of call that the scenarios make, and how often in a run without faults.
fn kinds(calls: &Calls) -> [(CallKind, u64); 15] {
    [
        (CallKind::Alloc, calls.alloc),
        (CallKind::Free, calls.free),
        (CallKind::Reserve, calls.reserve),
        (CallKind::Unreserve, calls.unreserve),
        (CallKind::Create, calls.create),
        (CallKind::Release, calls.release),
        (CallKind::Map, calls.map),
        (CallKind::Unmap, calls.unmap),
        (CallKind::Access, calls.access),
        (CallKind::CreateEvent, calls.create_event),
        (CallKind::Record, calls.record_event),
        (CallKind::Query, calls.query_event),
        (CallKind::WaitEvent, calls.wait_event),
        (CallKind::WaitStream, calls.wait_stream),
        (CallKind::Follow, calls.follow_event),
    ]
}

/// Fails each call of a scenario in turn: once, and from then on.
fn fail_each_call(steps: &[Step], settings: &str, fault: Fault) {
    fail_each_call_under(&Policy::all(), steps, settings, fault);
}

fn fail_each_call_under(policies: &[Policy], steps: &[Step], settings: &str, fault: Fault) {
    for policy in policies {
        let clean = run(steps, settings, policy, FaultPlan::default(), false);
        for (kind, count) in kinds(&clean) {
            let lingering = kind == CallKind::Release;
            // A fault on the way leads to more calls than the clean run made.
            for number in 1..=count + 3 {
                println!("{policy}: {kind:?} {number} fails as {fault:?}");
                let once = FaultPlan::new(0).fail_nth(kind, number, fault);
                run(steps, settings, policy, once, lingering);
                println!("... and all after it");
                let ever = FaultPlan::new(0).fail_from(kind, number, fault);
                run(steps, settings, policy, ever, lingering);
            }
        }
    }
}

const ON: &str = "expandable_segments:True";

#[test]
fn the_scenarios_make_every_kind_of_call() {
    for policy in Policy::all() {
        let plain = run(PLAIN, "", &policy, FaultPlan::default(), false);
        let expandable = run(EXPANDABLE, ON, &policy, FaultPlan::default(), false);
        for ((kind, plain), (_, expandable)) in kinds(&plain).into_iter().zip(kinds(&expandable)) {
            // One stream waits for another under the tight policy alone, and plain memory it has
            // none.
            let has_none = match kind {
                CallKind::Follow => !policy.tight,
                CallKind::Alloc | CallKind::Free => policy.tight,
                _ => false,
            };
            assert_eq!(plain + expandable == 0, has_none, "{policy}: {kind:?}");
        }
    }
    let tight = run(TIGHT, "", &Policy::tight(), FaultPlan::default(), false);
    assert!(tight.follow_event > 1 && tight.map > tight.create, "{tight:?}");
}

#[test]
fn any_call_on_plain_segments_may_find_the_device_out_of_memory() {
    fail_each_call(PLAIN, "", Fault::OutOfMemory);
}

#[test]
fn any_call_on_plain_segments_may_fail() {
    fail_each_call(PLAIN, "", Fault::Other);
}

#[test]
fn any_call_on_expandable_segments_may_find_the_device_out_of_memory() {
    fail_each_call(EXPANDABLE, ON, Fault::OutOfMemory);
}

#[test]
fn any_call_on_expandable_segments_may_fail() {
    fail_each_call(EXPANDABLE, ON, Fault::Other);
}

#[test]
fn any_call_on_small_pages_may_fail() {
    let settings = "expandable_segments:True,page_size_mb:10";
    fail_each_call(EXPANDABLE, settings, Fault::OutOfMemory);
    fail_each_call(EXPANDABLE, settings, Fault::Other);
}

#[test]
fn any_call_of_the_tight_policy_may_find_the_device_out_of_memory() {
    fail_each_call_under(&[Policy::tight()], TIGHT, "", Fault::OutOfMemory);
}

#[test]
fn any_call_of_the_tight_policy_may_fail() {
    fail_each_call_under(&[Policy::tight()], TIGHT, "", Fault::Other);
}

#[test]
fn any_call_about_pools_in_pages_may_fail() {
    let calls = run(POOLS, "", &Policy::tight(), FaultPlan::default(), false);
    assert!(calls.unmap > 20 && calls.map > calls.create, "pages go from pool to pool: {calls:?}");
    fail_each_call_under(&[Policy::tight()], POOLS, "", Fault::OutOfMemory);
    fail_each_call_under(&[Policy::tight()], POOLS, "", Fault::Other);
}

/// A bench top whose device will fail the `number`-th call of a kind from here on.
fn failing(top: &BenchTop, kind: CallKind, number: u64) {
    top.device.set_faults(FaultPlan::new(0).fail_nth(kind, number, Fault::Other));
}

fn refused(call: &'static str) -> Result<(), Error> {
    Err(Error::Device { call, error: Fault::Other.error() })
}

#[test]
fn a_map_that_fails_midway_is_undone_as_far_as_it_went() {
    let wordings = [
        (CallKind::Create, 3, "create memory"),
        (CallKind::Map, 1, "map memory"),
        (CallKind::Map, 3, "map memory"),
        (CallKind::Access, 1, "give access to memory"),
    ];
    for (kind, number, call) in wordings {
        BenchTop::under_each_policy(100 * MIB, ON, |top| {
            failing(top, kind, number);
            assert_eq!(top.try_malloc(60 * MIB).map(drop), refused(call));
            assert_eq!((top.device.page_count(), top.backed_bytes()), (0, 0));
            assert_eq!(top.segments(), [[Unmapped(120 * MIB)]], "the addresses are kept for later");
            let addr = top.malloc(60 * MIB);
            assert!(top.device.is_accessible(Span::new(addr, 60 * MIB)));
            assert_eq!(top.device.calls().reserve, 1);
        });
    }
}

#[test]
fn growth_that_fails_at_its_second_hole_keeps_what_filled_the_first() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        // Pages 0 and 2 are gone, page 1 is free but for a piece in its middle.
        let [low, middle, high] = [25, 5, 30].map(|size| top.malloc(size * MIB));
        top.free_all(&[low, high]);
        top.empty();
        top.free(middle);
        assert_eq!(top.segments()[0][..2], [Unmapped(20 * MIB), Free(20 * MIB)]);
        failing(top, CallKind::Create, 2);
        assert_eq!(top.try_malloc(60 * MIB).map(drop), refused("create memory"));
        assert_eq!(top.backed(), [[Free(40 * MIB)]]);
        assert_eq!(top.malloc(60 * MIB), low);
    });
}

#[test]
fn an_unmap_that_fails_midway_stands_as_far_as_it_went() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        let addr = top.malloc(60 * MIB);
        top.free(addr);
        failing(top, CallKind::Unmap, 2);
        assert_eq!(top.allocator.empty_cache(), refused("unmap memory"));
        top.settle();
        let row = [Unmapped(20 * MIB), Free(40 * MIB), Unmapped(60 * MIB)];
        assert_eq!(top.segments(), [row]);
        assert_eq!(top.stats().num_device_free, 1);
        assert_eq!(top.malloc(40 * MIB), addr.offset(20 * MIB), "what is left is used as ever");
    });
}

#[test]
fn a_page_that_the_device_will_not_take_back_is_offered_again() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        let addr = top.malloc(60 * MIB);
        top.free(addr);
        top.device.set_faults(FaultPlan::new(0).fail_from(CallKind::Release, 3, Fault::Other));
        top.allocator.empty_cache().unwrap();
        assert_eq!(top.device.page_count(), 1, "the heap has let go of it");
        assert_eq!(top.allocator.check(), Ok(()));
        assert_eq!(top.stats().reserved_bytes.all.current, 0);
        top.device.set_faults(FaultPlan::default());
        top.empty();
        assert_eq!(top.device.page_count(), 0);
    });
}

#[test]
fn a_page_that_lingers_does_not_stand_in_the_way_of_a_request() {
    for settings in [ON, ""] {
        BenchTop::under_each_policy(100 * MIB, ON, |top| {
            let addr = top.malloc(60 * MIB);
            top.free(addr);
            top.device.set_faults(FaultPlan::new(0).fail_from(CallKind::Release, 1, Fault::Other));
            top.allocator.empty_cache().unwrap();
            assert_eq!(top.device.page_count(), 3);
            top.device.set_faults(FaultPlan::default());
            top.configure_quietly(settings);
            top.malloc(100 * MIB);
        });
    }
}

#[test]
fn an_undoing_that_fails_too_is_done_later() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        let stubborn = FaultPlan::new(0).fail_from(CallKind::Access, 1, Fault::Other).fail_from(
            CallKind::Unmap,
            1,
            Fault::Other,
        );
        top.device.set_faults(stubborn);
        for _ in 0..2 {
            // The second time the pages of the first are still mapped where the new ones belong.
            assert!(top.allocator.malloc(40 * MIB, MAIN).is_err());
            assert_eq!(top.allocator.check(), Ok(()));
            assert_eq!(top.stats().reserved_bytes.all.current, 0);
            assert!(top.device.page_count() >= 2);
        }
        top.device.set_faults(FaultPlan::default());
        let addr = top.malloc(40 * MIB);
        assert_eq!(top.device.page_count(), 2, "only those of the request");
        top.free(addr);
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn an_undoing_that_fails_too_is_done_by_emptying_the_cache() {
    BenchTop::under_each_policy(100 * MIB, ON, |top| {
        let stubborn = FaultPlan::new(0)
            .fail_nth(CallKind::Map, 2, Fault::OutOfMemory)
            .fail_nth(CallKind::Unmap, 1, Fault::Other)
            .fail_nth(CallKind::Release, 1, Fault::Other)
            .fail_from(CallKind::Create, 3, Fault::Other);
        top.device.set_faults(stubborn);
        assert!(top.allocator.malloc(40 * MIB, MAIN).is_err());
        assert_eq!(top.allocator.check(), Ok(()));
        top.device.set_faults(FaultPlan::default());
        top.empty();
        assert_eq!((top.device.used_bytes(), top.device.page_count()), (0, 0));
    });
}

#[test]
fn giving_back_stops_at_the_segment_that_fails() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let addrs = [10, 20, 30].map(|size| top.malloc(size * MIB));
        top.free_all(&addrs);
        failing(top, CallKind::Free, 2);
        assert_eq!(top.allocator.empty_cache(), refused("free memory"));
        top.settle();
        assert_eq!(top.segments(), [[Free(20 * MIB)], [Free(30 * MIB)]], "smallest first");
        assert_eq!(top.malloc(20 * MIB), addrs[1], "what is left is used as ever");
        top.empty();
        assert_eq!(top.device.used_bytes(), 20 * MIB);
    });
}

#[test]
fn large_segments_go_before_small_ones_and_streams_in_their_order() {
    let order = [(FAR, 2 * MIB), (SIDE, 512), (SIDE, 2 * MIB), (MAIN, 512), (MAIN, 2 * MIB)];
    for (number, left) in [(1, 5), (2, 4), (3, 3), (4, 2), (5, 1)] {
        BenchTop::under_each_policy(100 * MIB, "", |top| {
            for (stream, size_bytes) in order {
                let addr = top.malloc_on(size_bytes, stream);
                top.free(addr);
            }
            failing(top, CallKind::Free, number);
            assert!(top.allocator.empty_cache().is_err());
            // Those that are left are the last of: large on MAIN, SIDE and FAR, small on both.
            let mut rows: Vec<_> = top.allocator.snapshot();
            rows.sort_by_key(|row| (row.kind == PoolKind::Small, row.stream));
            let found: Vec<_> = rows.iter().map(|row| (row.kind, row.stream)).collect();
            let (large, small) = (PoolKind::Large, PoolKind::Small);
            let all = [(large, MAIN), (large, SIDE), (large, FAR), (small, MAIN), (small, SIDE)];
            assert_eq!(found, all[5 - left..]);
        });
    }
}

#[test]
fn a_block_whose_event_cannot_be_recorded_stays_live() {
    for kind in [CallKind::CreateEvent, CallKind::Record] {
        BenchTop::under_each_policy(100 * MIB, "", |top| {
            let addr = top.malloc(20 * MIB);
            for stream in [SIDE, FAR, StreamId(7)] {
                top.record(addr, stream);
            }
            failing(top, kind, 2);
            assert!(top.allocator.free(addr).is_err());
            top.settle();
            assert_eq!(top.segments(), [[Live(20 * MIB)]]);
            assert_eq!(top.stats().allocation.all.freed, 0);
            top.malloc(512);
            assert_eq!(top.device.calls().query_event, 0, "nothing is awaited");
            top.free(addr);
            assert_eq!(top.segments()[0], [Waiting(20 * MIB)]);
            assert_eq!(top.device.event_count(), 3, "events of the first attempt are used again");
        });
    }
}

#[test]
fn a_wait_that_fails_leaves_the_rest_waiting() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let addrs = [10, 20].map(|size| top.malloc(size * MIB));
        for addr in addrs {
            top.record(addr, SIDE);
            top.free(addr);
        }
        failing(top, CallKind::WaitEvent, 2);
        assert_eq!(top.allocator.empty_cache(), refused("wait for an event"));
        top.settle();
        assert_eq!(top.segments(), [[Free(10 * MIB)], [Waiting(20 * MIB)]]);
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn a_query_that_fails_is_told_and_asked_again() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let addr = top.malloc(20 * MIB);
        top.record(addr, SIDE);
        top.free(addr);
        top.device.sync(SIDE);
        failing(top, CallKind::Query, 1);
        assert_eq!(top.try_malloc(512).map(drop), refused("query an event"));
        assert_eq!(top.segments(), [[Waiting(20 * MIB)]]);
        assert_eq!(top.malloc(20 * MIB), addr);
    });
}

#[test]
fn a_plain_allocation_that_fails_for_another_reason_than_memory_is_told_at_once() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let cached = top.malloc(20 * MIB);
        top.free(cached);
        failing(top, CallKind::Alloc, 1);
        assert_eq!(top.try_malloc(30 * MIB).map(drop), refused("allocate memory"));
        let stats = top.stats();
        assert_eq!((stats.num_alloc_retries, stats.num_ooms), (0, 0));
        assert_eq!(top.segments(), [[Free(20 * MIB)]], "the cache is not given up for it");
    });
}

/// A page that could neither be used nor taken away lies where the next one is to be: it is the
/// device's refusal to take it away that is told, and nothing is mapped over it.
#[test]
fn nothing_is_mapped_over_a_page_that_could_not_be_taken_away() {
    let top = BenchTop::larder(100 * MIB, ON);
    let refusing = FaultPlan::new(0).fail_nth(CallKind::Access, 1, Fault::Other).fail_from(
        CallKind::Unmap,
        1,
        Fault::Other,
    );
    top.device.set_faults(refusing);
    for call in ["give access to memory", "unmap memory"] {
        let Err(Error::Device { call: refused, error }) = top.allocator.malloc(30 * MIB, MAIN)
        else {
            panic!("the device refused");
        };
        assert_eq!((refused, error), (call, Fault::Other.error()));
        assert_eq!(top.allocator.check(), Ok(()));
    }
    top.device.set_faults(FaultPlan::default());
    let block = top.allocator.malloc(30 * MIB, MAIN).unwrap();
    top.allocator.free(block).unwrap();
    top.allocator.empty_cache().unwrap();
    assert_eq!(top.device.used_bytes(), 0);
}
