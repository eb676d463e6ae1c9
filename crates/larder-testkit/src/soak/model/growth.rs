//! How the model gets memory from its device.

use std::collections::BTreeMap;

use larder_core::device::{Device, DeviceError};
use larder_core::types::{Addr, MIB, PageHandle, PoolKind, Span};

use super::segment::{Block, Segment, State};
use super::{Model, NO_FAULTS, Want, change, change_pool};

/// What came of asking the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grown {
    Served(u64),
    NoRoom,
    Rejected,
}

impl Model {
    fn exceeds_cap(&self, more_bytes: u64) -> bool {
        self.cap_bytes.is_some_and(|cap| self.reserved_bytes().saturating_add(more_bytes) > cap)
    }

    /// Asks the device for memory for this request, and serves it from there.
    pub(super) fn grow(&mut self, want: &Want) -> Grown {
        let size_bytes = self.segment_bytes(want);
        let expand = want.expandable;
        if self.is_capped(want) {
            return Grown::NoRoom;
        }
        if self.rejects(want) {
            return Grown::Rejected;
        }
        let served = if expand { self.expand(want) } else { self.alloc_segment(want, size_bytes) };
        served.map_or(Grown::NoRoom, Grown::Served)
    }

    /// Whether the cap refuses the request. Where it counts pages it is asked when they are mapped.
    fn is_capped(&self, want: &Want) -> bool {
        let counts_pages = want.expandable && self.policy.cap_counts_pages;
        !counts_pages && self.exceeds_cap(self.segment_bytes(want))
    }

    /// Whether a rule refuses the request before the device is asked.
    pub(super) fn rejects(&self, want: &Want) -> bool {
        let share = self.config.memory_fraction * self.total_bytes() as f64;
        let passes_share = (self.reserved_bytes() + self.segment_bytes(want)) as f64 > share;
        !self.is_capped(want) && self.config.reject_above_fraction && passes_share
    }

    fn alloc_segment(&mut self, want: &Want, size_bytes: u64) -> Option<u64> {
        let addr = or_no_room(self.device.alloc(size_bytes))?;
        self.add_segment(want, Span::new(addr, size_bytes), None, State::Free);
        change_pool(&mut self.stats.segment, want.kind, 1);
        change_pool(&mut self.stats.reserved_bytes, want.kind, size_bytes as i64);
        self.stats.num_device_alloc += 1;
        if self.config.max_split_bytes.is_some_and(|max| size_bytes >= max) {
            change(&mut self.stats.oversize_segments, 1);
            self.segments.last_mut().expect("it was just added").oversize = true;
        }
        Some(self.hand_out((self.segments.len() - 1, 0), want))
    }

    fn add_segment(&mut self, want: &Want, span: Span, page_bytes: Option<u64>, state: State) {
        let searches = self.searches_of(want.pool, want.kind);
        let (number, drawn) = (self.made, self.draw());
        self.made += 1;
        let first = Block::new(span.addr.0, span.size_bytes, state, searches);
        self.segments.push(Segment {
            span,
            number,
            stream: want.stream,
            kind: want.kind,
            pool: want.pool,
            page_bytes,
            oversize: false,
            pages: BTreeMap::new(),
            blocks: vec![Block { number: drawn, ..first }],
        });
    }

    /// Maps pages at the lowest place with enough room until one block is large enough.
    fn expand(&mut self, want: &Want) -> Option<u64> {
        let start = match self.lowest_room(want) {
            Some(start) => start,
            None => self.reserve_segment(want)?,
        };
        loop {
            let (at, block_at) = self.find(start);
            let block = &self.segments[at].blocks[block_at];
            let free_bytes = if block.state == State::Free { block.size_bytes } else { 0 };
            if free_bytes >= want.size_bytes {
                if let Some(private) = want.pool.and_then(|pool| self.privates.get_mut(&pool)) {
                    private.growths += 1;
                }
                return Some(self.hand_out((at, block_at), want));
            }
            let hole = if free_bytes > 0 { block_at + 1 } else { block_at };
            let hole_bytes = self.segments[at].blocks.get(hole)?.size_bytes;
            self.map((at, hole), hole_bytes.min(want.size_bytes - free_bytes))?;
        }
    }

