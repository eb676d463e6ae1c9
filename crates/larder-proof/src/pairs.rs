//! What a malloc and a free cost on the card: ours, the driver's pool, and plain allocation.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use larder_core::Allocator;
use larder_core::types::{Bytes, KIB, MIB};
use larder_cuda::driver;

use crate::figures::Figures;
use crate::rig::{Explain, Rig, id_of};

const SIZES: [u64; 5] = [512, 64 * KIB, MIB, 20 * MIB, 512 * MIB];
const THREADS: [usize; 4] = [1, 4, 8, 16];
const ROUNDS: usize = 3;
/// Ours has to cost no more than this part of the driver's pool.
const RATIO_MAX: f64 = 0.1;

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contestant {
    Ours,
    DriverPool,
    Plain,
}

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let span = Duration::from_millis(if short { 5 } else { 60 });
    let streams = rig.streams(16)?;
    let allocator = rig.allocator("expandable_segments:False")?;
    let mut figures = Figures::new(
        "pairs",
        &["size", "threads", "larder ns", "cudaMallocAsync ns", "cudaMalloc ns", "larder / async"],
    );
    let mut worst: f64 = 0.0;
    // In short the largest size is left out: a small card cannot hold one for each thread.
    for &size_bytes in if short { &SIZES[..4] } else { &SIZES[..] } {
        for threads in THREADS {
            let measure = |contestant| -> Result<f64, String> {
                let mut readings = (0..ROUNDS)
                    .map(|_| {
                        let bench =
                            Bench { rig, allocator: &allocator, contestant, size_bytes, span };
                        bench.run(&streams[..threads])
                    })
                    .collect::<Result<Vec<f64>, String>>()?;
                readings.sort_by(f64::total_cmp);
                Ok(readings[ROUNDS / 2])
            };
            let ours = measure(Contestant::Ours)?;
            let pool = measure(Contestant::DriverPool)?;
            let plain = measure(Contestant::Plain)?;
            worst = worst.max(ours / pool);
            figures.row(&[
                Bytes(size_bytes).to_string(),
                threads.to_string(),
                format!("{ours:.0}"),
                format!("{pool:.0}"),
                format!("{plain:.0}"),
                format!("{:.3}", ours / pool),
            ]);
        }
    }
    figures.write()?;
    let summary = format!("ours at most {worst:.3} of cudaMallocAsync, with no driver call");
    if worst > RATIO_MAX && !short {
        return Err(format!("{summary}; it shall be at most {RATIO_MAX}"));
    }
    Ok(summary)
}

/// One measurement.
#[derive(Clone, Copy)]
struct Bench<'a> {
    rig: &'a Rig,
    allocator: &'a Allocator,
    contestant: Contestant,
    size_bytes: u64,
    span: Duration,
}

impl Bench<'_> {
    /// Nanoseconds that a thread needs for a pair, each thread on a stream of its own.
    fn run(self, streams: &[Arc<CudaStream>]) -> Result<f64, String> {
        // The first pair of each stream fills the caches.
        for stream in streams {
            self.pair(stream)?;
        }
        let calls_before = self.rig.device.driver_calls();
        let barrier = Barrier::new(streams.len());
        let results: Vec<Result<(Duration, u64), String>> = thread::scope(|scope| {
            let worker = |stream: &Arc<CudaStream>| {
                let (barrier, stream) = (&barrier, Arc::clone(stream));
                scope.spawn(move || self.work(&stream, barrier))
            };
            let workers: Vec<_> = streams.iter().map(worker).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            };
            workers.into_iter().map(join).collect()
        });
        let calls = self.rig.device.driver_calls() - calls_before;
        if self.contestant == Contestant::Ours && calls > 0 {
            return Err(format!("{calls} driver calls were made by pairs that hit the cache"));
        }
        let (mut time, mut pairs) = (Duration::ZERO, 0);
        for result in results {
            let (own_time, own_pairs) = result?;
            (time, pairs) = (time + own_time, pairs + own_pairs);
        }
        Ok(time.as_nanos() as f64 / pairs as f64)
    }

    fn work(self, stream: &CudaStream, barrier: &Barrier) -> Result<(Duration, u64), String> {
        let bound = stream.context().bind_to_thread().or_say("the context");
        // Looking at the clock costs as much as half a pair of ours.
        let batch = if self.contestant == Contestant::Ours { 256 } else { 4 };
        barrier.wait();
        bound?;
        let begin = Instant::now();
        let mut pairs = 0;
        loop {
            for _ in 0..batch {
                self.pair(stream)?;
            }
            pairs += batch;
            let time = begin.elapsed();
            if time >= self.span {
                return Ok((time, pairs));
            }
        }
    }

    #[inline]
    fn pair(self, stream: &CudaStream) -> Result<(), String> {
        match self.contestant {
            Contestant::Ours => {
                let addr =
                    self.allocator.malloc(self.size_bytes, id_of(stream)).or_say("malloc")?;
                self.allocator.free(addr).or_say("free")
            }
            Contestant::DriverPool => {
                // SAFETY: the stream is alive, and nobody uses the memory.
                unsafe {
                    let addr = driver::alloc_async(self.size_bytes, stream.cu_stream().cast());
                    driver::free_async(addr.or_say("cudaMallocAsync")?, stream.cu_stream().cast())
                        .or_say("cudaFreeAsync")
                }
            }
            Contestant::Plain => {
                let addr = driver::alloc(self.size_bytes).or_say("cudaMalloc")?;
                // SAFETY: nobody uses the memory.
                unsafe { driver::free(addr) }.or_say("cudaFree")
            }
        }
    }
}
