//! Seeking: what a request that no free block can serve gets, and what has to be asked of the device for it.

use std::collections::BTreeSet;

use crate::heap::block::State;
use crate::heap::growth::MapPlan;
use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::pool::Lane;
use crate::heap::tight::stitch::{Gap, Stitch, stitch};
use crate::heap::tight::survey::Survey;
use crate::heap::tight::trail::Spot;
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
        if let Some(told) = self.plan_told(want, open) {
            return told;
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

    /// What the request was told to have by the trail, if it is free.
    fn plan_told(&self, want: &Want, open: &[StreamId]) -> Option<Move> {
        let Spot { segment, addr, .. } = self.tight.trail.told(want.ask())?;
        let waits = self.ground(want, segment, addr)?.waits;
        let is_open = waits.iter().all(|stream| open.contains(stream));
        is_open.then_some(Move::Place { segment, addr, waits })
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
            let before = survey.range(..span.addr).next_back();
            let under = before.into_iter().chain(survey.range(span.addr..span.end()));
            let under =
                under.filter(|(addr, (size_bytes, _))| addr.offset(*size_bytes) > span.addr);
            let lanes = under.map(|(_, &(_, id))| self.blocks[id].lane);
            waits.extend(lanes.filter_map(|lane| self.wait_for(want.lane, lane)));
        }
        waits.into_iter().collect()
    }

    /// The shortest run of free blocks side by side that is long enough, where some are other lanes'.
    fn find_claim(&self, want: &Want, survey: &Survey) -> Option<Move> {
        let is_own = |(_, &(_, id)): (&Addr, &(u64, BlockId))| self.blocks[id].lane == want.lane;
        if survey.iter().all(is_own) {
            return None;
        }
        let fitting =
            self.spans_in(survey).into_iter().filter(|run| run.size_bytes >= want.size_bytes);
        let run = fitting.min_by_key(|run| (run.size_bytes, run.addr))?;
        let span = Span::new(run.addr, want.size_bytes);
        let waits = self.waits_under(want, survey, std::iter::once(span));
        let segment = self.blocks[survey.get(&run.addr)?.1].segment;
        Some(Move::Place { segment, addr: run.addr, waits })
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
            let before = block.prev.and_then(|prev| whole?.get(&self.blocks[prev].addr));
            let before_bytes = before.map_or(0, |&(size_bytes, _)| size_bytes);
            let more_bytes = size_bytes.saturating_sub(before_bytes);
            (more_bytes <= block.size_bytes).then_some(Room { hole, more_bytes })
        });
        rooms.min_by_key(|room| room.more_bytes.next_multiple_of(page_bytes))
    }

    /// What a survey has, as pages see it.
    fn gaps(&self, survey: &Survey) -> Vec<Gap> {
        let gap = |span: Span| {
            let (_, id) = survey[&span.addr];
            let segment = &self.segments[self.blocks[id].segment];
            let (_, &(_, last)) =
                survey.range(..span.end()).next_back().expect("the run has blocks");
            let next = self.blocks[last].next.map(|next| self.blocks[next].state);
            Gap {
                span,
                segment: self.blocks[id].segment,
                origin: segment.span.addr,
                page_bytes: segment.page_bytes(),
                is_end: matches!(next, None | Some(State::Unmapped)),
            }
        };
        self.spans_in(survey).into_iter().map(gap).collect()
    }

    /// The shortest run in a view of the lane's under which everything is free, and that is long enough.
    fn find_window(&self, want: &Want, survey: &Survey) -> Option<Move> {
        let views = self.tight.views.iter().copied();
        let views = views.filter(|&view| self.segments[view].lane == want.lane);
        let runs = views.filter_map(|view| {
            let run = self.free_runs(view, survey).into_iter();
            let fitting = run.filter(|run| run.size_bytes >= want.size_bytes);
            fitting.min_by_key(|run| run.size_bytes).map(|run| (run.size_bytes, view, run.addr))
        });
        let (_, view, addr) = runs.min_by_key(|&(size_bytes, ..)| size_bytes)?;
        let homes = self.homes_under(view, Span::new(addr, want.size_bytes))?;
        let waits = self.waits_under(want, survey, homes.into_iter().map(|home| home.span));
        Some(Move::Place { segment: view, addr, waits })
    }

    /// The runs of a view under which everything is free at home.
    fn free_runs(&self, view: SegmentId, survey: &Survey) -> Vec<Span> {
        let segment = &self.segments[view];
        let (mut runs, mut run) = (Vec::new(), None::<Span>);
        let mut add = |piece: Span| match &mut run {
            Some(run) if run.end() == piece.addr => run.size_bytes += piece.size_bytes,
            _ => runs.extend(run.replace(piece)),
        };
        for part in segment.parts() {
            let Some(page) = part.page else { continue };
            let home = self.page_span(page);
            let shown =
                |addr: u64| segment.span.addr.offset(part.offset_bytes + addr - home.addr.0);
            let first = survey.range(..=home.addr).next_back();
            let blocks = first.into_iter().chain(survey.range(home.addr.offset(1)..home.end()));
            for (&addr, &(size_bytes, _)) in blocks {
                let begin = addr.max(home.addr);
                let end = addr.offset(size_bytes).min(home.end());
                if begin < end {
                    add(Span::new(shown(begin.0), end.0 - begin.0));
                }
            }
        }
        runs.extend(run);
        runs
    }
}
