//! The checker: follows an allocator from the outside, and recounts everything that it claims.

use std::collections::BTreeMap;

use larder_core::Stats;
use larder_core::heap::State;
use larder_core::heap::states::SegmentState;
use larder_core::record::stats::ByPool;
use larder_core::types::{Addr, MIB, PoolKind, Span, StreamId};

use super::apart;
use super::outcome::{Outcome, Placed};
use super::recount::{blocks_in, families, recount};
use super::tally::{self, change, change_pool, counters_mut};
use larder_sim::{Moment, SimDevice, UNIT_BYTES};

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}

/// What the checker knows of a block that is live or waits.
#[derive(Clone, Debug)]
struct Held {
    size_bytes: u64,
    requested_bytes: u64,
    stream: StreamId,
    kind: PoolKind,
    oversize: bool,
    /// Other streams that use it and have not been heard to be done.
    uses: Vec<Use>,
    /// It was freed where a graph may show that it is no longer used.
    shown_by_graph: bool,
}

impl Held {
    /// A block that was just handed out.
    fn new(
        size_bytes: u64,
        requested_bytes: u64,
        stream: StreamId,
        kind: PoolKind,
        limit_bytes: Option<u64>,
    ) -> Held {
        let oversize = limit_bytes.is_some_and(|limit| size_bytes >= limit);
        let (uses, shown_by_graph) = (Vec::new(), false);
        Held { size_bytes, requested_bytes, stream, kind, oversize, uses, shown_by_graph }
    }
}

/// A use on another stream.
#[derive(Clone, Copy, Debug)]
struct Use {
    stream: StreamId,
    /// It was part of a capture, and does not run.
    captured: bool,
    /// Where it ended, if somebody said so: when that is over it is done, whoever waited for it.
    end: Option<Moment>,
}

/// No stream: the one that a block was handed out on is gone.
pub(super) const NOBODY: StreamId = StreamId(u64::MAX);

/// What the checker relies on.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a promise of its own.
pub(super) struct Terms {
    /// An oversize allocation is uncounted when it is freed, whatever the limit is by then.
    pub(super) oversize_is_remembered: bool,
    /// Device calls fail for want of memory only.
    pub(super) calls_work: bool,
    /// Pages never refuse to go.
    pub(super) pages_go: bool,
    /// Captured uses are told apart from those that run, stream by stream.
    pub(super) capture_is_by_stream: bool,
    /// All sizes and all streams share memory.
    pub(super) tight: bool,
}

impl Terms {
    /// The kind of pool that a request goes to. Rounding never crosses the limit between the two.
    fn kind_of(self, requested_bytes: u64) -> PoolKind {
        let is_small = requested_bytes <= MIB && !self.tight;
        if is_small { PoolKind::Small } else { PoolKind::Large }
    }
}

/// Follows along.
#[derive(Debug)]
pub(super) struct ExternalChecker {
    terms: Terms,
    live: BTreeMap<Addr, Held>,
    waiting: BTreeMap<Addr, Held>,
    /// Its own count of what programs do. Segments and free blocks are not in it.
    own: Stats,
    /// The statistics after the last step.
    seen: Stats,
    /// The statistics when the sums were last reset.
    base: Stats,
    /// Whether blocks may come free inside captures.
    reuse_in_captures: bool,
    /// Whether the block that is being freed is freed while a scope is open.
    frees_in_scope: bool,
}

impl ExternalChecker {
    pub(super) fn new(terms: Terms) -> ExternalChecker {
        let (own, seen, base) = (Stats::default(), Stats::default(), Stats::default());
        ExternalChecker {
            terms,
            live: BTreeMap::new(),
            waiting: BTreeMap::new(),
            own,
            seen,
            base,
            reuse_in_captures: false,
            frees_in_scope: false,
        }
    }

    /// The statistics after the last step.
    pub(super) fn seen(&self) -> &Stats {
        &self.seen
    }

    /// Addresses of all live allocations.
    pub(super) fn live(&self) -> Vec<Addr> {
        self.live.keys().copied().collect()
    }

    /// Blocks may come free inside captures, or may not.
    pub(super) fn reuse_in_captures(&mut self, on: bool) {
        self.reuse_in_captures = on;
    }

    /// The block that was just freed was freed while a scope was open, or was not.
    pub(super) fn freeing_in_scope(&mut self, is_so: bool) {
        self.frees_in_scope = is_so;
    }

