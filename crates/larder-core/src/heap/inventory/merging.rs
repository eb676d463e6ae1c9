//! Merging: what was deferred is merged; and for whoever looks the heap is shown as it will be
//! once all is merged, and nothing is merged for it.

use crate::heap::ids::{BlockId, LaneId};
use crate::heap::inventory::{Inventory, Pieces, Whole};
use crate::heap::pools::lane::Lane;
use crate::heap::space::block::{Block, State};
use crate::record::Record;
use crate::record::stats::Stats;
use crate::types::{PoolKind, Span};

/// A block as it is once what is deferred is coalesced.
pub(in crate::heap) struct Settled {
    /// The first block that it is made of.
    pub(in crate::heap) id: BlockId,
    pub(in crate::heap) span: Span,
    pub(in crate::heap) state: State,
    /// What the program asked for. PyTorch shows what was asked for some part of a free block, and
    /// so do its policies. Under the others that part would be another one after settling than
    /// before: there it is nothing, but for what is in use.
    pub(in crate::heap) requested_bytes: u64,
}

/// What deferred blocks and free ones beside them are once they are coalesced.
pub(in crate::heap) struct CoalescedWhole {
    pub(in crate::heap) size_bytes: u64,
    /// The free blocks among them, which are in the index.
    pub(in crate::heap) shelved_blocks: i64,
    shelved_bytes: u64,
    is_split: bool,
}

impl Inventory {
    /// Frees are deferred in place from now on: a request went where its cycle told it.
    #[inline]
    pub(in crate::heap) fn begin_in_place(&mut self) {
        if self.deferred.begin_in_place() {
            self.coalesce();
        }
    }

    /// Merges all that is deferred, and defers nothing in place any longer.
    #[inline]
    pub(in crate::heap) fn settle(&mut self) {
        self.deferred.end_in_place();
        self.coalesce();
        debug_assert!(self.deferred.is_empty(), "all is merged");
    }

    /// Merges all that is deferred, and puts it into the index.
    #[inline]
    pub(in crate::heap) fn coalesce(&mut self) {
        if !self.deferred.is_empty() {
            self.coalesce_all();
        }
    }

    #[inline(never)]
    fn coalesce_all(&mut self) {
        let mut pieces = Pieces::default();
        while let Some(id) = self.deferred.pop() {
            match self.space[id].state {
                State::Deferred => {
                    let Block { lane, size_bytes, .. } = self.space[id];
                    self.pools.lane_mut(lane).forget_by_size(size_bytes);
                    let whole = self.coalesce_one(id, &mut pieces);
                    self.note_free(whole.id);
                }
                // In a cycle it was not noted where it starts: its hint is mostly enough, and there
                // are more notes than the processor keeps at hand.
                State::Live => self.note_free(id),
                _ => {}
            }
        }
        self.change_pieces(pieces);
        if self.rules.policy().merges_late {
            self.see_pieces();
        }
    }

    /// Merges a deferred block with its free neighbours, and adds what that makes of pieces.
    pub(in crate::heap) fn coalesce_one(&mut self, id: BlockId, pieces: &mut Pieces) -> Whole {
        debug_assert!(self.space[id].state == State::Deferred, "{id:?} is not deferred");
        let whole = self.merge_and_shelve(id);
        // It counts as a free since it was deferred.
        let lane = self.space[whole.id].lane;
        self.pools.lane_mut(lane).uncount_free();
        if !whole.expandable {
            let Pieces { blocks, bytes } = whole.pieces();
            pieces.blocks += blocks;
            pieces.bytes += bytes;
        }
        whole
    }

    /// There are more or fewer small pieces.
    pub(in crate::heap) fn change_pieces(&mut self, Pieces { blocks, bytes }: Pieces) {
        let kind = PoolKind::Small;
        self.recorder.record(Record::InactiveSplit { kind, blocks, bytes });
    }

    /// A free block that is in no index is deferred from now on. The next cycle may ask for what
    /// lies there.
    pub(in crate::heap) fn defer_free(&mut self, id: BlockId) {
        debug_assert!(self.space[id].expandable, "{id:?} is not at home in pages");
        let block = &mut self.space[id];
        block.state = State::Deferred;
        let addr = block.addr;
        self.space.hint(addr, id);
        self.deferred.list(id);
    }

