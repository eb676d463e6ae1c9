//! What a malloc and a free cost while many other free blocks lie in the index.
//!
//! For each number of holes, twice as many small blocks are allocated and every other one freed, so
//! that hardly any two holes merge. Then pairs of malloc and free are timed: with holes of one size
//! (the hit is always the lowest of them), and with holes and requests of random sizes.
//!
//! All numbers of holes are measured in turn, several rounds, and the median is shown: the
//! machine's noise then falls on all of them alike.

use std::sync::Arc;
use std::time::Instant;

use larder_core::{Addr, Allocator, Config, Policy, StreamId};
use larder_sim::random::Random;
use larder_sim::{SimDevice, SimOptions};

const HOLES: [usize; 4] = [100, 4_000, 16_000, 65_000];
const PAIRS: usize = 200_000;
const ROUNDS: usize = 9;

/// How large holes and requests are.
#[derive(Clone, Copy)]
enum Sizes {
    Equal,
    Random,
}

impl Sizes {
    fn draw(self, random: &mut Random) -> u64 {
        match self {
            Sizes::Equal => 1024,
            Sizes::Random => random.between(1, 64 * 1024),
        }
    }
}

/// An allocator with so many holes. The live blocks between them are never freed.
fn with_holes(holes: usize, sizes: Sizes) -> Allocator {
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    let allocator = Allocator::new(device, Config::default(), Policy::torch_2_11());
    let mut random = Random::new(holes as u64);
    let blocks: Vec<Addr> = (0..2 * holes)
        .map(|_| allocator.malloc(sizes.draw(&mut random), StreamId(0)).expect("there is room"))
        .collect();
    for &block in blocks.iter().step_by(2) {
        allocator.free(block).expect("it is live");
    }
    // A block may have filled the end of an older segment, and then two holes are neighbours.
    assert!(allocator.free_block_count() >= holes * 9 / 10);
    allocator
}

fn pair_ns(allocator: &Allocator, sizes: Sizes, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let requests: Vec<u64> = (0..PAIRS).map(|_| sizes.draw(&mut random)).collect();
    let start = Instant::now();
    for &size_bytes in &requests {
        let addr = allocator.malloc(size_bytes, StreamId(0)).expect("there is room");
        allocator.free(addr).expect("it is live");
    }
    start.elapsed().as_nanos() as f64 / PAIRS as f64
}

fn main() {
    println!(
        "| free blocks | equal sizes, ns a pair | to 100 | random sizes, ns a pair | to 100 |"
    );
    println!("|---|---|---|---|---|");
    let columns = [Sizes::Equal, Sizes::Random].map(|sizes| {
        let allocators = HOLES.map(|holes| with_holes(holes, sizes));
        let mut times = HOLES.map(|_| Vec::new());
        for round in 0..ROUNDS {
            for (allocator, times) in allocators.iter().zip(&mut times) {
                times.push(pair_ns(allocator, sizes, round as u64));
            }
        }
        times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        })
    });
    for (row, holes) in HOLES.iter().enumerate() {
        let [equal, random] = columns.map(|column| (column[row], column[row] / column[0]));
        println!(
            "| {holes} | {:.0} | {:.2} | {:.0} | {:.2} |",
            equal.0, equal.1, random.0, random.1
        );
    }
}
