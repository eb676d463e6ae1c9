//! The free blocks of one pool on one stream, in PyTorch's order: by size, then by address.
//!
//! Sizes fall into bins, 64 to a power of two; a two-level bitmap says which bins hold anything,
//! so the smallest block that fits is found with two counts of trailing zeros and a look into one
//! or two bins. A bin is a sorted row; one that grows long is cut into several rows, so that an
//! insertion never moves more than a row. Rows run from the last in order to the first, because it
//! is the first that comes and goes: at the end of a row nothing has to move for it.
//!
//! The entry put in last stays outside the bins until the next one comes. It is very often the
//! one taken out next: the rest of a block that was just split is split again, or merged back.

use crate::heap::block::BlockId;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::Addr;

/// Words of the bitmap. Sizes from 2^49 bytes on share the last one's bins; the order inside a
/// bin keeps even those apart.
const WORDS: usize = 36;
const BINS_PER_WORD: usize = 64;
/// A bin with more entries than this is cut into rows.
const ROW_MAX: usize = 64;

/// A free block, with the two numbers that order it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) size_bytes: u64,
    pub(crate) addr: Addr,
    pub(crate) id: BlockId,
}

impl Entry {
    #[inline]
    fn is_before(&self, size_bytes: u64, addr: Addr) -> bool {
        (self.size_bytes, self.addr) < (size_bytes, addr)
    }

    #[inline]
    fn is_before_entry(&self, other: &Entry) -> bool {
        self.is_before(other.size_bytes, other.addr)
    }
}

/// Where an entry stands. Good until the next change of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    /// Outside the bins.
    Recent,
    /// In a bin.
    Binned(Place),
}

/// A place in the bins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    bin: usize,
    row: usize,
    at: usize,
}

/// One bin. Most hold a handful of blocks. One that was long once stays a list of rows, lest a
/// program that fills and empties it pay for the change again and again.
#[derive(Clone, Debug)]
enum Bin {
    Row(Vec<Entry>),
    Rows(Box<Rows>),
}

/// The index. See the module's page.
#[derive(Clone, Debug)]
pub(crate) struct FreeIndex {
    /// The entry put in last, if it is still there.
    recent: Option<Entry>,
    top: u64,
    words: [u64; WORDS],
    bins: Vec<Bin>,
    len: usize,
}

/// The bin of a size. It never falls as the size grows.
#[inline]
fn bin_of(size_bytes: u64) -> usize {
    let units = size_bytes / BLOCK_UNIT_BYTES;
    if units < BINS_PER_WORD as u64 {
        return units as usize;
    }
    let exponent = units.ilog2() as usize;
    let word = exponent - 5;
    if word >= WORDS {
        return WORDS * BINS_PER_WORD - 1;
    }
    let step = (units >> (exponent - 6)) as usize & (BINS_PER_WORD - 1);
    word * BINS_PER_WORD + step
}

/// Takes out one entry of a row. The last one, which comes and goes most, moves no other.
#[inline]
fn remove_from(row: &mut Vec<Entry>, at: usize) {
    if at + 1 == row.len() {
        row.pop();
    } else {
        row.remove(at);
    }
}

/// How many entries of a row are not before the key. They stand first in it.
#[inline]
fn count_from(row: &[Entry], size_bytes: u64, addr: Addr) -> usize {
    // Most often it is all of them: the key is small, or looked for in a bin of one size.
    match row.last() {
        Some(last) if last.is_before(size_bytes, addr) => {
            row.partition_point(|entry| !entry.is_before(size_bytes, addr))
        }
        _ => row.len(),
    }
}

