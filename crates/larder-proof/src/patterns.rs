//! Random scripts on real memory: every block has a pattern of its own, written by the GPU when it
//! is handed out and compared by the GPU before it is freed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::thread;

use cudarc::driver::CudaStream;
use larder_core::Allocator;
use larder_core::error::Error;
use larder_core::heap::Filter;
use larder_core::types::{Addr, GIB, MIB, PoolId};
use larder_sim::script::{Op, Route};
use larder_testkit::generate::{GenerateOptions, Generator};

use crate::rig::{Explain, Rig, id_of};

const STREAMS: u32 = 4;

/// How long scripts are, and what part of the sizes they have.
#[derive(Clone, Copy)]
struct Scale {
    steps: usize,
    part: u64,
}

const WHOLE: Scale = Scale { steps: 2500, part: 1 };

/// One round: settings, how many threads, and the memory that they may use.
struct Round {
    settings: &'static str,
    threads: u64,
    cap_bytes: Option<u64>,
    pools: bool,
}

const ROUNDS: &[Round] = &[
    Round { settings: "expandable_segments:False", threads: 1, cap_bytes: None, pools: true },
    Round { settings: "expandable_segments:False", threads: 8, cap_bytes: None, pools: false },
    Round {
        settings: "expandable_segments:False",
        threads: 4,
        cap_bytes: Some(3 * GIB),
        pools: false,
    },
    Round { settings: "expandable_segments:True", threads: 1, cap_bytes: None, pools: true },
    Round { settings: "expandable_segments:True", threads: 8, cap_bytes: None, pools: false },
    Round {
        settings: "expandable_segments:True",
        threads: 4,
        cap_bytes: Some(3 * GIB),
        pools: false,
    },
    Round {
        settings: "expandable_segments:True,page_size_mb:2",
        threads: 4,
        cap_bytes: Some(2 * GIB),
        pools: false,
    },
    Round {
        settings: "max_split_size_mb:64,roundup_power2_divisions:4,release_lock_on_cudamalloc:True",
        threads: 4,
        cap_bytes: Some(4 * GIB),
        pools: false,
    },
    Round { settings: "policy:tight", threads: 1, cap_bytes: None, pools: true },
    Round { settings: "policy:tight", threads: 8, cap_bytes: None, pools: false },
    Round { settings: "policy:tight", threads: 4, cap_bytes: Some(3 * GIB), pools: false },
];

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let (scale, seeds) = if short { (Scale { steps: 200, part: 64 }, 1) } else { (WHOLE, 3) };
    let mut blocks = 0;
    let mut refused = 0;
    for (index, round) in ROUNDS.iter().enumerate() {
        for seed in 1..=seeds {
            let what = format!("seed {seed} of round {index} ({})", round.settings);
            let (served, failed) = play(rig, round, seed, scale).or_say(&what)?;
            // The driver keeps memory for as many streams as there ever were at once.
            rig.dismiss_streams();
            rig.expect_none_wrong(&what)?;
            blocks += served;
            refused += failed;
        }
    }
    if refused == 0 && !short {
        return Err("no cap was ever reached, so nothing was tried under pressure".to_owned());
    }
    Ok(format!("{blocks} blocks, {refused} refused for want of memory, 0 words wrong"))
}

/// Plays a round; how many requests were served, and how many refused.
fn play(rig: &Rig, round: &Round, seed: u64, scale: Scale) -> Result<(u64, u64), String> {
    // The streams outlive the allocator, which may wait for them until it is gone.
    let streams: Vec<_> =
        (0..round.threads).map(|_| rig.streams(STREAMS as usize)).collect::<Result<_, _>>()?;
    let allocator = rig.allocator(round.settings)?;
    if let Some(cap_bytes) = round.cap_bytes {
        let cap_bytes = cap_bytes / scale.part;
        let total_bytes = allocator.memory_info().or_say("memory")?.total_bytes;
        allocator.set_memory_fraction(cap_bytes as f64 / total_bytes as f64).or_say("a cap")?;
    }
    let claims = Claims::default();
    let results: Vec<Result<(u64, u64), String>> = thread::scope(|scope| {
        let (allocator, claims) = (&allocator, &claims);
        let mut players = Vec::new();
        for (number, streams) in streams.iter().enumerate() {
            let number = number as u64;
            let pool_base = 1 + number * 1000;
            let (live, refused) = (HashMap::new(), 0);
            let player = Player { rig, allocator, claims, streams, pool_base, live, refused };
            let script = script(round, seed * 1000 + number, scale);
            players.push(scope.spawn(move || player.play(&script)));
        }
        let join = |player: thread::ScopedJoinHandle<'_, _>| {
            player.join().unwrap_or_else(|_| Err(String::from("a thread panicked")))
        };
        players.into_iter().map(join).collect()
    });
    let mut sums = (0, 0);
    for result in results {
        let (served, failed) = result?;
        sums = (sums.0 + served, sums.1 + failed);
    }
    allocator.check().or_say("a check")?;
    let live = allocator.stats().allocation.all.current;
    allocator.empty_cache().or_say("emptying the cache")?;
    let reserved = allocator.stats().reserved_bytes.all.current;
    if live != 0 || reserved != 0 {
        return Err(format!("at the end {live} blocks are live and {reserved} bytes are held"));
    }
    Ok(sums)
}

