//! Ground: the home blocks under a place, found along the blocks themselves. A request that is told
//! where to go looks at what is there, and not at all that is free.

use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::paged::request_log::Spot;
use crate::heap::space::block::State;
use crate::heap::space::homes::Home;
use crate::heap::{Heap, Want};
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

impl Heap {
    /// What lies under a place; none if it is not free, or not for this request.
    pub(super) fn ground(&mut self, want: &Want, segment: SegmentId, addr: Addr) -> Option<Ground> {
        // Where blocks are not split, the smallest that will do may be another one by now.
        if !want.splits {
            return None;
        }
        let span = Span::new(addr, want.size_bytes);
        let owner = self.space.segment(segment).filter(|owner| owner.span.covers(span))?;
        if !owner.is_view() {
            let mut waits = Vec::new();
            let first = self.add_waits(want, Home { segment, span }, &mut waits)?;
            return Some(Ground { segment, span, site: Site::Home(first), waits });
        }
        // Where a segment was given back, a view may have its name by now.
        if !self.can_be_in_view(want) {
            return None;
        }
        let door = self.space.chain(segment).find(|&id| self.space[id].span().covers(span))?;
        if owner.lane != want.lane || self.space[door].state != State::Hollow {
            return None;
        }
        let homes = self.space.homes_under(segment, span)?;
        let mut waits = Vec::new();
        for &home in &homes {
            self.add_waits(want, home, &mut waits)?;
        }
        Some(Ground { segment, span, site: Site::View { door, homes }, waits })
    }

    /// What lies under the place that a request was told by the request log.
    pub(super) fn ground_told(&mut self, want: &Want, spot: Spot) -> Option<Ground> {
        let addr = self.space.segment(spot.segment)?.at_unit(spot.at);
        self.ground(want, spot.segment, addr)
    }

    /// Adds the streams that a request has to wait for if it is to have these bytes, and returns
    /// the first of the blocks that they lie in; none if they are not all free, or some are of a
    /// lane that it cannot have them of.
    fn add_waits(&mut self, want: &Want, home: Home, waits: &mut Vec<StreamId>) -> Option<BlockId> {
        let first = self.space.first_under(home.segment, home.span.addr)?;
        let is_private = self.pools.pool(want.pool).owner.is_some();
        for id in self.space.blocks_from(first, home.span.end()) {
            let block = &self.space[id];
            if !block.state.is_unused() || !block.expandable {
                return None;
            }
            if block.lane == want.lane {
                continue;
            }
            if is_private || self.pools.lane(block.lane).pool != want.pool {
                return None;
            }
            waits.extend(
                self.wait_for(want.lane, block.lane).filter(|stream| !waits.contains(stream)),
            );
        }
        Some(first)
    }

    /// The stream of a lane that another one has to wait for before it has what is free there: none
    /// if it did and nothing was freed since, or if the stream is gone.
    pub(super) fn wait_for(&self, lane: LaneId, other: LaneId) -> Option<StreamId> {
        if lane == other || self.pools.has_followed(lane, other) {
            return None;
        }
        self.pools.lane(other).living_stream()
    }

    /// The request's stream waits for what these streams have been given to do so far: what is free
    /// of theirs is as good as its own, until they free more.
    pub(crate) fn note_followed(&mut self, want: &Want, streams: &[StreamId]) {
        let lane = self.lane_of(want);
        for &stream in streams {
            if let Some(other) = self.pools.lane_at(want.pool, stream) {
                self.pools.note_followed(lane, other);
            }
        }
    }
}
