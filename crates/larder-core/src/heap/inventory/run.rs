//! Runs: the state of the heap as PyTorch shows it, with contexts: blocks that lie side by side
//! with memory behind them, be they a whole fixed segment or a piece of an expandable one.

use std::fmt;
use std::sync::Arc;

use crate::heap::ids::BlockId;
use crate::heap::inventory::Inventory;
use crate::heap::inventory::merging::Settled;
use crate::heap::space::block::State;
use crate::record::context::Context;
use crate::record::history::Owner;
use crate::types::{Addr, PoolId, PoolKind, Span, StreamId};

/// Blocks that lie side by side with memory behind them. PyTorch calls it a segment.
#[derive(Clone)]
pub struct Run {
    /// Its first address.
    pub addr: Addr,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The kind of pool it belongs to.
    pub kind: PoolKind,
    /// The private pool it belongs to, or none.
    pub pool: PoolId,
    /// Whether it is a piece of an expandable segment.
    pub expandable: bool,
    /// How many segments the device had given before the one that it is, or is a piece of.
    pub serial: u64,
    /// The context in which the segment was made, if one was gathered.
    pub context: Option<Arc<dyn Context>>,
    /// Its blocks, in the order of their addresses, without a gap.
    pub blocks: Vec<RunBlock>,
}

/// One block of a run.
#[derive(Clone)]
pub struct RunBlock {
    /// Its addresses.
    pub span: Span,
    /// What it is: `Free`, `Live` or `Waiting`.
    pub state: State,
    /// What the program asked for; on a free block, what was asked for some part of it under
    /// PyTorch's policies, and 0 under the others.
    pub requested_bytes: u64,
    /// The context in which it was allocated, if one was gathered.
    pub context: Option<Arc<dyn Context>>,
}

impl Run {
    /// All its bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.span.size_bytes).sum()
    }

    /// Bytes in live blocks.
    pub fn allocated_bytes(&self) -> u64 {
        let live = self.blocks.iter().filter(|block| block.state == State::Live);
        live.map(|block| block.span.size_bytes).sum()
    }

    /// Bytes in blocks that are live or still awaited.
    pub fn active_bytes(&self) -> u64 {
        self.active().map(|block| block.span.size_bytes).sum()
    }

    /// Bytes that the program asked for, in active blocks.
    pub fn requested_bytes(&self) -> u64 {
        self.active().map(|block| block.requested_bytes).sum()
    }

    fn active(&self) -> impl Iterator<Item = &RunBlock> {
        self.blocks.iter().filter(|block| matches!(block.state, State::Live | State::Waiting))
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { addr, stream, pool, blocks, .. } = self;
        write!(f, "Run at {addr}, {stream}, {pool}: {blocks:?}")
    }
}

impl fmt::Debug for RunBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunBlock { span, state, requested_bytes, .. } = self;
        write!(f, "{state:?} {} of {}, asked {requested_bytes}", span.addr, span.size_bytes)
    }
}

impl Inventory {
    /// All runs in the order of their addresses: those of one private pool, or all. What sleeps has
    /// no memory to show.
    pub(in crate::heap) fn runs(&self, pool: Option<PoolId>) -> Vec<Run> {
        // PyTorch looks for a pool's expandable segments at their first block alone.
        let first_only = pool.is_some() && !self.rules.policy().pool_snapshot_is_whole;
        let mut runs = Vec::new();
        let segments = self.space.segments().iter();
        for (_, segment) in segments.filter(|(_, segment)| !segment.is_asleep()) {
            if pool.is_some_and(|pool| self.side_of(segment.lane()).1 != pool) {
                continue;
            }
            let mut at = Some(segment.first());
            while let Some(start) = at {
                at = self.space[start].next;
                if has_no_memory(self.space[start].state) {
                    if first_only {
                        break;
                    }
                    continue;
                }
                let (run, end) = self.run_from(start, segment.serial());
                runs.push(run);
                at = end.filter(|_| !first_only);
            }
        }
        runs.sort_by_key(|run| run.addr);
        runs
    }

    /// The run that starts at this block, and the block behind it that has no memory, if there is
    /// one.
    fn run_from(&self, start: BlockId, serial: u64) -> (Run, Option<BlockId>) {
        let (mut blocks, mut end) = (Vec::new(), None);
        for Settled { id, span, state, requested_bytes } in self.settled_chain(start) {
            if has_no_memory(state) {
                end = Some(id);
                break;
            }
            let context = self.shared_context(Owner::Block(span.addr.0));
            blocks.push(RunBlock { span, state, requested_bytes, context });
        }
        let head = &self.space[start];
        let (stream, pool) = self.side_of(head.lane);
        let run = Run {
            addr: head.addr,
            stream,
            kind: head.kind,
            pool,
            expandable: head.expandable,
            serial,
            context: self.shared_context(self.segment_owner(start)),
            blocks,
        };
        (run, end)
    }

    fn shared_context(&self, owner: Owner) -> Option<Arc<dyn Context>> {
        self.recorder.history().and_then(|history| history.share_context(owner))
    }

    /// The context in which a live block was allocated, if one was gathered.
    pub(crate) fn context_at(&self, addr: Addr) -> Option<Arc<dyn Context>> {
        self.shared_context(Owner::Block(addr.0))
    }
}

/// Whether there is no memory at a block's addresses, or what there is shows at others: a block in
/// a view shows where the program has it, in one piece, and so the memory that is lent to it does
/// not show at home.
fn has_no_memory(state: State) -> bool {
    matches!(state, State::Unmapped | State::Hollow | State::Lent)
}
