//! Wants: a request after rounding and routing, and what its pool lets it have.

use std::thread::ThreadId;

use crate::heap::ids::{BlockId, LaneId, PoolIndex, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::pools::pool::{Pool, PoolRole};
use crate::heap::pools::private::Caller;
use crate::heap::{Want, size};
use crate::types::{PoolId, StreamId};

impl Inventory {
    /// Rounds a request, and routes it to the default pools.
    pub(crate) fn want(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let mut want = self.want_rounded(requested_bytes, stream);
        if !self.rules.is_plain() {
            want.size_bytes = size::round(requested_bytes, self.rules.config());
            want.kind = self.rules.kind(want.size_bytes);
            want.pool = PoolIndex::default_for(want.kind);
            want.lane = self.pools.default_lane(want.kind, stream);
        }
        want
    }

    /// The request where nothing but whole units is asked of its size.
    #[inline]
    pub(in crate::heap) fn want_rounded(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let size_bytes = size::round_plainly(requested_bytes);
        let kind = self.rules.kind(size_bytes);
        let pool = PoolIndex::default_for(kind);
        let lane = self.pools.default_lane(kind, stream);
        let expandable = self.rules.config().expandable_segments;
        let (plain, splits) = (false, true);
        Want { requested_bytes, size_bytes, kind, stream, expandable, plain, splits, pool, lane }
    }

    /// A request as it goes to another pool.
    pub(in crate::heap) fn want_from(&mut self, want: &Want, pool: PoolIndex) -> Want {
        let lane = self.pools.lane_for(pool, want.stream);
        let owner = self.pools.pool(pool);
        debug_assert!(owner.kind() == want.kind, "{pool:?} is for requests of another kind");
        let may_expand = want.expandable || owner.role().is_of_tag();
        let (splits, expandable) = (!owner.no_split(), may_expand && self.expands(owner));
        Want { expandable, splits, pool, lane, ..*want }
    }

    /// Whether a pool's requests may be served from expandable segments, and make them grow.
    #[inline]
    fn expands(&self, pool: &Pool) -> bool {
        (self.rules.config().expandable_segments || pool.role().is_of_tag())
            && pool.role() != PoolRole::OwnSource
            && !self.is_plain_capture(pool)
    }

    /// Whether a pool is a capture's, and the settings want its segments plain.
    #[inline]
    pub(in crate::heap) fn is_plain_capture(&self, pool: &Pool) -> bool {
        pool.role() == PoolRole::Capture && self.rules.config().plain_captures
    }

    /// Whether the request's memory is for others to have, so that no expandable segment will do.
    pub(in crate::heap) fn must_be_plain(&self, want: &Want) -> bool {
        want.plain || self.is_plain_capture(self.pools.pool(want.pool))
    }

    /// A request after others had the lock: what it may do follows from the settings and
    /// the pool as they are now. Its size and its pool stay.
    pub(crate) fn want_again(&self, want: &Want) -> Want {
        let pool = self.pools.pool(want.pool);
        let expandable = self.expands(pool) && !want.plain;
        Want { expandable, splits: !pool.no_split(), ..*want }
    }

    /// The lane of a request. It was known when the request was routed; but if the heap was let go
    /// of since, as it is during a device call, the lane may have been removed.
    pub(in crate::heap) fn lane_of(&mut self, want: &Want) -> LaneId {
        if self.pools.is_lane_of(want.lane, want.pool, want.stream) {
            want.lane
        } else {
            self.pools.lane_for(want.pool, want.stream)
        }
    }

    /// The request as its thread wants it: for plain memory, if the thread asked for that.
    pub(crate) fn want_of(&self, want: &Want, thread: ThreadId) -> Want {
        if self.pools.privates().is_plain(thread) {
            Want { expandable: false, plain: true, ..*want }
        } else {
            *want
        }
    }

    /// Rounds a request and routes it through the open scopes.
    pub(crate) fn want_routed(&mut self, requested_bytes: u64, caller: &Caller<'_>) -> Want {
        let want = self.want(requested_bytes, caller.stream);
        let private = self.pools.route(caller).and_then(|id| self.pools.privates().get(id));
        match private.map(|private| private.pool(want.kind)) {
            Some(pool) => self.want_from(&want, pool),
            None => want,
        }
    }

    /// Whether it makes a difference to the request whether it is captured: then its memory is to
    /// be plain, and so is all that its pool gets from then on; or the pool's memory has to stay
    /// where it is.
    pub(crate) fn may_be_captures_first(&self, want: &Want) -> bool {
        let pool = self.pools.pool(want.pool);
        let is_noted = self.rules.config().plain_captures || self.rules.shares_segments();
        is_noted && pool.owner().is_some() && pool.role() == PoolRole::Usual
    }

    /// The request is the first of a capture in its pool.
    pub(crate) fn want_captured(&mut self, want: &Want) -> Want {
        if let Some(owner) = self.pools.pool(want.pool).owner() {
            self.pools.note_capture_pool(owner);
        }
        let expandable = want.expandable && !self.rules.config().plain_captures;
        Want { expandable, ..*want }
    }

    /// The private pool that the request goes to, if its segments come from a source of its own.
    pub(crate) fn source_for(&self, want: &Want) -> Option<PoolId> {
        self.pools.with_source(self.pools.pool(want.pool).owner())
    }

    /// The private pool that the segment belongs to, if it came from a source of the pool's own.
    pub(crate) fn source_of(&self, segment: SegmentId) -> Option<PoolId> {
        self.pools.with_source(self.owner_of(segment))
    }

    /// The private pool that a block belongs to.
    pub(crate) fn pool_of(&self, id: BlockId) -> Option<PoolId> {
        self.owner_of(self.space[id].segment)
    }

    /// The private pool that a segment belongs to.
    pub(in crate::heap) fn owner_of(&self, segment: SegmentId) -> Option<PoolId> {
        self.pools.pool(self.pools.lane(self.space[segment].lane()).pool()).owner()
    }

    /// The request's stream waits for what these streams have been given to do so far: what is free
    /// of theirs is as good as its own, until they free more.
    pub(crate) fn note_followed(&mut self, want: &Want, streams: &[StreamId]) {
        debug_assert!(!streams.contains(&want.stream), "a stream waits for itself");
        let lane = self.lane_of(want);
        for &stream in streams {
            if let Some(other) = self.pools.lane_at(want.pool, stream) {
                self.pools.note_followed(lane, other);
            }
        }
    }
}
