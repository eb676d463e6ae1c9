//! The check: every owner's own, and what must hold between them. It takes time in proportion to
//! the heap; tests and the soak command call it after each step.

use std::collections::HashSet;

use crate::error::Unsound;
use crate::heap::Heap;
use crate::heap::ids::BlockId;
use crate::heap::space::block::State;

impl Heap {
    /// Checks every invariant; says in one sentence which one does not hold.
    pub fn check(&self) -> Result<(), Unsound> {
        self.inventory.check()?;
        self.waiting.check()?;
        self.placement.check(&self.inventory)?;
        self.check_waiting()?;
        self.check_uses()?;
        self.check_guard()
    }

    /// Uses belong to live blocks and to frees that were put off; what waits is `Waiting`.
    fn check_waiting(&self) -> Result<(), Unsound> {
        let state = |id: BlockId| self.space()[id].state;
        let put_off: HashSet<BlockId> = self.waiting.put_off().into_iter().collect();
        for id in self.waiting.used_blocks() {
            if state(id) != State::Live && !put_off.contains(&id) {
                return Err(format!("{id:?} has uses but is not live").into());
            }
        }
        let with_events = self.waiting.waiting_blocks().map(|(id, _)| id);
        for id in with_events.chain(put_off.iter().copied()) {
            if state(id) != State::Waiting {
                return Err(format!("{id:?} is awaited or put off, and does not wait").into());
            }
        }
        Ok(())
    }

    /// A block asks for care when it is freed exactly if others used it, or somebody has to know.
    fn check_uses(&self) -> Result<(), Unsound> {
        for (segment_id, segment) in self.space().segments().iter() {
            for id in self.space().chain(segment_id) {
                let block = &self.space()[id];
                let has_uses = !self.waiting.uses(id).is_empty();
                let is_live = block.state == State::Live;
                let is_told = is_live && (segment.is_view() || self.inventory.is_symmetric(id));
                if (has_uses || is_told) != block.used_elsewhere {
                    return Err(format!("{id:?} is wrong about its use elsewhere").into());
                }
            }
        }
        Ok(())
    }

    /// While the fast path is unbroken nothing special is on; and while it is not, nothing is
    /// deferred.
    fn check_guard(&self) -> Result<(), Unsound> {
        let deferred = self.inventory.deferred();
        let is_routed = self.pools().is_diverted() || self.pools().has_plain_threads();
        let is_special = !self.guard.is_plain() || is_routed || !self.waiting.is_idle();
        let is_unbroken = self.guard.is_unbroken();
        if is_unbroken && is_special {
            return Err("the fast path is open, though something special is on".into());
        }
        if !is_unbroken && (!deferred.is_empty() || deferred.is_in_place()) {
            return Err("frees are deferred, though the fast path is closed".into());
        }
        Ok(())
    }
}
