//! Spare memory: what was mapped here and given up a moment ago. The next segment takes its pages,
//! which the system need not fill with zeros again. What nobody took is unmapped by a thread of its
//! own, so that whoever gave it up need not wait for that.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::part::Part;

/// For so long what was given up is kept for whoever comes next.
const KEPT: Duration = Duration::from_millis(10);
/// Smaller parts are not worth moving.
const PART_MIN_BYTES: u64 = 2 << 20;

#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Each part with the time when it was given up.
    parts: Vec<(Instant, Part)>,
    /// A thread sees to it that they go.
    is_watched: bool,
}

impl Spare {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes mapped memory in that nobody uses any more.
    ///
    /// # Safety
    /// The parts are mapped, and nobody uses them or will.
    pub(super) unsafe fn put(self: &Arc<Self>, parts: &[Part]) {
        let now = Instant::now();
        let mut state = self.state();
        state.parts.extend(parts.iter().map(|&part| (now, part)));
        if !mem::replace(&mut state.is_watched, true) {
            let own = Arc::clone(self);
            let started = thread::Builder::new().spawn(move || own.watch());
            state.is_watched = started.is_ok();
        }
        let is_watched = state.is_watched;
        drop(state);
        if !is_watched {
            self.flush();
        }
    }

    /// Takes a part in that stays until somebody takes it.
    ///
    /// # Safety
    /// It is mapped, and nobody uses it or will.
    #[cfg(test)]
    pub(super) unsafe fn put_unwatched(&self, part: Part) {
        self.state().parts.push((Instant::now(), part));
    }

    /// How much there is.
    pub(super) fn size_bytes(&self) -> u64 {
        self.state().parts.iter().map(|(_, part)| part.size_bytes).sum()
    }

    /// Takes out parts that come to at most so many bytes, the largest first.
    pub(super) fn take(&self, most_bytes: u64) -> Vec<Part> {
        let mut state = self.state();
        state.parts.sort_by_key(|(_, part)| part.size_bytes);
        let (mut taken, mut left_bytes) = (Vec::new(), most_bytes);
        let mut unsuited = Vec::new();
        while let Some((since, part)) = state.parts.pop() {
            if part.size_bytes < PART_MIN_BYTES || left_bytes < PART_MIN_BYTES {
                unsuited.push((since, part));
                continue;
            }
            let (part, rest) = part.split_at(part.size_bytes.min(left_bytes));
            left_bytes -= part.size_bytes;
            taken.push(part);
            if rest.size_bytes > 0 {
                unsuited.push((since, rest));
            }
        }
        state.parts = unsuited;
        taken
    }

    /// Unmaps all there is.
    pub(super) fn flush(&self) {
        let parts = mem::take(&mut self.state().parts);
        unmap_all(parts.into_iter());
    }

    /// Unmaps what nobody took in time, until nothing is left.
    fn watch(&self) {
        loop {
            thread::sleep(KEPT);
            let mut state = self.state();
            if state.parts.is_empty() {
                state.is_watched = false;
                return;
            }
            let (old, young) = mem::take(&mut state.parts)
                .into_iter()
                .partition(|(since, _)| since.elapsed() >= KEPT);
            state.parts = young;
            drop(state);
            let old: Vec<_> = old;
            unmap_all(old.into_iter());
        }
    }
}

fn unmap_all(parts: impl Iterator<Item = (Instant, Part)>) {
    for (_, part) in parts {
        // SAFETY: whoever put it in promised that it is mapped and that nobody uses it.
        unsafe { part.unmap() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn parts(sizes: &[u64]) -> State {
        let part = |(index, &size): (usize, &u64)| {
            (Instant::now(), Part { addr: (index as u64 + 1) << 32, size_bytes: size * MIB })
        };
        State { parts: sizes.iter().enumerate().map(part).collect(), is_watched: true }
    }

    #[test]
    fn the_largest_parts_are_taken_and_the_last_is_cut() {
        let spare = Spare(Mutex::new(parts(&[8, 1, 32, 16])));
        let taken: Vec<u64> = spare.take(44 * MIB).iter().map(|part| part.size_bytes).collect();
        assert_eq!(taken, [32 * MIB, 12 * MIB]);
        assert_eq!(spare.size_bytes(), (8 + 1 + 4) * MIB);
        let taken = spare.take(100 * MIB);
        assert_eq!(taken.len(), 2, "what is too small stays");
        assert_eq!(taken[1], Part { addr: (4 << 32) + 12 * MIB, size_bytes: 4 * MIB });
        assert_eq!(spare.size_bytes(), MIB);
        mem::take(&mut spare.state().parts);
    }
}
