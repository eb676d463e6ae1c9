//! Lives: from where each allocation of a trace was asked for, and from where it was given back.

use std::collections::HashMap;

use larder_snapshot::{Action, BlockState, Snapshot, StackId, TraceEntry};

use crate::recording::Origin;

/// One allocation of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// How many bytes it has.
    pub(super) bytes: u64,
    /// From where it was asked for, if that was recorded.
    pub(super) stack: Option<StackId>,
    /// The entry that asked for it; none if it is older than the trace.
    pub(super) begin: Option<usize>,
    /// The entry that gave it back, if one did.
    pub(super) end: Option<usize>,
    /// From where that was.
    pub(super) end_stack: Option<StackId>,
}

/// The lives of the allocations that `origins` names, in their order.
pub(super) fn lives(snapshot: &Snapshot, device: u32, origins: &[Origin]) -> Vec<Life> {
    let trace = snapshot.trace(device).unwrap_or_default();
    let mut lives = vec![Life::default(); origins.len()];
    let mut ids: HashMap<usize, usize> = HashMap::new();
    let mut at: HashMap<u64, usize> = HashMap::new();
    for (id, origin) in origins.iter().enumerate() {
        match *origin {
            Origin::Before(addr) => {
                at.insert(addr, id);
            }
            Origin::Entry(index) => {
                ids.insert(index, id);
            }
        }
    }
    let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
    for block in segments.flat_map(|segment| &segment.blocks) {
        // What is there at the end and came before the trace is described there alone.
        if let Some(&id) = at.get(&block.addr)
            && block.state != BlockState::Inactive
        {
            lives[id] = Life { bytes: block.size_bytes, stack: block.stack, ..Life::default() };
        }
    }
    // What a program lets go of because it failed tells nothing of what it was for.
    let is_request =
        |entry: &TraceEntry| matches!(entry.action, Action::Alloc | Action::OutOfMemory);
    let last = trace.iter().rposition(is_request).unwrap_or(0);
    let ends_at_failure = trace.get(last).is_some_and(|entry| entry.action != Action::Alloc);
    let told = if ends_at_failure { &trace[..=last] } else { trace };
    for (index, entry) in told.iter().enumerate() {
        match entry.action {
            Action::Alloc | Action::OutOfMemory => {
                let Some(&id) = ids.get(&index) else { continue };
                let (bytes, stack) = (entry.size_bytes, entry.stack);
                lives[id] = Life { bytes, stack, begin: Some(index), ..Life::default() };
                if entry.action == Action::Alloc {
                    at.insert(entry.addr, id);
                }
            }
            Action::FreeRequested => {
                let Some(id) = at.remove(&entry.addr) else { continue };
                let life = &mut lives[id];
                (life.end, life.end_stack) = (Some(index), entry.stack);
                // An old block that is gone is described by its free alone.
                if life.begin.is_none() {
                    life.bytes = entry.size_bytes;
                }
            }
            _ => {}
        }
    }
    lives
}