    /// The program uses a live allocation on a stream, in work that runs or that is captured.
    pub(super) fn record_stream(&mut self, addr: Addr, stream: StreamId, captured: bool) {
        let Some(held) = self.live.get_mut(&addr).filter(|held| held.stream != stream) else {
            return;
        };
        match held.uses.iter_mut().find(|other| other.stream == stream) {
            None => held.uses.push(Use { stream, captured, end: None }),
            // A use that runs counts for more than a captured one, if they are told apart.
            Some(known) if self.terms.capture_is_by_stream => known.captured &= captured,
            Some(known) => known.captured |= captured,
        }
    }

    /// The stream's work is done.
    pub(super) fn sync(&mut self, stream: StreamId) {
        for held in self.waiting.values_mut() {
            held.uses.retain(|other| other.stream != stream);
        }
    }

    /// The uses of a live block that is about to be freed end here.
    pub(super) fn uses_end(&mut self, addr: Addr, ends: &[Moment]) {
        let uses = self.live.get_mut(&addr).map(|held| &mut held.uses);
        for other in uses.into_iter().flatten() {
            other.end = ends.iter().find(|end| end.stream == other.stream).copied();
        }
    }

    /// The stream is gone, and its work done.
    pub(super) fn forget(&mut self, stream: StreamId) {
        for held in self.live.values_mut().chain(self.waiting.values_mut()) {
            held.uses.retain(|other| other.stream != stream);
            if held.stream == stream {
                held.stream = NOBODY;
            }
        }
    }

    /// The stream that a live block was handed out on.
    pub(super) fn stream_of(&self, addr: Addr) -> Option<StreamId> {
        self.live.get(&addr).map(|held| held.stream)
    }

    /// The live blocks.
    pub(super) fn live_spans(&self) -> impl Iterator<Item = Span> {
        self.live.iter().map(|(&addr, held)| Span::new(addr, held.size_bytes))
    }

    /// The peaks were reset.
    pub(super) fn reset_peak(&mut self) {
        tally::reset_peak(&mut self.own);
        tally::reset_peak(&mut self.seen);
    }

    /// The sums were reset.
    pub(super) fn reset_accumulated(&mut self) {
        tally::reset_accumulated(&mut self.own);
        tally::reset_accumulated(&mut self.seen);
        self.base = self.seen;
    }

    /// Checks all that the allocator shows after a step. `limit_bytes` is the split limit.
    pub(super) fn observe(
        &mut self,
        outcome: &Outcome,
        snapshot: &[SegmentState],
        stats: &Stats,
        limit_bytes: Option<u64>,
        device: &SimDevice,
    ) -> Result<(), String> {
        check_layout(snapshot)?;
        match outcome {
            Outcome::Freed { addr } => self.freed(*addr, limit_bytes)?,
            Outcome::Restored { freed, layout } => {
                self.restored(freed, layout, limit_bytes)?;
                self.take_peaks(stats);
            }
            Outcome::Allocated { .. } | Outcome::Nothing => {}
        }
        let waited = stats.num_sync_all_streams > self.seen.num_sync_all_streams;
        self.complete(snapshot, waited, device)?;
        // A request is served after everything that was done for it.
        if let &Outcome::Allocated { addr, size_bytes, requested_bytes, stream, before_bytes } =
            outcome
        {
            let kind = self.terms.kind_of(requested_bytes);
            let before = Addr(addr.0 - before_bytes);
            if before_bytes > 0 {
                let held = Held::new(before_bytes, before_bytes, stream, kind, limit_bytes);
                self.allocated(before, held)?;
            }
            let held = Held::new(size_bytes, requested_bytes, stream, kind, limit_bytes);
            self.allocated(addr, held)?;
            if before_bytes > 0 {
                self.freed(before, limit_bytes)?;
            }
        }
        self.check_live(snapshot, device)?;
        self.check_counts(&recount(snapshot), stats)?;
        self.check_course(stats)?;
        self.check_device(snapshot, device)?;
        self.seen = *stats;
        Ok(())
    }

    fn allocated(&mut self, addr: Addr, held: Held) -> Result<(), String> {
        ensure!(held.size_bytes >= held.requested_bytes, "{addr} is smaller than asked for");
        ensure!(addr.0.is_multiple_of(512), "{addr} is not a multiple of 512");
        let span = Span::new(addr, held.size_bytes);
        for blocks in [&self.live, &self.waiting] {
            let before = blocks.range(..span.end()).next_back();
            let overlap = before.filter(|(other, held)| other.offset(held.size_bytes) > addr);
            if let Some((other, _)) = overlap {
                return Err(format!("{addr} overlaps the block at {other}, which is in use"));
            }
        }
        let kind = held.kind;
        change_pool(&mut self.own.allocation, kind, 1);
        change_pool(&mut self.own.allocated_bytes, kind, held.size_bytes as i64);
        change_pool(&mut self.own.active, kind, 1);
        change_pool(&mut self.own.active_bytes, kind, held.size_bytes as i64);
        change_pool(&mut self.own.requested_bytes, kind, held.requested_bytes as i64);
        if held.oversize {
            change(&mut self.own.oversize_allocations, 1);
        }
        self.live.insert(addr, held);
        Ok(())
    }

