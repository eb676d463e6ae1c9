//! Passes: a program that is run over and over in one process, and what each time costs.

use std::collections::BTreeSet;

use larder_sim::Spent;
use larder_sim::script::{Op, Route};

/// What there is to say when a program has run once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The most that was held of the device at once, from the first pass on.
    pub peak_reserved_bytes: u64,
    /// The most that was in use at once, from the first pass on.
    pub peak_active_bytes: u64,
    /// Allocations of this pass that failed.
    pub ooms: u64,
    /// The calls of this pass for memory, those at its end included, and what they would have cost.
    pub driver: Spent,
}

impl Pass {
    /// Peak reserved over peak active bytes: 1 is no waste.
    pub fn overhead(&self) -> f64 {
        overhead(self.peak_reserved_bytes, self.peak_active_bytes)
    }
}

/// Peak reserved over peak active bytes; 1 where nothing was in use.
pub(crate) fn overhead(reserved_bytes: u64, active_bytes: u64) -> f64 {
    if active_bytes == 0 { 1.0 } else { reserved_bytes as f64 / active_bytes as f64 }
}

/// What a program leaves open when it ends, and what it worked with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Remains {
    captures: BTreeSet<u32>,
    scopes: BTreeSet<u32>,
    pub(crate) pools: BTreeSet<u32>,
    streams: BTreeSet<u32>,
}

impl Remains {
    /// What these operations leave.
    pub(crate) fn of(ops: &[Op]) -> Remains {
        let mut remains = Remains::default();
        for &op in ops {
            remains.note(op);
        }
        remains
    }

    fn note(&mut self, op: Op) {
        match op {
            Op::Alloc { stream, .. }
            | Op::Record { stream, .. }
            | Op::Sync { stream }
            | Op::Launch { stream } => {
                self.streams.insert(stream);
            }
            Op::Wait { stream, other } => self.streams.extend([stream, other]),
            Op::CaptureBegin { stream } => {
                self.streams.insert(stream);
                self.captures.insert(stream);
            }
            Op::CaptureEnd { stream } => {
                self.captures.remove(&stream);
            }
            Op::PoolNew { pool } => {
                self.pools.insert(pool);
            }
            Op::PoolBegin { pool, route } => {
                self.pools.insert(pool);
                self.scopes.insert(pool);
                if let Route::Stream(stream) | Route::Capture(stream) = route {
                    self.streams.insert(stream);
                }
            }
            Op::PoolEnd { pool } => {
                self.scopes.remove(&pool);
            }
            _ => {}
        }
    }

    /// What closes the program, as if it stood at the end of its script: captures and scopes end,
    /// what is live is freed, all streams get done, and each pool loses all its uses and gives its
    /// memory back. `live` are the names of allocations, in order; `uses` says how many uses a pool
    /// has.
    pub(crate) fn closing(&self, live: &[u64], uses: impl Fn(u32) -> u32) -> Vec<Op> {
        let mut ops = Vec::with_capacity(live.len());
        ops.extend(self.captures.iter().map(|&stream| Op::CaptureEnd { stream }));
        ops.extend(self.scopes.iter().map(|&pool| Op::PoolEnd { pool }));
        ops.extend(live.iter().map(|&id| Op::Free { id }));
        ops.extend(self.streams.iter().map(|&stream| Op::Sync { stream }));
        for &pool in &self.pools {
            ops.extend((0..uses(pool)).map(|_| Op::PoolRelease { pool }));
            ops.push(Op::PoolEmpty { pool });
        }
        ops
    }
}

#[cfg(test)]
mod tests {
    use larder_sim::script::Script;

    use super::*;

    fn remains(script: &str) -> Remains {
        Remains::of(&Script::parse(script).expect("a script"))
    }

    fn closing(script: &str, live: &[u64], uses: u32) -> String {
        let ops = remains(script).closing(live, |_| uses);
        ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_program_is_closed_from_the_inside_out() {
        let script = "pool-begin 4 capture 2\ncapture-begin 2\nalloc 1 512 2\nrecord 1 7\n";
        assert_eq!(
            closing(script, &[1], 2),
            "capture-end 2; pool-end 4; free 1; sync 2; sync 7; pool-release 4; pool-release 4; \
             pool-empty 4"
        );
    }

    #[test]
    fn what_the_program_closed_itself_is_not_closed_again() {
        let script = "pool-new 1\npool-begin 1 3\npool-end 1\npool-release 1\npool-release 1\n\
                      capture-begin 5\ncapture-end 5\nwait 5 6\nlaunch 8\n";
        assert_eq!(closing(script, &[], 0), "sync 3; sync 5; sync 6; sync 8; pool-empty 1");
        assert_eq!(remains(""), Remains::default());
    }

    #[test]
    fn nothing_in_use_is_no_waste() {
        assert!((overhead(0, 0) - 1.0).abs() < 1e-12 && (overhead(3, 2) - 1.5).abs() < 1e-12);
    }
}
