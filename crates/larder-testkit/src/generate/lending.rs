//! Pools that lend, in random scripts: several at a time, stocked with free blocks, switched on and
//! off, released, and made anew.

use super::{Generator, Live};
use larder_sim::script::{Op, Route};

/// So many pools there are at a time, at most.
const POOLS_MAX: u64 = 12;

impl Generator {
    pub(super) fn lending_step(&mut self) {
        let enough = self.random.between(2, POOLS_MAX);
        if (self.pools.len() as u64) < enough && self.random.chance(0.6) {
            let number = self.pool_next;
            self.pool_next += 1;
            return self.add_lender(number);
        }
        if self.pools.is_empty() {
            return self.alloc_or_free();
        }
        let index = self.random.below(self.pools.len() as u64) as usize;
        let pool = self.pools[index].number;
        match self.random.below(8) {
            0..=2 => self.stock(index),
            // What is off already may be switched off again, and what is on, on.
            3..=5 => {
                let on = self.random.chance(0.6);
                self.ops.push(Op::PoolUseOnOom { pool, on });
            }
            6 => self.retire_lender(index),
            _ => self.alloc_or_free(),
        }
    }

    fn add_lender(&mut self, number: u32) {
        self.push_pool(number, false);
        if self.random.chance(0.85) {
            self.ops.push(Op::PoolUseOnOom { pool: number, on: true });
        }
        if self.random.chance(0.1) {
            self.ops.push(Op::PoolNoSplit { pool: number });
        }
        self.stock(self.pools.len() - 1);
    }

    /// Makes some blocks in the pool and frees most of them, so that there is something to lend.
    fn stock(&mut self, index: usize) {
        let stream = self.any_stream();
        self.open_scope(index, Route::All);
        let mut stocked: Vec<Live> = Vec::new();
        for _ in 0..self.random.between(1, 5) {
            let size_bytes = self.size_bytes();
            if self.live_bytes + size_bytes <= self.options.live_bytes_max {
                self.alloc_on(size_bytes, stream);
                stocked.extend(self.live.back());
            }
        }
        self.end_routing(index);
        self.release(index);
        stocked.retain(|_| self.random.chance(0.8));
        self.free_these(&stocked);
    }

    /// Releases the pool for good, as a program does: it stops lending first. One that nothing is
    /// left of may come back under its name.
    fn retire_lender(&mut self, index: usize) {
        let pool = self.pools[index].number;
        self.ops.push(Op::PoolUseOnOom { pool, on: false });
        self.release(index);
        if self.random.chance(0.8) {
            self.ops.push(Op::PoolEmpty { pool });
            let is_empty = !self.live.iter().any(|live| live.pool == Some(pool));
            if is_empty && self.random.chance(0.2) {
                self.add_lender(pool);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::generate::GenerateOptions;

    #[test]
    fn many_pools_lend_at_a_time_and_all_are_released_in_the_end() {
        let (mut most, mut anew) = (0, 0);
        for seed in 0..20 {
            let options = GenerateOptions {
                steps: 2000,
                pools: true,
                lending: true,
                pool_probability: 0.1,
                ..GenerateOptions::default()
            };
            let (mut lending, mut made, mut uses) = (HashSet::new(), HashSet::new(), 0);
            for op in Generator::new(seed, options).generate() {
                match op {
                    Op::PoolNew { pool } => {
                        anew += u32::from(!made.insert(pool));
                        uses += 1;
                    }
                    Op::PoolBegin { .. } => uses += 1,
                    Op::PoolRelease { .. } => uses -= 1,
                    Op::PoolUseOnOom { pool, on: true } => _ = lending.insert(pool),
                    Op::PoolUseOnOom { pool, on: false } => _ = lending.remove(&pool),
                    _ => {}
                }
                most = most.max(lending.len());
            }
            assert_eq!(uses, 0, "seed {seed}");
        }
        assert!(most >= 8 && anew > 5, "{most} at most, {anew} anew");
    }
}
