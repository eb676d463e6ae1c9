//! Blocks that were freed and wait: taken back once the events of all users are done. Where
//! a capture put the free off, the events are recorded first, as soon as they can be.

use std::collections::HashMap;
use std::thread;

use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::Error;
use crate::heap::ids::BlockId;
use crate::record::Record;
use crate::record::event::Level;
use crate::types::{EventId, PoolId, StreamId};

impl Allocator {
    /// Takes back what waits for work that is done by now. The next request does the same; whoever
    /// has a thread to spare saves it the questions. While a pool's scope is open nothing is done.
    pub fn poll(&self) -> Result<(), Error> {
        let mut inner = self.enter(Level::All);
        let is_asked = !inner.heap.is_idle() && !inner.heap.pools().may_capture();
        let polled = if is_asked { inner.poll_events(&*self.device) } else { Ok(()) };
        drop(inner);
        self.leave();
        polled
    }
}

impl Inner {
    /// Frees the blocks whose events are done. Of each stream only the first event that is not
    /// done is asked for: those behind it cannot be done either.
    pub(super) fn poll_events(&mut self, device: &dyn Device) -> Result<(), Error> {
        self.record_put_off(device)?;
        self.take_done(device, Inner::is_done)
    }

    /// Waits for all events and frees their blocks, but for those that came into somebody's
    /// capture: it would be for ever.
    pub(super) fn wait_for_events(&mut self, device: &dyn Device) -> Result<(), Error> {
        self.heap.recorder_mut().record(Record::SyncAllStreams);
        self.record_put_off(device)?;
        self.take_done(device, Inner::wait_until_done)
    }

    /// Waits for the events of one private pool's blocks and frees these.
    pub(super) fn wait_for_events_of(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
    ) -> Result<(), Error> {
        self.heap.recorder_mut().record(Record::SyncAllStreams);
        self.record_put_off(device)?;
        while let Some((stream, at, event)) = self.heap.awaited_of(pool) {
            if !self.wait_until_done(device, stream, event)? {
                break;
            }
            self.event_done(stream, at);
        }
        Ok(())
    }

    /// Goes over the streams, and over the events of each up to the first that is not done.
    fn take_done(
        &mut self,
        device: &dyn Device,
        is_done: impl Fn(&mut Inner, &dyn Device, StreamId, EventId) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut from = StreamId(0);
        while let Some((stream, event)) = self.heap.awaited_from(from) {
            if is_done(self, device, stream, event)? {
                self.event_done(stream, 0);
                from = stream;
            } else if stream.0 == u64::MAX {
                break;
            } else {
                from = StreamId(stream.0 + 1);
            }
        }
        Ok(())
    }

    /// Records the events of blocks whose free was put off by a capture, if they no longer have to
    /// be put off. Work of the capture itself is not waited for: it has not run.
    pub(super) fn record_put_off(&mut self, device: &dyn Device) -> Result<(), Error> {
        self.record_these_put_off(device, self.heap.all_put_off())
    }

    /// Records the events of those of one private pool.
    pub(super) fn record_put_off_of(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
    ) -> Result<(), Error> {
        let mut put_off = self.heap.all_put_off();
        put_off.retain(|&block| self.heap.inventory().pool_of(block) == Some(pool));
        self.record_these_put_off(device, put_off)
    }

    fn record_these_put_off(
        &mut self,
        device: &dyn Device,
        put_off: Vec<BlockId>,
    ) -> Result<(), Error> {
        if put_off.is_empty() {
            return Ok(());
        }
        let diverted = self.heap.pools().may_capture();
        let by_stream = self.heap.policy().capture_is_by_stream();
        let (alone, me) = (self.is_alone(), thread::current().id());
        let mut asked = HashMap::new();
        if diverted && by_stream && alone && self.observed.holds_any() {
            for stream in self.observed.seen() {
                asked.insert(stream, self.ask(device, stream)?.is_some());
            }
        }
        // Whatever the policy, no event is recorded on a stream that somebody may be capturing.
        if diverted && !alone {
            self.ask_own_origins(device)?;
        }
        for block in put_off {
            let uses = self.heap.uses_outside_captures(block);
            if self.observed.is_any_gone(&uses) {
                continue;
            }
            if diverted {
                // Where any scope is taken for a capture, that puts nothing off here; but a stream
                // that really is captured does.
                let is_scope_enough = alone && !by_stream;
                let mut captured = !is_scope_enough && self.observed.is_held(block);
                let streams =
                    if is_scope_enough { uses.clone() } else { self.heap.streams_of(block) };
                for stream in streams {
                    captured |= match asked.get(&stream) {
                        Some(&captured) => captured,
                        None if alone => {
                            let captured = self.ask(device, stream)?.is_some();
                            asked.insert(stream, captured);
                            captured
                        }
                        None => self.observed.is_suspect(stream, me),
                    };
                }
                if captured || !alone && self.may_be_captured(&uses) {
                    continue;
                }
            }
            let events = self.record_events(device, &uses)?;
            self.heap.await_put_off(block, &events);
            self.observed.hold(block, None);
        }
        Ok(())
    }
}
