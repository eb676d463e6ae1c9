//! A naive allocator to judge the real one by: lists instead of indexes, a search through
//! everything instead of bookkeeping. It is written from the rules, and shares no code with the
//! heap that it judges.
//!
//! It knows sizes, order and streams, and one thing more: under `larder` a small block that is
//! given back stays whole for the next request of its size, as long as nothing but plain requests
//! and frees are made. Which block a request gets depends on that, so the model has to know it
//! (`deferred.rs`).
//!
//! It expects a device on which no call fails but for want of memory.

mod capture;
mod checkpoint;
mod deferred;
mod exact;
mod growth;
mod number_table;
mod pools;
mod release;
mod segment;
mod want;

pub(super) use checkpoint::Checkpoint;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_core::config::ConfigError;
use larder_core::device::Device;
use larder_core::policy::TieBreak;
use larder_core::record::stats::ByPool;
use larder_core::types::{Addr, EventId, MIB, PoolKind, StreamId};
use larder_core::{Config, Policy, Stats};

use super::tally::{self, change, change_pool};
use capture::PutOff;
use growth::Grown;
use larder_sim::SimDevice;
use number_table::NumberTable;
use pools::{Private, Scope};
use segment::{Block, Segment, State};
use want::Want;

/// All sizes are multiples of this.
const UNIT_BYTES: u64 = 512;
const SMALL_MAX_BYTES: u64 = MIB;
const REQUEST_LIMIT_BYTES: u64 = 1 << 60;

const NO_FAULTS: &str = "the model's device fails for want of memory only";

/// Where a block stands: which segment, which block of it.
type Spot = (usize, usize);

/// The naive allocator.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own; any mixture can be.
pub(super) struct Model {
    device: Arc<SimDevice>,
    policy: Policy,
    config: Config,
    cap_bytes: Option<u64>,
    segments: Vec<Segment>,
    /// Events awaited, in the order in which they were recorded, each with its block's address.
    events: Vec<(StreamId, EventId, u64)>,
    spare_events: Vec<EventId>,
    /// How often each pool was searched while garbage collection was on.
    searches: BTreeMap<(Option<u32>, PoolKind), u64>,
    privates: BTreeMap<u32, Private>,
    lenders: NumberTable,
    released: NumberTable,
    /// The numbers under which blocks are never split.
    unsplit: BTreeSet<u32>,
    scopes: Vec<Scope>,
    /// Whether requests get plain memory.
    asks_for_plain: bool,
    /// The streams that calls named since a scope is open.
    streams: BTreeSet<StreamId>,
    /// Blocks freed under a capture, in the order of their frees.
    put_off: Vec<PutOff>,
    /// An event was recorded in a capture, for a free that the policy does not know to be in one.
    /// PyTorch fails as soon as it asks about that event, so no program goes on from here.
    breaks_capture: bool,
    /// How many segments were made, and how many numbers were drawn for blocks.
    made: u64,
    drawn: u64,
    /// Whether the last request took the fast path, and nothing else was done since: then small
    /// blocks that are given back are deferred.
    on_fast_path: bool,
    /// Whether a split limit was ever set, or garbage collection ever on.
    had_ages: bool,
    /// How many blocks were deferred.
    deferrals: u64,
    /// How many requests got one of them.
    taken_deferred: u64,
    /// The pieces of segments after each step, and the bytes in them, where blocks are deferred.
    seen: [ByPool; 2],
    stats: Stats,
}

impl Model {
    pub(super) fn new(device: Arc<SimDevice>, config: Config, policy: Policy) -> Model {
        let fraction = config.memory_fraction;
        let mut model = Model {
            device,
            policy,
            config,
            cap_bytes: None,
            segments: Vec::new(),
            events: Vec::new(),
            spare_events: Vec::new(),
            searches: BTreeMap::new(),
            privates: BTreeMap::new(),
            lenders: NumberTable::default(),
            released: NumberTable::default(),
            unsplit: BTreeSet::new(),
            scopes: Vec::new(),
            asks_for_plain: false,
            streams: BTreeSet::new(),
            put_off: Vec::new(),
            breaks_capture: false,
            made: 0,
            drawn: 0,
            on_fast_path: false,
            had_ages: false,
            deferrals: 0,
            taken_deferred: 0,
            seen: [ByPool::default(); 2],
            stats: Stats::default(),
        };
        model.set_fraction(fraction);
        model
    }

