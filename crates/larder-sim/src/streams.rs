//! Streams and events: work as sequence numbers.
//!
//! Work on a stream finishes in the order in which it was issued, so how far a stream has come is
//! one number, and an event is a place in that order.

use std::collections::{BTreeMap, VecDeque};

use larder_core::device::DeviceError;
use larder_core::types::{CaptureId, EventId, StreamId};

use crate::captures::{CAPTURE_UNSUPPORTED, Captures, refused};

/// The driver's code for a handle that it does not know.
const INVALID_HANDLE: i32 = 400;

/// All streams and events of one device. A stream exists as soon as it is named.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    progress: BTreeMap<StreamId, Stream>,
    events: BTreeMap<u64, Recorded>,
    event_next: u64,
    captures: Captures,
    /// Where streams wait for others, in the order of each one's own work.
    follows: BTreeMap<StreamId, VecDeque<Follow>>,
}

/// Whatever comes behind a place of one stream comes behind a place of another.
#[derive(Clone, Copy, Debug)]
struct Follow {
    place: u64,
    other: StreamId,
    other_place: u64,
}

/// How far a stream had been given work at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Which stream.
    pub stream: StreamId,
    sequence: u64,
}

/// How far one stream has come. It holds that `waited <= finished <= issued`.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    issued: u64,
    finished: u64,
    /// The part of the finished work that somebody waited for. A late event may not yet say that
    /// it is done, but behind a wait there is no excuse.
    waited: u64,
}

/// Where an event was recorded last.
#[derive(Clone, Copy, Debug)]
enum Recorded {
    Nowhere,
    Among(Standing),
    /// In a capture: it stands for no work that runs.
    Captured(CaptureId),
}

/// Where an event stands.
#[derive(Clone, Copy, Debug)]
struct Standing {
    stream: StreamId,
    sequence: u64,
    /// How many queries will still be told "not yet" after the work has finished.
    late_queries: u32,
}

impl Streams {
    /// Puts a piece of work on the stream, or into its capture.
    pub(crate) fn issue(&mut self, stream: StreamId) {
        if self.captures.of(stream).is_some() {
            self.captures.add_node(stream);
        } else {
            self.progress.entry(stream).or_default().issued += 1;
        }
    }

    /// Lets the stream wait for what the other one has been given so far. Of streams that are not
    /// captured only the wait itself is modelled: it is a piece of work.
    pub(crate) fn follow(&mut self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        if self.captures.of(stream).is_some() || self.captures.of(other).is_some() {
            return self.captures.follow(stream, other);
        }
        self.issue(stream);
        Ok(())
    }

    pub(crate) fn begin_capture(&mut self, stream: StreamId) -> Result<CaptureId, DeviceError> {
        self.captures.begin(stream)
    }

    pub(crate) fn end_capture(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.captures.end(stream)
    }

    /// The captures that are running.
    pub(crate) fn captures(&self) -> &Captures {
        &self.captures
    }

