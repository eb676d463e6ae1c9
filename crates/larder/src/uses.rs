//! Uses of a block on streams other than its own: who must wait for whom.
//!
//! A block that is only used on its own stream costs nothing here. The first use on another stream
//! makes an event for that stream, recorded behind each use there; later uses wait for it as far as
//! they must. Reads wait for the last writer, writes and the end of the block for everybody.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaEvent, CudaStream, DriverError, SyncOnDrop};
use larder_core::StreamId;

use crate::real::stream::{id_of, is_same};

/// How a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The uses of one block on other streams: a list that only grows, so that what was lent out of it
/// stays where it is.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    first: OnceLock<Box<Use>>,
    /// The stream that wrote last, plus one; 0 is the block's own.
    writer: AtomicU64,
}

#[derive(Debug)]
struct Use {
    stream: StreamId,
    /// Behind the last use on that stream.
    done: CudaEvent,
    next: OnceLock<Box<Use>>,
}

impl Uses {
    fn iter(&self) -> impl Iterator<Item = &Use> {
        std::iter::successors(self.first.get(), |node| node.next.get()).map(|node| &**node)
    }

    /// The entry of a stream, which is made if there is none.
    fn entry(&self, stream: &CudaStream) -> Result<&Use, DriverError> {
        let id = id_of(stream);
        if let Some(known) = self.iter().find(|known| known.stream == id) {
            return Ok(known);
        }
        let done = stream.context().new_event(None)?;
        let mut new = Box::new(Use { stream: id, done, next: OnceLock::new() });
        let mut place = &self.first;
        loop {
            match place.set(new) {
                Ok(()) => return Ok(place.get().expect("what was just set")),
                // Somebody is there already: perhaps the same stream, from another thread.
                Err(ours) => {
                    let there = place.get().expect("what was set before");
                    if there.stream == id {
                        return Ok(there);
                    }
                    (new, place) = (ours, &there.next);
                }
            }
        }
    }

    /// Whether the stream of this entry wrote last.
    fn wrote_last(&self, entry: &Use) -> bool {
        self.writer.load(Ordering::Acquire) == entry.stream.0.wrapping_add(1)
    }
}

impl Uses {
    /// Makes the block's own stream wait for all uses on others, so that it may be freed in the
    /// order of its own alone.
    pub(crate) fn wait(&self, own: &CudaStream) -> Result<(), DriverError> {
        self.iter().try_for_each(|known| own.wait(&known.done))
    }

    /// The block of the stream `own` is about to be used on another: makes that one wait for what
    /// it must, and returns what notes the end of the use.
    ///
    /// Errors go where `cudarc` puts its own: to the next call on the context.
    pub(crate) fn begin<'a>(
        &'a self,
        own: &CudaStream,
        stream: &'a CudaStream,
        access: Access,
    ) -> SyncOnDrop<'a> {
        let context = stream.context();
        let ordered = context.is_event_tracking();
        let wait_for_others = |but: Option<StreamId>| {
            for other in self.iter().filter(|other| Some(other.stream) != but) {
                if access == Access::Write || self.wrote_last(other) {
                    context.record_err(stream.wait(&other.done));
                }
            }
        };
        if is_same(stream, own) {
            if ordered && self.first.get().is_some() {
                wait_for_others(None);
                if access == Access::Write {
                    self.writer.store(0, Ordering::Release);
                }
            }
            return SyncOnDrop::Record(None);
        }
        if !ordered {
            // The program orders its streams by itself, freeing included.
            return SyncOnDrop::Record(None);
        }
        let id = id_of(stream);
        context.record_err(stream.join(own));
        match self.entry(stream) {
            Ok(entry) => {
                wait_for_others(Some(id));
                if access == Access::Write {
                    self.writer.store(id.0.wrapping_add(1), Ordering::Release);
                }
                SyncOnDrop::Record(Some((&entry.done, stream)))
            }
            Err(error) => {
                context.record_err::<()>(Err(error));
                // With no event to note the end of the use, the end itself is waited for.
                SyncOnDrop::Sync(Some(stream))
            }
        }
    }
}