    pub(super) fn device(&self) -> &SimDevice {
        &self.device
    }

    pub(super) fn reset_peak(&mut self) {
        tally::reset_peak(&mut self.stats);
        self.reset_seen_peaks();
    }

    pub(super) fn reset_accumulated(&mut self) {
        tally::reset_accumulated(&mut self.stats);
        self.reset_seen_sums();
    }

    pub(super) fn set_fraction(&mut self, fraction: f64) {
        let bytes = fraction * self.total_bytes() as f64;
        let bytes = if self.policy.cap_rounds_to_nearest { bytes.round() } else { bytes.floor() };
        self.cap_bytes = (fraction < 1.0).then_some(bytes as u64);
        self.settings_changed();
    }

    pub(super) fn configure(&mut self, text: &str) -> Result<(), ConfigError> {
        self.settle();
        let config = self.config.update(text)?;
        config.check_known(self.policy.torch)?;
        self.config = config;
        self.settings_changed();
        Ok(())
    }

    fn settings_changed(&mut self) {
        self.settle();
        self.had_ages |= self.is_collecting() || self.config.max_split_bytes.is_some();
    }

    fn total_bytes(&self) -> u64 {
        self.device.properties().total_bytes
    }

    /// Blocks of this size and above are oversize.
    fn split_limit_bytes(&self) -> u64 {
        self.config.max_split_bytes.unwrap_or(u64::MAX)
    }

    fn reserved_bytes(&self) -> u64 {
        self.stats.reserved_bytes.all.current as u64
    }

    fn is_collecting(&self) -> bool {
        let measurable = self.cap_bytes.is_some() || self.policy.collect_without_cap;
        self.config.garbage_collection_threshold > 0.0 && measurable
    }

    /// The address of a new allocation; none if there is no memory for it.
    pub(super) fn malloc(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        if requested_bytes == 0 {
            return Some(Addr(0));
        }
        if requested_bytes < REQUEST_LIMIT_BYTES
            && let Some(addr) = self.malloc_fast(requested_bytes, stream)
        {
            return Some(addr);
        }
        self.settle();
        if requested_bytes >= REQUEST_LIMIT_BYTES {
            return None;
        }
        self.prepare(stream);
        let want = self.want(requested_bytes, stream);
        self.take(&want).or_else(|| self.climb(&want)).map(Addr)
    }

    /// What a request does first: it takes back what has become free.
    fn prepare(&mut self, stream: StreamId) {
        self.note_named(stream);
        if !self.is_captured(stream) {
            self.record_put_off();
            self.poll_events();
        } else if self.config.capture_reuse {
            self.reclaim_in_capture(stream);
        }
    }

    /// Everything that a request which found no block tries, in order.
    fn climb(&mut self, want: &Want) -> Option<u64> {
        let limit_bytes = self.cap_bytes.unwrap_or(u64::MAX).min(self.total_bytes());
        if self.policy.refuse_hopeless && want.size_bytes > limit_bytes {
            let is_rejected = self.rejects(want);
            self.stats.num_oom_rejections += u64::from(is_rejected);
            self.stats.num_ooms += u64::from(!is_rejected);
            return None;
        }
        if self.is_collecting() {
            self.collect();
        }
        self.replace(want);
        let mut grown = self.grow(want);
        if grown == Grown::NoRoom
            && let Some(addr) = self.borrow(want)
        {
            return Some(addr);
        }
        if grown == Grown::NoRoom && self.make_room(want) {
            grown = self.grow(want);
        }
        if grown == Grown::NoRoom && !self.is_captured(want.stream) {
            self.wait_for_events();
            if self.policy.search_after_recovery
                && let Some(addr) = self.take(want)
            {
                return Some(addr);
            }
            self.release_cached(false);
            self.stats.num_alloc_retries += 1;
            grown = self.grow(want);
        }
        match grown {
            Grown::Served(addr) => return Some(addr),
            Grown::Rejected => self.stats.num_oom_rejections += 1,
            Grown::NoRoom => {
                if self.policy.search_after_recovery
                    && let Some(addr) = self.take(want)
                {
                    return Some(addr);
                }
                self.stats.num_ooms += 1;
            }
        }
        None
    }

