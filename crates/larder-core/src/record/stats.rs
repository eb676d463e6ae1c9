//! Statistics: PyTorch's counters, kept with as few additions per operation as will do.

pub use crate::record::counter::{ByPool, Counter};

use crate::record::gauge::{Active, Families, Gauge, Waits};
use crate::record::{Place, Record};
use crate::types::PoolKind;

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
    /// Calls that took memory from the device, or mapped pages into views.
    pub num_device_alloc: u64,
    /// Calls that gave memory back, or unmapped pages from views.
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
        for (name, family) in by_pool {
            entries.extend(family.entries(name));
        }
        entries.extend(self.oversize_allocations.entries("oversize_allocations"));
        entries.extend(self.oversize_segments.entries("oversize_segments"));
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

/// `active` and `allocation`, which differ by what waits.
const BLOCKS: usize = 0;
/// `active_bytes` and `allocated_bytes`, likewise.
const BYTES: usize = 1;
/// `requested_bytes`.
const REQUESTED_BYTES: usize = 2;
/// `inactive_split`.
const PIECES: usize = 3;
/// `inactive_split_bytes`.
const PIECE_BYTES: usize = 4;
/// `segment`.
const SEGMENTS: usize = 0;
/// `reserved_bytes`.
const RESERVED_BYTES: usize = 1;

/// The statistics as they are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// What mallocs and frees change: `BLOCKS` to `PIECE_BYTES`.
    often: Families<5>,
    /// What comes with a device call: `SEGMENTS` and `RESERVED_BYTES`.
    seldom: Families<2>,
    /// Of `BLOCKS` and `BYTES`, what is active and no longer live.
    waits: [Waits; 2],
    oversize_allocations: Gauge,
    oversize_segments: Gauge,
    alloc_retries: u64,
    ooms: u64,
    oom_rejections: u64,
    sync_all_streams: u64,
    device_allocs: u64,
    device_frees: u64,
}

