//! Stitching: which free pages to show side by side, so that they hold a request that no free block
//! holds.
//!
//! Only the middle of a view needs whole pages: its first page may begin, and its last may end, in
//! the middle of one. So a choice is a head, whole pages, and a tail.

use std::cmp::Reverse;
use std::ops::Range;

use crate::heap::ids::{PageAt, SegmentId};
use crate::types::{Addr, MIB, Span};

/// A free block, and the pages that it lies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    pub(crate) span: Span,
    pub(crate) segment: SegmentId,
    /// Where the segment's pages begin.
    pub(crate) origin: Addr,
    pub(crate) page_bytes: u64,
    /// It lies at the end of what the segment has: what is not used of it now will hold the next
    /// growth.
    pub(crate) is_end: bool,
}

/// A part of a page at one of its ends, or the whole of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    page: PageAt,
    size_bytes: u64,
    page_bytes: u64,
    addr: Addr,
}

/// Pages to show side by side, and where in them the request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageList {
    pub(crate) pages: Vec<(PageAt, u64)>,
    /// How far into the first page the request begins.
    pub(crate) skip_bytes: u64,
}

/// What can be had of the free pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stitch {
    /// They suffice.
    PageList(PageList),
    /// So much more is needed, in whole pages.
    Short { missing_bytes: u64 },
}

/// So many heads and tails, the longest, are tried with each other.
const ENDS_TRIED: usize = 24;
/// Pages of this size and more are chosen by their size: each saves many mappings.
const LARGE_PAGE_BYTES: u64 = 32 * MIB;

/// Everything free, cut at the pages' ends.
#[derive(Debug, Default)]
struct Pieces {
    /// Pages that begin in use and end free: the longest of these ends, shortest first.
    heads: Vec<Piece>,
    /// Pages that begin free and end in use: the same.
    tails: Vec<Piece>,
    /// Whole pages, those to use first first.
    whole: Vec<Piece>,
    /// The bytes of all whole pages before each, and of all of them.
    sums: Vec<u64>,
    /// Where the whole pages are that lie at the end of a segment: these are used before all.
    last: Range<usize>,
    /// Where those of each large size are, the largest first.
    large: Vec<Range<usize>>,
    /// Where the others are.
    small: Range<usize>,
}

impl Pieces {
    fn of(gaps: &[Gap]) -> Pieces {
        let ends = || Vec::with_capacity(gaps.len());
        let mut pieces = Pieces { heads: ends(), tails: ends(), ..Pieces::default() };
        let mut whole = Vec::with_capacity(gaps.len());
        for gap in gaps {
            pieces.cut(gap, &mut whole);
        }
        // What lies at the end would be left behind if memory grew there later, so that it comes
        // before all. Of the rest large pages come first, and then the lowest: what is left lies
        // together.
        let large_bytes =
            |piece: &Piece| Some(piece.page_bytes).filter(|&size| size >= LARGE_PAGE_BYTES);
        whole.sort_by_key(|(is_end, piece)| (!is_end, Reverse(large_bytes(piece)), piece.addr));
        pieces.last = 0..whole.partition_point(|&(is_end, _)| is_end);
        pieces.whole = whole.into_iter().map(|(_, piece)| piece).collect();
        let mut from = pieces.last.end;
        for run in
            pieces.whole[from..].chunk_by(|one, other| large_bytes(one) == large_bytes(other))
        {
            let places = from..from + run.len();
            from = places.end;
            match large_bytes(&run[0]) {
                Some(_) => pieces.large.push(places),
                None => pieces.small = places,
            }
        }
        let sums = pieces.whole.iter().scan(0, |sum, piece| {
            *sum += piece.size_bytes;
            Some(*sum)
        });
        pieces.sums = std::iter::once(0).chain(sums).collect();
        keep_longest(&mut pieces.heads);
        keep_longest(&mut pieces.tails);
        pieces
    }

    fn cut(&mut self, gap: &Gap, whole: &mut Vec<(bool, Piece)>) {
        let Gap { span, segment, origin, page_bytes, is_end } = *gap;
        let piece = |index: u64, from: u64, until: u64| Piece {
            page: PageAt { segment, index: index as usize },
            size_bytes: until - from,
            page_bytes,
            addr: Addr(from),
        };
        let (begin, end) = (span.addr.0 - origin.0, span.end().0 - origin.0);
        let (first, last) = (begin.div_ceil(page_bytes), end / page_bytes);
        if begin < first * page_bytes && first <= last {
            let page_end = origin.0 + first * page_bytes;
            self.heads.push(piece(first - 1, span.addr.0, page_end));
        }
        for index in first..last {
            let from = origin.0 + index * page_bytes;
            whole.push((is_end, piece(index, from, from + page_bytes)));
        }
        if last >= first && last * page_bytes < end {
            self.tails.push(piece(last, origin.0 + last * page_bytes, span.end().0));
        }
    }

