//! The free blocks of one pool on one stream, in PyTorch's order: by size, then by address.
//!
//! Sizes fall into bins, 64 to a power of two; a two-level bitmap says which bins hold anything,
//! so the smallest block that fits is found with two counts of trailing zeros and a look into one
//! or two bins. Most bins hold no block or one, so a bin is a sorted list through the blocks
//! themselves; one that grows long moves into rows.

use std::hint::select_unpredictable;

use crate::heap::block::{Block, BlockId, Blocks, place_of};
use crate::heap::rows::{Entry, Rows};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::Addr;

const WORDS: usize = 64;
const BINS_PER_WORD: usize = 64;
const BINS: usize = WORDS * BINS_PER_WORD;
/// Whoever has walked past so many blocks of a list moves it into rows, where it stays until it is
/// empty. Most lists are used at their beginning only, however long they are.
const WALK_MAX: u32 = 32;
/// A list longer than this moves into rows in any case, so that the move does not take long.
const LIST_MAX: u32 = 256;

/// What a bin holds: nothing, a list, or rows.
#[derive(Clone, Copy, Debug)]
struct Bin {
    /// The first block in order, of a list or of rows.
    first: Option<BlockId>,
    /// How many blocks are in the list; or, from `ROWS` on, which of the rows they are in.
    len: u32,
}

/// More than any list is long.
const ROWS: u32 = 1 << 16;

impl Bin {
    const EMPTY: Bin = Bin { first: None, len: 0 };

    /// The rows that the blocks are in; none if they are in a list.
    fn rows(self) -> Option<usize> {
        self.len.checked_sub(ROWS).map(|at| at as usize)
    }
}

/// A block in the index, and its bin. Good until the next change of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) id: BlockId,
    bin: usize,
}

/// The index. See the module's page.
#[derive(Clone, Debug)]
pub(crate) struct FreeIndex {
    /// Which words have a bit.
    top: u64,
    /// Which bins hold anything.
    words: [u64; WORDS],
    bins: Box<[Bin; BINS]>,
    rows: Vec<Rows>,
    /// Rows that no bin uses.
    spare_rows: Vec<u32>,
}

/// The bin of a size. It never falls as the size grows.
#[inline]
fn bin_of(size_bytes: u64) -> usize {
    let units = size_bytes / BLOCK_UNIT_BYTES;
    // Up to 127 units each size has a bin of its own; from there on each power of two has 64.
    let shift = (units | BINS_PER_WORD as u64).ilog2() - BINS_PER_WORD.ilog2();
    ((units >> shift) + (u64::from(shift) << BINS_PER_WORD.ilog2())) as usize % BINS
}

#[inline]
fn key(block: &Block) -> (u64, Addr) {
    (block.size_bytes, block.addr)
}

fn entry(slots: &[Block], id: BlockId) -> Entry {
    let (size_bytes, addr) = key(&slots[id.place()]);
    Entry { size_bytes, addr, id }
}

/// Whether one block comes before another in order. With no branch on which of the two numbers
/// decides.
#[inline]
fn is_before(one: &Block, other: &Block) -> bool {
    let wide = |block: &Block| u128::from(block.size_bytes) << 64 | u128::from(block.addr.0);
    wide(one) < wide(other)
}

