//! Records: each goes to the statistics and, while somebody listens, on to the history,
//! with what the heap alone knows of it: stream, pool, and whose context belongs to it.

use crate::heap::Want;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::space::block::{Block, State};
use crate::policy::Policy;
use crate::record::Record;
use crate::record::event::{Action, Level};
use crate::record::history::{Fact, Owner};
use crate::types::{PoolId, Span, StreamId};

impl Inventory {
    /// States a fact about a block: to the statistics, and to the history if it listens.
    // Always inlined, as the counting is: what is not told is then never put together.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn record_of(&mut self, id: BlockId, record: Record) {
        self.recorder.record(record);
        if self.recorder.is_listening() {
            self.tell(id, &record);
        }
    }

    /// Tells the history. It is called before a freed block merges with its neighbours, and after
    /// a block that is handed out was split.
    #[inline(never)]
    pub(in crate::heap) fn tell(&mut self, id: BlockId, record: &Record) {
        let (stream, pool) = self.side_of(self.space[id].lane);
        let Some(history) = self.recorder.listener() else { return };
        let fact = |action, addr, size_bytes| Fact { action, addr, size_bytes, stream, pool };
        match *record {
            Record::Alloc { place, requested_bytes, .. } => {
                history.tell(&fact(Action::Alloc, place.addr.0, requested_bytes), None);
                if history.has_context() || !history.has_no_owners() {
                    history.own(Owner::Block(place.addr.0));
                    self.hand_out_context(id);
                }
            }
            Record::Free { place, requested_bytes, .. } => {
                let addr = place.addr.0;
                let owner = Some(Owner::Block(addr));
                history.tell(&fact(Action::FreeRequested, addr, requested_bytes), owner);
                history.tell(&fact(Action::FreeCompleted, addr, requested_bytes), owner);
                self.take_back_context(id);
            }
            Record::FreeRequested { place, requested_bytes, .. } => {
                let owner = Some(Owner::Block(place.addr.0));
                history.tell(&fact(Action::FreeRequested, place.addr.0, requested_bytes), owner);
            }
            Record::FreeCompleted { place, requested_bytes } => {
                let owner = Some(Owner::Block(place.addr.0));
                history.tell(&fact(Action::FreeCompleted, place.addr.0, requested_bytes), owner);
                self.take_back_context(id);
            }
            Record::SegmentAlloc { place, .. } => {
                history.tell(&fact(Action::SegmentAlloc, place.addr.0, place.size_bytes), None);
                if owns_segment(self.rules.policy(), history.level()) {
                    history.own(Owner::Segment(place.addr.0));
                }
            }
            Record::SegmentFree { place, .. } => {
                let owner = Owner::Segment(place.addr.0);
                let told = fact(Action::SegmentFree, place.addr.0, place.size_bytes);
                history.tell(&told, Some(owner));
                history.disown(owner);
            }
            Record::SegmentMap { place } => {
                history.tell(&fact(Action::SegmentMap, place.addr.0, place.size_bytes), None);
                self.own_grown_segment(id);
            }
            Record::SegmentUnmap { place } => {
                let owner = self.segment_owner(id);
                let told = fact(Action::SegmentUnmap, place.addr.0, place.size_bytes);
                if let Some(history) = self.recorder.listener() {
                    history.tell(&told, Some(owner));
                }
            }
            Record::InactiveSplit { .. }
            | Record::FewerPieces { .. }
            | Record::Shown
            | Record::Hidden
            | Record::Retry
            | Record::SyncAllStreams
            | Record::OutOfMemory
            | Record::Rejected => {}
        }
    }

    /// Trackers hear of pages that a view shows or hides as of any others that are mapped: whoever
    /// makes memory known to a library does so by its addresses. The history does not, since no
    /// memory comes or goes.
    pub(in crate::heap) fn tell_of_view(&self, view: SegmentId, action: Action, span: Span) {
        let (stream, pool) = self.side_of(self.space[view].lane());
        let Span { addr, size_bytes } = span;
        if let Some(history) = self.recorder.history() {
            history.tell_trackers(&Fact { action, addr: addr.0, size_bytes, stream, pool }, None);
        }
    }

    /// A request could not be met, while the device had so much free memory.
    pub(crate) fn record_out_of_memory(&mut self, want: &Want, free_bytes: u64) {
        self.recorder.record(Record::OutOfMemory);
        let (stream, pool) =
            (want.stream, self.pools.pool(want.pool).owner().unwrap_or(PoolId::NONE));
        let (action, size_bytes) = (Action::OutOfMemory, want.size_bytes);
        let fact = Fact { action, addr: free_bytes, size_bytes, stream, pool };
        if let Some(history) = self.recorder.listener() {
            history.tell(&fact, None);
        }
    }

    /// A snapshot was taken, of one pool or of everything.
    pub(crate) fn record_snapshot(&mut self, active_bytes: u64, pool: PoolId) {
        let stream = StreamId(0);
        let fact =
            Fact { action: Action::Snapshot, addr: 0, size_bytes: active_bytes, stream, pool };
        if let Some(history) = self.recorder.listener() {
            let scene = history.suspend();
            history.tell_without_context(&fact, &scene);
            history.resume(scene);
        }
    }

    /// A program said something about a live block.
    pub(crate) fn record_remark(&mut self, id: BlockId, remark: &str) {
        let (stream, pool) = self.side_of(self.space[id].lane);
        let Block { addr, requested_bytes, .. } = self.space[id];
        let action = Action::Annotate;
        let fact = Fact { action, addr: addr.0, size_bytes: requested_bytes, stream, pool };
        if let Some(history) = self.recorder.listener() {
            history.tell_with(&fact, |note| note.user_metadata = remark.into());
        }
    }

    /// Does something of which the history says what it is part of.
    pub(in crate::heap) fn tell_as<T>(
        &mut self,
        doing: &str,
        act: impl FnOnce(&mut Inventory) -> T,
    ) -> T {
        let said = self
            .recorder
            .listener()
            .map(|history| history.say(|note| note.internal_metadata = doing.into()));
        let result = act(self);
        if let (Some(history), Some(said)) = (self.recorder.listener(), said) {
            history.unsay(said);
        }
        result
    }

    /// Where the context of a block's segment is kept. PyTorch keeps it with a block, which takes
    /// it along through splits and merges, until it is lost; we keep it with the segment, unless
    /// the contexts of what is allocated are all that is wanted.
    pub(in crate::heap) fn segment_owner(&self, id: BlockId) -> Owner {
        let block = &self.space[id];
        if self.rules.policy().segment_context_stays {
            Owner::Segment(self.space[block.segment].span().addr.0)
        } else {
            Owner::Segment(block.addr.0)
        }
    }

    /// A block was handed out. If it was split off, the rest keeps what PyTorch's block had: a
    /// free block behind it can be nothing but that rest.
    fn hand_out_context(&mut self, id: BlockId) {
        let block = &self.space[id];
        let rest = block.next.filter(|&next| self.space[next].state == State::Free);
        if let Some(rest) = rest
            && !self.rules.policy().segment_context_stays
        {
            let (from, to) = (Owner::Segment(block.addr.0), self.segment_owner(rest));
            if let Some(history) = self.recorder.listener() {
                history.hand_over(from, to);
            }
        }
    }

    /// A block is free, and about to merge: it lets go of who allocated it.
    fn take_back_context(&mut self, id: BlockId) {
        let owner = Owner::Block(self.space[id].addr.0);
        let Some(history) = self.recorder.listener() else { return };
        if !history.has_no_owners() {
            history.disown(owner);
            self.merge_contexts(id, State::Free);
        }
    }

    /// A block is about to merge with its neighbours in `state`: of what they know of their segment
    /// only the lowest one's stays.
    pub(in crate::heap) fn merge_contexts(&mut self, id: BlockId, state: State) {
        if self.rules.policy().segment_context_stays || !self.recorder.is_listening() {
            return;
        }
        let block = &self.space[id];
        let merges = |other: &BlockId| self.space[*other].state == state;
        let lost_own = block.prev.as_ref().is_some_and(merges).then_some(id);
        let lost_next = block.next.filter(merges);
        let lost: Vec<Owner> =
            lost_own.into_iter().chain(lost_next).map(|id| self.segment_owner(id)).collect();
        if let Some(history) = self.recorder.listener() {
            for owner in lost {
                history.disown(owner);
            }
        }
    }

    /// Pages are about to be unmapped from the middle of a free block: PyTorch's block becomes the
    /// unmapped part and keeps what it knows.
    pub(in crate::heap) fn unmap_context(&mut self, block_addr: u64, unmapped_addr: u64) {
        if block_addr != unmapped_addr
            && !self.rules.policy().segment_context_stays
            && let Some(history) = self.recorder.listener()
        {
            history.hand_over(Owner::Segment(block_addr), Owner::Segment(unmapped_addr));
        }
    }

    /// The first part of an expandable segment was mapped: whoever asked for it made the segment.
    fn own_grown_segment(&mut self, id: BlockId) {
        let owner = self.segment_owner(id);
        let stays = self.rules.policy().segment_context_stays;
        let is_first = self.space[id].prev.is_none() || stays;
        if let Some(history) = self.recorder.listener()
            && is_first
            && owns_segment(self.rules.policy(), history.level())
            && history.context_of(owner).is_none()
        {
            history.own(owner);
        }
    }

    /// A segment's addresses went back, and with them what was known of it.
    pub(in crate::heap) fn forget_segment_context(&mut self, id: BlockId) {
        let owner = self.segment_owner(id);
        if let Some(history) = self.recorder.listener() {
            history.disown(owner);
        }
    }
}

/// Whether a segment keeps the context of the call that made it grow. Where contexts stay with
/// segments that is only so if more is wanted than the contexts of what is allocated.
fn owns_segment(policy: &Policy, level: Level) -> bool {
    !policy.segment_context_stays || level >= Level::Alloc
}
