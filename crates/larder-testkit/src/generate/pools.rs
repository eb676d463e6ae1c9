//! Private pools in random scripts: made, routed to, released.

use super::Generator;
use larder_sim::script::{Op, Route};

#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) number: u32,
    pub(super) uses: u32,
    pub(super) routed: bool,
    /// The stream whose capture this pool's routing is for.
    pub(super) captures: Option<u32>,
    /// Its layout may be saved, so it lends to nobody.
    pub(super) checkpoints: bool,
}

/// An open scope: the pool, and what goes to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) pool: u32,
    pub(super) route: Route,
}

impl Generator {
    /// The pool that an allocation on this stream goes to.
    pub(super) fn route(&self, stream: u32) -> Option<u32> {
        let takes = |scope: &&Scope| match scope.route {
            Route::All => true,
            Route::Stream(only) => only == stream,
            Route::Capture(_) => self.captured.contains(&stream),
        };
        self.scopes.iter().rev().find(takes).map(|scope| scope.pool)
    }

    pub(super) fn pool_step(&mut self) {
        if self.options.lending {
            return self.lending_step();
        }
        if self.options.graphs && self.graph_step() {
            return;
        }
        if self.pools.is_empty() || (self.pools.len() < 3 && self.random.chance(0.2)) {
            return self.new_pool();
        }
        let index = self.random.below(self.pools.len() as u64) as usize;
        let Pool { number: pool, routed, .. } = self.pools[index];
        match (routed, self.random.below(6)) {
            (false, 0..=2) => self.begin_routing(index),
            (false, 3) if self.captured.is_empty() => self.ops.push(Op::PoolEmpty { pool }),
            (false, 4) => {
                self.pools[index].uses += 1;
                self.ops.push(Op::PoolNew { pool });
            }
            (false, _) => self.release(index),
            (true, 0..=3) => self.end_routing(index),
            (true, _) => self.alloc_or_free(),
        }
    }

    /// A pool that is released for good does not come back under its number.
    fn new_pool(&mut self) {
        let number = self.pool_next;
        self.pool_next += 1;
        let checkpoints = self.options.graphs && self.random.chance(0.6);
        self.push_pool(number, checkpoints);
        if !checkpoints && self.random.chance(0.3) {
            let on = self.random.chance(0.7);
            self.ops.push(Op::PoolUseOnOom { pool: number, on });
        }
        if self.random.chance(0.3) {
            self.ops.push(Op::PoolNoSplit { pool: number });
        }
    }

    pub(super) fn push_pool(&mut self, number: u32, checkpoints: bool) {
        let (routed, captures) = (false, None);
        self.pools.push(Pool { number, uses: 1, routed, captures, checkpoints });
        self.ops.push(Op::PoolNew { pool: number });
    }

    fn begin_routing(&mut self, index: usize) {
        let stream = self.any_stream();
        let every_stream = self.random.chance(0.2);
        let captures = !every_stream && self.captured.is_empty() && self.random.chance(0.4);
        let route = if every_stream { Route::All } else { Route::Stream(stream) };
        self.open_scope(index, route);
        if captures {
            self.pools[index].captures = Some(stream);
            self.captured.push(stream);
            self.ops.push(Op::CaptureBegin { stream });
        }
        // What follows is mostly meant for the pool.
        self.burst.stream = stream;
    }

    pub(super) fn open_scope(&mut self, index: usize, route: Route) {
        let entry = &mut self.pools[index];
        entry.uses += 1;
        entry.routed = true;
        let pool = entry.number;
        self.scopes.push(Scope { pool, route });
        self.ops.push(Op::PoolBegin { pool, route });
    }

    pub(super) fn end_routing(&mut self, index: usize) {
        let Pool { number: pool, routed, captures, .. } = self.pools[index];
        if let Some(stream) = captures {
            self.ops.push(Op::CaptureEnd { stream });
            self.captured.clear();
            self.pools[index].captures = None;
        }
        if routed {
            self.ops.push(Op::PoolEnd { pool });
            self.scopes.retain(|scope| scope.pool != pool);
            self.pools[index].routed = false;
        }
    }

    /// Drops one use; the pool is forgotten with the last, and so is what was saved of it.
    pub(super) fn release(&mut self, index: usize) {
        let entry = &mut self.pools[index];
        entry.uses -= 1;
        let pool = entry.number;
        self.ops.push(Op::PoolRelease { pool });
        if entry.uses == 0 {
            self.pools.remove(index);
            self.saved.retain(|saved| saved.pool != pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::generate::GenerateOptions;

    #[test]
    fn pools_and_captures_are_balanced_and_captured_streams_are_left_alone() {
        for seed in 0..40 {
            let options = GenerateOptions {
                steps: 5000,
                pools: true,
                graphs: seed % 2 == 1,
                ..GenerateOptions::default()
            };
            let mut uses: HashMap<u32, i64> = HashMap::new();
            let mut routed: Vec<u32> = Vec::new();
            let mut captured: Vec<u32> = Vec::new();
            for op in Generator::new(seed, options).generate() {
                match op {
                    Op::PoolNew { pool } => *uses.entry(pool).or_default() += 1,
                    Op::PoolBegin { pool, .. } => {
                        assert!(!routed.contains(&pool) && uses[&pool] > 0);
                        routed.push(pool);
                        *uses.entry(pool).or_default() += 1;
                    }
                    Op::PoolEnd { pool } => {
                        let at = routed.iter().position(|&other| other == pool).unwrap();
                        routed.remove(at);
                    }
                    Op::PoolRelease { pool } => {
                        assert!(uses[&pool] > 0 && !routed.contains(&pool));
                        *uses.entry(pool).or_default() -= 1;
                    }
                    Op::CaptureBegin { stream } => {
                        assert!(captured.is_empty());
                        captured.push(stream);
                    }
                    Op::CaptureEnd { stream } => {
                        assert_eq!(captured[0], stream);
                        captured.clear();
                    }
                    Op::Wait { stream, other } => {
                        assert!(captured.contains(&other));
                        captured.push(stream);
                    }
                    Op::Sync { stream } => assert!(!captured.contains(&stream)),
                    Op::Empty | Op::PoolEmpty { .. } => assert!(captured.is_empty()),
                    Op::Checkpoint { .. } | Op::Restore { .. } => assert!(routed.is_empty()),
                    _ => {}
                }
            }
            assert!(uses.values().all(|&uses| uses == 0), "{uses:?}");
            assert!(routed.is_empty() && captured.is_empty());
        }
    }
}
