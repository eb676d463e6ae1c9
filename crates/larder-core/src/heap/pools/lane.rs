//! Lanes: one pool on one stream, which is what a search runs in. Blocks are never shared between
//! streams.

use std::collections::BTreeMap;

use crate::heap::free::free_index::FreeIndex;
use crate::heap::free::size_stacks::{SizeAt, SizeStacks};
use crate::heap::ids::{BlockId, LaneId, PoolIndex};
use crate::heap::space::block::Blocks;
use crate::types::{Addr, PoolKind, StreamId};

/// One pool on one stream.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(super) pool: PoolIndex,
    pub(super) kind: PoolKind,
    pub(super) stream: StreamId,
    /// The stream is gone: its blocks serve nobody, and go back when they are free.
    pub(super) gone: bool,
    /// Free blocks, with memory behind them; none before the first comes, because most lanes of a
    /// program with many streams have none, and an index has bins for all sizes.
    pub(super) free: Option<Box<FreeIndex>>,
    /// Small blocks whose frees were deferred, by size; none before the first comes.
    pub(super) by_size: Option<Box<SizeStacks>>,
    /// Unmapped blocks of expandable segments, by address: the lowest hole is refilled first.
    pub(super) unmapped: BTreeMap<Addr, BlockId>,
    /// How often something became free in it.
    pub(super) frees: u64,
    /// Lanes for whose work its stream was made to wait, and how often something had become free
    /// there by then. As long as that did not change, what is free there may be had with no further
    /// wait.
    pub(super) followed: Vec<(LaneId, u64)>,
}

impl Lane {
    /// The pool that it is of.
    #[inline]
    pub(crate) fn pool(&self) -> PoolIndex {
        self.pool
    }

    /// The kind of its pool.
    #[inline]
    pub(crate) fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Its stream, be that still there or gone.
    #[inline]
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// The stacks of its small blocks whose frees were deferred, if there are any.
    #[inline]
    pub(in crate::heap) fn by_size(&self) -> Option<&SizeStacks> {
        self.by_size.as_deref()
    }

    #[inline]
    pub(in crate::heap) fn by_size_mut(&mut self) -> Option<&mut SizeStacks> {
        self.by_size.as_deref_mut()
    }

    /// Makes the stacks, which it does not have.
    pub(in crate::heap) fn make_by_size(&mut self) {
        assert!(self.by_size.is_none(), "a lane has its stacks");
        self.by_size = Some(SizeStacks::new());
    }

    /// Something became free in it.
    #[inline]
    pub(in crate::heap) fn count_free(&mut self) {
        self.frees += 1;
    }

    /// What became free is counted once more where it is merged.
    #[inline]
    pub(in crate::heap) fn uncount_free(&mut self) {
        debug_assert!(self.frees > 0, "nothing became free");
        self.frees -= 1;
    }

    /// Its unmapped blocks, the lowest first.
    pub(in crate::heap) fn unmapped(&self) -> impl Iterator<Item = (Addr, BlockId)> + '_ {
        self.unmapped.iter().map(|(&addr, &id)| (addr, id))
    }

    /// A block of it is unmapped.
    pub(in crate::heap) fn add_unmapped(&mut self, addr: Addr, id: BlockId) {
        let before = self.unmapped.insert(addr, id);
        assert!(before.is_none(), "two unmapped blocks begin at {addr}");
    }

    /// An unmapped block of it gets memory, or becomes part of another.
    pub(in crate::heap) fn remove_unmapped(&mut self, addr: Addr) {
        let before = self.unmapped.remove(&addr);
        assert!(before.is_some(), "no unmapped block begins at {addr}");
    }

    /// Its stream, if that is still there.
    pub(crate) fn living_stream(&self) -> Option<StreamId> {
        (!self.gone).then_some(self.stream)
    }

    /// Whether its stream is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// The index of its free blocks, if there is one.
    #[inline]
    pub(crate) fn free(&self) -> Option<&FreeIndex> {
        self.free.as_deref()
    }

    /// The index of its free blocks, to take one out.
    #[inline]
    pub(crate) fn filled(&mut self) -> Option<&mut FreeIndex> {
        self.free.as_deref_mut()
    }

    /// The index of its free blocks, to put one in.
    #[inline]
    pub(crate) fn index(&mut self) -> &mut FreeIndex {
        self.free.get_or_insert_with(FreeIndex::new)
    }

    /// Its free blocks in order.
    pub(crate) fn free_blocks<'a>(
        &'a self,
        blocks: &'a Blocks,
    ) -> impl Iterator<Item = BlockId> + 'a {
        self.free.iter().flat_map(|free| free.iter(blocks))
    }

    /// Those of at least so many bytes, the smallest first.
    pub(crate) fn free_blocks_from<'a>(
        &'a self,
        blocks: &'a Blocks,
        size_bytes: u64,
    ) -> impl Iterator<Item = BlockId> + 'a {
        self.free.iter().flat_map(move |free| free.iter_from(blocks, size_bytes))
    }

    /// A block of it that was deferred is coalesced with all others: nobody finds it by its size
    /// any more.
    #[inline]
    pub(in crate::heap) fn forget_by_size(&mut self, size_bytes: u64) {
        if let Some(stacks) = self.by_size.as_deref_mut() {
            stacks.forget(SizeAt::of(size_bytes));
        }
    }

    /// Whether it has neither a free block nor an unmapped one.
    pub(crate) fn has_no_block(&self) -> bool {
        self.free.as_ref().is_none_or(|free| free.is_empty()) && self.unmapped.is_empty()
    }
}
