//! Memory in a terminal: how it went, the map of it, who holds it, and what keeps the rest.

use larder_core::heap::State;
use larder_core::heap::states::SegmentState;
use larder_core::types::Bytes;

use crate::course::Point;
use crate::report::explained::{held, kept, lanes_table};
use crate::report::table::Table;
use crate::scene::{Provenance, Scene, lanes, shares};

/// What a piece of a picture shows, for whoever paints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// A heading.
    Heading,
    /// Memory in live allocations.
    Live,
    /// Memory that a stream still waits for.
    Waiting,
    /// Memory that is free.
    Free,
    /// Memory that is held, in the picture over time.
    Held,
    /// A failure.
    Failure,
}

/// Paints a piece of text, or leaves it as it is where there is no colour.
pub type Paint<'a> = &'a dyn Fn(Ink, &str) -> String;

/// How many cells a line of the map has, and about how many lines.
const CELLS: usize = 72;
const LINES: u64 = 14;

/// What `larder show` prints below its heading.
pub fn shown(
    moment: &str,
    scene: &Scene,
    points: &[Point],
    provenance: &Provenance<'_>,
    paint: Paint<'_>,
) -> String {
    let current = |bytes: i64| Bytes(bytes.max(0) as u64);
    let stats = &scene.stats;
    let mut text = over_time(points, paint);
    text.push_str(&format!(
        "{}: {} live, {} in use, {} held of the GPU\n\n",
        paint(Ink::Heading, moment),
        current(stats.allocated_bytes.all.current),
        current(stats.active_bytes.all.current),
        current(stats.reserved_bytes.all.current),
    ));
    text.push_str(&map(scene, paint));
    text.push_str(&format!("{}\n", lanes_table(&lanes(scene))));
    text.push_str(&by_category(scene, provenance));
    text.push_str(&held(scene, provenance));
    text.push_str(&kept(scene, provenance));
    text
}

/// What is live, by what it is for; nothing where the recording has no stacks.
fn by_category(scene: &Scene, provenance: &Provenance<'_>) -> String {
    let categories = provenance.categories();
    if !categories.tell() {
        return String::new();
    }
    let shares = shares(scene, categories);
    let all_bytes = shares.iter().map(|share| share.bytes).sum::<u64>().max(1);
    let mut table = Table::new(["what it is for", "live", "share", "blocks"]);
    for share in shares {
        table.push([
            categories.name(share.category).to_owned(),
            Bytes(share.bytes).to_string(),
            format!("{:.1} %", share.bytes as f64 * 100.0 / all_bytes as f64),
            share.count.to_string(),
        ]);
    }
    format!("{table}\n")
}

/// Held and in use over time, as bars of eight heights.
fn over_time(points: &[Point], paint: Paint<'_>) -> String {
    let Some(peak) = points.iter().map(|point| point.reserved_bytes).max().filter(|&peak| peak > 0)
    else {
        return String::new();
    };
    let bars = |ink: Ink, bytes: fn(&Point) -> u64| {
        let bar = |point: &Point| {
            let height = (bytes(point) * 8).div_ceil(peak).min(8);
            let letter = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][height as usize];
            let ink = if point.has_failure { Ink::Failure } else { ink };
            paint(ink, &letter.to_string())
        };
        points.iter().map(bar).collect::<String>()
    };
    let most = |bytes: fn(&Point) -> u64| Bytes(points.iter().map(bytes).max().unwrap_or(0));
    format!(
        "held    {}  {} at the peak\nin use  {}  {} at the peak\n\n",
        bars(Ink::Held, |point| point.reserved_bytes),
        most(|point| point.reserved_bytes),
        bars(Ink::Live, |point| point.active_bytes),
        most(|point| point.active_bytes),
    )
}

