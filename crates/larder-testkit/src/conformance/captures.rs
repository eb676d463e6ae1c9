//! Checks of graph capture.

use std::collections::HashSet;

use larder_core::types::{CaptureId, NodeId, StreamId};

use super::{Check, Outcome, Subject, ensure, must, must_refuse};

pub(super) const CHECKS: &[Check] = &[
    ("a capture is about its stream, from its beginning to its end", one_stream),
    ("no two captures have the same number", numbers),
    ("captured work depends on the work before it", chain),
    ("a stream that waits for a captured one joins its capture", fork),
    ("a stream that waited for another depends on its work", join),
    ("what is not captured goes on", beside),
    ("a captured stream cannot be waited for", no_wait),
];

fn capture_of(subject: &Subject<'_>, stream: StreamId) -> Result<Option<CaptureId>, String> {
    must("capture_of", subject.device.capture_of(stream))
}

fn ends(subject: &Subject<'_>, stream: StreamId) -> Result<Vec<NodeId>, String> {
    let ends = must("capture_ends", subject.device.capture_ends(stream))?;
    let distinct: HashSet<_> = ends.iter().collect();
    ensure(distinct.len() == ends.len(), || String::from("a node is named twice"))?;
    Ok(ends)
}

/// The stream's ends and everything that they depend on.
fn before(subject: &Subject<'_>, stream: StreamId) -> Result<HashSet<NodeId>, String> {
    let (mut seen, mut left) = (HashSet::new(), ends(subject, stream)?);
    while let Some(node) = left.pop() {
        if seen.insert(node) {
            left.extend(must("node_dependencies", subject.device.node_dependencies(node))?);
        }
    }
    Ok(seen)
}

/// Captures some work on the stream, and gives the nodes that it ends in.
fn capture_work(subject: &Subject<'_>, stream: StreamId) -> Result<Vec<NodeId>, String> {
    subject.drive.issue(stream);
    let ends = ends(subject, stream)?;
    ensure(!ends.is_empty(), || String::from("captured work has no node"))?;
    Ok(ends)
}

fn one_stream(subject: &Subject<'_>) -> Outcome {
    let [stream, other] = subject.drive.streams();
    ensure(capture_of(subject, stream)?.is_none(), || "no capture was begun".to_owned())?;
    ensure(ends(subject, stream)?.is_empty(), || "there are nodes with no capture".to_owned())?;
    subject.drive.begin_capture(stream);
    let during = capture_of(subject, stream)?;
    let beside = capture_of(subject, other)?;
    let nodes = ends(subject, stream)?;
    subject.drive.issue(stream);
    subject.drive.end_capture(stream);
    ensure(during.is_some(), || "a captured stream is said not to be".to_owned())?;
    ensure(beside.is_none(), || "another stream is said to be captured".to_owned())?;
    ensure(nodes.is_empty(), || "there are nodes before anything was captured".to_owned())?;
    ensure(capture_of(subject, stream)?.is_none(), || "the capture was ended".to_owned())?;
    ensure(ends(subject, stream)?.is_empty(), || "there are nodes after the end".to_owned())
}

fn numbers(subject: &Subject<'_>) -> Outcome {
    let mut seen = HashSet::new();
    for stream in subject.drive.streams().into_iter().cycle().take(6) {
        subject.drive.begin_capture(stream);
        subject.drive.issue(stream);
        let id = capture_of(subject, stream)?;
        subject.drive.end_capture(stream);
        ensure(seen.insert(id), || format!("{id:?} is the number of two captures"))?;
    }
    Ok(())
}

fn chain(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    subject.drive.begin_capture(stream);
    let first = capture_work(subject, stream)?;
    let second = capture_work(subject, stream)?;
    let all = before(subject, stream)?;
    subject.drive.end_capture(stream);
    ensure(first != second, || "two pieces of work are one node".to_owned())?;
    ensure(first.iter().chain(&second).all(|node| all.contains(node)), || {
        "the second piece of work does not depend on the first".to_owned()
    })
}

fn fork(subject: &Subject<'_>) -> Outcome {
    let [stream, other] = subject.drive.streams();
    subject.drive.begin_capture(stream);
    let root = capture_work(subject, stream)?;
    subject.drive.follow(other, stream);
    let ids = [capture_of(subject, stream)?, capture_of(subject, other)?];
    let left = capture_work(subject, stream)?;
    let right = capture_work(subject, other)?;
    let [own, others] = [before(subject, stream)?, before(subject, other)?];
    subject.drive.follow(stream, other);
    subject.drive.end_capture(stream);
    ensure(ids[0] == ids[1], || "the stream is not under the capture that it joined".to_owned())?;
    ensure(root.iter().all(|node| others.contains(node)), || {
        "the work of the stream that joined does not depend on what it waited for".to_owned()
    })?;
    let apart = left.iter().all(|node| !others.contains(node))
        && right.iter().all(|node| !own.contains(node));
    ensure(apart, || "work depends on that of a stream that it did not wait for".to_owned())?;
    ensure(capture_of(subject, other)?.is_none(), || {
        "the capture was ended, and a stream that joined it is still captured".to_owned()
    })
}

fn join(subject: &Subject<'_>) -> Outcome {
    let [stream, other] = subject.drive.streams();
    subject.drive.begin_capture(stream);
    subject.drive.issue(stream);
    subject.drive.follow(other, stream);
    let awaited = capture_work(subject, other)?;
    let own = capture_work(subject, stream)?;
    subject.drive.follow(stream, other);
    let joined = before(subject, stream)?;
    subject.drive.issue(stream);
    let later = before(subject, stream)?;
    subject.drive.end_capture(stream);
    for (nodes, when) in [(joined, "will depend"), (later, "depends")] {
        ensure(awaited.iter().chain(&own).all(|node| nodes.contains(node)), || {
            format!("what is captured next {when} on less than it waited for")
        })?;
    }
    Ok(())
}

fn beside(subject: &Subject<'_>) -> Outcome {
    let [stream, other] = subject.drive.streams();
    let event = must("create_event", subject.device.create_event())?;
    subject.drive.begin_capture(stream);
    subject.drive.issue(stream);
    let size_bytes = subject.granularity_bytes();
    let addr = must("alloc beside a capture", subject.device.alloc(size_bytes))?;
    subject.drive.issue(other);
    must("record_event beside a capture", subject.device.record_event(event, other))?;
    must("query_event beside a capture", subject.device.query_event(event))?;
    must("wait_event beside a capture", subject.device.wait_event(event))?;
    must("wait_stream beside a capture", subject.device.wait_stream(other))?;
    let done = must("query_event beside a capture", subject.device.query_event(event))?;
    subject.drive.end_capture(stream);
    ensure(done, || "an event that was waited for is not done".to_owned())?;
    must("free", subject.device.free(addr))?;
    must("destroy_event", subject.device.destroy_event(event))
}

fn no_wait(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    subject.drive.begin_capture(stream);
    subject.drive.issue(stream);
    let refused = must_refuse("waiting for a captured stream", subject.device.wait_stream(stream));
    subject.drive.abandon_capture(stream);
    refused?;
    ensure(capture_of(subject, stream)?.is_none(), || "the capture was ended".to_owned())
}
