//! Annexing: under the policy tight a stream that waits for another makes its own what that one has
//! free beside its own, so that what several streams freed serves as if it were one's.

use crate::bench_top::{BenchTop, FAR, MAIN, SIDE};
use larder_core::types::{GIB, MIB, StreamId};
use larder_core::{Addr, Policy};
use larder_sim::random::Random;

fn tight() -> BenchTop {
    BenchTop::new(16 * GIB, "", Policy::tight())
}

/// Blocks of 20 MiB side by side, by turns the main stream's and the other's.
fn by_turns(top: &BenchTop, count: usize) -> Vec<Addr> {
    let blocks: Vec<Addr> = (0..count).map(|_| top.malloc(20 * MIB)).collect();
    let every_second: Vec<Addr> = blocks.iter().copied().skip(1).step_by(2).collect();
    top.free_all(&every_second);
    for &addr in &every_second {
        assert_eq!(top.malloc_on(20 * MIB, SIDE), addr, "it takes them from the main stream");
    }
    blocks
}

#[test]
fn what_lies_beside_is_waited_for_once_and_then_ones_own() {
    let top = tight();
    let blocks = by_turns(&top, 11);
    let (freed, late) = (&blocks[..7], blocks[9]);
    top.free_all(freed);
    let follows = || top.device.calls().follow_event;
    let before = follows();
    assert_eq!(top.malloc(30 * MIB), blocks[0], "one of its own, and a part of the other stream's");
    assert_eq!(follows(), before + 1);
    // The other stream frees more, so that whoever wants something of it has to wait again.
    top.free(late);
    assert_eq!(top.malloc(110 * MIB), blocks[0].offset(30 * MIB));
    assert_eq!(follows(), before + 1, "what lay beside its own is its own by now");
    top.allocator.check().expect("every invariant holds");
}

#[test]
fn what_lies_apart_stays_with_the_other() {
    let top = tight();
    let blocks = by_turns(&top, 6);
    // Of the other's two blocks one lies beside the main stream's, and one between blocks in use.
    top.free_all(&[blocks[0], blocks[1], blocks[3]]);
    assert_eq!(top.malloc(30 * MIB), blocks[0]);
    let follows = top.device.calls().follow_event;
    assert_eq!(top.malloc_on(20 * MIB, SIDE), blocks[3]);
    assert_eq!(top.device.calls().follow_event, follows, "it is still its own");
}

/// Who waited for a stream has not waited for what that one took from others since.
#[test]
fn a_third_stream_waits_for_what_was_annexed() {
    let top = tight();
    let blocks = by_turns(&top, 6);
    top.free_all(&[blocks[0], blocks[4]]);
    assert_eq!(top.malloc_on(20 * MIB, FAR), blocks[0], "it waits for the main stream");
    top.device.issue(SIDE);
    let last_use = top.device.moment(SIDE);
    top.free_all(&[blocks[3], blocks[5]]);
    // The main stream frees nothing from here on: what comes to be free of its own is what it
    // annexes.
    assert_eq!(top.malloc(30 * MIB), blocks[3], "its own block and both of the other's");
    assert!(top.device.comes_after(MAIN, last_use) && !top.device.comes_after(FAR, last_use));
    assert_eq!(top.malloc_on(30 * MIB, FAR), blocks[3].offset(30 * MIB), "what is left of them");
    assert!(top.device.comes_after(FAR, last_use));
}

/// How often pages are mapped while blocks of many sizes come and go in ever another order, on so
/// many streams: in the second half of it, when views have cost what they may.
fn maps_of(streams: &[StreamId], seed: u64) -> u64 {
    let top = BenchTop::new(16 * GIB, "tight_views_percent:0.2", Policy::tight());
    let mut random = Random::new(seed);
    let mut live: Vec<Addr> = Vec::new();
    let mut half = || {
        for _ in 0..2000 {
            if live.len() == 80 {
                let gone = random.below(live.len() as u64) as usize;
                top.free(live.swap_remove(gone));
            }
            let stream = streams[random.below(streams.len() as u64) as usize];
            let size_bytes = MIB << random.below(6);
            live.push(top.malloc_on(size_bytes + random.below(size_bytes), stream));
        }
        top.device.calls().map
    };
    let before = half();
    let maps = half() - before;
    top.allocator.check().expect("every invariant holds");
    maps
}

/// Two streams whose memory lies in between each other's make few more views than one: without
/// absorbing they would make many times as many.
#[test]
fn streams_that_race_make_hardly_more_views_than_one() {
    let seed = 3;
    let [one, two] = [&[MAIN][..], &[MAIN, SIDE]].map(|streams| maps_of(streams, seed));
    assert!(
        one > 500 && 2 * two < 5 * one,
        "seed {seed}: {one} pages mapped for a stream, {two} for two"
    );
}
