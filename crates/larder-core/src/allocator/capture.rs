//! Graph capture: what it changes about a malloc, a free and the note of a use, and the walk over
//! the graph that shows which freed blocks may be used again before the capture is over.

use std::collections::{HashMap, HashSet};
use std::thread;

use crate::allocator::Shelf;
use crate::device::Device;
use crate::error::Error;
use crate::heap::Want;
use crate::heap::block::BlockId;
use crate::heap::private::Caller;
use crate::types::{CaptureId, NodeId, StreamId};

/// How far the graphs of running captures were walked: for each stream the nodes that its next work
/// comes after. They only ever become more, so no node is walked twice.
#[derive(Default)]
pub(super) struct Walks {
    passed: HashMap<(CaptureId, StreamId), HashSet<NodeId>>,
}

fn capture_of(device: &dyn Device, stream: StreamId) -> Result<Option<CaptureId>, Error> {
    device.capture_of(stream).map_err(Error::device("tell whether a stream is captured"))
}

fn capture_ends(device: &dyn Device, stream: StreamId) -> Result<Vec<NodeId>, Error> {
    device.capture_ends(stream).map_err(Error::device("tell what was captured last"))
}

impl Shelf {
    /// Whether what is done for a stream is done inside a capture: no event may be asked for then,
    /// and nothing waited for. Outside of all scopes there is none.
    pub(super) fn is_captured(&self, device: &dyn Device, stream: StreamId) -> Result<bool, Error> {
        let diverted = self.heap.is_diverted();
        if diverted && self.heap.policy().capture_is_by_stream {
            return Ok(capture_of(device, stream)?.is_some());
        }
        Ok(diverted)
    }

    /// Whether the device says that the stream is captured, whatever follows from it. It is not
    /// asked outside of all scopes.
    pub(super) fn is_under_capture(
        &self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<bool, Error> {
        Ok(self.heap.is_diverted() && capture_of(device, stream)?.is_some())
    }

    /// Whether a capture is on anywhere. Outside of all scopes there is none.
    pub(super) fn is_any_captured(&self, device: &dyn Device) -> Result<bool, Error> {
        let diverted = self.heap.is_diverted();
        if !diverted || !self.heap.policy().capture_is_by_stream {
            return Ok(diverted);
        }
        for stream in self.heap.known_streams() {
            if capture_of(device, stream)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a malloc does first while scopes are open: it takes back what has become free, as far
    /// as it may ask, and routes the request.
    #[cold]
    pub(super) fn want_diverted(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Want, Error> {
        if !self.heap.is_idle() {
            if !self.is_captured(device, stream)? {
                self.poll_events(device)?;
            } else if self.heap.config().capture_reuse {
                self.reclaim_in_capture(device, stream)?;
            }
        }
        let mut captured_with = self.heap.capture_origins();
        if !captured_with.is_empty() {
            let own = capture_of(device, stream)?;
            let mut together = Vec::new();
            for origin in captured_with {
                if own.is_some() && (origin == stream || capture_of(device, origin)? == own) {
                    together.push(origin);
                }
            }
            captured_with = together;
        }
        let thread = thread::current().id();
        let functions = &self.functions;
        let takes = |pool| functions.get(&pool).is_some_and(|takes| takes(stream));
        let caller = Caller { stream, thread, captured_with: &captured_with, takes: &takes };
        Ok(self.heap.want_routed(size_bytes, &caller))
    }

    /// Frees the stream's blocks whose last uses all come before whatever is captured next on it.
    fn reclaim_in_capture(&mut self, device: &dyn Device, stream: StreamId) -> Result<(), Error> {
        if !self.heap.has_marked(stream) {
            return Ok(());
        }
        let Some(capture) = capture_of(device, stream)? else { return Ok(()) };
        let passed = self.walks.passed.entry((capture, stream)).or_default();
        let (mut found, mut left) = (HashSet::new(), capture_ends(device, stream)?);
        while let Some(node) = left.pop() {
            if passed.contains(&node) || !found.insert(node) {
                continue;
            }
            let before = device.node_dependencies(node);
            left.extend(before.map_err(Error::device("tell what a captured node depends on"))?);
        }
        passed.extend(found);
        self.heap.reclaim_passed(stream, |node| passed.contains(&node));
        Ok(())
    }

    /// Frees a block that other streams used while scopes are open. If its streams are captured no
    /// event can be recorded, and the free is put off. If the device refuses to tell, the block
    /// stays live.
    #[cold]
    pub(super) fn free_diverted(
        &mut self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<(), Error> {
        match self.plan_deferral(device, block)? {
            Some(markers) => {
                self.heap.put_deferred(block, markers);
                Ok(())
            }
            None => self.free_after_events(device, block),
        }
    }

    /// Whether the free of a block has to be put off, and until what was captured.
    pub(super) fn plan_deferral(
        &self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<Option<Vec<NodeId>>, Error> {
        if !self.heap.is_diverted() {
            return Ok(None);
        }
        let (policy, reuse) = (self.heap.policy(), self.heap.config().capture_reuse);
        if !policy.capture_is_by_stream && !reuse {
            return Ok(Some(Vec::new()));
        }
        let streams = self.heap.streams_of(block);
        let mut captures = Vec::with_capacity(streams.len());
        for &stream in &streams {
            captures.push(capture_of(device, stream)?);
        }
        if policy.capture_is_by_stream && captures.iter().all(Option::is_none) {
            return Ok(None);
        }
        let together = captures[0].is_some() && captures.iter().all(|&id| id == captures[0]);
        // What runs is not in the graph, so that the graph cannot show its end.
        let runs =
            policy.capture_is_by_stream && !self.heap.uses_outside_captures(block).is_empty();
        let mut markers = Vec::new();
        if reuse && together && !runs {
            for stream in streams {
                markers.extend(capture_ends(device, stream)?);
            }
            markers.sort_unstable();
            markers.dedup();
        }
        Ok(Some(markers))
    }

    /// Records the events of blocks whose free was put off by a capture, if they no longer have to
    /// be put off. Work of the capture itself is not waited for: it has not run.
    pub(super) fn record_deferred(&mut self, device: &dyn Device) -> Result<(), Error> {
        for block in self.heap.deferred() {
            if self.heap.policy().capture_is_by_stream {
                let mut captured = false;
                for stream in self.heap.streams_of(block) {
                    captured |= capture_of(device, stream)?.is_some();
                }
                if captured {
                    continue;
                }
            }
            let streams = self.heap.uses_outside_captures(block);
            let events = self.record_events(device, &streams)?;
            self.heap.undefer(block, &events);
        }
        Ok(())
    }

    /// A scope was closed. What its capture put off may come back now; what cannot be asked for is
    /// tried again by the next malloc.
    pub(super) fn scope_closed(&mut self, device: &dyn Device) {
        if !self.heap.is_diverted() {
            self.walks.passed.clear();
        }
        if self.heap.policy().reclaim_at_scope_end {
            let _ = self.record_deferred(device);
        }
    }
}
