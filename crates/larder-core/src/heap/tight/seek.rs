//! Seeking: what a request that no free block can serve gets, and what has to be asked of the device for it.

use std::collections::BTreeSet;

use crate::heap::block::{Block, State};
use crate::heap::growth::MapPlan;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::pool::Lane;
use crate::heap::tight::ground::Ground;
use crate::heap::tight::stitch::{Gap, Stitch, stitch};
use crate::heap::tight::survey::{Found, Survey};
use crate::heap::tight::views::ViewPlan;
use crate::heap::tight::{PAGE_MIN_BYTES, page_limit_bytes, page_min_bytes};
use crate::heap::{Heap, Want, size};
use crate::types::{Addr, Span, StreamId};

/// The next step on the way to a block for a request. `waits` are streams whose work so far may still use
/// what the request gets: its own stream has to wait for them first.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// A free block will do.
    Fits,
    /// The request goes to this address: of a view that is there, or at home, where free blocks lie side by
    /// side of which some are other streams'.
    Place { segment: SegmentId, addr: Addr, waits: Vec<StreamId> },
    /// Reserve addresses for a home whose pages have this size.
    Reserve { page_bytes: u64, size_bytes: u64 },
    /// Make pages.
    Map(MapPlan),
    /// Show pages side by side.
    View { plan: ViewPlan, waits: Vec<StreamId> },
    /// The cap leaves no room.
    Capped,
}

/// Where memory can grow for a request: the hole to put pages into, and how much has to be made.
struct Room {
    hole: BlockId,
    more_bytes: u64,
}

impl Heap {
    /// The other streams whose free memory a request could have, if its own waits for them.
    pub(crate) fn neighbours(&self, want: &Want) -> Vec<StreamId> {
        if self.pools.pool(want.pool).owner.is_some() {
            return Vec::new();
        }
        let lanes = self.pools.lanes_of(want.pool).filter(|lane| !lane.has_no_block());
        lanes.filter_map(Lane::living_stream).filter(|&stream| stream != want.stream).collect()
    }

    /// What a request that missed should do next. What it asks for is done, and then it asks again. `open`
    /// are the streams that its own can wait for.
    pub(crate) fn plan_move(&mut self, want: &Want, open: &[StreamId]) -> Move {
        let want = &Want { lane: self.lane_of(want), ..*want };
        if let Some(Ground { segment, span, waits, .. }) = self.plan_told(want)
            && waits.iter().all(|stream| open.contains(stream))
        {
            return Move::Place { segment, addr: span.addr, waits };
        }
        let survey = self.survey(want, open);
        if self.fits(want) {
            return Move::Fits;
        }
        let can_lodge = self.can_lodge(want);
        let claim = self.find_claim(want, &survey);
        if let Some(claim) = claim.clone().filter(|_| want.size_bytes < PAGE_MIN_BYTES) {
            return claim;
        }
        if can_lodge && let Some(window) = self.find_window(want, &survey) {
            return window;
        }
        if let Some(growth) = claim.or_else(|| self.grow_softly(want, &survey)) {
            return growth;
        }
        if !can_lodge {
            return self.grow_hard(want, want.size_bytes, Some(&survey));
        }
        match stitch(&self.gaps(&survey), want.size_bytes) {
            Stitch::Seam(seam) => {
                let homes = seam.pages.iter().map(|&(page, _)| self.page_span(page));
                let waits = self.waits_under(want, &survey, homes);
                Move::View { plan: self.plan_view(seam), waits }
            }
            Stitch::Short { missing_bytes } => self.grow_hard(want, missing_bytes, None),
        }
    }

    /// The streams whose free blocks lie under these spans, and that the request's own has yet to wait for.
    fn waits_under(
        &self,
        want: &Want,
        survey: &Survey,
        spans: impl Iterator<Item = Span>,
    ) -> Vec<StreamId> {
        let mut waits = BTreeSet::new();
        for span in spans {
            let lanes = survey.under(span).map(|found| self.blocks[found.id].lane);
            waits.extend(lanes.filter_map(|lane| self.wait_for(want.lane, lane)));
        }
        waits.into_iter().collect()
    }

