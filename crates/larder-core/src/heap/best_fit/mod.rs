//! Best fit: a request gets the smallest free block that will do, and of several of one size the
//! one that the policy's order has first.

pub(super) mod by_size;

use crate::heap::cut::{cut_at, make_live};
use crate::heap::space::block::split;
use crate::heap::{Heap, Want};
use crate::types::{Addr, StreamId};

impl Heap {
    /// The best free block for a request of the fast path for which none is deferred.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(super) fn search_best_fit(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        if self.turn_to(stream)
            && let Some(addr) = self.take_by_size(requested_bytes, stream)
        {
            return Some(addr);
        }
        let want = self.want_rounded(requested_bytes, stream);
        let addr = self.take_first(&want);
        if addr.is_none() && self.coalesce_for(requested_bytes, stream) {
            return self.take_first(&want);
        }
        addr
    }

    /// Hands out the first block of the index that is large enough. The fast path is open: there is
    /// no split limit, nobody listens, and blocks have neither ages nor numbers.
    // What is asked of the blocks is asked of one slice of them: what is written to a block might,
    // for all that the compiler knows, change where the blocks are.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    fn take_first(&mut self, want: &Want) -> Option<Addr> {
        self.space.reserve();
        let (slots, spare) = self.space.parts();
        let free = self.pools.lane_mut(want.lane).filled()?;
        let id = free.take_first(slots, want.size_bytes, want.expandable)?;
        let cut = cut_at(want, &slots[id.place()], &self.rest_min_bytes);
        if cut.splits {
            let rest = split(slots, spare, id, cut.size_bytes);
            free.insert(slots, rest);
        }
        let taken = make_live(slots, id, want);
        self.note_cut(want, &cut, &taken);
        self.herald.record(taken.record(want, &cut, false));
        Some(taken.addr)
    }
}
