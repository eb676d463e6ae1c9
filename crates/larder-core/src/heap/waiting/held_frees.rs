//! Waiting: blocks that are freed but still awaited on other streams, until their events are done.

use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::space::block::State;
use crate::record::Record;
use crate::types::{EventId, PoolId, StreamId};

impl Heap {
    /// Takes back a live block that other streams use; it is free once these events are done.
    pub(crate) fn put_after(&mut self, id: BlockId, events: &[(StreamId, EventId)]) {
        self.request_free(id);
        let block = &mut self.space[id];
        block.state = State::Waiting;
        block.used_elsewhere = false;
        self.pending.wait_for(id, events);
    }

    /// Whether nothing is awaited.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_idle()
    }

    /// The first stream from `from` on with an awaited event, and that event.
    pub(crate) fn awaited_from(&self, from: StreamId) -> Option<(StreamId, EventId)> {
        self.pending.front_from(from)
    }

    /// The first event that a block of this private pool waits for, with its stream and its place
    /// among the stream's events.
    pub(crate) fn awaited_of(&self, pool: PoolId) -> Option<(StreamId, usize, EventId)> {
        let owner =
            |block: BlockId| self.pools.pool(self.pools.lane(self.space[block].lane).pool).owner;
        self.pending.find(|block| owner(block) == Some(pool))
    }

    /// The event at this place among those of the stream is done; gives it back. A block that
    /// waited for nothing else becomes free.
    pub(crate) fn event_done(&mut self, stream: StreamId, at: usize) -> Option<EventId> {
        let (event, block) = self.pending.remove(stream, at)?;
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
        while let Some((first, _)) = self.pending.front_from(stream)
            && first == stream
        {
            events.extend(self.event_done(stream, 0));
        }
        for block in self.pending.forget_uses(stream) {
            // One whose free was put off is not live any more, and only what is live asks for care.
            let is_live = self.space[block].state == State::Live;
            let is_told = self.space.is_in_view(block) || self.is_symmetric(block);
            self.space[block].used_elsewhere = is_live && is_told;
        }
        self.forget_reserve(stream);
        self.pools.retire(stream);
        self.forget_gone_streams();
        events
    }

    pub(in crate::heap) fn request_free(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        let oversize = self.counts_as_oversize(id);
        self.record_of(id, Record::FreeRequested { place, requested_bytes, oversize });
    }

    pub(in crate::heap) fn complete_free(&mut self, id: BlockId) {
        let (place, requested_bytes) = self.facts(id);
        self.record_of(id, Record::FreeCompleted { place, requested_bytes });
        self.reclaim(id);
    }
}