    /// The shortest run of free blocks side by side that is long enough, where some are other lanes'.
    fn find_claim(&self, want: &Want, survey: &Survey) -> Option<Move> {
        if survey.iter().all(|found| self.blocks[found.id].lane == want.lane) {
            return None;
        }
        let runs = self.runs_in(survey).into_iter();
        let fitting = runs.filter(|run| run.span.size_bytes >= want.size_bytes);
        let run = fitting.min_by_key(|run| (run.span.size_bytes, run.span.addr))?;
        let (segment, addr) = (self.blocks[run.id].segment, run.span.addr);
        let span = Span::new(addr, want.size_bytes);
        let waits = self.waits_under(want, survey, std::iter::once(span));
        Some(Move::Place { segment, addr, waits })
    }

    /// Whether the request may become a tenant. What is smaller than a page is not worth a view. Private
    /// pools have none: a graph may use its addresses at any time, and a checkpoint knows segments alone.
    fn can_lodge(&self, want: &Want) -> bool {
        let is_private = self.pools.pool(want.pool).owner.is_some();
        want.size_bytes >= PAGE_MIN_BYTES && !is_private
    }

    /// Growth within what the policy allows itself, in the largest pages that are right.
    fn grow_softly(&mut self, want: &Want, survey: &Survey) -> Option<Move> {
        let active = self.herald.active_bytes();
        self.tight.high_bytes = self.tight.high_bytes.max(active.peak as u64);
        let high_bytes = self.tight.high_bytes.max(active.current as u64 + want.size_bytes);
        let soft_bytes = (self.config.tight_soft * high_bytes as f64) as u64;
        let limit_bytes = soft_bytes.max(self.config.tight_floor_bytes);
        let mut page_bytes = page_limit_bytes(&self.config, self.reserved_bytes, want.size_bytes);
        let page_min_bytes = page_min_bytes(&self.config);
        loop {
            let (growth, more_bytes) =
                self.plan_pages(want, want.size_bytes, Some(survey), page_bytes);
            let is_right = page_bytes == page_min_bytes || page_bytes <= more_bytes;
            let held_bytes = self.reserved_bytes + self.asked_bytes + more_bytes;
            if is_right && held_bytes <= limit_bytes && !self.exceeds_cap(more_bytes) {
                return Some(growth);
            }
            if page_bytes == page_min_bytes {
                return None;
            }
            page_bytes /= 2;
        }
    }

    /// Growth by so much, because nothing else is left. If it has to lie in one piece, `whole` is what it
    /// may begin in.
    fn grow_hard(&self, want: &Want, size_bytes: u64, whole: Option<&Survey>) -> Move {
        let page_min_bytes = page_min_bytes(&self.config);
        let mut page_bytes = page_limit_bytes(&self.config, self.reserved_bytes, size_bytes);
        while page_bytes > page_min_bytes.max(size_bytes) {
            page_bytes /= 2;
        }
        loop {
            let (growth, more_bytes) = self.plan_pages(want, size_bytes, whole, page_bytes);
            if !self.exceeds_cap(more_bytes) {
                return growth;
            }
            if page_bytes == page_min_bytes {
                return Move::Capped;
            }
            page_bytes /= 2;
        }
    }

    /// How to grow by pages of this size, and by how much. A piece that has to be whole may begin in the
    /// free block before the new pages, if the request may have that.
    fn plan_pages(
        &self,
        want: &Want,
        size_bytes: u64,
        whole: Option<&Survey>,
        page_bytes: u64,
    ) -> (Move, u64) {
        if let Some(room) = self.find_room_of(want.lane, size_bytes, whole, page_bytes) {
            let plan = self.plan_map(room.hole, room.more_bytes);
            let more_bytes = plan.span.size_bytes;
            return (Move::Map(plan), more_bytes);
        }
        let reserve_bytes = size::reserve_bytes(self.device_total_bytes, page_bytes);
        let more_bytes = size_bytes.next_multiple_of(page_bytes);
        (Move::Reserve { page_bytes, size_bytes: reserve_bytes }, more_bytes)
    }

