//! Snapshots: the state of every segment and block as plain data.

use crate::heap::Heap;
use crate::heap::block::State;
use crate::types::{PoolKind, Span, StreamId};

/// One segment as it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Its addresses; those of an expandable segment are not all backed by memory.
    pub span: Span,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The kind of pool it belongs to.
    pub kind: PoolKind,
    /// Whether it can grow.
    pub expandable: bool,
    /// Bytes with memory behind them.
    pub backed_bytes: u64,
    /// Its blocks, in the order of their addresses, without a gap.
    pub blocks: Vec<BlockState>,
}

/// One block as it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockState {
    /// Its addresses.
    pub span: Span,
    /// What it is.
    pub state: State,
    /// What the program asked for; on a free block, what was asked for last.
    pub requested_bytes: u64,
}

impl Heap {
    /// Every segment, in the order of their addresses.
    pub fn snapshot(&self) -> Vec<SegmentState> {
        let mut segments: Vec<_> = self
            .segments
            .iter()
            .map(|(_, segment)| {
                let lane = self.pools.lane(segment.lane);
                let chain = std::iter::successors(Some(segment.first), |&id| self.blocks[id].next);
                let blocks = chain.map(|id| {
                    let block = &self.blocks[id];
                    BlockState {
                        span: block.span(),
                        state: block.state,
                        requested_bytes: block.requested_bytes,
                    }
                });
                SegmentState {
                    span: segment.span,
                    stream: lane.stream,
                    kind: lane.kind,
                    expandable: segment.is_expandable(),
                    backed_bytes: segment.backed_bytes(),
                    blocks: blocks.collect(),
                }
            })
            .collect();
        segments.sort_by_key(|segment| segment.span.addr);
        segments
    }
}
