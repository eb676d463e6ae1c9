//! Perfetto: a snapshot as a trace in the Chrome JSON format, which <https://ui.perfetto.dev> and
//! `chrome://tracing` show.
//!
//! Each device is a process. Its memory is a counter; blocks and segments are slices that last from
//! their allocation to their free; running out of memory and taking a snapshot are instants; the
//! program's annotations are slices of a thread of their own.

use std::collections::HashMap;
use std::io::{self, Write};

use larder_core::types::Bytes;
use serde_json::{Value, json};

use crate::{Action, BlockState, Snapshot, TraceEntry};

/// The thread of the annotations and instants.
const PROGRAM: u64 = 0;

/// Writes the traces of all devices.
pub fn write(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    let mut events = Events { out, is_first: true };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for device in 0..snapshot.device_count() as u32 {
        let name = json!({ "name": format!("GPU {device}") });
        events.push(&json!({"ph": "M", "name": "process_name", "pid": device, "args": name}))?;
        let program = json!({ "name": "program" });
        events.push(&json!({
            "ph": "M", "name": "thread_name", "pid": device, "tid": PROGRAM, "args": program,
        }))?;
        trace(snapshot, device, &mut events)?;
    }
    annotations(snapshot, &mut events)?;
    events.out.write_all(b"\n]}\n")?;
    events.out.flush()
}

struct Events<W> {
    out: W,
    is_first: bool,
}

impl<W: Write> Events<W> {
    fn push(&mut self, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.is_first, false) { "\n" } else { ",\n" };
        self.out.write_all(separator.as_bytes())?;
        Ok(serde_json::to_writer(&mut self.out, event)?)
    }
}

/// How many bytes there are of each sort at one point of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    /// Asked for, in live blocks.
    allocated: i64,
    /// Asked for, in blocks that are live or awaited.
    active: i64,
    reserved: i64,
}

impl Level {
    fn follow(&mut self, entry: &TraceEntry) -> bool {
        let bytes = entry.size_bytes as i64;
        match entry.action {
            Action::Alloc => {
                self.allocated += bytes;
                self.active += bytes;
            }
            Action::FreeRequested => self.allocated -= bytes,
            Action::FreeCompleted => self.active -= bytes,
            Action::SegmentAlloc | Action::SegmentMap => self.reserved += bytes,
            Action::SegmentFree | Action::SegmentUnmap => self.reserved -= bytes,
            Action::Snapshot | Action::OutOfMemory | Action::Annotate | Action::Other => {
                return false;
            }
        }
        true
    }

    /// What there was before the first entry: what there is at the end, less what came since.
    fn before(snapshot: &Snapshot, device: u32, entries: &[TraceEntry]) -> Level {
        let mut end = Level::default();
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            end.reserved += segment.size_bytes as i64;
            for block in &segment.blocks {
                let bytes = block.requested_bytes as i64;
                match block.state {
                    BlockState::Allocated => {
                        end.allocated += bytes;
                        end.active += bytes;
                    }
                    BlockState::PendingFree => end.active += bytes,
                    BlockState::Inactive => {}
                }
            }
        }
        let mut change = Level::default();
        for entry in entries {
            change.follow(entry);
        }
        Level {
            allocated: (end.allocated - change.allocated).max(0),
            active: (end.active - change.active).max(0),
            reserved: (end.reserved - change.reserved).max(0),
        }
    }
}

