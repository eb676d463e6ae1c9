//! Bench: what a malloc and a free cost, through the same calls that a program makes.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::allocator::history::HistoryOptions;
use larder_core::types::{Addr, StreamId};
use larder_core::{Allocator, Error};
use larder_sim::script::Op;

use crate::replay::Setup;
use crate::workload::Workload;

/// So many passes are not timed, on any side: the policy tight comes to know a program's way in the
/// first ones.
const FIRST_PASSES: u64 = 4;

/// How it is measured.
#[derive(Clone, Copy, Debug)]
pub struct BenchOptions {
    /// How many passes are timed.
    pub repeat: u64,
    /// How many threads make them at once.
    pub threads: u64,
    /// How many entries of its history the allocator remembers meanwhile, if any.
    pub history: Option<usize>,
    /// How much other memory is touched before each operation, as programs do, so that what the
    /// allocator needs has left the processor's caches. Then each operation is timed alone.
    pub between_bytes: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Wall time over all operations of all threads.
    pub ns_per_op: f64,
    /// Operations of all threads.
    pub ops: u64,
    /// Threads that ran at once.
    pub threads: u64,
}

/// One operation with its allocation's place in a table, so that the timed loop looks nothing up.
#[derive(Clone, Copy)]
struct Step {
    /// What to ask for; 0 to free what is in the slot.
    size_bytes: u64,
    slot: u32,
    stream: u32,
}

/// The `alloc` and `free` lines of a workload; whatever is live at the end is freed, so that the
/// next pass finds what this one found. Slots are used again, so that the table stays small.
fn steps(ops: &[Op]) -> (Vec<Step>, usize) {
    let mut steps = Vec::with_capacity(ops.len());
    let mut live = HashMap::new();
    let (mut spare, mut slots) = (Vec::new(), 0);
    for &op in ops {
        match op {
            Op::Alloc { id, size_bytes, stream } if size_bytes > 0 => {
                let slot = spare.pop().unwrap_or_else(|| {
                    slots += 1;
                    slots - 1
                });
                live.insert(id, slot);
                steps.push(Step { size_bytes, slot, stream });
            }
            Op::Free { id } => {
                if let Some(slot) = live.remove(&id) {
                    steps.push(Step { size_bytes: 0, slot, stream: 0 });
                    spare.push(slot);
                }
            }
            _ => {}
        }
    }
    let mut left: Vec<_> = live.into_values().collect();
    left.sort_unstable();
    steps.extend(left.into_iter().map(|slot| Step { size_bytes: 0, slot, stream: 0 }));
    (steps, slots as usize)
}

/// One pass over all steps, on streams that start at `first_stream`.
fn pass(
    allocator: &Allocator,
    steps: &[Step],
    table: &mut [Addr],
    first_stream: u64,
) -> Result<(), Error> {
    for &Step { size_bytes, slot, stream } in steps {
        let addr = &mut table[slot as usize];
        if size_bytes > 0 {
            *addr = allocator.malloc(size_bytes, StreamId(first_stream + u64::from(stream)))?;
        } else {
            allocator.free(*addr)?;
        }
    }
    Ok(())
}

/// One pass with other memory touched before each step; how long the steps alone took.
fn cold_pass(
    allocator: &Allocator,
    steps: &[Step],
    table: &mut [Addr],
    first_stream: u64,
    other: &mut [u8],
) -> Result<Duration, Error> {
    let clock = quanta::Clock::new();
    let mut ticks = 0;
    for step in steps {
        // One byte of each line of the caches.
        other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        let begin = clock.raw();
        pass(allocator, std::slice::from_ref(step), table, first_stream)?;
        ticks += clock.raw() - begin;
    }
    Ok(Duration::from_nanos(clock.delta_as_nanos(0, ticks)))
}

/// Replays the workload's allocations and frees on each thread, after the first passes, which are
/// not timed. Each thread has streams of its own.
///
/// A history has no contexts here, and the processor's own clock: what the simulated GPU calls time
/// costs less to read than a real one.
pub fn bench(workload: &Workload, setup: &Setup, options: BenchOptions) -> Result<Measured, Error> {
    let BenchOptions { repeat, threads, history, between_bytes } = options;
    let (_, allocator) = setup.build(workload);
    if let Some(max_entries) = history {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        let now_ns = move || clock.delta_as_nanos(start, clock.raw());
        let options = HistoryOptions::default().max_entries(max_entries);
        allocator.record_history(options.clock(Arc::new(now_ns)))?;
    }
    let (steps, slots) = steps(&workload.ops);
    let streams = workload.ops.iter().filter_map(|op| match op {
        Op::Alloc { stream, .. } => Some(u64::from(*stream) + 1),
        _ => None,
    });
    let streams = streams.max().unwrap_or(1);
    let ready = Barrier::new(threads as usize);
    let elapsed = thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| {
                let (allocator, steps, ready) = (&allocator, &steps, &ready);
                scope.spawn(move || {
                    let mut table = vec![Addr(0); slots];
                    let first_stream = thread * streams;
                    let mut pass = || pass(allocator, steps, &mut table, first_stream);
                    let warm = (0..FIRST_PASSES).try_for_each(|_| pass());
                    ready.wait();
                    warm?;
                    let start = Instant::now();
                    if between_bytes == 0 {
                        (0..repeat).try_for_each(|_| pass())?;
                        return Ok::<_, Error>((start, Instant::now()));
                    }
                    let mut other = vec![0; between_bytes as usize];
                    let mut took = Duration::ZERO;
                    for _ in 0..repeat {
                        took += cold_pass(allocator, steps, &mut table, first_stream, &mut other)?;
                    }
                    Ok((start, start + took))
                })
            })
            .collect();
        // The threads read the clock themselves: on a full machine this one may sleep for longer
        // than they run.
        let mut whole: Option<(Instant, Instant)> = None;
        for run in runs {
            let (start, end) = run.join().expect("a bench thread does not panic")?;
            let (first, last) = whole.unwrap_or((start, end));
            whole = Some((first.min(start), last.max(end)));
        }
        Ok::<_, Error>(whole.map_or(Duration::ZERO, |(first, last)| last.duration_since(first)))
    })?;
    let ops = steps.len() as u64 * repeat * threads;
    let ns_per_op = if ops == 0 { 0.0 } else { elapsed.as_nanos() as f64 / ops as f64 };
    Ok(Measured { ns_per_op, ops, threads })
}
