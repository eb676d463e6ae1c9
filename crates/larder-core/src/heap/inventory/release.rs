//! Release: how memory goes back to the device. The heap says which segments and pages can go,
//! and forgets them one by one as they do.

use std::ops::Range;

use crate::heap::Want;
use crate::heap::ids::{BlockId, PoolIndex, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::space::block::State;
use crate::record::{Place, Record};
use crate::types::{PageHandle, PoolId, Span, StreamId};

/// One thing to give back. A list of them stays good while they are carried out in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    /// A whole segment that nothing uses.
    Segment(SegmentId),
    /// What a view shows without need, and its addresses if nobody lives there.
    View(SegmentId),
    /// The whole pages inside a free block of an expandable segment, or so many at its end, and its
    /// addresses if no page is left.
    Pages { block: BlockId, most: usize },
    /// The addresses of an expandable segment that has no page.
    Addresses(SegmentId),
}

/// The pages inside a free block, to unmap.
#[derive(Clone, Debug)]
pub(crate) struct UnmapPlan {
    block: BlockId,
    pub(crate) segment: SegmentId,
    /// The stream whose work may still use them; none if it is gone, and its work was waited for.
    pub(crate) stream: Option<StreamId>,
    first: usize,
    /// Each page with its addresses, in order.
    pub(crate) pages: Vec<(Span, PageHandle)>,
}

impl Inventory {
    /// What of these free blocks can go back: whole segments before pages.
    pub(in crate::heap) fn plan_release_blocks(
        &self,
        free: impl Iterator<Item = BlockId>,
    ) -> Vec<Release> {
        let (mut segments, mut pages) = (Vec::new(), Vec::new());
        for id in free {
            let block = &self.space[id];
            if block.expandable {
                pages.push(Release::Pages { block: id, most: usize::MAX });
            } else if !block.is_split() {
                segments.push(Release::Segment(block.segment));
            }
        }
        segments.append(&mut pages);
        segments
    }

