//! Segments: what a device gave in one piece, fixed or expandable, and the way from an address
//! to the block that starts there.

use std::hint::select_unpredictable;

use crate::heap::ids::{BlockId, LaneId, PageAt, SegmentId};
use crate::heap::size::{BLOCK_UNIT_BYTES, SMALL_MAX_BYTES};
use crate::heap::space::cover::CoverMap;
use crate::heap::space::fine_starts::FineStarts;
use crate::types::{Addr, PageHandle, PoolKind, Span};

/// How a segment holds its memory.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// One piece from the device, all or nothing.
    Fixed,
    /// A range of addresses with pages behind parts of it.
    Expandable { page_bytes: u64, pages: Vec<Option<PageHandle>> },
    /// A range of addresses in which pages of others are shown a second time.
    View { parts: Vec<Part> },
}

/// A page as a view shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The page; none if it was taken away.
    pub(crate) page: Option<PageAt>,
    /// How far into the view.
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
}

/// One segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// All its addresses, whether there is memory behind them or not.
    span: Span,
    lane: LaneId,
    /// The block at its lowest address. The lower of two joined blocks stays, so it never changes.
    first: BlockId,
    backing: Backing,
    /// How many segments the heap had been given before it. Whoever makes segments known to others,
    /// as NCCL does in all processes of a group, does so in this order.
    serial: u64,
    /// Counted as oversize when the device gave it.
    oversize: bool,
    /// There is no memory behind its blocks, which wait for it.
    asleep: bool,
    /// For each window, the block that was last handed out with its start in it. Two live blocks
    /// never start in one window: in a large pool they are longer than a window, in a small pool
    /// a window is one unit.
    starts: Vec<u32>,
    window_shift: u32,
    /// Where blocks of all sizes share a segment: for each unit, the small block that was last
    /// noted to start there. The windows above are for the others then: they are few, and lie close
    /// together.
    fine_starts: FineStarts,
}

impl Segment {
    /// All its addresses, whether there is memory behind them or not.
    #[inline]
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    #[inline]
    pub(crate) fn lane(&self) -> LaneId {
        self.lane
    }

    /// The block at its lowest address.
    #[inline]
    pub(crate) fn first(&self) -> BlockId {
        self.first
    }

    /// How many segments the heap had been given before it.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether it was counted as oversize when the device gave it.
    pub(crate) fn is_oversize(&self) -> bool {
        self.oversize
    }

    /// It was given in one piece, and is counted as oversize or not.
    pub(crate) fn set_oversize(&mut self, oversize: bool) {
        assert!(self.is_fixed(), "only what is given in one piece is counted so");
        self.oversize = oversize;
    }

    /// Whether there is no memory behind its blocks, which wait for it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// It falls asleep or wakes, in a lane of its pool for that.
    pub(super) fn set_asleep(&mut self, asleep: bool, lane: LaneId) {
        debug_assert!(!self.is_fixed(), "the addresses of plain memory go with it");
        (self.asleep, self.lane) = (asleep, lane);
    }

