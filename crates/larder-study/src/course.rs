//! The course of a run: how much memory was asked for, in use and held, from the first operation to
//! the last.

use larder_sim::script::Op;

use crate::replay::{Replay, ReplayError, Setup};
use crate::workload::Workload;

/// The most of each within a stretch of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The first operation of the stretch, from 0.
    pub index: usize,
    /// Bytes in live allocations.
    pub allocated_bytes: u64,
    /// Bytes that are live or still awaited by a stream.
    pub active_bytes: u64,
    /// Bytes held of the device.
    pub reserved_bytes: u64,
    /// Whether a request failed in it.
    pub has_failure: bool,
}

/// Replays a workload and tells how its memory went, in no more than so many stretches of equal
/// length.
pub fn course(
    workload: &Workload,
    setup: &Setup,
    stretches: usize,
) -> Result<Vec<Point>, ReplayError> {
    let length = workload.ops.len().div_ceil(stretches.max(1)).max(1);
    let mut replay = Replay::new(workload, setup);
    let mut points: Vec<Point> = Vec::new();
    for (index, &op) in workload.ops.iter().enumerate() {
        let has_failed = replay.advance(index, op)?.is_some();
        let begins = index.is_multiple_of(length);
        if begins {
            points.push(Point { index, ..Point::default() });
        }
        // What is no request only lowers what was there before, but where a stretch begins.
        if !begins && !matches!(op, Op::Alloc { .. } | Op::Restore { .. }) {
            continue;
        }
        let stats = replay.allocator().stats();
        if let Some(point) = points.last_mut() {
            let most = |bytes: &mut u64, now: i64| *bytes = (*bytes).max(now.max(0) as u64);
            most(&mut point.allocated_bytes, stats.allocated_bytes.all.current);
            most(&mut point.active_bytes, stats.active_bytes.all.current);
            most(&mut point.reserved_bytes, stats.reserved_bytes.all.current);
            point.has_failure |= has_failed;
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;

    #[test]
    fn a_stretch_has_the_most_of_it_and_all_of_them_the_peaks() {
        let script =
            "alloc 1 30MiB 0\nalloc 2 50MiB 0\nfree 1\nfree 2\nalloc 3 200MiB 0\nalloc 4 10MiB 0\n";
        let ops = Script::parse(script).expect("a script");
        let workload = Workload { ops, ..Workload::default() };
        let setup = Setup { memory_bytes: 128 * MIB, ..Setup::default() };
        let points = course(&workload, &setup, 3).expect("it runs");
        let figures: Vec<(u64, bool)> =
            points.iter().map(|point| (point.active_bytes / MIB, point.has_failure)).collect();
        assert_eq!(figures, [(80, false), (50, false), (10, true)]);
        assert_eq!(course(&workload, &setup, 1000).expect("it runs").len(), 6);
    }
}
