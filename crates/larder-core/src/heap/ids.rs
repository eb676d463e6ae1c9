//! Ids: the names of blocks, segments, pages, lanes and pools inside the heap. They stand here
//! together because blocks, segments and lanes name one another, and none of them has to know what
//! the others are.

use std::num::NonZeroU32;

use crate::types::PoolKind;

/// Names a block in its arena. It never leaves the core; the outside speaks in addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(NonZeroU32);

impl BlockId {
    pub(crate) fn index(self) -> u32 {
        self.0.get()
    }

    /// Its slot.
    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0.get() as usize
    }

    /// The id at `index`, as `index()` gave it; none for 0, which names no block.
    pub(crate) fn from_index(index: u32) -> Option<BlockId> {
        NonZeroU32::new(index).map(BlockId)
    }
}

/// There are fewer blocks than this. What is larger is free for others to number their things with.
pub(crate) const BLOCKS_MAX: u32 = 1 << 31;

/// The slot of a block, or nobody's.
#[inline]
pub(crate) fn place_of(id: Option<BlockId>) -> usize {
    id.map_or(0, BlockId::place)
}

/// Names a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentId(pub(super) u32);

impl SegmentId {
    /// Names no segment: the first slot, which has no window.
    pub(crate) const NONE: SegmentId = SegmentId(0);

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A page of a home: its segment, and which of the segment's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageAt {
    pub(crate) segment: SegmentId,
    pub(crate) index: usize,
}

/// Names a lane. It stays good while a segment names it; a lane that none names may be removed, and
/// its name used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(pub(crate) u32);

/// Names a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolIndex(pub(crate) u32);

impl PoolIndex {
    pub(crate) const SMALL: PoolIndex = PoolIndex(0);
    pub(crate) const LARGE: PoolIndex = PoolIndex(1);
    /// The pool of a lane that was removed.
    pub(super) const NONE: PoolIndex = PoolIndex(u32::MAX);

    /// The default pool for requests of this kind.
    #[inline]
    pub(crate) fn default_for(kind: PoolKind) -> PoolIndex {
        match kind {
            PoolKind::Small => PoolIndex::SMALL,
            PoolKind::Large => PoolIndex::LARGE,
        }
    }
}