    /// All work issued on the stream so far has finished.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        let issued = self.progress.entry(stream).or_default().issued;
        self.reach(stream, issued, |work, sequence| {
            work.finished = work.finished.max(sequence);
        });
    }

    /// The work of the stream up to a place has finished.
    pub(crate) fn finish_up_to(&mut self, stream: StreamId, place: u64) {
        self.reach(stream, place, |work, sequence| {
            work.finished = work.finished.max(sequence);
        });
    }

    /// How much work the stream has been given: the place of the last piece.
    pub(crate) fn last_place(&self, stream: StreamId) -> u64 {
        self.progress.get(&stream).map_or(0, |work| work.issued)
    }

    /// Where an event stands among work that runs.
    pub(crate) fn place_of(&self, event: EventId) -> Option<(StreamId, u64)> {
        match self.events.get(&event.0) {
            Some(Recorded::Among(record)) => Some((record.stream, record.sequence)),
            _ => None,
        }
    }

    /// Whether work issued on the stream has not finished yet.
    pub(crate) fn is_busy(&self, stream: StreamId) -> bool {
        self.progress.get(&stream).is_some_and(|stream| stream.finished < stream.issued)
    }

    /// The end of the work that the stream has been given so far.
    pub(crate) fn moment(&self, stream: StreamId) -> Moment {
        let sequence = self.progress.get(&stream).map_or(0, |work| work.issued);
        Moment { stream, sequence }
    }

    /// Whether the work up to the moment has finished.
    pub(crate) fn is_over(&self, moment: Moment) -> bool {
        let finished = self.progress.get(&moment.stream).map_or(0, |work| work.finished);
        moment.sequence <= finished
    }

    /// Whether work issued on the stream from now on begins when the work up to the moment has
    /// finished: it is the stream's own, has finished, or is waited for, perhaps by way of other
    /// streams.
    pub(crate) fn comes_after(&self, stream: StreamId, moment: Moment) -> bool {
        if self.is_over(moment) {
            return true;
        }
        // How far each stream is waited for, as far as it was found out.
        let mut reached = BTreeMap::from([(stream, u64::MAX)]);
        let mut open = vec![(stream, u64::MAX)];
        while let Some((stream, sequence)) = open.pop() {
            let follows = self.follows.get(&stream).into_iter().flatten();
            for follow in follows.take_while(|follow| follow.place <= sequence) {
                let known = reached.entry(follow.other).or_insert(0);
                if *known < follow.other_place {
                    *known = follow.other_place;
                    open.push((follow.other, follow.other_place));
                }
            }
        }
        reached.get(&moment.stream).is_some_and(|&sequence| sequence >= moment.sequence)
    }

    pub(crate) fn create_event(&mut self) -> EventId {
        self.event_next += 1;
        self.events.insert(self.event_next, Recorded::Nowhere);
        EventId(self.event_next)
    }

    pub(crate) fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events.remove(&event.0).map(drop).ok_or_else(|| unknown_event(event))
    }

    /// How many events there are that nobody has destroyed.
    pub(crate) fn event_count(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn record_event(
        &mut self,
        event: EventId,
        stream: StreamId,
        late_queries: u32,
    ) -> Result<(), DeviceError> {
        let record = self.events.get_mut(&event.0).ok_or_else(|| unknown_event(event))?;
        if let Some(capture) = self.captures.of(stream) {
            *record = Recorded::Captured(capture);
            return Ok(());
        }
        let work = self.progress.entry(stream).or_default();
        work.issued += 1;
        *record = Recorded::Among(Standing { stream, sequence: work.issued, late_queries });
        Ok(())
    }

    /// The record of an event that runs, none if it was recorded nowhere. To ask for one that
    /// belongs to a capture breaks the capture.
    fn record_of(&mut self, event: EventId) -> Result<Option<&mut Standing>, DeviceError> {
        match self.events.get_mut(&event.0).ok_or_else(|| unknown_event(event))? {
            Recorded::Nowhere => Ok(None),
            Recorded::Among(record) => Ok(Some(record)),
            Recorded::Captured(capture) => {
                self.captures.break_off(*capture);
                Err(refused(DeviceError::CAPTURED_EVENT, "the event was recorded in a capture"))
            }
        }
    }

    pub(crate) fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let Some(&mut record) = self.record_of(event)? else { return Ok(true) };
        let stream = self.progress[&record.stream];
        if record.sequence <= stream.waited {
            return Ok(true);
        }
        if record.sequence > stream.finished {
            return Ok(false);
        }
        if let Some(record) = self.record_of(event)? {
            record.late_queries = record.late_queries.saturating_sub(1);
        }
        Ok(record.late_queries == 0)
    }

    pub(crate) fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        if let Some(&mut record) = self.record_of(event)? {
            self.wait_until(record.stream, record.sequence);
        }
        Ok(())
    }

    /// Lets the stream wait for the event. A captured stream cannot wait for work that runs.
    pub(crate) fn follow_event(
        &mut self,
        stream: StreamId,
        event: EventId,
    ) -> Result<(), DeviceError> {
        if let Some(capture) = self.captures.of(stream) {
            self.captures.break_off(capture);
            let text = "a captured stream cannot wait for work outside of its capture";
            return Err(refused(CAPTURE_UNSUPPORTED, text));
        }
        let Some(&mut record) = self.record_of(event)? else { return Ok(()) };
        let work = self.progress.entry(stream).or_default();
        work.issued += 1;
        let (other, other_place) = (record.stream, record.sequence);
        let follow = Follow { place: work.issued, other, other_place };
        self.follows.entry(stream).or_default().push_back(follow);
        Ok(())
    }

    /// The work of a stream is waited for up to a place, and with it all that this waits for.
    fn wait_until(&mut self, stream: StreamId, sequence: u64) {
        self.reach(stream, sequence, Stream::wait_for);
    }

    /// A stream has come to a place, and so have those that it waited for on the way.
    fn reach(&mut self, stream: StreamId, sequence: u64, come: impl Fn(&mut Stream, u64) + Copy) {
        come(self.progress.entry(stream).or_default(), sequence);
        while let Some(follow) = self.follow_before(stream, sequence) {
            self.reach(follow.other, follow.other_place, come);
        }
    }

    /// Takes off the first place up to here at which the stream waits for another.
    fn follow_before(&mut self, stream: StreamId, sequence: u64) -> Option<Follow> {
        let follows = self.follows.get_mut(&stream)?;
        let is_before = follows.front().is_some_and(|follow| follow.place <= sequence);
        if is_before { follows.pop_front() } else { None }
    }

    pub(crate) fn wait_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        if let Some(capture) = self.captures.of(stream) {
            self.captures.break_off(capture);
            return Err(refused(CAPTURE_UNSUPPORTED, "a captured stream cannot be waited for"));
        }
        let issued = self.progress.entry(stream).or_default().issued;
        self.wait_until(stream, issued);
        Ok(())
    }

    pub(crate) fn wait_device(&mut self) -> Result<(), DeviceError> {
        if self.captures.break_all() {
            let text = "the device cannot be waited for while a stream is captured";
            return Err(refused(CAPTURE_UNSUPPORTED, text));
        }
        self.follows.clear();
        for stream in self.progress.values_mut() {
            stream.wait_for(stream.issued);
        }
        Ok(())
    }
}

