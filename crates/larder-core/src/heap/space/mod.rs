//! Space: the blocks and the segments that they lie in, side by side, and the way from an address
//! to its block. It knows nothing of pools, of requests or of what is recorded.

mod asleep;
pub(super) mod block;
mod check;
mod cover;
mod fine_starts;
mod hints;
pub(crate) mod homes;
pub(super) mod segment;
mod walk;

use std::ops::{Index, IndexMut, Range};

use crate::heap::ids::{BlockId, SegmentId};
use block::{Block, Blocks};
use hints::Hints;
use segment::{Backing, Segment, Segments};

use crate::types::{Addr, PageHandle, Span};

/// Every block and every segment.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    blocks: Blocks,
    segments: Segments,
    hints: Hints,
    /// Bytes held of the device, in segments and pages.
    reserved_bytes: u64,
    /// Bytes that the device is being asked for with the lock dropped.
    asked_bytes: u64,
}

impl Space {
    /// Nothing. `is_shared` says whether blocks of all sizes will share segments.
    pub(in crate::heap) fn new(is_shared: bool) -> Space {
        Space {
            blocks: Blocks::new(),
            segments: Segments::new(is_shared),
            hints: Hints::new(),
            reserved_bytes: 0,
            asked_bytes: 0,
        }
    }

    /// All blocks, for whoever walks an index of them.
    #[inline]
    pub(in crate::heap) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// All segments.
    #[inline]
    pub(in crate::heap) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The slots of the blocks and the first spare one, for whoever does several things in a row.
    #[inline]
    pub(in crate::heap) fn parts(&mut self) -> (&mut [Block], &mut Option<BlockId>) {
        self.blocks.parts()
    }

    /// All slots. Slot 0 is nobody's.
    #[inline]
    pub(in crate::heap) fn slots(&self) -> &[Block] {
        self.blocks.slots()
    }

    /// Sees to it that there is a spare slot.
    #[inline]
    pub(in crate::heap) fn reserve(&mut self) {
        self.blocks.reserve();
    }

    /// Cuts the block in two: it keeps the first `size_bytes`; the rest becomes a new block behind
    /// it.
    pub(in crate::heap) fn split(&mut self, id: BlockId, size_bytes: u64) -> BlockId {
        self.blocks.split(id, size_bytes)
    }

    /// Joins the block `gone`, which lies right behind `id` and is not live, to it.
    pub(in crate::heap) fn join(&mut self, id: BlockId, gone: BlockId) {
        self.blocks.join(id, gone);
    }

    /// Cuts a span out of a block that is in no index. What is left before it keeps the block's
    /// name.
    #[inline]
    pub(in crate::heap) fn cut_out(&mut self, whole: BlockId, span: Span) -> BlockId {
        debug_assert!(self[whole].span().covers(span), "{whole:?} does not hold {span:?}");
        let before_bytes = span.addr.0 - self[whole].addr.0;
        let id = if before_bytes > 0 { self.split(whole, before_bytes) } else { whole };
        if self[id].size_bytes > span.size_bytes {
            self.split(id, span.size_bytes);
        }
        id
    }

    /// The pool's count of searches when the block became free.
    pub(in crate::heap) fn free_since(&self, id: BlockId) -> u64 {
        self.blocks.free_since(id)
    }

    /// The block became free when its pool had counted so many searches.
    pub(in crate::heap) fn set_free_since(&mut self, id: BlockId, searches: u64) {
        self.blocks.set_free_since(id, searches);
    }

    /// Adds a segment that is one block, `whole`, which is in no index and names no segment yet.
    pub(in crate::heap) fn add_segment(&mut self, whole: Block, backing: Backing) -> BlockId {
        assert!(!whole.is_split(), "a segment begins as one block");
        let Block { lane, kind, .. } = whole;
        let span = whole.span();
        let id = self.blocks.add(whole);
        self.blocks[id].segment = self.segments.add(span, lane, kind, backing, id);
        id
    }

    /// Forgets a segment that is one block again.
    pub(in crate::heap) fn remove_segment(&mut self, id: SegmentId) {
        let first = self[id].first();
        assert!(!self[first].is_split(), "{id:?} goes back in pieces");
        self.blocks.remove(first);
        self.segments.remove(id);
    }

