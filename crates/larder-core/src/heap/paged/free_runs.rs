//! The list of free runs: what is free and may be had, whosoever it is.

use std::iter::successors;

use crate::heap::Want;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::pools::lane::Lane;
use crate::heap::space::block::State;
use crate::types::{Addr, Span, StreamId};

/// What a request may have: its own lane's free blocks, and those of lanes whose streams are gone
/// or can be waited for.
#[derive(Clone, Copy)]
pub(super) struct Reach<'a> {
    pub(super) want: &'a Want,
    open: &'a [StreamId],
    is_movable: bool,
}

impl Reach<'_> {
    fn covers(&self, lane: &Lane) -> bool {
        match lane.living_stream() {
            Some(stream) => stream == self.want.stream || self.open.contains(&stream),
            None => self.is_movable,
        }
    }
}

/// Free blocks side by side in one segment, whosoever they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) span: Span,
    pub(super) segment: SegmentId,
    /// The last of them.
    pub(super) last: BlockId,
}

/// What a request may have, if its stream can wait for those that are open.
pub(super) fn reach<'a>(inventory: &Inventory, want: &'a Want, open: &'a [StreamId]) -> Reach<'a> {
    Reach { want, open, is_movable: inventory.pools().is_movable(want.pool) }
}

/// Whether a block is free, and the request may have it.
pub(super) fn may_have(inventory: &Inventory, reach: Reach<'_>, id: BlockId) -> bool {
    let block = &inventory.space()[id];
    if block.state != State::Free || !block.expandable {
        return false;
    }
    let lane = inventory.pools().lane(block.lane);
    block.lane == reach.want.lane || (lane.pool() == reach.want.pool && reach.covers(lane))
}

/// The lanes of others that the request may have blocks of.
pub(super) fn lanes_beside<'a>(
    inventory: &'a Inventory,
    reach: Reach<'a>,
) -> impl Iterator<Item = &'a Lane> + 'a {
    let lanes = inventory.pools().lanes_of(reach.want.pool);
    let is_own = move |lane: &&Lane| lane.living_stream() == Some(reach.want.stream);
    lanes.filter(move |lane| !is_own(lane) && reach.covers(lane))
}

/// All runs in which some block has at least so many bytes, by address.
pub(super) fn free_runs(inventory: &Inventory, reach: Reach<'_>, least_bytes: u64) -> Vec<Run> {
    let own = inventory.pools().lane(reach.want.lane);
    let lanes = lanes_beside(inventory, reach).chain(std::iter::once(own));
    let blocks =
        lanes.flat_map(|lane| lane.free_blocks_from(inventory.space().blocks(), least_bytes));
    let blocks = blocks.filter(|&id| inventory.space()[id].expandable);
    let mut places: Vec<(Addr, BlockId)> =
        blocks.map(|id| (inventory.space()[id].addr, id)).collect();
    places.sort_unstable();
    let mut runs: Vec<Run> = Vec::with_capacity(places.len());
    for (addr, id) in places {
        // Else it is part of the run before.
        if runs.last().is_none_or(|run| run.span.end() <= addr) {
            runs.push(run_around(inventory, reach, id));
        }
    }
    runs
}

/// The run that a block is part of.
fn run_around(inventory: &Inventory, reach: Reach<'_>, id: BlockId) -> Run {
    let may_have = |id: &BlockId| may_have(inventory, reach, *id);
    let before = successors(Some(id), |&id| inventory.space()[id].prev.filter(may_have));
    let behind = successors(Some(id), |&id| inventory.space()[id].next.filter(may_have));
    let [first, last] = [before.last(), behind.last()].map(|end| end.unwrap_or(id));
    let (addr, end) = (inventory.space()[first].addr, inventory.space()[last].span().end());
    Run { span: Span::new(addr, end.0 - addr.0), segment: inventory.space()[id].segment, last }
}
