//! How long it takes until each of several threads that come at once has been inside so many times,
//! with nobody there afterwards: this lock beside the standard library's mutex, in turn.
//!
//! `cargo run --release -p larder-lock --example burst`

mod visits;

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use larder_lock::TurnLock;
use visits::{spread, work};

/// How often each is measured.
const ROUNDS: usize = 301;
/// How long nobody comes between two bursts.
const LULL: Duration = Duration::from_millis(2);
/// How many threads come, and how often each goes inside.
const CASES: [(usize, u64); 8] =
    [(2, 10), (2, 1000), (4, 10), (4, 100), (4, 1000), (16, 10), (16, 100), (16, 1000)];
/// What each does inside and outside.
const STEPS: [u64; 2] = [20, 10];

/// How long one burst takes, in microseconds: the median, nine in ten and the longest.
fn measure((threads, visits): (usize, u64), enter: impl Fn(u64) + Sync) -> [u128; 3] {
    let barrier = Barrier::new(threads + 1);
    let mut times = Vec::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut value = 0;
                for _ in 0..ROUNDS {
                    barrier.wait();
                    for _ in 0..visits {
                        enter(STEPS[0]);
                        work(&mut value, STEPS[1]);
                    }
                    barrier.wait();
                }
            });
        }
        for _ in 0..ROUNDS {
            thread::sleep(LULL);
            barrier.wait();
            let before = Instant::now();
            barrier.wait();
            times.push(before.elapsed().as_micros());
        }
    });
    spread(times)
}

fn main() {
    println!(
        "| threads, visits each | turns, median us | nine in ten | longest | mutex, median us | \
         nine in ten | longest |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (threads, visits) in CASES {
        let lock = TurnLock::new(0);
        let turns = measure((threads, visits), |steps| {
            lock.run(|value| work(value, steps)).expect("no panic");
        });
        let mutex = Mutex::new(0);
        let mutex = measure((threads, visits), |steps| {
            work(&mut mutex.lock().expect("no panic"), steps);
        });
        let times = turns.into_iter().chain(mutex).map(|time| format!(" {time} |"));
        println!("| {threads}, {visits} |{}", times.collect::<String>());
    }
}