    /// Whether it is one piece from the device, all or nothing.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.backing, Backing::Fixed)
    }

    pub(crate) fn is_expandable(&self) -> bool {
        matches!(self.backing, Backing::Expandable { .. })
    }

    pub(crate) fn is_view(&self) -> bool {
        matches!(self.backing, Backing::View { .. })
    }

    /// What a view shows, in order; nothing if it is none.
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.backing {
            Backing::View { parts } => parts,
            Backing::Fixed | Backing::Expandable { .. } => &[],
        }
    }

    /// Where a view shows a part.
    pub(crate) fn place_of(&self, part: &Part) -> Span {
        Span::new(self.span.addr.offset(part.offset_bytes), part.size_bytes)
    }

    /// How many pages it has of its own.
    pub(crate) fn page_count(&self) -> u64 {
        match &self.backing {
            Backing::Expandable { pages, .. } => pages.iter().flatten().count() as u64,
            Backing::Fixed | Backing::View { .. } => 0,
        }
    }

    pub(crate) fn parts_mut(&mut self) -> &mut [Part] {
        match &mut self.backing {
            Backing::View { parts } => parts,
            Backing::Fixed | Backing::Expandable { .. } => &mut [],
        }
    }

    /// Which pages cover `span`, outwards: every page that has a byte of it.
    pub(crate) fn pages_over(&self, span: Span) -> std::ops::Range<usize> {
        let page_bytes = self.page_bytes();
        let begin = (span.addr.0 - self.span.addr.0) / page_bytes;
        let end = (span.end().0 - self.span.addr.0).div_ceil(page_bytes);
        begin as usize..end as usize
    }

    /// Which pages lie wholly inside `span`.
    pub(crate) fn pages_inside(&self, span: Span) -> std::ops::Range<usize> {
        let page_bytes = self.page_bytes();
        let begin = (span.addr.0 - self.span.addr.0).div_ceil(page_bytes);
        let end = (span.end().0 - self.span.addr.0) / page_bytes;
        begin as usize..end.max(begin) as usize
    }

    /// The addresses of a run of pages.
    pub(crate) fn span_of(&self, pages: std::ops::Range<usize>) -> Span {
        let page_bytes = self.page_bytes();
        let addr = self.span.addr.offset(pages.start as u64 * page_bytes);
        Span::new(addr, pages.len() as u64 * page_bytes)
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        match self.backing {
            Backing::Expandable { page_bytes, .. } => page_bytes,
            Backing::Fixed | Backing::View { .. } => self.span.size_bytes,
        }
    }

    /// The pages of an expandable segment; a place behind the end has none.
    pub(crate) fn page(&self, index: usize) -> Option<PageHandle> {
        match &self.backing {
            Backing::Expandable { pages, .. } => pages.get(index).copied().flatten(),
            Backing::Fixed | Backing::View { .. } => None,
        }
    }

    /// Puts a page in its place, or takes it away.
    pub(crate) fn set_page(&mut self, index: usize, page: Option<PageHandle>) {
        let Backing::Expandable { pages, .. } = &mut self.backing else {
            unreachable!("only expandable segments have pages")
        };
        if index >= pages.len() {
            pages.resize(index + 1, None);
        }
        pages[index] = page;
        while pages.last().is_some_and(Option::is_none) {
            pages.pop();
        }
    }

    /// How many bytes have memory behind them.
    pub(crate) fn backed_bytes(&self) -> u64 {
        match &self.backing {
            Backing::Fixed => self.span.size_bytes,
            Backing::View { .. } => 0,
            Backing::Expandable { page_bytes, pages } => {
                pages.iter().flatten().count() as u64 * page_bytes
            }
        }
    }

    /// Where so many units of a block into it are.
    #[inline]
    pub(crate) fn at_unit(&self, unit: u32) -> Addr {
        self.span.addr.offset(u64::from(unit) * BLOCK_UNIT_BYTES)
    }

    /// How many units of a block a window has, as a power of two.
    #[inline]
    fn units_shift(&self) -> u32 {
        self.window_shift - BLOCK_UNIT_BYTES.trailing_zeros()
    }

    #[inline]
    fn window(&self, addr: Addr) -> usize {
        ((addr.0 - self.span.addr.0) >> self.window_shift) as usize
    }

    /// Makes room so that a block may start anywhere below `end`.
    fn cover(&mut self, end: Addr, is_fine: bool) {
        let units = (end.0 - self.span.addr.0).div_ceil(BLOCK_UNIT_BYTES) as usize;
        // What is small is not put into views.
        if is_fine && !self.is_view() {
            self.fine_starts.cover(units);
        }
        let windows = self.window(Addr(end.0 - 1)) + 1;
        if windows > self.starts.len() {
            self.starts.resize(windows, 0);
        }
    }
}

/// All segments, and which of them an address lies in.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    /// A slot that is not in use has a segment of no bytes, and no windows. The first never is: it
    /// is where whoever looks for what is not there finds nothing.
    slots: Vec<Segment>,
    spare: Vec<SegmentId>,
    cover: CoverMap,
    len: usize,
    expandable_count: usize,
    /// How many segments there ever were.
    given: u64,
    /// Blocks smaller than this are found by the unit that they start in: none, or all small ones
    /// where blocks of all sizes share segments. A bound and no flag, because a block's size is
    /// anybody's guess, and so would be a branch on it.
    fine_below_bytes: u64,
}

impl Segments {
    /// No segments. `is_fine` says whether blocks of all sizes will share them.
    pub(crate) fn new(is_fine: bool) -> Segments {
        let nowhere = Segment {
            span: Span::new(Addr(0), 0),
            lane: LaneId(0),
            first: BlockId::from_index(1).expect("a block's number"),
            backing: Backing::Fixed,
            serial: 0,
            oversize: false,
            asleep: false,
            starts: Vec::new(),
            window_shift: BLOCK_UNIT_BYTES.trailing_zeros(),
            fine_starts: FineStarts::default(),
        };
        let (spare, cover) = (Vec::new(), CoverMap::default());
        let (slots, len) = (vec![nowhere], 0);
        let fine_below_bytes = if is_fine { SMALL_MAX_BYTES } else { 0 };
        Segments { slots, spare, cover, len, expandable_count: 0, given: 0, fine_below_bytes }
    }