fn trace<W: Write>(snapshot: &Snapshot, device: u32, events: &mut Events<W>) -> io::Result<()> {
    let entries = snapshot.trace(device).unwrap_or_default();
    let mut level = Level::before(snapshot, device, entries);
    let mut slices = Slices { device, next: 0, open: HashMap::new() };
    for entry in entries {
        match entry.action {
            Action::Alloc => slices.begin(snapshot, entry, "block", events)?,
            Action::SegmentAlloc | Action::SegmentMap => {
                slices.begin(snapshot, entry, "segment", events)?;
            }
            Action::FreeCompleted => slices.end(entry, "block", events)?,
            Action::SegmentFree | Action::SegmentUnmap => slices.end(entry, "segment", events)?,
            Action::OutOfMemory | Action::Snapshot => {
                let name = if entry.action == Action::Snapshot { "snapshot" } else { "oom" };
                events.push(&json!({
                    "ph": "i", "s": "p", "name": name, "pid": device, "tid": PROGRAM,
                    "ts": entry.time_us, "args": {"size": entry.size_bytes},
                }))?;
            }
            Action::Annotate => {
                let remark = snapshot.note(entry.note).user_metadata;
                events.push(&json!({
                    "ph": "i", "s": "p", "name": "annotate", "pid": device, "tid": PROGRAM,
                    "ts": entry.time_us,
                    "args": {
                        "address": format!("{:#x}", entry.addr),
                        "size": entry.size_bytes,
                        "user_metadata": remark.map(|text| snapshot.text(text)),
                    },
                }))?;
            }
            Action::FreeRequested | Action::Other => {}
        }
        if level.follow(entry) {
            events.push(&json!({
                "ph": "C", "name": "memory", "pid": device, "ts": entry.time_us,
                "args": {
                    "allocated": level.allocated,
                    "awaited": level.active - level.allocated,
                    "reserved": level.reserved,
                },
            }))?;
        }
    }
    Ok(())
}

/// Slices that began, by what they are and where.
struct Slices {
    device: u32,
    next: u64,
    open: HashMap<(&'static str, u64), (u64, String)>,
}

impl Slices {
    fn begin<W: Write>(
        &mut self,
        snapshot: &Snapshot,
        entry: &TraceEntry,
        what: &'static str,
        events: &mut Events<W>,
    ) -> io::Result<()> {
        // One that was left open because its end is not in the trace ends where the next begins.
        self.end(entry, what, events)?;
        let (id, name) = (self.next, Bytes(entry.size_bytes).to_string());
        self.next += 1;
        let note = snapshot.note(entry.note);
        let text = |text| snapshot.text(text);
        let frames: Vec<String> = entry.stack.map_or(Vec::new(), |stack| {
            let frames = snapshot.stack(stack);
            frames
                .map(|frame| {
                    format!("{} {}:{}", text(frame.name), text(frame.filename), frame.line)
                })
                .collect()
        });
        events.push(&json!({
            "ph": "b", "cat": what, "name": name, "id": id, "pid": self.device, "tid": PROGRAM,
            "ts": entry.time_us,
            "args": {
                "address": format!("{:#x}", entry.addr),
                "size": entry.size_bytes,
                "stream": entry.stream,
                "pool": entry.pool.map(|pool| snapshot.pool_id(pool)),
                "compile_context": note.compile_context.map(text),
                "user_metadata": note.user_metadata.map(text),
                "frames": frames,
            },
        }))?;
        self.open.insert((what, entry.addr), (id, name));
        Ok(())
    }

    fn end<W: Write>(
        &mut self,
        entry: &TraceEntry,
        what: &'static str,
        events: &mut Events<W>,
    ) -> io::Result<()> {
        let Some((id, name)) = self.open.remove(&(what, entry.addr)) else { return Ok(()) };
        events.push(&json!({
            "ph": "e", "cat": what, "name": name, "id": id, "pid": self.device, "tid": PROGRAM,
            "ts": entry.time_us,
        }))
    }
}

fn annotations<W: Write>(snapshot: &Snapshot, events: &mut Events<W>) -> io::Result<()> {
    let more = snapshot.more.as_ref().and_then(|more| more.get("external_annotations"));
    for annotation in more.and_then(Value::as_array).into_iter().flatten() {
        let phase = match annotation.get("stage").and_then(Value::as_str) {
            Some("START") => "B",
            Some("END") => "E",
            _ => continue,
        };
        let field = |key: &str| annotation.get(key).cloned().unwrap_or(Value::Null);
        events.push(&json!({
            "ph": phase, "name": field("name"), "pid": field("device"), "tid": PROGRAM,
            "ts": field("time_us"),
        }))?;
    }
    Ok(())
}
