//! Gauges: counters as they are kept, with as few additions per change as will do.

use crate::record::counter::{ByPool, Counter};
use crate::types::PoolKind;

/// A counter of what is rare.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge(Counter);

impl Gauge {
    pub(super) fn increase(&mut self, amount: i64) {
        self.0.current += amount;
        self.0.allocated += amount;
        self.0.peak = self.0.peak.max(self.0.current);
    }

    pub(super) fn decrease(&mut self, amount: i64) {
        self.0.current -= amount;
        self.0.freed += amount;
    }

    pub(super) fn counter(&self) -> Counter {
        self.0
    }

    pub(super) fn reset_peak(&mut self) {
        self.0.peak = self.0.current;
    }

    pub(super) fn reset_accumulated(&mut self) {
        (self.0.allocated, self.0.freed) = (0, 0);
    }
}

/// A statistic per kind of pool, small and large, and its peaks, also that of the total.
///
/// A change should cost little, and three peaks may rise with it. So each kind has a fence: no
/// higher than its peak, and both together no higher than the peak of the total. While neither kind
/// is above its fence no peak can rise, so that a change is one subtraction from the room below a
/// fence. Only where that falls below zero the peaks are looked at, and the fences set anew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Family {
    /// How far each kind is below its fence. Never negative between two changes.
    rooms: [i64; 2],
    /// Sums of increases.
    allocated: [i64; 2],
    fences: [i64; 2],
    /// The values when the sums were last reset.
    bases: [i64; 2],
    peaks: Peaks,
}

impl Family {
    /// Increases. What is left below the fence goes out, for `meet_fence` to look at: whoever
    /// changes several families looks at all of them with one branch.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would take longer.
    pub(super) fn raise(&mut self, kind: PoolKind, amount: u64) -> i64 {
        self.change_by(kind, amount as i64, amount as i64)
    }

    /// Increases.
    pub(super) fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.raise(kind, amount);
        self.meet_fence(kind);
    }

    #[inline]
    pub(super) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.rooms[kind as usize] += amount as i64;
    }

    /// Increases or decreases, as `raise` does. With no branch on which of the two it is: that is
    /// anybody's guess.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn change(&mut self, kind: PoolKind, amount: i64) -> i64 {
        self.change_by(kind, amount, amount.max(0))
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn change_by(&mut self, kind: PoolKind, amount: i64, allocated: i64) -> i64 {
        self.allocated[kind as usize] += allocated;
        let room = &mut self.rooms[kind as usize];
        *room -= amount;
        *room
    }

    /// After an increase: if the kind is above its fence, that is seen to.
    pub(super) fn meet_fence(&mut self, kind: PoolKind) {
        if self.rooms[kind as usize] < 0 {
            self.pass_fence(kind);
        }
    }

    /// A kind is above its fence: maybe there are new peaks, and in any case new fences.
    #[cold]
    #[inline(never)]
    fn pass_fence(&mut self, kind: PoolKind) {
        let [small, large] = self.currents();
        self.peaks.raise(Peaks { small, large, all: small + large });
        // How far each kind can rise before its own peak does, and both before that of the total.
        let own = [self.peaks.small - small, self.peaks.large - large];
        let both = self.peaks.all - small - large;
        let (risen, other) = (kind as usize, 1 - kind as usize);
        // What is not enough for both is shared: so the fences move rarely, whichever kind rises.
        let mut rooms = [0; 2];
        rooms[risen] = own[risen].min((both - own[other]).max(both / 2));
        rooms[other] = own[other].min(both - rooms[risen]);
        self.set_fences([small, large], rooms);
    }

    fn set_fences(&mut self, currents: [i64; 2], rooms: [i64; 2]) {
        self.rooms = rooms;
        self.fences = [currents[0] + rooms[0], currents[1] + rooms[1]];
    }

    /// The values, small and large.
    pub(super) fn currents(&self) -> [i64; 2] {
        [self.fences[0] - self.rooms[0], self.fences[1] - self.rooms[1]]
    }

    fn peaks(&self) -> Peaks {
        self.peaks
    }

    pub(super) fn by_pool(&self) -> ByPool {
        let currents = self.currents();
        let [small_pool, large_pool] = [0, 1].map(|kind| {
            let (current, allocated) = (currents[kind], self.allocated[kind]);
            let freed = allocated + self.bases[kind] - current;
            let peak = if kind == 0 { self.peaks.small } else { self.peaks.large };
            Counter { current, peak, allocated, freed }
        });
        ByPool {
            all: Counter {
                current: small_pool.current + large_pool.current,
                peak: self.peaks.all,
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            },
            small_pool,
            large_pool,
        }
    }

    /// The values become the peaks.
    pub(super) fn reset_peak(&mut self) {
        let [small, large] = self.currents();
        self.peaks = Peaks { small, large, all: small + large };
        self.set_fences([small, large], [0; 2]);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.allocated = [0; 2];
        self.bases = self.currents();
    }
}

/// The highest values of a statistic, per kind of pool and in all.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    small: i64,
    large: i64,
    all: i64,
}

impl Peaks {
    fn raise(&mut self, other: Peaks) {
        self.small = self.small.max(other.small);
        self.large = self.large.max(other.large);
        self.all = self.all.max(other.all);
    }

