//! The model's memory: segments that are plain lists of blocks.

use std::collections::BTreeMap;

use larder_core::types::{Addr, PageHandle, PoolKind, Span, StreamId};

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unmapped,
    Free,
    /// Given back and not joined yet, as the block of so high a number.
    Deferred(u64),
    Live,
    /// Freed, with so many events not done.
    Waiting(usize),
}

/// A span of addresses of one segment.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) state: State,
    pub(super) requested_bytes: u64,
    /// It counted as oversize when it was handed out.
    pub(super) oversize: bool,
    /// How often its pool had been searched when it became free.
    pub(super) free_since: u64,
    /// The number that was drawn for it, where blocks have numbers.
    pub(super) number: u64,
    /// The other streams that use it.
    pub(super) uses: Vec<StreamId>,
    /// Of those, the ones that use it in a capture only.
    pub(super) captured: Vec<StreamId>,
}

impl Block {
    pub(super) fn new(addr: u64, size_bytes: u64, state: State, free_since: u64) -> Block {
        Block {
            addr,
            size_bytes,
            state,
            requested_bytes: 0,
            oversize: false,
            free_since,
            number: 0,
            uses: Vec::new(),
            captured: Vec::new(),
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.addr + self.size_bytes
    }

    /// Whether a search for room may run through it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Free | State::Unmapped)
    }
}

/// One segment: its blocks lie one behind the other and fill it.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) span: Span,
    /// How many segments were made before it.
    pub(super) number: u64,
    pub(super) stream: StreamId,
    pub(super) kind: PoolKind,
    /// The private pool that it belongs to.
    pub(super) pool: Option<u32>,
    /// The size of its pages, if it is expandable.
    pub(super) page_bytes: Option<u64>,
    /// It counted as oversize when the device gave it.
    pub(super) oversize: bool,
    /// The pages that are mapped, by address.
    pub(super) pages: BTreeMap<u64, PageHandle>,
    pub(super) blocks: Vec<Block>,
}

impl Segment {
    pub(super) fn is_expandable(&self) -> bool {
        self.page_bytes.is_some()
    }

    /// How much of the device's memory it has.
    pub(super) fn held_bytes(&self) -> u64 {
        match self.page_bytes {
            Some(page_bytes) => page_bytes * self.pages.len() as u64,
            None => self.span.size_bytes,
        }
    }

    pub(super) fn is_split(&self) -> bool {
        self.blocks.len() > 1
    }

    /// Whether it is nothing but addresses.
    pub(super) fn is_bare(&self) -> bool {
        !self.is_split() && self.blocks[0].state == State::Unmapped
    }

    /// A block's size, and that of the addresses right behind it that have no memory yet.
    pub(super) fn room_bytes(&self, at: usize) -> u64 {
        let next = self.blocks.get(at + 1).filter(|next| next.state == State::Unmapped);
        self.blocks[at].size_bytes + next.map_or(0, |next| next.size_bytes)
    }

    /// Cuts a block in two; the part behind is a block of its own in the same state.
    pub(super) fn cut(&mut self, at: usize, size_bytes: u64) {
        let block = &mut self.blocks[at];
        let mut rest = block.clone();
        rest.addr += size_bytes;
        rest.size_bytes -= size_bytes;
        block.size_bytes = size_bytes;
        self.blocks.insert(at + 1, rest);
    }

    /// Joins a block with its neighbours in the same state. Says where the whole is now, and how
    /// many and how much was joined to it.
    pub(super) fn join(&mut self, mut at: usize) -> (usize, i64, u64) {
        let state = self.blocks[at].state;
        let (mut count, mut joined_bytes) = (0, 0);
        if self.blocks.get(at + 1).is_some_and(|next| next.state == state) {
            let next = self.blocks.remove(at + 1);
            self.blocks[at].size_bytes += next.size_bytes;
            (count, joined_bytes) = (1, next.size_bytes);
        }
        if at > 0 && self.blocks[at - 1].state == state {
            let here = self.blocks.remove(at);
            at -= 1;
            joined_bytes += self.blocks[at].size_bytes;
            count += 1;
            self.blocks[at].size_bytes += here.size_bytes;
            self.blocks[at].free_since = here.free_since;
            self.blocks[at].number = here.number;
        }
        (at, count, joined_bytes)
    }

    /// The spans of the pages that lie wholly inside a block.
    pub(super) fn pages_inside(&self, at: usize) -> Vec<Span> {
        let page_bytes = self.page_bytes.expect("an expandable segment");
        let block = &self.blocks[at];
        let inside = self.pages.keys().copied();
        inside
            .filter(|&page| page >= block.addr && page + page_bytes <= block.end())
            .map(|page| Span::new(Addr(page), page_bytes))
            .collect()
    }
}
