//! Checkpoints: the layout of a private pool, saved and put back. The memory itself is not touched:
//! a program that replays graphs knows what lies in it, and wants the heap to agree.

use crate::error::PoolProblem;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::pools::private::Private;
use crate::heap::size;
use crate::heap::space::block::{Block, State};
use crate::record::Record;
use crate::record::history::History;
use crate::types::{Addr, PoolId, PoolKind, Span, StreamId};

/// The layout of a private pool as it was: plain data, good for as long as the pool has the
/// segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The allocator that made it. The heap itself does not look at it.
    pub(crate) maker: u64,
    pool: PoolId,
    /// In the order in which they are put back.
    segments: Vec<Layout>,
}

/// One segment's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    /// What it had memory behind, from its first address on.
    span: Span,
    stream: StreamId,
    kind: PoolKind,
    expandable: bool,
    /// Its blocks in the order of addresses, without a gap: how large, and whether live.
    blocks: Vec<(u64, bool)>,
}

/// What putting back a checkpoint did to the program's memory. An address can be in both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Blocks that were live before.
    pub freed: Vec<Addr>,
    /// Blocks that are live now.
    pub created: Vec<Addr>,
}

impl Checkpoint {
    /// The pool that it is of.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The blocks that were live, in the order of their addresses.
    pub fn live(&self) -> Vec<Span> {
        let mut live = Vec::new();
        for segment in &self.segments {
            let mut addr = segment.span.addr;
            for &(size_bytes, is_live) in &segment.blocks {
                if is_live {
                    live.push(Span::new(addr, size_bytes));
                }
                addr = addr.offset(size_bytes);
            }
        }
        live.sort_by_key(|span| span.addr);
        live
    }
}

impl Inventory {
    /// A private pool that may be saved and put back.
    fn pool_in_use(&self, id: PoolId) -> Result<&Private, PoolProblem> {
        let private = self.pools.privates().get(id).ok_or(PoolProblem::Unknown)?;
        if private.is_symmetric() {
            return Err(PoolProblem::Symmetric);
        }
        let halves = self.pools.privates().parts(id);
        if halves.into_iter().any(|half| self.pools.asleep_of(half).is_some()) {
            return Err(PoolProblem::Asleep);
        }
        if private.is_released() { Err(PoolProblem::Released) } else { Ok(private) }
    }

    /// The segments of a private pool, in the order in which PyTorch would come upon them: those
    /// that begin with a block in use, then the others, small before large and in the order of
    /// their first blocks.
    fn segments_of(&self, private: &Private) -> Vec<SegmentId> {
        let mut segments: Vec<_> = self
            .space
            .segments()
            .iter()
            .filter(|(_, segment)| {
                let pool = self.pools.lane(segment.lane()).pool();
                private.has_half(pool)
            })
            .map(|(id, segment)| {
                let (first, lane) = (&self.space[segment.first()], self.pools.lane(segment.lane()));
                let key = match first.state {
                    State::Live | State::Waiting => {
                        (false, PoolKind::Small, StreamId(0), 0, segment.span().addr.0)
                    }
                    _ => (true, lane.kind(), lane.stream(), first.size_bytes, first.order),
                };
                (key, id)
            })
            .collect();
        segments.sort_unstable();
        segments.into_iter().map(|(_, id)| id).collect()
    }

    /// Saves the layout of a private pool in use. No block of it may be awaited.
    pub(crate) fn checkpoint(&self, pool: PoolId) -> Result<Checkpoint, PoolProblem> {
        let private = self.pool_in_use(pool)?;
        let mut segments = Vec::new();
        for id in self.segments_of(private) {
            let segment = &self.space[id];
            let lane = self.pools.lane(segment.lane());
            if segment.is_view() && self.space.is_vacant(id) {
                continue;
            }
            let (mut blocks, mut size_bytes, mut is_over) = (Vec::new(), 0, false);
            for block in self.space.chain(id).map(|id| &self.space[id]) {
                let is_theirs = block.lane != segment.lane();
                match block.state {
                    State::Waiting => return Err(PoolProblem::Unsettled(block.addr)),
                    // Else only the end of a segment has no memory.
                    State::Unmapped => {
                        is_over = true;
                        continue;
                    }
                    State::Lent | State::Hollow => return Err(PoolProblem::Spread(block.addr)),
                    _ if is_over || is_theirs || segment.is_view() => {
                        return Err(PoolProblem::Spread(block.addr));
                    }
                    State::Free | State::Deferred | State::Live => {
                        blocks.push((block.size_bytes, block.state == State::Live));
                    }
                }
                size_bytes += block.size_bytes;
            }
            // A segment that never got memory has nothing to put back.
            if !blocks.is_empty() {
                segments.push(Layout {
                    span: Span::new(segment.span().addr, size_bytes),
                    stream: lane.stream(),
                    kind: lane.kind(),
                    expandable: segment.is_expandable(),
                    blocks,
                });
            }
        }
        Ok(Checkpoint { maker: 0, pool, segments })
    }

