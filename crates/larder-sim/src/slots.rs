//! Addresses as a real driver was seen to give them: downwards, in slots of 32 MiB.
//!
//! An allocation takes the beginning of the newest rest of a slot that is large enough. Where there
//! is none, it takes as many slots as it needs below all others, or between them where slots became
//! free. What of its slots it does not need is a rest. This was read off recordings of an H200,
//! which have it so but for the first few allocations: there the driver fills holes that the
//! libraries left in the addresses of the process.

use std::collections::BTreeMap;

use larder_core::types::{Addr, Span};

const SLOT_BYTES: u64 = 32 << 20;

/// The slots of one region, which ends at a multiple of their size.
#[derive(Debug)]
pub(crate) struct Slots {
    start: u64,
    end: u64,
    alignment_bytes: u64,
    /// Slots that were taken together, start to end.
    taken: BTreeMap<u64, u64>,
    /// Free parts of slots that are taken, the newest last.
    rests: Vec<(u64, u64)>,
}

impl Slots {
    pub(crate) fn new(region: Span, alignment_bytes: u64) -> Slots {
        let (start, end) = (region.addr.0, region.end().0 / SLOT_BYTES * SLOT_BYTES);
        Slots { start, end, alignment_bytes, taken: BTreeMap::new(), rests: Vec::new() }
    }

    pub(crate) fn take(&mut self, size_bytes: u64) -> Option<Span> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.alignment_bytes)?;
        let newest = self.rests.iter().rposition(|&(start, end)| end - start >= size_bytes);
        let addr = if let Some(at) = newest {
            let (start, end) = self.rests[at];
            if end - start == size_bytes {
                self.rests.remove(at);
            } else {
                self.rests[at].0 += size_bytes;
            }
            start
        } else {
            let (start, end) = self.take_slots(size_bytes)?;
            if start + size_bytes < end {
                self.rests.push((start + size_bytes, end));
            }
            start
        };
        Some(Span::new(Addr(addr), size_bytes))
    }

    /// The highest free slots side by side with room for so much.
    fn take_slots(&mut self, size_bytes: u64) -> Option<(u64, u64)> {
        let size_bytes = size_bytes.checked_next_multiple_of(SLOT_BYTES)?;
        let mut end = self.end;
        for (&start, &after) in self.taken.iter().rev() {
            if end - after >= size_bytes {
                break;
            }
            end = start;
        }
        let start = end.checked_sub(size_bytes).filter(|&start| start >= self.start)?;
        self.taken.insert(start, end);
        Some((start, end))
    }

    /// Gives back a span that `take` gave.
    pub(crate) fn give_back(&mut self, span: Span) {
        let (from, to) = (span.addr.0, span.end().0);
        let (&first, &last) = self.taken.range(..=from).next_back().expect("slots of the span");
        let is_beside = |&mut (rest, rest_end): &mut (u64, u64)| {
            (rest_end == from && rest >= first) || (rest == to && rest_end <= last)
        };
        let (mut start, mut end) = (from, to);
        for (rest, rest_end) in self.rests.extract_if(.., is_beside) {
            (start, end) = (start.min(rest), end.max(rest_end));
        }
        if (start, end) == (first, last) {
            self.taken.remove(&first);
        } else {
            self.rests.push((start, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const MIB: u64 = 1 << 20;
    const END: u64 = 1 << 40;

    fn slots(size_bytes: u64) -> Slots {
        Slots::new(Span::new(Addr(END - size_bytes), size_bytes), 2 * MIB)
    }

    /// How far below the end.
    fn below(span: Option<Span>) -> Option<u64> {
        span.map(|span| (END - span.addr.0) / MIB)
    }

    /// A part of a recording of an H200: 32, 20, 40, 40 and 80 MiB, then 2 and two of 20.
    #[test]
    fn it_gives_the_addresses_that_were_recorded() {
        let mut slots = slots(1 << 36);
        let sizes = [32, 20, 40, 40, 80, 2, 20, 20];
        let places = sizes.map(|size| below(slots.take(size * MIB)).unwrap());
        assert_eq!(places, [32, 64, 128, 192, 288, 208, 152, 88]);
    }

    #[test]
    fn what_is_free_again_is_a_rest_and_whole_slots_are_nobodys() {
        let mut slots = slots(1 << 36);
        let [first, second, _third] = [20, 32, 32].map(|size| slots.take(size * MIB).unwrap());
        let inside = slots.take(8 * MIB).unwrap();
        assert_eq!(below(Some(inside)), Some(12), "the rest of the first");
        slots.give_back(first);
        assert_eq!(below(slots.take(16 * MIB)), Some(32), "it is a rest");
        slots.give_back(second);
        assert_eq!(below(slots.take(40 * MIB)), Some(160), "one slot is too little for it");
        assert_eq!(below(slots.take(32 * MIB)), Some(64), "and is there for others");
    }

    #[test]
    fn no_two_spans_overlap_in_a_long_random_run() {
        let (mut random, mut slots) = (Random::new(3), slots(1 << 30));
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut full = 0;
        for _ in 0..20_000 {
            if random.chance(0.52) {
                let size = random.between(1, 60) * MIB;
                let Some(span) = slots.take(size) else {
                    full += 1;
                    continue;
                };
                let (start, end) = (span.addr.0, span.end().0);
                let before = held.range(..end).next_back();
                assert!(before.is_none_or(|(_, &before_end)| before_end <= start), "seed 3");
                held.insert(start, end);
            } else if !held.is_empty() {
                let &start = random.pick(&held.keys().copied().collect::<Vec<_>>());
                let end = held.remove(&start).unwrap();
                slots.give_back(Span::new(Addr(start), end - start));
            }
        }
        assert!(full > 100, "it was never full");
        for (start, end) in held {
            slots.give_back(Span::new(Addr(start), end - start));
        }
        assert!(slots.taken.is_empty() && slots.rests.is_empty());
    }
}
