//! Ring: the entries of a history. They are appended up to the most that are kept; after that each
//! new one takes the place of the oldest.

use crate::record::event::Action;
use crate::record::keep::KeptId;
use crate::types::StreamId;

/// One entry, as it is kept: of a fixed size, with everything that repeats named by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) time_ns: u64,
    pub(super) context: Option<KeptId>,
    pub(super) note: Option<KeptId>,
    /// Which of the history's list of pools.
    pub(super) pool: u32,
    pub(super) action: Action,
}

/// Entries are kept in pieces of this many: a longer history never moves the shorter one.
const PIECE: usize = 4096;

/// The entries.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    pieces: Vec<Vec<Entry>>,
    len: usize,
    /// The oldest entry, and the one that is replaced next once the ring is full.
    oldest: usize,
    max: usize,
}

impl Ring {
    /// An empty ring of at most `max` entries, and at least one. Memory for a good part of them is
    /// asked for at once, so that the first events do not wait for it.
    pub(super) fn new(max: usize) -> Ring {
        let mut ring = Ring { pieces: Vec::new(), len: 0, oldest: 0, max: max.max(1) };
        let pieces = ring.max.div_ceil(PIECE).min(16);
        ring.pieces.extend((0..pieces).map(|_| Vec::with_capacity(PIECE)));
        ring
    }

    /// Keeps at most `max` entries from now on. What is there stays: a ring does not shrink.
    pub(super) fn set_max(&mut self, max: usize) {
        if self.oldest != 0 {
            let entries: Vec<Entry> = self.iter().copied().collect();
            let mut ring = Ring::new(self.len);
            for entry in entries {
                ring.push(entry);
            }
            *self = ring;
        }
        self.max = max.max(1).max(self.len);
    }

    /// Adds an entry. If it takes the place of another, what that one named is given back: its
    /// context and its note.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn push(&mut self, entry: Entry) -> (Option<KeptId>, Option<KeptId>) {
        if self.len < self.max {
            self.append(entry);
            return (None, None);
        }
        let at = self.oldest;
        self.oldest = if at + 1 == self.len { 0 } else { at + 1 };
        let place = &mut self.pieces[at / PIECE][at % PIECE];
        let names = (place.context, place.note);
        *place = entry;
        names
    }

    #[cold]
    #[inline(never)]
    fn append(&mut self, entry: Entry) {
        let piece = self.len / PIECE;
        if piece == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        self.pieces[piece].push(entry);
        self.len += 1;
    }

    /// The entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> + '_ {
        (self.oldest..self.len).chain(0..self.oldest).map(|at| &self.pieces[at / PIECE][at % PIECE])
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry {
            addr: number,
            size_bytes: 0,
            stream: StreamId(0),
            time_ns: 0,
            context: None,
            note: None,
            pool: 0,
            action: Action::Alloc,
        }
    }

    fn push(ring: &mut Ring, numbers: std::ops::Range<u64>) {
        for number in numbers {
            ring.push(entry(number));
        }
    }

    fn numbers(ring: &Ring) -> Vec<u64> {
        ring.iter().map(|entry| entry.addr).collect()
    }

    #[test]
    fn entries_are_small() {
        assert_eq!(size_of::<Entry>(), 48);
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut ring = Ring::new(3);
        push(&mut ring, 0..5);
        assert_eq!(numbers(&ring), [2, 3, 4]);
    }

    #[test]
    fn a_ring_that_may_be_longer_goes_on_behind_its_newest() {
        let mut ring = Ring::new(3);
        push(&mut ring, 0..5);
        ring.set_max(4);
        push(&mut ring, 5..7);
        assert_eq!(numbers(&ring), [3, 4, 5, 6]);
        ring.set_max(1);
        assert_eq!(numbers(&ring), [3, 4, 5, 6], "what is there stays");
        push(&mut ring, 7..8);
        assert_eq!(numbers(&ring), [4, 5, 6, 7]);
    }

    #[test]
    fn a_long_history_is_kept_whole() {
        let mut ring = Ring::new(usize::MAX);
        push(&mut ring, 0..10_000);
        assert_eq!(numbers(&ring), (0..10_000).collect::<Vec<_>>());
        assert_eq!(Ring::new(0).max, 1);
    }
}
