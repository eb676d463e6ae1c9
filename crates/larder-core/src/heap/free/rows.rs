//! Rows: the entries of a bin that grew long, in rows of bounded length, so that an insertion
//! never moves more than a row.

use crate::heap::ids::BlockId;

/// The most entries of a row.
const ROW_MAX: usize = 64;
/// For so many rows there is room from the start.
const ROWS_FEW: usize = 4;

/// A free block, with the two numbers that order it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) size_bytes: u64,
    pub(crate) order: u64,
    pub(crate) id: BlockId,
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.size_bytes, self.order)
    }
}

/// Rows of at most `ROW_MAX` entries and the key at the head of each. They run from the last in
/// order to the first, because it is the first that comes and goes: at the end of a row nothing
/// has to move for it. No row is empty, but for the last one that is left.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    heads: Vec<(u64, u64)>,
    list: Vec<Vec<Entry>>,
    len: usize,
    /// Rows that fell empty, kept so that growing again allocates nothing.
    spare: Vec<Vec<Entry>>,
}

/// How many entries of a row are not before the key. They stand first in it.
fn count_from(row: &[Entry], key: (u64, u64)) -> usize {
    // Most often it is all of them: the key is small, or looked for in a bin of one size.
    match row.last() {
        Some(last) if last.key() < key => row.partition_point(|entry| entry.key() >= key),
        _ => row.len(),
    }
}

impl Rows {
    /// No entries, and room for a few rows: a bin that now and then has some more allocates
    /// nothing.
    pub(crate) fn new() -> Rows {
        let (heads, list) = (Vec::with_capacity(ROWS_FEW), Vec::with_capacity(ROWS_FEW));
        let mut spare = Vec::with_capacity(ROWS_FEW);
        spare.push(Vec::with_capacity(ROW_MAX));
        Rows { heads, list, len: 0, spare }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How much they hold of the host's memory.
    pub(crate) fn held_bytes(&self) -> usize {
        let entries = self.list.iter().chain(&self.spare).map(Vec::capacity).sum::<usize>();
        let rows = self.list.capacity() + self.spare.capacity();
        let heads = self.heads.capacity() * size_of::<(u64, u64)>();
        size_of::<Rows>() + entries * size_of::<Entry>() + rows * size_of::<Vec<Entry>>() + heads
    }

    /// The first entry not before the key.
    pub(crate) fn find(&self, key: (u64, u64)) -> Option<Entry> {
        let row = self.list.get(self.row_of(key))?;
        let at = count_from(row, key).checked_sub(1)?;
        Some(row[at])
    }

    /// The entry behind the one with this key, in order.
    pub(crate) fn next(&self, (size_bytes, order): (u64, u64)) -> Option<Entry> {
        self.find((size_bytes, order + 1))
    }

    /// The first entry of all.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.list.last().and_then(|row| row.last()).copied()
    }

    /// The last entry of all.
    pub(crate) fn last(&self) -> Option<Entry> {
        self.list.first().and_then(|row| row.first()).copied()
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        // Mostly it comes before all others.
        if let Some(row) = self.list.last_mut()
            && row.len() < ROW_MAX
            && row.last().is_some_and(|first| entry.key() < first.key())
        {
            row.push(entry);
            self.len += 1;
            return;
        }
        self.insert_among(entry);
    }

    #[inline(never)]
    fn insert_among(&mut self, entry: Entry) {
        if self.list.is_empty() {
            self.list.push(self.spare.pop().unwrap_or_else(|| Vec::with_capacity(ROW_MAX)));
            self.heads.push(entry.key());
        }
        let mut row = self.row_of(entry.key());
        if self.list[row].len() == ROW_MAX {
            self.cut(row);
            row = self.row_of(entry.key());
        }
        let at = count_from(&self.list[row], entry.key());
        self.list[row].insert(at, entry);
        if at == 0 {
            self.heads[row] = entry.key();
        }
        self.len += 1;
    }

    /// Takes out the entry with this key, which must be there.
    pub(crate) fn remove(&mut self, key: (u64, u64)) {
        // Mostly it is the first, and not the only one of its row.
        if let Some(row) = self.list.last_mut()
            && row.len() > 1
            && row.last().is_some_and(|first| first.key() == key)
        {
            row.pop();
            self.len -= 1;
            return;
        }
        self.remove_from(key);
    }

    #[inline(never)]
    fn remove_from(&mut self, key: (u64, u64)) {
        let row = self.row_of(key);
        let entries = &mut self.list[row];
        let at = count_from(entries, key).checked_sub(1).expect("a free block is indexed");
        debug_assert_eq!(entries[at].key(), key);
        entries.remove(at);
        self.len -= 1;
        if let (0, Some(head)) = (at, entries.first()) {
            self.heads[row] = head.key();
        } else if entries.is_empty() {
            self.heads.remove(row);
            self.spare.push(self.list.remove(row));
        }
    }

    /// The lowest row whose head is not before the key; the first row if there is none.
    fn row_of(&self, key: (u64, u64)) -> usize {
        self.heads.partition_point(|&head| head >= key).saturating_sub(1)
    }

    /// Moves the lower half of a row into a row of its own.
    fn cut(&mut self, row: usize) {
        let mut lower = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(ROW_MAX));
        lower.extend(self.list[row].drain(ROW_MAX / 2..));
        self.heads.insert(row + 1, lower[0].key());
        self.list.insert(row + 1, lower);
    }
}
