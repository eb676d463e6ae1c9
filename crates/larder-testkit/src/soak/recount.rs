//! Recount: what a snapshot comes to, counted anew.

use larder_core::Stats;
use larder_core::heap::State;
use larder_core::heap::states::{BlockState, SegmentState};
use larder_core::record::stats::ByPool;

use super::tally::change_pool;

/// The blocks in this state, with their segments, in the order of addresses.
pub(super) fn blocks_in(
    snapshot: &[SegmentState],
    wanted: State,
) -> impl Iterator<Item = (&SegmentState, &BlockState)> {
    snapshot
        .iter()
        .flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)))
        .filter(move |(_, block)| block.state == wanted)
}

/// Current values from a walk over all blocks.
pub(super) fn recount(snapshot: &[SegmentState]) -> Stats {
    let mut stats = Stats::default();
    for segment in snapshot {
        let kind = segment.kind;
        change_pool(&mut stats.reserved_bytes, kind, segment.backed_bytes as i64);
        let is_fixed = !segment.expandable && !segment.view;
        if is_fixed {
            change_pool(&mut stats.segment, kind, 1);
        }
        let splits = is_fixed && segment.blocks.len() > 1;
        for block in &segment.blocks {
            let bytes = block.span.size_bytes as i64;
            if block.state == State::Live {
                change_pool(&mut stats.allocation, kind, 1);
                change_pool(&mut stats.allocated_bytes, kind, bytes);
            }
            if matches!(block.state, State::Live | State::Waiting) {
                change_pool(&mut stats.active, kind, 1);
                change_pool(&mut stats.active_bytes, kind, bytes);
                change_pool(&mut stats.requested_bytes, kind, block.requested_bytes as i64);
            }
            if block.state == State::Free && splits {
                change_pool(&mut stats.inactive_split, kind, 1);
                change_pool(&mut stats.inactive_split_bytes, kind, bytes);
            }
        }
    }
    stats
}

/// All families of statistics, by name.
pub(super) fn families(stats: &Stats) -> [(&'static str, &ByPool); 9] {
    [
        ("allocation", &stats.allocation),
        ("segment", &stats.segment),
        ("active", &stats.active),
        ("inactive_split", &stats.inactive_split),
        ("allocated_bytes", &stats.allocated_bytes),
        ("reserved_bytes", &stats.reserved_bytes),
        ("active_bytes", &stats.active_bytes),
        ("inactive_split_bytes", &stats.inactive_split_bytes),
        ("requested_bytes", &stats.requested_bytes),
    ]
}
