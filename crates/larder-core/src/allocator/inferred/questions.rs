//! The questions: whether something happens in a capture, whose it is, and what may be asked of the
//! device about it.

use std::thread;

use crate::allocator::Inner;
use crate::device::Device;
use crate::error::Error;
use crate::policy::CaptureRule;
use crate::types::{CaptureId, StreamId};

impl Inner {
    /// Asks the device about a stream that is the caller's, and notes what it says. Nothing is
    /// asked about one that is gone: it is under no capture.
    pub(in crate::allocator) fn ask(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<Option<CaptureId>, Error> {
        if self.observed.is_any_gone(&[stream]) {
            return Ok(None);
        }
        let capture = capture_of(device, stream)?;
        self.observed.see(stream, capture, thread::current().id());
        Ok(capture)
    }

    /// The stream that the calling thread works on, if somebody tells.
    pub(in crate::allocator) fn current_stream(&self) -> Option<StreamId> {
        self.declared.current_stream()
    }

    /// Whether any of the streams may be under a capture, so that no event may be recorded there.
    pub(in crate::allocator) fn may_be_captured(&self, streams: &[StreamId]) -> bool {
        let me = thread::current().id();
        streams.iter().any(|&stream| self.observed.may_be_captured(stream, me))
    }

    /// Whether no other thread can be capturing.
    pub(in crate::allocator) fn is_alone(&self) -> bool {
        self.observed.is_alone(thread::current().id())
    }

    /// Whether what is done for a stream is done inside a capture: no event may be asked for then,
    /// and nothing waited for. Outside of all scopes there is none. The stream is the caller's.
    pub(in crate::allocator) fn is_captured(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<bool, Error> {
        if !self.heap.pools().may_capture() {
            return Ok(false);
        }
        match self.heap.policy().capture {
            CaptureRule::OpenScope => Ok(true),
            CaptureRule::Marked if self.declared.is_empty() => Ok(false),
            CaptureRule::Marked => {
                let current = self.current_stream().unwrap_or(stream);
                Ok(self.ask(device, current)?.is_some())
            }
            CaptureRule::OwnStream => Ok(self.ask(device, stream)?.is_some()),
        }
    }

    /// Whether a call may be made about a stream that need not be the caller's: to wait for it, so
    /// that its pages can go. `own` is the stream that is the caller's.
    pub(in crate::allocator) fn may_wait_for(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        own: Option<StreamId>,
    ) -> Result<bool, Error> {
        if self.observed.is_any_gone(&[stream]) {
            return Ok(false);
        }
        if !self.heap.pools().may_capture() {
            return Ok(true);
        }
        if own == Some(stream) || self.is_alone() {
            return Ok(self.ask(device, stream)?.is_none());
        }
        Ok(!self.may_anybody_capture(device)?)
    }

    /// Whether a capture is on anywhere, as far as that matters. Outside of all scopes there is
    /// none.
    pub(in crate::allocator) fn is_any_captured(
        &mut self,
        device: &dyn Device,
    ) -> Result<bool, Error> {
        if !self.heap.pools().may_capture() {
            return Ok(false);
        }
        match (self.heap.policy().capture, self.current_stream()) {
            (CaptureRule::OpenScope, _) => Ok(true),
            (CaptureRule::Marked, Some(current)) => self.is_captured(device, current),
            (CaptureRule::Marked, None) if self.declared.is_empty() => Ok(false),
            (CaptureRule::Marked, None) | (CaptureRule::OwnStream, _) => {
                self.may_anybody_capture(device)
            }
        }
    }

    /// Whether a capture may be on in any scope.
    pub(in crate::allocator) fn may_anybody_capture(
        &mut self,
        device: &dyn Device,
    ) -> Result<bool, Error> {
        let me = thread::current().id();
        if let Some(current) = self.current_stream() {
            self.ask(device, current)?;
        }
        if self.observed.is_alone(me) {
            for stream in self.observed.worth_asking() {
                self.ask(device, stream)?;
            }
        } else {
            self.ask_own_origins(device)?;
        }
        Ok(self.observed.has_running() || self.observed.may_others_capture(me))
    }

    /// Asks about the streams on which captures begin in scopes of this thread.
    pub(in crate::allocator) fn ask_own_origins(
        &mut self,
        device: &dyn Device,
    ) -> Result<(), Error> {
        for (origin, own) in self.observed.origins(thread::current().id()) {
            if own {
                self.ask(device, origin)?;
            }
        }
        Ok(())
    }

    /// The capture that the calling thread is in the middle of.
    pub(in crate::allocator) fn own_capture(
        &mut self,
        device: &dyn Device,
    ) -> Result<Option<CaptureId>, Error> {
        if let Some(current) = self.current_stream()
            && let Some(id) = self.ask(device, current)?
        {
            return Ok(Some(id));
        }
        self.ask_own_origins(device)?;
        Ok(self.observed.capture_by(thread::current().id()))
    }
}

/// What the device says of a stream, noted by nobody.
pub(in crate::allocator) fn capture_of(
    device: &dyn Device,
    stream: StreamId,
) -> Result<Option<CaptureId>, Error> {
    device.capture_of(stream).map_err(Error::device("tell whether a stream is captured"))
}
