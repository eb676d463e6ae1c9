//! Views: ranges of addresses in which pages are shown a second time. A view has no memory of its
//! own.

use std::collections::BTreeSet;

use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId, PageAt, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Paged;
use crate::heap::paged::SHOWN_MAX;
use crate::heap::paged::stitch::PageList;
use crate::heap::space::block::State;
use crate::heap::space::homes::Home;
use crate::heap::space::segment::{Backing, Part};
use crate::record::Record;
use crate::record::event::Action;
use crate::types::{PageHandle, Span, StreamId};

/// A view to be made: pages that are to be mapped side by side.
#[derive(Clone, Debug)]
pub(crate) struct ViewPlan {
    pub(crate) page_list: PageList,
    /// Each page with its size, in order.
    pub(crate) pages: Vec<(PageHandle, u64)>,
    /// How many addresses it takes.
    pub(crate) size_bytes: u64,
}

/// Pages of a view to be unmapped from it.
#[derive(Clone, Debug)]
pub(crate) struct UnviewPlan {
    pub(crate) view: SegmentId,
    /// The stream whose work may still use them; none if it is gone, and its work was waited for.
    pub(crate) stream: Option<StreamId>,
    /// Which parts, and where they are mapped.
    pub(crate) parts: Vec<(usize, Span)>,
    /// Whether nothing is left of it then, so that its addresses can go back.
    pub(crate) is_whole: bool,
}

impl Paged {
    /// The pages of a plan were mapped at these addresses.
    pub(crate) fn commit_view(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        plan: &ViewPlan,
        span: Span,
    ) -> SegmentId {
        assert!(span.size_bytes >= plan.size_bytes, "{span:?} does not hold the view");
        let mut offset_bytes = 0;
        let parts = plan.page_list.pages.iter().map(|&(page, size_bytes)| {
            let part = Part { page: Some(page), offset_bytes, size_bytes };
            offset_bytes += size_bytes;
            part
        });
        let parts: Vec<Part> = parts.collect();
        for part in &parts {
            *self.shown.entry(part.page.expect("it is mapped")).or_default() += 1;
        }
        let parts_count = parts.len() as u64;
        self.shown_pages += parts_count;
        let id = inventory.add_segment(want, span, Backing::View { parts }, State::Hollow);
        let view = inventory.space()[id].segment;
        inventory.space_mut().cover_view(view);
        self.views.note_use(view);
        self.budget.note_shown(parts_count);
        inventory.recorder_mut().record(Record::Shown);
        let segment = &inventory.space()[view];
        for part in segment.parts() {
            inventory.tell_of_view(view, Action::SegmentMap, segment.place_of(part));
        }
        view
    }

    /// The views of these lanes.
    pub(crate) fn views_of(
        &self,
        inventory: &Inventory,
        is_theirs: impl Fn(LaneId) -> bool,
    ) -> Vec<SegmentId> {
        let views = self.views.oldest_first();
        views.filter(|&view| is_theirs(inventory.space()[view].lane())).collect()
    }

    /// The first `count` parts of a plan were unmapped.
    pub(crate) fn commit_unview(
        &mut self,
        inventory: &mut Inventory,
        plan: &UnviewPlan,
        count: usize,
    ) {
        assert!(count <= plan.parts.len(), "more was unmapped than was planned");
        if count > 0 {
            inventory.recorder_mut().record(Record::Hidden);
            self.budget.note_hidden(count as u64);
        }
        for &(at, span) in &plan.parts[..count] {
            // Of what sleeps that was told when it fell asleep.
            if !inventory.space()[plan.view].is_asleep() {
                inventory.tell_of_view(plan.view, Action::SegmentUnmap, span);
            }
            let part = &mut inventory.space_mut()[plan.view].parts_mut()[at];
            let Some(page) = part.page.take() else { continue };
            if let Some(times) = self.shown.get_mut(&page) {
                *times -= 1;
                self.shown_pages -= 1;
                if *times == 0 {
                    self.shown.remove(&page);
                }
            }
        }
    }

    /// The addresses of a view that shows nothing went back to the device.
    pub(crate) fn commit_unreserve_view(&mut self, inventory: &mut Inventory, view: SegmentId) {
        assert!(inventory.space().is_vacant(view), "somebody lives in {view:?}");
        inventory.space_mut().uncover_view(view);
        inventory.space_mut().remove_segment(view);
        self.views.remove(view);
    }

