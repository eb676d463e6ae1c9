//! Passing on: before new pages are made for one pool, whole pages go back that are free in others.
//!
//! Pools do not show each other's pages, so that a pool can be told from the others by its
//! segments, and goes with all its memory. What one does not need reaches another by way of the
//! device. Pools that graphs know give nothing, unless nobody uses them any more.

use std::collections::HashSet;

use crate::heap::Want;
use crate::heap::ids::{BlockId, PageAt, PoolIndex, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Paged;
use crate::heap::release::Release;

/// In one phase so many times the most that was in use goes from pool to pool. A program that uses
/// two pools by turns, as long as it runs, would otherwise pay for it with each turn: it may hold
/// what both need.
const PASSED_MAX: u64 = 4;

/// Whole pages at the end of a free block.
struct Lot {
    block: BlockId,
    segment: SegmentId,
    page_bytes: u64,
    /// The first of the pages inside it, and the one behind the last.
    pages: (usize, usize),
}

impl Paged {
    /// What other pools can give back before so many bytes of new pages are made for a request:
    /// as much as would be held beyond what may be held before views are made.
    pub(crate) fn plan_pass_on(
        &mut self,
        inventory: &Inventory,
        want: &Want,
        more_bytes: u64,
    ) -> Vec<Release> {
        if !inventory.pools().has_private() {
            return Vec::new();
        }
        let held_bytes = inventory.space().held_or_asked_bytes();
        let soft = inventory.rules().config().tight_soft;
        let soft_bytes = self.limit_bytes(inventory, want, soft);
        let surplus_bytes = (held_bytes + more_bytes).saturating_sub(soft_bytes);
        let left_bytes = (PASSED_MAX * self.high_bytes).saturating_sub(self.passed_bytes);
        let most_bytes = surplus_bytes.min(more_bytes).min(left_bytes);
        if most_bytes == 0 {
            return Vec::new();
        }
        let others = inventory.pools().givers(want.pool);
        let (mut plan, mut found_bytes) = plan_segments(inventory, &others, most_bytes);
        let mut lots = Vec::new();
        let mut given = HashSet::new();
        for lot in find_lots(inventory, &others) {
            if found_bytes >= most_bytes {
                break;
            }
            let Lot { block, segment, page_bytes, pages: (first, end) } = lot;
            let needed = (most_bytes - found_bytes).div_ceil(page_bytes) as usize;
            let first = first.max(end.saturating_sub(needed));
            given.extend((first..end).map(|index| PageAt { segment, index }));
            found_bytes += page_bytes * (end - first) as u64;
            lots.push(Release::Pages { block, most: end - first });
        }
        let shows = |&view: &SegmentId| {
            let pages = inventory.space()[view].parts().iter().filter_map(|part| part.page);
            pages.into_iter().any(|page| given.contains(&page))
        };
        plan.extend(self.views.oldest_first().filter(shows).map(Release::View));
        plan.append(&mut lots);
        self.passed_bytes += found_bytes;
        plan
    }
}

/// Whole plain segments that are free in these pools, up to about so many bytes, and how many they
/// come to.
fn plan_segments(
    inventory: &Inventory,
    pools: &[PoolIndex],
    most_bytes: u64,
) -> (Vec<Release>, u64) {
    let (mut plan, mut found_bytes) = (Vec::new(), 0);
    for id in pools.iter().flat_map(|&pool| inventory.free_blocks(pool)) {
        let block = &inventory.space()[id];
        if found_bytes < most_bytes && !block.expandable && !block.is_split() {
            found_bytes += block.size_bytes;
            plan.push(Release::Segment(block.segment));
        }
    }
    (plan, found_bytes)
}

/// The free blocks of these pools that have whole pages inside: those with the largest pages first,
/// for which the fewest calls are made.
fn find_lots(inventory: &Inventory, pools: &[PoolIndex]) -> Vec<Lot> {
    let mut lots = Vec::new();
    for id in pools.iter().flat_map(|&pool| inventory.free_blocks(pool)) {
        let block = &inventory.space()[id];
        if !block.expandable {
            continue;
        }
        let segment = &inventory.space()[block.segment];
        let pages = segment.pages_inside(block.span());
        if !pages.is_empty() {
            let pages = (pages.start, pages.end);
            let page_bytes = segment.page_bytes();
            lots.push((block.addr, Lot { block: id, segment: block.segment, page_bytes, pages }));
        }
    }
    lots.sort_by_key(|(addr, lot)| (u64::MAX - lot.page_bytes, *addr));
    lots.into_iter().map(|(_, lot)| lot).collect()
}
