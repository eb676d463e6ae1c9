//! The memory of a program that runs now, as a screen.

use larder_core::types::{Bytes, PoolId};

use crate::live::{Look, Sums};
use crate::passes::overhead;
use crate::report::table::Table;

/// How many lanes are shown.
const LANES: usize = 12;

/// One screen: what is there, how fast it changes since the look before, and who has it.
pub fn screen(name: &str, look: &Look, before: Option<(&Sums, f64)>) -> String {
    let sums = &look.sums;
    let used_bytes = sums.active_bytes.unwrap_or(sums.requested_bytes);
    let mut text = format!("{name}\n\n");
    let bytes = |words: &str, bytes: u64| format!("{words:<12}{:>12}\n", Bytes(bytes).to_string());
    text.push_str(&bytes("held", sums.reserved_bytes));
    if let Some(active_bytes) = sums.active_bytes {
        text.push_str(&bytes("in use", active_bytes));
    }
    if let Some(allocated_bytes) = sums.allocated_bytes {
        text.push_str(&bytes("allocated", allocated_bytes));
    }
    text.push_str(&bytes("requested", sums.requested_bytes));
    text.push_str(&format!(
        "overhead    {:>12.3}  (held over {})\n",
        overhead(sums.reserved_bytes, used_bytes),
        if sums.active_bytes.is_some() { "in use" } else { "requested" }
    ));
    if let Some((held_bytes, used_bytes)) = sums.pinned {
        text.push_str(&bytes("pinned", held_bytes));
        text.push_str(&bytes("  in use", used_bytes));
    }
    let retries = sums.retries.map_or(String::new(), |retries| format!(", retries {retries}"));
    text.push_str(&format!(
        "\n{} live allocations in {} segments; {} allocations, {} frees, out of memory \
         {}{retries}\n",
        sums.live_allocations, sums.segments, sums.allocations, sums.frees, sums.ooms
    ));
    if let Some((before, seconds)) = before.filter(|&(_, seconds)| seconds > 0.0) {
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        text.push_str(&format!(
            "{:.0} allocations and {:.0} frees a second\n",
            rate(sums.allocations, before.allocations),
            rate(sums.frees, before.frees)
        ));
    }
    let mut lanes = Table::new(["device, stream and pool", "held", "in use", "overhead"]);
    for lane in look.lanes.iter().take(LANES) {
        let pool = if lane.pool == PoolId::NONE {
            String::new()
        } else {
            format!(", private {}", lane.pool)
        };
        lanes.push([
            format!("device {}, stream {}{pool}", lane.device, lane.stream.0),
            Bytes(lane.reserved_bytes).to_string(),
            Bytes(lane.used_bytes).to_string(),
            format!("{:.3}", overhead(lane.reserved_bytes, lane.used_bytes)),
        ]);
    }
    text.push_str(&format!("\n{lanes}"));
    if !look.stacks.is_empty() {
        let mut stacks = Table::new(["live by stack", "bytes", "blocks"]);
        for (frames, bytes, blocks) in &look.stacks {
            stacks.push([frames.clone(), Bytes(*bytes).to_string(), blocks.to_string()]);
        }
        text.push_str(&format!("\n{stacks}"));
    }
    text
}
