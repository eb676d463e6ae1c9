//! The heap: all state of one device's memory, and every change of it. It knows no device, no
//! lock and no clock.
//!
//! A block is taken (`take`) and put back (`put`); segments come and go by plan and commit: the
//! heap plans, its owner makes the device calls, the heap commits what came of them.

mod best_fit;
mod check;
mod cut;
mod deferred;
mod exact;
mod fast;
mod free;
pub(crate) mod growth;
pub(crate) mod ids;
pub(crate) mod paged;
mod pieces;
mod placement;
pub(crate) mod pools;
pub(crate) mod release;
mod reserves;
pub mod run;
pub mod size;
pub(crate) mod space;
pub mod states;
mod telling;
mod waiting;

pub use pools::private::Filter;
pub use pools::{checkpoint, lane_state};
pub use space::block::State;

use crate::config::Config;
use crate::heap::deferred::Deferred;
use crate::heap::fast::Guard;
use crate::heap::free::order::Drawn;
use crate::heap::free::shelving::{Pieces, Whole};
use crate::heap::ids::{BlockId, LaneId, PoolIndex};
use crate::heap::paged::Paged;
use crate::heap::placement::Placement;
use crate::heap::pools::pool::{Lane, Pool, PoolRole, Pools};
use crate::heap::pools::private::Privates;
use crate::heap::reserves::Reserves;
use crate::heap::space::Space;
use crate::heap::waiting::pending::Pending;
use crate::policy::Policy;
use crate::record::history::History;
use crate::record::{Herald, Place, Record};
use crate::types::{Addr, DeviceIndex, PoolKind, Span, StreamId};

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
    /// Whether the program asked for plain memory.
    plain: bool,
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
    space: Space,
    pools: Pools,
    privates: Privates,
    pending: Pending,
    herald: Herald,
    deferred: Deferred,
    drawn: Drawn,
    /// `config.max_split_bytes`, or the largest number where there is no limit that a request could
    /// reach.
    split_limit_bytes: u64,
    /// Whether garbage collection is on; then searches are counted.
    collecting: bool,
    /// Whether it ever was on, or a split limit was set. Until then no search was counted, every
    /// age is zero, and no block is oversize.
    has_ages: bool,
    /// The smallest rest for which a block is cut in two on the fast path: for a request of each
    /// kind, from a block of a fixed segment and of an expandable one.
    rest_min_bytes: [[u64; 2]; 2],
    guard: Guard,
    placement: Placement,
    paged: Paged,
    reserves: Box<Reserves>,
}

