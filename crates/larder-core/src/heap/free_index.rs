//! The free blocks of one pool on one stream, in PyTorch's order: by size, then by address.
//!
//! Sizes fall into bins, 64 to a power of two; a two-level bitmap says which bins hold anything,
//! so the smallest block that fits is found with two counts of trailing zeros and a look into one
//! or two bins. Most bins hold no block or one, so a bin is a sorted list through the blocks
//! themselves; one that grows long moves into rows.

use crate::heap::block::{Block, BlockId, Blocks};
use crate::heap::rows::{Entry, Rows};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::Addr;

const WORDS: usize = 64;
const BINS_PER_WORD: usize = 64;
const BINS: usize = WORDS * BINS_PER_WORD;
/// A list longer than this moves into rows, and stays there until it is empty.
const LIST_MAX: u8 = 16;

/// What a bin holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bin {
    Empty,
    /// A list of so many blocks.
    List {
        first: BlockId,
        len: u8,
    },
    /// These of the rows.
    Rows(u32),
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

fn key(block: &Block) -> (u64, Addr) {
    (block.size_bytes, block.addr)
}

impl FreeIndex {
    pub(crate) fn new() -> FreeIndex {
        let bins = vec![Bin::Empty; BINS].into_boxed_slice();
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
    pub(crate) fn find(&self, blocks: &Blocks, size_bytes: u64) -> Option<Spot> {
        let bin = bin_of(size_bytes);
        let spot =
            self.first_from(bin, self.words[bin / BINS_PER_WORD] >> (bin % BINS_PER_WORD))?;
        // Only in the size's own bin can there be blocks that are too small.
        if blocks[spot.id].size_bytes >= size_bytes {
            return Some(spot);
        }
        self.find_behind(blocks, spot, size_bytes)
    }

    /// The first block behind this one that is large enough.
    #[inline(never)]
    fn find_behind(&self, blocks: &Blocks, spot: Spot, size_bytes: u64) -> Option<Spot> {
        let Spot { mut id, bin } = spot;
        if let Bin::Rows(rows) = self.bins[bin] {
            if let Some(entry) = self.rows[rows as usize].find((size_bytes, Addr(0))) {
                return Some(Spot { id: entry.id, bin });
            }
        } else {
            while let Some(next) = blocks[id].shelf_next {
                id = next;
                if blocks[id].size_bytes >= size_bytes {
                    return Some(Spot { id, bin });
                }
            }
        }
        self.first_behind(bin)
    }

    /// The first block behind a bin.
    fn first_behind(&self, bin: usize) -> Option<Spot> {
        let bin = bin + 1;
        let bits = self.words.get(bin / BINS_PER_WORD)? >> (bin % BINS_PER_WORD);
        self.first_from(bin, bits)
    }

    /// The first block from a bin on; `bits` are those of this bin and of those behind it in its
    /// word.
    #[inline]
    fn first_from(&self, bin: usize, bits: u64) -> Option<Spot> {
        if bits != 0 {
            return self.first_of(bin + bits.trailing_zeros() as usize);
        }
        // Shifted twice, because a shift by 64 is not one.
        let words = self.top & (u64::MAX << (bin / BINS_PER_WORD) << 1);
        if words == 0 {
            return None;
        }
        let word = words.trailing_zeros() as usize % WORDS;
        self.first_of(word * BINS_PER_WORD + self.words[word].trailing_zeros() as usize)
    }

    /// The first block of a bin that holds any.
    #[inline]
    fn first_of(&self, bin: usize) -> Option<Spot> {
        let bin = bin % BINS;
        let id = match self.bins[bin] {
            Bin::Empty => return None,
            Bin::List { first, .. } => first,
            Bin::Rows(rows) => self.rows[rows as usize].first()?.id,
        };
        Some(Spot { id, bin })
    }

    /// The block behind this one, in order.
    pub(crate) fn next(&self, blocks: &Blocks, Spot { id, bin }: Spot) -> Option<Spot> {
        let block = &blocks[id];
        let next = match self.bins[bin] {
            Bin::Empty => None,
            Bin::List { .. } => block.shelf_next,
            Bin::Rows(rows) => self.rows[rows as usize].next(key(block)).map(|entry| entry.id),
        };
        if let Some(id) = next {
            return Some(Spot { id, bin });
        }
        self.first_behind(bin)
    }

    /// Puts in a block. Its size and address must not change until it is taken out.
    #[inline(always)]
    #[allow(clippy::inline_always)] // The usual case is a few stores.
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: BlockId) {
        let block = &mut blocks[id];
        let bin = bin_of(block.size_bytes);
        block.bin = bin as u16;
        if self.bins[bin] == Bin::Empty {
            (block.shelf_prev, block.shelf_next) = (None, None);
            self.bins[bin] = Bin::List { first: id, len: 1 };
            self.words[bin / BINS_PER_WORD] |= 1 << (bin % BINS_PER_WORD);
            self.top |= 1 << (bin / BINS_PER_WORD);
        } else {
            self.insert_among(blocks, bin, id);
        }
    }

