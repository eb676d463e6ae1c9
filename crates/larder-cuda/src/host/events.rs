//! Events of many GPUs under numbers of one's own, which are never used twice.

use std::collections::HashMap;

use larder_core::device::DeviceError;
use larder_core::types::EventId;

/// The driver's code for a handle that it does not know.
const INVALID_HANDLE: i32 = 400;

/// An event of a GPU: which GPU, and which of its events.
pub(super) type Made = (usize, EventId);

/// What each event is by now: none was made for one that was recorded nowhere.
#[derive(Debug, Default)]
pub(super) struct Events {
    known: HashMap<u64, Option<Made>>,
    next: u64,
}

impl Events {
    pub(super) fn add(&mut self) -> EventId {
        self.next += 1;
        self.known.insert(self.next, None);
        EventId(self.next)
    }

    pub(super) fn of(&self, event: EventId) -> Result<Option<Made>, DeviceError> {
        self.known.get(&event.0).copied().ok_or_else(|| unknown(event))
    }

    pub(super) fn take(&mut self, event: EventId) -> Result<Option<Made>, DeviceError> {
        self.known.remove(&event.0).ok_or_else(|| unknown(event))
    }

    pub(super) fn put(&mut self, event: EventId, made: Option<Made>) {
        self.known.insert(event.0, made);
    }
}

fn unknown(event: EventId) -> DeviceError {
    DeviceError::Other { code: INVALID_HANDLE, text: format!("there is no event {}", event.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_gone_is_no_new_one() {
        let mut events = Events::default();
        let first = events.add();
        assert_eq!(events.of(first), Ok(None));
        events.put(first, Some((1, EventId(7))));
        assert_eq!(events.take(first), Ok(Some((1, EventId(7)))));
        let second = events.add();
        assert!(first != second && events.of(first).is_err() && events.take(first).is_err());
    }
}
