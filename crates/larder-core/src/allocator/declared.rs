//! What programs declare of captures: that one has begun, by a token that ends it, and which stream
//! a thread works on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::allocator::Allocator;
use crate::error::{CaptureProblem, Error};
use crate::types::{CaptureToken, StreamId};

/// Says which stream the calling thread works on.
type CurrentStream = Box<dyn Fn() -> Option<StreamId> + Send>;

/// All that was declared and is not over.
#[derive(Default)]
pub(super) struct Declared {
    captures: Vec<(CaptureToken, StreamId)>,
    /// The number of the newest token.
    newest: u64,
    current_stream: Option<CurrentStream>,
}

impl Declared {
    /// Whether no capture is declared.
    pub(super) fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }

    /// The stream that the calling thread works on, if somebody tells.
    pub(super) fn current_stream(&self) -> Option<StreamId> {
        let tells = self.current_stream.as_ref()?;
        // The heap must not pay for a hook that panics.
        catch_unwind(AssertUnwindSafe(tells)).ok().flatten()
    }

    fn add(&mut self, stream: StreamId) -> CaptureToken {
        self.newest += 1;
        let token = CaptureToken(self.newest);
        self.captures.push((token, stream));
        token
    }

    fn token_on(&self, stream: StreamId) -> Option<CaptureToken> {
        let mut captures = self.captures.iter();
        captures.find(|&&(_, origin)| origin == stream).map(|&(token, _)| token)
    }

    /// Takes a capture out; its stream, if it was there.
    fn remove(&mut self, token: CaptureToken) -> Option<StreamId> {
        let at = self.captures.iter().position(|&(other, _)| other == token)?;
        Some(self.captures.swap_remove(at).1)
    }
}

impl Allocator {
    /// The calling thread began a capture on the stream, just now and inside a scope that it
    /// opened: other threads' requests on streams that join it find the scope from here on, and
    /// nothing about the capture has to be inferred from what its thread allocates. The token ends
    /// it: [`Allocator::end_capture`].
    ///
    /// The device is asked about the stream, which is the caller's for the time of the call.
    pub fn begin_capture(&self, stream: StreamId) -> Result<CaptureToken, Error> {
        let mut inner = self.lock();
        let about = |problem| Error::Capture { stream, problem };
        if !inner.heap.pools().may_capture() {
            return Err(about(CaptureProblem::NoScope));
        }
        inner.observed.note_there(stream);
        let capture = inner.ask(&*self.device, stream)?;
        let id = capture.ok_or(about(CaptureProblem::NotCaptured))?;
        inner.observed.mark(stream, id, thread::current().id());
        Ok(inner.declared.add(stream))
    }

    /// The capture of this token is over, or failed; any thread may say so. No call is made about
    /// its stream. An error if it was ended before.
    pub fn end_capture(&self, token: CaptureToken) -> Result<(), Error> {
        let mut inner = self.lock();
        let stream = inner.declared.remove(token).ok_or(Error::NotDeclared(token))?;
        // A newer one on the stream goes on.
        if inner.declared.token_on(stream).is_none() {
            inner.observed.unmark(stream);
        }
        inner.reclaim_at_end(&*self.device);
        Ok(())
    }

    /// As [`Allocator::begin_capture`], for who keeps no token.
    pub fn mark_capture_begin(&self, stream: StreamId) -> Result<(), Error> {
        self.begin_capture(stream).map(drop)
    }

    /// The capture that was declared on the stream is over, or failed. No call is made about the
    /// stream. Nothing happens if none was declared, or if it was ended before.
    pub fn mark_capture_end(&self, stream: StreamId) {
        let mut inner = self.lock();
        let Some(token) = inner.declared.token_on(stream) else { return };
        inner.declared.remove(token);
        inner.observed.unmark(stream);
        inner.reclaim_at_end(&*self.device);
    }

    /// Tells which stream the calling thread works on, where the program knows: a free in a thread
    /// whose stream is captured is part of the capture, whatever streams the block is used on. It
    /// is called under the allocator's lock and must not call the allocator.
    pub fn on_current_stream(&self, current: impl Fn() -> Option<StreamId> + Send + 'static) {
        let before = self.lock_as_is().declared.current_stream.replace(Box::new(current));
        drop(before);
    }
}
