//! The model's requests that name an address.

use larder_core::types::{Addr, StreamId};

use super::{Model, Want};

impl Model {
    /// A request for memory at an address; false if no free block of its pool and stream holds it
    /// there.
    pub(in crate::soak) fn malloc_at(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
        addr: Addr,
    ) -> bool {
        let is_there = self.try_malloc_at(requested_bytes, stream, addr);
        // The harness looks before it goes on.
        self.see_pieces();
        is_there
    }

    fn try_malloc_at(&mut self, requested_bytes: u64, stream: StreamId, addr: Addr) -> bool {
        self.settle();
        self.prepare(stream);
        let want = self.want(requested_bytes, stream);
        let mut spots = self.free_blocks(want.pool, want.kind, Some(stream));
        spots.retain(|&spot| {
            let block = self.block(spot);
            let is_held = block.addr <= addr.0 && addr.0 + want.size_bytes <= block.end();
            is_held && !(want.plain && self.segments[spot.0].is_expandable())
        });
        let Some(&(at, block_at)) = spots.first() else { return false };
        let first = self.block((at, block_at)).addr;
        if first == addr.0 {
            self.hand_out((at, block_at), &want);
            return true;
        }
        let before_bytes = addr.0 - first;
        let before = Want { requested_bytes: before_bytes, size_bytes: before_bytes, ..want };
        self.hand_out_cut((at, block_at), &before, true);
        self.hand_out((at, block_at + 1), &want);
        self.free(Addr(first));
        true
    }
}
