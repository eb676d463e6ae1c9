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

/// Several statistics per kind of pool, small and large, and their peaks, also those of the totals.
///
/// A change should cost little, and three peaks may rise with it. So each kind has a fence: no
/// higher than its peak, and both together no higher than the peak of the total. While neither kind
/// is above its fence no peak can rise, so that a change is one subtraction from the room below a
/// fence. Only where that falls below zero the peaks are looked at, and the fences set anew.
///
/// A program drives all of this out of the processor's caches between two mallocs. So what every
/// change touches lies side by side, and the rest apart from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Families<const N: usize> {
    levels: Levels<N>,
    marks: [Marks; N],
}

/// What every change touches of all statistics.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Levels<const N: usize> {
    /// How far each kind of each is below its fence. Never negative between two changes.
    rooms: [[i64; 2]; N],
    /// Sums of increases.
    allocated: [[i64; 2]; N],
}

/// What is looked at where a statistic is above its fence, or asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    fences: [i64; 2],
    /// The values when the sums were last reset.
    bases: [i64; 2],
    peaks: Peaks,
}

impl<const N: usize> Default for Families<N> {
    fn default() -> Families<N> {
        let levels = Levels { rooms: [[0; 2]; N], allocated: [[0; 2]; N] };
        Families { levels, marks: [Marks::default(); N] }
    }
}

impl<const N: usize> Families<N> {
    /// Increases one of them. What is left below the fence goes out, for `meet_fence` to look at:
    /// whoever changes several looks at all of them with one branch.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would take longer.
    pub(super) fn raise(&mut self, which: usize, kind: PoolKind, amount: u64) -> i64 {
        self.change_by(which, kind, amount as i64, amount as i64)
    }

    /// Increases one of them.
    pub(super) fn increase(&mut self, which: usize, kind: PoolKind, amount: u64) {
        self.raise(which, kind, amount);
        self.meet_fence(which, kind);
    }

    #[inline]
    pub(super) fn decrease(&mut self, which: usize, kind: PoolKind, amount: u64) {
        self.levels.rooms[which][kind as usize] += amount as i64;
    }

    /// Increases or decreases, as `raise` does. With no branch on which of the two it is: that is
    /// anybody's guess.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn change(&mut self, which: usize, kind: PoolKind, amount: i64) -> i64 {
        self.change_by(which, kind, amount, amount.max(0))
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn change_by(&mut self, which: usize, kind: PoolKind, amount: i64, allocated: i64) -> i64 {
        self.levels.allocated[which][kind as usize] += allocated;
        let room = &mut self.levels.rooms[which][kind as usize];
        *room -= amount;
        *room
    }

    /// After an increase: if the kind is above its fence, that is seen to.
    pub(super) fn meet_fence(&mut self, which: usize, kind: PoolKind) {
        if self.levels.rooms[which][kind as usize] < 0 {
            self.pass_fence(which, kind);
        }
    }

    /// After increases of several of them.
    #[cold]
    #[inline(never)]
    pub(super) fn meet_fences(&mut self, kind: PoolKind) {
        (0..N).for_each(|which| self.meet_fence(which, kind));
    }

    /// A kind is above its fence: maybe there are new peaks, and in any case new fences.
    #[cold]
    #[inline(never)]
    fn pass_fence(&mut self, which: usize, kind: PoolKind) {
        let [small, large] = self.currents(which);
        let peaks = &mut self.marks[which].peaks;
        peaks.raise(Peaks { small, large, all: small + large });
        // How far each kind can rise before its own peak does, and both before that of the total.
        let own = [peaks.small - small, peaks.large - large];
        let both = peaks.all - small - large;
        let (risen, other) = (kind as usize, 1 - kind as usize);
        // What is not enough for both is shared: so the fences move rarely, whichever kind rises.
        let mut rooms = [0; 2];
        rooms[risen] = own[risen].min((both - own[other]).max(both / 2));
        rooms[other] = own[other].min(both - rooms[risen]);
        self.set_fences(which, [small, large], rooms);
    }

    fn set_fences(&mut self, which: usize, currents: [i64; 2], rooms: [i64; 2]) {
        self.levels.rooms[which] = rooms;
        self.marks[which].fences = [0, 1].map(|kind| currents[kind] + rooms[kind]);
    }

    /// The values, small and large.
    pub(super) fn currents(&self, which: usize) -> [i64; 2] {
        [0, 1].map(|kind| self.marks[which].fences[kind] - self.levels.rooms[which][kind])
    }

    fn peaks(&self, which: usize) -> Peaks {
        self.marks[which].peaks
    }

    pub(super) fn by_pool(&self, which: usize) -> ByPool {
        let (currents, peaks) = (self.currents(which), self.peaks(which));
        let [small_pool, large_pool] = [0, 1].map(|kind| {
            let (current, allocated) = (currents[kind], self.levels.allocated[which][kind]);
            let freed = allocated + self.marks[which].bases[kind] - current;
            let peak = if kind == 0 { peaks.small } else { peaks.large };
            Counter { current, peak, allocated, freed }
        });
        ByPool {
            all: Counter {
                current: small_pool.current + large_pool.current,
                peak: peaks.all,
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            },
            small_pool,
            large_pool,
        }
    }

