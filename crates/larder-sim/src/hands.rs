//! Hands: whose a stream is at this moment, and who laid hands on one that was not theirs.
//!
//! A real device may end the process when it is asked about a stream that another thread is just
//! beginning to capture, ceasing to capture or destroying, or that is destroyed. The simulated one
//! notes it, so that a test can ask.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, ThreadId};

use larder_core::types::StreamId;

#[derive(Debug, Default)]
pub(crate) struct Hands {
    /// Streams that a thread is doing something to.
    held: BTreeMap<StreamId, (ThreadId, &'static str)>,
    gone: BTreeSet<StreamId>,
    /// How many streams were given a number; the default stream has 0.
    named: u64,
    trespasses: Vec<String>,
}

impl Hands {
    /// This thread begins to do something to the streams.
    pub(crate) fn take(&mut self, streams: &[StreamId], what: &'static str) {
        for &stream in streams {
            self.touch(stream, what);
            self.held.insert(stream, (thread::current().id(), what));
        }
    }

    /// It is done.
    pub(crate) fn put(&mut self, streams: &[StreamId]) {
        for stream in streams {
            self.held.remove(stream);
        }
    }

    /// The stream is destroyed.
    pub(crate) fn destroy(&mut self, stream: StreamId) {
        self.gone.insert(stream);
    }

    /// A number for a new stream.
    pub(crate) fn name(&mut self) -> StreamId {
        self.named += 1;
        StreamId(self.named)
    }

    /// A stream gets the handle of one that is gone.
    pub(crate) fn create(&mut self, stream: StreamId) {
        self.gone.remove(&stream);
    }

    /// A call is made about the stream.
    pub(crate) fn touch(&mut self, stream: StreamId, call: &'static str) {
        if let Some(&(other, what)) = self.held.get(&stream)
            && other != thread::current().id()
        {
            self.trespasses.push(format!("{call} of {stream} during {what} by another thread"));
        }
        if self.gone.contains(&stream) {
            self.trespasses.push(format!("{call} of {stream}, which is destroyed"));
        }
    }

    pub(crate) fn trespasses(&self) -> &[String] {
        &self.trespasses
    }
}