impl FreeIndex {
    pub(crate) fn new() -> FreeIndex {
        let bins = (0..WORDS * BINS_PER_WORD).map(|_| Bin::Row(Vec::new())).collect();
        FreeIndex { recent: None, top: 0, words: [0; WORDS], bins, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The smallest block of at least `size_bytes`; of several, the lowest.
    #[inline]
    pub(crate) fn find(&self, size_bytes: u64) -> Option<Spot> {
        let recent = self.recent.filter(|entry| entry.size_bytes >= size_bytes);
        self.earlier(recent, self.find_binned(size_bytes, Addr(0)))
    }

    /// The spot behind this one, in order.
    pub(crate) fn next(&self, spot: Spot) -> Option<Spot> {
        let here = self.entry(spot);
        let binned = match spot {
            Spot::Recent => self.find_binned(here.size_bytes, here.addr),
            Spot::Binned(place) => self.next_binned(place),
        };
        let recent = self.recent.filter(|entry| here.is_before(entry.size_bytes, entry.addr));
        self.earlier(recent, binned)
    }

    /// The earlier of the entry outside the bins, if it counts, and a place in them.
    #[inline]
    fn earlier(&self, recent: Option<Entry>, binned: Option<Place>) -> Option<Spot> {
        match (recent, binned) {
            (None, None) => None,
            (Some(_), None) => Some(Spot::Recent),
            (Some(entry), Some(place)) if entry.is_before_entry(self.at(place)) => {
                Some(Spot::Recent)
            }
            (_, Some(place)) => Some(Spot::Binned(place)),
        }
    }

    /// The first binned entry not before the key.
    #[inline]
    fn find_binned(&self, size_bytes: u64, addr: Addr) -> Option<Place> {
        let bin = bin_of(size_bytes);
        if self.words[bin / BINS_PER_WORD] & (1 << (bin % BINS_PER_WORD)) != 0
            && let Some((row, at)) = self.bins[bin].find(size_bytes, addr)
        {
            return Some(Place { bin, row, at });
        }
        self.first_behind(bin)
    }

    /// The first entry of the first filled bin behind `bin`.
    #[inline]
    fn first_behind(&self, bin: usize) -> Option<Place> {
        let word = bin / BINS_PER_WORD;
        // Shifted twice, because a shift by 64 is not one.
        let rest = self.words[word] & (u64::MAX << (bin % BINS_PER_WORD) << 1);
        let (word, bits) = if rest != 0 {
            (word, rest)
        } else {
            let words = self.top & (u64::MAX << word << 1);
            if words == 0 {
                return None;
            }
            let word = words.trailing_zeros() as usize;
            (word, self.words[word])
        };
        let bin = word * BINS_PER_WORD + bits.trailing_zeros() as usize;
        let row = self.bins[bin].row_count() - 1;
        Some(Place { bin, row, at: self.bins[bin].row(row).len() - 1 })
    }

    fn next_binned(&self, place: Place) -> Option<Place> {
        if place.at > 0 {
            return Some(Place { at: place.at - 1, ..place });
        }
        if place.row > 0 {
            let row = place.row - 1;
            let at = self.bins[place.bin].row(row).len() - 1;
            return Some(Place { bin: place.bin, row, at });
        }
        self.first_behind(place.bin)
    }

    /// The entry at a spot.
    #[inline]
    pub(crate) fn entry(&self, spot: Spot) -> Entry {
        match spot {
            Spot::Recent => self.recent.expect("a spot is good until the next change"),
            Spot::Binned(place) => *self.at(place),
        }
    }

    #[inline]
    fn at(&self, place: Place) -> &Entry {
        &self.bins[place.bin].row(place.row)[place.at]
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // The usual case is two stores.
    pub(crate) fn insert(&mut self, entry: Entry) {
        self.len += 1;
        if let Some(older) = self.recent.replace(entry) {
            self.bin(older);
        }
    }

    /// Puts an entry into its bin.
    #[inline(never)]
    fn bin(&mut self, entry: Entry) {
        let bin = bin_of(entry.size_bytes);
        self.bins[bin].insert(entry);
        self.words[bin / BINS_PER_WORD] |= 1 << (bin % BINS_PER_WORD);
        self.top |= 1 << (bin / BINS_PER_WORD);
    }

    /// Takes out the entry at a spot.
    #[inline]
    pub(crate) fn remove_at(&mut self, spot: Spot) {
        self.len -= 1;
        match spot {
            Spot::Recent => self.recent = None,
            Spot::Binned(place) => self.unbin(place),
        }
    }

    /// Takes an entry out of its bin.
    #[inline(never)]
    fn unbin(&mut self, place: Place) {
        let empty = self.bins[place.bin].remove_at(place.row, place.at);
        if empty {
            let word = place.bin / BINS_PER_WORD;
            self.words[word] &= !(1 << (place.bin % BINS_PER_WORD));
            if self.words[word] == 0 {
                self.top &= !(1 << word);
            }
        }
    }

    /// Takes out the block of this size and address, which must be there.
    #[inline(always)]
    #[allow(clippy::inline_always)] // The usual case is a comparison and a store.
    pub(crate) fn remove(&mut self, size_bytes: u64, addr: Addr) {
        if self.recent.is_some_and(|entry| entry.addr == addr) {
            self.remove_at(Spot::Recent);
        } else {
            self.remove_binned(size_bytes, addr);
        }
    }

    #[inline(never)]
    fn remove_binned(&mut self, size_bytes: u64, addr: Addr) {
        let bin = bin_of(size_bytes);
        let (row, at) = self.bins[bin].find(size_bytes, addr).expect("a free block is indexed");
        let place = Place { bin, row, at };
        debug_assert_eq!((self.at(place).size_bytes, self.at(place).addr), (size_bytes, addr));
        self.remove_at(Spot::Binned(place));
    }

    /// All entries from the smallest of at least `size_bytes` on, in order.
    pub(crate) fn iter_from(&self, size_bytes: u64) -> impl Iterator<Item = Entry> + '_ {
        let mut spot = self.find(size_bytes);
        std::iter::from_fn(move || {
            let at = spot?;
            spot = self.next(at);
            Some(self.entry(at))
        })
    }

    /// All entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.iter_from(0)
    }

    /// The size of the largest block.
    pub(crate) fn largest_bytes(&self) -> Option<u64> {
        let binned = self.top.checked_ilog2().and_then(|word| {
            let word = word as usize;
            let bin = word * BINS_PER_WORD + self.words[word].ilog2() as usize;
            self.bins[bin].row(0).first().map(|entry| entry.size_bytes)
        });
        binned.max(self.recent.map(|entry| entry.size_bytes))
    }
}

impl Bin {
    #[inline]
    fn row(&self, row: usize) -> &[Entry] {
        match self {
            Bin::Row(entries) => entries,
            Bin::Rows(rows) => &rows.list[row],
        }
    }

