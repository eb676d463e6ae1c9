//! Graphs: captured with memory of a private pool, replayed thousands of times while eager work
//! goes on beside them; and captured by several threads again and again, while others allocate,
//! free, empty the cache, and make and end streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};
use larder_core::heap::Filter;
use larder_core::types::{Addr, MIB};
use larder_core::{Allocator, MemPool};
use larder_sim::random::Random;

use crate::rig::{Explain, Rig, id_of};

const SETTINGS: [&str; 6] = [
    "expandable_segments:False",
    "expandable_segments:True",
    "graph_capture_record_stream_reuse:True",
    "expandable_segments:True,graph_capture_record_stream_reuse:True",
    "policy:tight",
    "policy:tight,graph_capture_record_stream_reuse:True",
];

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let (replays, block_bytes) = if short { (20, 2 * MIB) } else { (1500, 8 * MIB) };
    let (main, side) = (rig.stream()?, rig.stream()?);
    let eager = rig.streams(2)?;
    let mut done = 0;
    let (mut eager_blocks, mut captures) = (0, 0);
    for settings in SETTINGS {
        let allocator = Arc::new(rig.allocator(settings)?);
        let stop = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                // A panic below would leave the worker running, and the scope waiting for it.
                work(rig, &allocator, &eager, (&stop, block_bytes))
            });
            let result =
                capture_and_replay(rig, &allocator, [&main, &side], (replays, block_bytes));
            stop.store(true, Ordering::Relaxed);
            let worked = worker.join().unwrap_or_else(|_| Err("the worker panicked".to_owned()));
            result.and(worked)
        });
        eager_blocks += result.or_say(settings)?;
        rig.expect_none_wrong("graphs")?;
        done += replays;
        captures += storm(rig, &allocator, short).or_say(settings)?;
        rig.expect_none_wrong("captures of several threads")?;
        allocator.check().or_say("a check")?;
        allocator.empty_cache().or_say("emptying the cache")?;
        let reserved = allocator.stats().reserved_bytes.all.current;
        if reserved != 0 {
            return Err(format!("{reserved} bytes are held after the pool was released"));
        }
    }
    Ok(format!(
        "{done} replays beside {eager_blocks} eager blocks, {captures} captures by {CAPTURERS} \
         threads, 0 words wrong"
    ))
}

/// How many threads capture at once.
const CAPTURERS: usize = 3;

/// Several threads capture again and again, each on two streams of its own, beside eager work and
/// streams that come and go; how many captures there were.
fn storm(rig: &Rig, allocator: &Arc<Allocator>, short: bool) -> Result<usize, String> {
    let (rounds, block_bytes) = if short { (3, MIB / 4) } else { (40, 2 * MIB) };
    let stop = AtomicBool::new(false);
    let captured: Vec<_> = (0..CAPTURERS).map(|_| rig.streams(2)).collect::<Result<_, _>>()?;
    let eager: Vec<_> = (0..2).map(|_| rig.streams(2)).collect::<Result<_, _>>()?;
    let result = thread::scope(|scope| {
        let stop = &stop;
        let mut others = Vec::new();
        for streams in &eager {
            others.push(scope.spawn(move || work(rig, allocator, streams, (stop, block_bytes))));
        }
        others.push(scope.spawn(move || come_and_go(rig, allocator, (stop, block_bytes))));
        let mut capturers = Vec::new();
        for streams in &captured {
            capturers.push(scope.spawn(move || -> Result<(), String> {
                for _ in 0..rounds {
                    let both = [&streams[0], &streams[1]];
                    capture_and_replay(rig, allocator, both, (3, block_bytes))?;
                }
                Ok(())
            }));
        }
        let panicked = || Err("a thread panicked".to_owned());
        let mut result = Ok(());
        for thread in capturers {
            result = result.and(thread.join().unwrap_or_else(|_| panicked()));
        }
        stop.store(true, Ordering::Relaxed);
        for thread in others {
            let worked = thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()));
            result = result.and(worked.map(drop));
        }
        result
    });
    for stream in captured.into_iter().chain(eager).flatten() {
        rig.end_stream(allocator, stream)?;
    }
    result.map(|()| CAPTURERS * rounds)
}

/// Streams that are made, used and ended, until it is told to stop; how many.
fn come_and_go(
    rig: &Rig,
    allocator: &Allocator,
    (stop, block_bytes): (&AtomicBool, u64),
) -> Result<u64, String> {
    let mut count = 0;
    let resident = rig.stream()?;
    while !stop.load(Ordering::Relaxed) {
        let stream = rig.stream()?;
        let [own, read] = [&stream, &resident].map(|on| allocator.malloc(block_bytes, id_of(on)));
        let (own, read) = (own.or_say("a block")?, read.or_say("a block")?);
        let seed = rig.seed();
        rig.fill(&stream, own, block_bytes, seed)?;
        rig.fill(&resident, read, block_bytes, seed)?;
        stream.join(&resident).or_say("one stream behind another")?;
        rig.verify(&stream, read, block_bytes, seed)?;
        allocator.record_stream(read, id_of(&stream)).or_say("record_stream")?;
        // One is freed while the stream is there, the other when it is gone.
        allocator.free(read).or_say("free")?;
        rig.verify(&stream, own, block_bytes, seed)?;
        rig.end_stream(allocator, stream)?;
        allocator.free(own).or_say("free")?;
        count += 1;
    }
    rig.end_stream(allocator, resident)?;
    Ok(count)
}

