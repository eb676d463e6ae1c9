//! The heap: all state of one device's memory, and every change of it. It knows no device, no
//! lock and no clock.
//!
//! A block is taken (`take`) and put back (`put`); segments come and go by plan and commit: the
//! heap plans, its owner makes the device calls, the heap commits what came of them.

pub(crate) mod block;
mod capture;
mod check;
pub mod checkpoint;
mod cover;
mod free_index;
pub(crate) mod growth;
mod pending;
mod pool;
pub(crate) mod private;
pub(crate) mod release;
mod routing;
pub(crate) mod segment;
pub mod size;
pub mod snapshot;

pub use block::State;
pub use private::Filter;

use crate::config::Config;
use crate::heap::block::{BlockId, Blocks};
use crate::heap::free_index::{Entry, Spot};
use crate::heap::pending::Pending;
use crate::heap::pool::{LaneId, PoolIndex, Pools};
use crate::heap::private::Privates;
use crate::heap::segment::Segments;
use crate::policy::Policy;
use crate::record::{Place, Record, Recorder};
use crate::types::{Addr, EventId, PoolId, PoolKind, Span, StreamId};

/// A request after rounding and routing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// What the program asked for.
    pub(crate) requested_bytes: u64,
    /// The size of the block it gets, at least.
    pub(crate) size_bytes: u64,
    pub(crate) kind: PoolKind,
    pub(crate) stream: StreamId,
    /// Whether it may be served from an expandable segment, and make one grow.
    expandable: bool,
    /// Whether a block may be split for it.
    splits: bool,
    pool: PoolIndex,
    lane: LaneId,
}

/// All state of one device's memory.
#[derive(Clone, Debug)]
pub struct Heap {
    config: Config,
    policy: Policy,
    device_total_bytes: u64,
    cap_bytes: Option<u64>,
    blocks: Blocks,
    segments: Segments,
    pools: Pools,
    privates: Privates,
    pending: Pending,
    recorder: Recorder,
    /// Bytes held of the device, in segments and pages.
    reserved_bytes: u64,
    /// `config.max_split_bytes`, or the largest number where there is no limit.
    split_limit_bytes: u64,
    /// Whether no setting asks for more than rounding up to the unit of blocks.
    rounds_plainly: bool,
    /// Whether garbage collection is on; then searches are counted.
    collecting: bool,
    /// Whether it ever was on. Until then no search was counted, and every age is zero.
    has_collected: bool,
}