    /// Pages were put behind a span of an expandable segment.
    pub(in crate::heap) fn back(&mut self, id: SegmentId, span: Span, pages: &[PageHandle]) {
        let segment = &mut self.segments[id];
        let range = segment.pages_over(span);
        assert_eq!(range.len(), pages.len(), "a page for each place of {span:?}");
        for (index, &page) in range.zip(pages) {
            debug_assert!(segment.page(index).is_none(), "a page lies behind {span:?} already");
            segment.set_page(index, Some(page));
        }
        self.segments.cover(id, span);
    }

    /// Pages of an expandable segment were taken away. Returns where they were.
    pub(in crate::heap) fn unback(&mut self, id: SegmentId, pages: Range<usize>) -> Span {
        let segment = &mut self.segments[id];
        let span = segment.span_of(pages.clone());
        for index in pages {
            assert!(segment.page(index).is_some(), "no page lies behind {span:?}");
            segment.set_page(index, None);
        }
        self.segments.uncover(id, span);
        span
    }

    /// Blocks of a view may start anywhere in it.
    pub(in crate::heap) fn cover_view(&mut self, id: SegmentId) {
        assert!(self[id].is_view(), "{id:?} is no view");
        self.segments.cover(id, self.segments[id].span());
    }

    /// A view's addresses lead nowhere any more.
    pub(in crate::heap) fn uncover_view(&mut self, id: SegmentId) {
        assert!(self[id].is_view(), "{id:?} is no view");
        self.segments.uncover(id, self.segments[id].span());
    }

    /// Remembers that a block that is handed out starts at `addr`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn note_start(
        &mut self,
        id: SegmentId,
        addr: Addr,
        size_bytes: u64,
        block: BlockId,
    ) {
        debug_assert!(self[block].addr == addr, "{block:?} starts elsewhere than at {addr}");
        self.segments.note_start(id, addr, size_bytes, block);
    }

    /// Remembers where a block starts.
    #[inline(never)]
    pub(in crate::heap) fn note_begin(&mut self, id: BlockId) {
        let &Block { segment, addr, size_bytes, .. } = &self[id];
        self.segments.note_start(segment, addr, size_bytes, id);
    }

    /// Which block probably starts at an address, or lies over it, from now on.
    #[inline]
    pub(in crate::heap) fn hint(&mut self, addr: Addr, id: BlockId) {
        self.hints.note(addr, id);
    }

    /// The block that probably starts at an address.
    #[inline]
    pub(in crate::heap) fn hinted(&self, addr: Addr) -> Option<BlockId> {
        self.hints.get(addr)
    }

    /// Bytes held of the device, in segments and pages.
    #[inline]
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// The device gave so many bytes, or took them back.
    pub(in crate::heap) fn count_reserved(&mut self, change_bytes: i64) {
        let reserved_bytes = self.reserved_bytes.checked_add_signed(change_bytes);
        self.reserved_bytes = reserved_bytes.expect("no more goes back than was given");
    }

    /// Bytes held of the device, and those that it is being asked for.
    pub(in crate::heap) fn held_or_asked_bytes(&self) -> u64 {
        self.reserved_bytes + self.asked_bytes
    }

    /// So many bytes are asked of the device with the lock dropped: until there is an answer they
    /// count against the cap, or two requests at once could pass it.
    pub(in crate::heap) fn begin_asking(&mut self, size_bytes: u64) {
        self.asked_bytes += size_bytes;
    }

    /// The answer is there.
    pub(in crate::heap) fn end_asking(&mut self, size_bytes: u64) {
        let asked_bytes = self.asked_bytes.checked_sub(size_bytes);
        self.asked_bytes = asked_bytes.expect("an answer to what was asked");
    }
}

impl Index<BlockId> for Space {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }
}

impl IndexMut<BlockId> for Space {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id]
    }
}

impl Index<SegmentId> for Space {
    type Output = Segment;

    #[inline]
    fn index(&self, id: SegmentId) -> &Segment {
        &self.segments[id]
    }
}

impl IndexMut<SegmentId> for Space {
    #[inline]
    fn index_mut(&mut self, id: SegmentId) -> &mut Segment {
        &mut self.segments[id]
    }
}
