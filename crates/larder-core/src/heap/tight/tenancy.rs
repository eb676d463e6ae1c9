//! Tenancy: blocks that live in views, and the home blocks that are lent to them.

use std::collections::{HashMap, HashSet};

use crate::heap::block::{Block, State};
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::tight::survey::{Survey, blocks_under};
use crate::heap::tight::trail::{Ask, Spot};
use crate::heap::{Heap, Want};
use crate::record::{Place, Record};
use crate::types::{Addr, Span, StreamId};

/// What came of following the trail.
pub(crate) enum Followed {
    /// The request has its block.
    Taken(Addr),
    /// What it was told to have is free, but another lane's: it has to wait for that one's stream first.
    Elsewhere,
    /// It was told nothing, or nothing that is free.
    Lost,
}

impl Want {
    /// The request as the trail knows it.
    #[inline]
    pub(super) fn ask(&self) -> Ask {
        Ask { size_bytes: self.size_bytes, lane: self.lane }
    }
}

impl Heap {
    /// The request goes where it was put the last time, if that is free.
    #[inline]
    pub(in crate::heap) fn follow_trail<const PLAIN: bool>(&mut self, want: &Want) -> Followed {
        let ask = want.ask();
        // A request that missed on the usual path comes once more, and is one step all the same.
        let is_again = !PLAIN && self.tight.missed.take() == Some(ask);
        let spot = if is_again { self.tight.trail.told(ask) } else { self.tight.trail.walk(ask) };
        let Some(spot) = spot else { return Followed::Lost };
        match self.take_spot::<PLAIN>(want, spot) {
            Some(addr) => Followed::Taken(addr),
            None if self.pools.has_many_lanes(want.pool) => {
                let followed = self.look_elsewhere(want, spot);
                if PLAIN && matches!(followed, Followed::Elsewhere) {
                    self.note_miss(want);
                }
                followed
            }
            None => Followed::Lost,
        }
    }

    /// A request finds nothing on the usual path, and will come again.
    #[cold]
    pub(in crate::heap) fn note_miss(&mut self, want: &Want) {
        self.tight.missed = Some(want.ask());
    }

    /// Whether what a request was told to have is free, though not its own lane's.
    #[cold]
    #[inline(never)]
    fn look_elsewhere(&self, want: &Want, spot: Spot) -> Followed {
        let neighbours = self.neighbours(want);
        let is_free = self.place_told(want, spot, &self.survey(want, &neighbours)).is_some();
        if is_free { Followed::Elsewhere } else { Followed::Lost }
    }

    /// Where the bytes are at home that a request was told to have, if all of them are in a survey.
    pub(super) fn place_told(&self, want: &Want, spot: Spot, survey: &Survey) -> Option<Vec<Span>> {
        // Where blocks are not split, the smallest that will do may be another one by now.
        if !want.splits {
            return None;
        }
        let span = Span::new(spot.addr, want.size_bytes);
        let segment =
            self.segments.get(spot.segment).filter(|segment| segment.span.covers(span))?;
        let homes = if segment.is_view() {
            let door = self.chain(spot.segment).find(|&id| self.blocks[id].span().covers(span))?;
            if segment.lane != want.lane || self.blocks[door].state != State::Hollow {
                return None;
            }
            self.homes_under(spot.segment, span)?
        } else {
            vec![span]
        };
        homes.iter().all(|&home| blocks_under(survey, home).is_some()).then_some(homes)
    }

    /// Notes where the last request was put: at an address, cut out of the free block that began there.
    #[inline]
    pub(in crate::heap) fn note_step(&mut self, want: &Want, id: BlockId) {
        let Block { segment, addr, .. } = self.blocks[id];
        self.tight.trail.note(want.ask(), Spot { segment, addr, from: addr });
    }

    /// Puts a request at a place of a view, if all bytes under it are its own lane's and free.
    #[inline(never)]
    pub(crate) fn take_window<const PLAIN: bool>(
        &mut self,
        want: &Want,
        view: SegmentId,
        addr: Addr,
    ) -> Option<Addr> {
        self.take_window_from::<PLAIN>(want, view, addr, &[])
    }

