//! What a thread does with private pools: it opens them, asks inside of them, passes them on, drops
//! them.

use std::thread;

use larder_core::error::PoolProblem;
use larder_core::heap::Filter;
use larder_core::{Error, MemPool, PoolId, StreamId};

use super::trouble::planned;
use super::worker::{SHARED_STREAMS, Worker};

/// The names that everybody makes pools under.
const NAMES: u64 = 4;
/// Where these names start: above all that the allocator gives out itself.
const NAMES_BASE: u64 = 1 << 40;
/// How many pools a thread keeps.
const POOLS_MAX: usize = 4;

impl Worker {
    pub(super) fn pool_step(&mut self) -> Result<(), String> {
        match self.random.below(10) {
            0 | 1 => self.make_pool(),
            2..=5 => self.use_pool(),
            6 => self.visit_name(),
            7 => {
                self.pass_pool_on();
                Ok(())
            }
            8 => self.set_up_pool(),
            _ => {
                if !self.pools.is_empty() {
                    let at = self.random.below(self.pools.len() as u64) as usize;
                    drop(self.pools.swap_remove(at));
                }
                Ok(())
            }
        }
    }

    fn make_pool(&mut self) -> Result<(), String> {
        if self.pools.len() >= POOLS_MAX {
            self.pools.remove(0);
        }
        let ground = self.ground.clone();
        let made = match self.random.below(6) {
            0 | 1 => ground.quarry_pool(&mut self.random),
            // One more use of a pool that others have.
            2 => {
                let at = self.random.next_u64();
                let Some(name) = ground.some_name(at) else { return Ok(()) };
                match MemPool::named(&ground.allocator, name) {
                    Err(Error::Pool { problem: PoolProblem::Released, .. }) => return Ok(()),
                    made => made,
                }
            }
            _ => MemPool::new(&ground.allocator),
        };
        let pool = made.map_err(|error| error.to_string())?;
        ground.note_pool(pool.id());
        self.pools.push(pool);
        Ok(())
    }

    /// Asks for memory inside a scope of a pool of its own.
    fn use_pool(&mut self) -> Result<(), String> {
        let Some(pool) = self.pools.pop() else { return self.make_pool() };
        let filter = self.filter();
        // It is opened by one thread at a time, because others may have a use of the same pool.
        let inside = pool.scope_for(filter, || self.ask_inside());
        self.pools.push(pool);
        match inside {
            Ok(result) => result,
            Err(Error::Pool { problem: PoolProblem::Open, .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn filter(&mut self) -> Filter {
        match self.random.below(6) {
            0 => Filter::Any,
            1 => Filter::Stream(self.stream()),
            _ => Filter::Thread(thread::current().id()),
        }
    }

    /// A few requests, and frees between them.
    pub(super) fn ask_inside(&mut self) -> Result<(), String> {
        for _ in 0..self.random.between(1, 4) {
            let stream = self.stream();
            self.malloc_on(stream)?;
            if self.random.chance(0.4)
                && let Some(held) = self.held.pop()
            {
                self.held.extend(self.ground.free(held)?);
            }
        }
        Ok(())
    }

    /// Opens a scope by name, by a filter or by a function, asks inside of it, and lets go of it.
    /// Others do the same under the same name: pools come, go, and come again.
    fn visit_name(&mut self) -> Result<(), String> {
        let pool = PoolId(0, NAMES_BASE + self.random.below(NAMES));
        let allocator = self.ground.allocator.clone();
        let opened = if self.random.chance(0.4) {
            let only = StreamId(self.random.below(SHARED_STREAMS));
            allocator.begin_pool_by(pool, move |stream| stream == only)
        } else {
            let filter = self.filter();
            allocator.begin_pool(pool, filter)
        };
        match opened {
            Ok(()) => {}
            Err(Error::Pool { problem: PoolProblem::Open | PoolProblem::Released, .. }) => {
                // Whoever released it last may not have emptied it.
                planned(allocator.empty_pool(pool))?;
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        }
        self.ground.note_pool(pool);
        let inside = self.ask_inside();
        allocator.end_pool(pool).map_err(|error| error.to_string())?;
        allocator.drop_pool_use(pool).map_err(|error| error.to_string())?;
        if self.random.chance(0.7) {
            planned(allocator.empty_pool(pool))?;
        }
        inside
    }

    /// Leaves a pool for others, or takes one over.
    fn pass_pool_on(&mut self) {
        if self.random.chance(0.5) {
            self.pools.pop().into_iter().for_each(|pool| self.ground.leave_pool(pool));
            return;
        }
        let at = self.random.next_u64();
        let Some(pool) = self.ground.adopt_pool(at) else { return };
        if self.pools.len() < POOLS_MAX {
            self.pools.push(pool);
        }
    }

    /// Says how a pool is to behave, and looks into it.
    fn set_up_pool(&mut self) -> Result<(), String> {
        let Some(pool) = self.pools.last() else { return Ok(()) };
        let (on, about) = (self.random.chance(0.5), self.random.below(4));
        let done = match about {
            0 => pool.set_use_on_oom(on),
            1 if on => pool.set_no_split(),
            2 => match pool.checkpoint() {
                Err(Error::Pool { problem, .. }) if has_no_layout(&problem) => Ok(()),
                saved => saved.map(drop),
            },
            _ => {
                pool.stats();
                pool.snapshot();
                Ok(())
            }
        };
        // To save a layout, what captures put off is looked at, which may fail as planned.
        planned(done).map(drop)
    }
}

/// Whether a pool's layout cannot be saved as it is just now.
fn has_no_layout(problem: &PoolProblem) -> bool {
    matches!(problem, PoolProblem::Unsettled(_) | PoolProblem::Spread(_))
}