fn script(round: &Round, seed: u64, scale: Scale) -> Vec<Op> {
    let options = GenerateOptions {
        steps: scale.steps,
        streams: STREAMS,
        live_target: 60,
        // Of the threads together more than the cap allows.
        live_bytes_max: 2 * GIB / scale.part,
        size_bytes_max: 512 * MIB / scale.part,
        record_probability: 0.1,
        sync_probability: 0.02,
        empty_probability: 0.002,
        fraction_probability: 0.0,
        pools: round.pools,
        free_all_at_end: true,
        ..GenerateOptions::default()
    };
    Generator::new(seed, options).generate()
}

/// Whose every live block is, over all threads: the first address of each, and the last.
#[derive(Default)]
struct Claims(Mutex<BTreeMap<u64, u64>>);

impl Claims {
    fn take(&self, addr: Addr, size_bytes: u64) -> Result<(), String> {
        let last = addr.0 + size_bytes - 1;
        let mut claims = self.0.lock().or_say("the claims")?;
        if let Some((start, end)) =
            claims.range(..=last).next_back().filter(|(_, end)| **end >= addr.0)
        {
            return Err(format!("{size_bytes} bytes at {addr} overlap {start:#x} to {end:#x}"));
        }
        claims.insert(addr.0, last);
        Ok(())
    }

    fn give(&self, addr: Addr) -> Result<(), String> {
        self.0.lock().or_say("the claims")?.remove(&addr.0);
        Ok(())
    }
}

/// A block that is live, and what the GPU wrote into it.
#[derive(Clone, Copy)]
struct Live {
    addr: Addr,
    size_bytes: u64,
    seed: u32,
    stream: u32,
}

/// One thread with streams of its own.
struct Player<'a> {
    rig: &'a Rig,
    allocator: &'a Allocator,
    claims: &'a Claims,
    streams: &'a [Arc<CudaStream>],
    /// Pools of different threads have different names.
    pool_base: u64,
    live: HashMap<u64, Live>,
    refused: u64,
}

