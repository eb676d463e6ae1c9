//! Stacks of small blocks by their size: a lane's blocks whose frees were deferred, so that the
//! next request of a size finds the one that came last.

use crate::error::Unsound;
use crate::heap::ids::BlockId;
use crate::heap::size::{BLOCK_UNIT_BYTES, SMALL_MAX_BYTES};

/// There is a size for each number of units that a small block may have.
const SIZES: usize = (SMALL_MAX_BYTES / BLOCK_UNIT_BYTES) as usize;
const SIZES_PER_WORD: usize = u64::BITS as usize;
/// How many words it takes to say which sizes there are.
pub(in crate::heap) const WORDS: usize = SIZES / SIZES_PER_WORD;
/// Where so many are deferred in a lane, the next one has those coalesced: so that never takes
/// long, and sizes that nobody asks for any more do not keep their neighbours apart.
pub(in crate::heap) const LANE_MAX: u32 = 4096;

/// A size, as the number of its units, less one.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct SizeAt(usize);

impl SizeAt {
    /// The size of a block for a request of at least one byte.
    #[inline]
    pub(in crate::heap) fn of(size_bytes: u64) -> SizeAt {
        debug_assert!(size_bytes > 0, "no block has no bytes");
        SizeAt((size_bytes.wrapping_sub(1) / BLOCK_UNIT_BYTES) as usize % SIZES)
    }

    /// All sizes, with what they are in bytes.
    pub(in crate::heap) fn all() -> impl Iterator<Item = (SizeAt, u64)> {
        (0..SIZES).map(|at| (SizeAt(at), (at as u64 + 1) * BLOCK_UNIT_BYTES))
    }
}

/// The small blocks of one lane whose frees were deferred.
#[derive(Clone, Debug)]
pub(in crate::heap) struct SizeStacks {
    /// How many blocks may still come before all are coalesced.
    room: u32,
    /// For each size the block that came last; it names the one before it by `shelf_next`.
    firsts: [Option<BlockId>; SIZES],
    /// Which sizes may have blocks.
    words: [u64; WORDS],
}

impl SizeStacks {
    #[cold]
    pub(in crate::heap) fn new() -> Box<SizeStacks> {
        Box::new(SizeStacks { room: LANE_MAX, firsts: [None; SIZES], words: [0; WORDS] })
    }

    /// Whether one more block may come.
    #[inline]
    pub(in crate::heap) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// The block of a size that came last.
    #[inline]
    pub(in crate::heap) fn first(&self, size: SizeAt) -> Option<BlockId> {
        self.firsts[size.0]
    }

    /// Takes off the block of a size that came last; this is the one before it.
    #[inline]
    pub(in crate::heap) fn pop(&mut self, size: SizeAt, before: Option<BlockId>) {
        self.firsts[size.0] = before;
        self.room += 1;
    }

    /// Puts on a block; the one that came before it goes out.
    #[inline]
    pub(in crate::heap) fn push(&mut self, size: SizeAt, id: BlockId) -> Option<BlockId> {
        debug_assert!(self.has_room(), "a stack takes no more");
        self.room -= 1;
        self.words[size.0 / SIZES_PER_WORD] |= 1 << (size.0 % SIZES_PER_WORD);
        self.firsts[size.0].replace(id)
    }

    /// Takes off all blocks of the largest size that is in a word: the size, and the block that
    /// came last.
    pub(in crate::heap) fn take_size(&mut self, word: usize) -> Option<(SizeAt, Option<BlockId>)> {
        let bit = self.words[word].checked_ilog2()?;
        self.words[word] ^= 1 << bit;
        let size = word * SIZES_PER_WORD + bit as usize;
        Some((SizeAt(size), self.firsts[size].take()))
    }

    /// So many blocks that were taken off were coalesced, and of their size these are left.
    pub(in crate::heap) fn put_back(&mut self, size: SizeAt, count: u32, first: Option<BlockId>) {
        self.room += count;
        if first.is_some() {
            self.firsts[size.0] = first;
            self.words[size.0 / SIZES_PER_WORD] |= 1 << (size.0 % SIZES_PER_WORD);
        }
    }

    /// One block of a size goes with all others: none is found by its size any more.
    #[inline]
    pub(in crate::heap) fn forget(&mut self, size: SizeAt) {
        self.room += 1;
        self.firsts[size.0] = None;
        self.words[size.0 / SIZES_PER_WORD] &= !(1 << (size.0 % SIZES_PER_WORD));
    }

    /// So many blocks are in it, each size that has any is known, and there is room for the others.
    pub(in crate::heap) fn check(&self, count: u32) -> Result<(), Unsound> {
        let is_known =
            |at: usize| self.words[at / SIZES_PER_WORD] >> (at % SIZES_PER_WORD) & 1 == 1;
        if (0..SIZES).any(|at| self.firsts[at].is_some() && !is_known(at)) {
            return Err("a size has blocks and is not known to".into());
        }
        if count + self.room != LANE_MAX {
            return Err(format!("{count} blocks and room for {}", self.room).into());
        }
        Ok(())
    }
}
