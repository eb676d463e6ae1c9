//! Views on real memory: programs that repeat themselves, nearly, with millions of blocks under the
//! policy tight. Every block has a pattern of its own, written by the GPU when it is handed out and
//! compared by the GPU before it is freed, many with one launch; graphs replay meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cudarc::driver::CudaStream;
use larder_core::Allocator;
use larder_core::error::Error;
use larder_core::types::{Addr, GIB, KIB, MIB};
use larder_sim::random::Random;

use crate::graphs::capture_and_replay;
use crate::rig::{Explain, Rig, SPANS, Spans, id_of};

const STREAMS: usize = 4;
/// So many batches of blocks are live at once within a step, and beyond it.
const BATCHES_MAX: usize = 24;
const KEPT_MAX: usize = 12;
/// So many kinds of steps come again and again.
const VARIETY: u64 = 5;

/// One round: how many threads, the memory that they may use, and how many blocks all of them take.
struct Round {
    threads: u64,
    cap_bytes: Option<u64>,
    blocks: u64,
}

const ROUNDS: &[Round] = &[
    Round { threads: 1, cap_bytes: None, blocks: 7_000_000 },
    Round { threads: 4, cap_bytes: None, blocks: 2_500_000 },
    Round { threads: 2, cap_bytes: Some(4 * GIB), blocks: 600_000 },
];

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    // In short few blocks, and small ones.
    let part = if short { 64 } else { 1 };
    let mut sums = Sums::default();
    for (index, round) in ROUNDS.iter().enumerate() {
        let what = format!("round {index}");
        let blocks = if short { 1_500 } else { round.blocks };
        sums.add(play(rig, round, blocks / round.threads, part).or_say(&what)?);
        rig.dismiss_streams();
        rig.expect_none_wrong(&what)?;
    }
    let Sums { blocks, refused, replays, ranges } = sums;
    Ok(format!(
        "{blocks} blocks, {refused} refused for want of memory, {ranges} ranges of addresses at \
         once, {replays} graphs captured and replayed meanwhile, 0 words wrong"
    ))
}

/// What was done.
#[derive(Clone, Copy, Default)]
struct Sums {
    blocks: u64,
    refused: u64,
    replays: u64,
    /// Homes and views, the most at once.
    ranges: usize,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.blocks += other.blocks;
        self.refused += other.refused;
        self.replays += other.replays;
        self.ranges = self.ranges.max(other.ranges);
    }
}

fn play(rig: &Rig, round: &Round, blocks: u64, part: u64) -> Result<Sums, String> {
    let streams: Vec<_> =
        (0..round.threads).map(|_| rig.streams(STREAMS)).collect::<Result<_, _>>()?;
    let captured = rig.streams(2)?;
    let allocator = Arc::new(rig.allocator("policy:tight")?);
    if let Some(cap_bytes) = round.cap_bytes {
        let total_bytes = allocator.memory_info().or_say("memory")?.total_bytes;
        let fraction = (cap_bytes / part) as f64 / total_bytes as f64;
        allocator.set_memory_fraction(fraction).or_say("a cap")?;
    }
    // Under a cap a capture may find no memory, which would end it in the middle.
    let stop = AtomicBool::new(round.cap_bytes.is_some());
    let mut sums = Sums::default();
    thread::scope(|scope| {
        let (allocator, stop) = (&allocator, &stop);
        let replayer = scope.spawn(move || replay(rig, allocator, &captured, (stop, part)));
        let mut players = Vec::new();
        for (number, streams) in streams.iter().enumerate() {
            let player = Player {
                rig,
                allocator,
                streams,
                part,
                chance: Random::new(1000 + number as u64),
                kept: VecDeque::new(),
                sums: Sums::default(),
            };
            players.push(scope.spawn(move || player.play(blocks)));
        }
        let panicked = || Err("a thread panicked".to_owned());
        let mut result = Ok(());
        for player in players {
            let played = player.join().unwrap_or_else(|_| panicked());
            result = result.and(played.map(|done| sums.add(done)));
        }
        stop.store(true, Ordering::Relaxed);
        let replayed = replayer.join().unwrap_or_else(|_| Err("the replays panicked".to_owned()));
        result.and(replayed.map(|count| sums.replays += count))
    })?;
    allocator.check().or_say("a check")?;
    allocator.empty_cache().or_say("emptying the cache")?;
    let stats = allocator.stats();
    let (live, held) = (stats.allocation.all.current, stats.reserved_bytes.all.current);
    if live != 0 || held != 0 {
        return Err(format!("at the end {live} blocks are live and {held} bytes are held"));
    }
    Ok(sums)
}