    fn row_count(&self) -> usize {
        match self {
            Bin::Row(_) => 1,
            Bin::Rows(rows) => rows.list.len(),
        }
    }

    /// The row and place of the first entry not before the key.
    #[inline]
    fn find(&self, size_bytes: u64, addr: Addr) -> Option<(usize, usize)> {
        match self {
            Bin::Row(entries) => {
                let at = count_from(entries, size_bytes, addr).checked_sub(1)?;
                Some((0, at))
            }
            Bin::Rows(rows) => rows.find(size_bytes, addr),
        }
    }

    #[inline]
    fn insert(&mut self, entry: Entry) {
        match self {
            Bin::Row(entries) if entries.len() < ROW_MAX => {
                let at = count_from(entries, entry.size_bytes, entry.addr);
                entries.insert(at, entry);
            }
            Bin::Row(entries) => {
                let mut rows = Box::new(Rows::new(std::mem::take(entries)));
                rows.insert(entry);
                *self = Bin::Rows(rows);
            }
            Bin::Rows(rows) => rows.insert(entry),
        }
    }

    /// Takes out one entry; says whether the bin is empty now.
    #[inline]
    fn remove_at(&mut self, row: usize, at: usize) -> bool {
        match self {
            Bin::Row(entries) => {
                remove_from(entries, at);
                entries.is_empty()
            }
            Bin::Rows(rows) => {
                rows.remove_at(row, at);
                rows.len == 0
            }
        }
    }
}

/// A long bin: rows of at most `ROW_MAX` entries, from the last in order to the first, and the key
/// at the head of each. No row is empty, but for the last one that is left.
#[derive(Clone, Debug)]
struct Rows {
    heads: Vec<(u64, Addr)>,
    list: Vec<Vec<Entry>>,
    len: usize,
    /// Rows that fell empty, kept so that growing again allocates nothing.
    spare: Vec<Vec<Entry>>,
}

impl Rows {
    fn new(row: Vec<Entry>) -> Rows {
        let head = (row[0].size_bytes, row[0].addr);
        Rows { heads: vec![head], len: row.len(), list: vec![row], spare: Vec::new() }
    }

    /// The lowest row whose head is not before the key; the first row if there is none.
    fn row_of(&self, size_bytes: u64, addr: Addr) -> usize {
        let before = |&head: &(u64, Addr)| head >= (size_bytes, addr);
        self.heads.partition_point(before).saturating_sub(1)
    }

