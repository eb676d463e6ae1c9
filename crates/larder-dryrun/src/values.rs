//! Which bytes of the cards' memory are known, and what becomes of those who read others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces of data up to this size are kept; larger ones are forgotten, so that memory costs
/// nothing.
pub(crate) const KEPT_BYTES: u64 = 256 << 10;

/// The known ranges, start to end. No two touch.
#[derive(Debug, Default)]
pub(crate) struct Known {
    ranges: BTreeMap<u64, u64>,
}

impl Known {
    const fn new() -> Known {
        Known { ranges: BTreeMap::new() }
    }

    fn learn(&mut self, mut start: u64, mut end: u64) {
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back() {
            if last < start {
                break;
            }
            (start, end) = (start.min(first), end.max(last));
            self.ranges.remove(&first);
        }
        self.ranges.insert(start, end);
    }

    fn forget(&mut self, start: u64, end: u64) {
        while let Some((&first, &last)) = self.ranges.range(..end).next_back() {
            if last <= start {
                break;
            }
            self.ranges.remove(&first);
            if first < start {
                self.ranges.insert(first, start);
            }
            if end < last {
                self.ranges.insert(end, last);
            }
        }
    }

    fn has(&self, start: u64, end: u64) -> bool {
        start == end
            || self.ranges.range(..=start).next_back().is_some_and(|(_, &last)| end <= last)
    }
}

static KNOWN: Mutex<Known> = Mutex::new(Known::new());

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What these bytes are is known from now on.
pub(crate) fn learn(host: u64, size_bytes: u64) {
    if size_bytes > 0 {
        known().learn(host, host + size_bytes);
    }
}

/// What these bytes are is not known any more.
pub(crate) fn forget(host: u64, size_bytes: u64) {
    if size_bytes > 0 {
        known().forget(host, host + size_bytes);
    }
}

/// A kernel ran of which nobody knows what it writes.
pub(crate) fn forget_all() {
    known().ranges.clear();
}

/// Whether all of these bytes are known.
pub(crate) fn are_known(host: u64, size_bytes: u64) -> bool {
    known().has(host, host + size_bytes)
}

/// What is asked when a program reads bytes that are not known: where they go, where they are and
/// how many. It writes what the program is to see and answers 0, or answers that the program must
/// stop.
pub(crate) type Reader = extern "C" fn(to: u64, from: u64, size_bytes: u64) -> i32;

static READER: AtomicUsize = AtomicUsize::new(0);

/// Asks whoever knows what the program is doing. Without one nothing may be read.
pub(crate) fn may_be_read(to: u64, from: u64, size_bytes: u64) -> bool {
    match READER.load(Ordering::Acquire) {
        0 => false,
        reader => {
            // SAFETY: the only writer of the number stores a function of this type.
            let reader: Reader = unsafe { std::mem::transmute::<usize, Reader>(reader) };
            reader(to, from, size_bytes) == 0
        }
    }
}

// What the part that is built for a PyTorch asks.

#[unsafe(no_mangle)]
extern "C" fn larder_dry_on_read(reader: Reader) {
    READER.store(reader as usize, Ordering::Release);
}

#[unsafe(no_mangle)]
extern "C" fn larder_dry_learn(host: u64, size_bytes: u64) {
    learn(host, size_bytes);
}

#[unsafe(no_mangle)]
extern "C" fn larder_dry_forget(host: u64, size_bytes: u64) {
    forget(host, size_bytes);
}

#[unsafe(no_mangle)]
extern "C" fn larder_dry_is_known(host: u64, size_bytes: u64) -> i32 {
    i32::from(are_known(host, size_bytes))
}

#[cfg(test)]
mod tests {
    use larder_sim::random::Random;

    use super::*;

    #[test]
    fn ranges_agree_with_a_flag_for_each_byte() {
        let (mut random, mut ranges, mut flags) = (Random::new(5), Known::default(), [false; 300]);
        for step in 0..20_000 {
            let start = random.between(0, 280);
            let end = start + random.between(1, 19);
            let bytes = &mut flags[start as usize..end as usize];
            match random.between(0, 2) {
                0 => {
                    ranges.learn(start, end);
                    bytes.fill(true);
                }
                1 => {
                    ranges.forget(start, end);
                    bytes.fill(false);
                }
                _ => {
                    let all = bytes.iter().all(|&flag| flag);
                    assert_eq!(ranges.has(start, end), all, "step {step}, seed 5");
                }
            }
        }
    }
}
