//! The survey: what is free and may be had, by address, whosoever it is.

use crate::heap::ids::BlockId;
use crate::heap::pool::Lane;
use crate::heap::{Heap, Want};
use crate::types::{Addr, Span, StreamId};

/// Free blocks by address: all that a request may have.
#[derive(Debug)]
pub(super) struct Survey {
    blocks: Vec<Found>,
}

/// A free block of a survey.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) span: Span,
    pub(super) id: BlockId,
}

impl Survey {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Found> + '_ {
        self.blocks.iter()
    }

    /// The block that starts at an address.
    pub(super) fn at(&self, addr: Addr) -> Option<&Found> {
        let at = self.blocks.binary_search_by_key(&addr, |block| block.span.addr).ok()?;
        Some(&self.blocks[at])
    }

    /// The blocks that have a byte of a span.
    pub(super) fn under(&self, span: Span) -> impl Iterator<Item = &Found> + '_ {
        let first = self.blocks.partition_point(|block| block.span.end() <= span.addr);
        self.blocks[first..].iter().take_while(move |block| block.span.addr < span.end())
    }
}

impl Heap {
    /// Free blocks side by side in one segment, whosoever they are, with the last block of each such run.
    /// Where one segment ends another may begin, and no block reaches from one into the other.
    pub(super) fn runs_in(&self, survey: &Survey) -> Vec<Found> {
        let mut runs: Vec<Found> = Vec::new();
        for &Found { span, id } in survey.iter() {
            let is_first = self.segments[self.blocks[id].segment].span.addr == span.addr;
            match runs.last_mut() {
                Some(run) if run.span.end() == span.addr && !is_first => {
                    run.span.size_bytes += span.size_bytes;
                    run.id = id;
                }
                _ => runs.push(Found { span, id }),
            }
        }
        runs
    }

    /// The free blocks that a request may have: its own lane's, those of lanes whose streams are gone or
    /// can be waited for.
    pub(super) fn survey(&self, want: &Want, open: &[StreamId]) -> Survey {
        let is_private = self.pools.pool(want.pool).owner.is_some();
        let is_open = |lane: &Lane| match lane.living_stream() {
            Some(stream) => stream == want.stream || open.contains(&stream),
            None => !is_private,
        };
        let lanes = self.pools.lanes_of(want.pool).filter(|lane| is_open(lane));
        let blocks = lanes.flat_map(|lane| lane.free_blocks(&self.blocks));
        let blocks = blocks.filter(|&id| self.blocks[id].expandable);
        let mut blocks: Vec<Found> =
            blocks.map(|id| Found { span: self.blocks[id].span(), id }).collect();
        blocks.sort_unstable_by_key(|block| block.span.addr);
        Survey { blocks }
    }
}