    fn find(&self, size_bytes: u64, addr: Addr) -> Option<(usize, usize)> {
        let row = self.row_of(size_bytes, addr);
        let at = count_from(&self.list[row], size_bytes, addr).checked_sub(1)?;
        Some((row, at))
    }

    fn insert(&mut self, entry: Entry) {
        let mut row = self.row_of(entry.size_bytes, entry.addr);
        if self.list[row].len() == ROW_MAX {
            self.cut(row);
            row = self.row_of(entry.size_bytes, entry.addr);
        }
        let at = count_from(&self.list[row], entry.size_bytes, entry.addr);
        self.list[row].insert(at, entry);
        if at == 0 {
            self.heads[row] = (entry.size_bytes, entry.addr);
        }
        self.len += 1;
    }

    /// Moves the lower half of a row into a row of its own.
    fn cut(&mut self, row: usize) {
        let mut lower = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(ROW_MAX));
        lower.extend(self.list[row].drain(ROW_MAX / 2..));
        self.heads.insert(row + 1, (lower[0].size_bytes, lower[0].addr));
        self.list.insert(row + 1, lower);
    }

    fn remove_at(&mut self, row: usize, at: usize) {
        let entries = &mut self.list[row];
        remove_from(entries, at);
        self.len -= 1;
        if entries.is_empty() && self.list.len() > 1 {
            self.heads.remove(row);
            self.spare.push(self.list.remove(row));
        } else if let (0, Some(head)) = (at, self.list[row].first()) {
            self.heads[row] = (head.size_bytes, head.addr);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::types::GIB;

    fn entry(size_bytes: u64, addr: u64) -> Entry {
        Entry { size_bytes, addr: Addr(addr), id: BlockId::from_index(1).unwrap() }
    }

    #[test]
    fn bins_never_fall_as_sizes_grow() {
        let mut last = 0;
        for size in
            (0..4096).map(|k| k * 512).chain((0..60).map(|k| 1 << k).filter(|s| *s > 1 << 21))
        {
            let bin = bin_of(size);
            assert!(bin >= last && bin < WORDS * BINS_PER_WORD, "{size}");
            last = bin;
        }
        assert_eq!(bin_of(u64::MAX), WORDS * BINS_PER_WORD - 1);
    }

    #[test]
    fn the_smallest_that_fits_comes_first_and_of_equals_the_lowest() {
        let mut index = FreeIndex::new();
        for (size, addr) in [(4096, 900), (2048, 700), (2048, 300), (80 * GIB, 5)] {
            index.insert(entry(size, addr));
        }
        let find = |index: &FreeIndex, size| index.find(size).map(|spot| index.entry(spot).addr.0);
        assert_eq!(find(&index, 512), Some(300));
        assert_eq!(find(&index, 2560), Some(900));
        assert_eq!(find(&index, 4608), Some(5));
        assert_eq!(find(&index, 81 * GIB), None);
        assert_eq!(index.largest_bytes(), Some(80 * GIB));
        index.remove(2048, Addr(300));
        assert_eq!(find(&index, 512), Some(700));
    }

    /// Against an ordered set, with few sizes so that bins grow long and are cut and joined.
    #[test]
    fn it_agrees_with_an_ordered_set() {
        let mut index = FreeIndex::new();
        let mut model = BTreeSet::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let (size, addr) = ((random >> 33) % 7 * 512 + 512, (random >> 40) % 4000 * 512);
            let grow = step / 4000 % 2 == 0;
            if grow && model.insert((size, addr)) {
                index.insert(entry(size, addr));
            } else if !grow {
                let found = index.find(size).map(|spot| (spot, index.entry(spot)));
                let expected = model.range((size, 0)..).next().copied();
                assert_eq!(found.map(|(_, entry)| (entry.size_bytes, entry.addr.0)), expected);
                if let (Some((spot, _)), Some(key)) = (found, expected) {
                    index.remove_at(spot);
                    model.remove(&key);
                }
            }
            assert_eq!(index.len(), model.len());
        }
        let all: Vec<_> = index.iter().map(|entry| (entry.size_bytes, entry.addr.0)).collect();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }
}
