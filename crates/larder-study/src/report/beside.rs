//! Beside: what a snapshot says that no replay makes use of, in lines for a person.

use std::collections::BTreeMap;

use larder_core::types::Bytes;
use larder_snapshot::{Action, Snapshot};
use serde_json::{Map, Value};

use crate::report::host_memory::HostMemory;

/// So many remarks are told, of the largest blocks.
const REMARKS: usize = 8;

/// The lines; none where it says nothing of the kind.
pub fn beside(snapshot: &Snapshot, device: u32) -> String {
    [host(snapshot), remarks(snapshot, device), inner(snapshot, device)].concat()
}

/// Pinned host memory.
fn host(snapshot: &Snapshot) -> String {
    HostMemory::of(snapshot).map_or_else(String::new, |host| format!("{host}\n"))
}

/// What the program said about blocks.
fn remarks(snapshot: &Snapshot, device: u32) -> String {
    let trace = snapshot.trace(device).unwrap_or_default();
    let mut said: Vec<_> = trace
        .iter()
        .filter(|entry| entry.action == Action::Annotate)
        .filter_map(|entry| Some((entry, snapshot.note(entry.note).user_metadata?)))
        .collect();
    said.sort_by_key(|(entry, _)| std::cmp::Reverse(entry.size_bytes));
    let more = said.len().saturating_sub(REMARKS);
    let lines = said.iter().take(REMARKS).map(|(entry, remark)| {
        let (size, addr) = (Bytes(entry.size_bytes), entry.addr);
        format!("Said of {size} at {addr:#x}: {}\n", snapshot.text(*remark))
    });
    let lines: String = lines.collect();
    if more > 0 { format!("{lines}and {more} remarks more.\n") } else { lines }
}

/// What the allocator said of its own entries.
fn inner(snapshot: &Snapshot, device: u32) -> String {
    let count = snapshot.trace(device).map_or(0, <[_]>::len);
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for more in (0..count).filter_map(|index| snapshot.more_of_entry(device, index)) {
        let more: Map<String, Value> = serde_json::from_str(more).unwrap_or_default();
        if let Some(text) = more.get("internal_metadata").and_then(Value::as_str) {
            *told.entry(text.to_owned()).or_default() += 1;
        }
    }
    let lines =
        told.iter().map(|(text, times)| format!("Entries that are part of {text}: {times}\n"));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn host_memory_remarks_and_what_entries_are_part_of_are_told() {
        let entry = |action: &str, remark: &str| {
            json!({
                "action": action,
                "addr": 4096,
                "size": 1 << 20,
                "stream": 0,
                "user_metadata": remark,
            })
        };
        let mut inside = entry("alloc", "");
        inside["internal_metadata"] = json!("mallocWithAddress");
        let whole = json!({
            "segments": [],
            "device_traces": [[inside, entry("annotate", "the weights")]],
            "host_segments": [{"address": 64, "total_size": 2 << 20}],
            "host_traces": [entry("alloc", "")],
        });
        let snapshot = Snapshot::read_json(whole.to_string().as_bytes()).unwrap();
        assert_eq!(
            beside(&snapshot, 0),
            "Pinned host memory: 2.00 MiB held in 1 segments, 0 bytes of it in use; at most 0 \
             bytes was in use, by 1 events.\n\
             Said of 1.00 MiB at 0x1000: the weights\n\
             Entries that are part of mallocWithAddress: 1\n"
        );
        let plain = json!({"segments": [], "device_traces": [[entry("alloc", "")]]});
        let plain = Snapshot::read_json(plain.to_string().as_bytes()).unwrap();
        assert_eq!(beside(&plain, 0), "");
    }
}