    /// A pool's free blocks, stream by stream.
    pub(in crate::heap) fn free_blocks(
        &self,
        pool: PoolIndex,
    ) -> impl Iterator<Item = BlockId> + '_ {
        self.pools.lanes_of(pool).flat_map(|lane| lane.free_blocks(self.space.blocks()))
    }

    /// The addresses of these pools' expandable segments that have no page.
    pub(in crate::heap) fn plan_release_bare(&self, pools: &[PoolIndex]) -> Vec<Release> {
        let here = |id: SegmentId| pools.contains(&self.pools.lane(self.space[id].lane()).pool());
        let segments = self.space.segments().iter().map(|(id, _)| id);
        segments.filter(|&id| here(id) && self.space.is_bare(id)).map(Release::Addresses).collect()
    }

    /// What garbage collection gives back: idle segments of the large pool that are older than the
    /// average, in rounds, until enough was found or no more can be.
    pub(crate) fn plan_collection(&self) -> Vec<Release> {
        let limit_bytes = self.rules.cap_bytes().unwrap_or(self.rules.device_total_bytes());
        let threshold = self.rules.config().garbage_collection_threshold * limit_bytes as f64;
        let target_bytes = self.space.reserved_bytes().saturating_sub(threshold as u64);
        let searches = self.pools.pool(PoolIndex::LARGE).searches();
        // An expandable block is never whole as long as its segment has room to grow, so that
        // leaving them out changes no average.
        let idle = self.free_blocks(PoolIndex::LARGE).filter(|&id| {
            let block = &self.space[id];
            !block.is_split() && !block.expandable
        });
        let (mut total_age, mut count) = (0, 0_u64);
        let mut left = Vec::new();
        for id in idle {
            let (block, age) = (&self.space[id], searches - self.space.free_since(id));
            total_age += age;
            count += 1;
            left.push((block.segment, age, block.size_bytes));
        }
        let (mut plan, mut found_bytes) = (Vec::new(), 0);
        while found_bytes < target_bytes && count > 0 {
            let average = total_age as f64 / count as f64;
            let before = plan.len();
            left.retain(|&(segment, age, size_bytes)| {
                let old = age as f64 >= average;
                if old {
                    found_bytes += size_bytes;
                    total_age -= age;
                    count -= 1;
                    plan.push(Release::Segment(segment));
                }
                !old
            });
            if plan.len() == before {
                break;
            }
        }
        plan
    }

    /// Where segments are exact: the free ones that are too small for this request, the largest
    /// first, until they come to what it asks for. So what is cached for sizes that come no more
    /// makes room for those that do. While any scope is open nothing goes.
    pub(crate) fn plan_replacement(&self, want: &Want) -> Vec<Release> {
        let is_meant = self.rules.policy().exact_segments && !want.expandable;
        if !is_meant || want.pool != PoolIndex::LARGE || self.pools.is_diverted() {
            return Vec::new();
        }
        let lane = self.pools.lane_at(want.pool, want.stream);
        let free = lane
            .into_iter()
            .flat_map(|lane| self.pools.lane(lane).free_blocks(self.space.blocks()));
        let mut small: Vec<_> = free
            .filter(|&id| {
                let block = &self.space[id];
                !block.expandable && !block.is_split() && block.size_bytes < want.size_bytes
            })
            .collect();
        small.sort_by_key(|&id| (u64::MAX - self.space[id].size_bytes, self.space[id].addr));
        let (mut plan, mut found_bytes) = (Vec::new(), 0);
        for id in small {
            if found_bytes >= want.size_bytes {
                break;
            }
            found_bytes += self.space[id].size_bytes;
            plan.push(Release::Segment(self.space[id].segment));
        }
        plan
    }

    /// Where a split limit is set: what to give back so that the device has room for a segment
    /// for this request. Says too whether that makes enough room.
    pub(crate) fn plan_room(&self, want: &Want) -> (Vec<Release>, bool) {
        if self.rules.split_limit_bytes() == u64::MAX {
            return (Vec::new(), false);
        }
        let key_bytes = want.size_bytes.max(self.rules.split_limit_bytes());
        let lane = self.pools.lane_at(want.pool, want.stream);
        let Some(free) = lane.and_then(|lane| self.pools.lane(lane).free()) else {
            return (Vec::new(), false);
        };
        let releasable = |id: BlockId| {
            let block = &self.space[id];
            !block.expandable && !block.is_split()
        };
        let one = if self.rules.policy().make_room_skips_expandable {
            free.iter_from(self.space.blocks(), key_bytes).find(|&id| releasable(id))
        } else {
            free.iter_from(self.space.blocks(), key_bytes).next().filter(|&id| releasable(id))
        };
        if let Some(id) = one {
            return (vec![Release::Segment(self.space[id].segment)], true);
        }
        let oversize: Vec<_> = free
            .iter_from(self.space.blocks(), self.rules.split_limit_bytes())
            .take_while(|&id| self.space[id].size_bytes < key_bytes)
            .filter(|&id| releasable(id))
            .collect();
        let (mut plan, mut found_bytes) = (Vec::new(), 0);
        for &id in oversize.iter().rev() {
            if found_bytes >= key_bytes {
                break;
            }
            found_bytes += self.space[id].size_bytes;
            plan.push(Release::Segment(self.space[id].segment));
        }
        (plan, found_bytes >= key_bytes)
    }

    /// A fixed segment went back to the device.
    pub(crate) fn commit_release(&mut self, id: SegmentId) {
        assert!(self.space[id].is_fixed(), "{id:?} goes back by its pages");
        let segment = &self.space[id];
        let (first, span, lane) = (segment.first(), segment.span(), segment.lane());
        let oversize = if self.rules.policy().oversize_is_remembered {
            segment.is_oversize()
        } else {
            span.size_bytes >= self.rules.split_limit_bytes()
        };
        let (place, _) = self.facts(first);
        debug_assert_eq!(place.size_bytes, span.size_bytes, "only a whole segment goes back");
        self.record_of(first, Record::SegmentFree { place, oversize });
        self.unshelve(first);
        self.space.remove_segment(id);
        self.space.count_reserved(-(span.size_bytes as i64));
        let pool = self.pools.lane(lane).pool();
        self.pools.count_reserved(pool, -(span.size_bytes as i64));
        self.pools.forget_plot(pool);
    }

    /// The whole pages inside a free block, if there are any, and of those the last ones, so many
    /// at most.
    pub(in crate::heap) fn plan_unmap(
        &self,
        id: BlockId,
        most: usize,
        is_shown: impl Fn(SegmentId, usize) -> bool,
    ) -> Option<UnmapPlan> {
        let block = &self.space[id];
        let segment = &self.space[block.segment];
        let mut pages = segment.pages_inside(block.span());
        pages.start = pages.start.max(pages.end.saturating_sub(most));
        // A page that some view still shows stays, and what lies behind it goes another time.
        if let Some(shown) = pages.clone().find(|&index| is_shown(block.segment, index)) {
            pages.end = shown;
        }
        if pages.is_empty() {
            return None;
        }
        let page = |index| {
            let page = segment.page(index).expect("a free block is backed");
            (segment.span_of(index..index + 1), page)
        };
        Some(UnmapPlan {
            block: id,
            segment: block.segment,
            stream: self.pools.lane(block.lane).living_stream(),
            first: pages.start,
            pages: pages.map(page).collect(),
        })
    }

    /// The first `count` pages of a plan were unmapped.
    pub(crate) fn commit_unmap(&mut self, plan: &UnmapPlan, count: usize) {
        assert!(count <= plan.pages.len(), "more pages went back than were planned");
        let pages: Range<usize> = plan.first..plan.first + count;
        let span = self.space.unback(plan.segment, pages);
        let (id, place) = self.cut_unmapped(plan.block, span);
        let lane = self.space[id].lane;
        self.space.count_reserved(-(span.size_bytes as i64));
        let pool = self.pools.lane(lane).pool();
        self.pools.count_reserved(pool, -(span.size_bytes as i64));
        self.pools.count_growth(pool, -1);
        self.record_of(id, Record::SegmentUnmap { place });
    }

    /// Makes the part of a free block unmapped from which the pages are gone, and says what it is
    /// part of then, and where and how large it was by itself.
    pub(in crate::heap) fn cut_unmapped(
        &mut self,
        mut id: BlockId,
        span: Span,
    ) -> (BlockId, Place) {
        self.unshelve(id);
        let block = self.space[id].span();
        // What was asked for last is shown in snapshots: the unmapped part keeps it, as in PyTorch.
        let requested_bytes = self.space[id].requested_bytes;
        self.unmap_context(block.addr.0, span.addr.0);
        if block.addr < span.addr {
            let head = id;
            id = self.space.split(head, span.addr.0 - block.addr.0);
            self.order_front(head, id);
            self.space[head].requested_bytes = 0;
            self.shelve(head);
        }
        if span.end() < block.end() {
            let tail = self.space.split(id, span.size_bytes);
            self.order_rest(tail);
            self.space[tail].requested_bytes = 0;
            self.shelve(tail);
        }
        let (place, _) = self.facts(id);
        // Whoever had the bytes last, the addresses are those of the lane that reserved them.
        self.space[id].lane = self.space[self.space[id].segment].lane();
        self.space[id].state = State::Unmapped;
        self.merge_contexts(id, State::Unmapped);
        let id = self.merge_unmapped(id);
        self.space[id].requested_bytes = requested_bytes;
        let (lane, addr) = (self.space[id].lane, self.space[id].addr);
        self.pools.lane_mut(lane).add_unmapped(addr, id);
        (id, Place { size_bytes: span.size_bytes, ..place })
    }

    /// A bare segment's addresses went back to the device.
    pub(crate) fn commit_unreserve(&mut self, id: SegmentId) {
        assert!(self.space.is_bare(id), "{id:?} has pages left");
        let first = self.space[id].first();
        self.forget_segment_context(first);
        self.forget_unmapped(first);
        self.space.remove_segment(id);
    }

    /// Bytes in free blocks of private pools.
    pub(crate) fn private_free_bytes(&self) -> u64 {
        let pools =
            self.pools.privates().iter().flat_map(|(id, _)| self.pools.privates().parts(id));
        let lanes = pools.flat_map(|pool| self.pools.lanes_of(pool));
        let free = lanes.flat_map(|lane| lane.free_blocks(self.space.blocks()));
        free.map(|id| self.space[id].size_bytes).sum()
    }

    /// What is left to give back before a released pool can be forgotten: addresses without pages.
    /// None if it still has memory, or if a request for it is under way.
    pub(crate) fn plan_retirement(&self, id: PoolId) -> Option<Vec<Release>> {
        self.pools.privates().get(id).filter(|private| private.held() == 0)?;
        let mut pools = self.pools.privates().parts(id);
        let asleep: Vec<_> = pools.iter().filter_map(|&pool| self.pools.asleep_of(pool)).collect();
        pools.extend(asleep);
        let bare = self.plan_release_bare(&pools);
        let segments: usize = pools.iter().map(|&pool| self.segment_count(pool)).sum();
        (segments == bare.len()).then_some(bare)
    }

    fn segment_count(&self, pool: PoolIndex) -> usize {
        let pool_of = |lane| self.pools.lane(lane).pool();
        self.space.segments().iter().filter(|(_, segment)| pool_of(segment.lane()) == pool).count()
    }
}