    fn freed(&mut self, addr: Addr, limit_bytes: Option<u64>) -> Result<(), String> {
        let held = self.live.remove(&addr).ok_or_else(|| format!("{addr} was freed, not live"))?;
        let kind = held.kind;
        change_pool(&mut self.own.allocation, kind, -1);
        change_pool(&mut self.own.allocated_bytes, kind, -(held.size_bytes as i64));
        let oversize = if self.terms.oversize_is_remembered {
            held.oversize
        } else {
            limit_bytes.is_some_and(|limit| held.size_bytes >= limit)
        };
        if oversize {
            change(&mut self.own.oversize_allocations, -1);
        }
        if held.uses.is_empty() {
            self.completed(&held);
        } else {
            let shown_by_graph = self.frees_in_scope && self.reuse_in_captures;
            self.waiting.insert(addr, Held { shown_by_graph, ..held });
        }
        Ok(())
    }

    /// A layout was put back: everything that was live of its pool is freed, every block of it is
    /// handed out, and those that were free are freed again.
    fn restored(
        &mut self,
        freed: &[Addr],
        layout: &[Placed],
        limit_bytes: Option<u64>,
    ) -> Result<(), String> {
        for &addr in freed {
            self.freed(addr, limit_bytes)?;
        }
        for &Placed { addr, size_bytes, stream, kind, .. } in layout {
            self.allocated(addr, Held::new(size_bytes, size_bytes, stream, kind, limit_bytes))?;
        }
        for placed in layout.iter().filter(|placed| !placed.live) {
            self.freed(placed.addr, limit_bytes)?;
        }
        Ok(())
    }

    /// In which order the segments of a layout come is the allocator's own business, and the peaks
    /// depend on it. Those of the model are compared to the last.
    fn take_peaks(&mut self, stats: &Stats) {
        let mut claimed = *stats;
        for (own, claimed) in
            counters_mut(&mut self.own).into_iter().zip(counters_mut(&mut claimed))
        {
            own.peak = claimed.peak.max(own.current);
        }
    }

    fn completed(&mut self, held: &Held) {
        let kind = held.kind;
        change_pool(&mut self.own.active, kind, -1);
        change_pool(&mut self.own.active_bytes, kind, -(held.size_bytes as i64));
        change_pool(&mut self.own.requested_bytes, kind, -(held.requested_bytes as i64));
    }

    /// Blocks that no longer wait were waited for, or all their streams are done.
    fn complete(
        &mut self,
        snapshot: &[SegmentState],
        waited: bool,
        device: &SimDevice,
    ) -> Result<(), String> {
        let mut still = BTreeMap::new();
        for (_, block) in blocks_in(snapshot, State::Waiting) {
            let addr = block.span.addr;
            let held = self.waiting.remove(&addr);
            let held = held.ok_or_else(|| format!("{addr} waits for nothing that we know of"))?;
            ensure!(
                (block.span.size_bytes, block.requested_bytes)
                    == (held.size_bytes, held.requested_bytes),
                "the waiting block at {addr} changed its size"
            );
            still.insert(addr, held);
        }
        for (addr, held) in std::mem::replace(&mut self.waiting, still) {
            // Captured work has not run, and is not waited for. Where uses are not told apart, a
            // graph is taken to show the end of all of them.
            let trusts_graph = held.shown_by_graph && !self.terms.capture_is_by_stream;
            let is_over = |other: &Use| other.end.is_some_and(|end| device.is_over(end));
            let runs = held.uses.iter().find(|other| !other.captured && !is_over(other));
            if let Some(runs) = runs.filter(|_| self.terms.calls_work && !waited && !trusts_graph) {
                return Err(format!("{addr} no longer waits, though {} is not done", runs.stream));
            }
            self.completed(&held);
        }
        Ok(())
    }

