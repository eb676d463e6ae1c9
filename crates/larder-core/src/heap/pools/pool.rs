//! A pool: the lanes in which requests of one kind look for blocks.

use crate::heap::ids::LaneId;
use crate::types::{PoolId, PoolKind, StreamId};

/// What a pool is for, as far as its segments differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolRole {
    /// Its segments are as the settings say.
    Usual,
    /// They come from a source of its own, and are never expandable.
    OwnSource,
    /// Graph captures take their memory from it, and the settings may want its segments plain.
    Capture,
    /// It has the memory of a tag. Its segments are expandable whatever the settings say, so that
    /// they can sleep, but for requests for plain memory.
    Tag,
    /// A private pool that was first used in a region of a tag: the same.
    Tagged,
}

impl PoolRole {
    /// Whether its segments are expandable whatever the settings say.
    pub(crate) fn is_of_tag(self) -> bool {
        matches!(self, PoolRole::Tag | PoolRole::Tagged)
    }
}

/// One pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(super) kind: PoolKind,
    /// The private pool it is half of; none for the default pools.
    pub(super) owner: Option<PoolId>,
    /// Its blocks are never split.
    pub(super) no_split: bool,
    pub(super) role: PoolRole,
    /// Its lanes in the order of their streams.
    pub(super) lanes: Vec<(StreamId, LaneId)>,
    /// Its lanes whose streams are gone.
    pub(super) retired: Vec<LaneId>,
    /// It has or had several lanes at once.
    pub(super) had_many_lanes: bool,
    /// How often the pool was searched while garbage collection was on; the clock of ages.
    pub(super) searches: u64,
}

impl Pool {
    #[inline]
    pub(crate) fn kind(&self) -> PoolKind {
        self.kind
    }

    /// The private pool it is half of; none for the default pools.
    #[inline]
    pub(crate) fn owner(&self) -> Option<PoolId> {
        self.owner
    }

    /// Whether its blocks are never split.
    #[inline]
    pub(crate) fn no_split(&self) -> bool {
        self.no_split
    }

    pub(super) fn set_no_split(&mut self, no_split: bool) {
        self.no_split = no_split;
    }

    #[inline]
    pub(crate) fn role(&self) -> PoolRole {
        self.role
    }

    pub(super) fn set_role(&mut self, role: PoolRole) {
        debug_assert!(self.owner.is_some(), "the default pools are usual");
        self.role = role;
    }

    /// How often the pool was searched while garbage collection was on.
    #[inline]
    pub(crate) fn searches(&self) -> u64 {
        self.searches
    }

    /// It is searched, while garbage collection is on.
    pub(in crate::heap) fn count_search(&mut self) {
        self.searches += 1;
    }
}
