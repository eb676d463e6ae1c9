//! Bands: the allocations, sorted so that a page needs to unpack those alone that it can show.
//!
//! An allocation belongs to a level by how many events it lasts, each level taking four times as
//! long ones as the one before. A window of a million events on a thousand pixels leaves out the
//! levels whose bands would be narrower than a pixel; a narrow window takes the few pieces of each
//! level that reach into it.

use larder_study::timeline::{Allocation, NEVER, Origin, Origins, Timeline};
use serde_json::{Value, json};

use crate::packed::Table;

/// What the shortest level's bands last less than, in events.
const SHORTEST: u32 = 256;
/// How many allocations a piece has at most.
const PIECE: usize = 1 << 14;

/// The kinds of allocations where nobody remarked anything.
pub(crate) const KINDS: [&str; 4] =
    ["older than the recording", "kept to the end", "long-lived", "short-lived"];

/// What stands in the page for the allocations.
pub(crate) struct Bands {
    /// The levels with their pieces, for the facts.
    pub(crate) levels: Value,
    /// Each piece with its name, those of long bands first.
    pub(crate) pieces: Vec<(String, String)>,
}

/// Sorts and packs the allocations of a run. `prefix` begins the names of the pieces.
pub(crate) fn bands(
    prefix: &str,
    timeline: &Timeline,
    origins: &Origins,
    unit_bytes: u64,
) -> std::io::Result<Bands> {
    let events = timeline.events;
    let mut levels: Vec<Vec<&Allocation>> = Vec::new();
    for allocation in &timeline.allocations {
        let level = level_of(allocation.lasts(events));
        while levels.len() <= level {
            levels.push(Vec::new());
        }
        levels[level].push(allocation);
    }
    let (mut told, mut pieces) = (Vec::new(), Vec::new());
    for (level, allocations) in levels.iter().enumerate().rev() {
        let mut chunks = Vec::new();
        for (number, chunk) in allocations.chunks(PIECE).enumerate() {
            let name = format!("{prefix}-bands-{level}-{number}");
            let (first, last) = (chunk[0].begin, chunk[chunk.len() - 1].begin);
            let end = chunk.iter().map(|allocation| allocation.end.min(events)).max();
            chunks.push(json!([name, chunk.len(), first, last, end]));
            pieces.push((name, piece(chunk, events, origins, unit_bytes)?));
        }
        let lasts = if level == 0 { 0 } else { SHORTEST << (2 * (level - 1)) };
        told.push(json!({ "lasts": lasts, "pieces": chunks }));
    }
    Ok(Bands { levels: told.into(), pieces })
}

fn level_of(lasts: u32) -> usize {
    let mut level = 0;
    while lasts >> (2 * level) >= SHORTEST {
        level += 1;
    }
    level
}

/// One piece as a table. The page reads the columns in this order.
fn piece(
    chunk: &[&Allocation],
    events: u32,
    origins: &Origins,
    unit_bytes: u64,
) -> std::io::Result<String> {
    let origin: Vec<Origin> = chunk.iter().map(|allocation| origins.get(allocation.id)).collect();
    // An event that never comes is 0, one that comes is later than what it is counted from.
    let later = |event: u32, from: u32| {
        if event == NEVER { 0 } else { u64::from(event.saturating_sub(from)) + 1 }
    };
    let mut table = Table::default();
    table.differences(chunk.iter().map(|one| u64::from(one.begin)));
    table.column(chunk.iter().map(|one| later(one.freed, one.begin)));
    table.column(chunk.iter().map(|one| later(one.end, one.freed.min(events))));
    table.column(chunk.iter().map(|one| one.size_bytes / unit_bytes));
    table.column(chunk.iter().map(|one| one.size_bytes.saturating_sub(one.asked_bytes)));
    table.differences(chunk.iter().map(|one| one.addr / unit_bytes));
    table.column(chunk.iter().map(|one| u64::from(one.lane)));
    table.column(origin.iter().map(|origin| origin.stack.map_or(0, |stack| u64::from(stack) + 1)));
    let kinds = chunk.iter().zip(&origin);
    table.column(kinds.map(|(one, origin)| kind(one, origin, events)));
    table.differences(origin.iter().map(|origin| origin.begin_us.unwrap_or(0)));
    let spans = origin.iter().map(|origin| origin.end_us.zip(origin.begin_us));
    table.column(spans.map(|span| span.map_or(0, |(end, begin)| end.saturating_sub(begin) + 1)));
    table.finish()
}

/// The number of what was remarked on it, behind the kinds; or of its kind.
fn kind(allocation: &Allocation, origin: &Origin, events: u32) -> u64 {
    match (origin.remark, allocation.freed == NEVER) {
        (Some(remark), _) => u64::from(remark) + KINDS.len() as u64,
        (None, _) if origin.is_old => 0,
        (None, true) => 1,
        (None, false) if allocation.lasts(events) >= events / 10 => 2,
        (None, false) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_take_four_times_as_long_ones() {
        assert_eq!([0, 255, 256, 1023, 1024, 5000].map(level_of), [0, 0, 1, 1, 2, 3]);
        assert_eq!(level_of(u32::MAX), 12);
    }
}
