//! Reserves: how many addresses the next expandable segment of a stream takes. The settings say so
//! for all streams, and for classes of them by name; and who has other settings may say so for a
//! stream.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Reserve;
use crate::heap::Heap;
use crate::types::StreamId;

/// What is known of streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserves {
    /// The class of each stream that has one.
    classes: HashMap<StreamId, Arc<str>>,
    /// What somebody said last about a stream, in bytes.
    told: HashMap<StreamId, u64>,
}

impl Heap {
    /// The stream is of this class from now on; an empty name is none.
    pub(crate) fn set_stream_class(&mut self, stream: StreamId, class: &str) {
        if class.is_empty() {
            self.reserves.classes.remove(&stream);
        } else {
            self.reserves.classes.insert(stream, class.into());
        }
    }

    /// The class of a stream.
    pub(crate) fn stream_class(&self, stream: StreamId) -> Option<Arc<str>> {
        self.reserves.classes.get(&stream).cloned()
    }

    /// So many bytes, whatever the settings say; or as they say.
    pub(crate) fn tell_reserve(&mut self, stream: StreamId, size_bytes: Option<u64>) {
        match size_bytes {
            Some(size_bytes) => self.reserves.told.insert(stream, size_bytes),
            None => self.reserves.told.remove(&stream),
        };
    }

    /// What the next segment of a stream should reserve, in bytes; none is as many as are ever of
    /// use.
    pub(super) fn reserve_of(&self, stream: StreamId) -> Option<u64> {
        if let Some(&size_bytes) = self.reserves.told.get(&stream) {
            return Some(size_bytes);
        }
        let by_class = self.reserves.classes.get(&stream).and_then(|class| {
            let mut entries = self.config.reserve_by_class.iter();
            entries.find(|(name, _)| **name == **class).map(|&(_, reserve)| reserve)
        });
        let reserve: Option<Reserve> = by_class.or(self.config.reserve);
        reserve.map(|reserve| reserve.bytes(self.device_total_bytes))
    }

    /// The stream is gone; another one may get its handle.
    pub(super) fn forget_reserve(&mut self, stream: StreamId) {
        self.reserves.classes.remove(&stream);
        self.reserves.told.remove(&stream);
    }
}
