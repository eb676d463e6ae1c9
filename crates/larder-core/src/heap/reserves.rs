//! Reserves: how many addresses the next expandable segment of a stream takes. The settings say so
//! for all streams, and for classes of them by name; and who has other settings may say so for a
//! stream.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Config, Reserve};
use crate::types::StreamId;

/// What is known of streams.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct Reserves {
    /// The class of each stream that has one.
    classes: HashMap<StreamId, Arc<str>>,
    /// What somebody said last about a stream, in bytes.
    told: HashMap<StreamId, u64>,
}

impl Reserves {
    /// The stream is of this class from now on; an empty name is none.
    pub(in crate::heap) fn set_class(&mut self, stream: StreamId, class: &str) {
        if class.is_empty() {
            self.classes.remove(&stream);
        } else {
            self.classes.insert(stream, class.into());
        }
    }

    /// The class of a stream.
    pub(in crate::heap) fn class(&self, stream: StreamId) -> Option<Arc<str>> {
        self.classes.get(&stream).cloned()
    }

    /// So many bytes, whatever the settings say; or as they say.
    pub(in crate::heap) fn tell(&mut self, stream: StreamId, size_bytes: Option<u64>) {
        match size_bytes {
            Some(size_bytes) => self.told.insert(stream, size_bytes),
            None => self.told.remove(&stream),
        };
    }

    /// What the next segment of a stream should reserve, in bytes; none is as many as are ever of
    /// use.
    pub(in crate::heap) fn reserve_of(
        &self,
        stream: StreamId,
        config: &Config,
        device_total_bytes: u64,
    ) -> Option<u64> {
        if let Some(&size_bytes) = self.told.get(&stream) {
            return Some(size_bytes);
        }
        let by_class = self.classes.get(&stream).and_then(|class| {
            let mut entries = config.reserve_by_class.iter();
            entries.find(|(name, _)| **name == **class).map(|&(_, reserve)| reserve)
        });
        let reserve: Option<Reserve> = by_class.or(config.reserve);
        reserve.map(|reserve| reserve.bytes(device_total_bytes))
    }

    /// The stream is gone; another one may get its handle.
    pub(in crate::heap) fn forget(&mut self, stream: StreamId) {
        self.classes.remove(&stream);
        self.told.remove(&stream);
    }
}
