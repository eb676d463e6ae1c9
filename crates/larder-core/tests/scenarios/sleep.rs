//! Sleep and wake: memory goes back to the device and its addresses stay; what it held is there
//! again when it wakes, or not, as its tag says.

use std::sync::{Arc, Mutex};
use std::thread;

use larder_core::allocator::sleep::{SleepStats, Which};
use larder_core::error::{Error, PoolProblem, SleepProblem};
use larder_core::heap::Filter;
use larder_core::keeper::{Keeper, KeeperError, Kept, PlainKeeper};
use larder_core::types::{MIB, PoolId, Span};
use larder_core::{Addr, Keep, Policy};
use larder_sim::{CallKind, Fault, FaultPlan, SimOptions};

use crate::bench_top::{BenchTop, MAIN, SIDE};

const MEMORY: u64 = 200 * MIB;

/// Under each policy whose memory can sleep, with the settings that it has by itself and without
/// expandable segments.
fn under_each(story: impl Fn(&BenchTop)) {
    for policy in [Policy::torch_2_11(), Policy::larder(), Policy::tight()] {
        for settings in ["", "expandable_segments:True"] {
            println!("policy {policy}, {settings:?}");
            story(&BenchTop::new(MEMORY, settings, policy.clone()));
        }
    }
}

fn region(top: &BenchTop, tag: &str, keep: Keep, size_bytes: u64) -> Addr {
    let addr = top.allocator.region(tag, keep, || top.malloc(size_bytes));
    addr.expect("a tag")
}

/// Writes to a block's ends and middle.
fn write(top: &BenchTop, addr: Addr, size_bytes: u64, value: u8) {
    for (at, value) in [0, size_bytes / 2, size_bytes - 1].into_iter().zip(value..) {
        assert!(top.device.write(addr.offset(at), value), "{addr} can be written");
    }
}

fn read(top: &BenchTop, addr: Addr, size_bytes: u64) -> [Option<u8>; 3] {
    [0, size_bytes / 2, size_bytes - 1].map(|at| top.device.read(addr.offset(at)))
}

fn sleep(top: &BenchTop, which: &Which) -> u64 {
    let slept = top.allocator.sleep(which, None).expect("it can sleep");
    top.settle();
    slept.asleep_bytes
}

fn wake(top: &BenchTop, which: &Which) {
    top.allocator.wake(which).expect("there is room");
    top.settle();
}

#[test]
fn each_tag_sleeps_by_itself_and_keeps_what_it_says() {
    under_each(|top| {
        let weights = region(top, "weights", Keep::Contents, 30 * MIB);
        let caches = region(top, "kv_cache", Keep::Nothing, 20 * MIB);
        let zeros = region(top, "zeros", Keep::Zeros, 3 * MIB);
        let other = top.malloc(5 * MIB);
        for (addr, size) in [(weights, 30), (caches, 20), (zeros, 3), (other, 5)] {
            write(top, addr, size * MIB, size as u8);
        }
        let held_bytes = top.device.used_bytes();
        let slept = top.allocator.sleep(&Which::tag("weights"), None).unwrap();
        assert_eq!((slept.kept_bytes, slept.plain.len()), (30 * MIB, 0));
        assert_eq!(top.device.used_bytes(), held_bytes - slept.asleep_bytes);
        assert!(slept.asleep_bytes >= 30 * MIB);
        assert_eq!(read(top, weights, 30 * MIB), [None; 3], "there is nothing behind it");
        assert_eq!(read(top, caches, 20 * MIB), [Some(20), Some(21), Some(22)]);
        sleep(top, &Which::Tags(vec!["kv_cache".into(), "zeros".into()]));
        let stats = top.allocator.sleep_stats();
        assert_eq!((stats.used_bytes, stats.kept_bytes), (53 * MIB, 30 * MIB));
        assert_eq!(top.stats().allocated_bytes.all.current as u64, 58 * MIB, "they are allocated");
        wake(top, &Which::tag("weights"));
        assert_eq!(read(top, weights, 30 * MIB), [Some(30), Some(31), Some(32)]);
        assert_eq!(read(top, zeros, 3 * MIB), [None; 3]);
        wake(top, &Which::All);
        assert_eq!(read(top, zeros, 3 * MIB), [Some(0); 3]);
        assert!(read(top, caches, 20 * MIB)[0].is_some(), "it can be used");
        assert_eq!(read(top, other, 5 * MIB), [Some(5), Some(6), Some(7)]);
        let SleepStats { asleep_bytes, kept_bytes, sleeps, generation, .. } =
            top.allocator.sleep_stats();
        assert_eq!((asleep_bytes, kept_bytes, sleeps, generation), (0, 0, 2, 2));
        assert_eq!(top.device.used_bytes(), held_bytes);
        top.free_all(&[weights, caches, zeros, other]);
        top.empty();
    });
}

