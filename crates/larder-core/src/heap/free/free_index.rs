//! The free blocks of one pool on one stream, in PyTorch's order: by size, then by address, or by
//! what else the policy lets decide (`Block::order`).
//!
//! Sizes fall into bins, 64 to a power of two; a two-level bitmap says which bins hold anything,
//! so the smallest block that fits is found with two counts of trailing zeros and a look into one
//! or two bins. Most bins hold no block or one, so a bin is a sorted list through the blocks
//! themselves; one that grows long moves into rows.

use std::hint::select_unpredictable;

use crate::heap::free::rows::{Entry, Rows};
use crate::heap::ids::{BLOCKS_MAX, BlockId, place_of};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::{Block, Blocks, State};

const WORDS: usize = 64;
const BINS_PER_WORD: usize = 64;
const BINS: usize = WORDS * BINS_PER_WORD;
/// Whoever has walked past so many blocks of a list moves it into rows, where it stays until it is
/// empty. Most lists are used at their beginning only, however long they are.
const WALK_MAX: u32 = 32;
/// A list longer than this moves into rows in any case, so that the move does not take long.
const LIST_MAX: u8 = u8::MAX;

/// What a bin holds, in one number: 0 for nothing, the first block of a list, or which rows.
///
/// Rows are numbered from where no arena reaches, so that whoever looks for the first block of a
/// list finds out without a question of its own that there is none: slot 0 is nobody, and behind
/// the arena is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bin(u32);

/// The first number that names rows.
const ROWS: u32 = BLOCKS_MAX;

impl Bin {
    const EMPTY: Bin = Bin(0);

    #[inline]
    fn list(first: Option<BlockId>) -> Bin {
        Bin(first.map_or(0, BlockId::index))
    }

    /// The slot of a list's first block: nobody's if the bin is empty, and none if it holds rows.
    #[inline]
    fn place(self) -> usize {
        self.0 as usize
    }

    /// The first block of a bin that is no rows.
    #[inline]
    fn first(self) -> Option<BlockId> {
        BlockId::from_index(self.0)
    }

    /// The rows that the blocks are in; none if they are in a list.
    #[inline]
    fn rows(self) -> Option<usize> {
        self.0.checked_sub(ROWS).map(|at| at as usize)
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
    bins: [Bin; BINS],
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

/// The block's size and that of the addresses right behind it that it could grow into.
fn room_bytes(slots: &[Block], id: BlockId) -> u64 {
    let block = &slots[id.place()];
    // Nobody is live, so that it needs no question whether there is a block behind.
    let next = &slots[place_of(block.next)];
    block.size_bytes + if next.state == State::Unmapped { next.size_bytes } else { 0 }
}

#[inline]
fn key(block: &Block) -> (u64, u64) {
    (block.size_bytes, block.order)
}

fn entry(slots: &[Block], id: BlockId) -> Entry {
    let (size_bytes, order) = key(&slots[id.place()]);
    Entry { size_bytes, order, id }
}

/// Whether one block comes before another in order. With no branch on which of the two numbers
/// decides.
#[inline]
fn is_before(one: &Block, other: &Block) -> bool {
    let wide = |block: &Block| u128::from(block.size_bytes) << 64 | u128::from(block.order);
    wide(one) < wide(other)
}

impl FreeIndex {
    /// No blocks, and bins for all sizes: some 17 KiB.
    #[cold]
    pub(crate) fn new() -> Box<FreeIndex> {
        let (rows, spare_rows) = (Vec::new(), Vec::new());
        let (words, bins) = ([0; WORDS], [Bin::EMPTY; BINS]);
        Box::new(FreeIndex { top: 0, words, bins, rows, spare_rows })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.top == 0
    }

    /// How much it holds of the host's memory.
    pub(crate) fn held_bytes(&self) -> usize {
        let rows: usize = self.rows.iter().map(Rows::held_bytes).sum();
        size_of::<FreeIndex>() + rows + self.spare_rows.capacity() * size_of::<u32>()
    }

    /// Takes out the block that `find` finds.
    // Mostly it is the first of its bin, which is taken off a list with no look at what is before
    // it.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn take_first(
        &mut self,
        slots: &mut [Block],
        size_bytes: u64,
        growing: bool,
    ) -> Option<BlockId> {
        let (held, bin) = self.first_from(bin_of(size_bytes))?;
        match slots.get(held.place()) {
            Some(block) if block.size_bytes >= size_bytes => {
                let (id, next) = (held.first()?, block.shelf_next);
                if block.expandable {
                    return self.take_expandable(slots, Spot { id, bin }, growing);
                }
                self.remove_first(slots, bin, next);
                Some(id)
            }
            _ => self.take_behind(slots, (held, bin), size_bytes, growing),
        }
    }

    #[inline(never)]
    fn take_behind(
        &mut self,
        slots: &mut [Block],
        from: (Bin, usize),
        size_bytes: u64,
        growing: bool,
    ) -> Option<BlockId> {
        let spot = self.find_behind(slots, from, size_bytes)?;
        if slots[spot.id.place()].expandable {
            return self.take_expandable(slots, spot, growing);
        }
        self.remove_at(slots, spot);
        Some(spot.id)
    }

    /// Takes out the block that a search that came to an expandable one ends at.
    #[inline(never)]
    fn take_expandable(
        &mut self,
        slots: &mut [Block],
        spot: Spot,
        growing: bool,
    ) -> Option<BlockId> {
        let spot = self.search_expandable(slots, growing, spot)?;
        self.remove_at(slots, spot);
        Some(spot.id)
    }

    /// Takes the first block off a list. `next` is the block behind it.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn remove_first(&mut self, slots: &mut [Block], bin: usize, next: Option<BlockId>) {
        slots[place_of(next)].shelf_prev = None;
        self.bins[bin] = Bin::list(next);
        self.note_empty(bin, next.is_none());
    }

