//! What getting memory of the host took, and giving it back: counts, sums, the shortest and the
//! longest call, and how many calls of each size there were.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Calls of one kind, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// How many calls there were.
    pub count: u64,
    /// What they took together.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
    /// The shortest; 0 if there was none.
    pub min_us: u64,
}

impl Timed {
    fn note(&mut self, took: Duration) {
        let us = took.as_micros() as u64;
        (self.count, self.total_us) = (self.count + 1, self.total_us + us);
        self.max_us = self.max_us.max(us);
        self.min_us = if self.min_us == 0 { us } else { self.min_us.min(us) };
    }
}

/// How many classes of sizes there are: one for each power of two.
pub const SIZE_CLASSES: usize = 64;

/// Calls about memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCalls {
    /// Those that got memory.
    pub got: Timed,
    /// Those that gave it back.
    pub given_back: Timed,
    /// Of those that got memory, how many were for sizes up to each power of two.
    pub by_size: [u64; SIZE_CLASSES],
}

impl Default for HostCalls {
    fn default() -> HostCalls {
        let (got, given_back) = (Timed::default(), Timed::default());
        HostCalls { got, given_back, by_size: [0; SIZE_CLASSES] }
    }
}

#[derive(Debug, Default)]
pub(super) struct CallTimes(Mutex<HostCalls>);

impl CallTimes {
    fn calls(&self) -> MutexGuard<'_, HostCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_got(&self, took: Duration, size_bytes: u64) {
        let mut calls = self.calls();
        calls.got.note(took);
        let class = size_bytes.max(1).next_power_of_two().trailing_zeros() as usize;
        calls.by_size[class.min(SIZE_CLASSES - 1)] += 1;
    }

    pub(super) fn note_given_back(&self, took: Duration) {
        self.calls().given_back.note(took);
    }

    pub(super) fn read(&self) -> HostCalls {
        *self.calls()
    }

    pub(super) fn reset_sums(&self) {
        let mut calls = self.calls();
        calls.by_size = [0; SIZE_CLASSES];
        let HostCalls { got, given_back, .. } = &mut *calls;
        for timed in [got, given_back] {
            (timed.count, timed.total_us) = (0, 0);
        }
    }

    pub(super) fn reset_peaks(&self) {
        let mut calls = self.calls();
        let HostCalls { got, given_back, .. } = &mut *calls;
        for timed in [got, given_back] {
            (timed.max_us, timed.min_us) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_size_and_timed() {
        let times = CallTimes::default();
        for (us, size_bytes) in [(30, 4096), (10, 4097), (20, 8192)] {
            times.note_got(Duration::from_micros(us), size_bytes);
        }
        times.note_given_back(Duration::from_micros(5));
        let calls = times.read();
        assert_eq!(calls.got, Timed { count: 3, total_us: 60, max_us: 30, min_us: 10 });
        assert_eq!((calls.given_back.count, calls.by_size[12], calls.by_size[13]), (1, 1, 2));
        times.reset_sums();
        times.reset_peaks();
        assert_eq!(times.read(), HostCalls::default());
    }
}
