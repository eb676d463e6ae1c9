//! The heap: all state of one device's memory, and every change of it. It knows no device, no
//! lock and no clock.
//!
//! A block is taken (`take`) and put back (`put`); segments come and go by plan and commit: the
//! heap plans, its owner makes the device calls, the heap commits what came of them.
//!
//! It composes four owners. The inventory knows every block; the placement says where a request
//! goes; what is waited for, and whether the fast path is open, is beside them.

pub(crate) mod asleep;
mod best_fit;
mod check;
mod deferred;
mod fast;
mod free;
mod frees;
pub(crate) mod ids;
pub(crate) mod inventory;
mod listeners;
pub(crate) mod paged;
mod pages;
mod placement;
mod plans;
pub(crate) mod pools;
mod ready;
mod requests;
mod reserves;
mod rules;
pub mod size;
pub(crate) mod space;
mod waiting;

pub use inventory::{checkpoint, run, states};
pub(crate) use inventory::{growth, release};
pub use paged::prices;
pub use pools::lane_state;
pub use pools::private::Filter;
pub use space::block::State;

use crate::config::Config;
use crate::error::PoolProblem;
use crate::heap::checkpoint::{Checkpoint, Restored};
use crate::heap::fast::Guard;
use crate::heap::ids::{BlockId, LaneId, PoolIndex};
use crate::heap::inventory::Inventory;
use crate::heap::placement::Placement;
use crate::heap::pools::Pools;
use crate::heap::rules::Rules;
use crate::heap::run::Run;
use crate::heap::space::Space;
use crate::heap::states::{ExpandableState, PoolStats, SegmentState};
use crate::heap::waiting::Waiting;
use crate::policy::Policy;
use crate::record::Recorder;
use crate::record::history::History;
use crate::record::stats::Stats;
use crate::types::{Addr, DeviceIndex, PoolId, PoolKind, StreamId};

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
    inventory: Inventory,
    placement: Placement,
    waiting: Waiting,
    guard: Guard,
}

impl Heap {
    /// An empty heap for a device of this much memory.
    pub fn new(config: Config, policy: Policy, device_total_bytes: u64) -> Heap {
        let (placement, layout) = (Placement::of(&policy), Placement::layout(&policy));
        let mut heap = Heap {
            inventory: Inventory::new(Rules::new(config, policy, layout, device_total_bytes)),
            placement,
            waiting: Waiting::default(),
            guard: Guard::new(),
        };
        heap.derive();
        heap
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        self.inventory.rules().config()
    }

    /// Changes the settings. Blocks stay as they are; the fraction is not applied again.
    pub fn set_config(&mut self, config: Config) {
        self.settle();
        self.inventory.rules_mut().set_config(config);
        self.derive();
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        self.inventory.rules().policy()
    }

    /// What is counted.
    pub fn recorder(&self) -> &Recorder {
        self.inventory.recorder()
    }

    pub(crate) fn recorder_mut(&mut self) -> &mut Recorder {
        self.inventory.recorder_mut()
    }

    /// Changes the history, and has the fast path know whether anybody listens.
    pub(crate) fn change_history<T>(
        &mut self,
        device: DeviceIndex,
        change: impl FnOnce(&mut History) -> T,
    ) -> T {
        let result = self.inventory.recorder_mut().change_history(device, change);
        self.guard.set_listener(self.inventory.recorder().is_listening());
        result
    }

