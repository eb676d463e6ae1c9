//! Graph capture: what it changes about a malloc, a free and the note of a use, and the walk over
//! the graph that shows which freed blocks may be used again before the capture is over.
//!
//! What programs say of captures is in `declared.rs`; what they leave unsaid is inferred in
//! `inferred/`, and so is the rule by which the device may be asked about a stream.

use std::collections::{HashMap, HashSet};
use std::thread;

use crate::allocator::Inner;
use crate::device::Device;
use crate::error::Error;
use crate::heap::ids::BlockId;
use crate::heap::pools::private::Caller;
use crate::heap::{Filter, Want};
use crate::policy::{CaptureRule, ReclaimRule};
use crate::record::history::History;
use crate::types::{Addr, CaptureId, NodeId, PoolId, StreamId};

/// How far the graphs of running captures were walked: for each stream the nodes that its next work
/// comes after. They only ever become more, so no node is walked twice.
#[derive(Default)]
pub(super) struct Walks {
    passed: HashMap<(CaptureId, StreamId), HashSet<NodeId>>,
}

impl Walks {
    /// The stream is gone, and so is what was walked on it.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.passed.retain(|&(_, walked), _| walked != stream);
    }
}

fn capture_ends(device: &dyn Device, stream: StreamId) -> Result<Vec<NodeId>, Error> {
    device.capture_ends(stream).map_err(Error::device("tell what was captured last"))
}

