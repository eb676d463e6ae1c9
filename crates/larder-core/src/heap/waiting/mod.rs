//! What is still awaited: the streams that used a block besides its own, and the events that
//! must be done before a freed block may be used again.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::error::Unsound;
use crate::heap::ids::BlockId;
use crate::types::{EventId, NodeId, StreamId};

/// Uses by other streams, and events awaited per stream.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct Waiting {
    /// For live blocks: the other streams that used them, each once, in the order they came.
    uses: HashMap<BlockId, Vec<StreamId>>,
    /// For waiting blocks: how many of their events are not done.
    waits: HashMap<BlockId, u32>,
    /// Per stream, the events in the order they were recorded. Only the first of a stream is ever
    /// asked: those behind it cannot be done before it. No queue is empty.
    queues: BTreeMap<StreamId, VecDeque<(EventId, BlockId)>>,
    /// How many events are in the queues.
    events: usize,
    /// Waiting blocks for which no event could be recorded yet, because a capture was on, in the
    /// order of their frees. They keep their uses.
    put_off: Vec<PutOff>,
    /// Of the uses, those that were noted while a capture was on: work of the capture itself,
    /// which has not run and is not waited for.
    captured: HashMap<BlockId, Vec<StreamId>>,
}

/// A block that was freed while a capture was on.
#[derive(Clone, Debug)]
struct PutOff {
    block: BlockId,
    /// The last nodes that may use it, in the graph of the capture. Whatever comes after all of
    /// them may have it. With none it waits for the end of the capture.
    markers: Vec<NodeId>,
}

impl Waiting {
    /// Notes that a live block is used on another stream, by work that is `captured` or that runs.
    ///
    /// PyTorch forgets with the first captured use of a stream that it had others; where captures
    /// are told by the stream, a use that runs counts, whenever it was noted.
    pub(in crate::heap) fn note_use(
        &mut self,
        block: BlockId,
        stream: StreamId,
        captured: bool,
        is_by_stream: bool,
    ) {
        debug_assert!(!self.waits.contains_key(&block), "{block:?} waits, and is used");
        if captured {
            if !(is_by_stream && self.uses(block).contains(&stream)) {
                self.add_captured_use(block, stream);
            }
        } else if is_by_stream {
            self.forget_captured_use(block, stream);
        }
        self.add_use(block, stream);
    }

