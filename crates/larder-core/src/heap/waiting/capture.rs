//! Captures: what a graph capture changes about the free of a block that several streams used. No
//! event can be recorded for it, so the free is put off, until the capture's graph shows that
//! whatever comes next comes after the last use, or until the capture is over.

use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::space::block::State;
use crate::types::{EventId, NodeId, StreamId};

impl Heap {
    /// Remembers of a use whether it was part of a capture. PyTorch forgets with the first captured
    /// use of a stream that it had others; where captures are told by the stream, a use that runs
    /// counts, whenever it was noted.
    pub(in crate::heap) fn note_captured_use(
        &mut self,
        id: BlockId,
        stream: StreamId,
        captured: bool,
    ) {
        let careful = self.policy.capture_is_by_stream();
        if captured {
            if !(careful && self.pending.uses(id).contains(&stream)) {
                self.pending.add_captured_use(id, stream);
            }
        } else if careful {
            self.pending.forget_captured_use(id, stream);
        }
    }

    /// All streams that used a block and are still there, its own first.
    pub(crate) fn streams_of(&self, id: BlockId) -> Vec<StreamId> {
        let own = self.pools.lane(self.space[id].lane).living_stream();
        own.into_iter().chain(self.pending.uses(id).iter().copied()).collect()
    }

    /// Takes back a live block that other streams use, while no event can be recorded. Whatever
    /// comes after all of `markers` in the graph of the capture may have it; with none it waits for
    /// the end of the capture.
    pub(crate) fn put_deferred(&mut self, id: BlockId, markers: Vec<NodeId>) {
        self.request_free(id);
        self.space[id].state = State::Waiting;
        self.pending.defer(id, markers);
    }

    /// The blocks whose free was put off, in the order of their frees.
    pub(crate) fn deferred(&self) -> Vec<BlockId> {
        self.pending.deferred()
    }

    /// The streams that a block whose free was put off has to wait for once the capture is over:
    /// those with work that runs.
    pub(crate) fn uses_outside_captures(&self, id: BlockId) -> Vec<StreamId> {
        self.pending.uses_outside_captures(id)
    }

    /// A deferred block waits for these events from now on; with none, it is free.
    pub(crate) fn undefer(&mut self, id: BlockId, events: &[(StreamId, EventId)]) {
        self.pending.undefer(id);
        self.space[id].used_elsewhere = false;
        if events.is_empty() {
            self.complete_free(id);
        } else {
            self.pending.wait_for(id, events);
        }
    }

    /// Whether a block of this stream may come free inside a capture.
    pub(crate) fn has_marked(&self, stream: StreamId) -> bool {
        self.marked(stream).next().is_some()
    }

    /// Frees the stream's deferred blocks whose markers have all been passed: what is captured next
    /// on the stream comes after their last use on every stream.
    pub(crate) fn reclaim_passed(&mut self, stream: StreamId, passed: impl Fn(NodeId) -> bool) {
        let free = self.marked(stream).filter(|(_, markers)| markers.iter().all(|&m| passed(m)));
        let free: Vec<BlockId> = free.map(|(id, _)| id).collect();
        for id in free {
            self.undefer(id, &[]);
        }
    }

    fn marked(&self, stream: StreamId) -> impl Iterator<Item = (BlockId, &[NodeId])> + '_ {
        let own = move |id: BlockId| self.pools.lane(self.space[id].lane).stream == stream;
        self.pending.marked().filter(move |&(id, markers)| !markers.is_empty() && own(id))
    }
}