    fn less(self, waiting: [i64; 2]) -> Peaks {
        let [small, large] = waiting;
        Peaks {
            small: self.small - small,
            large: self.large - large,
            all: self.all - small - large,
        }
    }
}

/// Two statistics that differ only by what waits: blocks that are active, and those of them that
/// are live. While nothing begins or ends to wait both move alike, so that one family is kept, and
/// the peaks of both follow from its peak over that time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Twin {
    /// What is active; its peaks are those since waiting last changed.
    run: Family,
    /// What waits now, small and large.
    waiting: [i64; 2],
    /// What waited when the sums were last reset.
    waiting_base: [i64; 2],
    /// The peaks before the run.
    active_peaks: Peaks,
    live_peaks: Peaks,
}

impl Twin {
    /// Something was handed out. What is left below the fence goes out, as from `Family::raise`.
    #[inline]
    pub(super) fn raise(&mut self, kind: PoolKind, amount: u64) -> i64 {
        self.run.raise(kind, amount)
    }

    /// The same, and all is seen to.
    pub(super) fn meet_fence(&mut self, kind: PoolKind) {
        self.run.meet_fence(kind);
    }

    /// Something live became free at once.
    #[inline]
    pub(super) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.run.decrease(kind, amount);
    }

    /// Something live waits from now on.
    pub(super) fn begin_wait(&mut self, kind: PoolKind, amount: u64) {
        self.settle();
        self.waiting[kind as usize] += amount as i64;
    }

    /// Something that waited is free.
    pub(super) fn end_wait(&mut self, kind: PoolKind, amount: u64) {
        self.settle();
        self.waiting[kind as usize] -= amount as i64;
        self.run.decrease(kind, amount);
        // The run starts from what is left; what waited until now must not pass for live.
        self.run.reset_peak();
    }

    /// Ends a run: what it reached goes into the peaks, and the next run starts from here.
    fn settle(&mut self) {
        let reached = self.run.peaks();
        self.active_peaks.raise(reached);
        self.live_peaks.raise(reached.less(self.waiting));
        self.run.reset_peak();
    }

    pub(super) fn active(&self) -> ByPool {
        let mut peaks = self.active_peaks;
        peaks.raise(self.run.peaks());
        with_peaks(self.run.by_pool(), peaks)
    }

    pub(super) fn live(&self) -> ByPool {
        let mut peaks = self.live_peaks;
        peaks.raise(self.run.peaks().less(self.waiting));
        let mut live = with_peaks(self.run.by_pool(), peaks);
        let pools = [&mut live.small_pool, &mut live.large_pool];
        for ((pool, waiting), base) in pools.into_iter().zip(self.waiting).zip(self.waiting_base) {
            pool.current -= waiting;
            pool.freed += waiting - base;
            live.all.current -= waiting;
            live.all.freed += waiting - base;
        }
        live
    }

    pub(super) fn reset_peak(&mut self) {
        self.run.reset_peak();
        self.active_peaks = self.run.peaks();
        self.live_peaks = self.run.peaks().less(self.waiting);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.run.reset_accumulated();
        self.waiting_base = self.waiting;
    }
}

fn with_peaks(mut by_pool: ByPool, peaks: Peaks) -> ByPool {
    by_pool.all.peak = peaks.all;
    by_pool.small_pool.peak = peaks.small;
    by_pool.large_pool.peak = peaks.large;
    by_pool
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts each change at once.
    #[derive(Default)]
    struct Naive {
        small: Counter,
        large: Counter,
        all: Counter,
    }

    impl Naive {
        fn change(&mut self, kind: PoolKind, amount: i64) {
            let own = if kind == PoolKind::Small { &mut self.small } else { &mut self.large };
            for counter in [own, &mut self.all] {
                counter.current += amount;
                counter.peak = counter.peak.max(counter.current);
                counter.allocated += amount.max(0);
                counter.freed += (-amount).max(0);
            }
        }

        fn reset_peak(&mut self) {
            for counter in [&mut self.small, &mut self.large, &mut self.all] {
                counter.peak = counter.current;
            }
        }

        fn by_pool(&self) -> ByPool {
            ByPool { all: self.all, small_pool: self.small, large_pool: self.large }
        }
    }

    /// Long rises and falls of both kinds, together and against each other, and now and then a
    /// reset.
    #[test]
    fn fences_miss_no_peak() {
        let (mut family, mut naive) = (Family::default(), Naive::default());
        let mut random = 0x5851_f42d_4c95_7f2d_u64;
        for step in 0..200_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let kind = if random >> 63 == 0 { PoolKind::Small } else { PoolKind::Large };
            let tide = if step / 3000 % 2 == 0 { 5 } else { 3 };
            let amount = (random >> 40) as i64 % 100;
            let current = if kind == PoolKind::Small { naive.small } else { naive.large }.current;
            if (random >> 33) % 8 < tide {
                family.increase(kind, amount as u64);
                naive.change(kind, amount);
            } else if amount <= current {
                family.change(kind, -amount);
                naive.change(kind, -amount);
            }
            if step % 20_011 == 0 {
                family.reset_peak();
                naive.reset_peak();
            }
            assert_eq!(family.by_pool(), naive.by_pool(), "step {step}");
        }
    }
}
