//! Growth: how the heap gets more memory. It says what to ask of the device, and takes in what
//! the device gave.

use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::space::block::{Block, State};
use crate::heap::space::segment::Backing;
use crate::heap::{Want, size};
use crate::record::{Place, Record};
use crate::types::{PageHandle, Span};

/// What a request that no free block can serve should ask of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Nothing: the cap leaves no room.
    Capped,
    /// Nothing: the request would pass the part of the device that is ours, and the settings say
    /// to refuse it at once.
    Rejected,
    /// A segment of this size.
    Segment { size_bytes: u64 },
    /// More pages in an expandable segment; `plan_expansion` says which.
    Expand,
    /// Whatever `plan_move` says.
    Tighten,
}

/// The next step on the way to an expandable block that is large enough.
#[derive(Clone, Debug)]
pub(crate) enum Expansion {
    /// Reserve addresses for a new segment.
    Reserve { size_bytes: u64 },
    /// Reserve addresses and give them back at once: they are too few for the request.
    TooFew { size_bytes: u64 },
    /// Map pages.
    Map(MapPlan),
    /// The free block is large enough.
    Ready(BlockId),
    /// The request is larger than a whole segment.
    NoRoom,
}

/// Pages to create and to map, from the start of an unmapped block on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapPlan {
    block: BlockId,
    /// The addresses to back, a whole number of pages.
    pub(crate) span: Span,
    /// The size of each page.
    pub(crate) page_bytes: u64,
}

impl MapPlan {
    /// How many pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.span.size_bytes / self.page_bytes
    }

    /// The addresses of one of the pages.
    pub(crate) fn page_span(&self, page: u64) -> Span {
        Span::new(self.span.addr.offset(page * self.page_bytes), self.page_bytes)
    }
}

impl Inventory {
    /// What to ask of the device for a request that no free block can serve.
    pub(crate) fn plan_growth(&self, want: &Want) -> Growth {
        let size_bytes = self.segment_bytes(want);
        let expand = want.expandable;
        let pages_are_counted = expand && self.rules.policy().cap_counts_pages;
        if !pages_are_counted && self.exceeds_cap(size_bytes) {
            return Growth::Capped;
        }
        if self.rejects(size_bytes) {
            return Growth::Rejected;
        }
        if !want.expandable {
            Growth::Segment { size_bytes }
        } else if self.rules.puts_into_pages(want) {
            Growth::Tighten
        } else {
            Growth::Expand
        }
    }

    /// Whether a rule refuses to ask the device for so much more.
    pub(in crate::heap) fn rejects(&self, size_bytes: u64) -> bool {
        let held_bytes = self.space.held_or_asked_bytes();
        self.rules.config().reject_above_fraction
            && held_bytes.saturating_add(size_bytes) as f64 > self.rules.share_bytes()
    }

    /// What that rule does not let be passed.
    pub(crate) fn rule_bytes(&self) -> u64 {
        self.rules.share_bytes() as u64
    }

    /// Whether the request can never be met, whatever is given back.
    pub(crate) fn is_hopeless(&self, want: &Want) -> bool {
        want.size_bytes > self.rules.limit_bytes()
    }

    /// What a plain allocation for this request asks of the device. Captures' pools are many, and
    /// what one of them does not use serves nobody else: theirs grow by what is asked for, or by a
    /// part of what they hold for the stream, since no other stream's segments serve it.
    pub(crate) fn segment_bytes(&self, want: &Want) -> u64 {
        if self.rules.policy().exact_segments {
            return size::exact_segment_bytes(want.size_bytes);
        }
        if !self.is_plain_capture(self.pools.pool(want.pool)) {
            return size::segment_bytes(want.size_bytes, self.rules.config());
        }
        let held_bytes = self.held_for(want);
        size::capture_segment_bytes(want.size_bytes, held_bytes, self.rules.config())
    }

    /// What the segments hold that the request could be served from.
    fn held_for(&self, want: &Want) -> u64 {
        let lane = self.pools.lane_at(want.pool, want.stream);
        let served =
            self.space.segments().iter().filter(|(_, segment)| Some(segment.lane()) == lane);
        served.map(|(_, segment)| segment.backed_bytes()).sum()
    }

    /// Whether so many more bytes would pass the cap.
    pub(crate) fn exceeds_cap(&self, more_bytes: u64) -> bool {
        let held_bytes = self.space.held_or_asked_bytes();
        self.rules.cap_bytes().is_some_and(|cap| held_bytes.saturating_add(more_bytes) > cap)
    }

    /// The device gave a segment for this request. It is one block, in no index yet.
    pub(in crate::heap) fn add_fixed(&mut self, want: &Want, span: Span) -> BlockId {
        assert!(span.size_bytes >= want.size_bytes, "{span:?} is less than was asked for");
        let id = self.add_segment(want, span, Backing::Fixed, State::Free);
        self.space.count_reserved(span.size_bytes as i64);
        self.pools.count_reserved(want.pool, span.size_bytes as i64);
        let place = place(want, span);
        let oversize = span.size_bytes >= self.rules.split_limit_bytes();
        let segment = self.space[id].segment;
        self.space[segment].set_oversize(oversize);
        self.record_of(id, Record::SegmentAlloc { place, oversize });
        id
    }

    /// A free block was made for a request: takes it out of the index.
    pub(in crate::heap) fn take_grown(&mut self, want: &Want, id: BlockId) {
        assert!(self.space[id].state == State::Free, "{id:?} was made for a request and is taken");
        self.pools.count_growth(want.pool, 1);
        self.unshelve(id);
    }

