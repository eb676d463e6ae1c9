//! Hints: which block probably starts at an address, or lies over one that somebody looked at.
//! Whoever frees knows an address alone, and the way from there to the block leads through the
//! segment and its windows, one after the other. A hint is one look away, and is checked: a block
//! that is live and starts at the address is the one, however it was found.

use crate::heap::ids::BlockId;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::Addr;

/// So many are kept, by address; of two addresses that share a place the last that was handed out,
/// or deferred, has it.
const HINTS: usize = 1 << 15;
/// What addresses are multiplied with so that they are spread over the places.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hints.
#[derive(Clone, Debug)]
pub(in crate::heap) struct Hints(Box<[Option<BlockId>; HINTS]>);

impl Hints {
    pub(in crate::heap) fn new() -> Hints {
        let hints = vec![None; HINTS].into_boxed_slice();
        Hints(hints.try_into().expect("so many were made"))
    }

    /// A block was handed out.
    #[inline]
    pub(in crate::heap) fn note(&mut self, addr: Addr, id: BlockId) {
        self.0[place(addr)] = Some(id);
    }

    /// The block that probably starts at an address.
    #[inline]
    pub(in crate::heap) fn get(&self, addr: Addr) -> Option<BlockId> {
        self.0[place(addr)]
    }
}

#[inline]
fn place(addr: Addr) -> usize {
    let spread = (addr.0 / BLOCK_UNIT_BYTES).wrapping_mul(SPREAD);
    (spread >> (u64::BITS - HINTS.ilog2())) as usize % HINTS
}