    /// The same, if all bytes under it are its own lane's or of streams that its own waits for.
    pub(crate) fn take_window_from<const PLAIN: bool>(
        &mut self,
        want: &Want,
        view: SegmentId,
        addr: Addr,
        open: &[StreamId],
    ) -> Option<Addr> {
        let span = Span::new(addr, want.size_bytes);
        self.segments.get(view).filter(|segment| segment.is_view())?;
        let want = &Want { lane: self.lane_of(want), ..*want };
        if self.segments[view].lane != want.lane || !self.segments[view].span.covers(span) {
            return None;
        }
        let door = self.chain(view).find(|&id| self.blocks[id].span().covers(span))?;
        let homes = self.homes_under(view, span)?;
        let mut survey = self.survey(want, open);
        if self.blocks[door].state != State::Hollow
            || !homes.iter().all(|&home| blocks_under(&survey, home).is_some())
        {
            return None;
        }
        let mut lent = Vec::with_capacity(homes.len());
        for home in homes {
            let id = self.claim(want, &mut survey, home)?;
            self.blocks[id].state = State::Lent;
            lent.push(id);
        }
        let door = self.cut_out(door, span);
        let block = &mut self.blocks[door];
        (block.state, block.requested_bytes) = (State::Live, want.requested_bytes);
        block.used_elsewhere = true;
        let oversize = want.size_bytes >= self.split_limit_bytes;
        block.oversize = oversize;
        self.tight.tenants.insert(door, lent);
        self.tight.note_use(view);
        self.segments.note_start(view, addr, want.size_bytes, door);
        let place =
            Place { kind: want.kind, stream: want.stream, addr, size_bytes: want.size_bytes };
        let requested_bytes = want.requested_bytes;
        self.record_where::<PLAIN>(door, Record::Alloc { place, requested_bytes, oversize });
        self.note_step(want, door);
        Some(addr)
    }

    /// Puts a request into free blocks side by side, of its own lane and of streams that its own waits for.
    pub(crate) fn take_claim(
        &mut self,
        want: &Want,
        span: Span,
        open: &[StreamId],
    ) -> Option<Addr> {
        let want = &Want { lane: self.lane_of(want), ..*want };
        let mut survey = self.survey(want, open);
        let first = *blocks_under(&survey, span)?.first()?;
        let from = self.blocks[first].addr;
        let id = self.claim(want, &mut survey, span)?;
        let addr = self.hand_out(id, want);
        self.tight.trail.note(want.ask(), Spot { segment: self.blocks[id].segment, addr, from });
        Some(addr)
    }

    /// Where the bytes of a view are at home, in order; none if the view does not show them all.
    pub(super) fn homes_under(&self, view: SegmentId, span: Span) -> Option<Vec<Span>> {
        let segment = &self.segments[view];
        let mut homes: Vec<Span> = Vec::new();
        for part in segment.parts() {
            let shown = segment.place_of(part);
            let (begin, end) = (shown.addr.max(span.addr), shown.end().min(span.end()));
            if begin >= end {
                continue;
            }
            let page = part.page?;
            let home = self.page_span(page);
            let addr = home.addr.offset(begin.0 - shown.addr.0);
            // Where one segment ends another may begin.
            match homes.last_mut() {
                Some(last) if last.end() == addr && page.index > 0 => {
                    last.size_bytes += end.0 - begin.0;
                }
                _ => homes.push(Span::new(addr, end.0 - begin.0)),
            }
        }
        Some(homes)
    }

    /// Takes a span out of the free blocks that it lies in, as one block of the request's lane, in no index.
    fn claim(&mut self, want: &Want, survey: &mut Survey, span: Span) -> Option<BlockId> {
        let mut claimed: Option<BlockId> = None;
        for whole in blocks_under(survey, span)? {
            let whole_span = self.blocks[whole].span();
            self.unshelve(whole);
            survey.remove(&whole_span.addr);
            let begin = whole_span.addr.max(span.addr);
            let end = whole_span.end().min(span.end());
            let id = self.cut_out(whole, Span::new(begin, end.0 - begin.0));
            let before = Some(whole).filter(|&whole| whole != id);
            let behind = self.blocks[id].next.filter(|_| whole_span.end() > end);
            for rest in [before, behind].into_iter().flatten() {
                self.shelve(rest);
                survey.insert(self.blocks[rest].addr, (self.blocks[rest].size_bytes, rest));
            }
            self.blocks[id].lane = want.lane;
            match claimed {
                Some(first) => self.blocks.join(first, id),
                None => claimed = Some(id),
            }
        }
        claimed
    }