impl Player<'_> {
    fn play(mut self, script: &[Op]) -> Result<(u64, u64), String> {
        let mut served = 0;
        for (at, &op) in script.iter().enumerate() {
            served += u64::from(self.step(op).or_say(&format!("operation {at}, {op}"))?);
        }
        Ok((served, self.refused))
    }

    fn pool(&self, pool: u32) -> PoolId {
        PoolId(0, self.pool_base + u64::from(pool))
    }

    /// Does one operation; whether it handed out a block.
    fn step(&mut self, op: Op) -> Result<bool, String> {
        let allocator = self.allocator;
        match op {
            Op::Alloc { id, size_bytes, stream } => return self.alloc(id, size_bytes, stream),
            Op::Free { id } => self.free(id)?,
            Op::Record { id, stream } => self.record(id, stream)?,
            Op::Sync { stream } => {
                self.streams[stream as usize].synchronize().or_say("waiting for a stream")?;
            }
            Op::Empty => allocator.empty_cache().or_say("emptying the cache")?,
            Op::PoolNew { pool } => allocator.add_pool_use(self.pool(pool)).or_say("a pool")?,
            Op::PoolBegin { pool, route } => {
                let filter = match route {
                    Route::Stream(stream) | Route::Capture(stream) => {
                        Filter::Stream(id_of(&self.streams[stream as usize]))
                    }
                    Route::All => Filter::Thread(thread::current().id()),
                };
                allocator.begin_pool(self.pool(pool), filter).or_say("a scope")?;
            }
            Op::PoolEnd { pool } => allocator.end_pool(self.pool(pool)).or_say("a scope")?,
            Op::PoolRelease { pool } => {
                allocator.drop_pool_use(self.pool(pool)).or_say("a pool")?;
            }
            Op::PoolEmpty { pool } => allocator.empty_pool(self.pool(pool)).or_say("a pool")?,
            Op::PoolUseOnOom { pool, on } => {
                allocator.set_pool_use_on_oom(self.pool(pool), on).or_say("a pool")?;
            }
            Op::PoolNoSplit { pool } => {
                allocator.set_pool_no_split(self.pool(pool)).or_say("a pool")?;
            }
            Op::Launch { stream } => self.rig.delay(&self.streams[stream as usize], 1000)?,
            Op::Wait { stream, other } => {
                let [stream, other] = [stream, other].map(|at| &self.streams[at as usize]);
                stream.join(other).or_say("one stream behind another")?;
            }
            // Captures have a part of their own, and these scripts have no checkpoints.
            Op::CaptureBegin { .. }
            | Op::CaptureEnd { .. }
            | Op::Checkpoint { .. }
            | Op::Restore { .. }
            | Op::Fraction { .. }
            | Op::ResetPeak
            | Op::ResetAccumulated => {}
        }
        Ok(false)
    }

    fn alloc(&mut self, id: u64, size_bytes: u64, stream: u32) -> Result<bool, String> {
        let cuda = &self.streams[stream as usize];
        let addr = match self.allocator.malloc(size_bytes, id_of(cuda)) {
            Ok(addr) => addr,
            Err(Error::OutOfMemory(_)) => {
                self.refused += 1;
                return Ok(false);
            }
            Err(error) => return Err(error.to_string()),
        };
        if size_bytes == 0 {
            return Ok(false);
        }
        self.claims.take(addr, size_bytes)?;
        let seed = self.rig.seed();
        self.rig.fill(cuda, addr, size_bytes, seed)?;
        self.live.insert(id, Live { addr, size_bytes, seed, stream });
        Ok(true)
    }

    fn free(&mut self, id: u64) -> Result<(), String> {
        let Some(block) = self.live.remove(&id) else { return Ok(()) };
        let cuda = &self.streams[block.stream as usize];
        self.rig.verify(cuda, block.addr, block.size_bytes, block.seed)?;
        // Nothing is waited for: whoever gets the memory next must come after the comparison.
        self.claims.give(block.addr)?;
        self.allocator.free(block.addr).or_say("free")
    }

    /// The block is compared on another stream too, after the work of its own.
    fn record(&mut self, id: u64, stream: u32) -> Result<(), String> {
        let Some(&block) = self.live.get(&id) else { return Ok(()) };
        let [own, other] = [block.stream, stream].map(|stream| &self.streams[stream as usize]);
        self.allocator.record_stream(block.addr, id_of(other)).or_say("record_stream")?;
        other.join(own).or_say("one stream behind another")?;
        // Late enough to be caught if the block were handed out too early.
        self.rig.delay(other, 50_000)?;
        self.rig.verify(other, block.addr, block.size_bytes, block.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes that are live in a script.
    fn peak_bytes(script: &[Op]) -> u64 {
        let (mut live, mut bytes, mut peak) = (HashMap::new(), 0, 0);
        for &op in script {
            match op {
                Op::Alloc { id, size_bytes, .. } => {
                    live.insert(id, size_bytes);
                    bytes += size_bytes;
                }
                Op::Free { id } => bytes -= live.remove(&id).unwrap_or(0),
                _ => {}
            }
            peak = peak.max(bytes);
        }
        peak
    }

    #[test]
    fn the_caps_are_tight() {
        for round in ROUNDS {
            let Some(cap_bytes) = round.cap_bytes else { continue };
            let together: u64 = (0..round.threads)
                .map(|number| peak_bytes(&script(round, 1000 + number, WHOLE)))
                .sum();
            assert!(together > cap_bytes, "{together} bytes at most under {cap_bytes}");
        }
    }
}