    /// Chooses whole pages for so much, says which by runs of them, and returns how much is
    /// missing. `near` is how far the last choice came.
    fn choose(&self, size_bytes: u64, near: &mut Near, mut take: impl FnMut(Range<usize>)) -> u64 {
        let (last, bytes) = self.first_of(&self.last, size_bytes, &mut near.last);
        take(last);
        let mut left_bytes = size_bytes - bytes;
        let mut spare = None;
        for places in &self.large {
            let page_bytes = self.whole[places.start].size_bytes;
            let until = places.end.min(places.start + (left_bytes / page_bytes) as usize);
            take(places.start..until);
            left_bytes -= page_bytes * (until - places.start) as u64;
            // It is larger than what is left to find.
            spare = (until < places.end).then_some(until).or(spare);
        }
        let (small, bytes) = self.first_of(&self.small, left_bytes, &mut near.small);
        if let Some(spare) = spare.filter(|_| bytes < left_bytes) {
            take(spare..spare + 1);
            return 0;
        }
        take(small);
        left_bytes - bytes
    }

    /// The first of these pages that hold so much, or all of them, and how much of it they hold.
    /// They are found from where those before were: one choice is much like the last.
    fn first_of(
        &self,
        places: &Range<usize>,
        size_bytes: u64,
        near: &mut usize,
    ) -> (Range<usize>, u64) {
        let before_bytes = self.sums[places.start];
        let held_bytes = |until: usize| self.sums[until] - before_bytes;
        let mut until = (*near).clamp(places.start, places.end);
        while until > places.start && held_bytes(until - 1) >= size_bytes {
            until -= 1;
        }
        while until < places.end && held_bytes(until) < size_bytes {
            until += 1;
        }
        *near = until;
        (places.start..until, held_bytes(until).min(size_bytes))
    }

    /// How much is missing if a head and a tail of these sizes are used, how many whole pages it
    /// takes, and how much of ends it takes: the less of each, the better, in this order.
    fn cost(&self, size_bytes: u64, ends_bytes: u64, near: &mut Near) -> Cost {
        let mut count = 0;
        let rest_bytes = size_bytes.saturating_sub(ends_bytes);
        let missing_bytes = self.choose(rest_bytes, near, |places| count += places.len());
        (missing_bytes, count, ends_bytes)
    }

    /// The head and the tail with which the least is missing.
    fn best_ends(&self, size_bytes: u64) -> (Cost, Option<Piece>, Option<Piece>) {
        let longest = |ends: &[Piece]| {
            std::iter::once(None).chain(ends.iter().rev().copied().map(Some)).collect::<Vec<_>>()
        };
        let (heads, tails) = (longest(&self.heads), longest(&self.tails));
        let near = &mut Near::default();
        let mut best = (self.cost(size_bytes, 0, near), None, None);
        for &head in &heads {
            for &tail in &tails {
                let is_one_page =
                    head.is_some_and(|head| tail.is_some_and(|tail| head.page == tail.page));
                if is_one_page {
                    continue;
                }
                let cost = self.cost(size_bytes, bytes_of(head) + bytes_of(tail), near);
                if cost < best.0 {
                    best = (cost, head, tail);
                }
            }
        }
        best
    }
}

/// What is missing, how many whole pages are used, and how much of ends.
type Cost = (u64, usize, u64);

/// How far into the last pages and the small ones the last choice came.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    last: usize,
    small: usize,
}

/// How much a head or a tail holds, if there is one.
fn bytes_of(end: Option<Piece>) -> u64 {
    end.map_or(0, |piece| piece.size_bytes)
}

/// Keeps the longest ends, and puts them in order.
fn keep_longest(ends: &mut Vec<Piece>) {
    let key = |piece: &Piece| (piece.size_bytes, piece.addr);
    if let Some(shorter) = ends.len().checked_sub(ENDS_TRIED).filter(|&shorter| shorter > 0) {
        ends.select_nth_unstable_by_key(shorter, key);
        ends.drain(..shorter);
    }
    ends.sort_unstable_by_key(key);
}

