//! Pins: free memory that cannot go back to the device, and the live blocks that keep it.

use larder_core::heap::State;
use larder_core::heap::states::{BlockState, SegmentState};
use larder_core::types::Span;

use super::Scene;

/// A segment in which something is free and something else is in use.
#[derive(Clone, Debug)]
pub struct Hold<'a> {
    /// The segment.
    pub segment: &'a SegmentState,
    /// Its free pieces, largest first.
    pub free: Vec<Span>,
    /// What is in use in it, oldest first; of what is older than all operations, the first by
    /// address.
    pub pins: Vec<BlockState>,
}

impl Hold<'_> {
    /// What is free in it.
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(|span| span.size_bytes).sum()
    }

    /// What is in use in it.
    pub fn pin_bytes(&self) -> u64 {
        self.pins.iter().map(|block| block.span.size_bytes).sum()
    }
}

/// All segments that are kept so, those with most free first.
pub fn holds(scene: &Scene) -> Vec<Hold<'_>> {
    let mut holds: Vec<Hold<'_>> =
        scene.homes().filter_map(|segment| hold(scene, segment)).collect();
    holds.sort_by_key(|hold| (std::cmp::Reverse(hold.free_bytes()), hold.segment.span.addr));
    holds
}

fn hold<'a>(scene: &Scene, segment: &'a SegmentState) -> Option<Hold<'a>> {
    let has = |states: &[State]| {
        let blocks = segment.blocks.iter().filter(|block| states.contains(&block.state));
        blocks.copied().collect::<Vec<BlockState>>()
    };
    let mut free: Vec<Span> = has(&[State::Free]).iter().map(|block| block.span).collect();
    let mut pins = has(&[State::Live, State::Waiting, State::Lent]);
    if free.is_empty() || pins.is_empty() {
        return None;
    }
    free.sort_by_key(|span| (std::cmp::Reverse(span.size_bytes), span.addr));
    let born = |block: &BlockState| {
        let id = scene.live.get(&block.span.addr);
        id.and_then(|id| scene.born.get(id)).copied()
    };
    pins.sort_by_key(|block| (born(block).unwrap_or(usize::MAX), block.span.addr));
    Some(Hold { segment, free, pins })
}
