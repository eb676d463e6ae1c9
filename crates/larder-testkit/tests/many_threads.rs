//! Four threads on one allocator, with everything that an allocator can do going on at once. A
//! failure prints its seed, and `cargo testkit soak --threads 4` runs it again; `LARDER_SEED=N`
//! runs that seed alone.

use std::time::{Duration, Instant};

use larder_core::Policy;
use larder_testkit::soak::concurrent::{self, Report};

const THREADS: usize = 4;
const STEPS: usize = 1_500;
const BASE_SEED: u64 = 13_000;
/// New seeds are taken until so much time has gone by. Seeds give larder and torch-2.11 in turns.
const TIME: Duration = Duration::from_secs(10);

/// Runs a seed, under the policy that it gives or under another one.
fn run(seed: u64, policy: Option<&Policy>) -> Report {
    let report = match policy {
        Some(policy) => concurrent::run_under(policy.clone(), seed, THREADS, STEPS),
        None => concurrent::run(seed, THREADS, STEPS),
    };
    report.unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs every second seed, so that the two policies are two tests.
fn run_half(first: u64, policy: Option<&Policy>) {
    let asked: Option<u64> =
        std::env::var("LARDER_SEED").ok().map(|text| text.parse().expect("LARDER_SEED is a seed"));
    if let Some(seed) = asked {
        if seed & 1 == first & 1 || policy.is_some() {
            run(seed, policy);
        }
        return;
    }
    let (start, mut total, mut seeds) = (Instant::now(), Report::default(), 0);
    // A handful at least, however slow the machine is: fewer would not meet everything.
    while seeds < 6 || start.elapsed() < TIME {
        total += run(first + 2 * seeds, policy);
        seeds += 1;
    }
    println!("{seeds} seeds: {total:?}");
    // Runs that never got into a tight spot would prove nothing.
    let rare = [total.out_of_memory, total.freed_by_others, total.misses, total.pools];
    assert!(rare.into_iter().all(|count| count > 10 * seeds), "{total:?}");
    let rarer = [total.captures, total.changes, total.quiet_moments, total.device_errors];
    assert!(rarer.into_iter().all(|count| count > seeds), "{total:?}");
    assert!(total.steps >= seeds * (THREADS * STEPS) as u64, "{total:?}");
}

#[test]
fn larder() {
    run_half(BASE_SEED, None);
}

#[test]
fn torch() {
    run_half(BASE_SEED + 1, None);
}

#[test]
fn tight() {
    run_half(BASE_SEED, Some(&Policy::tight()));
}

#[test]
fn pinned() {
    run_half(BASE_SEED, Some(&Policy::pinned()));
}

/// Where captures are those that were marked; every second seed tells which stream each thread
/// works on.
#[test]
fn torch_2_15() {
    run_half(BASE_SEED, Some(&Policy::torch_2_15()));
}
