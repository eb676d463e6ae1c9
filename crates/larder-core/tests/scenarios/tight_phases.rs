//! Phases: under the policy tight a program that has the cache emptied is measured by what it uses
//! from then on, and not by what it used before.

use crate::bench_top::BenchTop;
use larder_core::Policy;
use larder_core::types::{GIB, MIB};
use larder_sim::random::Random;

/// Something large is used once, and given back.
fn large_phase(top: &BenchTop) {
    let addrs: Vec<_> = (0..40).map(|_| top.malloc(GIB)).collect();
    top.free_all(&addrs);
}

/// A small program, whose requests come in sizes of all kinds: what it holds at the most, as a
/// multiple of what it uses at the most.
fn small_phase(top: &BenchTop) -> f64 {
    top.allocator.reset_peak_stats();
    let mut random = Random::new(11);
    let mut live = Vec::new();
    for _ in 0..600 {
        if live.len() < 40 || random.chance(0.5) {
            live.push(top.malloc(random.between(MIB, 60 * MIB)));
        } else {
            let at = random.below(live.len() as u64) as usize;
            top.free(live.swap_remove(at));
        }
    }
    top.free_all(&live);
    let stats = top.stats();
    let [held, used] =
        [stats.reserved_bytes, stats.active_bytes].map(|bytes| bytes.all.peak as f64);
    held / used
}

#[test]
fn what_was_used_before_the_cache_was_emptied_does_not_count() {
    let alone = small_phase(&BenchTop::new(80 * GIB, "", Policy::tight()));
    let after_large = || {
        let top = BenchTop::new(80 * GIB, "", Policy::tight());
        large_phase(&top);
        top
    };
    let emptied = after_large();
    emptied.allocator.empty_cache().unwrap();
    let behind_large = small_phase(&emptied);
    assert!((behind_large - alone).abs() < 0.002, "{behind_large}, alone {alone}");
    // Where nobody empties it, what is held is what the large phase left.
    assert!(small_phase(&after_large()) > 10.0);
}

/// Peaks that are reset are those that are shown. What may be held follows from what was in use.
#[test]
fn who_resets_peaks_changes_no_decision() {
    let [quiet, resetting] = [false, true].map(|resets| {
        let top = BenchTop::new(80 * GIB, "", Policy::tight());
        let kept: Vec<_> = (0..200).map(|_| top.malloc(20 * MIB)).collect();
        kept.iter().step_by(2).for_each(|&addr| top.free(addr));
        if resets {
            top.allocator.reset_peak_stats();
        }
        let more: Vec<_> = (0..20).map(|_| top.malloc(30 * MIB)).collect();
        assert!(more.iter().all(|&addr| addr != kept[0]));
        (more, top.device.total_calls(), top.stats().reserved_bytes.all.current)
    });
    assert_eq!(quiet, resetting);
}

/// The peaks that are shown are the program's: a new phase leaves them as they are.
#[test]
fn emptying_the_cache_leaves_the_peaks_that_are_shown() {
    let top = BenchTop::new(80 * GIB, "", Policy::tight());
    large_phase(&top);
    top.allocator.empty_cache().unwrap();
    let stats = top.stats();
    assert_eq!(stats.active_bytes.all.peak, 40 * GIB as i64);
    assert_eq!(stats.allocated_bytes.all.peak, 40 * GIB as i64);
    assert_eq!(stats.active_bytes.all.current, 0);
}
