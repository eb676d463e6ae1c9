//! Snapshots under the policy tight: a block that lives in a view shows where the program has it,
//! once and in one piece, and all memory shows once.

use std::collections::BTreeMap;

use crate::bench_top::{BenchTop, SIDE};
use larder_core::allocator::history::SnapshotOptions;
use larder_core::heap::State;
use larder_core::heap::run::{Run, RunBlock};
use larder_core::types::{GIB, MIB, Span};
use larder_core::{Addr, Policy};
use larder_sim::random::Random;

fn tight() -> BenchTop {
    BenchTop::new(4 * GIB, "", Policy::tight())
}

fn runs(top: &BenchTop) -> Vec<Run> {
    top.allocator.take_snapshot(SnapshotOptions::default()).runs
}

fn blocks(runs: &[Run]) -> impl Iterator<Item = &RunBlock> {
    runs.iter().flat_map(|run| &run.blocks)
}

/// Memory in pieces of 20 MiB, and a block that lies on three of them.
fn tenant(top: &BenchTop) -> Addr {
    let addrs: Vec<Addr> = (0..10).map(|_| top.malloc(20 * MIB)).collect();
    addrs.iter().step_by(2).for_each(|&addr| top.free(addr));
    top.malloc(60 * MIB)
}

#[test]
fn a_block_in_a_view_shows_where_the_program_has_it() {
    let top = tight();
    let addr = tenant(&top);
    let runs = runs(&top);
    let found: Vec<&RunBlock> = blocks(&runs).filter(|block| block.span.addr == addr).collect();
    let [block] = found[..] else { panic!("{found:?}") };
    assert_eq!((block.span.size_bytes, block.state), (60 * MIB, State::Live));
    assert_eq!(block.requested_bytes, 60 * MIB);
    assert_eq!(blocks(&runs).filter(|block| block.state == State::Live).count(), 6);
    assert_eq!(runs.iter().map(Run::size_bytes).sum::<u64>(), top.device.used_bytes());
}

#[test]
fn what_streams_still_use_shows_there_too() {
    let top = tight();
    let addr = tenant(&top);
    top.record(addr, SIDE);
    top.device.issue(SIDE);
    top.free(addr);
    let state = |runs: &[Run]| {
        let found = blocks(runs).find(|block| block.span.addr == addr);
        found.map(|block| block.state)
    };
    assert_eq!(state(&runs(&top)), Some(State::Waiting));
    top.device.sync(SIDE);
    top.malloc(512);
    assert_eq!(state(&runs(&top)), None, "its addresses have no memory of their own");
}

/// Whatever happens, each live block shows once, with its size, no two blocks share an address, and
/// the sums are those of the statistics.
#[test]
fn random_programs_show_each_block_once() {
    let mut in_views = 0;
    for seed in 1..=20 {
        let (top, mut random, mut live) = (tight(), Random::new(seed), BTreeMap::new());
        for _ in 0..300 {
            if random.chance(0.6) {
                let limit_bytes = 1 << random.between(10, 27);
                let size_bytes = random.between(1, limit_bytes);
                if let Ok(addr) = top.try_malloc(size_bytes) {
                    live.insert(addr, size_bytes);
                }
            } else if !live.is_empty() {
                let at = random.below(live.len() as u64) as usize;
                let addr = *live.keys().nth(at).expect("a live block");
                live.remove(&addr);
                top.free(addr);
            }
            let runs = runs(&top);
            let shown: BTreeMap<Addr, u64> = blocks(&runs)
                .filter(|block| block.state == State::Live)
                .map(|block| (block.span.addr, block.requested_bytes))
                .collect();
            assert_eq!(shown, live, "seed {seed}");
            let sums = [Run::size_bytes, Run::active_bytes, Run::requested_bytes]
                .map(|of| runs.iter().map(of).sum::<u64>() as i64);
            let stats = top.stats();
            let told = [&stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes];
            assert_eq!(sums, told.map(|bytes| bytes.all.current), "seed {seed}");
            let mut spans = blocks(&runs).map(|block| block.span);
            let first = spans.next();
            spans
                .try_fold(first.map_or(Addr(0), Span::end), |end, span| {
                    (end <= span.addr).then_some(span.end())
                })
                .unwrap_or_else(|| panic!("seed {seed}: blocks share addresses"));
        }
        let views = top.allocator.snapshot().into_iter().filter(|segment| segment.view);
        in_views +=
            views.flat_map(|view| view.blocks).filter(|block| block.state == State::Live).count();
    }
    assert!(in_views > 20, "only {in_views} blocks lived in views at the end");
}