    fn add_use(&mut self, block: BlockId, stream: StreamId) {
        let streams = self.uses.entry(block).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// The other streams that used the block.
    pub(in crate::heap) fn uses(&self, block: BlockId) -> &[StreamId] {
        self.uses.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Notes that a use was part of a capture.
    fn add_captured_use(&mut self, block: BlockId, stream: StreamId) {
        self.captured.entry(block).or_default().push(stream);
    }

    /// Notes that a use was not, or not only, part of a capture.
    fn forget_captured_use(&mut self, block: BlockId, stream: StreamId) {
        if let Some(streams) = self.captured.get_mut(&block) {
            streams.retain(|&other| other != stream);
        }
    }

    /// All work of the stream is done and no more will come: nobody waits for it. Names the blocks
    /// that no other stream uses now.
    pub(in crate::heap) fn forget_uses(&mut self, stream: StreamId) -> Vec<BlockId> {
        let mut unused = Vec::new();
        for (&block, streams) in &mut self.uses {
            streams.retain(|&other| other != stream);
            if streams.is_empty() {
                unused.push(block);
            }
        }
        for streams in self.captured.values_mut() {
            streams.retain(|&other| other != stream);
        }
        for block in &unused {
            self.uses.remove(block);
            self.captured.remove(block);
        }
        debug_assert!(!self.uses.values().any(|streams| streams.contains(&stream)));
        unused
    }

    /// The block was freed while a capture was on; its last uses there end in these nodes.
    pub(in crate::heap) fn put_off_free(&mut self, block: BlockId, markers: Vec<NodeId>) {
        assert!(!self.waits.contains_key(&block), "{block:?} waits for events already");
        self.put_off.push(PutOff { block, markers });
    }

    /// Deferred blocks with the nodes that their last uses end in; none where they wait for the end
    /// of the capture.
    pub(in crate::heap) fn marked(&self) -> impl Iterator<Item = (BlockId, &[NodeId])> + '_ {
        self.put_off.iter().map(|one| (one.block, one.markers.as_slice()))
    }

    /// The streams that a block put off has to wait for: those that used it outside captures.
    pub(in crate::heap) fn uses_outside_captures(&self, block: BlockId) -> Vec<StreamId> {
        let captured = self.captured.get(&block).map_or(&[][..], Vec::as_slice);
        self.uses(block).iter().copied().filter(|stream| !captured.contains(stream)).collect()
    }

    /// The block is no longer put off, and its uses are forgotten.
    pub(in crate::heap) fn forget(&mut self, block: BlockId) {
        self.put_off.retain(|one| one.block != block);
        self.uses.remove(&block);
        self.captured.remove(&block);
    }

    /// Deferred blocks, in the order of their frees.
    pub(in crate::heap) fn put_off(&self) -> Vec<BlockId> {
        self.put_off.iter().map(|one| one.block).collect()
    }

    /// The block was freed, and an event recorded on each stream that used it.
    pub(in crate::heap) fn wait_for(&mut self, block: BlockId, events: &[(StreamId, EventId)]) {
        assert!(!events.is_empty(), "{block:?} waits for nothing");
        self.uses.remove(&block);
        self.captured.remove(&block);
        self.waits.insert(block, events.len() as u32);
        for &(stream, event) in events {
            self.queues.entry(stream).or_default().push_back((event, block));
        }
        self.events += events.len();
    }

    /// Whether no event is awaited and no free put off.
    #[inline]
    pub(in crate::heap) fn is_idle(&self) -> bool {
        self.events == 0 && self.put_off.is_empty()
    }

    /// The first stream from `from` on that has events, and the one it will have done next.
    pub(in crate::heap) fn front_from(&self, from: StreamId) -> Option<(StreamId, EventId)> {
        let (&stream, queue) = self.queues.range(from..).next()?;
        queue.front().map(|&(event, _)| (stream, event))
    }

    /// The first event, over all streams, that belongs to a block of this kind: its stream and its
    /// place in the stream's queue.
    pub(in crate::heap) fn find(
        &self,
        belongs: impl Fn(BlockId) -> bool,
    ) -> Option<(StreamId, usize, EventId)> {
        self.queues.iter().find_map(|(&stream, queue)| {
            let at = queue.iter().position(|&(_, block)| belongs(block))?;
            Some((stream, at, queue[at].0))
        })
    }

    /// The stream's event at this place is done. Says which it is, and names the block if that was
    /// the last one it waited for.
    pub(in crate::heap) fn remove(
        &mut self,
        stream: StreamId,
        at: usize,
    ) -> Option<(EventId, Option<BlockId>)> {
        let queue = self.queues.get_mut(&stream)?;
        let (event, block) = queue.remove(at)?;
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        self.events -= 1;
        let left = self.waits.get_mut(&block).expect("a waiting block");
        *left -= 1;
        if *left > 0 {
            return Some((event, None));
        }
        self.waits.remove(&block);
        Some((event, Some(block)))
    }

    /// Blocks with uses, for the check.
    pub(in crate::heap) fn used_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.uses.keys().copied()
    }

    /// Waiting blocks with the number of their events, for the check.
    pub(in crate::heap) fn waiting_blocks(&self) -> impl Iterator<Item = (BlockId, u32)> + '_ {
        self.waits.iter().map(|(&block, &events)| (block, events))
    }

    /// Each event is awaited once, and each block as often as it has events; none is put off twice.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        let mut put_off = HashSet::new();
        if let Some(twice) = self.put_off.iter().find(|one| !put_off.insert(one.block)) {
            return Err(format!("the free of {:?} is put off twice", twice.block).into());
        }
        let (mut events, mut events_of) = (HashSet::new(), HashMap::new());
        for &(event, block) in self.queues.values().flatten() {
            *events_of.entry(block).or_insert(0) += 1;
            if !events.insert(event) {
                return Err(format!("{event:?} is awaited twice").into());
            }
        }
        if events.len() != self.events || self.queues.values().any(VecDeque::is_empty) {
            return Err("awaited events are miscounted".into());
        }
        if events_of != self.waits {
            return Err("a block miscounts its events".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_free_when_the_last_of_its_events_is_done() {
        let mut pending = Waiting::default();
        let block = BlockId::from_index(3).unwrap();
        pending.add_use(block, StreamId(1));
        pending.add_use(block, StreamId(2));
        pending.add_use(block, StreamId(1));
        assert_eq!(pending.uses(block), [StreamId(1), StreamId(2)]);
        pending.wait_for(block, &[(StreamId(1), EventId(10)), (StreamId(2), EventId(11))]);
        assert_eq!(pending.uses(block), []);
        assert_eq!(pending.front_from(StreamId(2)), Some((StreamId(2), EventId(11))));
        assert_eq!(pending.remove(StreamId(2), 0), Some((EventId(11), None)));
        assert_eq!(pending.remove(StreamId(2), 0), None);
        assert_eq!(pending.remove(StreamId(1), 0), Some((EventId(10), Some(block))));
        assert!(pending.is_idle());
    }
}
