//! The model's small blocks that are given back and not joined yet.
//!
//! The rule, which decides where requests are put: a request takes the last block of its very size
//! that came back on its stream. If there is none, it takes the best of the free ones; and if that
//! fails, the blocks that came back are joined with their neighbours, the largest first, until one
//! is large enough. Anything but a plain request or a free joins them all first.

use larder_core::policy::TieBreak;
use larder_core::record::stats::Counter;
use larder_core::types::{PoolKind, StreamId};
use larder_core::{Addr, Stats};

use super::segment::State;
use super::{Model, SMALL_MAX_BYTES, Spot, Want};
use crate::soak::tally::{self, change, change_pool};

/// Where so many are deferred on a stream, the next one has all of them coalesced.
const DEFERRED_MAX: usize = 4096;

impl Model {
    /// A request on the fast path: one that is deferred and has its size, or a free one, or what
    /// comes of coalescing what is deferred, the largest first. None if it takes more care than
    /// that.
    pub(super) fn malloc_fast(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        if !self.policy.merges_late {
            return None;
        }
        let is_idle = self.scopes.is_empty() && self.events.is_empty() && self.put_off.is_empty();
        let on_fast_path = is_idle && self.is_plain() && !self.asks_for_plain;
        let was_on_fast_path = std::mem::replace(&mut self.on_fast_path, on_fast_path);
        if !self.on_fast_path {
            return None;
        }
        let want = self.want(requested_bytes, stream);
        if was_on_fast_path && let Some(spot) = self.find_deferred(&want, Some(want.size_bytes)) {
            self.block_mut(spot).state = State::Free;
            self.taken_deferred += 1;
            return Some(Addr(self.hand_out_cut(spot, &want, false)));
        }
        if let Some(addr) = self.take(&want) {
            return Some(Addr(addr));
        }
        while let Some(spot) = self.find_deferred(&want, None) {
            if self.coalesce(spot) >= want.size_bytes {
                return self.take(&want).map(Addr);
            }
        }
        None
    }

    /// A free on the fast path. False if the block is not deferred.
    pub(super) fn defer(&mut self, (at, block_at): Spot) -> bool {
        let block = &self.segments[at].blocks[block_at];
        let segment = &self.segments[at];
        let may_serve = self.config.expandable_segments || !segment.is_expandable();
        let is_small = block.size_bytes <= SMALL_MAX_BYTES;
        if !self.on_fast_path || !is_small || !block.uses.is_empty() || !may_serve {
            return false;
        }
        let addr = block.addr;
        let deferred = self.all_deferred(segment.pool, segment.stream);
        if deferred.len() == DEFERRED_MAX {
            let addrs: Vec<u64> = deferred.into_iter().map(|spot| self.block(spot).addr).collect();
            for addr in addrs {
                self.coalesce(self.find(addr));
            }
        }
        let (at, block_at) = self.find(addr);
        self.deferrals += 1;
        let (kind, number) = (self.segments[at].kind, self.deferrals);
        let block = self.block_mut((at, block_at));
        block.state = State::Deferred(number);
        let (bytes, requested_bytes) = (block.size_bytes as i64, block.requested_bytes as i64);
        change_pool(&mut self.stats.allocation, kind, -1);
        change_pool(&mut self.stats.allocated_bytes, kind, -bytes);
        change_pool(&mut self.stats.active, kind, -1);
        change_pool(&mut self.stats.active_bytes, kind, -bytes);
        change_pool(&mut self.stats.requested_bytes, kind, -requested_bytes);
        true
    }

    /// Nothing is deferred any more: before all that is not on the fast path.
    pub(super) fn settle(&mut self) {
        self.on_fast_path = false;
        loop {
            let mut spots = self.segments.iter().enumerate().flat_map(|(at, segment)| {
                (0..segment.blocks.len()).map(move |block_at| (at, block_at))
            });
            let is_deferred = |&spot: &Spot| matches!(self.block(spot).state, State::Deferred(_));
            let Some(spot) = spots.find(is_deferred) else { return };
            self.coalesce(spot);
        }
    }

    /// Whether requests are rounded plainly and nothing was set that takes care, now or ever.
    pub(super) fn is_plain(&self) -> bool {
        let rounds_plainly = self.config.roundup_divisions.iter().all(|&divisions| divisions <= 1);
        rounds_plainly && !self.had_ages && self.policy.tie_break != TieBreak::BlockNumber
    }

