//! Streams that are gone: whoever destroys a stream says so, and no call is made about it again.

use std::thread;

use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::{CaptureProblem, Error};
use crate::record::event::Level;
use crate::types::StreamId;

impl Allocator {
    /// The stream is about to be destroyed: waits for its work, and makes no call about it after
    /// that. Memory that was handed out on it stays good and is freed as ever; what is cached of it
    /// goes back to the device, because no other stream could use it. A stream that gets the same
    /// handle later starts with nothing.
    ///
    /// The stream is the caller's, and nobody issues work on it from here on. The default stream
    /// and one under a capture are refused.
    pub fn forget_stream(&self, stream: StreamId) -> Result<(), Error> {
        let about = |problem| Error::Capture { stream, problem };
        if stream == StreamId(0) {
            return Err(about(CaptureProblem::Default));
        }
        let mut inner = self.lock();
        inner.observed.note_there(stream);
        if inner.heap.pools().may_capture() && inner.ask(&*self.device, stream)?.is_some() {
            return Err(about(CaptureProblem::Captured));
        }
        drop(inner);
        // It is the caller's alone, and others need not wait for it with us.
        self.device.wait_stream(stream).map_err(Error::device("wait for a stream"))?;
        self.enter(Level::All).forget_stream(&*self.device, stream);
        self.leave();
        Ok(())
    }

    /// As [`Allocator::forget_stream`], for a stream that was destroyed already. Its handle names
    /// nothing any more, so that the whole device is waited for instead. While a capture may be on
    /// anywhere that is refused: say it again when the capture is over, and until then make no
    /// other call that names the stream. No call is made about it meanwhile: what it used and is
    /// freed stays with it, and so do its pages.
    ///
    /// A driver may give the handle to the next stream that anybody makes, whose memory is told
    /// apart from this one's no more: where other threads make streams, say it before they can, or
    /// forget the stream before it is destroyed.
    pub fn stream_is_gone(&self, stream: StreamId) -> Result<(), Error> {
        let about = |problem| Error::Capture { stream, problem };
        if stream == StreamId(0) {
            return Err(about(CaptureProblem::Default));
        }
        let mut inner = self.enter(Level::All);
        // Before anything is asked: it must not be about this stream.
        inner.observed.note_gone(stream, thread::current().id());
        let result = (|| {
            let me = thread::current().id();
            if inner.heap.pools().may_capture()
                && (inner.may_anybody_capture(&*self.device)?
                    || inner.observed.may_capture_unseen(me))
            {
                return Err(about(CaptureProblem::DeviceBusy));
            }
            // Under the lock, so that no scope is opened for a capture meanwhile.
            self.device.wait_device().map_err(Error::device("wait for the device"))?;
            inner.forget_stream(&*self.device, stream);
            Ok(())
        })();
        drop(inner);
        self.leave();
        result
    }
}

impl Inner {
    /// Forgets a stream all of whose work is done.
    fn forget_stream(&mut self, device: &dyn Device, stream: StreamId) {
        for event in self.heap.forget_stream(stream) {
            self.events.give(event);
        }
        self.walks.forget(stream);
        // What cannot go now goes when a cache is emptied next.
        if self.is_any_captured(device) == Ok(false) {
            let plan = self.heap.plan_release_gone();
            let _ = self.release(device, &plan);
        }
        // At last: until then it is known not to be asked about, if it is gone already.
        self.observed.forget(stream);
    }
}