#[test]
fn all_memory_sleeps_where_it_is_virtual_and_plain_segments_are_named() {
    under_each(|top| {
        let blocks: Vec<Addr> = (0..6).map(|_| top.malloc(7 * MIB)).collect();
        let small = top.malloc(700);
        for (&addr, value) in blocks.iter().zip([10, 20, 30, 40, 50, 60]) {
            write(top, addr, 7 * MIB, value);
        }
        write(top, small, 700, 70);
        // What is free between may be in the way of nothing.
        top.free(blocks[1]);
        top.free(blocks[3]);
        let wide = top.malloc(13 * MIB);
        write(top, wide, 13 * MIB, 80);
        let is_virtual = top.allocator.config().expandable_segments;
        let slept = top.allocator.sleep(&Which::All, None).unwrap();
        top.settle();
        assert_eq!(slept.plain.is_empty(), is_virtual, "{:?}", slept.plain);
        if is_virtual {
            assert_eq!(top.device.used_bytes(), 0, "nothing is left on the card");
            let next = top.malloc(2 * MIB);
            write(top, next, 2 * MIB, 90);
            top.free(next);
            top.free(wide);
            top.free(blocks[0]);
        }
        wake(top, &Which::All);
        assert_eq!(read(top, blocks[2], 7 * MIB), [Some(30), Some(31), Some(32)]);
        assert_eq!(read(top, blocks[5], 7 * MIB), [Some(60), Some(61), Some(62)]);
        assert_eq!(read(top, small, 700), [Some(70), Some(71), Some(72)]);
        if !is_virtual {
            top.free_all(&[wide, blocks[0]]);
        }
        top.free_all(&[blocks[2], blocks[4], blocks[5], small]);
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn under_tight_views_sleep_with_the_pages_that_they_show() {
    let top = BenchTop::new(MEMORY, "tight_soft:1", Policy::tight());
    let blocks: Vec<Addr> = (0..6).map(|_| top.malloc(10 * MIB)).collect();
    top.free_all(&[blocks[0], blocks[2], blocks[4]]);
    let wide = top.malloc(28 * MIB);
    write(&top, wide, 28 * MIB, 5);
    write(&top, blocks[1], 10 * MIB, 15);
    let has_view = |top: &BenchTop| top.allocator.snapshot().iter().any(|one| one.view);
    assert!(has_view(&top), "the story is about a view");
    sleep(&top, &Which::All);
    assert_eq!(top.device.used_bytes(), 0);
    assert_eq!(read(&top, wide, 28 * MIB), [None; 3]);
    wake(&top, &Which::All);
    assert_eq!(read(&top, wide, 28 * MIB), [Some(5), Some(6), Some(7)]);
    assert_eq!(read(&top, blocks[1], 10 * MIB), [Some(15), Some(16), Some(17)]);
    // Freed while it sleeps, the view goes, and the pages under it are not made again.
    sleep(&top, &Which::All);
    top.free(wide);
    wake(&top, &Which::All);
    assert!(!has_view(&top));
    assert!(top.device.used_bytes() <= 36 * MIB, "{}", top.device.used_bytes());
    assert_eq!(read(&top, blocks[1], 10 * MIB), [Some(15), Some(16), Some(17)]);
}

#[test]
fn a_block_freed_in_its_sleep_is_not_made_again_and_nobody_gets_it_meanwhile() {
    under_each(|top| {
        let [one, two] = [(); 2].map(|()| region(top, "t", Keep::Contents, 24 * MIB));
        write(top, two, 24 * MIB, 9);
        let mut slept_bytes = sleep(top, &Which::tag("t"));
        top.free(one);
        let stats = top.allocator.sleep_stats();
        assert_eq!((stats.used_bytes, stats.kept_bytes), (24 * MIB, 48 * MIB));
        let next = region(top, "t", Keep::Contents, 24 * MIB);
        assert!(Span::new(one, 24 * MIB).addr != next, "its place sleeps");
        write(top, next, 24 * MIB, 1);
        // What is awake of the tag sleeps as well now.
        slept_bytes += sleep(top, &Which::tag("t"));
        assert_eq!(top.device.used_bytes(), 0);
        wake(top, &Which::tag("t"));
        assert!(top.device.used_bytes() <= slept_bytes - 20 * MIB, "{slept_bytes}");
        assert_eq!(read(top, two, 24 * MIB), [Some(9), Some(10), Some(11)]);
        assert_eq!(read(top, next, 24 * MIB), [Some(1), Some(2), Some(3)]);
        sleep(top, &Which::tag("t"));
        top.free_all(&[two, next]);
        wake(top, &Which::tag("t"));
        assert_eq!(top.device.used_bytes(), 0, "nothing was left to wake");
        assert_eq!(top.allocator.sleep_stats().kept_bytes, 0);
    });
}

#[test]
fn a_wake_that_finds_the_card_full_says_what_is_missing_and_all_sleeps_on() {
    under_each(|top| {
        let addr = region(top, "t", Keep::Contents, 80 * MIB);
        write(top, addr, 80 * MIB, 3);
        let asleep_bytes = sleep(top, &Which::tag("t"));
        let taken = top.device.tenant_take(150 * MIB);
        let refused = top.allocator.wake(&Which::tag("t"));
        top.settle();
        let needed_bytes = asleep_bytes;
        let free_bytes = MEMORY - taken;
        let problem = SleepProblem::NoRoom { needed_bytes, free_bytes };
        assert_eq!(refused, Err(Error::Sleep(problem)));
        let stats = top.allocator.sleep_stats();
        assert_eq!((stats.asleep_bytes, stats.generation), (asleep_bytes, 0));
        top.device.tenant_give(150 * MIB);
        // What is cached gives way.
        let other = top.malloc(120 * MIB);
        top.free(other);
        wake(top, &Which::tag("t"));
        assert_eq!(read(top, addr, 80 * MIB), [Some(3), Some(4), Some(5)]);
        assert_eq!(top.allocator.sleep_stats().generation, 1);
        // The cap counts too.
        sleep(top, &Which::tag("t"));
        top.allocator.set_memory_fraction(0.2).unwrap();
        let capped = top.allocator.wake(&Which::tag("t"));
        assert!(matches!(capped, Err(Error::Sleep(SleepProblem::Capped { .. }))), "{capped:?}");
        top.allocator.set_memory_fraction(1.0).unwrap();
        wake(top, &Which::tag("t"));
    });
}

#[test]
fn a_graphs_pool_that_is_used_in_a_region_sleeps_as_a_whole_and_no_capture_begins_on_it() {
    for policy in [Policy::larder(), Policy::tight(), Policy::torch_2_13()] {
        println!("policy {policy}");
        let top = BenchTop::new(MEMORY, "", policy);
        let pool = PoolId(7, 0);
        let capture = |top: &BenchTop| {
            top.allocator.begin_pool(pool, Filter::Capture(SIDE))?;
            top.device.begin_capture(SIDE).unwrap();
            let kept = top.malloc_on(6 * MIB, SIDE);
            let scratch = top.malloc_on(4 * MIB, SIDE);
            top.free(scratch);
            top.device.end_capture(SIDE).unwrap();
            top.allocator.end_pool(pool)?;
            Ok::<_, Error>((kept, scratch))
        };
        let captured = top.allocator.region("graphs", Keep::Contents, || capture(&top));
        let (kept, scratch) = captured.unwrap().unwrap();
        // What the graph writes where nothing is allocated by now is there for the next launch.
        write(&top, kept, 6 * MIB, 1);
        write(&top, scratch, 4 * MIB, 11);
        sleep(&top, &Which::tag("graphs"));
        assert_eq!(top.device.used_bytes(), 0);
        let refused = top.allocator.begin_pool(pool, Filter::Capture(SIDE));
        assert_eq!(refused, Err(Error::Pool { pool, problem: PoolProblem::Asleep }));
        let refused = top.allocator.checkpoint_pool(pool).map(drop);
        assert_eq!(refused, Err(Error::Pool { pool, problem: PoolProblem::Asleep }));
        wake(&top, &Which::Pool(pool));
        assert_eq!(read(&top, kept, 6 * MIB), [Some(1), Some(2), Some(3)]);
        assert_eq!(read(&top, scratch, 4 * MIB), [Some(11), Some(12), Some(13)]);
        // The graph is gone while its pool sleeps: nothing of it is made again.
        sleep(&top, &Which::tag("graphs"));
        top.allocator.drop_pool_use(pool).unwrap();
        top.free(kept);
        top.empty();
        assert_eq!(top.allocator.pool_uses(pool), None, "it is forgotten");
        wake(&top, &Which::All);
        assert_eq!((top.device.used_bytes(), top.allocator.sleep_stats().kept_bytes), (0, 0));
    }
}

#[test]
fn nothing_sleeps_or_wakes_while_a_capture_is_on() {
    let top = BenchTop::larder(MEMORY, "");
    let addr = region(&top, "t", Keep::Contents, 4 * MIB);
    top.allocator.begin_pool(PoolId(1, 0), Filter::Capture(SIDE)).unwrap();
    top.device.begin_capture(SIDE).unwrap();
    let asleep = top.allocator.sleep(&Which::All, None).map(drop);
    assert_eq!(asleep, Err(Error::Sleep(SleepProblem::Captured)));
    top.device.end_capture(SIDE).unwrap();
    top.allocator.end_pool(PoolId(1, 0)).unwrap();
    sleep(&top, &Which::All);
    wake(&top, &Which::All);
    top.free(addr);
}

#[test]
fn work_that_is_under_way_is_waited_for_and_what_waited_for_it_is_free() {
    under_each(|top| {
        let addr = region(top, "t", Keep::Contents, 8 * MIB);
        top.record(addr, SIDE);
        top.device.issue(SIDE);
        top.free(addr);
        let slept = top.allocator.sleep(&Which::tag("t"), None).unwrap();
        top.settle();
        assert_eq!((slept.asleep_bytes, slept.kept_bytes), (0, 0), "it was freed");
        assert_eq!(top.device.used_bytes(), 0);
    });
}

#[test]
fn regions_are_of_their_threads_can_be_nested_and_left() {
    let top = BenchTop::larder(MEMORY, "");
    let tag_of = |addr: Addr| {
        let segments = top.allocator.snapshot().into_iter();
        let here = segments.filter(|segment| segment.span.contains(addr));
        let pool = here.map(|segment| segment.pool).next().flatten();
        let tags = top.allocator.tags().into_iter();
        tags.filter(|tag| Some(tag.pool) == pool).map(|tag| tag.name).next()
    };
    let keep = Keep::Contents;
    top.allocator.begin_region("a", keep).unwrap();
    let in_a = top.malloc(3 * MIB);
    top.allocator.begin_region("b", keep).unwrap();
    let in_b = top.malloc(3 * MIB);
    top.allocator.begin_region("a", keep).unwrap();
    let again_in_a = top.malloc(3 * MIB);
    top.allocator.leave_regions();
    let in_none = top.malloc(3 * MIB);
    top.allocator.return_to_regions().unwrap();
    let elsewhere = thread::scope(|scope| {
        let asked = scope.spawn(|| top.allocator.malloc(3 * MIB, MAIN).unwrap());
        asked.join().unwrap()
    });
    top.allocator.end_region("a").unwrap();
    let back_in_b = top.malloc(3 * MIB);
    for (addr, tag) in [
        (in_a, Some("a")),
        (in_b, Some("b")),
        (again_in_a, Some("a")),
        (in_none, None),
        (elsewhere, None),
        (back_in_b, Some("b")),
    ] {
        assert_eq!(tag_of(addr).as_deref(), tag, "{addr}");
    }
    top.allocator.end_region("b").unwrap();
    top.allocator.end_region("a").unwrap();
    let not_open = SleepProblem::NotOpen(Some("a".to_owned()));
    assert_eq!(top.allocator.end_region("a"), Err(Error::Sleep(not_open)));
    let left = top.allocator.return_to_regions();
    assert_eq!(left, Err(Error::Sleep(SleepProblem::NotOpen(None))));
    let unknown = top.allocator.sleep(&Which::tag("c"), None).map(drop);
    assert_eq!(unknown, Err(Error::Sleep(SleepProblem::UnknownTag("c".to_owned()))));
    let nameless = top.allocator.begin_region("", keep);
    assert_eq!(nameless, Err(Error::Sleep(SleepProblem::NoName)));
}

#[test]
fn trackers_hear_of_each_page_that_goes_or_comes() {
    let top = BenchTop::new(MEMORY, "tight_soft:1", Policy::tight());
    let told = Arc::new(Mutex::new(Vec::new()));
    let blocks: Vec<Addr> = (0..4).map(|_| top.malloc(10 * MIB)).collect();
    top.free_all(&[blocks[0], blocks[2]]);
    let wide = top.malloc(18 * MIB);
    top.empty();
    let heard = Arc::clone(&told);
    top.allocator.on_event(move |event| {
        let span = (event.addr, event.size_bytes);
        heard.lock().unwrap().push((format!("{:?}", event.action), span));
    });
    sleep(&top, &Which::All);
    let gone: Vec<_> = told.lock().unwrap().drain(..).collect();
    let bytes = |told: &[(String, (u64, u64))], action: &str| -> u64 {
        told.iter().filter(|one| one.0 == action).map(|one| one.1.1).sum()
    };
    assert!(bytes(&gone, "SegmentUnmap") >= 38 * MIB + 18 * MIB, "at home, and in the view");
    wake(&top, &Which::All);
    let come: Vec<_> = told.lock().unwrap().drain(..).collect();
    assert_eq!(bytes(&come, "SegmentMap"), bytes(&gone, "SegmentUnmap"));
    top.free(wide);
}

#[test]
fn a_keeper_that_has_no_room_or_panics_leaves_all_awake() {
    struct Poor;
    impl Keeper for Poor {
        fn keep(&self, _size_bytes: u64) -> Result<Box<dyn Kept>, KeeperError> {
            Err("it is poor".into())
        }
    }
    struct Small;
    impl Keeper for Small {
        fn keep(&self, size_bytes: u64) -> Result<Box<dyn Kept>, KeeperError> {
            PlainKeeper.keep(size_bytes - 1)
        }
    }
    let top = BenchTop::larder(MEMORY, "");
    let addr = region(&top, "t", Keep::Contents, 4 * MIB);
    write(&top, addr, 4 * MIB, 1);
    let keepers: [Arc<dyn Keeper>; 2] = [Arc::new(Poor), Arc::new(Small)];
    for (keeper, said) in keepers.into_iter().zip(["it is poor", "it gave 4194303 bytes of room"]) {
        top.allocator.set_keeper(keeper);
        let refused = top.allocator.sleep(&Which::tag("t"), None).map(drop);
        let (size_bytes, said) = (4 * MIB, said.into());
        assert_eq!(refused, Err(Error::Sleep(SleepProblem::NoKeep { size_bytes, said })));
        assert_eq!(read(&top, addr, 4 * MIB), [Some(1), Some(2), Some(3)]);
    }
    // Who keeps nothing needs none.
    top.allocator.sleep(&Which::tag("t"), Some(Keep::Zeros)).unwrap();
    wake(&top, &Which::tag("t"));
    assert_eq!(read(&top, addr, 4 * MIB), [Some(0); 3]);
}

#[test]
fn a_device_without_virtual_memory_names_all_that_stays() {
    let options = SimOptions::default().memory_bytes(MEMORY).virtual_memory(false);
    let top = BenchTop::with(options, "", Policy::larder());
    let addr = region(&top, "t", Keep::Contents, 4 * MIB);
    write(&top, addr, 4 * MIB, 1);
    let slept = top.allocator.sleep(&Which::All, None).unwrap();
    assert_eq!((slept.asleep_bytes, slept.plain.len()), (0, 1));
    wake(&top, &Which::All);
    assert_eq!(read(&top, addr, 4 * MIB), [Some(1), Some(2), Some(3)]);
}

#[test]
fn what_is_kept_can_be_read_while_it_sleeps() {
    let top = BenchTop::larder(MEMORY, "");
    let addr = region(&top, "t", Keep::Contents, 4 * MIB);
    write(&top, addr, 4 * MIB, 1);
    assert_eq!(top.allocator.kept_contents(addr), Ok(None), "it is awake");
    sleep(&top, &Which::tag("t"));
    let kept = top.allocator.kept_contents(addr).unwrap().expect("it is kept");
    assert_eq!((kept.len() as u64, kept[0], kept[kept.len() - 1]), (4 * MIB, 1, 3));
}

/// Puts everything to sleep and wakes it, with one planned fault. Whether the fault struck.
fn sleep_and_wake_with(policy: &Policy, kind: CallKind, number: u64, fault: Fault) -> bool {
    let top = BenchTop::new(MEMORY, "tight_soft:1,expandable_segments:True", policy.clone());
    let blocks: Vec<Addr> = (0..4).map(|_| top.malloc(9 * MIB)).collect();
    let kept = region(&top, "t", Keep::Contents, 20 * MIB);
    let zeros = region(&top, "z", Keep::Zeros, 5 * MIB);
    top.free_all(&[blocks[0], blocks[2]]);
    let wide = top.malloc(16 * MIB);
    top.record(blocks[3], SIDE);
    top.device.issue(SIDE);
    for (addr, value) in [(blocks[1], 1), (kept, 11), (wide, 21)] {
        write(&top, addr, 9 * MIB, value);
    }
    let all_awake = |top: &BenchTop| {
        assert_eq!(top.allocator.check(), Ok(()));
        assert_eq!(top.allocator.sleep_stats().asleep_bytes, 0);
        for (addr, value) in [(blocks[1], 1), (kept, 11), (wide, 21)] {
            let expected = [value, value + 1, value + 2].map(Some);
            assert_eq!(read(top, addr, 9 * MIB), expected, "{addr}");
        }
    };
    let failed = top.device.calls().failed;
    top.device.set_faults(FaultPlan::new(0).fail_nth(kind, number, fault));
    if top.allocator.sleep(&Which::All, None).is_err() {
        all_awake(&top);
        top.allocator.sleep(&Which::All, None).expect("the fault is over");
    }
    assert_eq!(top.allocator.check(), Ok(()));
    let asleep = top.allocator.sleep_stats();
    assert_eq!((asleep.used_bytes, asleep.generation), (2 * 9 * MIB + 41 * MIB, 0));
    let woken = top.allocator.wake(&Which::All);
    if woken.is_err() {
        assert_eq!(top.allocator.check(), Ok(()));
        assert_eq!(top.allocator.sleep_stats(), asleep, "all sleeps on");
        top.allocator.wake(&Which::All).expect("the fault is over");
    }
    let struck = top.device.calls().failed > failed;
    top.device.set_faults(FaultPlan::default());
    all_awake(&top);
    assert_eq!(read(&top, zeros, 5 * MIB), [Some(0); 3]);
    // What the device refused to take back goes when the cache is emptied next.
    top.free_all_quietly(&[blocks[1], blocks[3], kept, zeros, wide]);
    top.device.sync(SIDE);
    top.allocator.sleep(&Which::All, None).expect("nothing is left to sleep");
    top.empty();
    assert_eq!(top.device.used_bytes(), 0);
    struck
}

#[test]
fn whatever_call_fails_a_sleep_or_a_wake_is_whole_and_nothing_is_lost() {
    for policy in [Policy::larder(), Policy::tight()] {
        let mut struck = 0;
        for kind in CallKind::ALL {
            for number in 1.. {
                let faults = [Fault::Other, Fault::OutOfMemory];
                let fault = faults[number as usize % 2];
                if !sleep_and_wake_with(&policy, kind, number, fault) {
                    break;
                }
                struck += 1;
            }
        }
        assert!(struck > 25, "{policy}: {struck} faults struck");
    }
}
