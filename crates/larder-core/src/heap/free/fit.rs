//! Fit: which of the free blocks that are large enough a request gets.
//!
//! What is free on a page that is partly in use is **stranded**: it serves small requests, or is an
//! end of a view, and is no whole page for anybody. So the smallest block is not always the best
//! one. Where it would leave a piece that nobody can use, a larger one may leave whole pages. That
//! costs views now and then, because large blocks are broken into: a program that spent its budget
//! would rather have fewer of those.

use crate::heap::free::free_index::{FreeIndex, Spot};
use crate::heap::space::block::Block;
use crate::heap::space::segment::Segments;

/// So many blocks are looked at, from the smallest one on.
const BLOCKS_TRIED: usize = 16;

/// The first of these blocks of an index, from one on that is large enough, at whose front a
/// request strands the least.
pub(in crate::heap) fn least_stranding(
    slots: &[Block],
    segments: &Segments,
    free: &FreeIndex,
    size_bytes: u64,
    from: Spot,
) -> Spot {
    let mut best: Option<(i64, Spot)> = None;
    let (mut at, mut left) = (Some(from), BLOCKS_TRIED);
    while let Some(spot) = at {
        let block = &slots[spot.id.place()];
        let more_bytes = if block.expandable {
            let owner = &segments[block.segment];
            let begin_bytes = block.addr.0 - owner.span().addr.0;
            stranded_more_bytes(begin_bytes, block.size_bytes, size_bytes, owner.page_bytes())
        } else {
            i64::MAX
        };
        // It takes nothing but what was stranded, and breaks into no page: none strands less.
        if more_bytes == -(size_bytes as i64) {
            return spot;
        }
        if best.map_or(i64::MAX, |(least_bytes, _)| least_bytes) > more_bytes {
            best = Some((more_bytes, spot));
        }
        left -= 1;
        // To find the next one may take longer than to look at it.
        at = if left > 0 { free.next(slots, spot) } else { None };
    }
    best.map_or(from, |(_, spot)| spot)
}

/// How much more is stranded once a free block has a request at its front; what is less is
/// negative. It is never less by more than the request: what is left has no whole page that was
/// none before.
fn stranded_more_bytes(begin_bytes: u64, free_bytes: u64, size_bytes: u64, page_bytes: u64) -> i64 {
    let end_bytes = begin_bytes + free_bytes;
    let before_bytes = stranded_bytes(begin_bytes, end_bytes, page_bytes);
    let after_bytes = stranded_bytes(begin_bytes + size_bytes, end_bytes, page_bytes);
    after_bytes as i64 - before_bytes as i64
}

/// How much of what is free from one place of a segment to another is no whole page.
fn stranded_bytes(begin_bytes: u64, end_bytes: u64, page_bytes: u64) -> u64 {
    let first_bytes = begin_bytes.next_multiple_of(page_bytes);
    let last_bytes = end_bytes - end_bytes % page_bytes;
    end_bytes - begin_bytes - last_bytes.saturating_sub(first_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_whole_page_is_stranded() {
        assert_eq!(stranded_bytes(0, 300, 100), 0);
        assert_eq!(stranded_bytes(30, 250, 100), 120, "a head of 70 and a tail of 50");
        assert_eq!(stranded_bytes(30, 190, 100), 160, "no whole page");
        assert_eq!(stranded_bytes(30, 30, 100), 0);
    }

    #[test]
    fn a_request_strands_what_it_leaves_and_takes_what_was_stranded() {
        assert_eq!(stranded_more_bytes(0, 100, 80, 100), 20, "a page less, and what is left of it");
        assert_eq!(
            stranded_more_bytes(20, 380, 80, 100),
            -80,
            "the head, and three pages are left"
        );
        assert_eq!(stranded_more_bytes(50, 100, 100, 100), -100, "all of it");
    }

    /// So the search ends at a block where it is less by the whole request.
    #[test]
    fn a_request_takes_no_more_of_what_was_stranded_than_it_needs() {
        let page_bytes = 8;
        for begin_bytes in 0..2 * page_bytes {
            for free_bytes in 1..4 * page_bytes {
                for size_bytes in 1..=free_bytes {
                    let more_bytes =
                        stranded_more_bytes(begin_bytes, free_bytes, size_bytes, page_bytes);
                    assert!(
                        more_bytes >= -(size_bytes as i64),
                        "{size_bytes} of {free_bytes} bytes from {begin_bytes} on"
                    );
                }
            }
        }
    }
}
