//! The clock of a simulated GPU, which goes on by what calls cost on a real one.

use crate::calls::CallKind;
use crate::costs::{H200, Spent};

/// The time, and what of it was spent on calls about memory.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now_ns: u64,
    spent: Spent,
}

impl Clock {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn spent(&self) -> Spent {
        self.spent
    }

    /// Time goes by.
    pub(crate) fn advance(&mut self, duration_ns: u64) {
        self.now_ns += duration_ns;
    }

    /// A call begins. It costs the least that one of its kind does, also if it fails.
    pub(crate) fn begin(&mut self, kind: CallKind) {
        self.spent.count(kind);
        self.pay(kind, H200.price_ns(kind, 0));
    }

    /// The call that has begun went about pieces of memory of these sizes, each at its price.
    pub(crate) fn charge(&mut self, kind: CallKind, sizes: &[u64]) {
        let price_ns: u64 = sizes.iter().map(|&size| H200.price_ns(kind, size)).sum();
        self.pay(kind, price_ns.saturating_sub(H200.price_ns(kind, 0)));
    }

    fn pay(&mut self, kind: CallKind, ns: u64) {
        self.now_ns += ns;
        self.spent.pay(kind, ns);
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;

    #[test]
    fn a_call_costs_its_price_once_and_each_of_its_pieces_theirs() {
        let mut clock = Clock::default();
        clock.begin(CallKind::Release);
        assert_eq!(clock.spent(), Spent { calls: 1, ns: 16_000 }, "as if it failed");
        clock.charge(CallKind::Release, &[512 * MIB]);
        assert_eq!(clock.spent(), Spent { calls: 1, ns: 344_000 });
        clock.begin(CallKind::Access);
        clock.charge(CallKind::Access, &[2 * MIB, 2 * MIB, 512 * MIB]);
        let access_ns = 36_000 + 36_000 + 59_000;
        assert_eq!(clock.spent(), Spent { calls: 2, ns: 344_000 + access_ns });
    }

    #[test]
    fn time_that_goes_by_and_events_are_not_spent_on_memory() {
        let mut clock = Clock::default();
        clock.advance(100);
        clock.begin(CallKind::Record);
        assert_eq!((clock.now_ns(), clock.spent()), (490, Spent::default()));
    }
}
