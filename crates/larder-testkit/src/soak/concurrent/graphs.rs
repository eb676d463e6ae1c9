//! What a thread does with graphs: it captures on streams of its own, keeps the pool for as long as
//! it keeps the graph, and drops both.

use larder_core::error::PoolProblem;
use larder_core::heap::Filter;
use larder_core::types::KIB;
use larder_core::{Error, MemPool, StreamId};

use super::claims::Held;
use super::ground::{Ground, count};
use super::trouble::planned;
use super::worker::{OWN_STREAMS, Worker};

/// How many graphs a thread keeps.
const GRAPHS_MAX: usize = 3;
/// How many blocks it leaves to others before it captures.
const LEFT_BLOCKS: usize = 4;

impl Worker {
    /// Captures a graph. Nothing may break the capture: nobody else works on its streams.
    pub(super) fn capture(&mut self) -> Result<(), String> {
        if self.graphs.len() >= GRAPHS_MAX {
            self.drop_graph()?;
        }
        let ground = self.ground.clone();
        // Graphs may share a pool.
        let reused = if self.random.chance(0.3) { self.graphs.pop() } else { None };
        let (pool, mut blocks) = if let Some(graph) = reused {
            graph
        } else {
            let pool = MemPool::for_capture(&ground.allocator);
            (pool.map_err(|error| error.to_string())?, Vec::new())
        };
        ground.note_pool(pool.id());
        count(&ground.counts.captures);
        let origin = self.own_stream(0);
        self.leave_some_of(origin)?;
        let captured = pool.scope_for(Filter::Capture(origin), || {
            let begun = ground.device.at_edge(&[origin], |sim| sim.begin_capture(origin));
            begun.map_err(|error| error.to_string())?;
            Ground::work_on(origin);
            let declared = if ground.plan.marks {
                planned(ground.allocator.begin_capture(origin))?
            } else {
                None
            };
            let inside = self.record_graph(origin, &mut blocks);
            let streams: Vec<_> = (0..OWN_STREAMS).map(|at| self.own_stream(at)).collect();
            let ended = ground.device.at_edge(&streams, |sim| sim.end_capture(origin));
            if let Some(token) = declared {
                ground.allocator.end_capture(token).map_err(|error| error.to_string())?;
            }
            inside.and(ended.map_err(|error| format!("a capture ended so: {error}")))
        });
        self.graphs.push((pool, blocks));
        match captured {
            // Somebody else has a use of the same pool, and asks inside of it.
            Err(Error::Pool { problem: PoolProblem::Open, .. }) => Ok(()),
            other => other.map_err(|error| error.to_string())?,
        }
    }

    /// Leaves blocks of a stream that is about to be captured, which others use as well: somebody
    /// may free them at any moment of the capture.
    fn leave_some_of(&mut self, stream: StreamId) -> Result<(), String> {
        for _ in 0..LEFT_BLOCKS {
            let size_bytes = self.random.between(1, 16 * KIB);
            if let Some(held) = self.ground.malloc(size_bytes, stream)? {
                self.use_on(held, StreamId(0))?;
                self.held.extend(self.ground.leave(held));
            }
        }
        Ok(())
    }

    /// Work on the captured stream and on those that join it, with memory that comes and goes.
    fn record_graph(&mut self, origin: StreamId, blocks: &mut Vec<Held>) -> Result<(), String> {
        let sim = self.ground.sim.clone();
        let mut joined = Vec::new();
        for _ in 0..self.random.between(3, 16) {
            match self.random.below(10) {
                0..=2 => self.ask_in_graph(origin, blocks)?,
                3 => {
                    let number = self.random.between(1, OWN_STREAMS - 1);
                    let side = self.own_stream(number);
                    sim.follow(side, origin).map_err(|error| error.to_string())?;
                    joined.push(side);
                }
                4 if !joined.is_empty() => {
                    let side = *self.random.pick(&joined);
                    self.ask_in_graph(side, blocks)?;
                }
                5 | 6 if !joined.is_empty() && !blocks.is_empty() => {
                    let side = *self.random.pick(&joined);
                    let at = self.random.below(blocks.len() as u64) as usize;
                    self.use_on(blocks[at], side)?;
                }
                7 | 8 if !blocks.is_empty() => {
                    let at = self.random.below(blocks.len() as u64) as usize;
                    let held = blocks.swap_remove(at);
                    blocks.extend(self.ground.free(held)?);
                }
                // Work that has nothing to do with the capture goes on.
                _ => {
                    let stream = StreamId(0);
                    self.malloc_on(stream)?;
                }
            }
            self.ground.watchdog.beat();
        }
        for side in joined {
            sim.follow(origin, side).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn ask_in_graph(&mut self, stream: StreamId, blocks: &mut Vec<Held>) -> Result<(), String> {
        let size_bytes = self.size_bytes();
        blocks.extend(self.ground.malloc(size_bytes, stream)?);
        self.ground.sim.issue(stream);
        Ok(())
    }

    /// Lets go of a graph: of the blocks that it left live, and of its pool.
    pub(super) fn drop_graph(&mut self) -> Result<(), String> {
        if self.graphs.is_empty() {
            return Ok(());
        }
        let (pool, blocks) = self.graphs.remove(0);
        for held in blocks {
            self.held.extend(self.ground.free(held)?);
        }
        let id = pool.id();
        drop(pool);
        planned(self.ground.allocator.empty_pool(id))?;
        Ok(())
    }
}
