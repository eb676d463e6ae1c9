//! Exact: a request is put at an address that its caller names.
//!
//! Blocks are cut at their front. So what lies before the address is handed out too, and put back
//! once the request has its block; it is counted and told like any other, as in PyTorch. The
//! history says of all of it that an address was named.

use crate::heap::Want;
use crate::heap::ids::BlockId;
use crate::heap::inventory::Inventory;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::block::State;
use crate::types::{Addr, Span};

/// What PyTorch says of the events of such a request.
const BY_ADDRESS: &str = "mallocWithAddress";

impl Inventory {
    /// Hands out what lies at an address, if a free block of the request's own pool and stream
    /// holds all of it. None, and nothing is done, if there is no such block.
    pub(crate) fn take_at(&mut self, want: &Want, addr: Addr) -> Option<Addr> {
        let want = &Want { lane: self.lane_of(want), ..*want };
        let id = self.free_over(want, addr)?;
        let taken = self.tell_as(BY_ADDRESS, |inventory| inventory.hand_out_at(id, want, addr));
        assert!(taken == addr, "what lies at {addr} was asked for, and not at {taken}");
        Some(taken)
    }

    /// Hands out what lies at an address in a free block that holds the request there.
    fn hand_out_at(&mut self, id: BlockId, want: &Want, addr: Addr) -> Addr {
        let before_bytes = addr.0 - self.space[id].addr.0;
        self.unshelve(id);
        if before_bytes == 0 {
            return self.hand_out(id, want);
        }
        let before = Want { requested_bytes: before_bytes, size_bytes: before_bytes, ..*want };
        self.hand_out_front(id, &before);
        let rest = self.space[id].next.expect("it was cut off just now");
        self.unshelve(rest);
        let taken = self.hand_out(rest, want);
        self.put(id);
        taken
    }

    /// The free block that holds the request at an address. Blocks lie at multiples of a unit from
    /// the start of their segment, and so does the address; views have no free blocks, so that
    /// nothing is found in one.
    fn free_over(&self, want: &Want, addr: Addr) -> Option<BlockId> {
        let segment = self.space.segments().holder_of(addr)?;
        let id = self.space.block_over(segment, addr)?;
        let block = &self.space[id];
        let suits = !block.expandable || !self.must_be_plain(want);
        let is_right = block.state == State::Free && block.lane == want.lane && suits;
        let is_block_start = (addr.0 - block.addr.0).is_multiple_of(BLOCK_UNIT_BYTES);
        let end_bytes = addr.0.checked_add(want.size_bytes)?;
        let is_held = block.span().covers(Span::new(addr, end_bytes - addr.0));
        (is_right && is_block_start && is_held).then_some(id)
    }
}
