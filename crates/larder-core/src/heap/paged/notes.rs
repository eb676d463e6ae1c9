//! Notes: what the log of a lane's requests knows of the last one, and where it was put.

use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::request_log::{Ask, Spot};
use crate::heap::paged::{Miss, Paged};
use crate::heap::space::block::Block;
use crate::types::{Addr, StreamId};

impl Want {
    /// The request as the request log knows it.
    #[inline]
    pub(super) fn ask(&self) -> Ask {
        Ask::new(self.size_bytes)
    }
}

impl Paged {
    /// A request finds nothing on the fast path, and will come again.
    #[cold]
    pub(in crate::heap) fn note_miss(&mut self, want: &Want) {
        self.way(want.lane).missed = Some(Miss { ask: want.ask(), is_others: false });
    }

    /// A request that missed on the fast path does not come again.
    pub(crate) fn forget_miss(&mut self, want: &Want) {
        self.way(want.lane).missed = None;
    }

    /// The request that just missed on the fast path, if the program repeats itself and what the
    /// request was told to have is another lane's. It needs no more than to wait for that one's
    /// stream, and nothing has to be merged for it.
    pub(crate) fn missed_for_others(
        &mut self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Want> {
        if !inventory.deferred().is_in_place() {
            return None;
        }
        let want = inventory.want_rounded(requested_bytes, stream);
        let missed = self.way(want.lane).missed?;
        (missed.is_others && missed.ask == want.ask()).then_some(want)
    }

    /// A request was told to have what is probably another lane's, and will come again.
    pub(super) fn note_others_have(&mut self, want: &Want) {
        self.way(want.lane).missed = Some(Miss { ask: want.ask(), is_others: true });
    }

    /// The free block that the last request is cut out of is noted among the small ones, or among
    /// the others.
    #[cold]
    #[inline(never)]
    pub(in crate::heap) fn note_kind(&mut self, lane: LaneId, is_small: bool) {
        self.way(lane).log.note_kind(is_small);
    }

    /// The request goes where nobody should be led.
    pub(in crate::heap) fn forget_place(&mut self, inventory: &mut Inventory, want: &Want) {
        let lane = inventory.lane_of(want);
        self.way(lane).log.forget_place(want.ask());
    }

    /// A request was put into a block. Where plain memory lies tells nothing.
    #[inline]
    pub(in crate::heap) fn note_taken(&mut self, inventory: &Inventory, want: &Want, id: BlockId) {
        if want.expandable {
            self.note_entry(inventory, want, id);
        }
    }

    /// Notes where the last request was put: at an address, cut out of the free block that began
    /// there.
    #[inline]
    pub(in crate::heap) fn note_entry(&mut self, inventory: &Inventory, want: &Want, id: BlockId) {
        let Block { segment, addr, .. } = inventory.space()[id];
        self.note_place(inventory, want, segment, addr, addr);
    }

    /// Notes where the last request was put: at an address, cut out of the free block that began at
    /// another.
    #[inline]
    pub(super) fn note_place(
        &mut self,
        inventory: &Inventory,
        want: &Want,
        segment: SegmentId,
        addr: Addr,
        from: Addr,
    ) {
        let spot = Spot::new(segment, inventory.space()[segment].span().addr, addr, from);
        self.way(want.lane).log.note(want.ask(), spot);
    }
}