impl FreeIndex {
    pub(crate) fn new() -> FreeIndex {
        let bins = vec![Bin::EMPTY; BINS].into_boxed_slice();
        FreeIndex {
            top: 0,
            words: [0; WORDS],
            bins: bins.try_into().expect("so many bins"),
            rows: Vec::new(),
            spare_rows: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.top == 0
    }

    /// The smallest block of at least `size_bytes`; of several, the lowest.
    #[inline]
    pub(crate) fn find(&mut self, slots: &[Block], size_bytes: u64) -> Option<Spot> {
        let spot = self.first_from(bin_of(size_bytes))?;
        // Only in the size's own bin can there be blocks that are too small.
        if slots[spot.id.place()].size_bytes >= size_bytes {
            return Some(spot);
        }
        self.find_behind(slots, spot, size_bytes)
    }

    #[inline(never)]
    fn find_behind(&mut self, slots: &[Block], spot: Spot, size_bytes: u64) -> Option<Spot> {
        let (found, passed) = self.seek(slots, spot, size_bytes);
        if passed > WALK_MAX {
            // The list that was walked in; what was found may be in another bin.
            self.move_into_rows(slots, spot.bin);
        }
        found
    }

    /// The first block from this one on that is large enough, and how many were passed in a list.
    fn seek(&self, slots: &[Block], spot: Spot, size_bytes: u64) -> (Option<Spot>, u32) {
        let Spot { id, bin } = spot;
        if let Some(rows) = self.rows_of(bin) {
            let found = rows.find((size_bytes, Addr(0)));
            let spot = found.map(|entry| Spot { id: entry.id, bin });
            return (spot.or_else(|| self.first_behind(bin)), 0);
        }
        let (mut at, mut passed) = (Some(id), 0);
        while let Some(id) = at {
            let block = &slots[id.place()];
            if block.size_bytes >= size_bytes {
                return (Some(Spot { id, bin }), passed);
            }
            (at, passed) = (block.shelf_next, passed + 1);
        }
        (self.first_behind(bin), passed)
    }

    /// The first block behind a bin.
    fn first_behind(&self, bin: usize) -> Option<Spot> {
        if bin + 1 < BINS { self.first_from(bin + 1) } else { None }
    }

    /// The first block from a bin on. Whether it is in the bin's own word or in a later one is
    /// anybody's guess, so that there is no branch on it.
    #[inline]
    fn first_from(&self, bin: usize) -> Option<Spot> {
        let word = bin / BINS_PER_WORD % WORDS;
        let own = u64::MAX << (bin % BINS_PER_WORD);
        // Shifted twice, because a shift by 64 is not one.
        let later = self.top & (u64::MAX << word << 1);
        let is_here = self.words[word] & own != 0;
        if later == 0 && !is_here {
            return None;
        }
        let next = later.trailing_zeros() as usize % WORDS;
        let word = select_unpredictable(is_here, word, next);
        let bits = self.words[word] & select_unpredictable(is_here, own, u64::MAX);
        self.first_of(word * BINS_PER_WORD + bits.trailing_zeros() as usize)
    }

    /// The first block of a bin that holds any.
    #[inline]
    fn first_of(&self, bin: usize) -> Option<Spot> {
        let bin = bin % BINS;
        self.bins[bin].first.map(|id| Spot { id, bin })
    }

    /// The rows that a bin's blocks are in; none if they are in a list.
    fn rows_of(&self, bin: usize) -> Option<&Rows> {
        self.bins[bin].rows().map(|at| &self.rows[at])
    }

    /// The block behind this one, in order.
    pub(crate) fn next(&self, slots: &[Block], Spot { id, bin }: Spot) -> Option<Spot> {
        let block = &slots[id.place()];
        let next = match self.rows_of(bin) {
            None => block.shelf_next,
            Some(rows) => rows.next(key(block)).map(|entry| entry.id),
        };
        if let Some(id) = next {
            return Some(Spot { id, bin });
        }
        self.first_behind(bin)
    }

    /// Puts in a block. Its size and address must not change until it is taken out.
    // Always inlined: the usual case is a few stores. A block that comes before all others of its bin
    // is put there with no branch on whether there are any.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn insert(&mut self, slots: &mut [Block], id: BlockId) {
        let block = &slots[id.place()];
        let bin = bin_of(block.size_bytes);
        let held = self.bins[bin];
        if held.len >= LIST_MAX || !is_before(block, &slots[place_of(held.first)]) {
            return self.insert_among(slots, bin, id);
        }
        slots[place_of(held.first)].shelf_prev = Some(id);
        let block = &mut slots[id.place()];
        block.bin = bin as u16;
        (block.shelf_prev, block.shelf_next) = (None, held.first);
        self.bins[bin] = Bin { first: Some(id), len: held.len + 1 };
        self.words[bin / BINS_PER_WORD] |= 1 << (bin % BINS_PER_WORD);
        self.top |= 1 << (bin / BINS_PER_WORD);
    }

    /// Puts a block into a bin behind others, or into rows.
    #[inline(never)]
    fn insert_among(&mut self, slots: &mut [Block], bin: usize, id: BlockId) {
        let held = self.bins[bin];
        slots[id.place()].bin = bin as u16;
        if held.len >= LIST_MAX {
            return self.insert_into_rows(slots, bin, id);
        }
        let (mut prev, mut next, mut passed) = (None, held.first, 0);
        while is_before(&slots[place_of(next)], &slots[id.place()]) {
            (prev, next, passed) = (next, slots[place_of(next)].shelf_next, passed + 1);
        }
        let block = &mut slots[id.place()];
        (block.shelf_prev, block.shelf_next) = (prev, next);
        slots[place_of(prev)].shelf_next = Some(id);
        slots[place_of(next)].shelf_prev = Some(id);
        self.bins[bin].len = held.len + 1;
        if passed > WALK_MAX {
            self.move_into_rows(slots, bin);
        }
    }