    /// The search goes on from an expandable block: past those that can still grow a lot, so that
    /// the growable end of a segment is taken last; or past all of them while the setting is off.
    fn search_expandable(&self, slots: &[Block], growing: bool, mut spot: Spot) -> Option<Spot> {
        let is_expandable = |spot: Spot| slots[spot.id.place()].expandable;
        if !growing {
            let mut onward = std::iter::successors(Some(spot), |&spot| self.next(slots, spot));
            return onward.find(|&spot| !is_expandable(spot));
        }
        let mut least_bytes = room_bytes(slots, spot.id);
        // None behind it has less room than it has bytes.
        while is_expandable(spot) && least_bytes > slots[spot.id.place()].size_bytes {
            let Some(next) = self.next(slots, spot) else { break };
            let next_bytes = room_bytes(slots, next.id);
            if next_bytes >= least_bytes {
                break;
            }
            (spot, least_bytes) = (next, next_bytes);
        }
        Some(spot)
    }

    /// The smallest block of at least `size_bytes`; of several, the first in order. An expandable
    /// one is passed over as `search_expandable` says.
    pub(crate) fn find(&mut self, slots: &[Block], size_bytes: u64, growing: bool) -> Option<Spot> {
        let first = self.first_from(bin_of(size_bytes))?;
        let spot = self.find_behind(slots, first, size_bytes)?;
        let ends_here = !slots[spot.id.place()].expandable;
        if ends_here { Some(spot) } else { self.search_expandable(slots, growing, spot) }
    }

    /// The smallest block of at least `size_bytes` that lies in an expandable segment.
    pub(crate) fn find_expandable(&mut self, slots: &[Block], size_bytes: u64) -> Option<Spot> {
        let first = self.first_from(bin_of(size_bytes))?;
        let spot = self.find_behind(slots, first, size_bytes)?;
        let mut onward = std::iter::successors(Some(spot), |&spot| self.next(slots, spot));
        onward.find(|spot| slots[spot.id.place()].expandable)
    }

    /// Finds where it is known which bin the block is in, or behind which.
    fn find_behind(
        &mut self,
        slots: &[Block],
        from: (Bin, usize),
        size_bytes: u64,
    ) -> Option<Spot> {
        let (found, passed) = self.seek(slots, from, size_bytes);
        if passed > WALK_MAX {
            // The list that was walked in; what was found may be in another bin.
            self.move_into_rows(slots, from.1);
        }
        found
    }

    /// The first block from a bin on that is large enough, and how many were passed in a list. Only
    /// in the size's own bin can there be blocks that are too small.
    fn seek(
        &self,
        slots: &[Block],
        (held, bin): (Bin, usize),
        size_bytes: u64,
    ) -> (Option<Spot>, u32) {
        if let Some(at) = held.rows() {
            let found = self.rows[at].find((size_bytes, 0));
            let spot = found.map(|entry| Spot { id: entry.id, bin });
            return (spot.or_else(|| self.first_behind(bin)), 0);
        }
        let (mut at, mut passed) = (held.first(), 0);
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
        let (held, bin) = if bin + 1 < BINS { self.first_from(bin + 1)? } else { return None };
        let id = match held.rows() {
            None => held.first(),
            Some(at) => self.rows[at].first().map(|entry| entry.id),
        };
        id.map(|id| Spot { id, bin })
    }

