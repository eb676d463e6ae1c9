//! One thread of a concurrent run: what it holds, and what it does next.

use std::sync::Arc;

use larder_core::types::{KIB, MIB};
use larder_core::{MemPool, StreamId};

use super::claims::Held;
use super::ground::{Ground, count};
use super::trouble::planned;
use larder_sim::random::Random;

/// The streams that everybody uses. None of them is ever captured.
pub(super) const SHARED_STREAMS: u64 = 3;
/// How many streams each thread has to itself; it captures on these alone.
pub(super) const OWN_STREAMS: u64 = 3;
/// How many blocks a thread holds, apart from those of its graphs.
const HELD_MAX: usize = 20;

/// A thread.
pub(super) struct Worker {
    pub(super) ground: Arc<Ground>,
    pub(super) number: usize,
    pub(super) random: Random,
    pub(super) held: Vec<Held>,
    /// Pools that are its own, with names or without.
    pub(super) pools: Vec<MemPool>,
    /// The pools of graphs that it captured, each with the blocks that live in it.
    pub(super) graphs: Vec<(MemPool, Vec<Held>)>,
}

impl Worker {
    pub(super) fn new(ground: Arc<Ground>, number: usize) -> Worker {
        let random = ground.plan.random(number);
        let (held, pools, graphs) = (Vec::new(), Vec::new(), Vec::new());
        Worker { ground, number, random, held, pools, graphs }
    }

    /// Does one thing.
    pub(super) fn step(&mut self) -> Result<(), String> {
        count(&self.ground.counts.steps);
        self.ground.watchdog.beat();
        match self.random.below(100) {
            0..=37 => self.malloc(),
            38..=67 => self.free(),
            68..=74 => self.record(),
            75..=78 => {
                let stream = self.stream();
                self.ground.sim.sync(stream);
                Ok(())
            }
            79..=88 => self.pool_step(),
            89 if self.ground.plan.captures => self.capture(),
            90 if self.ground.plan.captures => self.drop_graph(),
            91 if self.ground.plan.changes => self.change_settings(),
            92 if self.ground.plan.remembers => self.change_history(),
            93 => self.ask_stranger(),
            94 => self.empty(),
            95 => self.set_fraction(),
            _ => self.look(),
        }
    }

    /// A stream of everybody's, or one of its own.
    pub(super) fn stream(&mut self) -> StreamId {
        if self.random.chance(0.8) {
            StreamId(self.random.below(SHARED_STREAMS))
        } else {
            let number = self.random.below(OWN_STREAMS);
            self.own_stream(number)
        }
    }

    /// One of the streams that nobody else works on.
    pub(super) fn own_stream(&self, number: u64) -> StreamId {
        StreamId((self.number as u64 + 1) * 100 + number)
    }

    pub(super) fn size_bytes(&mut self) -> u64 {
        let memory_bytes = self.ground.plan.memory_bytes;
        match self.random.below(20) {
            0..=10 => self.random.between(1, 16 * KIB),
            11..=15 => self.random.between(1, 2 * MIB),
            16..=18 => self.random.between(MIB, 14 * MIB),
            _ => self.random.between(MIB, memory_bytes / 3),
        }
    }

    /// Asks for memory on the stream, and holds it.
    pub(super) fn malloc_on(&mut self, stream: StreamId) -> Result<(), String> {
        let size_bytes = self.size_bytes();
        self.held.extend(self.ground.malloc(size_bytes, stream)?);
        Ok(())
    }

    fn malloc(&mut self) -> Result<(), String> {
        if self.held.len() >= HELD_MAX {
            return self.free();
        }
        let stream = self.stream();
        self.malloc_on(stream)?;
        if self.random.chance(0.3) {
            self.leave_last();
        }
        Ok(())
    }

    /// Frees a block of its own, or one that somebody left.
    fn free(&mut self) -> Result<(), String> {
        if self.random.chance(0.3) {
            let at = self.random.next_u64();
            let Some(held) = self.ground.pick_up(at) else { return Ok(()) };
            count(&self.ground.counts.freed_by_others);
            let left = self.ground.free(held)?;
            self.ground.leave_anyway(left);
            return Ok(());
        }
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let held = self.held.swap_remove(at);
        self.held.extend(self.ground.free(held)?);
        Ok(())
    }

    /// Uses a block of its own on another stream.
    fn record(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let stream = self.stream();
        let held = self.held.swap_remove(at);
        self.use_on(held, stream)?;
        self.held.push(held);
        if self.random.chance(0.3) {
            self.leave_last();
        }
        Ok(())
    }

    /// Leaves a block for others to free, whatever streams used it: nobody who frees it may lay
    /// hands on one of these while its owner begins or ends a capture of it.
    fn leave_last(&mut self) {
        let left = self.held.pop().and_then(|held| self.ground.leave(held));
        self.held.extend(left);
    }

    /// Uses a block on a stream, and notes that with the allocator.
    pub(super) fn use_on(&mut self, held: Held, stream: StreamId) -> Result<(), String> {
        Ground::work_on(stream);
        self.ground.sim.issue(stream);
        planned(self.ground.allocator.record_stream(held.span.addr, stream))?;
        Ok(())
    }

    /// Frees addresses at which no block starts.
    fn ask_stranger(&mut self) -> Result<(), String> {
        let Some(held) = self.held.last() else { return Ok(()) };
        let mut strangers = vec![held.span.addr.offset(1)];
        if held.span.size_bytes > 512 {
            strangers.push(held.span.addr.offset(512));
        }
        match strangers.into_iter().find(|&addr| !self.ground.is_stranger(addr)) {
            None => Ok(()),
            Some(addr) => Err(format!("{addr} inside of {held:?} is taken for a block")),
        }
    }

    fn empty(&mut self) -> Result<(), String> {
        if self.random.chance(0.5) {
            planned(self.ground.allocator.empty_cache())?;
            return Ok(());
        }
        let at = self.random.next_u64();
        let Some(pool) = self.ground.some_name(at) else { return Ok(()) };
        planned(self.ground.allocator.empty_pool(pool))?;
        Ok(())
    }

    fn set_fraction(&mut self) -> Result<(), String> {
        let fraction = *self.random.pick(&[0.5, 0.8, 1.0, 1.0]);
        let set = self.ground.allocator.set_memory_fraction(fraction);
        set.map_err(|error| error.to_string())
    }

    /// Gives everything back. No fault is planned any more, so that all of it goes.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let graphs = std::mem::take(&mut self.graphs);
        let (graph_pools, graph_blocks): (Vec<_>, Vec<_>) = graphs.into_iter().unzip();
        let held = std::mem::take(&mut self.held).into_iter();
        for held in held.chain(graph_blocks.into_iter().flatten()) {
            if let Some(held) = self.ground.free(held)? {
                return Err(format!("{held:?} could not be freed, and no fault was planned"));
            }
            self.ground.watchdog.beat();
        }
        drop(graph_pools);
        self.pools.clear();
        Ok(())
    }
}
