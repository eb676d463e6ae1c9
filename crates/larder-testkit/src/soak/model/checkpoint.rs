//! The model's checkpoints.

use larder_core::types::{Addr, PoolKind, StreamId};

use super::segment::{Segment, State};
use super::{Model, Spot, change, change_pool};

/// What a pool looked like: for each segment its first address, and its blocks with memory behind
/// them, how large and whether live.
#[derive(Clone, Debug)]
pub(in crate::soak) struct Checkpoint {
    pool: u32,
    segments: Vec<(SegmentKey, Vec<(u64, bool)>)>,
}

/// By what a segment is known again: address, stream, kind, whether expandable.
type SegmentKey = (u64, StreamId, PoolKind, bool);

fn key(segment: &Segment) -> SegmentKey {
    (segment.span.addr.0, segment.stream, segment.kind, segment.is_expandable())
}

/// How much memory there is from the first address on.
fn backed_bytes(segment: &Segment) -> u64 {
    let backed = segment.blocks.iter().take_while(|block| block.state != State::Unmapped);
    backed.map(|block| block.size_bytes).sum()
}

impl Model {
    /// The pool's segments: those that begin with a block in use come first, then the others by
    /// kind, stream, size of their first block, address.
    fn segments_of(&self, pool: u32) -> Vec<usize> {
        let own = self.segments.iter().enumerate();
        let mut own: Vec<_> = own.filter(|(_, s)| s.pool == Some(pool)).map(|(at, _)| at).collect();
        own.sort_by_key(|&at| {
            let segment = &self.segments[at];
            let first = &segment.blocks[0];
            let free = first.is_open();
            let tie = self.tie((at, 0));
            let order = (segment.kind, segment.stream, first.size_bytes, tie);
            (free, free.then_some(order), first.addr)
        });
        own
    }

    fn is_in_use(&self, pool: u32) -> bool {
        self.privates.get(&pool).is_some_and(|private| private.uses > 0)
    }

    /// Saves the pool's layout; none where the allocator must refuse.
    pub(in crate::soak) fn checkpoint(&mut self, pool: u32) -> Option<Checkpoint> {
        self.settle();
        self.record_put_off();
        if !self.is_in_use(pool) {
            return None;
        }
        let mut segments = Vec::new();
        for at in self.segments_of(pool) {
            let segment = &self.segments[at];
            let mut blocks = Vec::new();
            for block in &segment.blocks {
                match block.state {
                    State::Waiting(_) => return None,
                    State::Unmapped => break,
                    State::Free | State::Deferred(_) | State::Live => {
                        blocks.push((block.size_bytes, block.state == State::Live));
                    }
                }
            }
            if !blocks.is_empty() {
                segments.push((key(segment), blocks));
            }
        }
        Some(Checkpoint { pool, segments })
    }