    /// Checks that a checkpoint can be put back: its segments are there, have at least the memory
    /// that they had, and no block in them is used or awaited by another stream. Names the live
    /// blocks elsewhere in the pool that other streams use: these have to be freed by way of
    /// events.
    pub(crate) fn plan_restore(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<BlockId>, PoolProblem> {
        let private = self.pool_in_use(checkpoint.pool)?;
        let mut used_elsewhere = Vec::new();
        let mut found = 0;
        for id in self.segments_of(private) {
            let saved = checkpoint.segments.iter().find(|saved| self.is_segment(saved, id));
            found += usize::from(saved.is_some());
            for block_id in self.space.chain(id) {
                let block = &self.space[block_id];
                let is_awaited = block.state == State::Waiting || block.used_elsewhere;
                if saved.is_some() && is_awaited {
                    return Err(PoolProblem::Unsettled(block.addr));
                }
                if block.state == State::Live && block.used_elsewhere {
                    used_elsewhere.push(block_id);
                }
            }
        }
        if found < checkpoint.segments.len() {
            let ids = self.segments_of(private);
            let is_gone = |saved: &&Layout| !ids.iter().any(|&id| self.is_segment(saved, id));
            let gone = checkpoint.segments.iter().find(is_gone);
            return Err(PoolProblem::SegmentGone(gone.map_or(Addr(0), |saved| saved.span.addr)));
        }
        Ok(used_elsewhere)
    }

    /// Whether this is the segment that was saved, with all the memory that it had.
    fn is_segment(&self, saved: &Layout, id: SegmentId) -> bool {
        let segment = &self.space[id];
        let lane = self.pools.lane(segment.lane());
        if (segment.span().addr, lane.stream(), lane.kind(), segment.is_expandable())
            != (saved.span.addr, saved.stream, saved.kind, saved.expandable)
        {
            return false;
        }
        let backed = self.space.chain(id).map(|id| &self.space[id]);
        let backed_bytes: u64 = backed
            .take_while(|block| block.state != State::Unmapped)
            .map(|block| block.size_bytes)
            .sum();
        if saved.expandable {
            backed_bytes >= saved.span.size_bytes
        } else {
            backed_bytes == saved.span.size_bytes
        }
    }

    /// Puts a checkpoint back that `plan_restore` found good, once the blocks that it named are
    /// freed. All of the pool's live blocks are freed, every block of the checkpoint is handed out
    /// where it was, and those that were free are freed again: so the statistics move as they do in
    /// PyTorch.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Restored {
        let mut restored = Restored::default();
        let Some(&private) = self.pools.privates().get(checkpoint.pool) else { return restored };
        // For what is freed here a context is gathered only where one is for any free.
        let context = self.recorder.listener().and_then(History::set_context_aside);
        for segment in self.segments_of(&private) {
            let is_live = |&id: &BlockId| self.space[id].state == State::Live;
            let live: Vec<BlockId> = self.space.chain(segment).filter(is_live).collect();
            for id in live {
                restored.freed.push(self.space[id].addr);
                self.put(id);
            }
        }
        if let Some(history) = self.recorder.listener() {
            history.take_context_back(context);
        }
        for saved in &checkpoint.segments {
            let segments = self.segments_of(&private);
            let segment = segments.into_iter().find(|&id| self.is_segment(saved, id));
            if let Some(segment) = segment {
                self.restore_segment(segment, saved, &mut restored.created);
            }
        }
        restored
    }

    fn restore_segment(&mut self, segment: SegmentId, saved: &Layout, created: &mut Vec<Addr>) {
        let mut next = Some(self.space[segment].first());
        let mut blocks = Vec::with_capacity(saved.blocks.len());
        for &(size_bytes, is_live) in &saved.blocks {
            let id = next.expect("the segment has the memory that it had");
            self.hand_out_exactly(id, size_bytes);
            next = self.space[id].next;
            blocks.push((id, is_live));
        }
        for (id, is_live) in blocks {
            if is_live {
                let Block { addr, size_bytes, .. } = self.space[id];
                // Only now: a free piece of a large pool may be smaller than a window of addresses.
                self.space.note_start(segment, addr, size_bytes, id);
                created.push(addr);
            } else {
                self.put(id);
            }
        }
    }

    /// Makes the first `size_bytes` of a free block live, whatever the split limit says.
    fn hand_out_exactly(&mut self, id: BlockId, size_bytes: u64) {
        self.unshelve(id);
        let block = &self.space[id];
        let (whole_bytes, kind) = (block.size_bytes, block.kind);
        let (expandable, was_split) = (block.expandable, block.is_split());
        if whole_bytes > size_bytes {
            let rest = self.space.split(id, size_bytes);
            self.order_front(id, rest);
            self.shelve(rest);
        }
        if !expandable {
            let (blocks, bytes) = size::pieces_of_taking(was_split, whole_bytes, size_bytes);
            self.recorder.record(Record::InactiveSplit { kind, blocks, bytes });
        }
        let block = &mut self.space[id];
        block.state = State::Live;
        block.requested_bytes = size_bytes;
        block.oversize = size_bytes >= self.rules.split_limit_bytes();
        let oversize = block.oversize;
        let (place, requested_bytes) = self.facts(id);
        self.record_of(id, Record::Alloc { place, requested_bytes, oversize });
    }

    /// The live blocks of a private pool, in the order of their addresses.
    pub(crate) fn live_in(&self, pool: PoolId) -> Result<Vec<Addr>, PoolProblem> {
        let private = self.pools.privates().get(pool).ok_or(PoolProblem::Unknown)?;
        let segments = self.segments_of(private).into_iter();
        let blocks = segments.flat_map(|id| self.space.chain(id)).map(|id| &self.space[id]);
        let live = blocks.filter(|block| block.state == State::Live);
        let mut live: Vec<Addr> = live.map(|block| block.addr).collect();
        live.sort_unstable();
        Ok(live)
    }
}