    /// Exactly our live blocks are live, where and as large as we know them, on real memory that is
    /// nobody else's.
    fn check_live(&self, snapshot: &[SegmentState], device: &SimDevice) -> Result<(), String> {
        let mut known = self.live.iter();
        for (segment, block) in blocks_in(snapshot, State::Live) {
            let addr = block.span.addr;
            let Some((&known_addr, held)) = known.next() else {
                return Err(format!("{addr} is live, and nobody asked for it"));
            };
            ensure!(addr == known_addr, "the next live block is {addr}, not {known_addr}");
            ensure!(
                (block.span.size_bytes, block.requested_bytes)
                    == (held.size_bytes, held.requested_bytes),
                "the live block at {addr} changed its size"
            );
            let is_of_stream = self.terms.tight || segment.stream == held.stream;
            ensure!(
                is_of_stream && segment.kind == held.kind,
                "the live block at {addr} lies in a segment of another stream or kind"
            );
            ensure!(device.is_accessible(block.span), "there is no memory behind {addr}");
        }
        if let Some((addr, _)) = known.next() {
            return Err(format!("{addr} is no longer live, and nobody freed it"));
        }
        let used = [&self.live, &self.waiting].into_iter().flatten();
        apart::check(device, used.map(|(&addr, held)| Span::new(addr, held.size_bytes)))
    }

    /// All current values are what the snapshot shows; what programs do is counted to the last
    /// sum and peak.
    fn check_counts(&self, counted: &Stats, stats: &Stats) -> Result<(), String> {
        let pairs = families(counted).into_iter().zip(families(stats));
        for ((name, counted), (_, claimed)) in pairs {
            let current = |family: &ByPool| {
                [family.all, family.small_pool, family.large_pool].map(|c| c.current)
            };
            let (counted, claimed) = (current(counted), current(claimed));
            ensure!(claimed == counted, "{name} is {claimed:?} by claim, {counted:?} by count");
        }
        let mut expected = *stats;
        expected.allocation = self.own.allocation;
        expected.allocated_bytes = self.own.allocated_bytes;
        expected.active = self.own.active;
        expected.active_bytes = self.own.active_bytes;
        expected.requested_bytes = self.own.requested_bytes;
        expected.oversize_allocations = self.own.oversize_allocations;
        tally::difference(stats, &expected).map_or(Ok(()), Err)
    }

    /// Sums and peaks only grow between resets, and sums explain the current values.
    fn check_course(&self, stats: &Stats) -> Result<(), String> {
        let (mut now, mut seen, mut base) = (*stats, self.seen, self.base);
        let counters = counters_mut(&mut now).into_iter().zip(counters_mut(&mut seen));
        for ((now, seen), base) in counters.zip(counters_mut(&mut base)) {
            ensure!(now.peak >= seen.peak && now.peak >= now.current, "a peak fell: {now:?}");
            ensure!(
                now.allocated >= seen.allocated && now.freed >= seen.freed,
                "a sum fell: {now:?} after {seen:?}"
            );
            ensure!(
                now.allocated - now.freed == now.current - base.current,
                "sums do not explain the value: {now:?} from {}",
                base.current
            );
        }
        let plain = |stats: &Stats| {
            [
                stats.num_alloc_retries,
                stats.num_ooms,
                stats.num_oom_rejections,
                stats.num_sync_all_streams,
                stats.num_device_alloc,
                stats.num_device_free,
            ]
        };
        let fell = plain(stats).into_iter().zip(plain(&self.seen)).any(|(now, seen)| now < seen);
        ensure!(!fell, "a plain counter fell: {:?} after {:?}", plain(stats), plain(&self.seen));
        Ok(())
    }

    /// The device holds for us what we say we hold of it. Pages that it would not take back may
    /// come on top.
    fn check_device(&self, snapshot: &[SegmentState], device: &SimDevice) -> Result<(), String> {
        let held_bytes: u64 =
            snapshot.iter().map(|segment| segment.backed_bytes.next_multiple_of(UNIT_BYTES)).sum();
        let used_bytes = device.used_bytes();
        let fits =
            if self.terms.pages_go { used_bytes == held_bytes } else { used_bytes >= held_bytes };
        ensure!(fits, "the device has given us {used_bytes} bytes, and we hold {held_bytes}");
        let ranges = snapshot.iter().filter(|segment| segment.expandable || segment.view);
        let (ranges, calls) = (ranges.count() as u64, device.calls());
        let reserved = calls.reserve - calls.unreserve;
        // Addresses of a view that could not be made may linger where calls fail.
        let lingers = self.terms.tight && !self.terms.calls_work && reserved > ranges;
        ensure!(
            reserved == ranges || lingers,
            "{reserved} ranges are reserved for {ranges} expandable segments and views"
        );
        Ok(())
    }
}

