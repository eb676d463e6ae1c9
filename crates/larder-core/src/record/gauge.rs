//! Gauges: counters as they are kept, with as few additions per change as will do.

use std::hint;

use crate::record::stats::{ByPool, Counter};
use crate::types::PoolKind;

/// A value and its peak. What is kept is the peak, and how far below it the value is: then a change
/// is one subtraction, and its sign says whether there is a new peak.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// How far the value is below the peak. Never negative between two changes.
    room: i64,
    peak: i64,
}

impl Level {
    fn current(self) -> i64 {
        self.peak - self.room
    }

    #[inline]
    fn increase(&mut self, amount: i64) {
        self.room -= amount;
        if self.room < 0 {
            hint::cold_path();
            self.reset_peak();
        }
    }

    #[inline]
    fn decrease(&mut self, amount: i64) {
        self.room += amount;
    }

    /// The value becomes the peak.
    #[inline]
    fn reset_peak(&mut self) {
        self.peak = self.current();
        self.room = 0;
    }
}

/// A counter as it is kept: what is freed follows from the rest, so a decrease is one addition.
/// `freed = allocated + base - current`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    level: Level,
    allocated: i64,
    /// The value when the sums were last reset.
    base: i64,
}

impl Gauge {
    #[inline]
    pub(super) fn increase(&mut self, amount: i64) {
        self.level.increase(amount);
        self.allocated += amount;
    }

    #[inline]
    pub(super) fn decrease(&mut self, amount: i64) {
        self.level.decrease(amount);
    }

    pub(super) fn counter(&self) -> Counter {
        let current = self.level.current();
        Counter {
            current,
            peak: self.level.peak,
            allocated: self.allocated,
            freed: self.allocated + self.base - current,
        }
    }

    pub(super) fn reset_peak(&mut self) {
        self.level.reset_peak();
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.base = self.level.current();
    }
}

/// A statistic per kind of pool. Of the total only the current value and the peak are kept: its
/// sums are the sums of the two kinds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Family {
    /// Small and large.
    kinds: [Gauge; 2],
    all: Level,
}

impl Family {
    #[inline]
    fn gauge(&mut self, kind: PoolKind) -> &mut Gauge {
        &mut self.kinds[kind as usize]
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // A call would take longer.
    pub(super) fn increase(&mut self, kind: PoolKind, amount: u64) {
        let amount = amount as i64;
        self.gauge(kind).increase(amount);
        self.all.increase(amount);
    }

    #[inline]
    pub(super) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        let amount = amount as i64;
        self.gauge(kind).decrease(amount);
        self.all.decrease(amount);
    }

    /// Increases or decreases. With no branch on which of the two it is: that is anybody's guess.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn change(&mut self, kind: PoolKind, amount: i64) {
        let gauge = self.gauge(kind);
        gauge.level.increase(amount);
        gauge.allocated += amount.max(0);
        self.all.increase(amount);
    }

    fn peaks(&self) -> Peaks {
        let [small, large] = self.kinds.map(|gauge| gauge.level.peak);
        Peaks { small, large, all: self.all.peak }
    }

    pub(super) fn by_pool(&self) -> ByPool {
        let [small_pool, large_pool] = self.kinds.map(|gauge| gauge.counter());
        ByPool {
            all: Counter {
                current: self.all.current(),
                peak: self.all.peak,
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            },
            small_pool,
            large_pool,
        }
    }

    pub(super) fn reset_peak(&mut self) {
        self.kinds.iter_mut().for_each(Gauge::reset_peak);
        self.all.reset_peak();
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.kinds.iter_mut().for_each(Gauge::reset_accumulated);
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
    /// Something was handed out.
    #[inline]
    pub(super) fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.run.increase(kind, amount);
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
