//! Sleep and wake: what of the memory of a private pool, or of the default pools, sleeps. The heap
//! says what has to be done, and takes in what was done.

use crate::heap::Heap;
use crate::heap::ids::{PoolIndex, SegmentId};
use crate::heap::inventory::asleep::{SleepPlan, WakePlan};
use crate::types::PoolId;

/// Whose memory sleeps: a private pool's, or, with none, that of the default pools.
pub(crate) type Sleeper = Option<PoolId>;

impl Heap {
    /// All whose memory might sleep. Segments of sources, and of symmetric pools, are not the
    /// device's.
    pub(crate) fn all_sleepers(&self) -> Vec<Sleeper> {
        let privates = self.pools().privates().iter();
        let own = privates.filter(|&(id, private)| {
            !private.is_symmetric() && self.pools().with_source(Some(id)).is_none()
        });
        std::iter::once(None).chain(own.map(|(id, _)| Some(id))).collect()
    }

    /// The pools of a sleeper.
    fn pools_of(&self, sleeper: Sleeper) -> Vec<PoolIndex> {
        match sleeper {
            None => vec![PoolIndex::LARGE, PoolIndex::SMALL],
            Some(id) => self.pools().privates().parts(id),
        }
    }

    /// What of a sleeper's memory can sleep that is awake.
    pub(crate) fn plan_sleep(&self, sleeper: Sleeper) -> SleepPlan {
        self.expect_settled();
        let mut plan = SleepPlan::default();
        for pool in self.pools_of(sleeper) {
            self.inventory.plan_sleep(pool, &mut plan);
        }
        plan
    }

    /// The pages of a plan are gone.
    pub(crate) fn commit_sleep(&mut self, plan: &SleepPlan) {
        self.expect_settled();
        self.inventory.commit_sleep(plan);
    }

    /// What has to be made for a sleeper to wake.
    pub(crate) fn plan_wake(&self, sleeper: Sleeper) -> WakePlan {
        self.expect_settled();
        let mut plan = WakePlan::default();
        for pool in self.pools_of(sleeper) {
            self.inventory.plan_wake(pool, &mut plan);
        }
        plan
    }

    /// The pages of a plan were made, and are where they were.
    pub(crate) fn commit_wake(
        &mut self,
        sleeper: Sleeper,
        plan: &WakePlan,
        pages: &[crate::types::PageHandle],
    ) {
        self.expect_settled();
        self.inventory.commit_wake(plan, pages);
        for pool in self.pools_of(sleeper) {
            self.inventory.forget_asleep(pool);
        }
    }

    /// The views of a sleeper that sleep.
    pub(crate) fn views_asleep(&self, sleeper: Sleeper) -> Vec<SegmentId> {
        let pools = self.pools_of(sleeper);
        self.placement.views_of(&self.inventory, |lane| {
            let pool = self.pools().lane(lane).pool();
            self.pools().awake_of(pool).is_some_and(|awake| pools.contains(&awake))
        })
    }

    /// What was freed of a sleeper while it slept is not made again. A graph may still use what its
    /// pool has free.
    pub(crate) fn shed(&mut self, sleeper: Sleeper) {
        self.expect_settled();
        let is_released = |id| self.pools().pool_uses(id) == Some(0);
        if sleeper.is_some_and(|id| !self.is_of_tag(id) && !is_released(id)) {
            return;
        }
        for pool in self.pools_of(sleeper) {
            let Heap { inventory, placement, .. } = self;
            inventory.shed(pool, |segment, index| placement.is_shown(segment, index));
        }
    }

    /// Whether a private pool is a tag's own.
    pub(crate) fn is_of_tag(&self, id: PoolId) -> bool {
        self.pools().is_tags_own(id)
    }

    /// Whether a private pool has no memory.
    pub(crate) fn is_pool_empty(&self, id: PoolId) -> bool {
        let mut segments = self.space().segments().iter();
        !segments.any(|(segment, _)| self.inventory.owner_of(segment) == Some(id))
    }

    /// The segments of a sleeper that sleep and that nobody waits for.
    pub(crate) fn bare_asleep(&self, sleeper: Sleeper) -> Vec<SegmentId> {
        let pools = self.pools_of(sleeper).into_iter();
        pools.flat_map(|pool| self.inventory.bare_asleep(pool)).collect()
    }

    /// Whether any memory of a sleeper sleeps.
    pub(crate) fn is_asleep(&self, sleeper: Sleeper) -> bool {
        self.pools_of(sleeper).into_iter().any(|pool| self.pools().asleep_of(pool).is_some())
    }

    /// How much memory of a sleeper sleeps, and how much of it is in use.
    pub(crate) fn asleep_bytes(&self, sleeper: Sleeper) -> (u64, u64) {
        let pools = self.pools_of(sleeper).into_iter();
        let bytes = pools.map(|pool| self.inventory.asleep_bytes(pool));
        bytes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}