/// The map of all segments, largest first, each cell as many bytes as every other.
fn map(scene: &Scene, paint: Paint<'_>) -> String {
    let held_bytes: u64 = scene.homes().map(|segment| segment.backed_bytes).sum();
    if held_bytes == 0 {
        return "nothing is held of the GPU\n\n".to_owned();
    }
    let cell_bytes = (held_bytes / (CELLS as u64 * LINES)).next_power_of_two().max(2 << 20);
    let signs = [
        (Ink::Live, '█', "live"),
        (Ink::Live, '▖', "live in part, mostly free"),
        (Ink::Waiting, '▒', "awaited"),
        (Ink::Free, '·', "free"),
    ];
    let legend: Vec<String> = signs
        .iter()
        .map(|&(ink, sign, name)| format!("{} {name}", paint(ink, &sign.to_string())))
        .collect();
    let mut text =
        format!("Each cell is {}: {}; | parts segments\n\n", Bytes(cell_bytes), legend.join(", "));
    for lane in lanes(scene) {
        let of_lane = |segment: &&SegmentState| {
            (segment.stream, segment.pool, segment.kind) == (lane.stream, lane.pool, lane.kind)
        };
        let mut segments: Vec<&SegmentState> = scene.homes().filter(of_lane).collect();
        segments
            .sort_by_key(|segment| (std::cmp::Reverse(segment.backed_bytes), segment.span.addr));
        let cells: Vec<Vec<Cell>> =
            segments.iter().map(|segment| cells(segment, cell_bytes)).collect();
        let pool = lane.pool.map_or(String::new(), |pool| format!(", private {pool}"));
        let kind = if lane.kind == larder_core::types::PoolKind::Small { "small" } else { "large" };
        let name = format!("stream {}, {kind}{pool}", lane.stream.0);
        text.push_str(&format!("{}\n{}", paint(Ink::Heading, &name), strip(&cells, paint)));
    }
    text.push('\n');
    text
}

/// What a cell of the map shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Live,
    Partly,
    Waiting,
    Free,
}

/// What each cell of a segment is: partly live if anything of it is, so that no segment that has to
/// stay looks as if it could go. What has no memory behind it has no cell.
fn cells(segment: &SegmentState, cell_bytes: u64) -> Vec<Cell> {
    let count = segment.backed_bytes.div_ceil(cell_bytes).max(1) as usize;
    // How much of each cell is live, waiting, free.
    let mut shares = vec![[0_u64; 3]; count];
    let mut at = 0;
    for block in &segment.blocks {
        let which = match block.state {
            State::Live | State::Lent => 0,
            State::Waiting => 1,
            State::Free | State::Deferred => 2,
            State::Unmapped | State::Hollow => continue,
        };
        let end = at + block.span.size_bytes;
        while at < end {
            let cell = (at / cell_bytes) as usize;
            let until = end.min((at / cell_bytes + 1) * cell_bytes);
            if let Some(share) = shares.get_mut(cell) {
                share[which] += until - at;
            }
            at = until;
        }
    }
    let state = |[live, waiting, free]: [u64; 3]| match () {
        () if live >= waiting.max(free) && live > 0 => Cell::Live,
        () if waiting >= free && waiting > 0 => Cell::Waiting,
        () if live + waiting > 0 => Cell::Partly,
        () => Cell::Free,
    };
    shares.into_iter().map(state).collect()
}

/// The cells of segments as lines.
fn strip(segments: &[Vec<Cell>], paint: Paint<'_>) -> String {
    let (mut text, mut width) = (String::from("  "), 0);
    for (number, cells) in segments.iter().enumerate() {
        let bar = (number > 0).then_some(None);
        for cell in bar.into_iter().chain(cells.iter().copied().map(Some)) {
            if width == CELLS {
                text.push_str("\n  ");
                width = 0;
            }
            width += 1;
            match cell {
                None => text.push('|'),
                Some(Cell::Live) => text.push_str(&paint(Ink::Live, "█")),
                Some(Cell::Partly) => text.push_str(&paint(Ink::Live, "▖")),
                Some(Cell::Waiting) => text.push_str(&paint(Ink::Waiting, "▒")),
                Some(Cell::Free) => text.push_str(&paint(Ink::Free, "·")),
            }
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;
    use crate::course::course;
    use crate::replay::Setup;
    use crate::workload::Workload;

    #[test]
    fn a_map_shows_what_is_live_and_what_is_free() {
        let script = "alloc 1 40MiB 0\nalloc 2 40MiB 3\nfree 2\nalloc 3 20MiB 3\n";
        let ops = Script::parse(script).expect("a script");
        let workload = Workload { ops, ..Workload::default() };
        let setup = Setup { memory_bytes: 256 * MIB, ..Setup::default() };
        let scene = Scene::behind(&workload, &setup, usize::MAX).expect("it runs");
        let plain = |_: Ink, text: &str| text.to_owned();
        let map = map(&scene, &plain);
        let full = "█".repeat(20);
        assert!(map.contains("Each cell is 2.00 MiB"), "{map}");
        assert!(map.contains(&format!("stream 0, large\n  {full}\n")), "{map}");
        let half = format!("{}{}", "█".repeat(10), "·".repeat(10));
        assert!(map.contains(&format!("stream 3, large\n  {half}\n")), "{map}");
        let points = course(&workload, &setup, 4).expect("it runs");
        let text = over_time(&points, &plain);
        assert!(text.starts_with("held    ▄███  80.00 MiB at the peak\nin use  ▄█▄▆"), "{text}");
    }
}
