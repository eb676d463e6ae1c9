//! Fallow: under the policy tight a program that goes round leaves what it gives back as it is,
//! neither merged nor in the index. That changes when blocks merge, and never where anything is
//! put.

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::heap::states::BlockState;
use larder_core::record::event::Action;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Error, Policy, StreamId};
use larder_sim::random::Random;

/// So many rounds the program finds its way, and then so many more.
const CALM_ROUNDS: usize = 6;
const ROUNDS: usize = 20;

/// One thing that a program does, in every round.
#[derive(Clone, Copy)]
enum Deed {
    Malloc { name: usize, size_bytes: u64, stream: StreamId },
    Free { name: usize },
}

/// A round of a program: blocks of all sizes on one stream or two, of which some live on to the
/// next round.
fn round(random: &mut Random, deeds: usize, streams: u64) -> Vec<Deed> {
    let (mut deed, mut live, mut names) = (Vec::new(), Vec::new(), 0);
    while deed.len() < deeds {
        if live.is_empty() || random.below(100) < 52 {
            let size_bytes = match random.below(3) {
                0 => random.between(1, 40 * 512),
                1 => random.between(1, MIB),
                _ => random.between(1, 24 * MIB),
            };
            let stream = StreamId(random.below(5) / 4 * (streams - 1));
            deed.push(Deed::Malloc { name: names, size_bytes, stream });
            live.push(names);
            names += 1;
        } else {
            // Mostly the last that came, as in programs.
            let last = live.len() - 1;
            let at =
                if random.below(3) > 0 { last } else { random.below(live.len() as u64) as usize };
            deed.push(Deed::Free { name: live.remove(at) });
        }
    }
    deed.extend(live.into_iter().rev().map(|name| Deed::Free { name }));
    deed
}

/// A round in which some frees come later: requests alone are remembered, and what is free is
/// another place then.
fn put_off_frees(random: &mut Random, program: &[Deed]) -> Vec<Deed> {
    let mut program = program.to_vec();
    for _ in 0..=random.below(12) {
        let at = random.below(program.len() as u64) as usize;
        if let Deed::Free { .. } = program[at] {
            let end = (at + 1 + random.below(30) as usize).min(program.len());
            program[at..end].rotate_left(1);
        }
    }
    program
}

/// An allocator and what a program has of it.
struct Side {
    top: BenchTop,
    live: Vec<Option<Addr>>,
    /// What was handed out, in order.
    handed_out: Vec<Addr>,
    /// Whether everything is merged after each deed.
    merges: bool,
}

impl Side {
    fn new(merges: bool) -> Side {
        let top = BenchTop::new(8 * GIB, "", Policy::tight());
        Side { top, live: Vec::new(), handed_out: Vec::new(), merges }
    }

    fn malloc(&mut self, size_bytes: u64, stream: StreamId) -> Addr {
        let addr = self.top.malloc_on(size_bytes, stream);
        self.handed_out.push(addr);
        addr
    }

    /// Where blocks lie, what they are and what was asked for them.
    fn blocks(&self) -> Vec<BlockState> {
        let segments = self.top.allocator.snapshot().into_iter();
        segments.flat_map(|segment| segment.blocks).collect()
    }

    fn go(&mut self, deed: Deed) {
        match deed {
            Deed::Malloc { name, size_bytes, stream } => {
                let addr = self.malloc(size_bytes, stream);
                self.live.resize(self.live.len().max(name + 1), None);
                self.live[name] = Some(addr);
            }
            Deed::Free { name } => self.top.free(self.live[name].take().expect("it is live")),
        }
        if self.merges {
            self.top.configure_quietly("");
        }
    }
}

fn compare(seed: u64) {
    let mut random = Random::new(seed);
    let deeds = 40 + random.below(200) as usize;
    // With one stream a request is put elsewhere as soon as what is free begins elsewhere.
    let program = round(&mut random, deeds, 1 + seed % 2);
    let mut sides = [false, true].map(Side::new);
    for at in 0..ROUNDS {
        // Now and then something comes between that no round has.
        let is_calm = at < CALM_ROUNDS;
        let stray_at =
            (!is_calm && at % 5 == 4).then(|| random.below(program.len() as u64) as usize);
        let (stray_bytes, looks) = (random.between(1, 8 * MIB), random.below(3) == 0);
        let program = if !is_calm && at % 3 > 0 {
            put_off_frees(&mut random, &program)
        } else {
            program.clone()
        };
        for (step, &deed) in program.iter().enumerate() {
            for side in &mut sides {
                side.go(deed);
                if stray_at == Some(step) {
                    let addr = side.malloc(stray_bytes, StreamId(0));
                    side.top.free(addr);
                }
                if looks && step % 7 == 0 {
                    let checked = side.top.allocator.check();
                    assert_eq!(checked, Ok(()), "seed {seed}, round {at}, step {step}");
                }
            }
            let [one, other] = &sides;
            assert_eq!(one.handed_out, other.handed_out, "seed {seed}, round {at}, step {step}");
            if looks && step % 7 == 0 {
                let [one, other] = [one, other].map(Side::blocks);
                assert_eq!(one, other, "seed {seed}, round {at}, step {step}");
            }
        }
        for side in &mut sides {
            side.handed_out.clear();
        }
        if at == 12 && random.below(2) == 0 {
            for side in &sides {
                side.top.empty();
            }
        }
    }
    let calls = sides.each_ref().map(|side| side.top.device.total_calls());
    assert_eq!(calls[0], calls[1], "seed {seed}: they wait for each other's streams as often");
    let [one, other] = sides.map(|side| side.top.stats());
    assert_eq!(one.reserved_bytes, other.reserved_bytes, "seed {seed}");
    assert_eq!(one.active_bytes, other.active_bytes, "seed {seed}");
}

