//! Quiet moments: nobody calls the allocator, so that everything it says can be held against what
//! the threads, the device and the quarries know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_core::StreamId;
use larder_core::heap::State;
use larder_core::heap::states::SegmentState;

use super::super::apart;
use super::ground::{Ground, count, lock};
use super::quarry::Quarry;
use super::worker::{OWN_STREAMS, SHARED_STREAMS};
use larder_sim::{FaultPlan, UNIT_BYTES};

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}

impl Ground {
    /// Checks everything. All threads wait meanwhile.
    pub(super) fn check(&self) -> Result<(), String> {
        count(&self.counts.quiet_moments);
        self.watchdog.beat();
        self.allocator.check().map_err(|unsound| unsound.to_string())?;
        // PyTorch's policies ask about streams as PyTorch does.
        let trespass = self.sim.trespasses().into_iter().next();
        if let Some(trespass) = trespass.filter(|_| !self.plan.policy.is_stock()) {
            return Err(trespass);
        }
        let snapshot = self.allocator.snapshot();
        self.check_blocks(&snapshot)?;
        self.check_counts(&snapshot)?;
        self.check_pools(&snapshot)?;
        self.check_memory(&snapshot)
    }

    /// Exactly what the threads hold is live, where and as large as they know it, and no two blocks
    /// in use share memory.
    fn check_blocks(&self, snapshot: &[SegmentState]) -> Result<(), String> {
        let mut claimed = self.claims.all();
        for segment in snapshot {
            for block in segment.blocks.iter().filter(|block| block.state == State::Live) {
                let addr = block.span.addr;
                let held = claimed.remove(&addr);
                let held = held.ok_or_else(|| format!("{addr} is live, and nobody holds it"))?;
                // Where streams share segments, a block's stream is not its segment's.
                let is_of_stream = self.plan.policy.tight || segment.stream == held.stream;
                ensure!(
                    (block.span, block.requested_bytes) == (held.span, held.requested_bytes)
                        && is_of_stream,
                    "{held:?} has become {block:?}"
                );
                ensure!(self.has_memory(block.span), "there is no memory behind {held:?}");
            }
        }
        if let Some((_, held)) = claimed.pop_first() {
            return Err(format!("{held:?} is no longer live, and nobody freed it"));
        }
        let blocks = snapshot.iter().flat_map(|segment| &segment.blocks);
        let used = blocks.filter(|block| matches!(block.state, State::Live | State::Waiting));
        apart::check(&self.sim, used.map(|block| block.span))
    }

    /// The statistics are what the threads did.
    fn check_counts(&self, snapshot: &[SegmentState]) -> Result<(), String> {
        let (stats, claimed) = (self.allocator.stats(), self.claims.all());
        let blocks = snapshot.iter().flat_map(|segment| &segment.blocks);
        let waiting: u64 = blocks
            .filter(|block| block.state == State::Waiting)
            .map(|block| block.requested_bytes)
            .sum();
        let requested: u64 = claimed.values().map(|held| held.requested_bytes).sum();
        let bytes: u64 = claimed.values().map(|held| held.span.size_bytes).sum();
        let counted = [claimed.len() as i64, bytes as i64, (requested + waiting) as i64];
        let claims = [&stats.allocation, &stats.allocated_bytes, &stats.requested_bytes];
        let claims = claims.map(|family| family.all.current);
        ensure!(
            claims == counted,
            "count, bytes and requested bytes are {claims:?} by claim, {counted:?} in truth"
        );
        if !self.plan.resets_sums {
            let [mallocs, frees, out_of_memory] =
                [&self.counts.mallocs, &self.counts.frees, &self.counts.out_of_memory]
                    .map(|counter| counter.load(Ordering::Relaxed));
            let claims = (stats.allocation.all.allocated, stats.allocation.all.freed);
            ensure!(
                claims == (mallocs as i64, frees as i64),
                "{claims:?} allocations and frees are counted, {mallocs} and {frees} were made"
            );
            let refused = stats.num_ooms + stats.num_oom_rejections;
            ensure!(
                refused == out_of_memory,
                "{refused} refusals are counted, {out_of_memory} requests were refused"
            );
        }
        let [observed, refused] = [&self.counts.observed, &self.counts.out_of_memory]
            .map(|counter| counter.load(Ordering::Relaxed));
        ensure!(observed == refused, "{refused} requests were refused, {observed} observed");
        Ok(())
    }

    /// A segment belongs to a pool that is there, and a quarry's to the quarry's own.
    fn check_pools(&self, snapshot: &[SegmentState]) -> Result<(), String> {
        let quarries = lock(&self.quarries);
        for segment in snapshot {
            let span = segment.span;
            if let Some(pool) = segment.pool {
                let uses = self.allocator.pool_uses(pool);
                ensure!(uses.is_some(), "{span:?} belongs to {pool}, which is gone");
            }
            // The pool of a quarry may be gone and another of its name be there, but not with its
            // memory.
            let number = Quarry::number_of(span.addr);
            if let Some(&(own, _)) = number.and_then(|number| quarries.get(number as usize)) {
                ensure!(
                    segment.pool == Some(own),
                    "{span:?} is of the quarry of {own}, and in pool {:?}",
                    segment.pool
                );
            }
        }
        Ok(())
    }