    /// Puts a layout back, and says which blocks were live before and which are now; none where the
    /// allocator must refuse.
    pub(in crate::soak) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
    ) -> Option<(Vec<Addr>, Vec<Addr>)> {
        self.settle();
        let Checkpoint { pool, segments } = checkpoint;
        if !self.is_in_use(*pool) {
            return None;
        }
        for (saved, blocks) in segments {
            let segment =
                self.segments.iter().find(|s| s.pool == Some(*pool) && key(s) == *saved)?;
            let saved_bytes: u64 = blocks.iter().map(|&(size_bytes, _)| size_bytes).sum();
            let bytes = backed_bytes(segment);
            let expandable = segment.is_expandable();
            let settled = |block: &super::Block| {
                !matches!(block.state, State::Waiting(_)) && block.uses.is_empty()
            };
            if !segment.blocks.iter().all(settled)
                || bytes < saved_bytes
                || (bytes > saved_bytes && !expandable)
            {
                return None;
            }
        }
        let freed = self.free_all_of(*pool);
        let mut created = Vec::new();
        for (saved, blocks) in segments {
            created.extend(self.restore_segment(*saved, blocks));
        }
        created.sort_unstable();
        Some((freed, created))
    }

    /// Frees the pool's live blocks: first those that other streams use, then the others.
    fn free_all_of(&mut self, pool: u32) -> Vec<Addr> {
        let segments = self.segments_of(pool).into_iter();
        let blocks = segments.flat_map(|at| self.segments[at].blocks.clone());
        let live: Vec<_> = blocks.filter(|block| block.state == State::Live).collect();
        let (used, unused): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|block| !block.uses.is_empty());
        for block in &used {
            self.free(Addr(block.addr));
        }
        // What was freed may have changed with which block a segment begins.
        let segments = self.segments_of(pool).into_iter();
        let order: Vec<u64> = segments.map(|at| self.segments[at].span.addr.0).collect();
        let home = |addr: u64| self.segments[self.find(addr).0].span.addr.0;
        let mut unused: Vec<_> =
            unused.iter().map(|block| (home(block.addr), block.addr)).collect();
        unused.sort_by_key(|&(home, addr)| (order.iter().position(|&at| at == home), addr));
        for &(_, addr) in &unused {
            self.free(Addr(addr));
        }
        let unused = unused.into_iter().map(|(_, addr)| addr);
        let mut freed: Vec<Addr> =
            used.iter().map(|block| block.addr).chain(unused).map(Addr).collect();
        freed.sort_unstable();
        freed
    }

    /// Hands out every block of a segment as it was, then frees those that were free.
    fn restore_segment(&mut self, saved: SegmentKey, blocks: &[(u64, bool)]) -> Vec<Addr> {
        let at = self.segments.iter().position(|s| key(s) == saved).expect("it was found before");
        for (block_at, &(size_bytes, _)) in blocks.iter().enumerate() {
            self.hand_out_exactly((at, block_at), size_bytes);
        }
        let (mut addr, mut created) = (saved.0, Vec::new());
        for &(size_bytes, is_live) in blocks {
            if is_live {
                created.push(Addr(addr));
            } else {
                self.free(Addr(addr));
            }
            addr += size_bytes;
        }
        created
    }

    fn hand_out_exactly(&mut self, (at, block_at): Spot, size_bytes: u64) {
        let (pool, kind) = (self.segments[at].pool, self.segments[at].kind);
        let (searches, number) = (self.searches_of(pool, kind), self.draw());
        let segment = &mut self.segments[at];
        let (was_split, whole_bytes) = (segment.is_split(), segment.blocks[block_at].size_bytes);
        let rest_bytes = whole_bytes - size_bytes;
        let (blocks, bytes) = match (rest_bytes > 0, was_split) {
            (true, true) => (0, -(size_bytes as i64)),
            (true, false) => (1, rest_bytes as i64),
            (false, true) => (-1, -(whole_bytes as i64)),
            (false, false) => (0, 0),
        };
        if rest_bytes > 0 {
            segment.cut(block_at, size_bytes);
            segment.blocks[block_at].number = number;
            segment.blocks[block_at + 1].free_since = searches;
        }
        let is_expandable = segment.is_expandable();
        let oversize = self.config.max_split_bytes.is_some_and(|max| size_bytes >= max);
        let block = &mut segment.blocks[block_at];
        (block.state, block.requested_bytes, block.oversize) = (State::Live, size_bytes, oversize);
        if !is_expandable {
            change_pool(&mut self.stats.inactive_split, kind, blocks);
            change_pool(&mut self.stats.inactive_split_bytes, kind, bytes);
        }
        let bytes = size_bytes as i64;
        change_pool(&mut self.stats.allocation, kind, 1);
        change_pool(&mut self.stats.allocated_bytes, kind, bytes);
        change_pool(&mut self.stats.active, kind, 1);
        change_pool(&mut self.stats.active_bytes, kind, bytes);
        change_pool(&mut self.stats.requested_bytes, kind, bytes);
        if oversize {
            change(&mut self.stats.oversize_allocations, 1);
        }
    }
}
