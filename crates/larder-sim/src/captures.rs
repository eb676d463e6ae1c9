//! Graph captures: what is captured on which stream, and how it hangs together.
//!
//! A capture begins on one stream. Others join it by waiting for a stream that is in it, and all of
//! them leave it when it ends. Captured work is a node that depends on what its stream was given
//! before, and on what the stream was told to wait for.

use std::collections::{BTreeMap, BTreeSet};

use larder_core::device::DeviceError;
use larder_core::types::{CaptureId, NodeId, StreamId};

/// The driver's code for a call that a capture does not allow.
pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
/// The driver's code for the end of a capture that was broken.
const CAPTURE_INVALIDATED: i32 = 901;
/// The driver's code for a wait that would make one capture of two.
const CAPTURE_MERGE: i32 = 902;
/// The driver's code for the end of a capture on a stream that it did not begin on.
const CAPTURE_UNMATCHED: i32 = 903;
/// The driver's code for the end of a capture with work that nobody waited for.
const CAPTURE_UNJOINED: i32 = 904;
/// The driver's code for a wait for work that is not captured.
const CAPTURE_ISOLATION: i32 = 905;
/// The driver's code for a node that it does not know.
const INVALID_VALUE: i32 = 1;

/// What the device says to a call that it refuses.
pub(crate) fn refused(code: i32, text: &str) -> DeviceError {
    DeviceError::Other { code, text: text.to_owned() }
}

/// All captures that are running. Graphs are forgotten when their capture ends.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    running: BTreeMap<CaptureId, Capture>,
    begun: u64,
    /// Nodes are numbered over all captures, so that none is mistaken for another's.
    node_next: u64,
}

#[derive(Debug)]
struct Capture {
    origin: StreamId,
    broken: bool,
    /// For each stream in it, the nodes that the next one on the stream depends on.
    ends: BTreeMap<StreamId, BTreeSet<NodeId>>,
    /// For each node, those that it depends on.
    nodes: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Captures {
    pub(crate) fn begin(&mut self, stream: StreamId) -> Result<CaptureId, DeviceError> {
        if self.of(stream).is_some() {
            return Err(refused(CAPTURE_UNSUPPORTED, "the stream is captured already"));
        }
        self.begun += 1;
        let id = CaptureId(self.begun);
        let ends = BTreeMap::from([(stream, BTreeSet::new())]);
        let capture = Capture { origin: stream, broken: false, ends, nodes: BTreeMap::new() };
        self.running.insert(id, capture);
        Ok(id)
    }

    /// Ends the capture that the stream is the origin of, whatever is wrong with it.
    pub(crate) fn end(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        let found = self.running.iter().find(|(_, capture)| capture.origin == stream);
        let Some(capture) = found.map(|(&id, _)| id).and_then(|id| self.running.remove(&id)) else {
            return Err(refused(CAPTURE_UNMATCHED, "no capture was begun on the stream"));
        };
        if capture.broken {
            return Err(refused(CAPTURE_INVALIDATED, "the capture was broken"));
        }
        let awaited = capture.before(&capture.ends[&stream]);
        if capture.ends.values().flatten().any(|node| !awaited.contains(node)) {
            let text = "work on a stream that joined the capture was not waited for";
            return Err(refused(CAPTURE_UNJOINED, text));
        }
        Ok(())
    }

    /// The capture that the stream is in.
    pub(crate) fn of(&self, stream: StreamId) -> Option<CaptureId> {
        let mut running = self.running.iter();
        running.find(|(_, capture)| capture.ends.contains_key(&stream)).map(|(&id, _)| id)
    }

    /// All streams of the capture that was begun on this one, which is among them in any case.
    pub(crate) fn streams_with(&self, stream: StreamId) -> Vec<StreamId> {
        let begun = self.running.values().find(|capture| capture.origin == stream);
        begun.map_or(vec![stream], |capture| capture.ends.keys().copied().collect())
    }

    /// The nodes that the next one on the stream will depend on.
    pub(crate) fn ends(&self, stream: StreamId) -> Vec<NodeId> {
        let capture = self.of(stream).map(|id| &self.running[&id]);
        let capture = capture.filter(|capture| !capture.broken);
        capture.map_or(Vec::new(), |capture| capture.ends[&stream].iter().copied().collect())
    }

    /// The nodes that a node depends on.
    pub(crate) fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        let nodes = self.running.values().find_map(|capture| capture.nodes.get(&node));
        let nodes = nodes.ok_or_else(|| refused(INVALID_VALUE, "there is no such node"))?;
        Ok(nodes.iter().copied().collect())
    }