/// Graphs are captured and replayed until it is told to stop; how many.
fn replay(
    rig: &Rig,
    allocator: &Arc<Allocator>,
    streams: &[Arc<CudaStream>],
    (stop, part): (&AtomicBool, u64),
) -> Result<u64, String> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let both = [&streams[0], &streams[1]];
        capture_and_replay(rig, allocator, both, (200, 4 * MIB / part))?;
        count += 1;
    }
    Ok(count)
}

/// Blocks that were taken together, on one stream, with their patterns.
struct Batch {
    stream: usize,
    blocks: Vec<(Addr, u64, u32)>,
}

/// One thread with streams of its own.
struct Player<'a> {
    rig: &'a Rig,
    allocator: &'a Allocator,
    streams: &'a [Arc<CudaStream>],
    part: u64,
    /// Where a step differs from the last of its kind.
    chance: Random,
    /// Batches that outlive their step.
    kept: VecDeque<Batch>,
    sums: Sums,
}

impl Player<'_> {
    fn play(mut self, blocks: u64) -> Result<Sums, String> {
        let mut step = 0;
        while self.sums.blocks < blocks {
            self.step(step % VARIETY).or_say(&format!("step {step}"))?;
            self.sums.ranges = self.sums.ranges.max(self.rig.device.held().ranges);
            step += 1;
            // Keeps the queue of the GPU short.
            self.streams[0].synchronize().or_say("waiting for a stream")?;
        }
        while let Some(batch) = self.kept.pop_front() {
            self.release(batch, false)?;
        }
        Ok(self.sums)
    }

    /// One step: what it does is the same each time but for a few of its sizes, now and then.
    fn step(&mut self, kind: u64) -> Result<(), String> {
        let mut script = Random::new(kind);
        let changed = self.chance.chance(0.1);
        let mut live = Vec::new();
        for _ in 0..120 {
            if live.len() < BATCHES_MAX && script.chance(0.6) {
                let stream = script.below(STREAMS as u64) as usize;
                let sizes: Vec<u64> =
                    (0..script.between(1, SPANS as u64))
                        .map(|_| size_bytes(&mut script) / self.part)
                        .map(|bytes| {
                            if changed { bytes + bytes * self.chance.below(5) / 100 } else { bytes }
                        })
                        .map(|bytes| (bytes / 4 * 4).max(4))
                        .collect();
                live.push(self.take(stream, &sizes)?);
            } else if !live.is_empty() {
                let batch = live.swap_remove(script.below(live.len() as u64) as usize);
                self.release(batch, script.chance(0.1))?;
            }
        }
        for batch in live {
            if self.chance.chance(0.05) {
                self.kept.push_back(batch);
            } else {
                self.release(batch, false)?;
            }
        }
        if self.kept.len() > KEPT_MAX {
            let oldest = self.kept.pop_front();
            oldest.map_or(Ok(()), |batch| self.release(batch, false))?;
        }
        Ok(())
    }

    fn take(&mut self, stream: usize, sizes: &[u64]) -> Result<Batch, String> {
        let cuda = &self.streams[stream];
        let mut blocks = Vec::with_capacity(sizes.len());
        for &size_bytes in sizes {
            match self.allocator.malloc(size_bytes, id_of(cuda)) {
                Ok(addr) => blocks.push((addr, size_bytes, self.rig.seed())),
                Err(Error::OutOfMemory(_)) => self.sums.refused += 1,
                Err(error) => return Err(error.to_string()),
            }
        }
        self.sums.blocks += blocks.len() as u64;
        self.rig.fill_many(cuda, &Spans::new(blocks.iter().copied()))?;
        Ok(Batch { stream, blocks })
    }

    /// Compares the blocks and frees them, with nothing waited for. If another stream reads them
    /// too, it does so late enough to be caught if they were handed out too early.
    fn release(&mut self, batch: Batch, elsewhere: bool) -> Result<(), String> {
        let spans = Spans::new(batch.blocks.iter().copied());
        let own = &self.streams[batch.stream];
        if elsewhere {
            let other = &self.streams[(batch.stream + 1) % STREAMS];
            other.join(own).or_say("one stream behind another")?;
            self.rig.delay(other, 20_000)?;
            self.rig.verify_many(other, &spans)?;
            for &(addr, ..) in &batch.blocks {
                self.allocator.record_stream(addr, id_of(other)).or_say("record_stream")?;
            }
        }
        self.rig.verify_many(own, &spans)?;
        for (addr, ..) in batch.blocks {
            self.allocator.free(addr).or_say("free")?;
        }
        Ok(())
    }
}

/// Mostly little, some large.
fn size_bytes(script: &mut Random) -> u64 {
    match script.below(1000) {
        0 => script.between(48 * MIB, 400 * MIB),
        1..12 => script.between(4 * MIB, 48 * MIB),
        12..200 => script.between(64 * KIB, 4 * MIB),
        _ => script.between(512, 64 * KIB),
    }
}
