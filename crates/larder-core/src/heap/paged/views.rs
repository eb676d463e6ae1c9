//! Views: ranges of addresses in which pages are shown a second time. A view has no memory of its
//! own.

use std::collections::BTreeSet;

use crate::heap::Heap;
use crate::heap::Want;
use crate::heap::ids::{BlockId, LaneId, PageAt, SegmentId};
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

impl Heap {
    pub(super) fn plan_view(&self, page_list: PageList) -> ViewPlan {
        let handle = |page: PageAt| {
            self.space[page.segment].page(page.index).expect("a free block is backed")
        };
        let pages: Vec<_> =
            page_list.pages.iter().map(|&(page, bytes)| (handle(page), bytes)).collect();
        let size_bytes = page_list.pages.iter().map(|&(_, page_bytes)| page_bytes).sum();
        ViewPlan { page_list, pages, size_bytes }
    }

    /// The pages of a plan were mapped at these addresses.
    pub(crate) fn commit_view(&mut self, want: &Want, plan: &ViewPlan, span: Span) -> SegmentId {
        let mut offset_bytes = 0;
        let parts = plan.page_list.pages.iter().map(|&(page, size_bytes)| {
            let part = Part { page: Some(page), offset_bytes, size_bytes };
            offset_bytes += size_bytes;
            part
        });
        let parts: Vec<Part> = parts.collect();
        for part in &parts {
            *self.paged.shown.entry(part.page.expect("it is mapped")).or_default() += 1;
        }
        self.paged.shown_pages += parts.len() as u64;
        let id = self.add_segment(want, span, Backing::View { parts }, State::Hollow);
        let view = self.space[id].segment;
        self.space.cover_view(view);
        self.paged.views.push(view);
        self.paged.note_shown(plan.size_bytes, self.space.reserved_bytes());
        self.herald.record(Record::Shown);
        let segment = &self.space[view];
        for part in segment.parts() {
            self.tell_of_view(view, Action::SegmentMap, segment.place_of(part));
        }
        view
    }

    /// The views of these lanes.
    pub(crate) fn views_of(&self, is_theirs: impl Fn(LaneId) -> bool) -> Vec<SegmentId> {
        let views = self.paged.views.iter().copied();
        views.filter(|&view| is_theirs(self.space[view].lane)).collect()
    }

    /// What of a view can be unmapped: the pages that are free from end to end at home, and those
    /// that no block in a view has any more where it has none.
    pub(crate) fn plan_unview(&self, view: SegmentId) -> UnviewPlan {
        let segment = &self.space[view];
        let is_empty = self.space.is_vacant(view);
        let is_idle = |page: PageAt| {
            let home = Home { segment: page.segment, span: self.space.page_span(page) };
            self.space.blocks_under(home).all(|id| self.space[id].state == State::Free)
        };
        let idle = segment
            .parts()
            .iter()
            .enumerate()
            .filter(|(_, part)| part.page.is_some_and(|page| is_empty || is_idle(page)));
        let parts: Vec<(usize, Span)> =
            idle.map(|(at, part)| (at, segment.place_of(part))).collect();
        let stream = self.pools.lane(segment.lane).living_stream();
        UnviewPlan { view, stream, parts, is_whole: is_empty }
    }

    /// The streams of lanes that lie side by side in one segment.
    pub(crate) fn mixed_streams(&self) -> Vec<StreamId> {
        let mut streams = BTreeSet::new();
        for (id, segment) in self.space.segments().iter() {
            let lanes = self.space.chain(id).map(|block| self.space[block].lane);
            for lane in lanes.filter(|&lane| lane != segment.lane) {
                let both = [lane, segment.lane].map(|lane| self.pools.lane(lane).living_stream());
                streams.extend(both.into_iter().flatten());
            }
        }
        streams.into_iter().collect()
    }

    /// All work of these streams is done, and that of those that are gone: what is free of theirs
    /// goes to the lanes that it is at home with, and merges.
    pub(crate) fn unite(&mut self, quiet: &[StreamId]) {
        let is_quiet = |heap: &Heap, lane: LaneId| {
            heap.pools.lane(lane).living_stream().is_none_or(|stream| quiet.contains(&stream))
        };
        let segments: Vec<_> =
            self.space.segments().iter().map(|(id, segment)| (id, segment.lane)).collect();
        for (segment, home) in segments {
            let astray: Vec<BlockId> = self
                .space
                .chain(segment)
                .filter(|&id| {
                    let block = &self.space[id];
                    block.state == State::Free && block.lane != home && is_quiet(self, block.lane)
                })
                .collect();
            for id in astray.into_iter().filter(|_| is_quiet(self, home)).collect::<Vec<_>>() {
                self.hand_over(id, home);
            }
        }
    }

    /// The first `count` parts of a plan were unmapped.
    pub(crate) fn commit_unview(&mut self, plan: &UnviewPlan, count: usize) {
        if count > 0 {
            self.herald.record(Record::Hidden);
        }
        for &(at, span) in &plan.parts[..count] {
            self.tell_of_view(plan.view, Action::SegmentUnmap, span);
            let part = &mut self.space[plan.view].parts_mut()[at];
            let Some(page) = part.page.take() else { continue };
            if let Some(times) = self.paged.shown.get_mut(&page) {
                *times -= 1;
                self.paged.shown_pages -= 1;
                if *times == 0 {
                    self.paged.shown.remove(&page);
                }
            }
        }
    }

    /// The addresses of a view that shows nothing went back to the device.
    pub(crate) fn commit_unreserve_view(&mut self, view: SegmentId) {
        debug_assert!(self.space.is_vacant(view));
        self.space.uncover_view(view);
        self.space.remove_segment(view);
        self.paged.views.retain(|&other| other != view);
    }

    /// The place of every page of every expandable segment, and where views show them.
    pub(crate) fn mapped_pages(&self) -> Vec<Span> {
        self.space.page_places().chain(self.shown_pages()).collect()
    }

    /// Every place at which a view shows a page.
    pub(in crate::heap) fn shown_pages(&self) -> Vec<Span> {
        let views = self.paged.views.iter().map(|&view| &self.space[view]);
        let parts = views.flat_map(|view| view.parts().iter().map(move |part| (view, part)));
        let shown = parts.filter(|(_, part)| part.page.is_some());
        shown.map(|(view, part)| view.place_of(part)).collect()
    }

    /// Views to do without, because too much is shown: those that nobody has, the longest unused
    /// first.
    pub(crate) fn plan_thinning(&self) -> Vec<SegmentId> {
        let held_pages = self.space.page_count();
        let mut surplus = self.paged.shown_pages.saturating_sub(SHOWN_MAX * held_pages);
        let vacant = self.paged.views.iter().copied().filter(|&view| self.space.is_vacant(view));
        let thinned = vacant.take_while(|&view| {
            let is_needed = surplus > 0;
            surplus = surplus.saturating_sub(self.space[view].parts().len() as u64);
            is_needed
        });
        thinned.collect()
    }

    /// Whether a page of a home is shown in some view.
    pub(crate) fn is_shown(&self, segment: SegmentId, index: usize) -> bool {
        self.paged.shown.contains_key(&PageAt { segment, index })
    }
}
