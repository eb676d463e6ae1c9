//! What the driver's calls cost: the prices that were measured, as data, and sums of them.

use larder_core::types::MIB;

use crate::calls::CallKind;

/// The prices of one card's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The card.
    pub card: &'static str,
    /// The driver's version, and CUDA's.
    pub driver: &'static str,
    /// The day on which it was measured.
    pub date: &'static str,
    prices: &'static [(CallKind, Price)],
}

/// What a call costs, by the size of the memory that it is about: nanoseconds at the sizes that
/// were measured, in their order. Between two of them it is on the line through them, below the
/// first it costs what the first does, and beyond the last the last line goes on.
type Price = &'static [(u64, u64)];

/// An H200 in a virtual machine.
///
/// `set_access` is paid for each page, because one call for many pages costs as much as one for
/// each. Where a range was measured, the middle of it stands here. What has no line was not
/// measured, and costs what its nearest neighbour does. Reading the clock is free, so that looking
/// at the time does not change it.
pub const H200: Costs = Costs {
    card: "NVIDIA H200",
    driver: "580, CUDA 13.0",
    date: "2026-11-15",
    prices: &[
        (CallKind::Alloc, &[(2 * MIB, 72_000), (128 * MIB, 75_000)]),
        (CallKind::Free, &[(2 * MIB, 51_000), (128 * MIB, 128_000)]),
        (CallKind::Reserve, &[(2 * MIB, 11_500)]),
        (CallKind::Create, &[(2 * MIB, 13_500), (64 * MIB, 13_500), (512 * MIB, 20_000)]),
        (CallKind::Map, &[(2 * MIB, 1_800)]),
        (CallKind::Access, &[(2 * MIB, 36_000), (32 * MIB, 36_000), (512 * MIB, 59_000)]),
        (CallKind::Unmap, &[(2 * MIB, 22_000)]),
        (CallKind::Release, &[(2 * MIB, 16_000), (32 * MIB, 16_000), (512 * MIB, 344_000)]),
        (CallKind::Record, &[(0, 390)]),
        (CallKind::Query, &[(0, 1_560)]),
        (CallKind::Processes, &[(0, 0)]),
        (CallKind::Clock, &[(0, 0)]),
    ],
};

impl Costs {
    /// What one call about so much memory costs; for `set_access` with one page of that size.
    pub fn price_ns(&self, kind: CallKind, size_bytes: u64) -> u64 {
        let listed = |kind| self.prices.iter().find(|price| price.0 == kind).map(|price| price.1);
        let price = listed(kind).or_else(|| listed(nearest(kind)));
        price.map_or(0, |price| on_the_line(price, size_bytes))
    }
}

/// The call whose price is taken for one that was not measured.
fn nearest(kind: CallKind) -> CallKind {
    match kind {
        CallKind::Unreserve => CallKind::Reserve,
        CallKind::Share | CallKind::OpenShared => CallKind::Create,
        CallKind::CloseShared => CallKind::Release,
        CallKind::Peer => CallKind::Access,
        CallKind::CreateEvent
        | CallKind::DestroyEvent
        | CallKind::CaptureOf
        | CallKind::CaptureEnds
        | CallKind::NodeDependencies
        | CallKind::Follow => CallKind::Record,
        CallKind::MemoryInfo
        | CallKind::WaitEvent
        | CallKind::WaitStream
        | CallKind::WaitDevice
        | CallKind::CopyOut
        | CallKind::CopyIn
        | CallKind::Clear => CallKind::Query,
        measured => measured,
    }
}

fn on_the_line(price: Price, size_bytes: u64) -> u64 {
    let behind = price.iter().position(|&(size, _)| size >= size_bytes).unwrap_or(price.len());
    let second = behind.min(price.len().saturating_sub(1));
    let Some((&(from, from_ns), &(to, to_ns))) =
        second.checked_sub(1).and_then(|first| price.get(first)).zip(price.get(second))
    else {
        return price.first().map_or(0, |&(_, ns)| ns);
    };
    let rise = u128::from(to_ns - from_ns) * u128::from(size_bytes - from) / u128::from(to - from);
    u64::try_from(rise).map_or(u64::MAX, |rise| from_ns.saturating_add(rise))
}

