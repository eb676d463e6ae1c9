//! Graph capture: what it changes about a malloc, a free and the note of a use, and the walk over
//! the graph that shows which freed blocks may be used again before the capture is over.
//!
//! Of whose captures what is known without asking is in `sightings.rs`, and so is the rule by which
//! the device may be asked about a stream.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::allocator::{Allocator, Shelf};
use crate::device::Device;
use crate::error::{CaptureProblem, Error};
use crate::heap::ids::BlockId;
use crate::heap::private::Caller;
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

/// Says which stream the calling thread works on.
pub(super) type CurrentStream = Box<dyn Fn() -> Option<StreamId> + Send>;

pub(super) fn capture_of(
    device: &dyn Device,
    stream: StreamId,
) -> Result<Option<CaptureId>, Error> {
    device.capture_of(stream).map_err(Error::device("tell whether a stream is captured"))
}

fn capture_ends(device: &dyn Device, stream: StreamId) -> Result<Vec<NodeId>, Error> {
    device.capture_ends(stream).map_err(Error::device("tell what was captured last"))
}

impl Allocator {
    /// The calling thread began a capture on the stream, just now and inside a scope that it
    /// opened: other threads' requests on streams that join it find the scope from here on, and the
    /// allocator knows of it before anything is allocated. Needed only for that: what the capturing
    /// thread allocates itself tells as much.
    ///
    /// The device is asked about the stream, which is the caller's for the time of the call.
    pub fn mark_capture_begin(&self, stream: StreamId) -> Result<(), Error> {
        let mut shelf = self.lock();
        let about = |problem| Error::Capture { stream, problem };
        if !shelf.heap.is_diverted() {
            return Err(about(CaptureProblem::NoScope));
        }
        shelf.sightings.note_there(stream);
        let capture = shelf.ask(&*self.device, stream)?;
        let id = capture.ok_or(about(CaptureProblem::NotCaptured))?;
        shelf.sightings.mark(stream, id, thread::current().id());
        shelf.marked.push(stream);
        Ok(())
    }

    /// The capture that was marked on the stream is over, or failed. No call is made about the
    /// stream. Nothing happens if none was marked, or if it was seen to be over before.
    pub fn mark_capture_end(&self, stream: StreamId) {
        let mut shelf = self.lock();
        let Some(at) = shelf.marked.iter().position(|&marked| marked == stream) else { return };
        shelf.marked.swap_remove(at);
        shelf.sightings.unmark(stream);
        if shelf.heap.policy().reclaim == ReclaimRule::ScopeEnd {
            // What cannot be asked for is tried again by the next malloc.
            let _ = shelf.record_deferred(&*self.device);
        }
    }

    /// Tells which stream the calling thread works on, where the program knows: a free in a thread
    /// whose stream is captured is part of the capture, whatever streams the block is used on. It
    /// is called under the allocator's lock and must not call the allocator.
    pub fn on_current_stream(&self, current: impl Fn() -> Option<StreamId> + Send + 'static) {
        let before = self.lock_as_is().current_stream.replace(Box::new(current));
        drop(before);
    }
}