impl Heap {
    /// An empty heap for a device of this much memory.
    pub fn new(config: Config, policy: Policy, device_total_bytes: u64) -> Heap {
        let (placement, drawn) = (Placement::of(&policy), Drawn::new(policy.tie_break));
        let mut heap = Heap {
            config,
            policy,
            device_total_bytes,
            cap_bytes: None,
            space: Space::new(placement.shares_segments()),
            pools: Pools::new(),
            privates: Privates::default(),
            pending: Pending::default(),
            herald: Herald::default(),
            deferred: Deferred::default(),
            drawn,
            split_limit_bytes: u64::MAX,
            collecting: false,
            has_ages: false,
            rest_min_bytes: [[0; 2]; 2],
            guard: Guard::new(),
            placement,
            paged: Paged::default(),
            reserves: Box::default(),
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
    pub fn herald(&self) -> &Herald {
        &self.herald
    }

    pub(crate) fn herald_mut(&mut self) -> &mut Herald {
        &mut self.herald
    }

    /// Changes the history, and has the fast path know whether anybody listens.
    pub(crate) fn change_history<T>(
        &mut self,
        device: DeviceIndex,
        change: impl FnOnce(&mut History) -> T,
    ) -> T {
        let result = self.herald.change_history(device, change);
        self.guard_listener();
        result
    }

    /// Bytes held of the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.space.reserved_bytes()
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
        self.settle();
        let limit_bytes = self.config.max_split_bytes;
        let limit_bytes = limit_bytes.filter(|&bytes| bytes <= size::REQUEST_LIMIT_BYTES);
        self.split_limit_bytes = limit_bytes.unwrap_or(u64::MAX);
        self.collecting = self.config.garbage_collection_threshold > 0.0
            && (self.cap_bytes.is_some() || self.policy.collect_without_cap);
        self.has_ages |= self.collecting || limit_bytes.is_some();
        let rounds_up = self.config.roundup_divisions.iter().any(|&divisions| divisions > 1);
        self.guard_settings(rounds_up || self.has_ages || self.drawn.is_on());
        let growing = self.config.expandable_segments;
        let by_size_bytes = self.placement.kept_by_size_bytes(&self.policy);
        self.deferred.set_by_size_bytes(by_size_bytes, growing);
        let fineness = self.placement.fineness(&self.policy);
        self.rest_min_bytes = [PoolKind::Small, PoolKind::Large].map(|kind| {
            [false, true].map(|is_expandable| {
                size::remainder_min_bytes(size::cuts_finely(kind, fineness, is_expandable, growing))
            })
        });
    }

    /// Whether garbage collection is on.
    pub(crate) fn is_collecting(&self) -> bool {
        self.collecting
    }

    /// Rounds a request, and routes it to the default pools.
    pub(crate) fn want(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let mut want = self.want_rounded(requested_bytes, stream);
        if !self.guard.is_plain() {
            want.size_bytes = size::round(requested_bytes, &self.config);
            want.kind = self.placement.kind(want.size_bytes);
            want.pool = PoolIndex::default_for(want.kind);
            want.lane = self.pools.default_lane(want.kind, stream);
        }
        want
    }

    /// The request where nothing but whole units is asked of its size.
    #[inline]
    fn want_rounded(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let size_bytes = size::round_plainly(requested_bytes);
        let kind = self.placement.kind(size_bytes);
        let pool = PoolIndex::default_for(kind);
        let lane = self.pools.default_lane(kind, stream);
        let expandable = self.config.expandable_segments;
        let (plain, splits) = (false, true);
        Want { requested_bytes, size_bytes, kind, stream, expandable, plain, splits, pool, lane }
    }

    /// Whether the request is put into pages.
    #[inline]
    pub(crate) fn is_paged(&self, want: &Want) -> bool {
        self.placement.puts_into_pages(want)
    }

    /// The same request, but to another pool.
    fn want_from(&mut self, want: &Want, pool: PoolIndex) -> Want {
        let lane = self.pools.lane_for(pool, want.stream);
        let owner = self.pools.pool(pool);
        let (splits, expandable) = (!owner.no_split, want.expandable && self.expands(owner));
        Want { expandable, splits, pool, lane, ..*want }
    }

    /// Whether a pool's requests may be served from expandable segments, and make them grow.
    #[inline]
    fn expands(&self, pool: &Pool) -> bool {
        self.config.expandable_segments
            && pool.role != PoolRole::OwnSource
            && !self.is_plain_capture(pool)
    }

    /// Whether a pool is a capture's, and the settings want its segments plain.
    #[inline]
    fn is_plain_capture(&self, pool: &Pool) -> bool {
        pool.role == PoolRole::Capture && self.config.plain_captures
    }

    /// Whether the request's memory is for others to have, so that no expandable segment will do.
    fn must_be_plain(&self, want: &Want) -> bool {
        want.plain || self.is_plain_capture(self.pools.pool(want.pool))
    }

    /// The same request, after others had the lock: what it may do follows from the settings and
    /// the pool as they are now. Its size and its pool stay.
    pub(crate) fn want_again(&self, want: &Want) -> Want {
        let pool = self.pools.pool(want.pool);
        let expandable = self.expands(pool) && !want.plain;
        Want { expandable, splits: !pool.no_split, ..*want }
    }

    /// The lane of a request. It was known when the request was routed; but if the heap was let go
    /// of since, as it is during a device call, the lane may have been removed.
    fn lane_of(&mut self, want: &Want) -> LaneId {
        if self.pools.is_lane_of(want.lane, want.pool, want.stream) {
            want.lane
        } else {
            self.pools.lane_for(want.pool, want.stream)
        }
    }

    /// Forgets what was kept for requests on streams that have no memory any more.
    pub(crate) fn forget_idle_streams(&mut self) {
        self.settle();
        self.pools.remove_lanes(&self.space.named_lanes(), |_| true);
        self.paged.forget_ways(|lane| self.pools.has_lane(lane));
    }

    /// The same, of streams that are gone alone.
    pub(super) fn forget_gone_streams(&mut self) {
        self.pools.remove_lanes(&self.space.named_lanes(), Lane::is_gone);
        self.paged.forget_ways(|lane| self.pools.has_lane(lane));
    }

    /// How much of the host's memory is kept for requests to come, on all streams.
    pub fn lane_bytes(&self) -> usize {
        self.pools.lane_bytes() + self.paged.way_bytes()
    }

    /// The live block that starts at `addr`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn live(&self, addr: Addr) -> Option<BlockId> {
        self.space.live_noted(addr).or_else(|| self.live_in_cycle(addr))
    }

