//! Homes: where bytes are that a view shows, and the pages behind a block.

use crate::heap::ids::{BlockId, PageAt, SegmentId};
use crate::heap::space::Space;
use crate::heap::space::segment::{Part, Segment};
use crate::types::{Addr, PageHandle, Span};

/// Bytes at home, and the segment that they are at home in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(in crate::heap) segment: SegmentId,
    pub(in crate::heap) span: Span,
}

/// Bytes at home, and where a view shows them.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct Shown {
    pub(in crate::heap) addr: Addr,
    pub(in crate::heap) home: Home,
}

impl Shown {
    /// Whether others, which a view shows at this address, come right after it, here and at home.
    fn is_before(&self, addr: Addr, home: Home) -> bool {
        let Home { segment, span } = self.home;
        // Where one segment ends another may begin.
        self.addr.offset(span.size_bytes) == addr
            && span.end() == home.span.addr
            && segment == home.segment
    }
}

/// The pages that a block of an expandable segment lies on.
#[derive(Debug)]
pub(crate) struct PagesBehind {
    /// The addresses of all of them.
    pub(crate) span: Span,
    /// Each with its size, in order.
    pub(crate) pages: Vec<(PageHandle, u64)>,
}

impl Space {
    /// Where a page is at home.
    pub(in crate::heap) fn page_span(&self, page: PageAt) -> Span {
        self[page.segment].span_of(page.index..page.index + 1)
    }

    /// The blocks under bytes at home, in order.
    pub(in crate::heap) fn blocks_under(&self, home: Home) -> impl Iterator<Item = BlockId> + '_ {
        let first = self.block_over(home.segment, home.span.addr);
        first.into_iter().flat_map(move |first| self.blocks_from(first, home.span.end()))
    }

    /// Where the bytes of a view are at home, in order; none if the view does not show them all.
    pub(in crate::heap) fn homes_under(&self, view: SegmentId, span: Span) -> Option<Vec<Home>> {
        let shown = self.shown(view, span);
        let shown_bytes: u64 = shown.iter().map(|shown| shown.home.span.size_bytes).sum();
        let homes = || shown.into_iter().map(|shown| shown.home).collect();
        (shown_bytes == span.size_bytes).then(homes)
    }

    /// What a view shows of a span, in order: what is side by side here and at home is one.
    pub(in crate::heap) fn shown(&self, view: SegmentId, span: Span) -> Vec<Shown> {
        let segment = &self[view];
        let begin_bytes = span.addr.0 - segment.span().addr.0;
        let parts = segment.parts();
        let first =
            parts.partition_point(|part| part.offset_bytes + part.size_bytes <= begin_bytes);
        let mut all: Vec<Shown> = Vec::new();
        for part in &parts[first..] {
            let place = segment.place_of(part);
            let (begin, end) = (place.addr.max(span.addr), place.end().min(span.end()));
            if begin >= end {
                break;
            }
            let Some(page) = part.page else { continue };
            let addr = self.page_span(page).addr.offset(begin.0 - place.addr.0);
            let home = Home { segment: page.segment, span: Span::new(addr, end.0 - begin.0) };
            match all.last_mut().filter(|last| last.is_before(begin, home)) {
                Some(last) => last.home.span.size_bytes += home.span.size_bytes,
                None => all.push(Shown { addr: begin, home }),
            }
        }
        all
    }

    /// The pages that a live block lies on; none if its segment has no pages.
    pub(crate) fn pages_behind(&self, id: BlockId) -> Option<PagesBehind> {
        let block = &self[id];
        let segment = &self[block.segment];
        if segment.is_view() {
            return self.pages_shown_behind(block.span(), segment);
        }
        if !segment.is_expandable() {
            return None;
        }
        let range = segment.pages_over(block.span());
        let pages = range.clone().filter_map(|index| segment.page(index));
        let pages = pages.map(|page| (page, segment.page_bytes())).collect();
        Some(PagesBehind { span: segment.span_of(range), pages })
    }

    /// The pages that a view shows under a span.
    fn pages_shown_behind(&self, span: Span, view: &Segment) -> Option<PagesBehind> {
        let under = view.parts().iter().filter(|part| view.place_of(part).overlaps(span));
        let under: Vec<&Part> = under.collect();
        let (first, last) = (under.first()?, under.last()?);
        let (begin, end) = (view.place_of(first).addr, view.place_of(last).end());
        let handle = |part: &&Part| {
            let page = part.page?;
            Some((self[page.segment].page(page.index)?, part.size_bytes))
        };
        let pages: Option<Vec<_>> = under.iter().map(handle).collect();
        Some(PagesBehind { span: Span::new(begin, end.0 - begin.0), pages: pages? })
    }

    /// The place of every page of every expandable segment.
    pub(in crate::heap) fn page_places(&self) -> impl Iterator<Item = Span> + '_ {
        let expandable = self.segments().iter().filter(|(_, segment)| segment.is_expandable());
        expandable.flat_map(|(_, segment)| {
            let count = segment.pages_over(segment.span()).end;
            let backed = (0..count).filter(|&index| segment.page(index).is_some());
            backed.map(|index| segment.span_of(index..index + 1))
        })
    }

    /// How many pages there are.
    pub(in crate::heap) fn page_count(&self) -> u64 {
        self.segments().iter().map(|(_, segment)| segment.page_count()).sum()
    }
}