    /// Cuts a span out of a block that is in no index. What is left before it keeps the block's name.
    fn cut_out(&mut self, whole: BlockId, span: Span) -> BlockId {
        let before_bytes = span.addr.0 - self.blocks[whole].addr.0;
        let id = if before_bytes > 0 { self.blocks.split(whole, before_bytes) } else { whole };
        if self.blocks[id].size_bytes > span.size_bytes {
            self.blocks.split(id, span.size_bytes);
        }
        id
    }

    /// For each home block that is lent, who has it, and how much of it the program asked for.
    pub(in crate::heap) fn tenants_by_home(&self) -> HashMap<BlockId, (BlockId, u64)> {
        let mut tenants = HashMap::new();
        for (&id, homes) in &self.tight.tenants {
            let mut left_bytes = self.blocks[id].requested_bytes;
            for &home in homes {
                let requested_bytes = left_bytes.min(self.blocks[home].size_bytes);
                left_bytes -= requested_bytes;
                tenants.insert(home, (id, requested_bytes));
            }
        }
        tenants
    }

    /// Whether a block lives in a view.
    pub(in crate::heap) fn is_tenant(&self, id: BlockId) -> bool {
        self.segments[self.blocks[id].segment].is_view()
    }

    /// A tenant is gone: what was lent to it is free again.
    pub(in crate::heap) fn vacate(&mut self, id: BlockId) {
        for home in self.tight.tenants.remove(&id).unwrap_or_default() {
            let whole = self.merge_and_shelve::<false>(home).id;
            self.note_free(whole);
        }
        let block = &mut self.blocks[id];
        (block.state, block.used_elsewhere) = (State::Hollow, false);
        let is_hollow = |id: &BlockId| self.blocks[*id].state == State::Hollow;
        let (prev, next) = (self.blocks[id].prev.filter(is_hollow), self.blocks[id].next);
        if let Some(next) = next.filter(is_hollow) {
            self.blocks.join(id, next);
        }
        if let Some(prev) = prev {
            self.blocks.join(prev, id);
        }
    }

    /// Says in one sentence what is wrong with tenants and views, if anything is: what is lent to a tenant is
    /// what its view shows under it, all that is lent is lent to one tenant, and views and pages agree on
    /// what is shown.
    pub(in crate::heap) fn check_tenants(&self) -> Result<(), String> {
        let mut lent = HashSet::new();
        for (&id, homes) in &self.tight.tenants {
            let block = &self.blocks[id];
            if !self.is_tenant(id) || !matches!(block.state, State::Live | State::Waiting) {
                return Err(format!("{id:?} is listed as a tenant and is none"));
            }
            let spans: Vec<Span> = homes.iter().map(|&home| self.blocks[home].span()).collect();
            if self.homes_under(block.segment, block.span()).as_ref() != Some(&spans) {
                return Err(format!("{id:?} was lent {spans:?}, which is not what lies under it"));
            }
            for &home in homes {
                if self.blocks[home].state != State::Lent || !lent.insert(home) {
                    return Err(format!("{home:?} is lent to {id:?} and to another, or not lent"));
                }
            }
        }
        let mut shown = HashMap::new();
        for (id, segment) in self.segments.iter() {
            if segment.is_view() != self.tight.views.contains(&id) {
                return Err(format!("{id:?} is a view that is not listed, or listed and none"));
            }
            for page in segment.parts().iter().filter_map(|part| part.page) {
                if self.segments[page.segment].page(page.index).is_none() {
                    return Err(format!("{id:?} shows {page:?}, which is gone"));
                }
                *shown.entry(page).or_insert(0) += 1;
            }
            for block in self.chain(id) {
                let state = self.blocks[block].state;
                let is_at_home = (state == State::Lent) == lent.contains(&block);
                let is_in_view = !segment.is_view()
                    || state == State::Hollow
                    || self.tight.tenants.contains_key(&block);
                if !is_at_home || !is_in_view || (state == State::Hollow && !segment.is_view()) {
                    return Err(format!("{block:?} is {state:?}, and nobody knows of it"));
                }
            }
        }
        if shown == self.tight.shown {
            Ok(())
        } else {
            Err("pages are shown otherwise than counted".to_owned())
        }
    }
}
