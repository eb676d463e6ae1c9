//! The numbers of an allocator's streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use larder::Stream;

/// On a simulated GPU any number is a stream, and a new one is a number that nobody has used. On a
/// real one a number is a handle, which is good as long as its stream is kept.
#[derive(Default)]
pub(crate) struct Streams {
    /// The largest number that was used.
    last: AtomicU64,
    kept: Mutex<Vec<Stream>>,
}

impl Streams {
    /// A stream is in use.
    pub(crate) fn note(&self, stream: u64) {
        if stream > self.last.load(Ordering::Relaxed) {
            self.last.fetch_max(stream, Ordering::Relaxed);
        }
    }

    /// A number that is not in use, if there is any.
    pub(crate) fn next(&self) -> Option<u64> {
        let after = |last: u64| last.checked_add(1);
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        last.ok().map(|last| last + 1)
    }

    /// Lets go of a real stream.
    pub(crate) fn drop(&self, number: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|stream| stream.id().0 != number);
    }

    /// Keeps a real stream; its number.
    pub(crate) fn keep(&self, stream: Stream) -> u64 {
        let number = stream.id().0;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        number
    }
}
