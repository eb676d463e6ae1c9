//! The check of the space: blocks tile their segments, and pages lie behind what has memory.

use crate::error::Unsound;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::heap::space::Space;
use crate::heap::space::block::State;
use crate::heap::space::segment::Segment;

impl Space {
    /// Segments lie apart, the blocks of each tile it, every block is in one, and what is held is
    /// counted.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        let mut spans = Vec::with_capacity(self.segments.len());
        let (mut blocks, mut backed_bytes) = (0, 0);
        for (id, segment) in self.segments.iter() {
            spans.push(segment.span());
            blocks += self.check_segment(id, segment)?;
            backed_bytes += segment.backed_bytes();
        }
        spans.sort_by_key(|span| span.addr);
        for (one, next) in spans.iter().zip(spans.iter().skip(1)) {
            if one.overlaps(*next) {
                return Err(format!("segments {one:?} and {next:?} overlap").into());
            }
        }
        let all = self.blocks.len();
        if blocks != all {
            return Err(format!("{blocks} blocks are in segments, {all} in the arena").into());
        }
        let reserved_bytes = self.reserved_bytes;
        if backed_bytes != reserved_bytes {
            return Err(
                format!("{backed_bytes} bytes are in segments, {reserved_bytes} counted").into()
            );
        }
        Ok(())
    }

    /// A segment's blocks tile it, are linked both ways, agree with it, and are merged. Says how
    /// many there are.
    fn check_segment(&self, id: SegmentId, segment: &Segment) -> Result<usize, Unsound> {
        let (mut prev, mut addr, mut count) = (None, segment.span().addr, 0);
        for block_id in self.chain(id) {
            let block = &self[block_id];
            if block.addr != addr || block.prev != prev {
                return Err(format!("{block_id:?} is not linked to what lies before {addr}").into());
            }
            if block.segment != id || block.expandable != segment.is_expandable() {
                return Err(format!(
                    "{block_id:?} names another segment than {id:?}, or kind of it"
                )
                .into());
            }
            if block.size_bytes == 0 || !block.size_bytes.is_multiple_of(BLOCK_UNIT_BYTES) {
                return Err(format!("{block_id:?} has {} bytes", block.size_bytes).into());
            }
            let merges = matches!(block.state, State::Free | State::Unmapped | State::Hollow);
            let is_like =
                |prev: BlockId| self[prev].state == block.state && self[prev].lane == block.lane;
            if merges && prev.is_some_and(is_like) {
                return Err(
                    format!("{prev:?} and {block_id:?} are {:?}, not merged", block.state).into()
                );
            }
            let is_backed = block.state != State::Unmapped;
            if !is_backed && !segment.is_expandable() {
                return Err(format!("{block_id:?} of a fixed segment is unmapped").into());
            }
            let has_pages = segment.is_expandable();
            let mut pages = if has_pages { segment.pages_over(block.span()) } else { 0..0 };
            let has_memory = is_backed && !segment.is_asleep();
            if let Some(page) = pages.find(|&page| segment.page(page).is_some() != has_memory) {
                return Err(
                    format!("page {page} under {block_id:?}, {:?}, is wrong", block.state).into()
                );
            }
            addr = addr.offset(block.size_bytes);
            (prev, count) = (Some(block_id), count + 1);
        }
        if addr != segment.span().end() {
            return Err(format!("the blocks of {:?} end at {addr}", segment.span()).into());
        }
        Ok(count)
    }
}
