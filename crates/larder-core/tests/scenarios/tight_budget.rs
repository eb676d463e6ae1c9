//! The budget: under the policy tight a program that never repeats itself makes views until they
//! have cost what they may. Then it holds a little more instead; on a full device it goes on with
//! what it has.

use crate::bench_top::BenchTop;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy};
use larder_sim::random::Random;

const HELD_BYTES: u64 = 8 * GIB;
const STEPS: usize = 2100;

/// What came of a run.
struct Outcome {
    /// Device calls in each third of it.
    calls: [u64; 3],
    /// Held at the peak, as a multiple of what was in use.
    ratio: f64,
    /// What the calls for memory would have cost on a card.
    driver_ns: u64,
}

/// Caches of many lengths, of which each takes the place of others: no two steps are alike.
fn serve(memory_bytes: u64, settings: &str) -> Outcome {
    let settings = format!("page_size_mb:16,{settings}");
    let top = BenchTop::new(memory_bytes, &settings, Policy::tight());
    let mut random = Random::new(7);
    let mut caches: Vec<(Addr, u64)> = Vec::new();
    let mut held_bytes = 0;
    let calls = [(); 3].map(|()| {
        let before = top.device.total_calls();
        for _ in 0..STEPS / 3 {
            let size_bytes = 512 * random.between(40 * MIB / 512, 160 * MIB / 512);
            while held_bytes + size_bytes > HELD_BYTES {
                let gone = random.below(caches.len() as u64) as usize;
                let (addr, freed_bytes) = caches.swap_remove(gone);
                top.free(addr);
                held_bytes -= freed_bytes;
            }
            caches.push((top.malloc(size_bytes), size_bytes));
            held_bytes += size_bytes;
        }
        top.allocator.check().expect("every invariant holds");
        top.device.total_calls() - before
    });
    let stats = top.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (0, 0), "nothing was given back");
    let [held, used] =
        [stats.reserved_bytes, stats.active_bytes].map(|bytes| bytes.all.peak as f64);
    Outcome { calls, ratio: held / used, driver_ns: top.device.spent().ns }
}

#[test]
fn a_program_that_never_repeats_itself_comes_to_make_few_views() {
    let [firm, usual] = ["tight_most:1", ""].map(|settings| serve(80 * GIB, settings));
    let told = [&firm, &usual].map(|outcome| (outcome.calls, outcome.ratio));
    assert!(3 * usual.calls[2] < 2 * firm.calls[2], "{told:?}");
    assert!(usual.ratio < 1.11, "{told:?}");
}

/// Where views may cost little, little is spent on them and more is held; where they may cost
/// anything, as little is held as can be.
#[test]
fn the_setting_says_what_views_may_cost() {
    let room = "tight_most:1.3";
    let told = ["0", "0.3", "100"].map(|percent| {
        let Outcome { ratio, driver_ns, .. } =
            serve(80 * GIB, &format!("{room},tight_views_percent:{percent}"));
        (driver_ns / 1_000_000, (1000.0 * ratio) as u64)
    });
    let [none, some, any] = told;
    // Growth itself, and what is counted beforehand with each request's part.
    assert!(none.0 < some.0 && some.0 < none.0 + 60, "{told:?}");
    assert!(4 * some.0 < any.0, "{told:?}");
    assert!(any.1 + 100 < none.1.min(some.1), "{told:?}");
}

/// A program that goes round may pay for the views of its first round, and needs no more of them.
#[test]
fn a_program_that_repeats_itself_is_never_short() {
    let top = BenchTop::new(80 * GIB, "page_size_mb:4", Policy::tight());
    let mut random = Random::new(3);
    let sizes: Vec<u64> = (0..400).map(|_| 512 * random.between(1000, 100_000)).collect();
    let round = |sizes: &[u64]| {
        let before = top.device.total_calls();
        let mut live: Vec<Addr> = Vec::new();
        for (index, &size_bytes) in sizes.iter().enumerate() {
            live.push(top.malloc(size_bytes));
            if live.len() > 60 {
                top.free(live.swap_remove(index * 7919 % 60));
            }
        }
        top.free_all(&live);
        top.device.total_calls() - before
    };
    let calls = [(); 6].map(|()| round(&sizes));
    assert_eq!(calls[5], 0, "{calls:?}");
    let stats = top.stats();
    let [held, used] =
        [stats.reserved_bytes, stats.active_bytes].map(|bytes| bytes.all.peak as f64);
    assert!(held / used < 1.03, "{} at {calls:?}", held / used);
}

/// What the device does not have is not worth giving back everything for: there is enough, in
/// pieces.
#[test]
fn on_a_full_device_it_goes_on_with_what_it_has() {
    let room_bytes = HELD_BYTES + HELD_BYTES / 8;
    let full = serve(room_bytes, "tight_most:1.3");
    assert!(full.calls[2] > 0, "it makes views to the end: {:?}", full.calls);
}
