//! Checks of streams and events.

use larder_core::types::EventId;

use super::{Check, Outcome, Subject, ensure, must, must_refuse};

pub(super) const CHECKS: &[Check] = &[
    ("an event recorded nowhere is done", unrecorded),
    ("an event waits for the work in front of it", in_order),
    ("an event does not wait for the work behind it", work_behind),
    ("an event is about one stream", one_stream),
    ("a new record forgets the old one", record_again),
    ("waiting for an event finishes it", wait_event),
    ("a stream that follows an event begins behind it", follow_event),
    ("waiting for a stream finishes its events", wait_stream),
    ("waiting for the device finishes every stream", wait_device),
    ("a destroyed event is an error", destroyed),
];

fn create(subject: &Subject<'_>) -> Result<EventId, String> {
    must("create_event", subject.device.create_event())
}

fn destroy(subject: &Subject<'_>, event: EventId) -> Outcome {
    must("destroy_event", subject.device.destroy_event(event))
}

/// Fails unless the event is, or is not, done.
fn expect(subject: &Subject<'_>, event: EventId, done: bool, when: &str) -> Outcome {
    let answer = must("query_event", subject.device.query_event(event))?;
    let said = if answer { "is done" } else { "is not done" };
    ensure(answer == done, || format!("the event {said} {when}"))
}

fn unrecorded(subject: &Subject<'_>) -> Outcome {
    let [first, second] = [create(subject)?, create(subject)?];
    ensure(first != second, || String::from("two events are one"))?;
    expect(subject, first, true, "before it is recorded")?;
    must("wait_event", subject.device.wait_event(first))?;
    destroy(subject, first)?;
    destroy(subject, second)
}

fn in_order(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    let event = create(subject)?;
    subject.drive.hold(stream);
    must("record_event", subject.device.record_event(event, stream))?;
    expect(subject, event, false, "while the work in front of it is held")?;
    expect(subject, event, false, "when asked again")?;
    subject.drive.finish(stream);
    expect(subject, event, true, "after the work in front of it has finished")?;
    destroy(subject, event)
}

fn work_behind(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    let event = create(subject)?;
    must("record_event", subject.device.record_event(event, stream))?;
    must("wait_event", subject.device.wait_event(event))?;
    subject.drive.hold(stream);
    expect(subject, event, true, "with work only behind it")?;
    subject.drive.finish(stream);
    destroy(subject, event)
}

fn one_stream(subject: &Subject<'_>) -> Outcome {
    let [held, other] = subject.drive.streams();
    let [first, second] = [create(subject)?, create(subject)?];
    subject.drive.hold(held);
    must("record_event", subject.device.record_event(first, held))?;
    must("record_event", subject.device.record_event(second, other))?;
    must("wait_stream", subject.device.wait_stream(other))?;
    expect(subject, second, true, "after its stream was waited for")?;
    expect(subject, first, false, "after another stream was waited for")?;
    subject.drive.finish(held);
    expect(subject, first, true, "after its stream has finished")?;
    destroy(subject, first)?;
    destroy(subject, second)
}

fn record_again(subject: &Subject<'_>) -> Outcome {
    let [held, other] = subject.drive.streams();
    let event = create(subject)?;
    must("record_event", subject.device.record_event(event, other))?;
    must("wait_stream", subject.device.wait_stream(other))?;
    subject.drive.hold(held);
    must("record_event", subject.device.record_event(event, held))?;
    expect(subject, event, false, "where it was recorded last")?;
    must("record_event", subject.device.record_event(event, other))?;
    must("wait_stream", subject.device.wait_stream(other))?;
    expect(subject, event, true, "though only its first stream is held")?;
    subject.drive.finish(held);
    destroy(subject, event)
}

fn wait_event(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    let event = create(subject)?;
    subject.drive.issue(stream);
    must("record_event", subject.device.record_event(event, stream))?;
    must("wait_event", subject.device.wait_event(event))?;
    expect(subject, event, true, "after waiting for it")?;
    must("wait_event again", subject.device.wait_event(event))?;
    destroy(subject, event)
}

fn follow_event(subject: &Subject<'_>) -> Outcome {
    let [held, other] = subject.drive.streams();
    let [first, second] = [create(subject)?, create(subject)?];
    subject.drive.hold(held);
    must("record_event", subject.device.record_event(first, held))?;
    must("follow_event", subject.device.follow_event(other, first))?;
    must("record_event", subject.device.record_event(second, other))?;
    expect(subject, second, false, "while what its stream waits for is held")?;
    subject.drive.finish(held);
    must("wait_event", subject.device.wait_event(second))?;
    expect(subject, first, true, "though what waits for it is done")?;
    // A new record of the event is nothing to who waited for the old one.
    must("follow_event", subject.device.follow_event(other, first))?;
    subject.drive.hold(held);
    must("record_event", subject.device.record_event(first, held))?;
    must("wait_stream", subject.device.wait_stream(other))?;
    expect(subject, first, false, "though its stream is held")?;
    subject.drive.finish(held);
    let gone = create(subject)?;
    destroy(subject, gone)?;
    must_refuse("following a destroyed event", subject.device.follow_event(other, gone))?;
    destroy(subject, first)?;
    destroy(subject, second)
}

fn wait_stream(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    let [first, second] = [create(subject)?, create(subject)?];
    for event in [first, second] {
        subject.drive.issue(stream);
        must("record_event", subject.device.record_event(event, stream))?;
    }
    must("wait_stream", subject.device.wait_stream(stream))?;
    for event in [first, second] {
        expect(subject, event, true, "after waiting for its stream")?;
        destroy(subject, event)?;
    }
    Ok(())
}

fn wait_device(subject: &Subject<'_>) -> Outcome {
    let mut events = Vec::new();
    for stream in subject.drive.streams() {
        let event = create(subject)?;
        subject.drive.issue(stream);
        must("record_event", subject.device.record_event(event, stream))?;
        events.push(event);
    }
    must("wait_device", subject.device.wait_device())?;
    for event in events {
        expect(subject, event, true, "after waiting for the device")?;
        destroy(subject, event)?;
    }
    Ok(())
}

fn destroyed(subject: &Subject<'_>) -> Outcome {
    let [stream, _] = subject.drive.streams();
    let event = create(subject)?;
    destroy(subject, event)?;
    must_refuse("destroying an event twice", subject.device.destroy_event(event))?;
    must_refuse("recording a destroyed event", subject.device.record_event(event, stream))?;
    must_refuse("asking a destroyed event", subject.device.query_event(event))?;
    must_refuse("waiting for a destroyed event", subject.device.wait_event(event))
}
