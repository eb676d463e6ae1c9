//! The fast path: a malloc and a free as programs make them nearly always, whole, from top to
//! bottom.
//!
//! One word guards both, the largest request that may pass. It is zero while anything special is
//! on: an open scope, an event awaited, a thread that wants plain memory, somebody who listens,
//! settings or a policy that count searches or round otherwise. Whatever changes the heap in
//! another way closes the guard first, by `settle`; the next malloc opens it again if nothing
//! special is on. What is declined here goes to the one slow way, `Allocator::malloc_slow` or
//! `free_slow`.

use crate::heap::ids::BlockId;
use crate::heap::ready::Ready;
use crate::heap::size::{self, REQUEST_LIMIT_BYTES};
use crate::heap::{Heap, State};
use crate::types::{Addr, StreamId};

/// Whether malloc and free may take the fast path, as one word that they compare with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    /// A request of at most so many bytes may pass: none while anything special is on.
    max_bytes: u64,
    /// What is special, as bits.
    special: u8,
}

/// Something else than the fast path changed the heap, and since then nobody asked what is on.
const CLOSED: u8 = 1;
/// Settings or the policy round otherwise, count searches or draw numbers for blocks.
const SETTINGS: u8 = 2;
/// Somebody listens to what happens.
const LISTENER: u8 = 4;

impl Guard {
    pub(super) fn new() -> Guard {
        Guard { max_bytes: 0, special: CLOSED }
    }

    /// Whether nothing special is on.
    #[inline]
    pub(super) fn is_open(self) -> bool {
        self.max_bytes > 0
    }

    /// Whether nothing but the fast path changed the heap since it was asked what is on. Somebody
    /// may listen all the same.
    #[inline]
    pub(super) fn is_unbroken(self) -> bool {
        self.special & CLOSED == 0
    }

    /// Whether requests are rounded plainly, and neither searches nor blocks are numbered.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.special & SETTINGS == 0
    }

    #[inline]
    pub(super) fn close(&mut self) {
        (self.max_bytes, self.special) = (0, self.special | CLOSED);
    }

    /// Settings or the policy ask for more than the fast path does, from now on or no longer.
    pub(super) fn set_settings(&mut self, are_special: bool) {
        self.set(SETTINGS, are_special);
    }

    /// Somebody listens from now on, or no longer.
    #[inline]
    pub(super) fn set_listener(&mut self, is_listening: bool) {
        self.set(LISTENER, is_listening);
    }

    fn set(&mut self, bit: u8, is_on: bool) {
        self.special = if is_on { self.special | bit } else { self.special & !bit };
        self.max_bytes = if self.special == 0 { REQUEST_LIMIT_BYTES } else { 0 };
        debug_assert!(self.is_open() == (self.special == 0), "one word says it all");
    }
}

impl Heap {
    /// Hands out a free block: one that was freed and not merged yet, or the best that the index
    /// has. None if there is none, or if something special is on: then the slow way sees to it.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    pub(crate) fn malloc(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        // Of no bytes the last one is behind all sizes.
        let last = requested_bytes.wrapping_sub(1);
        if last >= self.guard.max_bytes && !self.open_guard(requested_bytes) {
            return None;
        }
        match self.placement.take_deferred(&mut self.inventory, requested_bytes, stream) {
            Ready::Taken(addr) => Some(addr),
            Ready::Declined => None,
            Ready::Nothing => self.search(requested_bytes, stream),
        }
    }

    /// Takes back the live block at an address. False, and nothing is done, if there is none, or if
    /// something special is on or the block needs more: then the slow way sees to it.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn free(&mut self, addr: Addr) -> bool {
        if !self.guard.is_open() {
            return self.free_closed(addr);
        }
        let Some(id) = self.own_by_address(addr) else { return false };
        if !self.placement.defer(&mut self.inventory, id) {
            self.inventory.merge_plainly(id);
        }
        true
    }

    /// The best free block for a request of the fast path for which none is deferred.
    #[inline(never)]
    fn search(&mut self, requested_bytes: u64, stream: StreamId) -> Option<Addr> {
        self.placement.search(&mut self.inventory, requested_bytes, stream)
    }

    /// The guard is closed. Opens it, if nothing special is on and the request is neither for
    /// nothing nor for more than can ever be.
    #[cold]
    #[inline(never)]
    fn open_guard(&mut self, requested_bytes: u64) -> bool {
        if self.guard.is_open() || size::is_odd(requested_bytes) {
            return false;
        }
        if !self.guard.is_unbroken() {
            let is_routed = self.pools().is_diverted() || self.pools().has_plain_threads();
            let is_closed = !self.guard.is_plain() || is_routed || !self.waiting.is_idle();
            self.guard.set(CLOSED, is_closed);
        }
        self.guard.is_open()
    }

    /// Takes back a block while the guard is closed: it is merged at once.
    #[inline(never)]
    fn free_closed(&mut self, addr: Addr) -> bool {
        if self.inventory.recorder().is_listening() {
            return false;
        }
        let own = self.inventory.live(addr).filter(|&id| !self.space()[id].used_elsewhere);
        own.inspect(|&id| {
            self.inventory.record_free(id);
            self.placement.reclaim(&mut self.inventory, id);
        })
        .is_some()
    }

    /// Whether a block is live, starts at the address, and is used on its own stream alone.
    #[inline(always)]
    #[allow(clippy::inline_always, clippy::needless_bitwise_bool)] // One branch for all of it.
    fn is_own(&self, id: BlockId, addr: Addr) -> bool {
        let block = &self.space()[id];
        (block.state == State::Live) & (block.addr == addr) & !block.used_elsewhere
    }

    /// The live block at an address that is used on its own stream alone, where no hint leads to
    /// it.
    #[inline(never)]
    fn find_own(&self, addr: Addr) -> Option<BlockId> {
        self.inventory.live(addr).filter(|&id| self.is_own(id, addr))
    }

    /// The live block at an address, if it is used on its own stream alone.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn own_by_address(&self, addr: Addr) -> Option<BlockId> {
        let hinted = self.space().hinted(addr).filter(|&id| self.is_own(id, addr));
        hinted.or_else(|| self.find_own(addr))
    }
}