    /// All free blocks of a pool on a stream (on all streams, if none is named), in the order in
    /// which they are looked at: by stream, size, and what the policy lets decide.
    fn free_blocks(
        &self,
        pool: Option<u32>,
        kind: PoolKind,
        stream: Option<StreamId>,
    ) -> Vec<Spot> {
        let mut spots = Vec::new();
        for (at, segment) in self.segments.iter().enumerate() {
            let is_here = (segment.pool, segment.kind) == (pool, kind);
            if is_here && stream.is_none_or(|stream| stream == segment.stream) {
                let free = segment.blocks.iter().enumerate();
                let free = free.filter(|(_, block)| block.state == State::Free);
                spots.extend(free.map(|(block, _)| (at, block)));
            }
        }
        spots.sort_by_key(|&(segment_at, block_at)| {
            let segment = &self.segments[segment_at];
            let block = &segment.blocks[block_at];
            (segment.stream, block.size_bytes, self.tie((segment_at, block_at)))
        });
        spots
    }

    /// What decides between blocks of one size.
    fn tie(&self, (segment, block): Spot) -> (u64, u64) {
        let segment = &self.segments[segment];
        let block = &segment.blocks[block];
        match self.policy.tie_break {
            TieBreak::Address => (0, block.addr),
            TieBreak::BlockNumber => (block.number, 0),
            TieBreak::SegmentNumber => (segment.number, block.addr),
        }
    }