/// Calls that get memory and give it back, and what they cost together. Events, waits and questions
/// are not in it: they depend on the program's streams, not on how its memory is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How many calls there were, those that failed included.
    pub calls: u64,
    /// What they cost, in nanoseconds.
    pub ns: u64,
}

impl Spent {
    /// What was spent since an earlier moment.
    #[must_use]
    pub fn since(self, earlier: Spent) -> Spent {
        Spent { calls: self.calls - earlier.calls, ns: self.ns - earlier.ns }
    }

    pub(crate) fn count(&mut self, kind: CallKind) {
        self.calls += u64::from(is_about_memory(kind));
    }

    pub(crate) fn pay(&mut self, kind: CallKind, ns: u64) {
        self.ns += if is_about_memory(kind) { ns } else { 0 };
    }
}

fn is_about_memory(kind: CallKind) -> bool {
    matches!(
        kind,
        CallKind::Alloc
            | CallKind::Free
            | CallKind::Reserve
            | CallKind::Unreserve
            | CallKind::Create
            | CallKind::Release
            | CallKind::Map
            | CallKind::Unmap
            | CallKind::Access
    )
}

#[cfg(test)]
mod tests {
    use larder_core::heap::prices;

    use super::*;

    #[test]
    fn measured_sizes_cost_what_was_measured_and_others_lie_between() {
        let release = |size_mb: u64| H200.price_ns(CallKind::Release, size_mb * MIB);
        assert_eq!(
            [0, 1, 2, 20, 32, 512].map(release),
            [16, 16, 16, 16, 16, 344].map(|us| us * 1000)
        );
        assert_eq!(release(272), 180_000, "half-way from 32 to 512");
        assert_eq!(release(992), 672_000, "as much again beyond the last");
        assert_eq!(H200.price_ns(CallKind::Alloc, 65 * MIB), 73_500);
        assert_eq!(H200.price_ns(CallKind::Map, 1 << 40), 1_800, "one size was measured");
    }

    /// The policy tight counts what its calls cost, and knows no simulated GPU.
    #[test]
    fn the_heap_counts_with_these_prices() {
        for page_mb in [2, 20, 64] {
            let price = |kind| H200.price_ns(kind, page_mb * MIB);
            let told = [
                (CallKind::Create, prices::CREATE_NS),
                (CallKind::Map, prices::MAP_NS),
                (CallKind::Unmap, prices::UNMAP_NS),
                (CallKind::Reserve, prices::RESERVE_NS),
            ];
            assert!(told.into_iter().all(|(kind, ns)| price(kind) == ns), "{page_mb}");
            // It grows a little beyond what was measured.
            assert!(price(CallKind::Access).abs_diff(prices::ACCESS_NS) < 2_000, "{page_mb}");
        }
    }

    #[test]
    fn every_call_has_a_price_and_more_memory_never_costs_less() {
        for kind in CallKind::ALL {
            let free = matches!(kind, CallKind::Processes | CallKind::Clock);
            assert_eq!(H200.price_ns(kind, 0) == 0, free, "{kind:?}");
            let sizes = (0..50).map(|power| 1_u64 << power).chain([u64::MAX]);
            let prices: Vec<u64> = sizes.map(|size| H200.price_ns(kind, size)).collect();
            assert!(prices.is_sorted(), "{kind:?}: {prices:?}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_names_no_call_twice() {
        for (index, (kind, price)) in H200.prices.iter().enumerate() {
            assert!(!H200.prices[..index].iter().any(|other| other.0 == *kind), "{kind:?}");
            let mut pairs = price.windows(2);
            assert!(pairs.all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{kind:?}");
            assert!(!price.is_empty());
        }
    }

    #[test]
    fn only_calls_about_memory_are_spent_on() {
        let mut spent = Spent::default();
        for kind in CallKind::ALL {
            spent.count(kind);
            spent.pay(kind, 10);
        }
        assert_eq!(spent, Spent { calls: 9, ns: 90 });
        let earlier = Spent { calls: 4, ns: 30 };
        assert_eq!(spent.since(earlier), Spent { calls: 5, ns: 60 });
    }
}
