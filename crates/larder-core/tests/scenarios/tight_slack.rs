//! Leeway: under the policy tight a program that never repeats itself comes to hold a little more,
//! and so to make fewer views; and one on a full device goes on with what it has.

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
    Outcome { calls, ratio: held / used }
}

#[test]
fn a_program_that_never_repeats_itself_comes_to_make_few_views() {
    let [firm, usual] = ["tight_most:1", ""].map(|settings| serve(80 * GIB, settings));
    let told = [&firm, &usual].map(|outcome| (outcome.calls, outcome.ratio));
    assert!(2 * usual.calls[2] < firm.calls[2], "{told:?}");
    assert!(usual.ratio < 1.11, "{told:?}");
}

/// What the device does not have is not worth giving back everything for: there is enough, in
/// pieces.
#[test]
fn on_a_full_device_it_goes_on_with_what_it_has() {
    let room_bytes = HELD_BYTES + HELD_BYTES / 8;
    let full = serve(room_bytes, "tight_most:1.3");
    assert!(full.calls[2] > 0, "it makes views to the end: {:?}", full.calls);
}