    /// The number of the next block that is made.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn block(&self, (segment, block): Spot) -> &Block {
        &self.segments[segment].blocks[block]
    }

    fn block_mut(&mut self, (segment, block): Spot) -> &mut Block {
        &mut self.segments[segment].blocks[block]
    }

    /// Serves the request from a free block.
    fn take(&mut self, want: &Want) -> Option<u64> {
        let spot = self.find_best(want)?;
        Some(self.hand_out(spot, want))
    }

    /// The free block that a request gets, if the split limit lets it have one.
    fn find_best(&mut self, want: &Want) -> Option<Spot> {
        if self.is_collecting() {
            *self.searches.entry((want.pool, want.kind)).or_default() += 1;
        }
        let mut spots = self.free_blocks(want.pool, want.kind, Some(want.stream));
        spots.retain(|&spot| self.block(spot).size_bytes >= want.size_bytes);
        let is_expandable = |&(segment, _): &Spot| self.segments[segment].is_expandable();
        let room_bytes = |&(segment, block): &Spot| self.segments[segment].room_bytes(block);
        let mut at = 0;
        if want.expandable {
            while is_expandable(spots.get(at)?)
                && spots.get(at + 1).is_some_and(|next| room_bytes(next) < room_bytes(&spots[at]))
            {
                at += 1;
            }
        } else {
            while is_expandable(spots.get(at)?) {
                at += 1;
            }
        }
        let spot = *spots.get(at)?;
        let spared = self.policy.split_limit_spares_expandable && is_expandable(&spot);
        let (limit_bytes, size_bytes) = (self.split_limit_bytes(), self.block(spot).size_bytes);
        let slack_bytes = self.config.max_non_split_rounding_bytes;
        let allowed = if want.size_bytes < limit_bytes {
            size_bytes < limit_bytes
        } else {
            size_bytes < want.size_bytes.saturating_add(slack_bytes)
        };
        (allowed || spared).then_some(spot)
    }

    /// Makes a free block live, and cuts it to size where that is right.
    fn hand_out(&mut self, (at, block_at): Spot, want: &Want) -> u64 {
        let limit_bytes = self.split_limit_bytes();
        let splits = want.pool.is_none_or(|pool| !self.privates[&pool].no_split);
        let segment = &self.segments[at];
        let expandable = segment.is_expandable();
        let fine = match &self.policy {
            Policy { exact_segments: true, .. } => expandable || want.size_bytes < limit_bytes,
            Policy { split_by_segment_kind: true, .. } => expandable,
            _ => want.expandable,
        };
        let rest_bytes = segment.blocks[block_at].size_bytes - want.size_bytes;
        let cut = if !splits {
            false
        } else if want.kind == PoolKind::Small || fine {
            rest_bytes >= UNIT_BYTES
        } else {
            want.size_bytes < limit_bytes && rest_bytes > SMALL_MAX_BYTES
        };
        self.hand_out_cut((at, block_at), want, cut)
    }

    /// Makes a free block live, and cuts it to size if that is said.
    fn hand_out_cut(&mut self, (at, block_at): Spot, want: &Want, cut: bool) -> u64 {
        let searches = self.searches_of(want.pool, want.kind);
        let number = self.draw();
        let segment = &mut self.segments[at];
        let (expandable, was_split) = (segment.is_expandable(), segment.is_split());
        let whole_bytes = segment.blocks[block_at].size_bytes;
        let rest_bytes = whole_bytes - want.size_bytes;
        if cut {
            segment.cut(block_at, want.size_bytes);
            segment.blocks[block_at].number = number;
            segment.blocks[block_at + 1].free_since = searches;
        }
        let (blocks, bytes) = match (cut, was_split) {
            (true, true) => (0, -(want.size_bytes as i64)),
            (true, false) => (1, rest_bytes as i64),
            (false, true) => (-1, -(whole_bytes as i64)),
            (false, false) => (0, 0),
        };
        let block = &mut segment.blocks[block_at];
        block.state = State::Live;
        block.requested_bytes = want.requested_bytes;
        block.oversize = self.config.max_split_bytes.is_some_and(|max| block.size_bytes >= max);
        let (addr, size_bytes, oversize) = (block.addr, block.size_bytes as i64, block.oversize);
        if !expandable {
            change_pool(&mut self.stats.inactive_split, want.kind, blocks);
            change_pool(&mut self.stats.inactive_split_bytes, want.kind, bytes);
        }
        change_pool(&mut self.stats.allocation, want.kind, 1);
        change_pool(&mut self.stats.allocated_bytes, want.kind, size_bytes);
        change_pool(&mut self.stats.active, want.kind, 1);
        change_pool(&mut self.stats.active_bytes, want.kind, size_bytes);
        change_pool(&mut self.stats.requested_bytes, want.kind, want.requested_bytes as i64);
        if oversize {
            change(&mut self.stats.oversize_allocations, 1);
        }
        addr
    }

    /// The block that starts at an address.
    fn find(&self, addr: u64) -> Spot {
        let spot = self.segments.iter().enumerate().find_map(|(at, segment)| {
            let block = segment.blocks.iter().position(|block| block.addr == addr)?;
            Some((at, block))
        });
        spot.expect("the harness names live addresses only")
    }

    /// Frees a live block: at once, when the streams that use it have come so far, or when the
    /// capture that it was used in has done with it.
    pub(super) fn free(&mut self, addr: Addr) {
        let (at, block_at) = self.find(addr.0);
        if self.defer((at, block_at)) {
            return;
        }
        let on_fast_path = self.is_plain() && self.block((at, block_at)).uses.is_empty();
        if !on_fast_path {
            self.settle();
        }
        let (at, block_at) = self.find(addr.0);
        let markers = self.plan_deferral((at, block_at));
        let kind = self.segments[at].kind;
        let block = &mut self.segments[at].blocks[block_at];
        let size_bytes = block.size_bytes;
        let remembered = block.oversize;
        change_pool(&mut self.stats.allocation, kind, -1);
        change_pool(&mut self.stats.allocated_bytes, kind, -(size_bytes as i64));
        let oversize = if self.policy.oversize_is_remembered {
            remembered
        } else {
            self.config.max_split_bytes.is_some_and(|max| size_bytes >= max)
        };
        if oversize {
            change(&mut self.stats.oversize_allocations, -1);
        }
        if let Some(markers) = markers {
            self.segments[at].blocks[block_at].state = State::Waiting(0);
            self.put_off.push(PutOff { addr: addr.0, markers });
            return;
        }
        let uses = self.segments[at].blocks[block_at].uses.clone();
        self.wait_for_uses((at, block_at), &uses);
    }

    /// A freed block waits for these streams; with none, it is free.
    fn wait_for_uses(&mut self, (at, block_at): Spot, streams: &[StreamId]) {
        let block = &mut self.segments[at].blocks[block_at];
        block.uses.clear();
        block.captured.clear();
        block.state = State::Waiting(streams.len());
        let addr = block.addr;
        for &stream in streams {
            self.breaks_capture |= self.capture_of(stream).is_some();
            let event = self.spare_events.pop();
            let event = event.unwrap_or_else(|| self.device.create_event().expect(NO_FAULTS));
            self.device.record_event(event, stream).expect(NO_FAULTS);
            self.events.push((stream, event, addr));
        }
        if streams.is_empty() {
            self.complete_free((at, block_at));
        }
    }

    /// A block that nothing awaits any more becomes free and joins its neighbours.
    fn complete_free(&mut self, (at, block_at): Spot) {
        let (pool, kind) = (self.segments[at].pool, self.segments[at].kind);
        let searches = self.searches_of(pool, kind);
        let segment = &mut self.segments[at];
        let block = &mut segment.blocks[block_at];
        block.state = State::Free;
        block.free_since = searches;
        let (size_bytes, requested_bytes) = (block.size_bytes, block.requested_bytes);
        let (joined, count, joined_bytes) = segment.join(block_at);
        let mut blocks = -count;
        let mut bytes = -(joined_bytes as i64);
        if segment.is_split() {
            blocks += 1;
            bytes += segment.blocks[joined].size_bytes as i64;
        }
        if !segment.is_expandable() {
            change_pool(&mut self.stats.inactive_split, kind, blocks);
            change_pool(&mut self.stats.inactive_split_bytes, kind, bytes);
        }
        change_pool(&mut self.stats.active, kind, -1);
        change_pool(&mut self.stats.active_bytes, kind, -(size_bytes as i64));
        change_pool(&mut self.stats.requested_bytes, kind, -(requested_bytes as i64));
    }

    /// Takes back what is done, of each stream up to the first event that is not.
    fn poll_events(&mut self) {
        let mut streams: Vec<StreamId> = self.events.iter().map(|&(stream, ..)| stream).collect();
        streams.sort();
        streams.dedup();
        for stream in streams {
            while let Some(at) = self.events.iter().position(|&(other, ..)| other == stream) {
                let (_, event, _) = self.events[at];
                if !self.device.query_event(event).expect(NO_FAULTS) {
                    break;
                }
                self.event_done(at);
            }
        }
    }

    fn wait_for_events(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.record_put_off();
        self.events.sort_by_key(|&(stream, ..)| stream);
        while !self.events.is_empty() {
            self.wait_for_event(0);
        }
    }

    fn wait_for_event(&mut self, at: usize) {
        self.device.wait_event(self.events[at].1).expect(NO_FAULTS);
        self.event_done(at);
    }

    fn event_done(&mut self, at: usize) {
        let (_, event, addr) = self.events.remove(at);
        self.spare_events.push(event);
        let (segment, block) = self.find(addr);
        let state = &mut self.segments[segment].blocks[block].state;
        match *state {
            State::Waiting(1) => self.complete_free((segment, block)),
            State::Waiting(count) => *state = State::Waiting(count - 1),
            other => unreachable!("an event is awaited for a block that is {other:?}"),
        }
    }

    fn searches_of(&self, pool: Option<u32>, kind: PoolKind) -> u64 {
        self.searches.get(&(pool, kind)).copied().unwrap_or(0)
    }

    /// Waits for everything and gives everything back that can be; not while a capture is on.
    pub(super) fn empty_cache(&mut self) {
        self.settle();
        let captured = self.is_any_captured();
        if !captured {
            self.wait_for_events();
        }
        self.release_cached(captured);
    }
}
