//! When the work of streams ends, on a device whose time counts.

use std::collections::{BTreeMap, VecDeque};

use larder_core::types::StreamId;

/// The ends of all work that has not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    streams: BTreeMap<StreamId, Ends>,
}

/// The work of one stream, which ends in the order in which it was issued.
#[derive(Debug, Default)]
struct Ends {
    /// When all of it will have ended.
    last_ns: u64,
    /// The place of each piece of work, and when it ends.
    open: VecDeque<(u64, u64)>,
}

impl Timing {
    /// Work was put on the stream at a place: it begins when it may and what is before it has
    /// ended, and takes so long.
    pub(crate) fn begin(&mut self, stream: StreamId, place: u64, at_ns: u64, duration_ns: u64) {
        let ends = self.streams.entry(stream).or_default();
        ends.last_ns = ends.last_ns.max(at_ns) + duration_ns;
        // What ends at one time needs one entry.
        match ends.open.back_mut() {
            Some(last) if last.1 == ends.last_ns => last.0 = place,
            _ => ends.open.push_back((place, ends.last_ns)),
        }
    }

    /// When the work up to a place of the stream ends; zero if it has.
    pub(crate) fn end_of(&self, stream: StreamId, place: u64) -> u64 {
        let Some(ends) = self.streams.get(&stream) else { return 0 };
        let at = ends.open.partition_point(|&(open, _)| open < place);
        ends.open.get(at).map_or(0, |&(_, end_ns)| end_ns)
    }

    /// When all work of the stream ends.
    pub(crate) fn last_of(&self, stream: StreamId) -> u64 {
        self.streams.get(&stream).map_or(0, |ends| ends.last_ns)
    }

    /// When all work ends.
    pub(crate) fn last(&self) -> u64 {
        self.streams.values().map(|ends| ends.last_ns).max().unwrap_or(0)
    }

    /// Up to which place each stream has come by now, of those that have come further.
    pub(crate) fn settle(&mut self, now_ns: u64) -> Vec<(StreamId, u64)> {
        let mut reached = Vec::new();
        for (&stream, ends) in &mut self.streams {
            let count = ends.open.partition_point(|&(_, end_ns)| end_ns <= now_ns);
            if let Some((place, _)) = ends.open.drain(..count).next_back() {
                reached.push((stream, place));
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(1);
    const SECOND: StreamId = StreamId(2);

    #[test]
    fn work_of_a_stream_ends_one_after_the_other() {
        let mut timing = Timing::default();
        timing.begin(FIRST, 1, 100, 50);
        timing.begin(FIRST, 2, 110, 50);
        timing.begin(SECOND, 1, 110, 20);
        assert_eq!([1, 2].map(|place| timing.end_of(FIRST, place)), [150, 200]);
        assert_eq!((timing.last_of(SECOND), timing.last()), (130, 200));
        assert_eq!(timing.settle(149), [(SECOND, 1)]);
        assert_eq!(timing.settle(150), [(FIRST, 1)]);
        assert_eq!(timing.end_of(FIRST, 1), 200, "places are asked for while they are open");
        assert_eq!(timing.settle(1000), [(FIRST, 2)]);
        assert_eq!(timing.end_of(FIRST, 2), 0);
        timing.begin(FIRST, 3, 1000, 0);
        assert_eq!(timing.last_of(FIRST), 1000, "it was idle in between");
    }
}