    /// The block that is deferred in the default pool on the request's stream: the last that came
    /// of the size, or of the largest size.
    fn find_deferred(&self, want: &Want, size_bytes: Option<u64>) -> Option<Spot> {
        if want.kind == PoolKind::Large {
            return None;
        }
        let spots = self.all_deferred(None, want.stream).into_iter();
        let spots = spots.filter(|&spot| {
            size_bytes.is_none_or(|size_bytes| self.block(spot).size_bytes == size_bytes)
        });
        spots.max_by_key(|&spot| match self.block(spot).state {
            State::Deferred(number) => (self.block(spot).size_bytes, number),
            _ => (0, 0),
        })
    }

    fn all_deferred(&self, pool: Option<u32>, stream: StreamId) -> Vec<Spot> {
        let mut spots = Vec::new();
        for (at, segment) in self.segments.iter().enumerate() {
            if (segment.pool, segment.stream) == (pool, stream) {
                let blocks = segment.blocks.iter().enumerate();
                let is_deferred =
                    blocks.filter(|(_, block)| matches!(block.state, State::Deferred(_)));
                spots.extend(is_deferred.map(|(block_at, _)| (at, block_at)));
            }
        }
        spots
    }

    /// A deferred block is free and joined. Says how large the whole is.
    fn coalesce(&mut self, (at, block_at): Spot) -> u64 {
        let segment = &mut self.segments[at];
        segment.blocks[block_at].state = State::Free;
        let (whole, ..) = segment.join(block_at);
        segment.blocks[whole].size_bytes
    }

    /// How many requests got a deferred block.
    pub(in crate::soak) fn taken_deferred(&self) -> u64 {
        self.taken_deferred
    }

    /// Names the first statistic that is not as it should be. It is asked after every step: where
    /// blocks are deferred, small pieces are counted then, as if none did.
    pub(in crate::soak) fn difference(&mut self, found: &Stats) -> Option<String> {
        self.see_pieces();
        let mut expected = self.stats;
        if self.policy.merges_late {
            [expected.inactive_split, expected.inactive_split_bytes] = self.seen;
        }
        tally::difference(found, &expected)
    }

    /// Somebody looks. Of large blocks none is deferred.
    pub(super) fn see_pieces(&mut self) {
        let counted = self.count_small_pieces();
        let families = [self.stats.inactive_split, self.stats.inactive_split_bytes];
        for ((family, now), seen) in families.into_iter().zip(counted).zip(&mut self.seen) {
            let (more, large) = (now - seen.small_pool.current, family.large_pool);
            change(&mut seen.small_pool, more);
            let (current, small) = (now + large.current, seen.small_pool);
            seen.large_pool = large;
            seen.all = Counter {
                current,
                peak: seen.all.peak.max(current).max(large.peak),
                allocated: small.allocated + large.allocated,
                freed: small.freed + large.freed,
            };
        }
    }

    /// How many small pieces there are if what is deferred is coalesced, and how many bytes in
    /// them.
    fn count_small_pieces(&self) -> [i64; 2] {
        let is_free = |state: State| matches!(state, State::Free | State::Deferred(_));
        let (mut blocks, mut bytes) = (0, 0);
        for segment in &self.segments {
            if segment.is_expandable() || segment.kind == PoolKind::Large {
                continue;
            }
            for run in segment.blocks.chunk_by(|a, b| is_free(a.state) == is_free(b.state)) {
                if is_free(run[0].state) && run.len() < segment.blocks.len() {
                    blocks += 1;
                    bytes += run.iter().map(|block| block.size_bytes as i64).sum::<i64>();
                }
            }
        }
        [blocks, bytes]
    }

    /// Peaks of the pieces become the current values.
    pub(super) fn reset_seen_peaks(&mut self) {
        for seen in &mut self.seen {
            for counter in [&mut seen.small_pool, &mut seen.all] {
                counter.peak = counter.current;
            }
        }
    }

    /// Sums of the pieces become zero.
    pub(super) fn reset_seen_sums(&mut self) {
        for seen in &mut self.seen {
            (seen.small_pool.allocated, seen.small_pool.freed) = (0, 0);
        }
    }
}
