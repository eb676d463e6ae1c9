//! The floor: who owns the card may tell the policy tight how much it may hold before it is
//! sparing. Below that, streams keep out of each other's memory.

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::types::{GIB, MIB, StreamId};
use larder_core::{Addr, Policy};

const FLOOR_BYTES: u64 = 200 * MIB;

fn with_floor() -> BenchTop {
    BenchTop::new(4 * GIB, "tight_floor_mb:200", Policy::tight())
}

#[test]
fn below_the_floor_a_stream_takes_new_pages_rather_than_wait_for_another() {
    let top = with_floor();
    let addr = top.malloc(100 * MIB);
    top.free(addr);
    let follows = top.device.calls().follow_event;
    let side = top.malloc_on(100 * MIB, SIDE);
    assert_ne!(side, addr);
    assert_eq!(top.device.calls().follow_event, follows, "it waits for nobody");
    assert_eq!(top.device.used_bytes(), FLOOR_BYTES);
    assert_eq!(top.malloc(100 * MIB), addr, "what it freed is still its own");
}

#[test]
fn what_would_pass_the_floor_is_taken_from_others() {
    let top = with_floor();
    let addr = top.malloc(150 * MIB);
    top.free(addr);
    let (pages, follows) = (top.device.page_count(), top.device.calls().follow_event);
    assert_eq!(top.malloc_on(100 * MIB, SIDE), addr);
    assert_eq!(top.device.calls().follow_event, follows + 1);
    assert_eq!(top.device.page_count(), pages, "no page was made");
}

#[test]
fn what_nobody_has_to_be_waited_for_is_taken_before_pages_are_made() {
    let top = with_floor();
    // A piece of its page is in use, so that the page stays.
    let kept = top.malloc_on(512, SIDE);
    let addr = top.malloc_on(MIB, SIDE);
    top.allocator.forget_stream(SIDE).unwrap();
    top.device.destroy_stream(SIDE);
    top.free(addr);
    let calls = top.device.total_calls();
    assert_eq!(top.malloc(MIB), addr);
    assert_eq!(top.device.total_calls(), calls);
    top.free_all(&[kept, addr]);
}

#[test]
fn on_a_full_device_the_floor_is_none() {
    let top = BenchTop::new(128 * MIB, "tight_floor_mb:200", Policy::tight());
    let addr = top.malloc(100 * MIB);
    top.free(addr);
    assert_eq!(top.malloc_on(100 * MIB, SIDE), addr, "there are no other pages");
    assert_eq!(top.stats().num_ooms, 0);
}

/// Two programs that go round, each on a stream of its own, and take turns in ever another order:
/// neither finds its places taken by the other, so that nothing is waited for, and no call is made
/// once both have gone round.
#[test]
fn programs_that_race_below_the_floor_keep_their_places() {
    let waits_of = |settings: &str| {
        let top = BenchTop::new(4 * GIB, settings, Policy::tight());
        let mut racers = [MAIN, SIDE].map(|stream| Racer { stream, at: 0, live: Vec::new() });
        let mut turn = |turns: usize| {
            for index in 0..turns {
                // Neither is ahead for long, and they never meet in the same way again.
                racers[(index * index / 7 + index / 3) % 2].step(&top);
            }
        };
        turn(8 * Racer::ROUND_STEPS);
        let before = (top.device.calls().follow_event, top.device.total_calls());
        turn(8 * Racer::ROUND_STEPS);
        (top.device.calls().follow_event - before.0, top.device.total_calls() - before.1)
    };
    assert_eq!(waits_of("tight_floor_mb:1000"), (0, 0));
    assert!(waits_of("").0 > 0, "without it they take each other's memory");
}

/// A program that goes round: it takes blocks of growing sizes, and gives them all back.
struct Racer {
    stream: StreamId,
    at: usize,
    live: Vec<Addr>,
}

impl Racer {
    const BLOCKS: usize = 20;
    const ROUND_STEPS: usize = 2 * Self::BLOCKS;

    fn step(&mut self, top: &BenchTop) {
        if self.at < Self::BLOCKS {
            self.live.push(top.malloc_on((self.at as u64 + 1) * MIB, self.stream));
        } else if let Some(addr) = self.live.pop() {
            top.free(addr);
        }
        self.at = (self.at + 1) % Self::ROUND_STEPS;
    }
}
