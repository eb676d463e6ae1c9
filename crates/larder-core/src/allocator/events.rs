//! Events: recorded when a block that other streams used is freed, and asked for or waited for one
//! by one.

use crate::allocator::Inner;
use crate::device::Device;
use crate::error::Error;
use crate::heap::ids::BlockId;
use crate::types::{EventId, StreamId};

/// Events that nobody waits for, kept because making one is slow.
#[derive(Default)]
pub(super) struct EventPool {
    spare: Vec<EventId>,
}

impl EventPool {
    fn get(&mut self, device: &dyn Device) -> Result<EventId, Error> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => device.create_event().map_err(Error::device("create an event")),
        }
    }

    pub(super) fn give(&mut self, event: EventId) {
        self.spare.push(event);
    }

    /// Gives the spare events back to the device.
    pub(super) fn destroy_spare(&mut self, device: &dyn Device) {
        for event in self.spare.drain(..) {
            let _ = device.destroy_event(event);
        }
    }
}

impl Inner {
    /// Frees a block that other streams used: an event on each of them, and the block waits. If an
    /// event cannot be recorded the block stays live, as if `free` had not been called.
    pub(super) fn free_after_events(
        &mut self,
        device: &dyn Device,
        block: BlockId,
    ) -> Result<(), Error> {
        let streams = self.heap.uses(block).to_vec();
        let events = self.record_events(device, &streams)?;
        self.heap.put_after(block, &events);
        Ok(())
    }

    /// Records an event on each of the streams, or on none.
    pub(super) fn record_events(
        &mut self,
        device: &dyn Device,
        streams: &[StreamId],
    ) -> Result<Vec<(StreamId, EventId)>, Error> {
        let mut recorded = Vec::with_capacity(streams.len());
        for &stream in streams {
            match self.record_event(device, stream) {
                Ok(event) => recorded.push((stream, event)),
                Err(error) => {
                    self.unrecord(recorded);
                    return Err(error);
                }
            }
        }
        Ok(recorded)
    }

    /// Nobody waits for these events after all. An event that is recorded but not awaited does no
    /// harm.
    pub(super) fn unrecord(&mut self, events: Vec<(StreamId, EventId)>) {
        for (_, event) in events {
            self.events.give(event);
        }
    }

    pub(super) fn record_event(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
    ) -> Result<EventId, Error> {
        let event = self.events.get(device)?;
        let result = device.record_event(event, stream);
        if let Err(error) = result {
            self.events.give(event);
            return Err(Error::Device { call: "record an event", error });
        }
        Ok(event)
    }

    /// Whether all that a stream was given before an event is done.
    pub(super) fn is_done(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        event: EventId,
    ) -> Result<bool, Error> {
        match device.query_event(event) {
            Err(error) if error.is_captured_event() => {
                self.record_again(device, stream, event)?;
                Ok(false)
            }
            result => result.map_err(Error::device("query an event")),
        }
    }

    /// The same, and waits if it is not. Then it is done, but for what came into a capture that
    /// still runs.
    pub(super) fn wait_until_done(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        event: EventId,
    ) -> Result<bool, Error> {
        let mut result = device.wait_event(event);
        if let Err(error) = &result
            && error.is_captured_event()
        {
            if !self.record_again(device, stream, event)? {
                return Ok(false);
            }
            result = device.wait_event(event);
        }
        result.map(|()| true).map_err(Error::device("wait for an event"))
    }

    /// A stream had come under somebody's capture before its event was recorded, and nobody could
    /// tell: the event is the capture's and is never done. It is recorded once more, if that can be
    /// by now; those that were recorded behind it are done before it, and are asked for after it
    /// all the same.
    fn record_again(
        &mut self,
        device: &dyn Device,
        stream: StreamId,
        event: EventId,
    ) -> Result<bool, Error> {
        let may_record = self.may_wait_for(device, stream, None)?;
        if may_record {
            device.record_event(event, stream).map_err(Error::device("record an event"))?;
        }
        Ok(may_record)
    }

    pub(super) fn event_done(&mut self, stream: StreamId, at: usize) {
        if let Some(event) = self.heap.event_done(stream, at) {
            self.events.give(event);
        }
    }
}
