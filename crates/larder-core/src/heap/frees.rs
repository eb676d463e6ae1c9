//! Frees, and what other streams and captures change about them.
//!
//! A block that other streams used waits until the events are done that were recorded on them. In a
//! capture no event can be recorded, so that the free is put off, until the capture's graph shows
//! that whatever comes next comes after the last use, or until the capture is over.

use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::pools::lane::Lane;
use crate::heap::space::block::State;
use crate::types::{EventId, NodeId, PoolId, StreamId};

impl Heap {
    /// The streams besides its own that used a live block. While there are any it can be put back
    /// only by way of events.
    #[inline]
    pub(crate) fn uses(&self, id: BlockId) -> &[StreamId] {
        if self.space()[id].used_elsewhere { self.waiting.uses(id) } else { &[] }
    }

    /// Notes that a live block is used on a stream, by work that is `captured` or that runs. Its
    /// own stream needs no note.
    pub(crate) fn note_use(&mut self, id: BlockId, stream: StreamId, captured: bool) {
        let block = &self.space()[id];
        assert!(block.state == State::Live, "{id:?} is used and is not live");
        // A stream that has the handle of one that is gone is another one.
        if self.pools().lane(block.lane).living_stream() != Some(stream) {
            self.inventory.space_mut()[id].used_elsewhere = true;
            let is_by_stream = self.policy().capture_is_by_stream();
            self.waiting.note_use(id, stream, captured, is_by_stream);
        }
    }

    /// Puts back a live block that no other stream uses.
    pub(crate) fn put(&mut self, id: BlockId) {
        debug_assert!(self.uses(id).is_empty(), "{id:?} is used by others");
        self.inventory.record_free(id);
        self.placement.reclaim(&mut self.inventory, id);
    }

    /// Puts back a live block of a symmetric pool: the default stream comes after all its uses.
    pub(crate) fn put_symmetric(&mut self, pool: PoolId, id: BlockId) {
        self.inventory.note_symmetric_free(pool, id);
        self.waiting.forget(id);
        self.put(id);
    }

    /// Takes back a live block that other streams use; it is free once these events are done.
    pub(crate) fn put_after(&mut self, id: BlockId, events: &[(StreamId, EventId)]) {
        self.expect_settled();
        self.inventory.record_free_requested(id);
        let block = &mut self.inventory.space_mut()[id];
        block.state = State::Waiting;
        block.used_elsewhere = false;
        self.waiting.wait_for(id, events);
    }

    /// Whether nothing is awaited.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_idle()
    }

    /// The first stream from `from` on with an awaited event, and that event.
    pub(crate) fn awaited_from(&self, from: StreamId) -> Option<(StreamId, EventId)> {
        self.waiting.front_from(from)
    }

    /// The first event that a block of this private pool waits for, with its stream and its place
    /// among the stream's events.
    pub(crate) fn awaited_of(&self, pool: PoolId) -> Option<(StreamId, usize, EventId)> {
        let owner = |block: BlockId| {
            self.pools().pool(self.pools().lane(self.space()[block].lane).pool()).owner()
        };
        self.waiting.find(|block| owner(block) == Some(pool))
    }

    /// The event at this place among those of the stream is done; gives it back. A block that
    /// waited for nothing else becomes free.
    pub(crate) fn event_done(&mut self, stream: StreamId, at: usize) -> Option<EventId> {
        self.expect_settled();
        let (event, block) = self.waiting.remove(stream, at)?;
        if let Some(block) = block {
            self.complete_free(block);
        }
        Some(event)
    }

    /// The stream is gone, and its work was waited for: whatever waited for it alone is free, and
    /// what was handed out on it goes back to the device once it is free. Gives back the events
    /// that were recorded on it.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) -> Vec<EventId> {
        self.settle();
        let mut events = Vec::new();
        while let Some((first, _)) = self.waiting.front_from(stream)
            && first == stream
        {
            events.extend(self.event_done(stream, 0));
        }
        for block in self.waiting.forget_uses(stream) {
            // One whose free was put off is not live any more, and only what is live asks for care.
            let is_live = self.space()[block].state == State::Live;
            let is_told = self.space().is_in_view(block) || self.inventory.is_symmetric(block);
            self.inventory.space_mut()[block].used_elsewhere = is_live && is_told;
        }
        self.inventory.rules_mut().reserves_mut().forget(stream);
        self.inventory.pools_mut().retire(stream);
        self.inventory.remove_lanes(Lane::is_gone);
        self.placement.forget_lanes(self.inventory.pools());
        events
    }

    /// A block that waited is awaited by nobody any more.
    fn complete_free(&mut self, id: BlockId) {
        self.inventory.record_free_completed(id);
        self.placement.reclaim(&mut self.inventory, id);
    }

    /// All streams that used a block and are still there, its own first.
    pub(crate) fn streams_of(&self, id: BlockId) -> Vec<StreamId> {
        let own = self.pools().lane(self.space()[id].lane).living_stream();
        own.into_iter().chain(self.waiting.uses(id).iter().copied()).collect()
    }

    /// Takes back a live block that other streams use, while no event can be recorded. Whatever
    /// comes after all of `markers` in the graph of the capture may have it; with none it waits for
    /// the end of the capture.
    pub(crate) fn put_off(&mut self, id: BlockId, markers: Vec<NodeId>) {
        self.expect_settled();
        self.inventory.record_free_requested(id);
        self.inventory.space_mut()[id].state = State::Waiting;
        self.waiting.put_off_free(id, markers);
    }

    /// The blocks whose free was put off, in the order of their frees.
    pub(crate) fn all_put_off(&self) -> Vec<BlockId> {
        self.waiting.put_off()
    }

    /// The streams that a block whose free was put off has to wait for once the capture is over:
    /// those with work that runs.
    pub(crate) fn uses_outside_captures(&self, id: BlockId) -> Vec<StreamId> {
        self.waiting.uses_outside_captures(id)
    }

    /// A block whose free was put off waits for these events from now on; with none, it is free.
    pub(crate) fn await_put_off(&mut self, id: BlockId, events: &[(StreamId, EventId)]) {
        self.waiting.forget(id);
        self.inventory.space_mut()[id].used_elsewhere = false;
        if events.is_empty() {
            self.complete_free(id);
        } else {
            self.waiting.wait_for(id, events);
        }
    }

    /// Whether a block of this stream may come free inside a capture.
    pub(crate) fn has_marked(&self, stream: StreamId) -> bool {
        self.marked(stream).next().is_some()
    }

    /// Frees the stream's blocks that were put off and whose markers have all been passed: what is
    /// captured next on the stream comes after their last use on every stream.
    pub(crate) fn reclaim_passed(&mut self, stream: StreamId, passed: impl Fn(NodeId) -> bool) {
        let free = self.marked(stream).filter(|(_, markers)| markers.iter().all(|&m| passed(m)));
        let free: Vec<BlockId> = free.map(|(id, _)| id).collect();
        for id in free {
            self.await_put_off(id, &[]);
        }
    }

    fn marked(&self, stream: StreamId) -> impl Iterator<Item = (BlockId, &[NodeId])> + '_ {
        let own = move |id: BlockId| self.pools().lane(self.space()[id].lane).stream() == stream;
        self.waiting.marked().filter(move |&(id, markers)| !markers.is_empty() && own(id))
    }
}
