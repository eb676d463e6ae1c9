//! Checkpoints of private pools: saving a layout, putting it back, and asking what is live.

use crate::allocator::capture::PutOff;
use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::{Error, PoolProblem};
use crate::heap::checkpoint::{Checkpoint, Restored};
use crate::heap::ids::BlockId;
use crate::record::event::Level;
use crate::types::{Addr, EventId, PoolId, StreamId};

/// How a block that other streams use is freed.
enum Farewell {
    After(Vec<(StreamId, EventId)>),
    PutOff(PutOff),
}

impl Allocator {
    /// Saves the layout of a private pool: where its blocks are, how large, and which are live. The
    /// pool must be in use, and none of its blocks may be awaited by another stream.
    pub fn checkpoint_pool(&self, pool: PoolId) -> Result<Checkpoint, Error> {
        let mut inner = self.enter(Level::All);
        let ready = inner.record_put_off(&*self.device);
        let mut saved = ready.and_then(|()| inner.heap.checkpoint(pool).map_err(Error::pool(pool)));
        drop(inner);
        self.leave();
        if let Ok(checkpoint) = &mut saved {
            checkpoint.maker = self.serial;
        }
        saved
    }

    /// Puts a saved layout back: afterwards exactly those blocks of the pool are live that were
    /// when it was saved, at the same addresses. The pool may have got more segments since; their
    /// blocks are freed. A checkpoint that cannot be put back is an error, and changes nothing.
    ///
    /// No byte of the memory is touched. Whoever held a block that is now freed must let go of it,
    /// and whoever held one that is live again may have it back.
    pub fn restore_pool(&self, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        if checkpoint.maker != self.serial {
            return Err(Error::pool(checkpoint.pool())(PoolProblem::OtherAllocator));
        }
        let mut inner = self.enter(Level::State);
        let restored = inner.restore(&*self.device, checkpoint);
        drop(inner);
        self.leave();
        restored
    }

    /// Whether exactly these blocks of a private pool are live.
    pub fn pool_has_live(&self, pool: PoolId, expected: &[Addr]) -> Result<bool, Error> {
        let live = self.look().heap.inventory().live_in(pool).map_err(Error::pool(pool))?;
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        expected.dedup();
        Ok(live == expected)
    }
}

impl Inner {
    fn restore(&mut self, device: &dyn Device, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        let used = self
            .heap
            .inventory()
            .plan_restore(checkpoint)
            .map_err(Error::pool(checkpoint.pool()))?;
        let freed: Vec<Addr> =
            used.iter().map(|&block| self.heap.inventory().addr_of(block)).collect();
        self.free_used(device, &used)?;
        let mut restored = self.heap.restore(checkpoint);
        restored.freed.extend(freed);
        restored.freed.sort_unstable();
        restored.created.sort_unstable();
        Ok(restored)
    }

    /// Frees live blocks that other streams use, all of them or, if the device refuses, none.
    fn free_used(&mut self, device: &dyn Device, blocks: &[BlockId]) -> Result<(), Error> {
        let mut farewells = Vec::with_capacity(blocks.len());
        for &block in blocks {
            match self.say_farewell(device, block) {
                Ok(farewell) => farewells.push(farewell),
                Err(error) => {
                    for farewell in farewells {
                        if let Farewell::After(events) = farewell {
                            self.unrecord(events);
                        }
                    }
                    return Err(error);
                }
            }
        }
        for (&block, farewell) in blocks.iter().zip(farewells) {
            match farewell {
                Farewell::After(events) => self.heap.put_after(block, &events),
                Farewell::PutOff(put_off) => self.put_off(block, put_off),
            }
        }
        Ok(())
    }

    fn say_farewell(&mut self, device: &dyn Device, block: BlockId) -> Result<Farewell, Error> {
        if let Some(put_off) = self.plan_putting_off(device, block)? {
            return Ok(Farewell::PutOff(put_off));
        }
        let streams = self.heap.uses(block).to_vec();
        Ok(Farewell::After(self.record_events(device, &streams)?))
    }
}

/// A checkpoint given to a pool that it is not of.
pub(super) fn check_owner(pool: PoolId, checkpoint: &Checkpoint) -> Result<(), Error> {
    if checkpoint.pool() == pool { Ok(()) } else { Err(Error::pool(pool)(PoolProblem::OtherPool)) }
}
