//! The addresses that plain allocations get.

use std::collections::{BTreeMap, HashMap, VecDeque};

use larder_core::types::{Addr, Span};

use crate::slots::Slots;

/// Addresses of one region: which are free, and which the next allocation gets.
#[derive(Debug)]
pub(crate) struct Addresses {
    start: u64,
    end: u64,
    alignment_bytes: u64,
    /// The free ranges, start to end. No two touch: neighbours are merged.
    gaps: BTreeMap<u64, u64>,
    /// What to hand out first, by size, in order.
    recorded: HashMap<u64, VecDeque<u64>>,
    /// Who chooses instead, where addresses are given as a driver gives them.
    slots: Option<Slots>,
}

impl Addresses {
    /// All of `region` is free. Of `recorded`, whose addresses count from the region's start, those
    /// that do not fit in the region or are not multiples of 512 are left out.
    pub(crate) fn new(region: Span, alignment_bytes: u64, recorded: &[Span]) -> Addresses {
        let (start, end) = (region.addr.0, region.end().0);
        let mut plan: HashMap<u64, VecDeque<u64>> = HashMap::new();
        for span in recorded {
            let last = span.addr.0.checked_add(span.size_bytes);
            let fits = last.is_some_and(|last| last <= region.size_bytes);
            if fits && span.size_bytes > 0 && span.addr.0.is_multiple_of(512) {
                plan.entry(span.size_bytes).or_default().push_back(start + span.addr.0);
            }
        }
        let gaps = BTreeMap::from([(start, end)]);
        Addresses { start, end, alignment_bytes, gaps, recorded: plan, slots: None }
    }

    /// Addresses are given as a driver gives them, in the lowest part of the region: of recorded
    /// ones there are none.
    pub(crate) fn like_a_driver(mut self, size_bytes: u64) -> Addresses {
        let region = Span::new(Addr(self.start), size_bytes.min(self.end - self.start));
        self.slots = Some(Slots::new(region, self.alignment_bytes));
        self.recorded.clear();
        self
    }

    /// Takes the next recorded address of this size that is free, or else the lowest aligned
    /// address with room for the size rounded up to the alignment. Recorded addresses that turn
    /// out not to be free are dropped from the plan. The answer is what must be given back later.
    pub(crate) fn take(&mut self, size_bytes: u64) -> Option<Span> {
        if let Some(slots) = &mut self.slots {
            return slots.take(size_bytes);
        }
        let next = self.next_recorded(size_bytes);
        let span = match next {
            Some((_, addr)) => Span::new(Addr(addr), size_bytes),
            None => self.lowest(size_bytes)?,
        };
        // Only now that there is an answer may the plan change.
        if let Some(queue) = self.recorded.get_mut(&size_bytes) {
            let used = next.map_or(queue.len(), |(position, _)| position + 1);
            queue.drain(..used);
        }
        self.occupy(span);
        Some(span)
    }

    /// Gives back a span that `take` gave.
    pub(crate) fn give_back(&mut self, span: Span) {
        if let Some(slots) = &mut self.slots {
            return slots.give_back(span);
        }
        let (mut start, mut end) = (span.addr.0, span.end().0);
        debug_assert!(self.start <= start && end <= self.end);
        if let Some((&before, &before_end)) = self.gaps.range(..start).next_back() {
            debug_assert!(before_end <= start, "the span was free already");
            if before_end == start {
                start = before;
            }
        }
        if let Some(after_end) = self.gaps.remove(&end) {
            end = after_end;
        }
        self.gaps.insert(start, end);
    }