/// Segments do not overlap, and blocks fill them.
fn check_layout(snapshot: &[SegmentState]) -> Result<(), String> {
    for pair in snapshot.windows(2) {
        let (first, second) = (pair[0].span, pair[1].span);
        ensure!(first.end() <= second.addr, "{first:?} and {second:?} overlap");
    }
    for segment in snapshot {
        let mut reached = segment.span.addr;
        for block in &segment.blocks {
            ensure!(block.span.addr == reached, "there is a gap before {:?}", block.span);
            reached = block.span.end();
        }
        ensure!(reached == segment.span.end(), "the blocks of {:?} end early", segment.span);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::{Allocator, Config, Policy};

    use super::*;

    /// An allocator with a small, a large and an oversize block, whose last step is to be observed.
    struct Scene {
        device: Arc<SimDevice>,
        allocator: Allocator,
        checker: ExternalChecker,
        outcome: Outcome,
    }

    fn scene() -> Scene {
        let device = Arc::new(SimDevice::default());
        let config = Config::parse("max_split_size_mb:20").unwrap();
        let allocator = Allocator::new(device.clone(), config, Policy::larder());
        let terms = Terms {
            oversize_is_remembered: true,
            calls_work: true,
            pages_go: true,
            capture_is_by_stream: true,
            tight: false,
        };
        let mut checker = ExternalChecker::new(terms);
        let mut outcome = Outcome::Nothing;
        for requested_bytes in [1000, 3 * MIB, 50 * MIB] {
            observe(&mut checker, &outcome, &allocator, &device).unwrap();
            let addr = allocator.malloc(requested_bytes, StreamId(0)).unwrap();
            let size_bytes = allocator.usable_bytes(addr).unwrap();
            let (stream, before_bytes) = (StreamId(0), 0);
            outcome =
                Outcome::Allocated { addr, size_bytes, requested_bytes, stream, before_bytes };
        }
        Scene { device, allocator, checker, outcome }
    }

    fn observe(
        checker: &mut ExternalChecker,
        outcome: &Outcome,
        allocator: &Allocator,
        device: &SimDevice,
    ) -> Result<(), String> {
        let (snapshot, stats) = (allocator.snapshot(), allocator.stats());
        checker.observe(outcome, &snapshot, &stats, Some(20 * MIB), device)
    }

    #[test]
    fn a_false_statistic_is_found_whichever_it_is() {
        let count = counters_mut(&mut Stats::default()).len();
        for at in 0..count {
            let Scene { device, allocator, mut checker, outcome } = scene();
            let (snapshot, mut stats) = (allocator.snapshot(), allocator.stats());
            counters_mut(&mut stats)[at].current += 1;
            let seen = checker.observe(&outcome, &snapshot, &stats, Some(20 * MIB), &device);
            assert!(seen.is_err(), "counter {at} of {count}");
        }
    }

    #[test]
    fn a_block_that_goes_or_comes_by_itself_is_found() {
        let Scene { device, allocator, mut checker, outcome } = scene();
        let unasked = observe(&mut checker, &Outcome::Nothing, &allocator, &device).unwrap_err();
        assert!(unasked.contains("nobody asked for it"), "{unasked}");

        let mut again = scene();
        observe(&mut again.checker, &outcome, &again.allocator, &again.device).unwrap();
        let Outcome::Allocated { addr, .. } = outcome else { unreachable!() };
        again.allocator.free(addr).unwrap();
        let gone = observe(&mut again.checker, &Outcome::Nothing, &again.allocator, &again.device);
        let gone = gone.unwrap_err();
        assert!(gone.contains("nobody freed it"), "{gone}");
    }

    #[test]
    fn a_block_that_waits_may_not_become_free_too_early() {
        let Scene { device, allocator, mut checker, outcome } = scene();
        observe(&mut checker, &outcome, &allocator, &device).unwrap();
        let Outcome::Allocated { addr, .. } = outcome else { unreachable!() };
        allocator.record_stream(addr, StreamId(3)).unwrap();
        checker.record_stream(addr, StreamId(3), false);
        allocator.free(addr).unwrap();
        observe(&mut checker, &Outcome::Freed { addr }, &allocator, &device).unwrap();
        // The device says that the stream is done, but the script has not said so.
        device.sync(StreamId(3));
        allocator.malloc(1, StreamId(7)).unwrap();
        let early = observe(&mut checker, &Outcome::Nothing, &allocator, &device).unwrap_err();
        assert!(early.contains("stream 3 is not done"), "{early}");
    }
}
