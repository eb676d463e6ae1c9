//! Emit: a snapshot as torch's dictionary, key by key, to whatever writes it down.

use std::io;

use serde_json::{Map, Value};

use super::{Action, BlockInfo, Frame, SegmentInfo, Snapshot, StackId, TraceEntry, word};

/// Takes a dictionary piece by piece.
pub(super) trait Emitter {
    fn begin_dict(&mut self) -> io::Result<()>;
    fn key(&mut self, key: &str) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    /// The next item of the list comes now.
    fn item(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    fn none(&mut self) -> io::Result<()>;
    fn boolean(&mut self, is: bool) -> io::Result<()>;
    fn integer(&mut self, number: i64) -> io::Result<()>;
    fn float(&mut self, number: f64) -> io::Result<()>;
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// The two numbers of a pool.
    fn pool(&mut self, pool: (u64, u64)) -> io::Result<()>;
    /// Whether the list of this number was written before and is the next value now.
    fn is_repeated(&mut self, number: u32) -> io::Result<bool>;
    /// The list that ended just now is that of this number.
    fn may_repeat(&mut self, number: u32) -> io::Result<()>;
}

/// The whole snapshot.
pub(super) fn snapshot(snapshot: &Snapshot, out: &mut impl Emitter) -> io::Result<()> {
    let Some(more) = &snapshot.more else {
        return segments(snapshot, out);
    };
    out.begin_dict()?;
    out.key("segments")?;
    segments(snapshot, out)?;
    out.key("device_traces")?;
    out.begin_list()?;
    for device in 0..snapshot.device_count() as u32 {
        out.item()?;
        out.begin_list()?;
        for (index, entry) in snapshot.trace(device).unwrap_or_default().iter().enumerate() {
            out.item()?;
            let more = entry.has_more.then(|| snapshot.more_of_entry(device, index)).flatten();
            trace_entry(snapshot, entry, more, out)?;
        }
        out.end_list()?;
    }
    out.end_list()?;
    members(more, out)?;
    out.end_dict()
}

fn segments(snapshot: &Snapshot, out: &mut impl Emitter) -> io::Result<()> {
    out.begin_list()?;
    for info in &snapshot.segments {
        out.item()?;
        segment(snapshot, info, out)?;
    }
    out.end_list()
}

fn segment(snapshot: &Snapshot, info: &SegmentInfo, out: &mut impl Emitter) -> io::Result<()> {
    out.begin_dict()?;
    out.key("device")?;
    out.integer(i64::from(info.device))?;
    number(out, "address", info.addr)?;
    number(out, "total_size", info.size_bytes)?;
    members(&info.more, out)?;
    number(out, "stream", info.stream)?;
    out.key("segment_type")?;
    out.text(if info.is_small { "small" } else { "large" })?;
    out.key("segment_pool_id")?;
    out.pool(info.pool_id)?;
    out.key("is_expandable")?;
    out.boolean(info.is_expandable)?;
    out.key("frames")?;
    stack(snapshot, info.stack, out)?;
    out.key("blocks")?;
    out.begin_list()?;
    for info in &info.blocks {
        out.item()?;
        block(snapshot, info, out)?;
    }
    out.end_list()?;
    out.end_dict()
}

fn block(snapshot: &Snapshot, info: &BlockInfo, out: &mut impl Emitter) -> io::Result<()> {
    out.begin_dict()?;
    number(out, "address", info.addr)?;
    number(out, "size", info.size_bytes)?;
    number(out, "requested_size", info.requested_bytes)?;
    out.key("state")?;
    out.text(word::state_name(info.state))?;
    out.key("frames")?;
    stack(snapshot, info.stack, out)?;
    more_members(info.more.map(|more| snapshot.text(more)), out)?;
    out.end_dict()
}

fn trace_entry(
    snapshot: &Snapshot,
    entry: &TraceEntry,
    more: Option<&str>,
    out: &mut impl Emitter,
) -> io::Result<()> {
    out.begin_dict()?;
    // The name of an unknown action is among what else there is.
    if let Some(name) = word::action_name(entry.action) {
        out.key("action")?;
        out.text(name)?;
    }
    let addr = if entry.action == Action::OutOfMemory { "device_free" } else { "addr" };
    number(out, addr, entry.addr)?;
    number(out, "size", entry.size_bytes)?;
    number(out, "stream", entry.stream)?;
    if entry.has_time {
        number(out, "time_us", entry.time_us)?;
    }
    let note = snapshot.note(entry.note);
    for (key, text) in
        [("compile_context", note.compile_context), ("user_metadata", note.user_metadata)]
    {
        if let Some(text) = text {
            out.key(key)?;
            out.text(snapshot.text(text))?;
        }
    }
    if let Some(pool) = entry.pool {
        out.key("pool_id")?;
        out.pool(snapshot.pool_id(pool))?;
    }
    if entry.stack.is_some() {
        out.key("frames")?;
        stack(snapshot, entry.stack, out)?;
    }
    more_members(more, out)?;
    out.end_dict()
}

fn number(out: &mut impl Emitter, key: &str, number: u64) -> io::Result<()> {
    out.key(key)?;
    // Handles of streams are pointers; the high half of them are negative numbers to torch.
    out.integer(number as i64)
}

fn stack(snapshot: &Snapshot, stack: Option<StackId>, out: &mut impl Emitter) -> io::Result<()> {
    let Some(id) = stack else {
        out.begin_list()?;
        return out.end_list();
    };
    if out.is_repeated(id.0.get())? {
        return Ok(());
    }
    out.begin_list()?;
    for info in snapshot.stack(id) {
        out.item()?;
        frame(snapshot, &info, out)?;
    }
    out.end_list()?;
    out.may_repeat(id.0.get())
}

fn frame(snapshot: &Snapshot, info: &Frame, out: &mut impl Emitter) -> io::Result<()> {
    out.begin_dict()?;
    out.key("name")?;
    out.text(snapshot.text(info.name))?;
    out.key("filename")?;
    out.text(snapshot.text(info.filename))?;
    out.key("line")?;
    out.integer(i64::from(info.line))?;
    more_members(info.more.map(|more| snapshot.text(more)), out)?;
    out.end_dict()
}

/// The members of an object that is given as text.
fn more_members(more: Option<&str>, out: &mut impl Emitter) -> io::Result<()> {
    let more: Option<Map<String, Value>> = more.and_then(|more| serde_json::from_str(more).ok());
    more.map_or(Ok(()), |more| members(&more, out))
}

fn members(map: &Map<String, Value>, out: &mut impl Emitter) -> io::Result<()> {
    for (key, value) in map {
        out.key(key)?;
        match pool_of(key, value) {
            Some(pool) => out.pool(pool)?,
            None => tree(value, out)?,
        }
    }
    Ok(())
}

/// The two numbers of a pool, which are a tuple where there are tuples.
fn pool_of(key: &str, value: &Value) -> Option<(u64, u64)> {
    let [first, second] = value.as_array().filter(|_| key.ends_with("pool_id"))?.as_slice() else {
        return None;
    };
    Some((first.as_i64()? as u64, second.as_i64()? as u64))
}

fn tree(value: &Value, out: &mut impl Emitter) -> io::Result<()> {
    match value {
        Value::Null => out.none(),
        Value::Bool(is) => out.boolean(*is),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => out.integer(integer),
            None => out.float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => out.text(text),
        Value::Array(items) => {
            out.begin_list()?;
            for item in items {
                out.item()?;
                tree(item, out)?;
            }
            out.end_list()
        }
        Value::Object(map) => {
            out.begin_dict()?;
            members(map, out)?;
            out.end_dict()
        }
    }
}