    /// Puts a block into a bin that holds others.
    #[inline(never)]
    fn insert_among(&mut self, blocks: &mut Blocks, bin: usize, id: BlockId) {
        let own = key(&blocks[id]);
        let (first, len) = match self.bins[bin] {
            Bin::List { first, len } if len < LIST_MAX => (Some(first), len),
            _ => return self.insert_into_rows(blocks, bin, id),
        };
        let (mut prev, mut next) = (None, first);
        while let Some(at) = next.filter(|&at| key(&blocks[at]) < own) {
            (prev, next) = (next, blocks[at].shelf_next);
        }
        (blocks[id].shelf_prev, blocks[id].shelf_next) = (prev, next);
        if let Some(prev) = prev {
            blocks[prev].shelf_next = Some(id);
        }
        if let Some(next) = next {
            blocks[next].shelf_prev = Some(id);
        }
        let first = if prev.is_none() { id } else { first.unwrap_or(id) };
        self.bins[bin] = Bin::List { first, len: len + 1 };
    }

    /// Puts a block into a long bin; one that was a list until now moves into rows.
    fn insert_into_rows(&mut self, blocks: &Blocks, bin: usize, id: BlockId) {
        let entry = |id: BlockId| {
            let (size_bytes, addr) = key(&blocks[id]);
            Entry { size_bytes, addr, id }
        };
        let at = if let Bin::Rows(at) = self.bins[bin] {
            at
        } else {
            let at = self.spare_rows.pop().unwrap_or_else(|| {
                self.rows.push(Rows::new());
                self.spare_rows.reserve(self.rows.len());
                (self.rows.len() - 1) as u32
            });
            let first = self.first_of(bin).map(|spot| spot.id);
            let list = std::iter::successors(first, |&id| blocks[id].shelf_next);
            list.for_each(|id| self.rows[at as usize].insert(entry(id)));
            self.bins[bin] = Bin::Rows(at);
            at
        };
        self.rows[at as usize].insert(entry(id));
    }

    /// Takes out a block, which must be there.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: BlockId) {
        let bin = usize::from(blocks[id].bin) % BINS;
        self.remove_at(blocks, Spot { id, bin });
    }

    /// Takes out the block at a spot.
    #[inline]
    pub(crate) fn remove_at(&mut self, blocks: &mut Blocks, Spot { id, bin }: Spot) {
        if let Bin::List { len: 1, .. } = self.bins[bin] {
            self.empty(bin);
        } else {
            self.remove_from(blocks, bin, id);
        }
    }

    /// A bin lost its last block.
    #[inline]
    fn empty(&mut self, bin: usize) {
        self.bins[bin % BINS] = Bin::Empty;
        let word = bin / BINS_PER_WORD % WORDS;
        self.words[word] &= !(1 << (bin % BINS_PER_WORD));
        // With no branch: whether a word falls empty is anybody's guess.
        self.top &= !(u64::from(self.words[word] == 0) << word);
    }

    /// Takes a block out of a bin that holds others, or is in rows.
    #[inline(never)]
    fn remove_from(&mut self, blocks: &mut Blocks, bin: usize, id: BlockId) {
        let block = &blocks[id];
        match self.bins[bin] {
            Bin::Empty => unreachable!("a free block is indexed"),
            Bin::Rows(at) => {
                let rows = &mut self.rows[at as usize];
                rows.remove(key(block));
                if rows.len() == 0 {
                    self.spare_rows.push(at);
                    self.empty(bin);
                }
            }
            Bin::List { first, len } => {
                let (prev, next) = (block.shelf_prev, block.shelf_next);
                if let Some(prev) = prev {
                    blocks[prev].shelf_next = next;
                }
                if let Some(next) = next {
                    blocks[next].shelf_prev = prev;
                }
                let first = if prev.is_none() { next.unwrap_or(first) } else { first };
                self.bins[bin] = Bin::List { first, len: len - 1 };
            }
        }
    }

    /// All blocks from the smallest of at least `size_bytes` on, in order.
    pub(crate) fn iter_from<'a>(
        &'a self,
        blocks: &'a Blocks,
        size_bytes: u64,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let spots =
            std::iter::successors(self.find(blocks, size_bytes), |&spot| self.next(blocks, spot));
        spots.map(|spot| spot.id)
    }

    /// All blocks in order.
    pub(crate) fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + 'a {
        self.iter_from(blocks, 0)
    }

    /// The size of the largest block.
    pub(crate) fn largest_bytes(&self, blocks: &Blocks) -> Option<u64> {
        let word = self.top.checked_ilog2()? as usize;
        let bin = word * BINS_PER_WORD + self.words[word % WORDS].ilog2() as usize;
        if let Bin::Rows(rows) = self.bins[bin % BINS] {
            return self.rows[rows as usize].last().map(|entry| entry.size_bytes);
        }
        let mut last = self.first_of(bin)?.id;
        while let Some(next) = blocks[last].shelf_next {
            last = next;
        }
        Some(blocks[last].size_bytes)
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
            self.index.insert(&mut self.blocks, id);
            self.ids.insert((size_bytes, addr), id);
        }

        fn remove(&mut self, size_bytes: u64, addr: u64) {
            let id = self.ids.remove(&(size_bytes, addr)).unwrap();
            self.index.remove(&mut self.blocks, id);
            self.blocks.remove(id);
        }

        fn key(&self, id: BlockId) -> (u64, u64) {
            (self.blocks[id].size_bytes, self.blocks[id].addr.0)
        }

        fn find(&self, size_bytes: u64) -> Option<(u64, u64)> {
            self.index.find(&self.blocks, size_bytes).map(|spot| self.key(spot.id))
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

    /// Against an ordered map: few sizes, so that bins grow long and empty again, and sizes that
    /// share a bin.
    #[test]
    fn it_agrees_with_an_ordered_map() {
        let mut shelf = Shelf::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let size = (random >> 33) % 7 * 512 + if random >> 63 == 0 { 512 } else { 1 << 21 };
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
