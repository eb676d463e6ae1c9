//! Ground: the home blocks under a place, found along the blocks themselves. A request that is told
//! where to go looks at what is there, and not at all that is free.

use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::PAGE_MIN_BYTES;
use crate::heap::paged::request_log::Spot;
use crate::heap::space::block::State;
use crate::heap::space::homes::Home;
use crate::types::{Addr, Span, StreamId};

/// A place that is free for a request.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(super) segment: SegmentId,
    pub(super) span: Span,
    pub(super) site: Site,
    /// Streams whose work so far may still use it.
    pub(crate) waits: Vec<StreamId>,
}

/// Whether a place is at home or in a view.
#[derive(Clone, Debug)]
pub(super) enum Site {
    /// At home; this is the first of the blocks that it lies in.
    Home(BlockId),
    /// In this hollow block of a view. `homes` says where its bytes are at home, in order.
    View { door: BlockId, homes: Vec<Home> },
}

/// What lies under a place; none if it is not free, or not for this request.
pub(super) fn ground(
    inventory: &mut Inventory,
    want: &Want,
    segment: SegmentId,
    addr: Addr,
) -> Option<Ground> {
    // Where blocks are not split, the smallest that will do may be another one by now.
    if !want.splits {
        return None;
    }
    let span = Span::new(addr, want.size_bytes);
    let owner = inventory.space().segment(segment).filter(|owner| owner.span().covers(span))?;
    if !owner.is_view() {
        let mut waits = Vec::new();
        let first = add_waits(inventory, want, Home { segment, span }, &mut waits)?;
        return Some(Ground { segment, span, site: Site::Home(first), waits });
    }
    // Where a segment was given back, a view may have its name by now.
    if !can_be_in_view(inventory, want) {
        return None;
    }
    let door =
        inventory.space().chain(segment).find(|&id| inventory.space()[id].span().covers(span))?;
    if owner.lane() != want.lane || inventory.space()[door].state != State::Hollow {
        return None;
    }
    let homes = inventory.space().homes_under(segment, span)?;
    let mut waits = Vec::new();
    for &home in &homes {
        add_waits(inventory, want, home, &mut waits)?;
    }
    Some(Ground { segment, span, site: Site::View { door, homes }, waits })
}

/// What lies under the place that a request was told by the request log.
pub(super) fn ground_told(inventory: &mut Inventory, want: &Want, spot: Spot) -> Option<Ground> {
    let addr = inventory.space().segment(spot.segment)?.at_unit(spot.at);
    ground(inventory, want, spot.segment, addr)
}

/// Adds the streams that a request has to wait for if it is to have these bytes, and returns
/// the first of the blocks that they lie in; none if they are not all free, or some are of a
/// lane that it cannot have them of.
fn add_waits(
    inventory: &mut Inventory,
    want: &Want,
    home: Home,
    waits: &mut Vec<StreamId>,
) -> Option<BlockId> {
    let first = inventory.space_mut().first_under(home.segment, home.span.addr)?;
    let is_movable = inventory.pools().is_movable(want.pool);
    for id in inventory.space().blocks_from(first, home.span.end()) {
        let block = &inventory.space()[id];
        if !block.state.is_unused() || !block.expandable {
            return None;
        }
        if block.lane == want.lane {
            continue;
        }
        if !is_movable || inventory.pools().lane(block.lane).pool() != want.pool {
            return None;
        }
        waits.extend(
            wait_for(inventory, want.lane, block.lane).filter(|stream| !waits.contains(stream)),
        );
    }
    Some(first)
}

/// The stream of a lane that another one has to wait for before it has what is free there: none
/// if it did and nothing was freed since, or if the stream is gone.
pub(super) fn wait_for(inventory: &Inventory, lane: LaneId, other: LaneId) -> Option<StreamId> {
    if lane == other || inventory.pools().has_followed(lane, other) {
        return None;
    }
    inventory.pools().lane(other).living_stream()
}

/// Whether the request may become a block in a view. What is smaller than a page is not worth a
/// view. Pools of graphs have none: a graph may use its addresses at any time, and a checkpoint
/// knows segments alone.
pub(super) fn can_be_in_view(inventory: &Inventory, want: &Want) -> bool {
    want.size_bytes >= PAGE_MIN_BYTES && inventory.pools().is_movable(want.pool)
}
