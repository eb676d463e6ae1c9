//! Series: how much was allocated, active, reserved and free after each event, in buckets of as
//! many events as it takes to keep them few.

/// Never more buckets than this: fewer events than pixels deserve no bucket of their own, and a
/// page has them all.
const BUCKETS_MAX: usize = 1 << 17;

/// How much there is at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Handed out and not given back.
    pub allocated: u64,
    /// Allocated, or given back and awaited by a stream.
    pub active: u64,
    /// Held of the device.
    pub reserved: u64,
    /// Held and not active.
    pub free: u64,
    /// The largest free run.
    pub largest: u64,
}

/// Some events side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// What there was before the first of them.
    pub before: Levels,
    /// The most that there was of each after any of them; of the largest free run the least.
    pub most: Levels,
}

/// The highest value and the first event after which it was reached.
pub type Peak = (u64, u32);

/// The highest of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Of the allocated bytes.
    pub allocated: Peak,
    /// Of the active bytes.
    pub active: Peak,
    /// Of the reserved bytes.
    pub reserved: Peak,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// The buckets, in order.
    pub buckets: Vec<Bucket>,
    /// How many events each has; the last one may have fewer.
    pub events_each: u32,
    /// The peaks.
    pub peaks: Peaks,
    /// What there is after the last event.
    pub now: Levels,
    events: u32,
}

impl Series {
    pub(super) fn new() -> Series {
        Series { events_each: 1, ..Series::default() }
    }

    /// So much there is after the next event.
    pub(super) fn push(&mut self, levels: Levels) {
        if self.events.is_multiple_of(self.events_each) {
            if self.buckets.len() == BUCKETS_MAX {
                self.halve();
            }
            self.buckets.push(Bucket { before: self.now, most: levels });
        } else if let Some(bucket) = self.buckets.last_mut() {
            bucket.most = most(bucket.most, levels);
        }
        let peaks = &mut self.peaks;
        for (peak, value) in [
            (&mut peaks.allocated, levels.allocated),
            (&mut peaks.active, levels.active),
            (&mut peaks.reserved, levels.reserved),
        ] {
            if value > peak.0 {
                *peak = (value, self.events);
            }
        }
        self.now = levels;
        self.events += 1;
    }

    /// Two buckets become one. There is an even number of them.
    fn halve(&mut self) {
        let pairs = self.buckets.chunks(2);
        self.buckets = pairs
            .map(|pair| Bucket {
                before: pair[0].before,
                most: pair.iter().skip(1).fold(pair[0].most, |sum, next| most(sum, next.most)),
            })
            .collect();
        self.events_each *= 2;
    }
}

fn most(one: Levels, other: Levels) -> Levels {
    Levels {
        allocated: one.allocated.max(other.allocated),
        active: one.active.max(other.active),
        reserved: one.reserved.max(other.reserved),
        free: one.free.max(other.free),
        largest: one.largest.min(other.largest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(allocated: u64) -> Levels {
        Levels { allocated, active: allocated, reserved: 2 * allocated, ..Levels::default() }
    }

    #[test]
    fn buckets_stay_few_and_forget_no_peak() {
        let mut series = Series::new();
        let count = 3 * BUCKETS_MAX as u64;
        for event in 0..count {
            series.push(levels((event * 7919) % 100_003));
        }
        assert_eq!(series.events_each, 4);
        assert!(series.buckets.len() <= BUCKETS_MAX);
        let highest = series.buckets.iter().map(|bucket| bucket.most.allocated).max();
        assert_eq!(highest, Some(series.peaks.allocated.0));
        let at = u64::from(series.peaks.allocated.1);
        assert_eq!((at * 7919) % 100_003, series.peaks.allocated.0);
        assert_eq!(series.buckets[5].before.allocated, (19 * 7919) % 100_003);
    }
}