    /// Every place at which a view shows a page.
    pub(in crate::heap) fn shown_pages(&self, inventory: &Inventory) -> Vec<Span> {
        let views = self.views.oldest_first().map(|view| &inventory.space()[view]);
        let views = views.filter(|view| !view.is_asleep());
        let parts = views.flat_map(|view| view.parts().iter().map(move |part| (view, part)));
        let shown = parts.filter(|(_, part)| part.page.is_some());
        shown.map(|(view, part)| view.place_of(part)).collect()
    }

    /// Views to do without, because too much is shown: those that nobody has, the longest unused
    /// first.
    pub(crate) fn plan_thinning(&self, inventory: &Inventory) -> Vec<SegmentId> {
        let held_pages = inventory.space().page_count();
        let mut surplus = self.shown_pages.saturating_sub(SHOWN_MAX * held_pages);
        let is_there = |view: SegmentId| !inventory.space()[view].is_asleep();
        let views = self.views.oldest_first().filter(|&view| is_there(view));
        let vacant = views.filter(|&view| inventory.space().is_vacant(view));
        let thinned = vacant.take_while(|&view| {
            let is_needed = surplus > 0;
            surplus = surplus.saturating_sub(inventory.space()[view].parts().len() as u64);
            is_needed
        });
        thinned.collect()
    }

    /// Whether a page of a home is shown in some view.
    pub(crate) fn is_shown(&self, segment: SegmentId, index: usize) -> bool {
        self.shown.contains_key(&PageAt { segment, index })
    }
}

pub(super) fn plan_view(inventory: &Inventory, page_list: PageList) -> ViewPlan {
    let handle = |page: PageAt| {
        inventory.space()[page.segment].page(page.index).expect("a free block is backed")
    };
    let pages: Vec<_> =
        page_list.pages.iter().map(|&(page, bytes)| (handle(page), bytes)).collect();
    let size_bytes = page_list.pages.iter().map(|&(_, page_bytes)| page_bytes).sum();
    ViewPlan { page_list, pages, size_bytes }
}

/// The streams of lanes that lie side by side in one segment.
pub(crate) fn mixed_streams(inventory: &Inventory) -> Vec<StreamId> {
    let mut streams = BTreeSet::new();
    for (id, segment) in inventory.space().segments().iter() {
        let lanes = inventory.space().chain(id).map(|block| inventory.space()[block].lane);
        for lane in lanes.filter(|&lane| lane != segment.lane()) {
            let both =
                [lane, segment.lane()].map(|lane| inventory.pools().lane(lane).living_stream());
            streams.extend(both.into_iter().flatten());
        }
    }
    streams.into_iter().collect()
}

/// All work of these streams is done, and that of those that are gone: what is free of theirs
/// goes to the lanes that it is at home with, and merges.
pub(crate) fn unite(inventory: &mut Inventory, quiet: &[StreamId]) {
    let is_quiet = |inventory: &Inventory, lane: LaneId| {
        inventory.pools().lane(lane).living_stream().is_none_or(|stream| quiet.contains(&stream))
    };
    let segments: Vec<_> =
        inventory.space().segments().iter().map(|(id, segment)| (id, segment.lane())).collect();
    for (segment, home) in segments {
        let astray: Vec<BlockId> = inventory
            .space()
            .chain(segment)
            .filter(|&id| {
                let block = &inventory.space()[id];
                block.state == State::Free && block.lane != home && is_quiet(inventory, block.lane)
            })
            .collect();
        for id in astray.into_iter().filter(|_| is_quiet(inventory, home)).collect::<Vec<_>>() {
            inventory.hand_over(id, home);
        }
    }
}

/// What of a view can be unmapped: the pages that are free from end to end at home, and those
/// that no block in a view has any more where it has none.
pub(crate) fn plan_unview(inventory: &Inventory, view: SegmentId) -> UnviewPlan {
    let segment = &inventory.space()[view];
    let is_empty = inventory.space().is_vacant(view);
    let is_idle = |page: PageAt| {
        let home = Home { segment: page.segment, span: inventory.space().page_span(page) };
        inventory.space().blocks_under(home).all(|id| inventory.space()[id].state == State::Free)
    };
    let idle = segment
        .parts()
        .iter()
        .enumerate()
        .filter(|(_, part)| part.page.is_some_and(|page| is_empty || is_idle(page)));
    let parts: Vec<(usize, Span)> = idle.map(|(at, part)| (at, segment.place_of(part))).collect();
    let stream = inventory.pools().lane(segment.lane()).living_stream();
    UnviewPlan { view, stream, parts, is_whole: is_empty }
}
