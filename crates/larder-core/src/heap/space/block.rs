//! Blocks: spans of a segment, in an arena, linked to their neighbours by index.

use std::ops::{Index, IndexMut};

use crate::heap::ids::{BLOCKS_MAX, BlockId, LaneId, SegmentId, place_of};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::{Addr, PoolKind, Span};

/// What a block is. One state, not four flags: what cannot be is not expressible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Addresses with no memory behind them, in an expandable segment.
    Unmapped,
    /// In the cache, for anyone on its stream.
    Free,
    /// Given back, and not merged yet. Whoever looks is shown what it will be merged to.
    Deferred,
    /// Handed out.
    Live,
    /// Freed by the program, still awaited on some stream.
    Waiting,
    /// Shown in a view, where a block that is live or waiting has it.
    Lent,
    /// Addresses of a view that no block has.
    Hollow,
}

impl State {
    /// Whether nobody has the block, be it in the index or not yet.
    #[inline]
    #[allow(clippy::needless_bitwise_bool)] // One branch for both.
    pub(crate) fn is_unused(self) -> bool {
        (self == State::Free) | (self == State::Deferred)
    }
}

/// A span of addresses in one segment. It fills a cache line, and never lies on two.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(in crate::heap) addr: Addr,
    pub(in crate::heap) size_bytes: u64,
    /// What the program asked for; the last value stays when the block is free.
    pub(in crate::heap) requested_bytes: u64,
    /// What decides between free blocks of one size: the lower comes first. It rises with the
    /// address by one for each unit, from wherever the policy lets the segment begin, or is a
    /// number that was drawn for it.
    pub(in crate::heap) order: u64,
    pub(in crate::heap) prev: Option<BlockId>,
    pub(in crate::heap) next: Option<BlockId>,
    /// The free blocks before and behind it in its list, while it is in one.
    pub(in crate::heap) shelf_prev: Option<BlockId>,
    pub(in crate::heap) shelf_next: Option<BlockId>,
    /// Its bin in the index of free blocks, while it is there.
    pub(in crate::heap) bin: u16,
    /// So many blocks, or fewer, are in its list from it on, while it is in one. It falls along the
    /// list.
    pub(in crate::heap) depth: u8,
    pub(in crate::heap) segment: SegmentId,
    pub(in crate::heap) lane: LaneId,
    /// The kind of the lane's pool; kept here because every record of the block names it.
    pub(in crate::heap) kind: PoolKind,
    pub(in crate::heap) state: State,
    /// The segment is expandable; kept here because every search asks for it.
    pub(in crate::heap) expandable: bool,
    /// Counted as oversize when it was handed out.
    pub(in crate::heap) oversize: bool,
    /// It asks for care when it is given back: some other stream used it since it was handed out,
    /// and `Pending` knows which, or it lives in a view.
    pub(in crate::heap) used_elsewhere: bool,
}

impl Block {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.addr, self.size_bytes)
    }

    /// Whether the block is a piece of its segment and not the whole.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        // With no branch: both are in the same line.
        self.prev.is_some() | self.next.is_some()
    }
}

/// The arena. Spare slots form a stack, so that a split and a merge cost no host allocation.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// Slot 0 is nobody: it is where a block that has no neighbour finds one that is never free and
    /// larger than any, and where what is written to such a neighbour ends up. That takes the place
    /// of a branch that nobody can predict.
    slots: Vec<Block>,
    /// The first spare slot; each names the next by `next`.
    spare: Option<BlockId>,
    /// By slot, its pool's count of searches when a block became free: its age is measured from it.
    /// Nothing is written here, and every age is zero, before searches are counted.
    free_since: Vec<u64>,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        let nobody = Block {
            addr: Addr(0),
            size_bytes: u64::MAX,
            requested_bytes: 0,
            order: 0,
            prev: None,
            next: None,
            shelf_prev: None,
            shelf_next: None,
            bin: 0,
            depth: 0,
            segment: SegmentId::NONE,
            lane: LaneId(0),
            kind: PoolKind::Small,
            state: State::Live,
            expandable: false,
            oversize: false,
            used_elsewhere: false,
        };
        Blocks { slots: vec![nobody], spare: None, free_since: Vec::new() }
    }

    pub(crate) fn add(&mut self, block: Block) -> BlockId {
        self.reserve();
        let id = take_spare(&mut self.slots, &mut self.spare);
        self[id] = block;
        id
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let index = self.slots.len() as u32;
        assert!(index < BLOCKS_MAX, "fewer than 2 billion blocks");
        let nobody = Block { next: self.spare, ..self.slots[0] };
        self.slots.push(nobody);
        self.spare = BlockId::from_index(index);
    }

    /// Cuts the block in two: it keeps the first `size_bytes`; the rest becomes a new block behind
    /// it.
    pub(crate) fn split(&mut self, id: BlockId, size_bytes: u64) -> BlockId {
        self.reserve();
        let (slots, spare) = self.parts();
        split(slots, spare, id, size_bytes)
    }

    /// Sees to it that there is a spare slot.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        if self.spare.is_none() {
            self.grow();
        }
    }

    /// Joins the block `gone`, which lies right behind `id` and is not live, to it.
    pub(crate) fn join(&mut self, id: BlockId, gone: BlockId) {
        let (slots, spare) = self.parts();
        join(slots, spare, id, gone);
    }

    /// The slots and the first spare one, for whoever does several things in a row: for all that
    /// the compiler knows, what is written to a block might change where the slots are, so that it
    /// would look there each time. What is written to slot 0 is forgotten.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut [Block], &mut Option<BlockId>) {
        (&mut self.slots, &mut self.spare)
    }

    /// All slots. Slot 0 is nobody's.
    #[inline]
    pub(crate) fn slots(&self) -> &[Block] {
        &self.slots
    }

    /// The pool's count of searches when the block became free.
    pub(crate) fn free_since(&self, id: BlockId) -> u64 {
        self.free_since.get(id.place()).copied().unwrap_or(0)
    }

    /// The block became free when its pool had counted so many searches.
    pub(crate) fn set_free_since(&mut self, id: BlockId, searches: u64) {
        if self.free_since.len() <= id.place() {
            self.free_since.resize(self.slots.len(), 0);
        }
        self.free_since[id.place()] = searches;
    }

    /// Forgets a block. Its slot is marked so that nothing mistakes it for a live one.
    pub(crate) fn remove(&mut self, id: BlockId) {
        let spare = self.spare.replace(id);
        let slot = &mut self[id];
        (slot.state, slot.segment, slot.next) = (State::Unmapped, SegmentId::NONE, spare);
    }

    /// A free block of no segment.
    #[cfg(test)]
    pub(crate) fn add_for_test(&mut self, addr: Addr, size_bytes: u64) -> BlockId {
        let filler = self.slots[0];
        self.add(Block { addr, size_bytes, order: addr.0, state: State::Free, ..filler })
    }

    /// How many blocks there are. Counted on demand: only checks ask.
    pub(crate) fn len(&self) -> usize {
        let spare = std::iter::successors(self.spare, |&id| self[id].next);
        self.slots.len() - 1 - spare.count()
    }
}

