//! Listeners: what malloc and free do while somebody listens. They take the fast path all the same,
//! where nothing else is on, and then the history is told.

use crate::heap::Heap;
use crate::record::Record;
use crate::record::event::Action;
use crate::record::history::Fact;
use crate::types::{Addr, PoolId, StreamId};

impl Heap {
    /// Does something of which nobody is told by it.
    fn unheard<T>(&mut self, act: impl FnOnce(&mut Heap) -> T) -> T {
        let listening = self.inventory.recorder_mut().pause();
        self.guard.set_listener(self.inventory.recorder().is_listening());
        let result = act(self);
        self.inventory.recorder_mut().go_on(listening);
        self.guard.set_listener(self.inventory.recorder().is_listening());
        result
    }

    /// Does what `malloc` does while nothing but entries is asked of the history, and makes one.
    #[inline]
    pub(crate) fn malloc_listed(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        let addr = self.unheard(|heap| heap.malloc(requested_bytes, stream))?;
        if let Some(history) = self.inventory.recorder_mut().simple_listener() {
            let (action, size_bytes, pool) = (Action::Alloc, requested_bytes, PoolId::NONE);
            history.tell_simply(&Fact { action, addr: addr.0, size_bytes, stream, pool });
        }
        Some(addr)
    }

    /// Does what `free` does while nothing but entries is asked of the history, and makes two.
    #[inline]
    pub(crate) fn free_listed(&mut self, addr: Addr) -> bool {
        let own = self.own_by_address(addr).filter(|_| self.guard.is_plain());
        let Some(id) = own else { return false };
        let block = &self.inventory.space()[id];
        let (stream, pool) = self.inventory.side_of(block.lane);
        let size_bytes = block.requested_bytes;
        if let Some(history) = self.inventory.recorder_mut().simple_listener() {
            for action in [Action::FreeRequested, Action::FreeCompleted] {
                history.tell_simply(&Fact { action, addr: addr.0, size_bytes, stream, pool });
            }
        }
        self.unheard(|heap| heap.free(addr))
    }

    /// Does what `malloc` does whatever the history asks for, where frees are deferred: then a
    /// program that is remembered gets the blocks that it gets without.
    pub(crate) fn malloc_with_history(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        if !self.policy().merges_late || !self.inventory.recorder().is_listening() {
            return None;
        }
        let addr = self.unheard(|heap| heap.malloc(requested_bytes, stream))?;
        let id = self.live(addr)?;
        let (place, requested_bytes) = self.inventory.facts(id);
        self.inventory.tell(id, &Record::Alloc { place, requested_bytes, oversize: false });
        Some(addr)
    }

    /// Does what `free` does, likewise.
    pub(crate) fn free_with_history(&mut self, addr: Addr) -> bool {
        if !self.policy().merges_late || !self.inventory.recorder().is_listening() {
            return false;
        }
        let own = self.own_by_address(addr).filter(|_| self.guard.is_plain());
        let Some(id) = own else { return false };
        let (place, requested_bytes) = self.inventory.facts(id);
        self.inventory.tell(id, &Record::Free { place, requested_bytes, oversize: false });
        self.unheard(|heap| heap.free(addr))
    }
}
