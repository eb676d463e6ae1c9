//! States: every segment and block as it stands, as plain data.

use crate::heap::inventory::Inventory;
use crate::heap::space::block::State;
use crate::record::stats::Counter;
use crate::types::{Addr, PoolId, PoolKind, Span, StreamId};

/// One segment as it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Its addresses; those of an expandable segment are not all backed by memory.
    pub span: Span,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The kind of pool it belongs to.
    pub kind: PoolKind,
    /// The private pool it belongs to; none for the default pools.
    pub pool: Option<PoolId>,
    /// Whether it can grow.
    pub expandable: bool,
    /// Whether it shows pages of others, and has no memory of its own.
    pub view: bool,
    /// Whether it sleeps: its blocks are there, and no memory is behind them.
    pub asleep: bool,
    /// Bytes with memory behind them.
    pub backed_bytes: u64,
    /// Its blocks, in the order of their addresses, without a gap.
    pub blocks: Vec<BlockState>,
}

/// What a private pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// How many use it.
    pub uses: u32,
    /// Segments held of the device; expandable ones do not count.
    pub segments: u64,
    /// Bytes held of the device.
    pub reserved_bytes: Counter,
    /// Live allocations.
    pub allocations: u64,
    /// Bytes in live allocations.
    pub allocated_bytes: u64,
    /// Bytes in blocks that are live or still awaited by a stream.
    pub active_bytes: u64,
    /// Bytes in free blocks.
    pub free_bytes: u64,
}

/// An expandable segment in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpandableState {
    /// Its first address.
    pub addr: Addr,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The kind of pool it belongs to.
    pub kind: PoolKind,
    /// Bytes with memory behind them.
    pub mapped_bytes: u64,
}

/// One block as it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockState {
    /// Its addresses.
    pub span: Span,
    /// What it is.
    pub state: State,
    /// What the program asked for; on a free block, what was asked for some part of it under
    /// PyTorch's policies, and 0 under the others.
    pub requested_bytes: u64,
}

impl Inventory {
    /// Every segment, in the order of their addresses.
    pub(in crate::heap) fn snapshot(&self) -> Vec<SegmentState> {
        let mut segments: Vec<_> = self
            .space
            .segments()
            .iter()
            .map(|(_, segment)| {
                let lane = self.pools.lane(segment.lane());
                let blocks = self.settled_chain(segment.first()).map(|settled| BlockState {
                    span: settled.span,
                    state: settled.state,
                    requested_bytes: settled.requested_bytes,
                });
                SegmentState {
                    span: segment.span(),
                    stream: lane.stream(),
                    kind: lane.kind(),
                    pool: self.pools.pool(lane.pool()).owner(),
                    expandable: segment.is_expandable(),
                    view: segment.is_view(),
                    asleep: segment.is_asleep(),
                    backed_bytes: segment.backed_bytes(),
                    blocks: blocks.collect(),
                }
            })
            .collect();
        segments.sort_by_key(|segment| segment.span.addr);
        segments
    }

    /// Every segment of a private pool, in the order of their addresses; none if there is no such
    /// pool.
    pub(in crate::heap) fn snapshot_of(&self, pool: PoolId) -> Option<Vec<SegmentState>> {
        self.pools.privates().get(pool)?;
        let segments = self.snapshot().into_iter();
        Some(segments.filter(|segment| segment.pool == Some(pool)).collect())
    }

    /// Every expandable segment, in the order of their addresses.
    pub(in crate::heap) fn expandable_segments(&self) -> Vec<ExpandableState> {
        let expandable =
            self.space.segments().iter().filter(|(_, segment)| segment.is_expandable());
        let mut states: Vec<_> = expandable
            .map(|(_, segment)| {
                let lane = self.pools.lane(segment.lane());
                ExpandableState {
                    addr: segment.span().addr,
                    stream: lane.stream(),
                    kind: lane.kind(),
                    mapped_bytes: segment.backed_bytes(),
                }
            })
            .collect();
        states.sort_by_key(|state| state.addr);
        states
    }

    /// What a private pool holds; none if there is no such pool.
    pub(in crate::heap) fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        let private = self.pools.privates().get(pool)?;
        let mut stats = PoolStats {
            uses: private.uses(),
            reserved_bytes: self
                .pools
                .privates()
                .reserved()
                .get(&pool)
                .copied()
                .unwrap_or_default()
                .all,
            ..PoolStats::default()
        };
        for segment in self.snapshot_of(pool)? {
            stats.segments += u64::from(!segment.expandable && !segment.view);
            for block in segment.blocks {
                let size_bytes = block.span.size_bytes;
                match block.state {
                    State::Live => {
                        stats.allocations += 1;
                        stats.allocated_bytes += size_bytes;
                        stats.active_bytes += size_bytes;
                    }
                    State::Waiting => stats.active_bytes += size_bytes,
                    State::Free | State::Deferred if segment.asleep => {}
                    State::Free | State::Deferred => stats.free_bytes += size_bytes,
                    State::Unmapped | State::Lent | State::Hollow => {}
                }
            }
        }
        Some(stats)
    }
}