impl Stream {
    fn wait_for(&mut self, sequence: u64) {
        self.finished = self.finished.max(sequence);
        self.waited = self.waited.max(sequence);
    }
}

fn unknown_event(event: EventId) -> DeviceError {
    DeviceError::Other { code: INVALID_HANDLE, text: format!("there is no event {}", event.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(1);
    const SECOND: StreamId = StreamId(2);

    #[test]
    fn an_event_is_done_at_the_next_sync_of_its_own_stream() {
        let mut streams = Streams::default();
        let event = streams.create_event();
        assert_eq!(streams.query_event(event), Ok(true), "recorded nowhere");

        streams.finish(FIRST);
        streams.record_event(event, FIRST, 0).unwrap();
        assert_eq!(streams.query_event(event), Ok(false), "the sync came before the record");
        streams.finish(SECOND);
        assert_eq!(streams.query_event(event), Ok(false), "the sync was of another stream");
        streams.finish(FIRST);
        assert_eq!(streams.query_event(event), Ok(true));
    }

    #[test]
    fn waiting_for_an_event_finishes_what_was_before_it_and_no_more() {
        let mut streams = Streams::default();
        let [early, middle, late] = [(); 3].map(|()| streams.create_event());
        for event in [early, middle, late] {
            streams.record_event(event, FIRST, 0).unwrap();
        }
        streams.wait_event(middle).unwrap();
        let done = [early, middle, late].map(|event| streams.query_event(event).unwrap());
        assert_eq!(done, [true, true, false]);
        assert!(streams.is_busy(FIRST));
        streams.wait_stream(FIRST).unwrap();
        assert_eq!(streams.query_event(late), Ok(true));
    }

    #[test]
    fn a_new_record_forgets_the_old_one() {
        let mut streams = Streams::default();
        let event = streams.create_event();
        streams.record_event(event, FIRST, 0).unwrap();
        streams.record_event(event, SECOND, 0).unwrap();
        streams.finish(FIRST);
        assert_eq!(streams.query_event(event), Ok(false));
        streams.wait_device().unwrap();
        assert_eq!(streams.query_event(event), Ok(true));
    }

    #[test]
    fn work_comes_after_what_its_stream_waited_for_on_any_way() {
        const THIRD: StreamId = StreamId(3);
        let mut streams = Streams::default();
        let event = streams.create_event();
        streams.issue(FIRST);
        let moment = streams.moment(FIRST);
        assert!(streams.comes_after(FIRST, moment), "its own");
        assert!(!streams.comes_after(SECOND, moment));

        streams.record_event(event, FIRST, 0).unwrap();
        streams.follow_event(SECOND, event).unwrap();
        assert!(streams.comes_after(SECOND, moment));
        assert!(!streams.comes_after(THIRD, moment));
        streams.record_event(event, SECOND, 0).unwrap();
        streams.follow_event(THIRD, event).unwrap();
        assert!(streams.comes_after(THIRD, moment), "by way of the second");

        streams.issue(FIRST);
        let later = streams.moment(FIRST);
        assert!(!streams.comes_after(THIRD, later), "it was issued behind the event");
        streams.finish(FIRST);
        assert!(streams.comes_after(THIRD, later), "it has finished");
    }

    #[test]
    fn what_was_waited_for_before_a_wait_of_ones_own_is_not_waited_for() {
        const THIRD: StreamId = StreamId(3);
        let mut streams = Streams::default();
        let event = streams.create_event();
        streams.record_event(event, SECOND, 0).unwrap();
        streams.follow_event(THIRD, event).unwrap();
        streams.issue(FIRST);
        let moment = streams.moment(FIRST);
        streams.record_event(event, FIRST, 0).unwrap();
        streams.follow_event(SECOND, event).unwrap();
        assert!(!streams.comes_after(THIRD, moment), "the second waited only later");
    }

    #[test]
    fn a_late_event_takes_its_time_unless_somebody_waits() {
        let mut streams = Streams::default();
        let event = streams.create_event();
        streams.record_event(event, FIRST, 2).unwrap();
        streams.finish(FIRST);
        let answers: Vec<bool> = (0..4).map(|_| streams.query_event(event).unwrap()).collect();
        assert_eq!(answers, [false, false, true, true]);

        streams.record_event(event, FIRST, 1000).unwrap();
        streams.finish(FIRST);
        assert_eq!(streams.query_event(event), Ok(false));
        streams.wait_stream(FIRST).unwrap();
        assert_eq!(streams.query_event(event), Ok(true));
    }

    #[test]
    fn what_belongs_to_a_capture_cannot_be_waited_for() {
        let mut streams = Streams::default();
        let [before, within] = [(); 2].map(|()| streams.create_event());
        streams.record_event(before, FIRST, 0).unwrap();
        streams.begin_capture(FIRST).unwrap();
        streams.record_event(within, FIRST, 0).unwrap();
        streams.finish(FIRST);
        assert_eq!(streams.query_event(before), Ok(true), "it was recorded before the capture");
        streams.wait_stream(SECOND).unwrap();
        streams.end_capture(FIRST).unwrap();

        for misuse in [
            |streams: &mut Streams, event| streams.query_event(event).map(drop),
            |streams: &mut Streams, event| streams.wait_event(event),
            |streams: &mut Streams, _| streams.wait_stream(FIRST),
            |streams: &mut Streams, _| streams.wait_device(),
        ] {
            let id = streams.begin_capture(FIRST).unwrap();
            streams.issue(FIRST);
            streams.record_event(within, FIRST, 0).unwrap();
            assert!(misuse(&mut streams, within).is_err());
            assert_eq!(streams.captures().of(FIRST), Some(id), "broken, not ended");
            assert_eq!(streams.captures().ends(FIRST), []);
            assert!(streams.end_capture(FIRST).is_err());
            assert_eq!(streams.captures().of(FIRST), None);
        }
    }

    #[test]
    fn an_event_that_is_gone_is_an_error_everywhere() {
        let mut streams = Streams::default();
        let event = streams.create_event();
        streams.destroy_event(event).unwrap();
        assert!(streams.destroy_event(event).is_err());
        assert!(streams.record_event(event, FIRST, 0).is_err());
        assert!(streams.query_event(event).is_err());
        assert!(streams.wait_event(event).is_err());
        assert!(!streams.is_busy(FIRST), "the failed record was no work");
        assert_eq!(streams.event_count(), 0);
    }
}