/// The slot for a new block, with anything in it. There must be a spare one.
#[inline(always)]
#[allow(clippy::inline_always)]
fn take_spare(slots: &mut [Block], spare: &mut Option<BlockId>) -> BlockId {
    let id = spare.expect("a slot was reserved");
    *spare = slots[id.place()].next;
    id
}

/// Cuts the block in two: it keeps the first `size_bytes`; the rest becomes a new block behind it,
/// for which there must be a spare slot. The rest is like the whole in all but what follows from
/// that, and was not handed out as oversize.
#[inline(always)]
#[allow(clippy::inline_always)]
pub(crate) fn split(
    slots: &mut [Block],
    spare: &mut Option<BlockId>,
    id: BlockId,
    size_bytes: u64,
) -> BlockId {
    let rest_id = take_spare(slots, spare);
    // The whole line into its place, and then what differs.
    slots[rest_id.place()] = slots[id.place()];
    let rest = &mut slots[rest_id.place()];
    debug_assert!(size_bytes > 0 && size_bytes < rest.size_bytes);
    rest.addr = rest.addr.offset(size_bytes);
    rest.size_bytes -= size_bytes;
    rest.order += size_bytes / BLOCK_UNIT_BYTES;
    rest.prev = Some(id);
    rest.oversize = false;
    let next = rest.next;
    slots[place_of(next)].prev = Some(rest_id);
    let block = &mut slots[id.place()];
    block.size_bytes = size_bytes;
    block.next = Some(rest_id);
    rest_id
}

/// Joins the block `gone`, which lies right behind `id` and is not live, to it. The lower block
/// stays, so that a segment's first block never changes.
#[inline(always)]
#[allow(clippy::inline_always)] // A call would spend more on saving registers.
pub(crate) fn join(slots: &mut [Block], spare: &mut Option<BlockId>, id: BlockId, gone: BlockId) {
    let block = &mut slots[gone.place()];
    debug_assert!(block.state != State::Live, "an address might still lead to it");
    let (size_bytes, next) = (block.size_bytes, block.next);
    block.next = spare.replace(gone);
    // An address may still lead to it; it must not look free.
    block.state = State::Unmapped;
    let block = &mut slots[id.place()];
    debug_assert_eq!(block.next, Some(gone));
    block.size_bytes += size_bytes;
    block.next = next;
    slots[place_of(next)].prev = Some(id);
}

impl Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id.place()]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.place()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(blocks: &mut Blocks) -> BlockId {
        blocks.add_for_test(Addr(4096), 4096)
    }

    #[test]
    fn a_split_and_its_join_leave_no_trace() {
        let mut blocks = Blocks::new();
        let first = whole(&mut blocks);
        let rest = blocks.split(first, 1024);
        let middle = blocks.split(first, 512);
        assert_eq!(blocks[middle].addr, Addr(4096 + 512));
        assert_eq!(blocks[rest].prev, Some(middle));
        assert_eq!(blocks.len(), 3);
        blocks.join(first, middle);
        blocks.join(first, rest);
        assert_eq!((blocks[first].size_bytes, blocks[first].is_split()), (4096, false));
        assert_eq!(blocks.len(), 1);
    }

    #[test]
    fn slots_are_used_again() {
        let mut blocks = Blocks::new();
        let first = whole(&mut blocks);
        let rest = blocks.split(first, 512);
        blocks.join(first, rest);
        assert_eq!(blocks.split(first, 1024), rest);
    }
}