#[test]
fn what_lies_fallow_is_handed_out_as_if_it_were_merged() {
    (1..=120).for_each(compare);
}

/// So many blocks that some share a hint: those without one are found along their neighbours,
/// because a round does not note where they start.
#[test]
fn a_round_finds_every_block_again_however_many_there_are() {
    let top = BenchTop::new(8 * GIB, "", Policy::tight());
    let allocator = &top.allocator;
    let mut random = Random::new(1);
    // Other borders in the same memory, so that every block is cut anew.
    let [many, fewer]: [Vec<u64>; 2] =
        [6000, 4500].map(|blocks| (0..blocks).map(|_| random.between(1, 40 * 512)).collect());
    for at in 0..CALM_ROUNDS {
        for sizes in [&many, &fewer] {
            let malloc = |&size_bytes| allocator.malloc(size_bytes, StreamId(0)).unwrap();
            let live: Vec<Addr> = sizes.iter().map(malloc).collect();
            let freed: Result<Vec<()>, Error> =
                live.iter().map(|&addr| allocator.free(addr)).collect();
            assert!(freed.is_ok(), "round {at}: {freed:?}");
            let gone = live[0];
            assert_eq!(allocator.free(gone), Err(Error::UnknownAddress(gone)), "round {at}");
        }
    }
    assert_eq!(allocator.check(), Ok(()));
    assert_eq!(top.stats().active_bytes.all.current, 0);
}

/// Two streams hand a block to each other, in each round for one size after the other.
#[test]
fn what_was_another_streams_is_waited_for_only_where_it_still_is() {
    let top = BenchTop::new(8 * GIB, "", Policy::tight());
    let sizes: Vec<u64> = (20..40).map(|size| size * MIB).collect();
    let follows = || top.device.calls().follow_event;
    let turn = |size_bytes, stream| {
        let addr = top.malloc_on(size_bytes, stream);
        top.free(addr);
        addr
    };
    for _ in 0..CALM_ROUNDS {
        for &size_bytes in &sizes {
            let addr = turn(size_bytes, MAIN);
            assert_eq!(turn(size_bytes, SIDE), addr);
        }
    }
    let before = follows();
    for &size_bytes in &sizes {
        assert_eq!(turn(size_bytes, MAIN), turn(size_bytes, SIDE));
    }
    assert_eq!(follows() - before, 2 * sizes.len() as u64, "each waits for the other");

    let before = follows();
    let alone: Vec<Addr> = sizes.iter().map(|&size_bytes| turn(size_bytes, SIDE)).collect();
    assert!(follows() - before <= 1, "it was its own but for the rest of what the main stream had");

    let before = follows();
    for (&size_bytes, &addr) in sizes.iter().zip(&alone) {
        let kept = top.malloc(size_bytes);
        assert_eq!(kept, addr, "the main stream's place is the same");
        let elsewhere = turn(size_bytes, SIDE);
        assert!(elsewhere >= kept.offset(size_bytes), "it is in use");
        top.free(kept);
    }
    assert!(follows() > before, "the main stream waited for what the other had alone");
}

/// Who keeps a history is told of a block all the same, wherever it was looked for.
#[test]
fn a_request_that_has_lost_its_place_is_remembered() {
    let top = BenchTop::new(8 * GIB, "", Policy::tight());
    let sizes: Vec<u64> = (20..40).map(|size| size * MIB).collect();
    let spare = top.malloc_on(100 * MIB, SIDE);
    for _ in 0..CALM_ROUNDS {
        for &size_bytes in &sizes {
            for stream in [MAIN, SIDE] {
                top.free(top.malloc_on(size_bytes, stream));
            }
        }
    }
    top.free(spare);
    top.allocator.record_history(HistoryOptions::default()).expect("a ring for it");
    let mut handed_out = Vec::new();
    for &size_bytes in &sizes {
        // The other stream is told to have what the main stream has not given back, and gets a part
        // of the spare block.
        let blocks = [MAIN, SIDE].map(|stream| top.malloc_on(size_bytes, stream));
        handed_out.extend(blocks);
        top.free_all(&blocks);
    }
    let trace = top.allocator.take_snapshot(SnapshotOptions::default()).trace;
    let told = trace.iter().filter(|entry| entry.action == Action::Alloc);
    assert_eq!(told.map(|entry| Addr(entry.addr)).collect::<Vec<_>>(), handed_out);
}