    /// The number of the next segment.
    pub(crate) fn next_serial(&self) -> u64 {
        self.given
    }

    /// Adds a segment whose first block will be `first`.
    pub(crate) fn add(
        &mut self,
        span: Span,
        lane: LaneId,
        kind: PoolKind,
        backing: Backing,
        first: BlockId,
    ) -> SegmentId {
        let window_bytes = match kind {
            PoolKind::Small => BLOCK_UNIT_BYTES,
            PoolKind::Large => SMALL_MAX_BYTES,
        };
        let window_shift = window_bytes.trailing_zeros();
        let (serial, oversize, asleep, starts) = (self.given, false, false, Vec::new());
        let fine_starts = FineStarts::default();
        let segment = Segment {
            span,
            lane,
            first,
            backing,
            serial,
            oversize,
            asleep,
            starts,
            window_shift,
            fine_starts,
        };
        self.given += 1;
        let fixed = matches!(segment.backing, Backing::Fixed);
        let expandable = segment.is_expandable();
        let id = if let Some(id) = self.spare.pop() {
            self[id] = segment;
            id
        } else {
            self.slots.push(segment);
            SegmentId(u32::try_from(self.slots.len() - 1).expect("fewer than 4 billion segments"))
        };
        self.len += 1;
        if fixed {
            self.cover(id, span);
        }
        self.expandable_count += usize::from(expandable);
        id
    }

    /// From here on, blocks of the segment may start anywhere in `span`.
    pub(crate) fn cover(&mut self, id: SegmentId, span: Span) {
        let is_fine = self.fine_below_bytes > 0;
        self[id].cover(span.end(), is_fine);
        self.cover.add(id, self[id].span.addr, span);
    }

    /// Forgets that the segment has anything in `span`.
    pub(crate) fn uncover(&mut self, id: SegmentId, span: Span) {
        self.cover.remove(id, span);
    }

    /// Forgets a segment.
    pub(crate) fn remove(&mut self, id: SegmentId) {
        match self[id].backing {
            Backing::Fixed => self.uncover(id, self[id].span),
            Backing::Expandable { .. } => self.expandable_count -= 1,
            Backing::View { .. } => {}
        }
        let segment = &mut self[id];
        segment.span = Span::new(Addr(0), 0);
        (segment.starts, segment.fine_starts) = (Vec::new(), FineStarts::default());
        segment.backing = Backing::Fixed;
        self.spare.push(id);
        self.len -= 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many of them can grow.
    pub(crate) fn expandable_count(&self) -> usize {
        self.expandable_count
    }

    /// The block that was last handed out with its start in the window of `addr`. The caller
    /// checks that it is live and starts at `addr` exactly.
    #[inline(never)]
    pub(crate) fn block_at(&self, addr: Addr) -> Option<BlockId> {
        let inside = self.cover.segment_inside(addr, |id| self[id].span.addr);
        inside.map_or_else(|| self.block_near(addr), |id| self.block_in(id, addr))
    }

    /// Finds likewise, but for segments that start inside a granule: of their blocks it may find
    /// none, or another one.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn block_near(&self, addr: Addr) -> Option<BlockId> {
        self.block_in(self.near(addr), addr)
    }

    /// The segment that the address lies in, unless that starts inside a granule.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn near(&self, addr: Addr) -> SegmentId {
        self.cover.segment_near(addr)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn block_in(&self, id: SegmentId, addr: Addr) -> Option<BlockId> {
        let segment = &self[id];
        // Of an address before the segment or behind it this makes a window that there is not, or
        // one whose block starts elsewhere.
        let window = addr.0.wrapping_sub(segment.span.addr.0) >> segment.window_shift;
        BlockId::from_index(*segment.starts.get(window as usize)?)
    }

    /// The segment that an address lies in.
    pub(crate) fn holder_of(&self, addr: Addr) -> Option<SegmentId> {
        let inside = self.cover.segment_inside(addr, |id| self[id].span.addr);
        let id = inside.unwrap_or_else(|| self.near(addr));
        self.get(id).is_some_and(|segment| segment.span.contains(addr)).then_some(id)
    }