    /// Adds a segment that is one block, in no index yet.
    pub(in crate::heap) fn add_segment(
        &mut self,
        want: &Want,
        span: Span,
        backing: Backing,
        state: State,
    ) -> BlockId {
        let expandable = matches!(backing, Backing::Expandable { .. });
        let lane = self.lane_of(want);
        let order = self.first_order(span.addr, self.space.segments().next_serial());
        let whole = Block {
            addr: span.addr,
            size_bytes: span.size_bytes,
            requested_bytes: 0,
            order,
            prev: None,
            next: None,
            shelf_prev: None,
            shelf_next: None,
            bin: 0,
            depth: 0,
            segment: SegmentId::NONE,
            lane,
            kind: want.kind,
            state,
            expandable,
            oversize: false,
            used_elsewhere: false,
        };
        self.space.add_segment(whole, backing)
    }

    /// The next step towards an expandable block for this request. `from` is the block that the
    /// last step gave; the first step looks for the lowest place with enough room.
    pub(crate) fn plan_expansion(&self, want: &Want, from: Option<BlockId>) -> Expansion {
        let Some(start) = from.or_else(|| self.find_room(want)) else {
            let page_bytes = size::page_bytes(want.kind, self.rules.config());
            let reserve = self.rules.reserve_of(want.stream);
            let size_bytes =
                size::reserve_bytes(self.rules.device_total_bytes(), page_bytes, reserve);
            let is_beyond =
                want.size_bytes > size_bytes && self.rules.policy().no_pages_beyond_segment;
            return if is_beyond {
                Expansion::TooFew { size_bytes }
            } else {
                Expansion::Reserve { size_bytes }
            };
        };
        let block = &self.space[start];
        if block.state == State::Unmapped {
            return Expansion::Map(self.plan_map(start, want.size_bytes));
        }
        if block.size_bytes >= want.size_bytes {
            return Expansion::Ready(start);
        }
        match block.next {
            Some(next) => Expansion::Map(self.plan_map(next, want.size_bytes - block.size_bytes)),
            None => Expansion::NoRoom,
        }
    }

    /// The lowest free or unmapped block from which free and unmapped ones in a row add up to the
    /// request. Every such run has an unmapped block, with at most one free one before it.
    fn find_room(&self, want: &Want) -> Option<BlockId> {
        let is_open = |id: BlockId| matches!(self.space[id].state, State::Free | State::Unmapped);
        let lane = self.pools.lane_at(want.pool, want.stream)?;
        self.pools.lane(lane).unmapped().find_map(|(_, hole)| {
            let start = self.space[hole].prev.filter(|&prev| is_open(prev)).unwrap_or(hole);
            let (mut room_bytes, mut at) = (0, Some(start));
            while let Some(id) = at.filter(|&id| is_open(id)) {
                room_bytes += self.space[id].size_bytes;
                if room_bytes >= want.size_bytes {
                    return Some(start);
                }
                at = self.space[id].next;
            }
            None
        })
    }

    pub(in crate::heap) fn plan_map(&self, id: BlockId, size_bytes: u64) -> MapPlan {
        let block = &self.space[id];
        let segment = &self.space[block.segment];
        let part = Span::new(block.addr, size_bytes.min(block.size_bytes));
        let span = segment.span_of(segment.pages_over(part));
        MapPlan { block: id, span, page_bytes: segment.page_bytes() }
    }

    /// Addresses were reserved for a new segment. Returns its one unmapped block.
    pub(crate) fn commit_reserve(&mut self, want: &Want, span: Span) -> BlockId {
        self.commit_reserve_of(want, span, size::page_bytes(want.kind, self.rules.config()))
    }

    /// Addresses were reserved for a new segment whose pages have a size of their own.
    pub(crate) fn commit_reserve_of(
        &mut self,
        want: &Want,
        span: Span,
        page_bytes: u64,
    ) -> BlockId {
        debug_assert!(span.size_bytes.is_multiple_of(page_bytes), "{span:?} ends inside a page");
        let backing = Backing::Expandable { page_bytes, pages: Vec::new() };
        let id = self.add_segment(want, span, backing, State::Unmapped);
        let lane = self.space[id].lane;
        self.pools.lane_mut(lane).add_unmapped(span.addr, id);
        id
    }

    /// The pages of a plan were mapped. Returns the free block that they are part of now.
    pub(crate) fn commit_map(&mut self, plan: &MapPlan, pages: &[PageHandle]) -> BlockId {
        assert!(plan.page_count() == pages.len() as u64, "a page for each place of the plan");
        let (id, span) = (plan.block, plan.span);
        self.forget_unmapped(id);
        if span.size_bytes < self.space[id].size_bytes {
            let rest = self.space.split(id, span.size_bytes);
            self.order_rest(rest);
            // What was asked for last is shown in snapshots: the mapped part keeps it, as in
            // PyTorch.
            self.space[rest].requested_bytes = 0;
            let (lane, addr) = (self.space[rest].lane, self.space[rest].addr);
            self.pools.lane_mut(lane).add_unmapped(addr, rest);
        }
        let segment_id = self.space[id].segment;
        self.space.back(segment_id, span, pages);
        self.merge_contexts(id, State::Free);
        let id = self.merge_and_shelve(id).id;
        self.note_free(id);
        self.space.count_reserved(span.size_bytes as i64);
        let lane = self.pools.lane(self.space[id].lane);
        let (kind, stream, pool) = (lane.kind(), lane.stream(), lane.pool());
        self.pools.count_reserved(pool, span.size_bytes as i64);
        let place = Place { kind, stream, addr: span.addr, size_bytes: span.size_bytes };
        self.record_of(id, Record::SegmentMap { place });
        id
    }
}

fn place(want: &Want, span: Span) -> Place {
    Place { kind: want.kind, stream: want.stream, addr: span.addr, size_bytes: span.size_bytes }
}
