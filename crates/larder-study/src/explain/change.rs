//! Changes: a program as it would be if it did things another way, operation by operation.

use std::collections::{BTreeSet, HashMap};

use larder_sim::script::{Op, Route};

/// The program with all its own streams as one. `own_streams` says how many there are where numbers
/// from that on are made up; else all that allocate are its own.
pub(super) fn on_one_stream(ops: &[Op], own_streams: Option<u32>) -> Vec<Op> {
    let allocating: BTreeSet<u32> = ops.iter().filter_map(stream_of_request).collect();
    let Some(&first) = allocating.first() else { return ops.to_vec() };
    let is_own = |stream: u32| match own_streams {
        Some(count) => stream < count,
        None => allocating.contains(&stream),
    };
    let one = |stream: u32| if is_own(stream) { first } else { stream };
    let moved = ops.iter().filter_map(|&op| match op {
        Op::Alloc { id, size_bytes, stream } => {
            Some(Op::Alloc { id, size_bytes, stream: one(stream) })
        }
        // A use by the stream itself is none by another.
        Op::Record { stream, .. } if is_own(stream) => None,
        Op::Wait { stream, other } if one(stream) == one(other) => None,
        Op::Wait { stream, other } => Some(Op::Wait { stream: one(stream), other: one(other) }),
        Op::Sync { stream } => Some(Op::Sync { stream: one(stream) }),
        Op::Launch { stream } => Some(Op::Launch { stream: one(stream) }),
        Op::CaptureBegin { stream } => Some(Op::CaptureBegin { stream: one(stream) }),
        Op::CaptureEnd { stream } => Some(Op::CaptureEnd { stream: one(stream) }),
        Op::PoolBegin { pool, route } => {
            let route = match route {
                Route::All => Route::All,
                Route::Stream(stream) => Route::Stream(one(stream)),
                Route::Capture(stream) => Route::Capture(one(stream)),
            };
            Some(Op::PoolBegin { pool, route })
        }
        other => Some(other),
    });
    moved.collect()
}

fn stream_of_request(op: &Op) -> Option<u32> {
    match op {
        Op::Alloc { stream, .. } => Some(*stream),
        _ => None,
    }
}

/// How many streams of its own a program allocates on.
pub(super) fn stream_count(ops: &[Op]) -> usize {
    ops.iter().filter_map(stream_of_request).collect::<BTreeSet<u32>>().len()
}

/// The program that lets go of these private pools before the operation of this number.
pub(super) fn letting_go(ops: &[Op], index: usize, pools: &[u32]) -> Vec<Op> {
    let mut uses: HashMap<u32, u32> = HashMap::new();
    let mut changed = Vec::with_capacity(ops.len() + 2 * pools.len());
    for (at, &op) in ops.iter().enumerate() {
        if at == index {
            for &pool in pools {
                let held = uses.insert(pool, 0).unwrap_or(0);
                changed.extend((0..held).map(|_| Op::PoolRelease { pool }));
                changed.push(Op::PoolEmpty { pool });
            }
        }
        match op {
            Op::PoolNew { pool } | Op::PoolBegin { pool, .. } => {
                *uses.entry(pool).or_default() += 1;
            }
            Op::PoolRelease { pool } => {
                let held = uses.entry(pool).or_default();
                // What was let go of already cannot be once more.
                if *held == 0 {
                    continue;
                }
                *held -= 1;
            }
            _ => {}
        }
        changed.push(op);
    }
    changed
}

/// The program whose private pools of these numbers lend to requests that would fail, from their
/// making on.
pub(super) fn lending(ops: &[Op], pools: &[u32]) -> Vec<Op> {
    let mut changed = Vec::with_capacity(ops.len() + pools.len());
    let mut told = BTreeSet::new();
    for &op in ops {
        changed.push(op);
        if let Op::PoolNew { pool } | Op::PoolBegin { pool, .. } = op
            && pools.contains(&pool)
            && told.insert(pool)
        {
            changed.push(Op::PoolUseOnOom { pool, on: true });
        }
    }
    changed
}

/// The program that empties its cache before the capture that is on at the operation of this
/// number; none if no capture begins before it.
pub(super) fn emptying_before_capture(ops: &[Op], index: usize) -> Option<Vec<Op>> {
    let is_begin = |op: &Op| matches!(op, Op::CaptureBegin { .. });
    let begin = ops[..index].iter().rposition(is_begin)?;
    // The scope of the capture may be open already, in which nothing is given back.
    let is_scope = |op: &Op| matches!(op, Op::PoolBegin { .. });
    let at = ops[..begin].iter().rposition(|op| !is_scope(op)).map_or(0, |before| before + 1);
    let mut changed = ops.to_vec();
    changed.insert(at, Op::Empty);
    Some(changed)
}

/// The program without the memory fraction that it sets itself.
pub(super) fn unheld(ops: &[Op]) -> Vec<Op> {
    ops.iter().copied().filter(|op| !matches!(op, Op::Fraction { .. })).collect()
}

/// The program with every size at so many per cent.
pub(super) fn shrunk(ops: &[Op], percent: u64) -> Vec<Op> {
    let shrunk = ops.iter().map(|&op| match op {
        Op::Alloc { id, size_bytes, stream } => {
            let size_bytes = (u128::from(size_bytes) * u128::from(percent)).div_ceil(100) as u64;
            Op::Alloc { id, size_bytes, stream }
        }
        other => other,
    });
    shrunk.collect()
}

#[cfg(test)]
mod tests {
    use larder_sim::script::Script;

    use super::*;

    fn ops(script: &str) -> Vec<Op> {
        Script::parse(script).expect("a script")
    }

    fn text(ops: &[Op]) -> String {
        ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn all_streams_that_allocate_become_one() {
        let script =
            ops("alloc 1 512 3\nalloc 2 512 5\nrecord 1 5\nrecord 2 9\nsync 5\nwait 5 3\n");
        assert_eq!(
            text(&on_one_stream(&script, None)),
            "alloc 1 512 3; alloc 2 512 3; record 2 9; sync 3"
        );
        assert_eq!(stream_count(&script), 2);
    }

    #[test]
    fn a_pool_is_let_go_of_once() {
        let script = ops("pool-new 1\npool-begin 1 0\nalloc 1 512 0\npool-end 1\nalloc 2 512 0\n\
                          pool-release 1\npool-release 1\n");
        assert_eq!(
            text(&letting_go(&script, 4, &[1])),
            "pool-new 1; pool-begin 1 0; alloc 1 512 0; pool-end 1; pool-release 1; pool-release \
             1; pool-empty 1; alloc 2 512 0"
        );
        assert!(
            text(&lending(&script, &[1]))
                .starts_with("pool-new 1; pool-use-on-oom 1 on; pool-begin")
        );
    }

    #[test]
    fn the_cache_is_emptied_before_the_scope_of_a_capture() {
        let script = ops("alloc 1 512 0\npool-begin 1 capture 2\ncapture-begin 2\nalloc 2 512 2\n");
        let changed = emptying_before_capture(&script, 3).expect("a capture");
        assert!(text(&changed).starts_with("alloc 1 512 0; empty; pool-begin"));
        assert!(emptying_before_capture(&script, 1).is_none());
    }

    #[test]
    fn sizes_shrink_and_no_fraction_is_left() {
        let script = ops("fraction 0.5\nalloc 1 1001 0\n");
        assert_eq!(text(&shrunk(&unheld(&script), 90)), "alloc 1 901 0");
    }
}