    fn lowest(&self, size_bytes: u64) -> Option<Span> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.alignment_bytes)?;
        self.gaps.iter().find_map(|(&gap, &gap_end)| {
            let addr = gap.checked_next_multiple_of(self.alignment_bytes)?;
            let fits = addr.checked_add(size_bytes).is_some_and(|end| end <= gap_end);
            fits.then_some(Span::new(Addr(addr), size_bytes))
        })
    }

    /// The first recorded address of this size that is free, and its place in the list.
    fn next_recorded(&self, size_bytes: u64) -> Option<(usize, u64)> {
        let is_free = |addr: u64| {
            let gap = self.gaps.range(..=addr).next_back();
            gap.is_some_and(|(_, &gap_end)| addr + size_bytes <= gap_end)
        };
        let queue = self.recorded.get(&size_bytes)?;
        queue.iter().copied().enumerate().find(|&(_, addr)| is_free(addr))
    }

    /// Cuts a span out of the one gap that holds it.
    fn occupy(&mut self, span: Span) {
        let (start, end) = (span.addr.0, span.end().0);
        let (&gap, &gap_end) = self.gaps.range(..=start).next_back().expect("the span is free");
        assert!(end <= gap_end, "the span is free");
        self.gaps.remove(&gap);
        if gap < start {
            self.gaps.insert(gap, start);
        }
        if end < gap_end {
            self.gaps.insert(end, gap_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;
    use crate::random::Random;

    const UNIT: u64 = 2 * MIB;
    const START: u64 = 1 << 40;

    fn addresses(units: u64, recorded: &[Span]) -> Addresses {
        Addresses::new(Span::new(Addr(START), units * UNIT), UNIT, recorded)
    }

    fn offset(span: Option<Span>) -> Option<u64> {
        span.map(|span| span.addr.0 - START)
    }

    #[test]
    fn the_lowest_gap_that_fits_is_taken_and_gaps_grow_together_again() {
        let mut addresses = addresses(10, &[]);
        let spans: Vec<Span> = (0..5).map(|_| addresses.take(UNIT).unwrap()).collect();
        assert_eq!(offset(spans.last().copied()), Some(4 * UNIT));

        addresses.give_back(spans[1]);
        addresses.give_back(spans[3]);
        assert_eq!(offset(addresses.take(2 * UNIT)), Some(5 * UNIT), "both holes are too small");
        addresses.give_back(spans[2]);
        assert_eq!(offset(addresses.take(3 * UNIT)), Some(UNIT), "three holes became one");
    }

    #[test]
    fn an_odd_size_is_rounded_and_a_full_region_says_no() {
        let mut addresses = addresses(3, &[]);
        assert_eq!(addresses.take(1).unwrap().size_bytes, UNIT);
        assert_eq!(offset(addresses.take(UNIT + 1)), Some(UNIT));
        assert_eq!(addresses.take(1), None);
        assert_eq!(addresses.take(u64::MAX), None);
    }

    #[test]
    fn recorded_addresses_come_first_while_they_last_and_are_free() {
        let at = |units: u64, size_units: u64| Span::new(Addr(units * UNIT), size_units * UNIT);
        // The second one overlaps the first, so it is skipped while the first is held.
        let mut addresses = addresses(100, &[at(50, 2), at(51, 2), at(70, 2), at(60, 1)]);
        let first = addresses.take(2 * UNIT);
        assert_eq!(offset(first), Some(50 * UNIT));
        assert_eq!(offset(addresses.take(2 * UNIT)), Some(70 * UNIT));
        assert_eq!(offset(addresses.take(2 * UNIT)), Some(0), "none is left");
        assert_eq!(offset(addresses.take(UNIT)), Some(60 * UNIT), "sizes have lists of their own");
        addresses.give_back(first.unwrap());
        assert_eq!(offset(addresses.take(2 * UNIT)), Some(2 * UNIT), "each is given once");
    }

    #[test]
    fn odd_recorded_addresses_do_no_harm() {
        let span = |addr, size_bytes| Span::new(Addr(addr), size_bytes);
        let recorded =
            [span(512, MIB), span(100, MIB), span(u64::MAX - 511, MIB), span(9 * UNIT + 512, UNIT)];
        let mut addresses = addresses(10, &recorded);
        assert_eq!(offset(addresses.take(MIB)), Some(512), "multiples of 512 are kept");
        // The first 2 MiB are no longer whole, so the lowest aligned address is the next one.
        assert_eq!(offset(addresses.take(MIB)), Some(UNIT));
        assert_eq!(offset(addresses.take(UNIT)), Some(2 * UNIT), "the last one did not fit");
    }
    /// The naive judge: one flag for each unit, and the first run of free ones.
    fn naive_lowest(taken: &[bool], count: usize) -> Option<usize> {
        (0..=taken.len().checked_sub(count)?).find(|&at| !taken[at..at + count].contains(&true))
    }

    #[test]
    fn a_long_random_run_agrees_with_a_naive_judge() {
        let mut random = Random::new(11);
        let mut addresses = addresses(300, &[]);
        let (mut taken, mut held) = (vec![false; 300], Vec::new());
        for _ in 0..20_000 {
            if random.chance(0.5) {
                let count = random.between(1, 12);
                let naive = naive_lowest(&taken, count as usize);
                let span = addresses.take(count * UNIT);
                assert_eq!(offset(span), naive.map(|at| at as u64 * UNIT));
                if let Some((span, at)) = span.zip(naive) {
                    taken[at..at + count as usize].fill(true);
                    held.push((span, at));
                }
            } else if !held.is_empty() {
                let index = random.below(held.len() as u64) as usize;
                let (span, at) = held.swap_remove(index);
                addresses.give_back(span);
                taken[at..at + (span.size_bytes / UNIT) as usize].fill(false);
            }
        }
    }
}