impl Counts {
    /// Counts a fact.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn record(&mut self, record: Record) {
        match record {
            Record::Alloc { place, requested_bytes, oversize } => {
                let Place { kind, size_bytes, .. } = place;
                let blocks = self.often.raise(BLOCKS, kind, 1);
                let bytes = self.often.raise(BYTES, kind, size_bytes);
                let requested_bytes = self.often.raise(REQUESTED_BYTES, kind, requested_bytes);
                // One branch for all of them.
                if (blocks | bytes | requested_bytes) < 0 {
                    self.often.meet_fences(kind);
                }
                if oversize {
                    self.oversize_allocations.increase(1);
                }
            }
            Record::Free { place, requested_bytes, oversize } => {
                self.often.decrease(BLOCKS, place.kind, 1);
                self.often.decrease(BYTES, place.kind, place.size_bytes);
                self.often.decrease(REQUESTED_BYTES, place.kind, requested_bytes);
                if oversize {
                    self.oversize_allocations.decrease(1);
                }
            }
            Record::InactiveSplit { kind, blocks, bytes } => {
                let blocks = self.often.change(PIECES, kind, blocks);
                let bytes = self.often.change(PIECE_BYTES, kind, bytes);
                if (blocks | bytes) < 0 {
                    self.often.meet_fences(kind);
                }
            }
            Record::FewerPieces { kind, blocks, bytes } => {
                self.often.decrease(PIECES, kind, blocks);
                self.often.decrease(PIECE_BYTES, kind, bytes);
            }
            _ => self.record_rare(record),
        }
    }

    /// Something live, counted by `BLOCKS` or `BYTES`, waits from now on.
    fn begin_wait(&mut self, which: usize, kind: PoolKind, amount: u64) {
        self.waits[which].begin(Active { of: &mut self.often, which }, kind, amount);
    }

    /// Something that waited is free.
    fn end_wait(&mut self, which: usize, kind: PoolKind, amount: u64) {
        self.waits[which].end(Active { of: &mut self.often, which }, kind, amount);
    }

    /// The facts that come with a device call, a wait or a failure. Apart, so that the frequent
    /// ones stay small enough to be inlined where they are stated.
    #[inline(never)]
    fn record_rare(&mut self, record: Record) {
        match record {
            Record::FreeRequested { place, oversize, .. } => {
                self.begin_wait(BLOCKS, place.kind, 1);
                self.begin_wait(BYTES, place.kind, place.size_bytes);
                if oversize {
                    self.oversize_allocations.decrease(1);
                }
            }
            Record::FreeCompleted { place, requested_bytes } => {
                self.end_wait(BLOCKS, place.kind, 1);
                self.end_wait(BYTES, place.kind, place.size_bytes);
                self.often.decrease(REQUESTED_BYTES, place.kind, requested_bytes);
            }
            Record::SegmentAlloc { place, oversize } => {
                self.seldom.increase(SEGMENTS, place.kind, 1);
                self.seldom.increase(RESERVED_BYTES, place.kind, place.size_bytes);
                self.device_allocs += 1;
                if oversize {
                    self.oversize_segments.increase(1);
                }
            }
            Record::SegmentFree { place, oversize } => {
                self.seldom.decrease(SEGMENTS, place.kind, 1);
                self.seldom.decrease(RESERVED_BYTES, place.kind, place.size_bytes);
                self.device_frees += 1;
                if oversize {
                    self.oversize_segments.decrease(1);
                }
            }
            Record::SegmentMap { place } => {
                self.seldom.increase(RESERVED_BYTES, place.kind, place.size_bytes);
                self.device_allocs += 1;
            }
            Record::SegmentUnmap { place } => {
                self.seldom.decrease(RESERVED_BYTES, place.kind, place.size_bytes);
                self.device_frees += 1;
            }
            Record::Shown => self.device_allocs += 1,
            Record::Hidden => self.device_frees += 1,
            Record::Retry => self.alloc_retries += 1,
            Record::SyncAllStreams => self.sync_all_streams += 1,
            Record::OutOfMemory => self.ooms += 1,
            Record::Rejected => self.oom_rejections += 1,
            Record::Alloc { .. }
            | Record::Free { .. }
            | Record::InactiveSplit { .. }
            | Record::FewerPieces { .. } => unreachable!("counted where it is frequent"),
        }
    }

    /// Bytes in active blocks, without the cost of all statistics.
    pub(super) fn active_bytes(&self) -> Counter {
        self.waits[BYTES].active(&self.often, BYTES).all
    }

    /// The most bytes in active blocks since the phase began.
    pub(super) fn phase_peak_bytes(&self) -> u64 {
        self.waits[BYTES].phase_peak(&self.often, BYTES) as u64
    }

    /// A phase begins: what was active before does not count any more.
    pub(super) fn begin_phase(&mut self) {
        self.waits[BYTES].begin_phase(Active { of: &mut self.often, which: BYTES });
    }

    /// How many free pieces there are, small and large, and how many bytes in them.
    pub(super) fn pieces(&self) -> [[i64; 2]; 2] {
        [self.often.currents(PIECES), self.often.currents(PIECE_BYTES)]
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.waits[BYTES].live(&self.often, BYTES).all.current as u64
    }

    pub(super) fn stats(&self) -> Stats {
        let Counts { often, seldom, waits, .. } = self;
        Stats {
            allocation: waits[BLOCKS].live(often, BLOCKS),
            segment: seldom.by_pool(SEGMENTS),
            active: waits[BLOCKS].active(often, BLOCKS),
            inactive_split: often.by_pool(PIECES),
            allocated_bytes: waits[BYTES].live(often, BYTES),
            reserved_bytes: seldom.by_pool(RESERVED_BYTES),
            active_bytes: waits[BYTES].active(often, BYTES),
            inactive_split_bytes: often.by_pool(PIECE_BYTES),
            requested_bytes: often.by_pool(REQUESTED_BYTES),
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

    pub(super) fn reset_peak(&mut self) {
        // Those that wait come first: their peaks are also what a phase reached.
        for (which, waits) in self.waits.iter_mut().enumerate() {
            waits.reset_peak(Active { of: &mut self.often, which });
        }
        self.often.reset_peaks();
        self.seldom.reset_peaks();
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.often.reset_accumulated();
        self.seldom.reset_accumulated();
        self.waits.iter_mut().for_each(Waits::reset_accumulated);
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
    use crate::types::{Addr, PoolKind, StreamId};

    fn place(kind: PoolKind, size_bytes: u64) -> Place {
        Place { kind, stream: StreamId(0), addr: Addr(0), size_bytes }
    }

    fn alloc(counts: &mut Counts, kind: PoolKind, size_bytes: u64) {
        let place = place(kind, size_bytes);
        counts.record(Record::Alloc { place, requested_bytes: size_bytes - 1, oversize: false });
    }

    fn free(counts: &mut Counts, kind: PoolKind, size_bytes: u64) {
        let (place, requested_bytes) = (place(kind, size_bytes), size_bytes - 1);
        counts.record(Record::Free { place, requested_bytes, oversize: false });
    }

    #[test]
    fn the_peak_of_all_is_the_peak_of_the_sum() {
        let mut counts = Counts::default();
        alloc(&mut counts, PoolKind::Small, 512);
        free(&mut counts, PoolKind::Small, 512);
        alloc(&mut counts, PoolKind::Large, 4096);
        let bytes = counts.stats().allocated_bytes;
        assert_eq!(
            (bytes.small_pool.peak, bytes.large_pool.peak, bytes.all.peak),
            (512, 4096, 4096)
        );
        assert_eq!((bytes.all.allocated, bytes.all.freed, bytes.all.current), (4608, 512, 4096));
        assert_eq!(counts.stats().requested_bytes.all.current, 4095);
    }

    #[test]
    fn a_free_in_two_steps_ends_as_one_in_one() {
        let [mut once, mut twice] = [Counts::default(), Counts::default()];
        for counts in [&mut once, &mut twice] {
            alloc(counts, PoolKind::Small, 512);
            alloc(counts, PoolKind::Small, 1024);
        }
        free(&mut once, PoolKind::Small, 512);
        let (place, requested_bytes) = (place(PoolKind::Small, 512), 511);
        twice.record(Record::FreeRequested { place, requested_bytes, oversize: false });
        let between = twice.stats();
        assert_eq!((between.allocation.all.current, between.active.all.current), (1, 2));
        assert_eq!((between.allocated_bytes.all.freed, between.active_bytes.all.freed), (512, 0));
        twice.record(Record::FreeCompleted { place, requested_bytes });
        assert_eq!(once.stats(), twice.stats());
    }

    #[test]
    fn the_two_resets_touch_only_their_own() {
        let mut counts = Counts::default();
        alloc(&mut counts, PoolKind::Small, 512);
        alloc(&mut counts, PoolKind::Small, 512);
        free(&mut counts, PoolKind::Small, 512);
        counts.record(Record::Retry);
        counts.reset_peak();
        let bytes = counts.stats().allocated_bytes.all;
        assert_eq!((bytes.peak, bytes.allocated, bytes.freed), (512, 1024, 512));
        counts.reset_accumulated();
        free(&mut counts, PoolKind::Small, 512);
        let stats = counts.stats();
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