impl Inner {
    /// What a malloc does first while scopes are open: it takes back what has become free, as far
    /// as it may ask, and routes the request.
    #[cold]
    pub(super) fn want_diverted(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Want, Error> {
        let rule = self.heap.policy().capture;
        let by_stream = rule == CaptureRule::OwnStream;
        let thread = thread::current().id();
        self.observed.note_user(stream, thread);
        let origins = self.observed.origins(thread);
        let is_idle = self.heap.is_idle();
        let reuses = self.heap.config().capture_reuse;
        let is_asked = !origins.is_empty()
            || (!is_idle && (by_stream || reuses))
            || self.observed.is_curious();
        let mut own = None;
        if is_asked {
            own = self.ask(device, stream)?;
            if own.is_none() {
                self.observed.note_outside(thread);
            }
            for origin in self.observed.own_suspects(thread) {
                if origin != stream {
                    self.ask(device, origin)?;
                }
            }
        }
        if !is_idle {
            let captured = match rule {
                CaptureRule::OpenScope => self.heap.pools().may_capture(),
                CaptureRule::Marked => self.is_captured(device, stream)?,
                CaptureRule::OwnStream => own.is_some(),
            };
            if !captured {
                self.poll_events(device)?;
            } else if reuses {
                self.reclaim_in_capture(device, stream, own)?;
            }
        }
        let mut captured_with = Vec::new();
        for (origin, is_own) in origins {
            let together = match own {
                None => false,
                Some(_) if origin == stream => true,
                Some(_) if is_own => self.ask(device, origin)? == own,
                Some(_) => self.observed.begun_on(origin) == own,
            };
            if together {
                captured_with.push(origin);
            }
        }
        let functions = &self.functions;
        let takes = |pool| functions.get(&pool).is_some_and(|takes| takes(stream));
        let caller = Caller { stream, thread, captured_with: &captured_with, takes: &takes };
        let want = self.heap.want_routed(size_bytes, &caller);
        if self.heap.inventory().may_be_captures_first(&want) {
            own = if own.is_some() { own } else { self.ask(device, stream)? };
            if own.is_some() {
                return Ok(self.heap.want_captured(&want));
            }
        }
        Ok(want)
    }

    /// Frees the stream's blocks whose last uses all come before whatever is captured next on it.
    fn reclaim_in_capture(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        own: Option<CaptureId>,
    ) -> Result<(), Error> {
        let Some(capture) = own.filter(|_| self.heap.has_marked(stream)) else { return Ok(()) };
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

    /// Notes that a live block is used on a stream, which is the caller's.
    pub(super) fn note_use(
        &mut self,
        device: &dyn Device,
        block: BlockId,
        stream: StreamId,
    ) -> Result<(), Error> {
        self.observed.note_user(stream, thread::current().id());
        let captured = self.is_captured(device, stream)?;
        self.heap.note_use(block, stream, captured);
        // What was put off because others might have had this stream can be done with now. If not,
        // the next malloc tries.
        if !self.is_alone() && !captured {
            let _ = self.record_put_off(device);
        }
        Ok(())
    }

    /// Frees a block that other streams used. If its streams are captured, or gone, no event can be
    /// recorded, and the free is put off. If the device refuses to tell, the block stays live.
    pub(super) fn free_used_elsewhere(
        &mut self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<(), Error> {
        match self.plan_putting_off(device, block)? {
            Some(put_off) => {
                self.put_off(block, put_off);
                Ok(())
            }
            None => self.free_after_events(device, block),
        }
    }

    /// Puts off the free of a block.
    pub(super) fn put_off(&mut self, block: BlockId, put_off: PutOff) {
        self.observed.hold(block, put_off.capture);
        self.heap.put_off(block, put_off.markers);
    }

    /// Whether the free of a block that these streams used is part of a capture, whatever the
    /// streams are about. A free names no stream, so that it may ask about the one that its thread
    /// works on and about no other; but where nobody else can be capturing, the block's own will
    /// do.
    fn is_free_in_capture(
        &mut self,
        device: &dyn Device,
        streams: &[StreamId],
    ) -> Result<bool, Error> {
        match (self.heap.policy().capture, streams.first()) {
            (CaptureRule::OpenScope, _) => Ok(true),
            (CaptureRule::Marked, Some(&first)) if !self.declared.is_empty() => {
                let alone = self.is_alone().then_some(first);
                let Some(own) = self.current_stream().or(alone) else { return Ok(false) };
                Ok(self.ask(device, own)?.is_some())
            }
            (CaptureRule::Marked | CaptureRule::OwnStream, _) => Ok(false),
        }
    }

    /// Whether the free of a block has to be put off, and until when.
    pub(super) fn plan_putting_off(
        &mut self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<Option<PutOff>, Error> {
        // No event can be recorded on a stream that is gone, nor on one under a capture.
        if self.observed.is_any_gone(self.heap.uses(block)) {
            return Ok(Some(PutOff::default()));
        }
        if !self.heap.pools().may_capture() {
            return Ok(None);
        }
        let (rule, reuse) = (self.heap.policy().capture, self.heap.config().capture_reuse);
        let by_stream = rule == CaptureRule::OwnStream;
        let streams = self.heap.streams_of(block);
        let in_capture = self.is_free_in_capture(device, &streams)?;
        if in_capture && !reuse {
            return Ok(Some(PutOff::default()));
        }
        // What runs is not in the graph, so that the graph cannot show its end.
        let runs = by_stream && !self.heap.uses_outside_captures(block).is_empty();
        let mut put_off = PutOff::default();
        let together;
        if self.is_alone() {
            let mut captures = Vec::with_capacity(streams.len());
            for &stream in &streams {
                captures.push(self.ask(device, stream)?);
            }
            if !in_capture && captures.iter().all(Option::is_none) {
                return Ok(None);
            }
            let first = captures.first().copied().flatten();
            together = first.is_some() && captures.iter().all(|&id| id == first);
        } else {
            let me = thread::current().id();
            put_off.capture = self.own_capture(device)?;
            let is_suspect = streams.iter().any(|&stream| self.observed.is_suspect(stream, me))
                || self.may_be_captured(self.heap.uses(block));
            if !in_capture && put_off.capture.is_none() && !is_suspect {
                return Ok(None);
            }
            // The streams of its own capture are this thread's, if it ends it or works in it.
            let own = put_off.capture;
            let works_in = self.current_stream().and_then(|current| self.observed.of(current));
            together = own.is_some_and(|id| works_in == own || self.observed.is_ended_by(id, me))
                && streams.iter().all(|&s| self.observed.of(s) == own);
        }
        if reuse && together && !runs {
            for stream in streams {
                put_off.markers.extend(capture_ends(device, stream)?);
            }
            put_off.markers.sort_unstable();
            put_off.markers.dedup();
        }
        Ok(Some(put_off))
    }

    /// A declared capture is over: what it put off may come back now, if the policy says so. What
    /// cannot be asked for is tried again by the next malloc.
    pub(super) fn reclaim_at_end(&mut self, device: &dyn Device) {
        if self.heap.policy().reclaim == ReclaimRule::ScopeEnd {
            let _ = self.record_put_off(device);
        }
    }

    /// A scope was opened by the calling thread.
    pub(super) fn scope_opened(&mut self, pool: PoolId, filter: Option<Filter>) {
        let current = self.current_stream();
        self.observed.open(pool, thread::current().id(), filter, current);
    }

    /// A scope was closed. What its capture put off may come back now; what cannot be asked for is
    /// tried again by the next malloc.
    pub(super) fn scope_closed(&mut self, device: &dyn Device, pool: PoolId) {
        if self.is_alone() && self.heap.pools().may_capture() {
            for stream in self.observed.seen() {
                let _ = self.ask(device, stream);
            }
            self.observed.close_alone(pool);
        } else {
            self.observed.close(pool);
        }
        if !self.heap.pools().may_capture() {
            self.walks.passed.clear();
        }
        // What cannot be asked for is tried again by the next malloc.
        let _ = match self.heap.policy().reclaim {
            ReclaimRule::ScopeEnd => self.record_put_off(device),
            ReclaimRule::PoolWithReuse if self.heap.config().capture_reuse => {
                self.record_put_off_of(device, pool)
            }
            ReclaimRule::PoolWithReuse | ReclaimRule::NextMalloc => Ok(()),
        };
    }

    /// Serves a request from a pool that lends. PyTorch opens a scope of the pool for it: where
    /// that brings back the pool's blocks whose free was put off, it does so when the block was
    /// found, and before it is handed out.
    pub(super) fn take_lent(
        &mut self,
        device: &dyn Device,
        want: &Want,
        lender: PoolId,
    ) -> Option<Addr> {
        let reuses = self.heap.config().capture_reuse;
        if !reuses || self.heap.policy().reclaim != ReclaimRule::PoolWithReuse {
            return self.heap.take_lent(want, lender);
        }
        let found = self.heap.take_off_lent(want, lender);
        // For what is freed here a context is gathered only where one is for any free.
        let context = self.heap.recorder_mut().listener().and_then(History::set_context_aside);
        let _ = self.record_put_off_of(device, lender);
        if let Some(history) = self.heap.recorder_mut().listener() {
            history.take_context_back(context);
        }
        found.map(|found| self.heap.hand_out_lent(&found))
    }
}

/// Until when the free of a block is put off.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    /// Whatever comes after all of these in the graph of the capture may have the block; with none
    /// it waits for the end of the capture.
    markers: Vec<NodeId>,
    /// The capture that the freeing thread is in the middle of, if that is why.
    capture: Option<CaptureId>,
}
