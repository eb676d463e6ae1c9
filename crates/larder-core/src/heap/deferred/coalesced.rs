//! Coalesced: for whoever looks the heap is shown as it will be once all is coalesced, and nothing
//! is coalesced for it.

use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::space::block::State;
use crate::record::stats::Stats;
use crate::types::Span;

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

impl Heap {
    /// All statistics.
    pub fn stats(&mut self) -> Stats {
        let mut stats = self.herald.stats();
        if self.policy.merges_late {
            self.see_pieces();
            self.deferred.seen.show(&mut stats);
        }
        stats
    }

    /// Peaks become the current values.
    pub(crate) fn reset_peaks(&mut self) {
        self.see_pieces();
        self.deferred.seen.reset_peaks(self.herald.pieces());
        self.herald.reset_peak();
        self.reset_pool_peaks();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub(crate) fn reset_sums(&mut self) {
        self.see_pieces();
        self.deferred.seen.reset_sums();
        self.herald.reset_accumulated();
        self.reset_pool_sums();
    }

    /// Looks how many pieces there are once what is deferred is coalesced.
    pub(in crate::heap) fn see_pieces(&mut self) {
        let [mut blocks, mut bytes] = self.herald.pieces();
        let fixed = self.deferred_blocks().filter(|&id| !self.space[id].expandable);
        for whole in fixed.filter_map(|id| self.coalesced_whole(id)) {
            let whole_bytes = if whole.is_split { whole.size_bytes } else { 0 };
            blocks[0] += i64::from(whole.is_split) - whole.shelved_blocks;
            bytes[0] += whole_bytes as i64 - whole.shelved_bytes as i64;
        }
        self.deferred.seen.see([blocks, bytes]);
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
            let is_told = matches!(state, State::Live | State::Waiting) || self.policy.is_stock();
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
        self.deferred_blocks().filter_map(|id| self.coalesced_whole(id))
    }

    /// The blocks whose frees are deferred.
    fn deferred_blocks(&self) -> impl Iterator<Item = BlockId> {
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

    /// What is deferred is listed, and found by its size if it was deferred so; and while frees
    /// are, nothing special is on. `deferred` is how many blocks there are.
    pub(in crate::heap) fn check_deferred(&self, deferred: usize) -> Result<(), String> {
        self.deferred.check()?;
        for (id, lane) in self.pools.lanes() {
            if let Some(stacks) = lane.by_size.as_deref() {
                self.check_by_size(id, stacks)?;
            }
        }
        let is_routed = self.is_diverted() || self.has_plain_threads();
        let is_special = !self.guard.is_plain() || is_routed || !self.is_idle();
        let is_unbroken = self.guard.is_unbroken();
        if is_unbroken && is_special {
            return Err("the fast path is open, though something special is on".to_owned());
        }
        if !is_unbroken && (deferred > 0 || self.deferred.is_in_place()) {
            return Err(format!("{deferred} frees are deferred, though the fast path is closed"));
        }
        let listed = self.deferred_blocks().count();
        if listed != deferred {
            return Err(format!("{deferred} frees are deferred, of which {listed} are listed"));
        }
        Ok(())
    }
}