    /// The values become the peaks.
    pub(super) fn reset_peaks(&mut self) {
        (0..N).for_each(|which| self.reset_peak(which));
    }

    fn reset_peak(&mut self, which: usize) {
        let [small, large] = self.currents(which);
        self.marks[which].peaks = Peaks { small, large, all: small + large };
        self.set_fences(which, [small, large], [0; 2]);
    }

    pub(super) fn reset_accumulated(&mut self) {
        for which in 0..N {
            self.marks[which].bases = self.currents(which);
            self.levels.allocated[which] = [0; 2];
        }
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

/// What one of the statistics counts that waits: blocks that are active and no longer live. While
/// nothing begins or ends to wait, what is active and what is live move alike, so that one
/// statistic is kept, and the peaks of both follow from its peak over that time, which is a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// What waits now, small and large.
    waiting: [i64; 2],
    /// What waited when the sums were last reset.
    waiting_base: [i64; 2],
    /// The peaks before the run.
    active_peaks: Peaks,
    live_peaks: Peaks,
    /// The most that was active in all before the run, since the phase began. Whoever resets peaks
    /// resets what is shown, and not this.
    phase_peak: i64,
}

/// The statistic of which some waits.
pub(super) struct Active<'a, const N: usize> {
    pub(super) of: &'a mut Families<N>,
    pub(super) which: usize,
}

impl Waits {
    /// Something live waits from now on.
    pub(super) fn begin<const N: usize>(
        &mut self,
        active: Active<'_, N>,
        kind: PoolKind,
        amount: u64,
    ) {
        self.end_run(active);
        self.waiting[kind as usize] += amount as i64;
    }

    /// Something that waited is free.
    pub(super) fn end<const N: usize>(
        &mut self,
        Active { of, which }: Active<'_, N>,
        kind: PoolKind,
        amount: u64,
    ) {
        self.end_run(Active { of, which });
        self.waiting[kind as usize] -= amount as i64;
        of.decrease(which, kind, amount);
        // The run starts from what is left; what waited until now must not pass for live.
        of.reset_peak(which);
    }

    /// Ends a run: what it reached goes into the peaks, and the next run starts from here.
    fn end_run<const N: usize>(&mut self, Active { of, which }: Active<'_, N>) {
        let reached = of.peaks(which);
        self.active_peaks.raise(reached);
        self.live_peaks.raise(reached.less(self.waiting));
        self.phase_peak = self.phase_peak.max(reached.all);
        of.reset_peak(which);
    }

    /// The most that was active in all since the phase began.
    pub(super) fn phase_peak<const N: usize>(&self, of: &Families<N>, which: usize) -> i64 {
        self.phase_peak.max(of.peaks(which).all)
    }

    /// A phase begins, with what is active now.
    pub(super) fn begin_phase<const N: usize>(&mut self, active: Active<'_, N>) {
        let Active { of, which } = active;
        self.end_run(Active { of, which });
        self.phase_peak = of.peaks(which).all;
    }

    pub(super) fn active<const N: usize>(&self, of: &Families<N>, which: usize) -> ByPool {
        let mut peaks = self.active_peaks;
        peaks.raise(of.peaks(which));
        with_peaks(of.by_pool(which), peaks)
    }

    pub(super) fn live<const N: usize>(&self, of: &Families<N>, which: usize) -> ByPool {
        let mut peaks = self.live_peaks;
        peaks.raise(of.peaks(which).less(self.waiting));
        let mut live = with_peaks(of.by_pool(which), peaks);
        let pools = [&mut live.small_pool, &mut live.large_pool];
        for ((pool, waiting), base) in pools.into_iter().zip(self.waiting).zip(self.waiting_base) {
            pool.current -= waiting;
            pool.freed += waiting - base;
            live.all.current -= waiting;
            live.all.freed += waiting - base;
        }
        live
    }

    /// The values become the peaks.
    pub(super) fn reset_peak<const N: usize>(&mut self, active: Active<'_, N>) {
        let Active { of, which } = active;
        self.end_run(Active { of, which });
        self.active_peaks = of.peaks(which);
        self.live_peaks = of.peaks(which).less(self.waiting);
    }

    pub(super) fn reset_accumulated(&mut self) {
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
        let (mut families, mut naive) = (Families::<3>::default(), Naive::default());
        let mut random = 0x5851_f42d_4c95_7f2d_u64;
        for step in 0..200_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step | 1);
            let kind = if random >> 63 == 0 { PoolKind::Small } else { PoolKind::Large };
            let tide = if step / 3000 % 2 == 0 { 5 } else { 3 };
            let amount = (random >> 40) as i64 % 100;
            let current = if kind == PoolKind::Small { naive.small } else { naive.large }.current;
            if (random >> 33) % 8 < tide {
                families.increase(1, kind, amount as u64);
                naive.change(kind, amount);
            } else if amount <= current {
                families.change(1, kind, -amount);
                naive.change(kind, -amount);
            }
            if step % 20_011 == 0 {
                families.reset_peaks();
                naive.reset_peak();
            }
            assert_eq!(families.by_pool(1), naive.by_pool(), "step {step}");
        }
    }
}
