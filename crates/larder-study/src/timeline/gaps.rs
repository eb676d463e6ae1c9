//! Gaps: the free runs of a heap, followed by the events alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Free runs by their first address. Runs of one segment that touch are one; those of two fixed
/// segments that happen to touch are not.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    runs: BTreeMap<u64, u64>,
    /// How many runs there are of each size.
    sizes: BTreeMap<u64, u32>,
    /// Where fixed segments begin and end: no run reaches over.
    borders: BTreeSet<u64>,
    pub(super) free_bytes: u64,
}

impl Gaps {
    /// Memory came that is free; a fixed segment is for itself.
    pub(super) fn hold(&mut self, addr: u64, size_bytes: u64, expandable: bool) {
        if !expandable {
            self.borders.extend([addr, addr + size_bytes]);
        }
        self.give(addr, size_bytes);
    }

    /// Memory went back to the device.
    pub(super) fn release(&mut self, addr: u64, size_bytes: u64) {
        self.take(addr, size_bytes);
        // A border that a neighbour needs too is put back by what the neighbour does: nothing; so a
        // border stays until neither side is held any more, which no run can tell. It does no harm
        // to stay.
    }

    /// A part becomes free.
    pub(super) fn give(&mut self, addr: u64, size_bytes: u64) {
        let (mut addr, mut size_bytes) = (addr, size_bytes);
        self.free_bytes += size_bytes;
        if !self.borders.contains(&addr)
            && let Some((&before, &before_bytes)) = self.runs.range(..addr).next_back()
            && before + before_bytes == addr
        {
            self.remove(before, before_bytes);
            (addr, size_bytes) = (before, before_bytes + size_bytes);
        }
        let end = addr + size_bytes;
        if !self.borders.contains(&end)
            && let Some(&behind_bytes) = self.runs.get(&end)
        {
            self.remove(end, behind_bytes);
            size_bytes += behind_bytes;
        }
        self.insert(addr, size_bytes);
    }

    /// A part is free no more; what of it was not free is none of ours.
    pub(super) fn take(&mut self, addr: u64, size_bytes: u64) {
        let end = addr + size_bytes;
        let from = self.runs.range(..=addr).next_back().map_or(addr, |(&from, _)| from);
        let range = (Bound::Included(from), Bound::Excluded(end));
        let met: Vec<(u64, u64)> =
            self.runs.range(range).map(|(&at, &bytes)| (at, bytes)).collect();
        for (at, bytes) in met {
            let (first, last) = (at.max(addr), (at + bytes).min(end));
            if first >= last {
                continue;
            }
            self.remove(at, bytes);
            self.free_bytes -= last - first;
            if at < first {
                self.insert(at, first - at);
            }
            if last < at + bytes {
                self.insert(last, at + bytes - last);
            }
        }
    }

    pub(super) fn largest_bytes(&self) -> u64 {
        self.sizes.last_key_value().map_or(0, |(&size_bytes, _)| size_bytes)
    }

    pub(super) fn count(&self) -> u32 {
        self.runs.len() as u32
    }

    fn insert(&mut self, addr: u64, size_bytes: u64) {
        self.runs.insert(addr, size_bytes);
        *self.sizes.entry(size_bytes).or_default() += 1;
    }

    fn remove(&mut self, addr: u64, size_bytes: u64) {
        self.runs.remove(&addr);
        if let Some(count) = self.sizes.get_mut(&size_bytes) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&size_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_in_a_segment_and_not_across_two() {
        let mut gaps = Gaps::default();
        gaps.hold(100, 50, false);
        gaps.hold(150, 50, false);
        assert_eq!((gaps.count(), gaps.largest_bytes(), gaps.free_bytes), (2, 50, 100));
        gaps.take(100, 10);
        gaps.take(120, 10);
        assert_eq!((gaps.count(), gaps.largest_bytes(), gaps.free_bytes), (3, 50, 80));
        gaps.give(120, 10);
        assert_eq!((gaps.count(), gaps.largest_bytes()), (2, 50));
        gaps.release(150, 50);
        assert_eq!((gaps.count(), gaps.largest_bytes(), gaps.free_bytes), (1, 40, 40));
        gaps.hold(1000, 10, true);
        gaps.hold(1010, 10, true);
        assert_eq!((gaps.count(), gaps.free_bytes), (2, 60));
        gaps.take(1005, 10);
        assert_eq!((gaps.count(), gaps.free_bytes), (3, 50));
    }
}
