//! Pages: what the allocator asks of a placement in pages, and tells it.

use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::paged::ground::Ground;
use crate::heap::paged::seek::{self, Asking, Move};
use crate::heap::paged::views::{self, UnviewPlan, ViewPlan};
use crate::heap::paged::{Paged, absorb};
use crate::heap::release::Release;
use crate::heap::{Heap, Inventory, Want};
use crate::types::{Addr, Span, StreamId};

impl Heap {
    /// Whether what is free in pieces, and whosoever it is, can be put together.
    pub(crate) fn joins_pieces(&self) -> bool {
        self.placement.paged().is_some()
    }

    /// The pages and views with the blocks, for a request that is put into pages.
    fn paged(&mut self) -> Option<(&mut Paged, &mut Inventory)> {
        self.placement.paged_mut().map(|paged| (paged, &mut self.inventory))
    }

    /// The other streams whose free memory a request could have, if its own waits for them.
    pub(crate) fn neighbours(&self, want: &Want) -> Vec<StreamId> {
        seek::neighbours(&self.inventory, want)
    }

    /// What a request that missed should do next. What it asks for is done, and then it asks again.
    /// `open` are the streams that its own can wait for.
    pub(crate) fn plan_move(&mut self, want: &Want, open: &[StreamId], asking: Asking) -> Move {
        let (paged, inventory) = self.paged().expect("a request that is put into pages");
        paged.plan_move(inventory, want, open, asking)
    }

    /// What other pools can give back before so many bytes of new pages are made for a request.
    pub(crate) fn plan_pass_on(&mut self, want: &Want, more_bytes: u64) -> Vec<Release> {
        let (paged, inventory) = self.paged().expect("a request that is put into pages");
        paged.plan_pass_on(inventory, want, more_bytes)
    }

    /// The device refused pages of this size: what is left to ask for, if anything.
    pub(crate) fn ask_less(&self, asking: Asking, page_bytes: u64) -> Option<Asking> {
        seek::ask_less(&self.inventory, asking, page_bytes)
    }

    /// The request that just missed on the fast path, if the program repeats itself and what the
    /// request was told to have is another lane's.
    pub(crate) fn missed_for_others(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Want> {
        let (paged, inventory) = self.paged()?;
        paged.missed_for_others(inventory, requested_bytes, stream)
    }

    /// A request that missed on the fast path does not come again.
    pub(crate) fn forget_miss(&mut self, want: &Want) {
        if let Some((paged, _)) = self.paged() {
            paged.forget_miss(want);
        }
    }

    /// A request of a cycle that missed on the fast path, because what it was told to have was
    /// probably another lane's, and that is not free.
    pub(crate) fn take_lost(&mut self, want: &Want) -> Option<Addr> {
        let (paged, inventory) = self.paged()?;
        paged.take_lost(inventory, want)
    }

    /// Where a request was told to go, if that is free.
    pub(crate) fn plan_told(&mut self, want: &Want) -> Option<Ground> {
        let (paged, inventory) = self.paged()?;
        paged.plan_told(inventory, want)
    }

    /// The request's stream waits for those that had the place that it was told.
    pub(crate) fn take_told_ground(&mut self, want: &Want, ground: &Ground) -> Option<Addr> {
        let (paged, inventory) = self.paged()?;
        paged.take_told_ground(inventory, want, ground)
    }

    /// Puts a request at a place, in a view or at home, if all bytes under it are free and its
    /// stream waits for whoever had them.
    pub(crate) fn take_place(
        &mut self,
        want: &Want,
        segment: SegmentId,
        addr: Addr,
    ) -> Option<Addr> {
        let (paged, inventory) = self.paged()?;
        paged.take_place(inventory, want, segment, addr)
    }

    /// The request's stream waits for what these streams have been given to do so far: what is free
    /// of theirs is as good as its own, until they free more.
    pub(crate) fn note_followed(&mut self, want: &Want, streams: &[StreamId]) {
        self.inventory.note_followed(want, streams);
    }

    /// The request's stream waits for what these have been given to do so far: what they have free
    /// beside what its own has free becomes its own.
    pub(crate) fn absorb(&mut self, want: &Want, streams: &[StreamId]) {
        absorb::absorb(&mut self.inventory, want, streams);
    }

    /// Absorbs for a request that was told its place; false, and nothing is done, where the
    /// program repeats itself.
    pub(crate) fn absorb_outside_cycle(&mut self, want: &Want, streams: &[StreamId]) -> bool {
        let (paged, inventory) = self.paged().expect("a request that was told its place");
        paged.absorb_outside_cycle(inventory, want, streams)
    }

    /// Puts back a block in a view that nobody else uses while a program repeats itself: what was
    /// lent to it is deferred. False, and nothing is done, if it is none.
    pub(crate) fn put_in_view(&mut self, id: BlockId) -> bool {
        let is_one = self.inventory.deferred().is_in_place()
            && self.space().is_in_view(id)
            && self.uses(id).is_empty();
        if is_one {
            self.put(id);
        }
        is_one
    }

    /// The pages of a plan were mapped at these addresses.
    pub(crate) fn commit_view(&mut self, want: &Want, plan: &ViewPlan, span: Span) -> SegmentId {
        self.expect_settled();
        let (paged, inventory) = self.paged().expect("a request that is put into pages");
        paged.commit_view(inventory, want, plan, span)
    }

    /// What of a view can be unmapped.
    pub(crate) fn plan_unview(&self, view: SegmentId) -> UnviewPlan {
        views::plan_unview(&self.inventory, view)
    }

    /// The first `count` parts of a plan were unmapped.
    pub(crate) fn commit_unview(&mut self, plan: &UnviewPlan, count: usize) {
        self.expect_settled();
        let (paged, inventory) = self.paged().expect("who has a view has pages");
        paged.commit_unview(inventory, plan, count);
    }

    /// The addresses of a view that shows nothing went back to the device.
    pub(crate) fn commit_unreserve_view(&mut self, view: SegmentId) {
        self.expect_settled();
        let (paged, inventory) = self.paged().expect("who has a view has pages");
        paged.commit_unreserve_view(inventory, view);
    }

    /// Views to do without, because too much is shown.
    pub(crate) fn plan_thinning(&self) -> Vec<SegmentId> {
        self.placement.paged().map_or_else(Vec::new, |paged| paged.plan_thinning(&self.inventory))
    }

    /// The streams of lanes that lie side by side in one segment.
    pub(crate) fn mixed_streams(&self) -> Vec<StreamId> {
        views::mixed_streams(&self.inventory)
    }

    /// All work of these streams is done, and that of those that are gone: what is free of theirs
    /// goes to the lanes that it is at home with, and merges.
    pub(crate) fn unite(&mut self, quiet: &[StreamId]) {
        self.expect_settled();
        views::unite(&mut self.inventory, quiet);
    }
}