    /// Bytes held of the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.inventory.space().reserved_bytes()
    }

    /// The cap on what may be held of the device.
    pub fn cap_bytes(&self) -> Option<u64> {
        self.inventory.rules().cap_bytes()
    }

    /// Caps the memory at this part of the device; 1 lifts the cap. The fraction was checked to be
    /// between 0 and 1.
    pub(crate) fn set_fraction(&mut self, fraction: f64) {
        self.settle();
        self.inventory.rules_mut().set_fraction(fraction);
        self.derive();
    }

    /// Works out what follows from the rules for the fast path and the placement.
    fn derive(&mut self) {
        debug_assert!(
            self.inventory.deferred().is_empty(),
            "rules change while frees are deferred"
        );
        let rules = self.inventory.rules();
        self.guard.set_settings(!rules.is_plain());
        self.placement.derive(rules);
    }

    /// Coalesces all that is deferred, and closes the guard of the fast path. Called before
    /// anything but the fast path changes the heap, but for what goes on with a cycle: a free in a
    /// view, and a request that takes the place that its cycle names.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.guard.close();
        self.inventory.settle();
    }

    /// Whoever changes the heap by another way than the fast path has closed its guard first.
    #[inline]
    fn expect_settled(&self) {
        debug_assert!(!self.guard.is_open(), "the fast path is open while the heap is changed");
    }

    /// Whether garbage collection is on.
    pub(crate) fn is_collecting(&self) -> bool {
        self.inventory.rules().is_collecting()
    }

    /// Every block, for whoever asks and changes nothing.
    #[inline]
    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Blocks and segments.
    #[inline]
    pub(crate) fn space(&self) -> &Space {
        self.inventory.space()
    }

    /// The pools.
    #[inline]
    pub(crate) fn pools(&self) -> &Pools {
        self.inventory.pools()
    }

    /// The pools, for whoever changes what they are and no block.
    #[inline]
    pub(crate) fn pools_mut(&mut self) -> &mut Pools {
        self.inventory.pools_mut()
    }

    /// The live block that starts at `addr`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn live(&self, addr: Addr) -> Option<BlockId> {
        self.inventory.live(addr)
    }

    /// The stream is of this class from now on; an empty name is none.
    pub(crate) fn set_stream_class(&mut self, stream: StreamId, class: &str) {
        self.inventory.rules_mut().reserves_mut().set_class(stream, class);
    }

    /// The class of a stream.
    pub(crate) fn stream_class(&self, stream: StreamId) -> Option<std::sync::Arc<str>> {
        self.inventory.rules().reserves().class(stream)
    }

    /// The next segment of a stream reserves so many bytes, whatever the settings say; or as they
    /// say.
    pub(crate) fn tell_reserve(&mut self, stream: StreamId, size_bytes: Option<u64>) {
        self.inventory.rules_mut().reserves_mut().tell(stream, size_bytes);
    }

    /// Forgets what was kept for requests on streams that have no memory any more.
    pub(crate) fn forget_idle_streams(&mut self) {
        self.settle();
        self.inventory.remove_lanes(|_| true);
        self.placement.forget_lanes(self.inventory.pools());
    }

    /// How much of the host's memory is kept for requests to come, on all streams.
    pub fn lane_bytes(&self) -> usize {
        self.inventory.pools().lane_bytes() + self.placement.held_bytes()
    }

    /// The size of the largest free block, on any stream.
    pub fn largest_free_bytes(&self) -> u64 {
        self.inventory.largest_free_bytes()
    }

    /// How many free blocks there are.
    pub fn free_block_count(&self) -> usize {
        self.inventory.free_block_count()
    }

    /// All statistics.
    pub fn stats(&mut self) -> Stats {
        self.inventory.stats()
    }

    /// Peaks become the current values.
    pub(crate) fn reset_peaks(&mut self) {
        self.inventory.reset_peaks();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub(crate) fn reset_sums(&mut self) {
        self.inventory.reset_sums();
    }

    /// Every segment, in the order of their addresses.
    pub fn snapshot(&self) -> Vec<SegmentState> {
        self.inventory.snapshot()
    }

    /// Every segment of a private pool, in the order of their addresses; none if there is no such
    /// pool.
    pub fn snapshot_of(&self, pool: PoolId) -> Option<Vec<SegmentState>> {
        self.inventory.snapshot_of(pool)
    }

    /// Whether there is an expandable segment.
    pub fn has_expandable(&self) -> bool {
        self.inventory.space().segments().expandable_count() > 0
    }

    /// Every expandable segment, in the order of their addresses.
    pub fn expandable_segments(&self) -> Vec<ExpandableState> {
        self.inventory.expandable_segments()
    }

    /// What a private pool holds; none if there is no such pool.
    pub fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        self.inventory.pool_stats(pool)
    }

    /// All runs in the order of their addresses: those of one private pool, or all.
    pub fn runs(&self, pool: Option<PoolId>) -> Vec<Run> {
        self.inventory.runs(pool)
    }

    /// Saves the layout of a private pool in use, whose memory stays where it is from then on.
    pub(crate) fn checkpoint(&mut self, pool: PoolId) -> Result<Checkpoint, PoolProblem> {
        let checkpoint = self.inventory.checkpoint(pool)?;
        self.inventory.pools_mut().note_checkpoint(pool);
        Ok(checkpoint)
    }

    /// Puts a checkpoint back that `plan_restore` found good, once the blocks that it named are
    /// freed.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Restored {
        self.expect_settled();
        self.inventory.restore(checkpoint)
    }

    /// A request could not be met, while the device had so much free memory.
    pub(crate) fn record_out_of_memory(&mut self, want: &Want, free_bytes: u64) {
        self.inventory.record_out_of_memory(want, free_bytes);
    }

    /// A snapshot was taken, of one pool or of everything.
    pub(crate) fn record_snapshot(&mut self, active_bytes: u64, pool: PoolId) {
        self.inventory.record_snapshot(active_bytes, pool);
    }

    /// A program said something about a live block.
    pub(crate) fn record_remark(&mut self, id: BlockId, remark: &str) {
        self.inventory.record_remark(id, remark);
    }
}