    /// The lanes of what is awake.
    pub(in crate::heap) fn lanes_awake(&self) -> impl Iterator<Item = (LaneId, &Lane)> + '_ {
        self.pools.lanes().filter(|&(id, _)| !self.pools.is_lane_asleep(id))
    }

    /// The size of the largest free block, on any stream.
    pub(in crate::heap) fn largest_free_bytes(&self) -> u64 {
        let lanes = self.lanes_awake();
        let shelved = lanes.filter_map(|(_, lane)| lane.free()?.largest_bytes(self.space.blocks()));
        let rested = self.coalesced_wholes().map(|whole| whole.size_bytes);
        shelved.chain(rested).max().unwrap_or(0)
    }

    /// How many free blocks there are.
    pub(in crate::heap) fn free_block_count(&self) -> usize {
        let lanes = self.lanes_awake();
        let shelved: usize =
            lanes.map(|(_, lane)| lane.free_blocks(self.space.blocks()).count()).sum();
        let (mut more, mut fewer) = (0, 0);
        for whole in self.coalesced_wholes() {
            (more, fewer) = (more + 1, fewer + whole.shelved_blocks as usize);
        }
        shelved + more - fewer
    }

    /// All statistics.
    pub(in crate::heap) fn stats(&mut self) -> Stats {
        let mut stats = self.recorder.stats();
        if self.rules.policy().merges_late {
            self.see_pieces();
            self.deferred.seen().show(&mut stats);
        }
        stats
    }

    /// Peaks become the current values.
    pub(crate) fn reset_peaks(&mut self) {
        self.see_pieces();
        self.deferred.seen_mut().reset_peaks(self.recorder.pieces());
        self.recorder.reset_peak();
        self.pools.reset_pool_peaks();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub(crate) fn reset_sums(&mut self) {
        self.see_pieces();
        self.deferred.seen_mut().reset_sums();
        self.recorder.reset_accumulated();
        self.pools.reset_pool_sums();
    }

    /// Looks how many pieces there are once what is deferred is coalesced.
    pub(in crate::heap) fn see_pieces(&mut self) {
        let [mut blocks, mut bytes] = self.recorder.pieces();
        let fixed = self.deferred_blocks().filter(|&id| !self.space[id].expandable);
        for whole in fixed.filter_map(|id| self.coalesced_whole(id)) {
            let whole_bytes = if whole.is_split { whole.size_bytes } else { 0 };
            blocks[0] += i64::from(whole.is_split) - whole.shelved_blocks;
            bytes[0] += whole_bytes as i64 - whole.shelved_bytes as i64;
        }
        self.deferred.seen_mut().see([blocks, bytes]);
    }

    /// The blocks of a segment from this one on.
    pub(in crate::heap) fn settled_chain(&self, first: BlockId) -> impl Iterator<Item = Settled> {
        let mut at = Some(first);
        std::iter::from_fn(move || {
            let id = at?;
            let block = &self.space[id];
            let (mut span, mut state) = (block.span(), block.state);
            if state.is_unused() {
                state = State::Free;
            }
            let is_told =
                matches!(state, State::Live | State::Waiting) || self.rules.policy().is_stock();
            let requested_bytes = if is_told { block.requested_bytes } else { 0 };
            let mut last = id;
            while let Some(next) = self.space[last].next.filter(|&next| self.joins(last, next)) {
                span.size_bytes += self.space[next].size_bytes;
                last = next;
            }
            at = self.space[last].next;
            Some(Settled { id, span, state, requested_bytes })
        })
    }

    /// Each block that will come of deferred ones.
    pub(in crate::heap) fn coalesced_wholes(&self) -> impl Iterator<Item = CoalescedWhole> {
        let is_awake = |id: &BlockId| !self.pools.is_lane_asleep(self.space[*id].lane);
        let awake = self.deferred_blocks().filter(is_awake);
        awake.filter_map(|id| self.coalesced_whole(id))
    }

    /// The blocks whose frees are deferred.
    pub(super) fn deferred_blocks(&self) -> impl Iterator<Item = BlockId> {
        let listed = self.deferred.listed().iter().copied();
        listed.filter(|&id| self.space[id].state == State::Deferred)
    }

    /// What will come of a deferred block. None if it is not the first one of its whole that is
    /// deferred.
    fn coalesced_whole(&self, id: BlockId) -> Option<CoalescedWhole> {
        let mut first = id;
        while let Some(prev) = self.space[first].prev.filter(|&prev| self.joins(prev, first)) {
            if self.space[prev].state == State::Deferred {
                return None;
            }
            first = prev;
        }
        let (mut size_bytes, mut shelved_blocks, mut shelved_bytes) = (0, 0, 0);
        let mut last = first;
        loop {
            let block = &self.space[last];
            size_bytes += block.size_bytes;
            if block.state == State::Free {
                shelved_blocks += 1;
                shelved_bytes += block.size_bytes;
            }
            match block.next.filter(|&next| self.joins(last, next)) {
                Some(next) => last = next,
                None => break,
            }
        }
        let is_split = self.space[first].prev.is_some() || self.space[last].next.is_some();
        Some(CoalescedWhole { size_bytes, shelved_blocks, shelved_bytes, is_split })
    }

    /// Whether two neighbours will be one block.
    fn joins(&self, one: BlockId, next: BlockId) -> bool {
        let [one, next] = [one, next].map(|id| &self.space[id]);
        let states = (one.state, next.state);
        let is_joint = matches!(
            states,
            (State::Deferred, State::Deferred | State::Free) | (State::Free, State::Deferred)
        );
        is_joint && one.lane == next.lane
    }
}