    /// A piece of work is captured on a stream that is in a capture.
    pub(crate) fn add_node(&mut self, stream: StreamId) {
        let Some(id) = self.of(stream) else { return };
        let capture = self.running.get_mut(&id).expect("a running capture");
        self.node_next += 1;
        let node = NodeId(self.node_next);
        let before = capture.ends.insert(stream, BTreeSet::from([node])).unwrap_or_default();
        capture.nodes.insert(node, before);
    }

    /// The stream waits for what the other one was given so far; one of them at least is captured.
    pub(crate) fn follow(&mut self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        match (self.of(stream), self.of(other)) {
            (Some(mine), None) => {
                self.break_off(mine);
                let text = "a captured stream cannot wait for work that is not captured";
                Err(refused(CAPTURE_ISOLATION, text))
            }
            (Some(mine), Some(others)) if mine != others => {
                self.break_off(mine);
                Err(refused(CAPTURE_MERGE, "two captures cannot become one"))
            }
            (_, Some(id)) => {
                let capture = self.running.get_mut(&id).expect("a running capture");
                let awaited = capture.ends[&other].clone();
                capture.ends.entry(stream).or_default().extend(awaited);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Nothing good can come of the capture any more.
    pub(crate) fn break_off(&mut self, id: CaptureId) {
        if let Some(capture) = self.running.get_mut(&id) {
            capture.broken = true;
        }
    }

    /// Breaks every capture; says whether there was one.
    pub(crate) fn break_all(&mut self) -> bool {
        for capture in self.running.values_mut() {
            capture.broken = true;
        }
        !self.running.is_empty()
    }
}

impl Capture {
    /// These nodes and all that they depend on.
    fn before(&self, ends: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut seen = BTreeSet::new();
        let mut left: Vec<NodeId> = ends.iter().copied().collect();
        while let Some(node) = left.pop() {
            if seen.insert(node) {
                left.extend(&self.nodes[&node]);
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(1);
    const SECOND: StreamId = StreamId(2);
    const THIRD: StreamId = StreamId(3);

    fn code(result: Result<(), DeviceError>) -> i32 {
        match result {
            Err(DeviceError::Other { code, .. }) => code,
            other => panic!("this should be refused, but: {other:?}"),
        }
    }

    fn node(captures: &mut Captures, stream: StreamId) -> NodeId {
        captures.add_node(stream);
        captures.ends(stream)[0]
    }

    #[test]
    fn work_depends_on_what_its_stream_was_given_before_and_on_what_it_waited_for() {
        let mut captures = Captures::default();
        captures.begin(FIRST).unwrap();
        assert_eq!(captures.ends(FIRST), []);
        let root = node(&mut captures, FIRST);
        captures.follow(SECOND, FIRST).unwrap();
        let [left, right] = [FIRST, SECOND].map(|stream| node(&mut captures, stream));
        assert_eq!(captures.dependencies(root), Ok(vec![]));
        assert_eq!(captures.dependencies(left), Ok(vec![root]));
        assert_eq!(captures.dependencies(right), Ok(vec![root]));
        captures.follow(FIRST, SECOND).unwrap();
        assert_eq!(captures.ends(FIRST), [left, right]);
        let last = node(&mut captures, FIRST);
        assert_eq!(captures.dependencies(last), Ok(vec![left, right]));
        captures.end(FIRST).unwrap();
        assert_eq!((captures.of(FIRST), captures.of(SECOND)), (None, None));
        assert!(captures.dependencies(last).is_err(), "the graph is its owner's now");
    }

    #[test]
    fn a_capture_ends_where_it_began_and_with_all_its_work_waited_for() {
        let mut captures = Captures::default();
        let id = captures.begin(FIRST).unwrap();
        captures.follow(SECOND, FIRST).unwrap();
        assert_eq!(captures.of(SECOND), Some(id));
        assert_eq!(code(captures.end(SECOND)), CAPTURE_UNMATCHED);
        assert_eq!(code(captures.begin(SECOND).map(drop)), CAPTURE_UNSUPPORTED);
        captures.add_node(SECOND);
        assert_eq!(code(captures.end(FIRST)), CAPTURE_UNJOINED);
        assert_eq!(captures.of(SECOND), None, "it is ended all the same");
        assert_eq!(code(captures.end(FIRST)), CAPTURE_UNMATCHED);
    }

    #[test]
    fn captures_do_not_mix_with_each_other_nor_with_what_runs() {
        let mut captures = Captures::default();
        captures.begin(FIRST).unwrap();
        captures.begin(SECOND).unwrap();
        assert_eq!(code(captures.follow(FIRST, SECOND)), CAPTURE_MERGE);
        assert_eq!(code(captures.follow(SECOND, THIRD)), CAPTURE_ISOLATION);
        assert_eq!(captures.of(THIRD), None);
        for stream in [FIRST, SECOND] {
            assert_eq!(code(captures.end(stream)), CAPTURE_INVALIDATED);
        }
    }
}