impl Heap {
    /// An empty heap for a device of this much memory.
    pub fn new(config: Config, policy: Policy, device_total_bytes: u64) -> Heap {
        let mut heap = Heap {
            config,
            policy,
            device_total_bytes,
            cap_bytes: None,
            blocks: Blocks::new(),
            segments: Segments::new(),
            pools: Pools::new(),
            privates: Privates::default(),
            pending: Pending::default(),
            recorder: Recorder::default(),
            reserved_bytes: 0,
            split_limit_bytes: u64::MAX,
            rounds_plainly: true,
            collecting: false,
            has_collected: false,
        };
        heap.set_fraction(heap.config.memory_fraction);
        heap.derive();
        heap
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings. Blocks stay as they are; the fraction is not applied again.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
        self.derive();
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What is counted.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn recorder_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// Bytes held of the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// The cap on what may be held of the device.
    pub fn cap_bytes(&self) -> Option<u64> {
        self.cap_bytes
    }

    /// Caps the memory at this part of the device; 1 lifts the cap. The fraction was checked to be
    /// between 0 and 1.
    pub(crate) fn set_fraction(&mut self, fraction: f64) {
        self.cap_bytes = (fraction < 1.0).then(|| {
            let bytes = fraction * self.device_total_bytes as f64;
            if self.policy.cap_rounds_to_nearest { bytes.round() as u64 } else { bytes as u64 }
        });
        self.derive();
    }

    /// Works out what follows from settings, policy and cap.
    fn derive(&mut self) {
        self.split_limit_bytes = self.config.max_split_bytes.unwrap_or(u64::MAX);
        self.rounds_plainly = self.config.roundup_divisions.iter().all(|&divisions| divisions <= 1);
        self.collecting = self.config.garbage_collection_threshold > 0.0
            && (self.cap_bytes.is_some() || self.policy.collect_without_cap);
        self.has_collected |= self.collecting;
    }

    /// Whether garbage collection is on.
    pub(crate) fn is_collecting(&self) -> bool {
        self.collecting
    }

    /// Rounds and routes a request.
    #[inline]
    pub(crate) fn want(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let size_bytes = if self.rounds_plainly {
            size::round_plainly(requested_bytes)
        } else {
            size::round(requested_bytes, &self.config)
        };
        let kind = size::kind(size_bytes);
        let pool = PoolIndex::default_for(kind);
        let lane = self.pools.lane_for(pool, stream);
        let expandable = self.config.expandable_segments;
        Want { requested_bytes, size_bytes, kind, stream, expandable, splits: true, pool, lane }
    }

    /// The same request, but to another pool.
    fn want_from(&mut self, want: &Want, pool: PoolIndex) -> Want {
        let lane = self.pools.lane_for(pool, want.stream);
        let owner = self.pools.pool(pool);
        let (splits, expandable) = (!owner.no_split, want.expandable && !owner.never_expands);
        Want { expandable, splits, pool, lane, ..*want }
    }

    /// Hands out a free block, or none if no free block will do.
    #[inline]
    pub(crate) fn take(&mut self, want: &Want) -> Option<Addr> {
        if self.collecting {
            self.pools.pool_mut(want.pool).searches += 1;
        }
        let free = &self.pools.lane(want.lane).free;
        let mut spot = free.find(want.size_bytes)?;
        let mut entry = free.entry(spot);
        if self.blocks[entry.id].expandable {
            spot = self.search_expandable(want, spot)?;
            entry = self.pools.lane(want.lane).free.entry(spot);
        }
        if !self.split_limit_allows(want, entry) {
            return None;
        }
        self.pools.lane_mut(want.lane).free.remove_at(spot);
        Some(self.hand_out(entry.id, want))
    }

    /// The search goes on from an expandable block: past those that can still grow a lot, so that
    /// the growable end of a segment is taken last; or past all of them while the setting is off.
    fn search_expandable(&self, want: &Want, mut spot: Spot) -> Option<Spot> {
        let free = &self.pools.lane(want.lane).free;
        if !want.expandable {
            while self.blocks[free.entry(spot).id].expandable {
                spot = free.next(spot)?;
            }
            return Some(spot);
        }
        let mut room_bytes = self.room_bytes(free.entry(spot).id);
        while self.blocks[free.entry(spot).id].expandable {
            let Some(next) = free.next(spot) else { break };
            let next_room_bytes = self.room_bytes(free.entry(next).id);
            if next_room_bytes >= room_bytes {
                break;
            }
            (spot, room_bytes) = (next, next_room_bytes);
        }
        Some(spot)
    }

    /// The block's size and that of the addresses right behind it that it could grow into.
    fn room_bytes(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let next = block.next.map(|next| &self.blocks[next]);
        let unmapped = next.filter(|next| next.state == State::Unmapped);
        block.size_bytes + unmapped.map_or(0, |next| next.size_bytes)
    }

    /// Whether the split limit lets this block serve this request: neither is a block above the
    /// limit broken into for a small request, nor is far too much given to a large one.
    #[inline]
    fn split_limit_allows(&self, want: &Want, entry: Entry) -> bool {
        let limit_bytes = self.split_limit_bytes;
        if limit_bytes == u64::MAX {
            return true;
        }
        if self.policy.split_limit_spares_expandable && self.blocks[entry.id].expandable {
            return true;
        }
        if want.size_bytes < limit_bytes {
            entry.size_bytes < limit_bytes
        } else {
            let slack_bytes = self.config.max_non_split_rounding_bytes;
            entry.size_bytes < want.size_bytes.saturating_add(slack_bytes)
        }
    }

    /// Makes a block that is in no index live, split to size where that is right.
    #[inline]
    fn hand_out(&mut self, id: BlockId, want: &Want) -> Addr {
        let block = &self.blocks[id];
        let (whole_bytes, expandable, was_split) =
            (block.size_bytes, block.expandable, block.is_split());
        let fine = want.kind == PoolKind::Small
            || if self.policy.split_by_segment_kind { expandable } else { want.expandable };
        let rest_bytes = whole_bytes - want.size_bytes;
        if want.splits
            && size::should_split(fine, want.size_bytes, rest_bytes, self.split_limit_bytes)
        {
            let rest = self.blocks.split(id, want.size_bytes);
            self.shelve(rest);
            if !expandable {
                let (blocks, bytes) =
                    if was_split { (0, -(want.size_bytes as i64)) } else { (1, rest_bytes as i64) };
                self.recorder.record(Record::InactiveSplit { kind: want.kind, blocks, bytes });
            }
        } else if was_split && !expandable {
            let bytes = -(whole_bytes as i64);
            self.recorder.record(Record::InactiveSplit { kind: want.kind, blocks: -1, bytes });
        }
        let block = &mut self.blocks[id];
        block.state = State::Live;
        block.requested_bytes = want.requested_bytes;
        block.oversize = block.size_bytes >= self.split_limit_bytes;
        let (addr, oversize) = (block.addr, block.oversize);
        self.segments.note_start(block.segment, addr, id);
        let place =
            Place { kind: want.kind, stream: want.stream, addr, size_bytes: block.size_bytes };
        let requested_bytes = want.requested_bytes;
        self.recorder.record(Record::Alloc { place, requested_bytes, oversize });
        addr
    }

    /// Puts a block into its lane's index as free. Its age starts anew.
    // Always inlined: a call would spend more on saving registers than the usual case takes.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn shelve(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Free;
        if self.has_collected {
            block.free_since = self.pools.pool(self.pools.lane(block.lane).pool).searches;
        }
        let entry = Entry { size_bytes: block.size_bytes, addr: block.addr, id };
        self.pools.lane_mut(block.lane).free.insert(entry);
    }

