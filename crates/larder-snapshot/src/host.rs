//! Host: pinned memory of the host in a snapshot, as PyTorch shows it from 2.14 on.

use larder_core::allocator::history::DeviceSnapshot;
use larder_core::heap::State;
use larder_core::heap::run::Run;
use larder_core::record::context::Context;
use larder_core::record::event::Action as CoreAction;
use larder_core::record::history::TraceEntry;
use serde_json::{Map, Value, json};

use super::Snapshot;
use super::live::{Epoch, time_us};

/// The number that PyTorch gives the host among devices.
const HOST: i32 = -1;

impl Snapshot {
    /// This snapshot with what an allocator of the host's pinned memory remembers.
    #[must_use]
    pub fn with_host(mut self, host: &DeviceSnapshot, epoch: Epoch) -> Snapshot {
        let segments: Vec<Value> = host.runs.iter().map(segment).collect();
        let traces: Vec<Value> = host.trace.iter().map(|entry| event(entry, epoch)).collect();
        let more = self.more.get_or_insert_with(Map::new);
        more.insert("host_segments".to_owned(), segments.into());
        more.insert("host_traces".to_owned(), traces.into());
        self
    }
}

fn segment(run: &Run) -> Value {
    let blocks: Vec<Value> = run
        .blocks
        .iter()
        .map(|block| {
            json!({
                "address": block.span.addr.0,
                "size": block.span.size_bytes,
                "requested_size": block.requested_bytes,
                "state": match block.state {
                    State::Live => "active_allocated",
                    State::Waiting => "active_pending_free",
                    _ => "inactive",
                },
                "frames": frames(block.context.as_deref()),
            })
        })
        .collect();
    json!({
        "device": HOST,
        "address": run.addr.0,
        "total_size": run.size_bytes(),
        "segment_pool_id": [run.pool.0, run.pool.1],
        "blocks": blocks,
    })
}

fn event(entry: &TraceEntry, epoch: Epoch) -> Value {
    let place = if entry.action == CoreAction::OutOfMemory { "device_free" } else { "addr" };
    json!({
        "action": entry.action.to_string(),
        place: entry.addr,
        "size": entry.size_bytes,
        "stream": 0,
        "time_us": time_us(entry.time_ns, epoch),
        "compile_context": entry.compile_context.as_deref().unwrap_or("N/A"),
        "user_metadata": &*entry.user_metadata,
        "pool_id": [entry.pool.0, entry.pool.1],
        "frames": frames(entry.context.as_deref()),
    })
}

fn frames(context: Option<&dyn Context>) -> Vec<Value> {
    let frames = context.map(Context::frames).unwrap_or_default();
    let frames = frames.iter();
    frames
        .map(|frame| json!({"name": frame.name, "filename": frame.filename, "line": frame.line}))
        .collect()
}