/// Captures a graph whose memory comes from a private pool, and replays it.
pub(crate) fn capture_and_replay(
    rig: &Rig,
    allocator: &Arc<Allocator>,
    [main, side]: [&Arc<CudaStream>; 2],
    (replays, block_bytes): (u32, u64),
) -> Result<(), String> {
    // What goes in and comes out lives outside the capture.
    let state = allocator.malloc(block_bytes, id_of(main)).or_say("a block")?;
    rig.zero(main, state, block_bytes)?;
    main.synchronize().or_say("waiting for a stream")?;
    let pool = MemPool::for_capture(allocator).or_say("a pool")?;
    let scope = Filter::Capture(id_of(main));
    let (kept, graph) = pool
        .scope_for(scope, || -> Result<(Vec<Addr>, CudaGraph), String> {
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            main.begin_capture(mode).or_say("a capture")?;
            let kept = record(rig, allocator, [main, side], (state, block_bytes));
            // The capture is ended whatever happened in it.
            let graph = main.end_capture(CUgraphInstantiate_flags(0));
            let graph = graph.or_say("the end of a capture")?.ok_or("the capture has no graph");
            Ok((kept?, graph?))
        })
        .or_say("a scope")??;
    let apart_bytes = pool.stats();
    if pool.snapshot().is_empty() {
        return Err(format!("the graph's memory is not the pool's: {apart_bytes:?}"));
    }
    for replay in 1..=replays {
        graph.launch().or_say("a replay")?;
        if replay % 10 == 0 {
            rig.expect(main, state, block_bytes, replay)?;
        }
    }
    main.synchronize().or_say("waiting for a stream")?;
    drop(graph);
    for addr in kept.into_iter().chain([state]) {
        allocator.free(addr).or_say("free")?;
    }
    Ok(())
}

/// The captured work: blocks taken and freed on two streams, each filled and compared, and one more
/// on the state for each replay. What is still live at the end is returned.
fn record(
    rig: &Rig,
    allocator: &Allocator,
    [main, side]: [&Arc<CudaStream>; 2],
    (state, block_bytes): (Addr, u64),
) -> Result<Vec<Addr>, String> {
    let mut kept = Vec::new();
    for turn in 0..6_u64 {
        let size_bytes = block_bytes * (1 + turn % 3);
        let block = allocator.malloc(size_bytes, id_of(main)).or_say("a captured block")?;
        let seed = rig.seed();
        rig.fill(main, block, size_bytes, seed)?;
        if turn % 2 == 0 {
            // A branch of the graph reads the block, and joins again.
            side.join(main).or_say("a branch")?;
            rig.verify(side, block, size_bytes, seed)?;
            allocator.record_stream(block, id_of(side)).or_say("record_stream")?;
            main.join(side).or_say("the end of a branch")?;
        }
        rig.verify(main, block, size_bytes, seed)?;
        if turn % 3 == 2 {
            kept.push(block);
        } else {
            allocator.free(block).or_say("free in a capture")?;
        }
    }
    rig.increment(main, state, block_bytes)?;
    Ok(kept)
}

/// Eager work on streams of its own, until it is told to stop; how many blocks it used.
fn work(
    rig: &Rig,
    allocator: &Allocator,
    streams: &[Arc<CudaStream>],
    (stop, block_bytes): (&AtomicBool, u64),
) -> Result<u64, String> {
    let mut random = Random::new(7);
    let mut live: Vec<(usize, Addr, u64, u32)> = Vec::new();
    let mut blocks = 0;
    while !stop.load(Ordering::Relaxed) {
        if live.len() < 16 && random.chance(0.6) {
            let at = random.below(streams.len() as u64) as usize;
            let size_bytes = random.between(4, 3 * block_bytes);
            let addr = allocator.malloc(size_bytes, id_of(&streams[at])).or_say("a block")?;
            let seed = rig.seed();
            rig.fill(&streams[at], addr, size_bytes, seed)?;
            live.push((at, addr, size_bytes, seed));
            blocks += 1;
        } else if !live.is_empty() {
            let (at, addr, size_bytes, seed) =
                live.swap_remove(random.below(live.len() as u64) as usize);
            rig.verify(&streams[at], addr, size_bytes, seed)?;
            if random.chance(0.3) {
                // The other stream reads it too, behind the one that has it.
                let other = &streams[(at + 1) % streams.len()];
                other.join(&streams[at]).or_say("one stream behind another")?;
                rig.verify(other, addr, size_bytes, seed)?;
                allocator.record_stream(addr, id_of(other)).or_say("record_stream")?;
            }
            allocator.free(addr).or_say("free")?;
            if random.chance(0.02) {
                allocator.empty_cache().or_say("emptying the cache")?;
            }
        }
        if blocks % 64 == 0 {
            // Keeps the queue of the GPU short, and lets the other thread in.
            streams[0].synchronize().or_say("waiting for a stream")?;
        }
    }
    for (at, addr, size_bytes, seed) in live {
        rig.verify(&streams[at], addr, size_bytes, seed)?;
        allocator.free(addr).or_say("free")?;
    }
    Ok(blocks)
}
