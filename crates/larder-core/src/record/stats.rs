//! Statistics: PyTorch's counters, kept with as few additions per operation as will do.

use crate::record::Record;
use crate::types::PoolKind;

/// One statistic over time. The numbers are signed because PyTorch's are: its count of oversize
/// allocations can fall below zero when the limit is changed while some are live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The value now.
    pub current: i64,
    /// The largest value since the last reset of the peaks.
    pub peak: i64,
    /// Sum of all increases since the last reset of the sums.
    pub allocated: i64,
    /// Sum of all decreases since the last reset of the sums.
    pub freed: i64,
}

/// One statistic over all pools, the small ones and the large ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByPool {
    /// Over all pools. Its peak is not the sum of the others' peaks.
    pub all: Counter,
    /// Over the small pools.
    pub small_pool: Counter,
    /// Over the large pools.
    pub large_pool: Counter,
}

/// All statistics, under the names that `torch.cuda.memory_stats()` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live allocations.
    pub allocation: ByPool,
    /// Segments held of the device; expandable ones do not count.
    pub segment: ByPool,
    /// Blocks that are live or still awaited by a stream.
    pub active: ByPool,
    /// Free pieces of segments that are partly in use.
    pub inactive_split: ByPool,
    /// Bytes in live allocations.
    pub allocated_bytes: ByPool,
    /// Bytes held of the device.
    pub reserved_bytes: ByPool,
    /// Bytes in active blocks.
    pub active_bytes: ByPool,
    /// Bytes in inactive split blocks.
    pub inactive_split_bytes: ByPool,
    /// Bytes that the program asked for, in active blocks.
    pub requested_bytes: ByPool,
    /// Live allocations at or above the split limit.
    pub oversize_allocations: Counter,
    /// Segments at or above the split limit.
    pub oversize_segments: Counter,
    /// How often everything cached was given back before the device was asked once more.
    pub num_alloc_retries: u64,
    /// Requests that could not be met.
    pub num_ooms: u64,
    /// Requests that a rule refused.
    pub num_oom_rejections: u64,
    /// How often all events were waited for.
    pub num_sync_all_streams: u64,
    /// Calls that took memory from the device.
    pub num_device_alloc: u64,
    /// Calls that gave memory back.
    pub num_device_free: u64,
}

impl Stats {
    /// Every key of `torch.cuda.memory_stats()` of PyTorch 2.11 but `max_split_size`, with its
    /// value, in one flat list.
    pub fn entries(&self) -> Vec<(String, i64)> {
        let by_pool = [
            ("active", &self.active),
            ("active_bytes", &self.active_bytes),
            ("allocated_bytes", &self.allocated_bytes),
            ("allocation", &self.allocation),
            ("inactive_split", &self.inactive_split),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("segment", &self.segment),
        ];
        let mut entries = Vec::with_capacity(128);
        let mut push = |name: &str, counter: &Counter| {
            entries.push((format!("{name}.allocated"), counter.allocated));
            entries.push((format!("{name}.current"), counter.current));
            entries.push((format!("{name}.freed"), counter.freed));
            entries.push((format!("{name}.peak"), counter.peak));
        };
        for (name, family) in by_pool {
            push(&format!("{name}.all"), &family.all);
            push(&format!("{name}.large_pool"), &family.large_pool);
            push(&format!("{name}.small_pool"), &family.small_pool);
        }
        push("oversize_allocations", &self.oversize_allocations);
        push("oversize_segments", &self.oversize_segments);
        let plain = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
        ];
        entries.extend(plain.map(|(name, value)| (name.to_owned(), value as i64)));
        entries.sort();
        entries
    }
}

/// A counter as it is kept: what is freed follows from the rest, so a decrease is one subtraction.
/// `freed = allocated + base - current`.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    current: i64,
    peak: i64,
    allocated: i64,
    /// The value when the sums were last reset.
    base: i64,
}

impl Gauge {
    #[inline]
    fn increase(&mut self, amount: i64) {
        self.current += amount;
        self.allocated += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    fn decrease(&mut self, amount: i64) {
        self.current -= amount;
    }

    fn counter(&self) -> Counter {
        Counter {
            current: self.current,
            peak: self.peak,
            allocated: self.allocated,
            freed: self.allocated + self.base - self.current,
        }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.base = self.current;
    }
}

/// A statistic per kind of pool. Of the total only the current value and the peak are kept: its
/// sums are the sums of the two kinds.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    small: Gauge,
    large: Gauge,
    all_current: i64,
    all_peak: i64,
}