    /// Takes a free block out of its lane's index.
    // Always inlined: a call would spend more on saving registers than the usual case takes.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn unshelve(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.pools.lane_mut(block.lane).free.remove(block.size_bytes, block.addr);
    }

    /// The live block that starts at `addr`.
    #[inline]
    pub(crate) fn live(&self, addr: Addr) -> Option<BlockId> {
        let id = self.segments.block_at(addr)?;
        let block = &self.blocks[id];
        (block.state == State::Live && block.addr == addr).then_some(id)
    }

    /// The streams besides its own that used a live block. While there are any it can be put back
    /// only by way of events.
    #[inline]
    pub(crate) fn uses(&self, id: BlockId) -> &[StreamId] {
        if self.blocks[id].used_elsewhere { self.pending.uses(id) } else { &[] }
    }

    /// Notes that a live block is used on a stream, by work that is `captured` or that runs. Its
    /// own stream needs no note.
    pub(crate) fn note_use(&mut self, id: BlockId, stream: StreamId, captured: bool) {
        let block = &mut self.blocks[id];
        if self.pools.lane(block.lane).stream != stream {
            block.used_elsewhere = true;
            self.note_captured_use(id, stream, captured);
            self.pending.add_use(id, stream);
        }
    }

    /// Puts back a live block that no other stream uses.
    #[inline]
    pub(crate) fn put(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.recorder.record(Record::Free { place, requested_bytes, oversize });
        self.reclaim(id, place.kind);
    }

    /// Takes back a live block that other streams use; it is free once these events are done.
    pub(crate) fn put_after(&mut self, id: BlockId, events: &[(StreamId, EventId)]) {
        self.request_free(id);
        let block = &mut self.blocks[id];
        block.state = State::Waiting;
        block.used_elsewhere = false;
        self.pending.wait_for(id, events);
    }

    /// Whether nothing is awaited.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_idle()
    }

    /// The first stream from `from` on with an awaited event, and that event.
    pub(crate) fn awaited_from(&self, from: StreamId) -> Option<(StreamId, EventId)> {
        self.pending.front_from(from)
    }

    /// The first event that a block of this private pool waits for, with its stream and its place
    /// among the stream's events.
    pub(crate) fn awaited_of(&self, pool: PoolId) -> Option<(StreamId, usize, EventId)> {
        let owner =
            |block: BlockId| self.pools.pool(self.pools.lane(self.blocks[block].lane).pool).owner;
        self.pending.find(|block| owner(block) == Some(pool))
    }

    /// The event at this place among those of the stream is done; gives it back. A block that
    /// waited for nothing else becomes free.
    pub(crate) fn event_done(&mut self, stream: StreamId, at: usize) -> Option<EventId> {
        let (event, block) = self.pending.remove(stream, at)?;
        if let Some(block) = block {
            self.complete_free(block);
        }
        Some(event)
    }

    fn request_free(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.recorder.record(Record::FreeRequested { place, requested_bytes, oversize });
    }

    fn complete_free(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        self.recorder.record(Record::FreeCompleted { place, requested_bytes });
        self.reclaim(id, place.kind);
    }

    /// Whether the block is uncounted as oversize when it is freed.
    #[inline]
    fn counts_as_oversize(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        if self.policy.oversize_is_remembered {
            block.oversize
        } else {
            block.size_bytes >= self.split_limit_bytes
        }
    }

    /// Merges the block with its free neighbours and puts the whole into the index.
    #[inline]
    fn reclaim(&mut self, id: BlockId, kind: PoolKind) {
        let requested_bytes = self.blocks[id].requested_bytes;
        let (id, merged_blocks, merged_bytes) = self.merge(id, State::Free);
        self.blocks[id].requested_bytes = requested_bytes;
        self.shelve(id);
        let block = &self.blocks[id];
        if !block.expandable {
            let (split, bytes) =
                if block.is_split() { (1, block.size_bytes as i64) } else { (0, 0) };
            let (blocks, bytes) = (split - merged_blocks, bytes - merged_bytes as i64);
            if blocks != 0 || bytes != 0 {
                self.recorder.record(Record::InactiveSplit { kind, blocks, bytes });
            }
        }
    }

    /// Joins a block that is in no index with the neighbours that are in `state`, which are taken
    /// out of theirs. Returns the joined block, and how many and how much was joined to it.
    #[inline]
    fn merge(&mut self, id: BlockId, state: State) -> (BlockId, i64, u64) {
        let (mut whole, mut count, mut bytes) = (id, 0, 0);
        let (prev, next) = (self.blocks[id].prev, self.blocks[id].next);
        if let Some(next) = next.filter(|&next| self.blocks[next].state == state) {
            bytes += self.forget(next);
            count += 1;
            self.blocks.join_next(id);
        }
        if let Some(prev) = prev.filter(|&prev| self.blocks[prev].state == state) {
            bytes += self.forget(prev);
            count += 1;
            self.blocks.join_next(prev);
            whole = prev;
        }
        (whole, count, bytes)
    }

    /// Takes a free or unmapped block out of its index and says how large it is.
    // Always inlined: a call would spend more on saving registers than the usual case takes.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn forget(&mut self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let (lane, addr, size_bytes) = (block.lane, block.addr, block.size_bytes);
        if block.state == State::Free {
            self.unshelve(id);
        } else {
            self.pools.lane_mut(lane).unmapped.remove(&addr);
        }
        size_bytes
    }

    /// What records say of a block.
    #[inline]
    fn facts(&self, id: BlockId) -> (Place, u64) {
        let block = &self.blocks[id];
        let stream = self.pools.lane(block.lane).stream;
        let place =
            Place { kind: block.kind, stream, addr: block.addr, size_bytes: block.size_bytes };
        (place, block.requested_bytes)
    }

    /// The whole allocation of the device in which a live block lies; none if the block's segment
    /// is expandable.
    pub(crate) fn base(&self, id: BlockId) -> Option<Span> {
        let segment = &self.segments[self.blocks[id].segment];
        (!segment.is_expandable()).then_some(segment.span)
    }

    /// Where a block starts.
    pub(crate) fn addr_of(&self, id: BlockId) -> Addr {
        self.blocks[id].addr
    }

    /// The size of a live block, which is at least what was asked for.
    pub(crate) fn size_of(&self, id: BlockId) -> u64 {
        self.blocks[id].size_bytes
    }

    /// The size of the largest free block, on any stream.
    pub fn largest_free_bytes(&self) -> u64 {
        self.pools.lanes().filter_map(|(_, lane)| lane.free.largest_bytes()).max().unwrap_or(0)
    }

    /// How many free blocks there are.
    pub fn free_block_count(&self) -> usize {
        self.pools.lanes().map(|(_, lane)| lane.free.len()).sum()
    }
}