    /// The first bin from one on that holds anything, and what it holds. Whether it is in the bin's
    /// own word or in a later one is anybody's guess, so that there is no branch on it.
    #[inline]
    fn first_from(&self, bin: usize) -> Option<(Bin, usize)> {
        let word = bin / BINS_PER_WORD % WORDS;
        let own = u64::MAX << (bin % BINS_PER_WORD);
        // Shifted twice, because a shift by 64 is not one.
        let later = self.top & (u64::MAX << word << 1);
        let here = self.words[word] & own;
        if later | here == 0 {
            return None;
        }
        let next = later.trailing_zeros() as usize % WORDS;
        let word = select_unpredictable(here != 0, word, next);
        let bits = select_unpredictable(here != 0, here, self.words[next]);
        let bin = (word * BINS_PER_WORD + bits.trailing_zeros() as usize) % BINS;
        Some((self.bins[bin], bin))
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

    /// Puts in a block. Its size and order must not change until it is taken out.
    // Always inlined: the usual case is a few stores. A block that comes before all others of its
    // bin is put there with no branch on whether there are any.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn insert(&mut self, slots: &mut [Block], id: BlockId) {
        let block = &slots[id.place()];
        let bin = bin_of(block.size_bytes);
        let held = self.bins[bin];
        match slots.get(held.place()) {
            Some(first) if first.depth < LIST_MAX && is_before(block, first) => {
                let depth = first.depth + 1;
                self.bins[bin] = Bin::list(Some(id));
                self.words[bin / BINS_PER_WORD] |= 1 << (bin % BINS_PER_WORD);
                self.top |= 1 << (bin / BINS_PER_WORD);
                let block = &mut slots[id.place()];
                (block.bin, block.depth) = (bin as u16, depth);
                (block.shelf_prev, block.shelf_next) = (None, held.first());
                slots[held.place()].shelf_prev = Some(id);
            }
            _ => self.insert_among(slots, bin, id),
        }
    }

    /// Puts a block into a bin behind others, or into rows.
    #[inline(never)]
    fn insert_among(&mut self, slots: &mut [Block], bin: usize, id: BlockId) {
        slots[id.place()].bin = bin as u16;
        let held = self.bins[bin];
        let is_long = held.rows().is_some() || slots[held.place()].depth == LIST_MAX;
        if is_long {
            return self.insert_into_rows(slots, bin, id);
        }
        let (mut prev, mut next, mut passed) = (None, held.first(), 0);
        while is_before(&slots[place_of(next)], &slots[id.place()]) {
            let block = &mut slots[place_of(next)];
            block.depth += 1;
            (prev, next, passed) = (next, block.shelf_next, passed + 1);
        }
        let depth = slots[place_of(next)].depth + 1;
        let block = &mut slots[id.place()];
        (block.shelf_prev, block.shelf_next, block.depth) = (prev, next, depth);
        slots[place_of(prev)].shelf_next = Some(id);
        slots[place_of(next)].shelf_prev = Some(id);
        if passed > WALK_MAX {
            self.move_into_rows(slots, bin);
        }
    }

    /// Puts a block into a long bin; one that was a list until now moves into rows.
    fn insert_into_rows(&mut self, slots: &[Block], bin: usize, id: BlockId) {
        let at = self.bins[bin].rows().unwrap_or_else(|| self.move_into_rows(slots, bin));
        self.rows[at].insert(entry(slots, id));
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
        let held = &mut self.bins[bin];
        let list = std::iter::successors(held.first(), |&id| slots[id.place()].shelf_next);
        list.for_each(|id| self.rows[at as usize].insert(entry(slots, id)));
        *held = Bin(ROWS + at);
        at as usize
    }

    /// Takes out a block, which must be there.
    #[inline(always)]
    #[allow(clippy::inline_always)]
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
        let held = &mut self.bins[bin];
        if let Some(at) = held.rows() {
            return self.remove_from_rows(slots, bin, at, id);
        }
        let block = &slots[id.place()];
        let (prev, next) = (block.shelf_prev, block.shelf_next);
        slots[place_of(prev)].shelf_next = next;
        slots[place_of(next)].shelf_prev = prev;
        *held = select_unpredictable(prev.is_none(), Bin::list(next), *held);
        let is_empty = *held == Bin::EMPTY;
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
        let first = first.and_then(|first| self.seek(slots, first, size_bytes).0);
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
        let mut last = self.bins[bin % BINS].first()?;
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
    use crate::types::{Addr, GIB};

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
        index: Box<FreeIndex>,
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
            self.index.find(self.blocks.slots(), size_bytes, true).map(|spot| self.key(spot.id))
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

    /// A list that was filled from its beginning, so that nobody walked in it, is walked to its end
    /// by a search that then finds what it looks for in rows.
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