impl Family {
    #[inline]
    fn gauge(&mut self, kind: PoolKind) -> &mut Gauge {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    #[inline]
    fn increase(&mut self, kind: PoolKind, amount: u64) {
        let amount = amount as i64;
        self.gauge(kind).increase(amount);
        self.all_current += amount;
        self.all_peak = self.all_peak.max(self.all_current);
    }

    #[inline]
    fn decrease(&mut self, kind: PoolKind, amount: u64) {
        let amount = amount as i64;
        self.gauge(kind).decrease(amount);
        self.all_current -= amount;
    }

    #[inline]
    fn change(&mut self, kind: PoolKind, amount: i64) {
        if amount >= 0 {
            self.increase(kind, amount.unsigned_abs());
        } else {
            self.decrease(kind, amount.unsigned_abs());
        }
    }

    fn by_pool(&self) -> ByPool {
        let (small_pool, large_pool) = (self.small.counter(), self.large.counter());
        ByPool {
            all: Counter {
                current: self.all_current,
                peak: self.all_peak,
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            },
            small_pool,
            large_pool,
        }
    }

    fn reset_peak(&mut self) {
        self.small.reset_peak();
        self.large.reset_peak();
        self.all_peak = self.all_current;
    }

    fn reset_accumulated(&mut self) {
        self.small.reset_accumulated();
        self.large.reset_accumulated();
    }
}

/// The statistics as they are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    allocation: Family,
    allocated_bytes: Family,
    active: Family,
    active_bytes: Family,
    requested_bytes: Family,
    inactive_split: Family,
    inactive_split_bytes: Family,
    segment: Family,
    reserved_bytes: Family,
    oversize_allocations: Gauge,
    oversize_segments: Gauge,
    alloc_retries: u64,
    ooms: u64,
    oom_rejections: u64,
    sync_all_streams: u64,
    device_allocs: u64,
    device_frees: u64,
}