    /// A segment, if it is there.
    pub(crate) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.slots.get(id.index()).filter(|segment| segment.span.size_bytes > 0)
    }

    /// The block of at most 1 MiB that was last noted to start at `addr`, where blocks of all sizes
    /// share segments. The caller checks that it does.
    #[inline(never)]
    pub(crate) fn fine_at(&self, addr: Addr) -> Option<BlockId> {
        let inside = self.cover.segment_inside(addr, |id| self[id].span.addr);
        self.fine_in(inside.unwrap_or_else(|| self.near(addr)), addr)
    }

    /// The block that was last noted to start so many units into a segment: among the small ones or
    /// among the others. The caller checks that it does.
    #[inline]
    pub(crate) fn noted_at(&self, id: SegmentId, unit: u32, is_small: bool) -> Option<BlockId> {
        let segment = &self[id];
        // With no branch on which it is, here and below: that is anybody's guess.
        let fine = segment.fine_starts.get(unit as usize);
        let coarse = segment.starts.get((unit >> segment.units_shift()) as usize);
        BlockId::from_index(*select_unpredictable(is_small, fine, coarse)?)
    }

    /// The blocks that were last noted to start at `addr`, or in a window before it, the nearest
    /// first, each with where the search for it began. The caller checks that they are there.
    pub(crate) fn noted_before(
        &self,
        id: SegmentId,
        addr: Addr,
    ) -> impl Iterator<Item = (Addr, BlockId)> + '_ {
        let segment = &self[id];
        let at = self.fine_in(id, addr).map(|block| (addr, block));
        let windows = segment.starts.len().min(segment.window(addr) + 1);
        let noted = segment.starts[..windows].iter().enumerate().rev();
        let before = noted.filter_map(|(window, &start)| {
            let block = BlockId::from_index(start)?;
            let from = segment.span.addr.offset((window as u64) << segment.window_shift);
            Some((from, block))
        });
        at.into_iter().chain(before)
    }

    /// Forgets notes of blocks that are gone, in the windows from `addr` back to the nearest block
    /// that starts there, and returns that one: whoever looks for the block over an address would
    /// pass them by each time. `start` says where a block of the segment starts, and nothing of one
    /// that is gone.
    pub(crate) fn forget_gone(
        &mut self,
        id: SegmentId,
        addr: Addr,
        start: impl Fn(BlockId) -> Option<Addr>,
    ) -> Option<BlockId> {
        let segment = &mut self.slots[id.index()];
        let windows = segment.starts.len().min(segment.window(addr) + 1);
        let (begin, shift) = (segment.span.addr, segment.window_shift);
        let noted = segment.starts[..windows].iter_mut().enumerate().rev();
        for (at, noted) in noted {
            let Some(block) = BlockId::from_index(*noted) else { continue };
            let is_here =
                |start: &Addr| *start >= begin && (start.0 - begin.0) >> shift == at as u64;
            match start(block).filter(is_here) {
                Some(start) if start <= addr => return Some(block),
                Some(_) => {}
                None => *noted = 0,
            }
        }
        None
    }

    #[inline]
    pub(crate) fn fine_in(&self, id: SegmentId, addr: Addr) -> Option<BlockId> {
        let segment = &self[id];
        let unit = addr.0.wrapping_sub(segment.span.addr.0) / BLOCK_UNIT_BYTES;
        BlockId::from_index(*segment.fine_starts.get(unit as usize)?)
    }

    /// Remembers that the block, now handed out, starts at `addr`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn note_start(
        &mut self,
        id: SegmentId,
        addr: Addr,
        size_bytes: u64,
        block: BlockId,
    ) {
        let segment = &mut self.slots[id.index()];
        // What is small is not put into views.
        if self.fine_below_bytes == 0 || segment.is_view() {
            let window = segment.window(addr);
            segment.starts[window] = block.index();
            return;
        }
        let is_small = size_bytes < self.fine_below_bytes;
        let unit = ((addr.0 - segment.span.addr.0) / BLOCK_UNIT_BYTES) as usize;
        let window = unit >> segment.units_shift();
        let fine = segment.fine_starts.slot(unit, is_small);
        *select_unpredictable(is_small, fine, &mut segment.starts[window]) = block.index();
    }

    /// All segments, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> + '_ {
        self.slots
            .iter()
            .enumerate()
            .map(|(at, segment)| (SegmentId(at as u32), segment))
            .filter(|(_, segment)| segment.span.size_bytes > 0)
    }
}

impl std::ops::Index<SegmentId> for Segments {
    type Output = Segment;

    #[inline]
    fn index(&self, id: SegmentId) -> &Segment {
        &self.slots[id.index()]
    }
}

impl std::ops::IndexMut<SegmentId> for Segments {
    #[inline]
    fn index_mut(&mut self, id: SegmentId) -> &mut Segment {
        &mut self.slots[id.index()]
    }
}
