//! Host memory: what a snapshot says of the host's pinned memory, beside the GPU's.

use std::fmt;

use larder_core::types::Bytes;
use larder_snapshot::Snapshot;
use serde_json::Value;

/// The host's pinned memory when the snapshot was taken, and before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// How many segments were held.
    pub segments: usize,
    /// How many bytes they had.
    pub held_bytes: u64,
    /// How many of them were in use, or awaited by copies.
    pub used_bytes: u64,
    /// The most that were in use at once, as far as the history goes back.
    pub most_used_bytes: u64,
    /// How many events the history has.
    pub events: usize,
}

impl HostMemory {
    /// None where the snapshot says nothing of it.
    pub fn of(snapshot: &Snapshot) -> Option<HostMemory> {
        let list = |key: &str| {
            let found = snapshot.more.as_ref().and_then(|more| more.get(key)?.as_array());
            found.map_or(&[][..], Vec::as_slice)
        };
        let (segments, events) = (list("host_segments"), list("host_traces"));
        if segments.is_empty() && events.is_empty() {
            return None;
        }
        let used_bytes = segments.iter().flat_map(blocks).filter(|block| is_used(block));
        let used_bytes: u64 = used_bytes.map(|block| number(block, "size")).sum();
        // Backwards from what is known, since a history need not begin at the beginning.
        let (mut now_bytes, mut most_used_bytes) = (used_bytes, used_bytes);
        for event in events.iter().rev() {
            let size_bytes = number(event, "size");
            match event.get("action").and_then(Value::as_str) {
                Some("alloc") => now_bytes = now_bytes.saturating_sub(size_bytes),
                Some("free_completed") => now_bytes += size_bytes,
                _ => {}
            }
            most_used_bytes = most_used_bytes.max(now_bytes);
        }
        Some(HostMemory {
            segments: segments.len(),
            held_bytes: segments.iter().map(|segment| number(segment, "total_size")).sum(),
            used_bytes,
            most_used_bytes,
            events: events.len(),
        })
    }
}

impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostMemory { segments, held_bytes, used_bytes, most_used_bytes, events } = *self;
        let (held, used, most) = (Bytes(held_bytes), Bytes(used_bytes), Bytes(most_used_bytes));
        write!(f, "Pinned host memory: {held} held in {segments} segments, {used} of it in use")?;
        match events {
            0 => f.write_str("."),
            events => write!(f, "; at most {most} was in use, by {events} events."),
        }
    }
}

fn blocks(segment: &Value) -> &[Value] {
    segment.get("blocks").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_used(block: &Value) -> bool {
    block.get("state").and_then(Value::as_str).is_some_and(|state| state.starts_with("active"))
}

fn number(of: &Value, key: &str) -> u64 {
    of.get(key).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(whole: &Value) -> Option<String> {
        let snapshot = Snapshot::read_json(whole.to_string().as_bytes()).unwrap();
        HostMemory::of(&snapshot).map(|host| host.to_string())
    }

    #[test]
    fn the_most_that_was_in_use_is_counted_backwards_from_what_is() {
        let event = |action: &str, kibibytes: u64| {
            let size_bytes = kibibytes << 10;
            json!({"action": action, "addr": 64, "size": size_bytes, "stream": 0})
        };
        let block = |state: &str, kibibytes: u64| json!({"size": kibibytes << 10, "state": state});
        let mut whole = json!({
            "segments": [],
            "device_traces": [[]],
            "host_segments": [{
                "address": 64,
                "total_size": 4096 << 10,
                "blocks": [block("active_allocated", 1024), block("active_awaiting_free", 512),
                    block("inactive", 2560)],
            }],
            "host_traces": [event("free_completed", 2048), event("segment_alloc", 9999),
                event("alloc", 1024), event("free_requested", 512), event("snapshot", 0)],
        });
        assert_eq!(
            told(&whole).unwrap(),
            "Pinned host memory: 4.00 MiB held in 1 segments, 1.50 MiB of it in use; at most \
             2.50 MiB was in use, by 5 events."
        );
        whole["host_traces"] = json!([]);
        assert!(told(&whole).unwrap().ends_with("1.50 MiB of it in use."));
        whole["host_segments"] = json!([]);
        assert_eq!(told(&whole), None);
    }
}