/// Which pages to show side by side for a request.
pub(crate) fn stitch(gaps: &[Gap], size_bytes: u64) -> Stitch {
    let pieces = Pieces::of(gaps);
    let ((missing_bytes, _, _), head, tail) = pieces.best_ends(size_bytes);
    if missing_bytes > 0 {
        return Stitch::Short { missing_bytes };
    }
    let mut left_bytes = size_bytes;
    let mut page_list = PageList { pages: Vec::new(), skip_bytes: 0 };
    if let Some(head) = head {
        let used_bytes = head.size_bytes.min(left_bytes);
        page_list.skip_bytes = head.page_bytes - used_bytes;
        page_list.pages.push((head.page, head.page_bytes));
        left_bytes -= used_bytes;
    }
    let mut chosen = Vec::new();
    let rest_bytes = size_bytes.saturating_sub(bytes_of(head) + bytes_of(tail));
    pieces.choose(rest_bytes, &mut Near::default(), |places| {
        chosen.extend_from_slice(&pieces.whole[places]);
    });
    chosen.sort_by_key(|piece| piece.addr);
    for piece in chosen {
        page_list.pages.push((piece.page, piece.page_bytes));
        left_bytes = left_bytes.saturating_sub(piece.size_bytes);
    }
    if let Some(tail) = tail.filter(|_| left_bytes > 0) {
        page_list.pages.push((tail.page, tail.page_bytes));
    }
    Stitch::PageList(page_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    fn gap(begin_pages: f64, end_pages: f64, is_end: bool) -> Gap {
        let at = |pages: f64| (pages * PAGE as f64) as u64;
        let span = Span::new(Addr(at(begin_pages)), at(end_pages) - at(begin_pages));
        Gap { span, segment: SegmentId::NONE, origin: Addr(0), page_bytes: PAGE, is_end }
    }

    fn page_list(gaps: &[Gap], pages: f64) -> (Vec<usize>, f64) {
        match stitch(gaps, (pages * PAGE as f64) as u64) {
            Stitch::PageList(page_list) => {
                let indexes = page_list.pages.iter().map(|(page, _)| page.index).collect();
                (indexes, page_list.skip_bytes as f64 / PAGE as f64)
            }
            Stitch::Short { missing_bytes } => panic!("{missing_bytes} bytes are missing"),
        }
    }

    #[test]
    fn a_head_whole_pages_and_a_tail_make_one_range() {
        let gaps = [gap(1.5, 3.0, false), gap(7.0, 8.25, false)];
        assert_eq!(page_list(&gaps, 2.75), (vec![1, 2, 7, 8], 0.5));
        assert_eq!(stitch(&gaps, 3 * PAGE), Stitch::Short { missing_bytes: PAGE / 4 });
    }

    #[test]
    fn a_head_is_used_whole_and_the_last_page_from_its_start() {
        let gaps = [gap(0.25, 1.0, false), gap(4.0, 5.0, false)];
        assert_eq!(page_list(&gaps, 1.5), (vec![0, 4], 0.25));
    }

    #[test]
    fn what_lies_at_the_end_is_used_first_and_then_what_lies_lowest() {
        let gaps = [gap(0.0, 4.0, false), gap(8.0, 9.0, false), gap(20.0, 22.0, true)];
        assert_eq!(page_list(&gaps, 3.0), (vec![0, 20, 21], 0.0));
    }

    #[test]
    fn large_pages_that_are_needed_whole_come_first() {
        let of_size = |page_mib: u64, begin: u64, end: u64| {
            let page_bytes = page_mib * MIB;
            let span = Span::new(Addr(begin * page_bytes), (end - begin) * page_bytes);
            Gap { span, segment: SegmentId::NONE, origin: Addr(0), page_bytes, is_end: false }
        };
        let gaps = [of_size(2, 0, 12), of_size(64, 1, 3), of_size(32, 10, 12)];
        let sizes = |size_mib: u64| match stitch(&gaps, size_mib * MIB) {
            Stitch::PageList(page_list) => {
                page_list.pages.iter().map(|(_, size)| size / MIB).collect::<Vec<_>>()
            }
            Stitch::Short { missing_bytes } => panic!("{missing_bytes} bytes are missing"),
        };
        assert_eq!(sizes(6), [2, 2, 2], "a large page would be broken into");
        assert_eq!(sizes(70), [2, 2, 2, 64]);
        assert_eq!(sizes(102), [2, 2, 2, 64, 32]);
        assert_eq!(
            sizes(30),
            [32],
            "the small ones do not suffice, and the smallest large one does alone"
        );
        let all_mib = 24 + 128 + 64;
        assert_eq!(sizes(all_mib).len(), 12 + 2 + 2);
        let short = Stitch::Short { missing_bytes: MIB };
        assert_eq!(stitch(&gaps, (all_mib + 1) * MIB), short);
    }

    #[test]
    fn a_page_is_not_head_and_tail_at_once() {
        let gaps = [gap(0.5, 1.0, false), gap(2.0, 2.5, false), gap(5.0, 6.0, false)];
        assert_eq!(page_list(&gaps, 1.75), (vec![0, 5, 2], 0.5));
        // The only head and the only tail are the two ends of one page, with something live
        // between.
        let gaps = [gap(0.0, 0.25, false), gap(0.75, 1.0, false), gap(5.0, 6.0, false)];
        assert!(matches!(stitch(&gaps, PAGE + PAGE / 2), Stitch::Short { .. }));
    }
}