    /// The same for a block that a cycle may have handed out and not noted.
    #[inline(never)]
    fn live_in_cycle(&self, addr: Addr) -> Option<BlockId> {
        let may_be = self.placement.shares_segments() && !self.deferred.is_empty();
        may_be.then(|| self.space.live_along(addr))?
    }

    /// Blocks and segments.
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// So many bytes are asked of the device with the lock dropped: until there is an answer they
    /// count against the cap, or two requests at once could pass it.
    pub(crate) fn begin_asking(&mut self, size_bytes: u64) {
        self.space.begin_asking(size_bytes);
    }

    /// The answer is there.
    pub(crate) fn end_asking(&mut self, size_bytes: u64) {
        self.space.end_asking(size_bytes);
    }

    /// The whole allocation of the device in which a live block lies; none if the block's segment
    /// is expandable.
    pub(crate) fn base(&self, id: BlockId) -> Option<Span> {
        self.space.base(id)
    }

    /// The streams besides its own that used a live block. While there are any it can be put back
    /// only by way of events.
    #[inline]
    pub(crate) fn uses(&self, id: BlockId) -> &[StreamId] {
        if self.space[id].used_elsewhere { self.pending.uses(id) } else { &[] }
    }

    /// Notes that a live block is used on a stream, by work that is `captured` or that runs. Its
    /// own stream needs no note.
    pub(crate) fn note_use(&mut self, id: BlockId, stream: StreamId, captured: bool) {
        let block = &mut self.space[id];
        // A stream that has the handle of one that is gone is another one.
        if self.pools.lane(block.lane).living_stream() != Some(stream) {
            block.used_elsewhere = true;
            self.note_captured_use(id, stream, captured);
            self.pending.add_use(id, stream);
        }
    }

    /// Puts back a live block that no other stream uses.
    pub(crate) fn put(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.record_of(id, Record::Free { place, requested_bytes, oversize });
        self.reclaim(id);
    }

    /// Whether the block is uncounted as oversize when it is freed.
    #[inline]
    fn counts_as_oversize(&self, id: BlockId) -> bool {
        let block = &self.space[id];
        if self.policy.oversize_is_remembered {
            block.oversize
        } else {
            block.size_bytes >= self.split_limit_bytes
        }
    }

    /// Merges the block with its free neighbours, puts the whole into the index, and counts pieces.
    fn reclaim(&mut self, id: BlockId) {
        if self.space.is_in_view(id) {
            return self.vacate(id);
        }
        let whole = self.merge_and_shelve(id);
        self.count_pieces(&whole);
    }

    /// A block was freed and became part of a whole: there are more or fewer pieces.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn count_pieces(&mut self, whole: &Whole) {
        if !whole.expandable {
            let Pieces { blocks, bytes } = whole.pieces();
            self.herald.record(Record::InactiveSplit { kind: whole.freed.kind, blocks, bytes });
        }
    }

    /// What records say of a block.
    #[inline]
    fn facts(&self, id: BlockId) -> (Place, u64) {
        let block = &self.space[id];
        let stream = self.pools.lane(block.lane).stream;
        let place =
            Place { kind: block.kind, stream, addr: block.addr, size_bytes: block.size_bytes };
        (place, block.requested_bytes)
    }

    /// Where a block starts.
    pub(crate) fn addr_of(&self, id: BlockId) -> Addr {
        self.space[id].addr
    }

    /// The size of a live block, which is at least what was asked for.
    pub(crate) fn size_of(&self, id: BlockId) -> u64 {
        self.space[id].size_bytes
    }

    /// The stream that a live block was handed out on.
    pub(crate) fn stream_of(&self, id: BlockId) -> StreamId {
        self.pools.lane(self.space[id].lane).stream
    }

    /// The size of the largest free block, on any stream.
    pub fn largest_free_bytes(&self) -> u64 {
        let lanes = self.pools.lanes();
        let shelved = lanes.filter_map(|(_, lane)| lane.free()?.largest_bytes(self.space.blocks()));
        let rested = self.coalesced_wholes().map(|whole| whole.size_bytes);
        shelved.chain(rested).max().unwrap_or(0)
    }

    /// How many free blocks there are.
    pub fn free_block_count(&self) -> usize {
        let lanes = self.pools.lanes();
        let shelved: usize =
            lanes.map(|(_, lane)| lane.free_blocks(self.space.blocks()).count()).sum();
        let (mut more, mut fewer) = (0, 0);
        for whole in self.coalesced_wholes() {
            (more, fewer) = (more + 1, fewer + whole.shelved_blocks as usize);
        }
        shelved + more - fewer
    }
}
