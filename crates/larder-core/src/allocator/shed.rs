//! Shedding: what was freed while it slept is not made again, and what was kept of it goes.

use crate::allocator::Inner;
use crate::device::Device;
use crate::error::Error;
use crate::heap::asleep::Sleeper;
use crate::heap::release::Release;
use crate::record::caught;

impl Inner {
    /// Gives back the addresses of what was freed while it slept, if nothing of their segment is
    /// left, and sees to it that pages are not made again where nothing needs them.
    pub(super) fn shed(&mut self, device: &dyn Device, sleeper: Sleeper) -> Result<(), Error> {
        for view in self.heap.views_asleep(sleeper) {
            let plan = self.heap.plan_unview(view);
            self.heap.commit_unview(&plan, plan.parts.len());
            if plan.is_whole {
                let span = self.heap.inventory().segment_span(view);
                self.clear_orphans_from(device, span)?;
                device.unreserve(span).map_err(Error::device("give back addresses"))?;
                self.heap.commit_unreserve_view(view);
            }
        }
        self.heap.shed(sleeper);
        let bare = self.heap.bare_asleep(sleeper).into_iter();
        let bare: Vec<Release> = bare.map(Release::Addresses).collect();
        if bare.is_empty() { Ok(()) } else { self.release(device, &bare) }
    }

    /// Nothing is kept for a sleeper any more. What its keeper does then is its own, and may need
    /// locks.
    pub(super) fn forget_contents(&mut self, sleeper: Sleeper) {
        let contents = self.asleep.contents.remove(&sleeper).into_iter().flatten();
        contents.flat_map(|contents| contents.pieces).for_each(caught::drop_later);
    }
}
