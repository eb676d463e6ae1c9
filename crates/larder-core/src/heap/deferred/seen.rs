//! Pieces as they were seen. Where frees are deferred, nobody knows at each moment how many pieces
//! of segments there would be if none were: they are counted when somebody looks.

use crate::record::stats::{ByPool, Counter, Stats};

/// A count of free pieces, as it was whenever somebody looked or all was coalesced. In between
/// nobody knows how many there would be if nothing was deferred, so that it may have been higher
/// for a while, and was never lower.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    small: Counter,
    all_peak: i64,
}

/// The pieces as they were seen: how many there are, and the bytes in them.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::heap) struct SeenPieces([Seen; 2]);

impl Seen {
    fn see(&mut self, small: i64, large: i64) {
        let change = small - self.small.current;
        self.small.current = small;
        self.small.allocated += change.max(0);
        self.small.freed += (-change).max(0);
        self.small.peak = self.small.peak.max(small);
        self.all_peak = self.all_peak.max(small + large);
    }

    /// What was counted, with what was seen in the place of what cannot be counted.
    fn show(&self, counted: &mut ByPool) {
        let (small, large) = (self.small, counted.large_pool);
        counted.small_pool = small;
        counted.all = Counter {
            current: small.current + large.current,
            peak: self.all_peak.max(large.peak),
            allocated: small.allocated + large.allocated,
            freed: small.freed + large.freed,
        };
    }
}

impl SeenPieces {
    /// There are so many, small and large, and so many bytes in them.
    pub(in crate::heap) fn see(&mut self, pieces: [[i64; 2]; 2]) {
        for (seen, [small, large]) in self.0.iter_mut().zip(pieces) {
            seen.see(small, large);
        }
    }

    /// Puts what was seen into the statistics.
    pub(in crate::heap) fn show(&self, stats: &mut Stats) {
        let [blocks, bytes] = &self.0;
        blocks.show(&mut stats.inactive_split);
        bytes.show(&mut stats.inactive_split_bytes);
    }

    /// Peaks become the values that were seen last, when there were so many.
    pub(in crate::heap) fn reset_peaks(&mut self, pieces: [[i64; 2]; 2]) {
        for (seen, [_, large]) in self.0.iter_mut().zip(pieces) {
            seen.small.peak = seen.small.current;
            seen.all_peak = seen.small.current + large;
        }
    }

    /// Sums become zero.
    pub(in crate::heap) fn reset_sums(&mut self) {
        for seen in &mut self.0 {
            (seen.small.allocated, seen.small.freed) = (0, 0);
        }
    }
}
