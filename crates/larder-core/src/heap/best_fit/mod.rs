//! Best fit: a request gets the smallest free block that will do, and of several of one size the
//! one that the policy's order has first.

mod by_size;

use crate::heap::inventory::{Inventory, Parts, cut_at, make_live};
use crate::heap::rules::Rules;
use crate::heap::size::SMALL_MAX_BYTES;
use crate::heap::space::block::split;
use crate::heap::{Want, size};
use crate::types::{Addr, PoolKind, StreamId};

/// What follows from the rules for this placement.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct BestFit {
    /// Frees of blocks of at most so many bytes are deferred, and found by their size: of fixed
    /// segments, and of expandable ones. While the setting is off these must not serve anybody.
    by_size_bytes: [u64; 2],
    /// The smallest rest for which a block is cut in two on the fast path: for a request of each
    /// kind, from a block of a fixed segment and of an expandable one.
    rest_min_bytes: [[u64; 2]; 2],
}

impl BestFit {
    /// Works out what follows from the rules. Nothing is deferred.
    pub(in crate::heap) fn derive(&mut self, rules: &Rules) {
        let growing = rules.config().expandable_segments;
        let max_bytes = if rules.policy().merges_late { SMALL_MAX_BYTES } else { 0 };
        self.by_size_bytes = [max_bytes, if growing { max_bytes } else { 0 }];
        let fineness = rules.fineness();
        self.rest_min_bytes = [PoolKind::Small, PoolKind::Large].map(|kind| {
            [false, true].map(|is_expandable| {
                size::remainder_min_bytes(size::cuts_finely(kind, fineness, is_expandable, growing))
            })
        });
    }

    /// The best free block for a request of the fast path for which none is deferred.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn search(
        &self,
        inventory: &mut Inventory,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Addr> {
        if self.turn_to(inventory, stream)
            && let Some(addr) = self.take_by_size(inventory, requested_bytes, stream)
        {
            return Some(addr);
        }
        let want = inventory.want_rounded(requested_bytes, stream);
        let addr = self.take_first(inventory, &want);
        if addr.is_none() && self.coalesce_for(inventory, requested_bytes, stream) {
            return self.take_first(inventory, &want);
        }
        addr
    }

    /// Hands out the first block of the index that is large enough. The fast path is open: there is
    /// no split limit, nobody listens, and blocks have neither ages nor numbers.
    // What is asked of the blocks is asked of one slice of them: what is written to a block might,
    // for all that the compiler knows, change where the blocks are.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then a request stays in registers.
    fn take_first(&self, inventory: &mut Inventory, want: &Want) -> Option<Addr> {
        let Parts { space, pools, .. } = inventory.parts();
        space.reserve();
        let (slots, spare) = space.parts();
        let free = pools.lane_mut(want.lane).filled()?;
        let id = free.take_first(slots, want.size_bytes, want.expandable)?;
        let cut = cut_at(want, &slots[id.place()], &self.rest_min_bytes);
        if cut.splits {
            let rest = split(slots, spare, id, cut.size_bytes);
            free.insert(slots, rest);
        }
        let taken = make_live(slots, id, want);
        inventory.note_cut(want, &cut, &taken);
        inventory.recorder_mut().record(taken.record(want, &cut, false));
        Some(taken.addr)
    }
}
