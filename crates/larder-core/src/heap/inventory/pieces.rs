//! Pieces: what of the cache is free, counted for a request that could not be met: what would go
//! back to the device as it is, and what would if it lay in pages.

use crate::heap::ids::BlockId;
use crate::heap::inventory::{Fit, Inventory};
use crate::heap::pools::lane::Lane;
use crate::heap::pools::pool::PoolRole;
use crate::heap::{Want, size};
use crate::out_of_memory::{FINE_PAGE_BYTES, Pieces};

impl Inventory {
    /// The numbers of what is free when this request fails.
    pub(in crate::heap) fn pieces(&mut self, want: &Want, fit: Fit, put_off: &[BlockId]) -> Pieces {
        let fits_now = self.fits(want, fit);
        let own = self.pools.lane_at(want.pool, want.stream).map(|lane| self.pools.lane(lane));
        let own_block_bytes = own.and_then(|lane| lane.free()?.largest_bytes(self.space.blocks()));
        let own_pool = self.pools.pool(want.pool);
        let mut pieces = Pieces {
            fits_now,
            joins_pages: self.rules.shares_segments() && self.pools.is_movable(want.pool),
            own_block_bytes: own_block_bytes.unwrap_or(0),
            can_expand: own_pool.role() != PoolRole::OwnSource && !self.rules.shares_segments(),
            page_bytes: size::page_bytes(want.kind, self.rules.config()),
            reserve_bytes: self.rules.reserve_of(want.stream),
            put_off_bytes: put_off.iter().map(|&id| self.space[id].size_bytes).sum(),
            ..Pieces::default()
        };
        for (_, lane) in self.lanes_awake() {
            let is_private = self.pools.pool(lane.pool()).owner().is_some();
            for id in lane.free_blocks(self.space.blocks()) {
                if is_private {
                    self.count_private(&mut pieces, want, lane, id);
                } else {
                    self.count_piece(&mut pieces, lane, id);
                }
            }
        }
        // In pages, the memory of each lane would end inside one.
        let lanes = self.space.named_lanes().into_iter().map(|lane| self.pools.lane(lane));
        let own = lanes.filter(|lane| self.pools.pool(lane.pool()).owner().is_none());
        let ends_bytes: u64 =
            own.map(|lane| size::page_bytes(lane.kind(), self.rules.config())).sum();
        pieces.pages_sure_bytes = pieces.pages_sure_bytes.saturating_sub(ends_bytes);
        pieces
    }

    /// Counts a free block of the default pools.
    fn count_piece(&self, pieces: &mut Pieces, lane: &Lane, id: BlockId) {
        let block = &self.space[id];
        let idle_bytes = self.space.idle_bytes(block);
        let page_bytes = size::page_bytes(lane.kind(), self.rules.config());
        let pages = if block.expandable { 0 } else { block.size_bytes / page_bytes };
        pieces.idle_bytes += idle_bytes;
        // Where its pages would begin is not known: one of them may be lost to the neighbours.
        pieces.pages_sure_bytes += idle_bytes.max(pages.saturating_sub(1) * page_bytes);
        pieces.pages_at_best_bytes += idle_bytes.max(pages * page_bytes);
        // Segments are whole numbers of fine pages, so that those are where they would be.
        let segment = &self.space[block.segment];
        let begin = (block.addr.0 - segment.span().addr.0).div_ceil(FINE_PAGE_BYTES);
        let end = (block.span().end().0 - segment.span().addr.0) / FINE_PAGE_BYTES;
        pieces.fine_pages_bytes += end.saturating_sub(begin) * FINE_PAGE_BYTES;
    }

    /// Counts a free block of a private pool. The request's own pool is not one to let go of.
    fn count_private(&self, pieces: &mut Pieces, want: &Want, lane: &Lane, id: BlockId) {
        let block = &self.space[id];
        let own = self.pools.pool(want.pool).owner();
        if self.pools.pool(lane.pool()).owner() != own {
            pieces.private_idle_bytes += self.space.idle_bytes(block);
        }
        // A pool lends to requests of the default pools, and no block that can grow.
        let is_lane = lane.kind() == want.kind && lane.living_stream() == Some(want.stream);
        if own.is_none() && is_lane && !block.expandable {
            pieces.lendable_block_bytes = pieces.lendable_block_bytes.max(block.size_bytes);
        }
    }
}
