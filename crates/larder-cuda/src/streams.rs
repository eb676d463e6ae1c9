//! Streams that somebody vouched for: only their handles are passed to the driver, which follows
//! whatever it is given.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::device::DeviceError;
use larder_core::types::StreamId;

use crate::sys::CUstream;

/// The driver's code for a handle that it does not know.
const INVALID_HANDLE: i32 = 400;
/// The driver's own names of the default streams: the usual one, the same by another name, and that
/// of the thread. They are always there.
const DEFAULT_STREAMS: u64 = 2;

/// Whatever keeps a stream alive.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
pub(crate) struct Streams {
    /// Somebody vouched for every stream that will ever be named.
    trusting: AtomicBool,
    /// With what keeps them alive, where that is ours.
    known: Mutex<HashMap<u64, Option<Keeper>>>,
}

/// A handle that may be passed to the driver while this lives.
pub(crate) struct Vouched {
    pub(crate) handle: CUstream,
    _kept: Option<Keeper>,
}

impl Streams {
    /// Every change is made whole by a function that does not panic midway.
    fn known(&self) -> MutexGuard<'_, HashMap<u64, Option<Keeper>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trust(&self) {
        self.trusting.store(true, Ordering::Release);
    }

    pub(crate) fn admit(&self, stream: StreamId, kept: Option<Keeper>) {
        self.known().insert(stream.0, kept);
    }

    pub(crate) fn dismiss(&self, stream: StreamId) {
        let gone = self.known().remove(&stream.0);
        // Perhaps the last to have it, and destroying it is a call of the driver.
        drop(gone);
    }

    /// The handle of a stream that somebody vouched for.
    pub(crate) fn vouched(&self, stream: StreamId) -> Result<Vouched, DeviceError> {
        let handle = stream.0 as CUstream;
        if stream.0 <= DEFAULT_STREAMS || self.trusting.load(Ordering::Acquire) {
            return Ok(Vouched { handle, _kept: None });
        }
        match self.known().get(&stream.0) {
            Some(kept) => Ok(Vouched { handle, _kept: kept.clone() }),
            None => Err(DeviceError::Other {
                code: INVALID_HANDLE,
                text: format!("nobody admitted a stream of the handle {:#x}", stream.0),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_nobody_vouched_for_never_becomes_a_handle() {
        let streams = Streams::default();
        let stream = StreamId(0xdead_beef);
        assert!(streams.vouched(StreamId(0)).is_ok() && streams.vouched(StreamId(2)).is_ok());
        let refused = streams.vouched(stream).err().expect("a refusal").to_string();
        assert!(refused.contains("0xdeadbeef"), "{refused}");
        streams.admit(stream, None);
        assert_eq!(streams.vouched(stream).map(|known| known.handle as u64), Ok(0xdead_beef));
        streams.dismiss(stream);
        assert!(streams.vouched(stream).is_err());
        streams.trust();
        assert!(streams.vouched(stream).is_ok());
    }
}