    /// The hole that takes the fewest new pages, and the lowest of those.
    fn find_room_of(
        &self,
        lane: LaneId,
        size_bytes: u64,
        whole: Option<&Survey>,
        page_bytes: u64,
    ) -> Option<Room> {
        let holes = self.pools.lane(lane).unmapped.values();
        let rooms = holes.filter_map(|&hole| {
            let block = &self.blocks[hole];
            if self.segments[block.segment].page_bytes() != page_bytes {
                return None;
            }
            let before = block.prev.and_then(|prev| whole?.at(self.blocks[prev].addr));
            let before_bytes = before.map_or(0, |found| found.span.size_bytes);
            let more_bytes = size_bytes.saturating_sub(before_bytes);
            (more_bytes <= block.size_bytes).then_some(Room { hole, more_bytes })
        });
        rooms.min_by_key(|room| room.more_bytes.next_multiple_of(page_bytes))
    }

    /// What a survey has, as pages see it.
    fn gaps(&self, survey: &Survey) -> Vec<Gap> {
        let gap = |Found { span, id }: Found| {
            let Block { segment, next, .. } = self.blocks[id];
            let owner = &self.segments[segment];
            let next = next.map(|next| self.blocks[next].state);
            let is_end = matches!(next, None | Some(State::Unmapped));
            let (origin, page_bytes) = (owner.span.addr, owner.page_bytes());
            Gap { span, segment, origin, page_bytes, is_end }
        };
        self.runs_in(survey).into_iter().map(gap).collect()
    }

    /// The shortest run in a view of the lane's under which everything is free, and that is long enough.
    fn find_window(&self, want: &Want, survey: &Survey) -> Option<Move> {
        let views = self.tight.views.iter().copied().filter(|&view| {
            let segment = &self.segments[view];
            segment.lane == want.lane && segment.span.size_bytes >= want.size_bytes
        });
        let runs = views.filter_map(|view| {
            let run = self.shortest_run(view, survey, want.size_bytes)?;
            Some((run.size_bytes, view, run.addr))
        });
        let (_, view, addr) = runs.min_by_key(|&(size_bytes, ..)| size_bytes)?;
        let homes = self.homes_under(view, Span::new(addr, want.size_bytes))?;
        let waits = self.waits_under(want, survey, homes.into_iter().map(|home| home.span));
        Some(Move::Place { segment: view, addr, waits })
    }

    /// The shortest run of a view under which everything is free at home, and that is long enough.
    fn shortest_run(&self, view: SegmentId, survey: &Survey, size_bytes: u64) -> Option<Span> {
        let segment = &self.segments[view];
        let (mut best, mut run) = (None::<Span>, Span::new(segment.span.addr, 0));
        let mut keep = |run: Span| {
            if run.size_bytes >= size_bytes
                && best.is_none_or(|best| run.size_bytes < best.size_bytes)
            {
                best = Some(run);
            }
        };
        for part in segment.parts() {
            let Some(page) = part.page else { continue };
            let home = self.page_span(page);
            let shown = segment.place_of(part).addr;
            for found in survey.under(home) {
                let begin = found.span.addr.max(home.addr);
                let end = found.span.end().min(home.end());
                let piece = Span::new(shown.offset(begin.0 - home.addr.0), end.0 - begin.0);
                if run.end() == piece.addr {
                    run.size_bytes += piece.size_bytes;
                } else {
                    keep(std::mem::replace(&mut run, piece));
                }
            }
        }
        keep(run);
        best
    }
}