    /// Where a run of free and unmapped blocks with enough room starts. Looked for from each
    /// unmapped block in the order of addresses, with the free block before it if there is one.
    fn lowest_room(&self, want: &Want) -> Option<u64> {
        let mut starts = Vec::new();
        let mine = |segment: &&Segment| {
            (segment.pool, segment.kind, segment.stream) == (want.pool, want.kind, want.stream)
        };
        for segment in self.segments.iter().filter(mine) {
            for (at, block) in segment.blocks.iter().enumerate() {
                if block.state != State::Unmapped {
                    continue;
                }
                let first = if at > 0 && segment.blocks[at - 1].is_open() { at - 1 } else { at };
                let run = segment.blocks[first..].iter().take_while(|block| block.is_open());
                let room_bytes: u64 = run.map(|block| block.size_bytes).sum();
                if room_bytes >= want.size_bytes {
                    starts.push(segment.blocks[first].addr);
                }
            }
        }
        starts.into_iter().min()
    }

    fn reserve_segment(&mut self, want: &Want) -> Option<u64> {
        let page_bytes = match want.kind {
            PoolKind::Small => 2 * MIB,
            PoolKind::Large => {
                let asked_bytes = self.config.page_bytes.unwrap_or(self.config.large_segment_bytes);
                asked_bytes.div_ceil(2 * MIB) * 2 * MIB
            }
        };
        let total_bytes = self.total_bytes();
        let page_count = (total_bytes + total_bytes / 8).div_ceil(page_bytes);
        let size_bytes = page_count * page_bytes;
        let addr = or_no_room(self.device.reserve(size_bytes))?;
        if want.size_bytes > size_bytes && self.policy.no_pages_beyond_segment {
            self.device.unreserve(Span::new(addr, size_bytes)).expect(NO_FAULTS);
            return None;
        }
        self.add_segment(want, Span::new(addr, size_bytes), Some(page_bytes), State::Unmapped);
        Some(addr.0)
    }

    /// Puts pages behind the first `size_bytes` of an unmapped block, which thereby becomes free.
    fn map(&mut self, (at, block_at): (usize, usize), size_bytes: u64) -> Option<()> {
        let segment = &self.segments[at];
        let page_bytes = segment.page_bytes.expect("an expandable segment");
        let addr = segment.blocks[block_at].addr;
        let mapped_bytes = size_bytes.div_ceil(page_bytes) * page_bytes;
        if self.policy.cap_counts_pages && self.exceeds_cap(mapped_bytes) {
            return None;
        }
        let pages = self.create_pages(mapped_bytes / page_bytes, page_bytes)?;
        let searches = self.searches_of(self.segments[at].pool, self.segments[at].kind);
        let number = self.draw();
        let segment = &mut self.segments[at];
        for (page_addr, page) in (addr..).step_by(page_bytes as usize).zip(pages) {
            self.device.map(Span::new(Addr(page_addr), page_bytes), page).expect(NO_FAULTS);
            segment.pages.insert(page_addr, page);
        }
        self.device.set_access(Span::new(Addr(addr), mapped_bytes)).expect(NO_FAULTS);
        if mapped_bytes < segment.blocks[block_at].size_bytes {
            segment.cut(block_at, mapped_bytes);
            segment.blocks[block_at + 1].number = number;
        }
        segment.blocks[block_at].state = State::Free;
        segment.blocks[block_at].free_since = searches;
        segment.join(block_at);
        let kind = segment.kind;
        change_pool(&mut self.stats.reserved_bytes, kind, mapped_bytes as i64);
        self.stats.num_device_alloc += 1;
        Some(())
    }

    /// All of these pages or none.
    fn create_pages(&self, count: u64, page_bytes: u64) -> Option<Vec<PageHandle>> {
        let mut pages = Vec::new();
        for _ in 0..count {
            let Some(page) = or_no_room(self.device.create_page(page_bytes)) else {
                for page in pages {
                    self.device.release_page(page).expect(NO_FAULTS);
                }
                return None;
            };
            pages.push(page);
        }
        Some(pages)
    }
}

/// What the device gave; none if it has no more.
fn or_no_room<T>(result: Result<T, DeviceError>) -> Option<T> {
    match result {
        Ok(given) => Some(given),
        Err(DeviceError::OutOfMemory) => None,
        Err(error) => unreachable!("{NO_FAULTS}, not because {error}"),
    }
}
