//! How long a thread that comes once a millisecond waits while others hammer the lock, and how much
//! those get done: this lock beside the standard library's mutex, in turn.
//!
//! `taskset -c 0 cargo run --release -p larder-lock --example seldom`

mod visits;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_lock::TurnLock;
use visits::{spread, work};

/// How long each is measured.
const TIME: Duration = Duration::from_secs(4);
/// How many threads hammer, how much each does inside, and how much outside.
const CASES: [(usize, u64, u64); 4] = [(1, 20, 10), (4, 20, 10), (4, 60, 2), (15, 20, 10)];

fn measure(name: &str, (threads, inside, outside): (usize, u64, u64), enter: impl Fn(u64) + Sync) {
    let (stop, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut waits = Vec::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (mut value, mut count) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    enter(inside);
                    work(&mut value, outside);
                    count += 1;
                }
                visits.fetch_add(count, Ordering::Relaxed);
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < TIME {
            thread::sleep(Duration::from_millis(1));
            let before = Instant::now();
            enter(inside);
            waits.push(before.elapsed().as_micros());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [median, most, last] = spread(waits);
    let pace = u128::from(visits.into_inner()) / TIME.as_millis();
    println!("| {name}, {threads}, {inside} to {outside} | {median} | {most} | {last} | {pace} |");
}

fn main() {
    println!(
        "| lock, threads that hammer, steps inside to outside | median wait, us | nine in ten | \
         longest | visits a ms |"
    );
    println!("|---|---:|---:|---:|---:|");
    for case in CASES {
        let lock = TurnLock::new(0);
        measure("turns", case, |steps| lock.run(|value| work(value, steps)).expect("no panic"));
        let mutex = Mutex::new(0);
        measure("mutex", case, |steps| work(&mut mutex.lock().expect("no panic"), steps));
    }
}
