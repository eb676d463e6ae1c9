//! Tallies: the statistics counted the plain way, one addition at a time, so that nothing clever
//! stands between a fact and its number.

use larder_core::Stats;
use larder_core::record::stats::{ByPool, Counter};
use larder_core::types::PoolKind;

/// The value of one counter goes up or down.
pub(super) fn change(counter: &mut Counter, amount: i64) {
    counter.current += amount;
    counter.peak = counter.peak.max(counter.current);
    if amount > 0 {
        counter.allocated += amount;
    } else {
        counter.freed -= amount;
    }
}

/// The value goes up or down for one kind of pool, and so for all pools together.
pub(super) fn change_pool(family: &mut ByPool, kind: PoolKind, amount: i64) {
    change(&mut family.all, amount);
    match kind {
        PoolKind::Small => change(&mut family.small_pool, amount),
        PoolKind::Large => change(&mut family.large_pool, amount),
    }
}

/// Every counter of the statistics, one after the other.
pub(super) fn counters_mut(stats: &mut Stats) -> Vec<&mut Counter> {
    let families = [
        &mut stats.allocation,
        &mut stats.segment,
        &mut stats.active,
        &mut stats.inactive_split,
        &mut stats.allocated_bytes,
        &mut stats.reserved_bytes,
        &mut stats.active_bytes,
        &mut stats.inactive_split_bytes,
        &mut stats.requested_bytes,
    ];
    let pools = families
        .into_iter()
        .flat_map(|family| [&mut family.all, &mut family.small_pool, &mut family.large_pool]);
    pools.chain([&mut stats.oversize_allocations, &mut stats.oversize_segments]).collect()
}

/// Peaks become the current values.
pub(super) fn reset_peak(stats: &mut Stats) {
    for counter in counters_mut(stats) {
        counter.peak = counter.current;
    }
}

/// Sums of increases and decreases, and the plain counters, become zero.
pub(super) fn reset_accumulated(stats: &mut Stats) {
    for counter in counters_mut(stats) {
        (counter.allocated, counter.freed) = (0, 0);
    }
    stats.num_alloc_retries = 0;
    stats.num_ooms = 0;
    stats.num_oom_rejections = 0;
    stats.num_sync_all_streams = 0;
    stats.num_device_alloc = 0;
    stats.num_device_free = 0;
}

/// Names the first statistic in which the two differ, with both values.
pub(super) fn difference(found: &Stats, expected: &Stats) -> Option<String> {
    if found == expected {
        return None;
    }
    let rejections = |stats: &Stats| ("num_oom_rejections".into(), stats.num_oom_rejections as i64);
    let entries = |stats: &Stats| stats.entries().into_iter().chain([rejections(stats)]);
    let first = entries(found).zip(entries(expected)).find(|(found, expected)| found != expected);
    let text = first.map(|((name, found), (_, expected))| {
        format!("the statistic {name} is {found} and should be {expected}")
    });
    Some(text.unwrap_or_else(|| "the statistics differ".to_owned()))
}
