//! What rests, for whoever looks: the heap is shown as it will be once all is put down, and nothing is put down for it.

use crate::heap::Heap;
use crate::heap::block::State;
use crate::heap::ids::BlockId;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::tray::{RESTED_MAX, SIZES_PER_WORD};
use crate::record::stats::Stats;
use crate::types::Span;

/// A block as it is once what rests is put down.
pub(super) struct Settled {
    /// The first block that it is made of.
    pub(super) id: BlockId,
    pub(super) span: Span,
    pub(super) state: State,
    /// What the program asked for. PyTorch shows what was asked for some part of a free block, and so do its policies. Under the
    /// others that part would be another one after settling than before: there it is nothing, but for what is in use.
    pub(super) requested_bytes: u64,
}

/// What blocks that rest and free ones beside them are once they are put down.
pub(super) struct RestedWhole {
    pub(super) size_bytes: u64,
    /// The free blocks among them, which are in the index.
    pub(super) shelved_blocks: i64,
    shelved_bytes: u64,
    is_split: bool,
}

impl Heap {
    /// All statistics.
    pub fn stats(&mut self) -> Stats {
        let mut stats = self.herald.stats();
        if self.policy.merges_late {
            self.see_pieces();
            self.trays.seen.show(&mut stats);
        }
        stats
    }

    /// Peaks become the current values.
    pub(crate) fn reset_peaks(&mut self) {
        self.see_pieces();
        self.trays.seen.reset_peaks(self.herald.pieces());
        self.herald.reset_peak();
        self.reset_pool_peaks();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub(crate) fn reset_sums(&mut self) {
        self.see_pieces();
        self.trays.seen.reset_sums();
        self.herald.reset_accumulated();
        self.reset_pool_sums();
    }

    /// Looks how many pieces there are once what rests is put down.
    pub(super) fn see_pieces(&mut self) {
        let [mut blocks, mut bytes] = self.herald.pieces();
        let fixed = self.rested().filter(|&id| !self.blocks[id].expandable);
        for whole in fixed.filter_map(|id| self.rested_whole(id)) {
            let whole_bytes = if whole.is_split { whole.size_bytes } else { 0 };
            blocks[0] += i64::from(whole.is_split) - whole.shelved_blocks;
            bytes[0] += whole_bytes as i64 - whole.shelved_bytes as i64;
        }
        self.trays.seen.see([blocks, bytes]);
    }

    /// The blocks of a segment from this one on.
    pub(super) fn settled_chain(&self, first: BlockId) -> impl Iterator<Item = Settled> {
        let mut at = Some(first);
        std::iter::from_fn(move || {
            let id = at?;
            let block = &self.blocks[id];
            let (mut span, mut state) = (block.span(), block.state);
            if state.is_unused() {
                state = State::Free;
            }
            let is_told = matches!(state, State::Live | State::Waiting) || self.policy.is_stock();
            let requested_bytes = if is_told { block.requested_bytes } else { 0 };
            let mut last = id;
            while let Some(next) = self.blocks[last].next.filter(|&next| self.joins(last, next)) {
                span.size_bytes += self.blocks[next].size_bytes;
                last = next;
            }
            at = self.blocks[last].next;
            Some(Settled { id, span, state, requested_bytes })
        })
    }

    /// Each block that will come of blocks that rest.
    pub(super) fn rested_wholes(&self) -> impl Iterator<Item = RestedWhole> {
        self.rested().filter_map(|id| self.rested_whole(id))
    }

    /// The blocks that rest.
    fn rested(&self) -> impl Iterator<Item = BlockId> {
        let lanes = self.trays.busy.iter().map(|&lane| self.pools.lane(lane));
        let firsts = lanes.filter_map(|lane| lane.tray.as_deref()).flat_map(|tray| tray.firsts);
        let rested =
            firsts.flat_map(|first| std::iter::successors(first, |&id| self.blocks[id].shelf_next));
        let fallow = self.fallow.listed().iter().copied();
        rested.chain(fallow.filter(|&id| self.blocks[id].state == State::Resting))
    }

    /// What will come of a block that rests. None if it is not the first one of a whole that rests.
    fn rested_whole(&self, id: BlockId) -> Option<RestedWhole> {
        let mut first = id;
        while let Some(prev) = self.blocks[first].prev.filter(|&prev| self.joins(prev, first)) {
            if self.blocks[prev].state == State::Resting {
                return None;
            }
            first = prev;
        }
        let (mut size_bytes, mut shelved_blocks, mut shelved_bytes) = (0, 0, 0);
        let mut last = first;
        loop {
            let block = &self.blocks[last];
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
        let is_split = self.blocks[first].prev.is_some() || self.blocks[last].next.is_some();
        Some(RestedWhole { size_bytes, shelved_blocks, shelved_bytes, is_split })
    }

    /// Whether two neighbours will be one block.
    fn joins(&self, one: BlockId, next: BlockId) -> bool {
        let [one, next] = [one, next].map(|id| &self.blocks[id]);
        let states = (one.state, next.state);
        let is_joint = matches!(
            states,
            (State::Resting, State::Resting | State::Free) | (State::Free, State::Resting)
        );
        is_joint && one.lane == next.lane
    }

    /// What rests is on its lane's tray, under its size, and nothing else is; and while the tray is open nothing asks for
    /// more care. `rested` is how many blocks there are that rest.
    pub(super) fn check_trays(&self, rested: usize) -> Result<(), String> {
        let mut on_trays = 0;
        for (lane_id, lane) in self.pools.lanes() {
            let Some(tray) = lane.tray.as_deref() else { continue };
            let mut count = 0;
            for (size, &first) in tray.firsts.iter().enumerate() {
                for id in std::iter::successors(first, |&id| self.blocks[id].shelf_next) {
                    let block = &self.blocks[id];
                    let size_bytes = (size as u64 + 1) * BLOCK_UNIT_BYTES;
                    let is_known = tray.words[size / SIZES_PER_WORD] >> (size % SIZES_PER_WORD) & 1;
                    if (block.state, block.lane) != (State::Resting, lane_id)
                        || (block.size_bytes, is_known) != (size_bytes, 1)
                    {
                        return Err(format!("{id:?} is wrongly on the tray of {lane_id:?}"));
                    }
                    count += 1;
                }
            }
            let is_busy = self.trays.busy.contains(&lane_id);
            if count + tray.room != if is_busy { RESTED_MAX } else { 0 } {
                return Err(format!("{count} blocks and room for {} in {lane_id:?}", tray.room));
            }
            on_trays += count as usize;
        }
        let is_routed = self.is_diverted() || self.has_plain_threads();
        let needs_care = !self.guard.is_plain() || is_routed || !self.is_idle();
        let is_open = self.guard.is_unbroken();
        if is_open && needs_care || self.trays.open_bytes > 0 && !is_open {
            return Err("the fast path is open, though something asks for care".to_owned());
        }
        if self.fallow.is_on && !is_open {
            return Err("blocks lie fallow, though something asks for care".to_owned());
        }
        let fallow = self.fallow.listed().iter();
        let fallow = fallow.filter(|&&id| self.blocks[id].state == State::Resting).count();
        if on_trays + fallow != rested {
            return Err(format!("{on_trays} are on trays, {fallow} lie fallow, {rested} rest"));
        }
        Ok(())
    }
}