    /// The device and the quarries have given what the allocator says that it holds, to the byte.
    /// Pages that the device would not take back may come on top.
    fn check_memory(&self, snapshot: &[SegmentState]) -> Result<(), String> {
        let mut quarried: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        let mut device_bytes = 0;
        for segment in snapshot {
            match Quarry::number_of(segment.span.addr) {
                Some(number) => quarried.entry(number).or_default().push(segment.span),
                None => device_bytes += segment.backed_bytes.next_multiple_of(UNIT_BYTES),
            }
        }
        for (number, (pool, quarry)) in lock(&self.quarries).iter().enumerate() {
            let (given, held) = (quarry.given(), quarried.remove(&(number as u64)));
            ensure!(
                given == held.unwrap_or_default(),
                "the quarry of {pool} has given {given:?}, and that is not what is held"
            );
        }
        let used_bytes = self.sim.used_bytes();
        let trouble = &self.plan.trouble;
        let fits = if trouble.has_failing_calls() && trouble.stubborn {
            used_bytes >= device_bytes
        } else {
            used_bytes == device_bytes
        };
        ensure!(fits, "the device has given {used_bytes} bytes, and {device_bytes} are held");
        let ranges = snapshot.iter().filter(|segment| segment.expandable || segment.view);
        let (ranges, calls) = (ranges.count() as u64, self.sim.calls());
        let reserved = calls.reserve - calls.unreserve;
        // Addresses of a view that could not be made may linger where calls fail.
        let may_linger = self.plan.policy.tight && trouble.has_failing_calls();
        ensure!(
            reserved == ranges || may_linger && reserved > ranges,
            "{reserved} ranges are reserved for {ranges} expandable segments and views"
        );
        Ok(())
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm(&self) {
        self.sim.set_faults(FaultPlan::default());
        lock(&self.quarries).iter().for_each(|(_, quarry)| quarry.calm());
    }

    /// All threads have given back what they held. Gives back the rest, and looks for what was
    /// lost: a byte, a page, an event, a pool, a quarry, a context.
    pub(super) fn end(self: Arc<Ground>) -> Result<(), String> {
        while let Some(held) = self.pick_up(0) {
            ensure!(self.free(held)?.is_none(), "{held:?} could not be freed at the end");
        }
        while let Some(pool) = self.adopt_pool(0) {
            drop(pool);
        }
        for thread in 0..=self.plan.threads as u64 {
            for stream in 0..OWN_STREAMS.max(SHARED_STREAMS) {
                self.sim.sync(StreamId(thread * 100 + stream));
            }
        }
        self.allocator.stop_history();
        self.allocator.empty_cache().map_err(|error| error.to_string())?;
        self.check()?;
        // PyTorch keeps ranges of addresses that it did not take the last page from.
        let mut snapshot = self.allocator.snapshot();
        let all = snapshot.len();
        if !self.plan.policy.release_bare_segments {
            snapshot.retain(|segment| !segment.expandable || segment.backed_bytes > 0);
        }
        let bare = (all - snapshot.len()) as i64;
        ensure!(snapshot.is_empty(), "{snapshot:?} is left");
        let stats = self.allocator.stats();
        let left = [&stats.allocation, &stats.active, &stats.reserved_bytes, &stats.segment];
        let left = left.map(|family| family.all.current);
        ensure!(left == [0; 4], "blocks, active ones, bytes, segments: {left:?} are left");
        for &pool in lock(&self.names).iter() {
            let uses = self.allocator.pool_uses(pool);
            ensure!(uses.is_none(), "{pool} is left with {uses:?} uses");
        }
        let contexts = self.contexts.load(Ordering::Relaxed);
        // Addresses that stay reserved keep the context that they were asked for in.
        ensure!(
            contexts <= bare,
            "{contexts} contexts are left, and {bare} segments without memory"
        );
        self.close()
    }

    /// Drops the allocator, and looks at what it leaves behind.
    fn close(self: Arc<Ground>) -> Result<(), String> {
        let ground = Arc::into_inner(self).ok_or("somebody still has the ground")?;
        let bare = ground.allocator.snapshot().len() as u64;
        let Ground { sim, allocator, quarries, .. } = ground;
        let allocator = Arc::into_inner(allocator).ok_or("somebody still has the allocator")?;
        drop(allocator);
        for (pool, quarry) in lock(&quarries).iter() {
            let holders = Arc::strong_count(quarry);
            ensure!(holders == 1, "the source of {pool} is held by {} others", holders - 1);
        }
        let left = (sim.used_bytes(), sim.page_count(), sim.event_count());
        ensure!(left == (0, 0, 0), "bytes, pages and events on the device: {left:?} are left");
        let calls = sim.calls();
        let ranges = calls.reserve - calls.unreserve;
        ensure!(ranges <= bare, "{ranges} ranges of addresses are left, where {bare} had no pages");
        Ok(())
    }
}