    /// Puts a block into a long bin; one that was a list until now moves into rows.
    fn insert_into_rows(&mut self, slots: &[Block], bin: usize, id: BlockId) {
        let at = self.bins[bin].rows().unwrap_or_else(|| self.move_into_rows(slots, bin));
        let rows = &mut self.rows[at];
        rows.insert(entry(slots, id));
        self.bins[bin].first = rows.first().map(|entry| entry.id);
    }

    /// Moves a list into rows.
    #[cold]
    #[inline(never)]
    fn move_into_rows(&mut self, slots: &[Block], bin: usize) -> usize {
        let at = self.spare_rows.pop().unwrap_or_else(|| {
            self.rows.push(Rows::new());
            self.spare_rows.reserve(self.rows.len());
            (self.rows.len() - 1) as u32
        });
        let first = self.bins[bin].first;
        let list = std::iter::successors(first, |&id| slots[id.place()].shelf_next);
        list.for_each(|id| self.rows[at as usize].insert(entry(slots, id)));
        self.bins[bin] = Bin { first, len: ROWS + at };
        at as usize
    }

    /// Takes out a block, which must be there.
    #[inline(never)]
    pub(crate) fn remove(&mut self, slots: &mut [Block], id: BlockId) {
        let bin = usize::from(slots[id.place()].bin) % BINS;
        self.remove_at(slots, Spot { id, bin });
    }

