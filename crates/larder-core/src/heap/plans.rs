//! Plans: what to ask of the device and what to give back to it, and what came of it.

use crate::heap::growth::MapPlan;
use crate::heap::ids::{BlockId, PoolIndex, SegmentId};
use crate::heap::release::{Release, UnmapPlan};
use crate::heap::{Heap, Want};
use crate::types::{PageHandle, PoolId, Span};

impl Heap {
    /// So many bytes are asked of the device with the lock dropped: until there is an answer they
    /// count against the cap, or two requests at once could pass it.
    pub(crate) fn begin_asking(&mut self, size_bytes: u64) {
        self.inventory.space_mut().begin_asking(size_bytes);
    }

    /// The answer is there.
    pub(crate) fn end_asking(&mut self, size_bytes: u64) {
        self.inventory.space_mut().end_asking(size_bytes);
    }

    /// Addresses were reserved for a new segment. Returns its one unmapped block.
    pub(crate) fn commit_reserve(&mut self, want: &Want, span: Span) -> BlockId {
        self.expect_settled();
        self.inventory.commit_reserve(want, span)
    }

    /// Addresses were reserved for a new segment whose pages have a size of their own.
    pub(crate) fn commit_reserve_of(
        &mut self,
        want: &Want,
        span: Span,
        page_bytes: u64,
    ) -> BlockId {
        self.expect_settled();
        self.inventory.commit_reserve_of(want, span, page_bytes)
    }

    /// The pages of a plan were mapped. Returns the free block that they are part of now.
    pub(crate) fn commit_map(&mut self, plan: &MapPlan, pages: &[PageHandle]) -> BlockId {
        self.expect_settled();
        self.placement.note_grown(plan.page_count(), plan.span.size_bytes);
        self.inventory.commit_map(plan, pages)
    }

    /// All that the default pools can give back, large before small.
    pub(crate) fn plan_release(&self) -> Vec<Release> {
        self.plan_release_of(&[PoolIndex::LARGE, PoolIndex::SMALL])
    }

    /// All that these pools can give back: in each whole segments before pages.
    fn plan_release_of(&self, pools: &[PoolIndex]) -> Vec<Release> {
        let is_theirs = |lane| pools.contains(&self.inventory.pools().lane(lane).pool());
        let views = self.placement.views_of(&self.inventory, is_theirs).into_iter();
        let mut plan: Vec<Release> = views.map(Release::View).collect();
        for &pool in pools {
            plan.append(&mut self.inventory.plan_release_blocks(self.inventory.free_blocks(pool)));
        }
        if self.policy().release_bare_segments {
            plan.extend(self.inventory.plan_release_bare(pools));
        }
        plan
    }

    /// Somebody looks at what lies free: to the ages of the default pools' free blocks it counts as
    /// a search, and from the first look on they have ages. What the counts are then.
    pub(crate) fn begin_look(&mut self) -> [u64; 2] {
        if !self.inventory.rules().has_ages() {
            self.settle();
            self.inventory.rules_mut().begin_ages();
            self.derive();
        }
        [PoolIndex::LARGE, PoolIndex::SMALL].map(|pool| {
            self.inventory.pools_mut().pool_mut(pool).count_search();
            self.inventory.pools().pool(pool).searches()
        })
    }

    /// The whole segments of the default pools that have lain free since a look, but for the
    /// smallest that a request of `spared_bytes` can have.
    pub(crate) fn plan_unused(&self, since: [u64; 2], spared_bytes: u64) -> Vec<Release> {
        let is_whole = |id: &BlockId| !self.space()[*id].is_split();
        let size_bytes = |id: &BlockId| self.inventory.size_of(*id);
        let pools = [PoolIndex::LARGE, PoolIndex::SMALL].into_iter();
        let whole =
            pools.clone().flat_map(|pool| self.inventory.free_blocks(pool).filter(is_whole));
        let ready = whole.filter(|id| size_bytes(id) >= spared_bytes && spared_bytes > 0);
        let spared = ready.min_by_key(|id| (size_bytes(id), self.space()[*id].addr));
        let unused = pools.zip(since).flat_map(|(pool, count)| {
            let free = self.inventory.free_blocks(pool).filter(is_whole);
            free.filter(move |&id| self.space().free_since(id) < count && Some(id) != spared)
        });
        self.inventory.plan_release_blocks(unused)
    }

    /// The whole segments of the default pools that lie free and are larger than this.
    pub(crate) fn plan_release_above(&self, size_bytes: u64) -> Vec<Release> {
        let pools = [PoolIndex::LARGE, PoolIndex::SMALL].into_iter();
        let free = pools.flat_map(|pool| self.inventory.free_blocks(pool));
        let large = free.filter(|&id| self.inventory.size_of(id) > size_bytes);
        self.inventory.plan_release_blocks(large)
    }

    /// What the default pools can give back of streams that are gone.
    pub(crate) fn plan_release_gone(&self) -> Vec<Release> {
        let views = self
            .placement
            .views_of(&self.inventory, |lane| self.inventory.pools().lane(lane).is_gone())
            .into_iter();
        let mut plan: Vec<Release> = views.map(Release::View).collect();
        let lanes = [PoolIndex::LARGE, PoolIndex::SMALL].into_iter();
        let lanes = lanes.flat_map(|pool| self.inventory.pools().retired_lanes_of(pool));
        let free = lanes.flat_map(|lane| lane.free_blocks(self.space().blocks()));
        plan.append(&mut self.inventory.plan_release_blocks(free));
        plan
    }

    /// All that a private pool can give back, small before large.
    pub(crate) fn plan_release_private(&self, id: PoolId) -> Vec<Release> {
        self.plan_release_of(&self.pools().privates().parts(id))
    }

    /// A fixed segment went back to the device.
    pub(crate) fn commit_release(&mut self, id: SegmentId) {
        self.expect_settled();
        self.inventory.commit_release(id);
    }

    /// The whole pages inside a free block, if there are any, and of those the last ones, so many
    /// at most.
    pub(crate) fn plan_unmap(&self, id: BlockId, most: usize) -> Option<UnmapPlan> {
        let is_shown = |segment, index| self.placement.is_shown(segment, index);
        self.inventory.plan_unmap(id, most, is_shown)
    }

    /// The first `count` pages of a plan were unmapped.
    pub(crate) fn commit_unmap(&mut self, plan: &UnmapPlan, count: usize) {
        self.expect_settled();
        self.inventory.commit_unmap(plan, count);
    }

    /// The program had the cache emptied: what it does next is measured by what is in use now.
    pub(crate) fn begin_phase(&mut self) {
        let recorder = self.inventory.recorder_mut();
        let last_high_bytes = recorder.phase_peak_bytes();
        recorder.begin_phase();
        self.placement.begin_phase(last_high_bytes, recorder.phase_peak_bytes());
    }

    /// A bare segment's addresses went back to the device.
    pub(crate) fn commit_unreserve(&mut self, id: SegmentId) {
        self.expect_settled();
        self.inventory.commit_unreserve(id);
    }

    /// The place of every page, and where views show them.
    pub(crate) fn mapped_pages(&self) -> Vec<Span> {
        self.space().page_places().chain(self.placement.shown_pages(&self.inventory)).collect()
    }
}