impl Shelf {
    /// Asks the device about a stream that is the caller's, and notes what it says. Nothing is
    /// asked about one that is gone: it is under no capture.
    pub(super) fn ask(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<Option<CaptureId>, Error> {
        if self.sightings.is_any_gone(&[stream]) {
            return Ok(None);
        }
        let capture = capture_of(device, stream)?;
        self.sightings.sight(stream, capture, thread::current().id());
        Ok(capture)
    }

    /// The stream that the calling thread works on, if somebody tells.
    pub(super) fn current_stream(&self) -> Option<StreamId> {
        let tells = self.current_stream.as_ref()?;
        // The heap must not pay for a hook that panics.
        catch_unwind(AssertUnwindSafe(tells)).ok().flatten()
    }

    /// Whether any of the streams may be under a capture, so that no event may be recorded there.
    fn may_be_captured(&self, streams: &[StreamId]) -> bool {
        let me = thread::current().id();
        streams.iter().any(|&stream| self.sightings.may_be_captured(stream, me))
    }

    /// Whether no other thread can be capturing.
    fn is_alone(&self) -> bool {
        self.sightings.is_alone(thread::current().id())
    }

    /// Whether what is done for a stream is done inside a capture: no event may be asked for then,
    /// and nothing waited for. Outside of all scopes there is none. The stream is the caller's.
    pub(super) fn is_captured(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<bool, Error> {
        if !self.heap.is_diverted() {
            return Ok(false);
        }
        match self.heap.policy().capture {
            CaptureRule::OpenScope => Ok(true),
            CaptureRule::Marked if self.marked.is_empty() => Ok(false),
            CaptureRule::Marked => {
                let current = self.current_stream().unwrap_or(stream);
                Ok(self.ask(device, current)?.is_some())
            }
            CaptureRule::OwnStream => Ok(self.ask(device, stream)?.is_some()),
        }
    }

    /// Whether a call may be made about a stream that need not be the caller's: to wait for it, so
    /// that its pages can go. `own` is the stream that is the caller's.
    pub(super) fn may_wait_for(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        own: Option<StreamId>,
    ) -> Result<bool, Error> {
        if self.sightings.is_any_gone(&[stream]) {
            return Ok(false);
        }
        if !self.heap.is_diverted() {
            return Ok(true);
        }
        if own == Some(stream) || self.is_alone() {
            return Ok(self.ask(device, stream)?.is_none());
        }
        Ok(!self.may_anybody_capture(device)?)
    }

    /// Whether a capture is on anywhere, as far as that matters. Outside of all scopes there is
    /// none.
    pub(super) fn is_any_captured(&mut self, device: &dyn Device) -> Result<bool, Error> {
        if !self.heap.is_diverted() {
            return Ok(false);
        }
        match (self.heap.policy().capture, self.current_stream()) {
            (CaptureRule::OpenScope, _) => Ok(true),
            (CaptureRule::Marked, Some(current)) => self.is_captured(device, current),
            (CaptureRule::Marked, None) if self.marked.is_empty() => Ok(false),
            (CaptureRule::Marked, None) | (CaptureRule::OwnStream, _) => {
                self.may_anybody_capture(device)
            }
        }
    }

    /// Whether a capture may be on in any scope.
    pub(super) fn may_anybody_capture(&mut self, device: &dyn Device) -> Result<bool, Error> {
        let me = thread::current().id();
        if let Some(current) = self.current_stream() {
            self.ask(device, current)?;
        }
        if self.sightings.is_alone(me) {
            for stream in self.sightings.worth_asking() {
                self.ask(device, stream)?;
            }
        } else {
            self.ask_own_origins(device)?;
        }
        Ok(self.sightings.has_running() || self.sightings.may_others_capture(me))
    }

    /// Asks about the streams on which captures begin in scopes of this thread.
    fn ask_own_origins(&mut self, device: &dyn Device) -> Result<(), Error> {
        for (origin, own) in self.sightings.origins(thread::current().id()) {
            if own {
                self.ask(device, origin)?;
            }
        }
        Ok(())
    }

    /// The capture that the calling thread is in the middle of.
    fn own_capture(&mut self, device: &dyn Device) -> Result<Option<CaptureId>, Error> {
        if let Some(current) = self.current_stream()
            && let Some(id) = self.ask(device, current)?
        {
            return Ok(Some(id));
        }
        self.ask_own_origins(device)?;
        Ok(self.sightings.capture_by(thread::current().id()))
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
        let rule = self.heap.policy().capture;
        let by_stream = rule == CaptureRule::OwnStream;
        let thread = thread::current().id();
        self.sightings.note_user(stream, thread);
        let origins = self.sightings.origins(thread);
        let is_idle = self.heap.is_idle();
        let reuses = self.heap.config().capture_reuse;
        let is_asked = !origins.is_empty()
            || (!is_idle && (by_stream || reuses))
            || self.sightings.is_curious();
        let mut own = None;
        if is_asked {
            own = self.ask(device, stream)?;
            if own.is_none() {
                self.sightings.note_outside(thread);
            }
            for origin in self.sightings.own_suspects(thread) {
                if origin != stream {
                    self.ask(device, origin)?;
                }
            }
        }
        if !is_idle {
            let captured = match rule {
                CaptureRule::OpenScope => true,
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
                Some(_) => self.sightings.begun_on(origin) == own,
            };
            if together {
                captured_with.push(origin);
            }
        }
        let functions = &self.functions;
        let takes = |pool| functions.get(&pool).is_some_and(|takes| takes(stream));
        let caller = Caller { stream, thread, captured_with: &captured_with, takes: &takes };
        let want = self.heap.want_routed(size_bytes, &caller);
        if self.heap.may_be_captures_first(&want) {
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
        self.sightings.note_user(stream, thread::current().id());
        let captured = self.is_captured(device, stream)?;
        self.heap.note_use(block, stream, captured);
        // What was put off because others might have had this stream can be done with now. If not,
        // the next malloc tries.
        if !self.is_alone() && !captured {
            let _ = self.record_deferred(device);
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
        match self.plan_deferral(device, block)? {
            Some(deferral) => {
                self.put_deferred(block, deferral);
                Ok(())
            }
            None => self.free_after_events(device, block),
        }
    }

    /// Puts off the free of a block.
    pub(super) fn put_deferred(&mut self, block: BlockId, deferral: Deferral) {
        self.sightings.hold(block, deferral.capture);
        self.heap.put_deferred(block, deferral.markers);
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
            (CaptureRule::Marked, Some(&first)) if !self.marked.is_empty() => {
                let alone = self.is_alone().then_some(first);
                let Some(own) = self.current_stream().or(alone) else { return Ok(false) };
                Ok(self.ask(device, own)?.is_some())
            }
            (CaptureRule::Marked | CaptureRule::OwnStream, _) => Ok(false),
        }
    }

    /// Whether the free of a block has to be put off, and until when.
    pub(super) fn plan_deferral(
        &mut self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<Option<Deferral>, Error> {
        // No event can be recorded on a stream that is gone, nor on one under a capture.
        if self.sightings.is_any_gone(self.heap.uses(block)) {
            return Ok(Some(Deferral::default()));
        }
        if !self.heap.is_diverted() {
            return Ok(None);
        }
        let (rule, reuse) = (self.heap.policy().capture, self.heap.config().capture_reuse);
        let by_stream = rule == CaptureRule::OwnStream;
        let streams = self.heap.streams_of(block);
        let in_capture = self.is_free_in_capture(device, &streams)?;
        if in_capture && !reuse {
            return Ok(Some(Deferral::default()));
        }
        // What runs is not in the graph, so that the graph cannot show its end.
        let runs = by_stream && !self.heap.uses_outside_captures(block).is_empty();
        let mut deferral = Deferral::default();
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
            deferral.capture = self.own_capture(device)?;
            let is_suspect = streams.iter().any(|&stream| self.sightings.is_suspect(stream, me))
                || self.may_be_captured(self.heap.uses(block));
            if !in_capture && deferral.capture.is_none() && !is_suspect {
                return Ok(None);
            }
            // The streams of its own capture are this thread's, if it ends it or works in it.
            let own = deferral.capture;
            let works_in = self.current_stream().and_then(|current| self.sightings.of(current));
            together = own.is_some_and(|id| works_in == own || self.sightings.is_ended_by(id, me))
                && streams.iter().all(|&s| self.sightings.of(s) == own);
        }
        if reuse && together && !runs {
            for stream in streams {
                deferral.markers.extend(capture_ends(device, stream)?);
            }
            deferral.markers.sort_unstable();
            deferral.markers.dedup();
        }
        Ok(Some(deferral))
    }

    /// Records the events of blocks whose free was put off by a capture, if they no longer have to
    /// be put off. Work of the capture itself is not waited for: it has not run.
    pub(super) fn record_deferred(&mut self, device: &dyn Device) -> Result<(), Error> {
        self.record_those_deferred(device, self.heap.deferred())
    }

    /// The same for the blocks of one private pool.
    pub(super) fn record_deferred_of(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
    ) -> Result<(), Error> {
        let mut deferred = self.heap.deferred();
        deferred.retain(|&block| self.heap.pool_of(block) == Some(pool));
        self.record_those_deferred(device, deferred)
    }

    fn record_those_deferred(
        &mut self,
        device: &dyn Device,
        deferred: Vec<BlockId>,
    ) -> Result<(), Error> {
        if deferred.is_empty() {
            return Ok(());
        }
        let diverted = self.heap.is_diverted();
        let by_stream = self.heap.policy().capture_is_by_stream();
        let (alone, me) = (self.is_alone(), thread::current().id());
        let mut asked = HashMap::new();
        if diverted && by_stream && alone && self.sightings.holds_any() {
            for stream in self.sightings.seen() {
                asked.insert(stream, self.ask(device, stream)?.is_some());
            }
        }
        // Whatever the policy, no event is recorded on a stream that somebody may be capturing.
        if diverted && !alone {
            self.ask_own_origins(device)?;
        }
        for block in deferred {
            let uses = self.heap.uses_outside_captures(block);
            if self.sightings.is_any_gone(&uses) {
                continue;
            }
            if diverted {
                // Where any scope is taken for a capture, that puts nothing off here; but a stream
                // that really is captured does.
                let is_scope_enough = alone && !by_stream;
                let mut captured = !is_scope_enough && self.sightings.is_held(block);
                let streams =
                    if is_scope_enough { uses.clone() } else { self.heap.streams_of(block) };
                for stream in streams {
                    captured |= match asked.get(&stream) {
                        Some(&captured) => captured,
                        None if alone => {
                            let captured = self.ask(device, stream)?.is_some();
                            asked.insert(stream, captured);
                            captured
                        }
                        None => self.sightings.is_suspect(stream, me),
                    };
                }
                if captured || !alone && self.may_be_captured(&uses) {
                    continue;
                }
            }
            let events = self.record_events(device, &uses)?;
            self.heap.undefer(block, &events);
            self.sightings.hold(block, None);
        }
        Ok(())
    }

    /// A scope was opened by the calling thread.
    pub(super) fn scope_opened(&mut self, pool: PoolId, filter: Option<Filter>) {
        let current = self.current_stream();
        self.sightings.open(pool, thread::current().id(), filter, current);
    }

    /// A scope was closed. What its capture put off may come back now; what cannot be asked for is
    /// tried again by the next malloc.
    pub(super) fn scope_closed(&mut self, device: &dyn Device, pool: PoolId) {
        if self.is_alone() && self.heap.is_diverted() {
            for stream in self.sightings.seen() {
                let _ = self.ask(device, stream);
            }
            self.sightings.close_alone(pool);
        } else {
            self.sightings.close(pool);
        }
        if !self.heap.is_diverted() {
            self.walks.passed.clear();
        }
        // What cannot be asked for is tried again by the next malloc.
        let _ = match self.heap.policy().reclaim {
            ReclaimRule::ScopeEnd => self.record_deferred(device),
            ReclaimRule::PoolWithReuse if self.heap.config().capture_reuse => {
                self.record_deferred_of(device, pool)
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
        let context = self.heap.herald_mut().listener().and_then(History::set_context_aside);
        let _ = self.record_deferred_of(device, lender);
        if let Some(history) = self.heap.herald_mut().listener() {
            history.take_context_back(context);
        }
        found.map(|found| self.heap.hand_out_lent(&found))
    }
}

/// Until when the free of a block is put off.
#[derive(Debug, Default)]
pub(super) struct Deferral {
    /// Whatever comes after all of these in the graph of the capture may have the block; with none
    /// it waits for the end of the capture.
    markers: Vec<NodeId>,
    /// The capture that the freeing thread is in the middle of, if that is why.
    capture: Option<CaptureId>,
}