impl Ledger {
    /// Counts a fact.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn record(&mut self, record: Record) {
        match record {
            Record::Alloc { place, requested_bytes, oversize } => {
                self.allocation.increase(place.kind, 1);
                self.allocated_bytes.increase(place.kind, place.size_bytes);
                self.active.increase(place.kind, 1);
                self.active_bytes.increase(place.kind, place.size_bytes);
                self.requested_bytes.increase(place.kind, requested_bytes);
                if oversize {
                    self.oversize_allocations.increase(1);
                }
            }
            Record::FreeRequested { place, oversize, .. } => {
                self.allocation.decrease(place.kind, 1);
                self.allocated_bytes.decrease(place.kind, place.size_bytes);
                if oversize {
                    self.oversize_allocations.decrease(1);
                }
            }
            Record::FreeCompleted { place, requested_bytes } => {
                self.active.decrease(place.kind, 1);
                self.active_bytes.decrease(place.kind, place.size_bytes);
                self.requested_bytes.decrease(place.kind, requested_bytes);
            }
            Record::InactiveSplit { kind, blocks, bytes } => {
                self.inactive_split.change(kind, blocks);
                self.inactive_split_bytes.change(kind, bytes);
            }
            _ => self.record_rare(record),
        }
    }

    /// The facts that come with a device call or a failure. Apart, so that the frequent ones stay
    /// small enough to be inlined where they are stated.
    #[inline(never)]
    fn record_rare(&mut self, record: Record) {
        match record {
            Record::SegmentAlloc { place, oversize } => {
                self.segment.increase(place.kind, 1);
                self.reserved_bytes.increase(place.kind, place.size_bytes);
                self.device_allocs += 1;
                if oversize {
                    self.oversize_segments.increase(1);
                }
            }
            Record::SegmentFree { place, oversize } => {
                self.segment.decrease(place.kind, 1);
                self.reserved_bytes.decrease(place.kind, place.size_bytes);
                self.device_frees += 1;
                if oversize {
                    self.oversize_segments.decrease(1);
                }
            }
            Record::SegmentMap { place } => {
                self.reserved_bytes.increase(place.kind, place.size_bytes);
                self.device_allocs += 1;
            }
            Record::SegmentUnmap { place } => {
                self.reserved_bytes.decrease(place.kind, place.size_bytes);
                self.device_frees += 1;
            }
            Record::Retry => self.alloc_retries += 1,
            Record::SyncAllStreams => self.sync_all_streams += 1,
            Record::OutOfMemory => self.ooms += 1,
            Record::Rejected => self.oom_rejections += 1,
            Record::Alloc { .. }
            | Record::FreeRequested { .. }
            | Record::FreeCompleted { .. }
            | Record::InactiveSplit { .. } => unreachable!("counted where it is frequent"),
        }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.all_current as u64
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            allocation: self.allocation.by_pool(),
            segment: self.segment.by_pool(),
            active: self.active.by_pool(),
            inactive_split: self.inactive_split.by_pool(),
            allocated_bytes: self.allocated_bytes.by_pool(),
            reserved_bytes: self.reserved_bytes.by_pool(),
            active_bytes: self.active_bytes.by_pool(),
            inactive_split_bytes: self.inactive_split_bytes.by_pool(),
            requested_bytes: self.requested_bytes.by_pool(),
            oversize_allocations: self.oversize_allocations.counter(),
            oversize_segments: self.oversize_segments.counter(),
            num_alloc_retries: self.alloc_retries,
            num_ooms: self.ooms,
            num_oom_rejections: self.oom_rejections,
            num_sync_all_streams: self.sync_all_streams,
            num_device_alloc: self.device_allocs,
            num_device_free: self.device_frees,
        }
    }

    fn families(&mut self) -> [&mut Family; 9] {
        [
            &mut self.allocation,
            &mut self.allocated_bytes,
            &mut self.active,
            &mut self.active_bytes,
            &mut self.requested_bytes,
            &mut self.inactive_split,
            &mut self.inactive_split_bytes,
            &mut self.segment,
            &mut self.reserved_bytes,
        ]
    }

    pub(super) fn reset_peak(&mut self) {
        self.families().into_iter().for_each(Family::reset_peak);
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.families().into_iter().for_each(Family::reset_accumulated);
        self.oversize_allocations.reset_accumulated();
        self.oversize_segments.reset_accumulated();
        self.alloc_retries = 0;
        self.ooms = 0;
        self.oom_rejections = 0;
        self.sync_all_streams = 0;
        self.device_allocs = 0;
        self.device_frees = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Place;
    use crate::types::{Addr, StreamId};

    fn place(kind: PoolKind, size_bytes: u64) -> Place {
        Place { kind, stream: StreamId(0), addr: Addr(0), size_bytes }
    }

    fn alloc(ledger: &mut Ledger, kind: PoolKind, size_bytes: u64) {
        let place = place(kind, size_bytes);
        ledger.record(Record::Alloc { place, requested_bytes: size_bytes - 1, oversize: false });
    }

    fn free(ledger: &mut Ledger, kind: PoolKind, size_bytes: u64) {
        let (place, requested_bytes) = (place(kind, size_bytes), size_bytes - 1);
        ledger.record(Record::FreeRequested { place, requested_bytes, oversize: false });
        ledger.record(Record::FreeCompleted { place, requested_bytes });
    }

    #[test]
    fn the_peak_of_all_is_the_peak_of_the_sum() {
        let mut ledger = Ledger::default();
        alloc(&mut ledger, PoolKind::Small, 512);
        free(&mut ledger, PoolKind::Small, 512);
        alloc(&mut ledger, PoolKind::Large, 4096);
        let bytes = ledger.stats().allocated_bytes;
        assert_eq!(
            (bytes.small_pool.peak, bytes.large_pool.peak, bytes.all.peak),
            (512, 4096, 4096)
        );
        assert_eq!((bytes.all.allocated, bytes.all.freed, bytes.all.current), (4608, 512, 4096));
        assert_eq!(ledger.stats().requested_bytes.all.current, 4095);
    }

    #[test]
    fn the_two_resets_touch_only_their_own() {
        let mut ledger = Ledger::default();
        alloc(&mut ledger, PoolKind::Small, 512);
        alloc(&mut ledger, PoolKind::Small, 512);
        free(&mut ledger, PoolKind::Small, 512);
        ledger.record(Record::Retry);
        ledger.reset_peak();
        let bytes = ledger.stats().allocated_bytes.all;
        assert_eq!((bytes.peak, bytes.allocated, bytes.freed), (512, 1024, 512));
        ledger.reset_accumulated();
        free(&mut ledger, PoolKind::Small, 512);
        let stats = ledger.stats();
        let bytes = stats.allocated_bytes.all;
        assert_eq!((bytes.current, bytes.peak, bytes.allocated, bytes.freed), (0, 512, 0, 512));
        assert_eq!(stats.num_alloc_retries, 0);
    }

    #[test]
    fn every_key_of_pytorch_is_there() {
        let entries = Stats::default().entries();
        assert_eq!(entries.len(), 9 * 3 * 4 + 2 * 4 + 5);
        assert!(entries.iter().any(|(key, _)| key == "reserved_bytes.large_pool.peak"));
    }
}