    /// Takes out the block at a spot.
    // With no branch on where in the list it is, and whether there are others.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn remove_at(&mut self, slots: &mut [Block], Spot { id, bin }: Spot) {
        let bin = bin % BINS;
        if let Some(at) = self.bins[bin].rows() {
            return self.remove_from_rows(slots, bin, at, id);
        }
        let block = &slots[id.place()];
        let (prev, next) = (block.shelf_prev, block.shelf_next);
        slots[place_of(prev)].shelf_next = next;
        slots[place_of(next)].shelf_prev = prev;
        let held = &mut self.bins[bin];
        held.first = select_unpredictable(prev.is_none(), next, held.first);
        held.len -= 1;
        let is_empty = held.first.is_none();
        self.note_empty(bin, is_empty);
    }

    /// A bin lost a block, and maybe its last.
    #[inline]
    fn note_empty(&mut self, bin: usize, is_empty: bool) {
        let word = bin / BINS_PER_WORD % WORDS;
        self.words[word] &= !(u64::from(is_empty) << (bin % BINS_PER_WORD));
        self.top &= !(u64::from(self.words[word] == 0) << word);
    }

    #[inline(never)]
    fn remove_from_rows(&mut self, slots: &[Block], bin: usize, at: usize, id: BlockId) {
        let rows = &mut self.rows[at];
        rows.remove(key(&slots[id.place()]));
        self.bins[bin].first = rows.first().map(|entry| entry.id);
        if rows.len() == 0 {
            self.spare_rows.push(at as u32);
            self.bins[bin] = Bin::EMPTY;
            self.note_empty(bin, true);
        }
    }

    /// All blocks from the smallest of at least `size_bytes` on, in order.
    pub(crate) fn iter_from<'a>(
        &'a self,
        blocks: &'a Blocks,
        size_bytes: u64,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let slots = blocks.slots();
        let first = self.first_from(bin_of(size_bytes));
        let first = first.and_then(|spot| self.seek(slots, spot, size_bytes).0);
        let spots = std::iter::successors(first, |&spot| self.next(slots, spot));
        spots.map(|spot| spot.id)
    }

    /// All blocks in order.
    pub(crate) fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + 'a {
        self.iter_from(blocks, 0)
    }

    /// The size of the largest block.
    pub(crate) fn largest_bytes(&self, blocks: &Blocks) -> Option<u64> {
        let slots = blocks.slots();
        let word = self.top.checked_ilog2()? as usize;
        let bin = word * BINS_PER_WORD + self.words[word % WORDS].ilog2() as usize;
        if let Some(rows) = self.rows_of(bin % BINS) {
            return rows.last().map(|entry| entry.size_bytes);
        }
        let mut last = self.first_of(bin)?.id;
        while let Some(next) = slots[last.place()].shelf_next {
            last = next;
        }
        Some(slots[last.place()].size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::types::GIB;

    #[test]
    fn bins_never_fall_as_sizes_grow() {
        let mut last = 0;
        for size in
            (0..4096).map(|k| k * 512).chain((0..64).map(|k| 1 << k).filter(|s| *s > 1 << 21))
        {
            let bin = bin_of(size);
            assert!(bin >= last && bin < BINS, "{size}");
            last = bin;
        }
        assert!(bin_of(u64::MAX) >= last);
        assert_eq!((bin_of(127 * 512), bin_of(128 * 512), bin_of(130 * 512)), (127, 128, 129));
    }

    /// An index and the blocks in it, by size and address.
    struct Shelf {
        blocks: Blocks,
        index: FreeIndex,
        ids: BTreeMap<(u64, u64), BlockId>,
    }

    impl Shelf {
        fn new() -> Shelf {
            Shelf { blocks: Blocks::new(), index: FreeIndex::new(), ids: BTreeMap::new() }
        }

        fn insert(&mut self, size_bytes: u64, addr: u64) {
            let id = self.blocks.add_for_test(Addr(addr), size_bytes);
            self.index.insert(self.blocks.parts().0, id);
            self.ids.insert((size_bytes, addr), id);
        }

        fn remove(&mut self, size_bytes: u64, addr: u64) {
            let id = self.ids.remove(&(size_bytes, addr)).unwrap();
            self.index.remove(self.blocks.parts().0, id);
            self.blocks.remove(id);
        }

        fn key(&self, id: BlockId) -> (u64, u64) {
            (self.blocks[id].size_bytes, self.blocks[id].addr.0)
        }

        fn find(&mut self, size_bytes: u64) -> Option<(u64, u64)> {
            self.index.find(self.blocks.slots(), size_bytes).map(|spot| self.key(spot.id))
        }
    }

    #[test]
    fn the_smallest_that_fits_comes_first_and_of_equals_the_lowest() {
        let mut shelf = Shelf::new();
        for (size, addr) in [(4096, 900), (2048, 700), (2048, 300), (80 * GIB, 5)] {
            shelf.insert(size, addr);
        }
        assert_eq!(shelf.find(512), Some((2048, 300)));
        assert_eq!(shelf.find(2560), Some((4096, 900)));
        assert_eq!(shelf.find(4608), Some((80 * GIB, 5)));
        assert_eq!(shelf.find(81 * GIB), None);
        assert_eq!(shelf.index.largest_bytes(&shelf.blocks), Some(80 * GIB));
        shelf.remove(2048, 300);
        assert_eq!(shelf.find(512), Some((2048, 700)));
    }

    /// A list that was filled from its beginning, so that nobody walked in it, is walked to its end by a
    /// search that then finds what it looks for in rows.
    #[test]
    fn a_search_that_walks_far_moves_the_list_that_it_walked_in() {
        let mut shelf = Shelf::new();
        let (small, large) = (1 << 21, 1 << 22);
        for at in 0..40 {
            shelf.insert(small, 100_000 - at * 512);
            shelf.insert(large, at * 512);
        }
        assert!(shelf.index.rows_of(bin_of(small)).is_none());
        assert!(shelf.index.rows_of(bin_of(large)).is_some());
        assert_eq!(shelf.find(small + 512), Some((large, 0)));
        assert!(shelf.index.rows_of(bin_of(small)).is_some());
        let all: Vec<_> = shelf.index.iter(&shelf.blocks).map(|id| shelf.key(id)).collect();
        assert_eq!(all, shelf.ids.keys().copied().collect::<Vec<_>>());
        for (size, addr) in all {
            assert_eq!(shelf.find(0), Some((size, addr)));
            shelf.remove(size, addr);
        }
        assert!(shelf.index.is_empty());
    }

    /// Against an ordered map: few sizes, so that bins grow long and empty again, and sizes that
    /// share a bin, with another bin behind it where the search goes on.
    #[test]
    fn it_agrees_with_an_ordered_map() {
        let mut shelf = Shelf::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let class = [512, 1 << 21, 1 << 22][(random >> 60) as usize % 3];
            let size = (random >> 33) % 7 * 512 + class;
            let addr = (random >> 40) % 4000 * 512;
            let grow = step / 4000 % 2 == 0;
            if grow && !shelf.ids.contains_key(&(size, addr)) {
                shelf.insert(size, addr);
            } else if !grow {
                let expected = shelf.ids.range((size, 0)..).next().map(|(&key, _)| key);
                assert_eq!(shelf.find(size), expected);
                // Any block may go, not only the first.
                let gone = shelf.ids.range((size, addr)..).next().map(|(&key, _)| key);
                if let Some((size, addr)) = gone {
                    shelf.remove(size, addr);
                }
            }
            assert_eq!(shelf.index.is_empty(), shelf.ids.is_empty());
            if step % 1000 == 0 {
                let all: Vec<_> = shelf.index.iter(&shelf.blocks).map(|id| shelf.key(id)).collect();
                assert_eq!(all, shelf.ids.keys().copied().collect::<Vec<_>>());
                let largest = shelf.ids.keys().next_back().map(|key| key.0);
                assert_eq!(shelf.index.largest_bytes(&shelf.blocks), largest);
            }
        }
    }
}
