//! Lending: blocks that live in views, and the home blocks that are lent to them.

use std::collections::{HashMap, HashSet};

use crate::heap::ids::{BlockId, LaneId, SegmentId};
use crate::heap::paged::ground::{Ground, Site};
use crate::heap::paged::request_log::{Ask, Spot};
use crate::heap::paged::{Attempt, Miss};
use crate::heap::space::block::{Block, State};
use crate::heap::space::homes::Home;
use crate::heap::space::segment::Segment;
use crate::heap::{Heap, Want};
use crate::record::{Place, Record};
use crate::types::{Addr, Span, StreamId};

/// What came of following the request log.
pub(crate) enum Followed {
    /// The request has its block.
    Taken(Addr),
    /// What it was told to have is free, but another lane's: it has to wait for that one's stream
    /// first.
    OthersHave,
    /// It was told nothing, or nothing that is free.
    Lost,
}

impl Want {
    /// The request as the request log knows it.
    #[inline]
    pub(super) fn ask(&self) -> Ask {
        Ask::new(self.size_bytes)
    }
}

impl Heap {
    /// The request goes where it was put the last time, if that is free.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Then it is known which attempt it is.
    pub(in crate::heap) fn follow_log(&mut self, want: &Want, attempt: Attempt) -> Followed {
        let ask = want.ask();
        // A request that missed on the fast path comes once more, and is one entry all the same.
        let way = self.paged.way(want.lane);
        let is_first = attempt == Attempt::First;
        let again = if is_first { None } else { way.missed.take() };
        let again = again.filter(|miss| miss.ask == ask);
        if again.is_some_and(|miss| miss.is_others) {
            return Followed::OthersHave;
        }
        let told = if again.is_some() { way.log.told(ask) } else { way.log.walk(want.size_bytes) };
        let in_cycle = is_first && way.log.repeats();
        let Some(spot) = told else {
            self.coalesce();
            return Followed::Lost;
        };
        if in_cycle {
            self.begin_in_place();
        }
        self.coalesce();
        match self.take_spot(want, spot) {
            Some(addr) => Followed::Taken(addr),
            None => self.take_told_place(want, spot, attempt),
        }
    }

    /// A request finds nothing on the fast path, and will come again.
    #[cold]
    pub(in crate::heap) fn note_miss(&mut self, want: &Want) {
        self.paged.way(want.lane).missed = Some(Miss { ask: want.ask(), is_others: false });
    }

    /// The request that just missed on the fast path, if the program repeats itself and what the
    /// request was told to have is another lane's. It needs no more than to wait for that one's
    /// stream, and nothing has to be merged for it.
    pub(crate) fn missed_for_others(
        &mut self,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Option<Want> {
        if !self.deferred.is_in_place() {
            return None;
        }
        let want = self.want_rounded(requested_bytes, stream);
        let missed = self.paged.way(want.lane).missed?;
        (missed.is_others && missed.ask == want.ask()).then_some(want)
    }

    /// A request that missed on the fast path does not come again.
    pub(crate) fn forget_miss(&mut self, want: &Want) {
        self.paged.way(want.lane).missed = None;
    }

    /// The request goes where it was put the last time, if that is in a view, or not its own lane's
    /// alone.
    #[inline(never)]
    pub(super) fn take_told_place(
        &mut self,
        want: &Want,
        spot: Spot,
        attempt: Attempt,
    ) -> Followed {
        let is_view = self.space.segment(spot.segment).is_some_and(Segment::is_view);
        if !is_view && !self.pools.had_many_lanes(want.pool) {
            return Followed::Lost;
        }
        let Some(ground) = self.ground_told(want, spot) else { return Followed::Lost };
        if ground.waits.is_empty() {
            return self.settle_on(want, &ground).map_or(Followed::Lost, Followed::Taken);
        }
        if attempt == Attempt::First {
            self.note_others_have(want);
        }
        Followed::OthersHave
    }

    /// A request was told to have what is probably another lane's, and will come again.
    pub(super) fn note_others_have(&mut self, want: &Want) {
        self.paged.way(want.lane).missed = Some(Miss { ask: want.ask(), is_others: true });
    }

    /// The free block that the last request is cut out of is noted among the small ones, or among
    /// the others.
    #[cold]
    #[inline(never)]
    pub(in crate::heap) fn note_kind(&mut self, lane: LaneId, is_small: bool) {
        self.paged.way(lane).log.note_kind(is_small);
    }

    /// The request goes where nobody should be led.
    pub(in crate::heap) fn forget_place(&mut self, want: &Want) {
        let lane = self.lane_of(want);
        self.paged.way(lane).log.forget_place(want.ask());
    }

    /// Notes where the last request was put: at an address, cut out of the free block that began
    /// there.
    #[inline]
    pub(in crate::heap) fn note_entry(&mut self, want: &Want, id: BlockId) {
        let Block { segment, addr, .. } = self.space[id];
        self.note_place(want, segment, addr, addr);
    }

    /// Notes where the last request was put: at an address, cut out of the free block that began at
    /// another.
    #[inline]
    pub(super) fn note_place(&mut self, want: &Want, segment: SegmentId, addr: Addr, from: Addr) {
        let spot = Spot::new(segment, self.space[segment].span.addr, addr, from);
        self.paged.way(want.lane).log.note(want.ask(), spot);
    }

    /// Where a request was told to go, if that is free.
    pub(crate) fn plan_told(&mut self, want: &Want) -> Option<Ground> {
        let want = &Want { lane: self.lane_of(want), ..*want };
        let spot = self.paged.way(want.lane).log.told(want.ask())?;
        self.ground_told(want, spot)
    }

    /// The request's stream waits for those that had the place that it was told.
    pub(crate) fn take_told_ground(&mut self, want: &Want, ground: &Ground) -> Option<Addr> {
        let want = &Want { lane: self.lane_of(want), ..*want };
        let addr = self.settle_on(want, ground)?;
        if !ground.waits.is_empty() {
            self.paged.way(want.lane).log.note_others();
        }
        Some(addr)
    }

    /// Puts a request at a place, in a view or at home, if all bytes under it are free and its
    /// stream waits for whoever had them.
    pub(crate) fn take_place(
        &mut self,
        want: &Want,
        segment: SegmentId,
        addr: Addr,
    ) -> Option<Addr> {
        let want = &Want { lane: self.lane_of(want), ..*want };
        let ground = self.ground(want, segment, addr).filter(|ground| ground.waits.is_empty())?;
        self.settle_on(want, &ground)
    }

    fn settle_on(&mut self, want: &Want, ground: &Ground) -> Option<Addr> {
        let &Ground { segment, span, ref site, .. } = ground;
        let first = match *site {
            Site::View { door, ref homes } => {
                return self.place_in_view(want, ground, door, homes);
            }
            Site::Home(first) => first,
        };
        let from = self.space[self.space.first_free(first)].addr;
        let id = self.claim(want, first, span)?;
        let addr = self.hand_out(id, want);
        self.note_place(want, segment, addr, from);
        Some(addr)
    }

    /// A request becomes a block in a view.
    fn place_in_view(
        &mut self,
        want: &Want,
        ground: &Ground,
        door: BlockId,
        homes: &[Home],
    ) -> Option<Addr> {
        let &Ground { segment: view, span, .. } = ground;
        let mut lent = Vec::with_capacity(homes.len());
        for &home in homes {
            let first = self.space.block_over(home.segment, home.span.addr)?;
            let id = self.claim(want, first, home.span)?;
            self.space[id].state = State::Lent;
            lent.push(id);
        }
        let door = self.space.cut_out(door, span);
        let block = &mut self.space[door];
        (block.state, block.requested_bytes) = (State::Live, want.requested_bytes);
        block.used_elsewhere = true;
        let oversize = want.size_bytes >= self.split_limit_bytes;
        block.oversize = oversize;
        self.paged.in_views.insert(door, lent);
        self.paged.note_use(view);
        let Span { addr, size_bytes } = span;
        self.space.note_start(view, addr, size_bytes, door);
        let place = Place { kind: want.kind, stream: want.stream, addr, size_bytes };
        let requested_bytes = want.requested_bytes;
        self.record_of(door, Record::Alloc { place, requested_bytes, oversize });
        self.note_entry(want, door);
        Some(addr)
    }

    /// Takes bytes out of the free blocks that they lie in, of which this is the first, as one
    /// block of the request's lane, in no index.
    fn claim(&mut self, want: &Want, first: BlockId, span: Span) -> Option<BlockId> {
        let mut claimed: Option<BlockId> = None;
        let mut at = Some(first);
        while let Some(whole) = at.filter(|&id| self.space[id].addr < span.end()) {
            let whole_span = self.space[whole].span();
            at = self.space[whole].next;
            let was_deferred = self.space[whole].state == State::Deferred;
            if !was_deferred {
                self.unshelve(whole);
            }
            let begin = whole_span.addr.max(span.addr);
            let end = whole_span.end().min(span.end());
            let id = self.space.cut_out(whole, Span::new(begin, end.0 - begin.0));
            let before = Some(whole).filter(|&whole| whole != id);
            let behind = self.space[id].next.filter(|_| whole_span.end() > end);
            for rest in [before, behind].into_iter().flatten() {
                if was_deferred {
                    self.defer_free(rest);
                } else {
                    self.shelve(rest);
                }
            }
            self.space[id].lane = want.lane;
            match claimed {
                Some(first) => self.space.join(first, id),
                None => claimed = Some(id),
            }
        }
        claimed
    }

    /// A block in a view is gone: what was lent to it is free again.
    pub(in crate::heap) fn vacate(&mut self, id: BlockId) {
        for home in self.paged.in_views.remove(&id).unwrap_or_default() {
            if self.deferred.is_in_place() {
                let lane = self.space[home].lane;
                self.pools.lane_mut(lane).frees += 1;
                self.defer_free(home);
                continue;
            }
            let whole = self.merge_and_shelve(home).id;
            self.note_free(whole);
        }
        let block = &mut self.space[id];
        (block.state, block.used_elsewhere) = (State::Hollow, false);
        let is_hollow = |id: &BlockId| self.space[*id].state == State::Hollow;
        let (prev, next) = (self.space[id].prev.filter(is_hollow), self.space[id].next);
        if let Some(next) = next.filter(is_hollow) {
            self.space.join(id, next);
        }
        if let Some(prev) = prev {
            self.space.join(prev, id);
        }
    }

    /// Says in one sentence what is wrong with blocks in views and views, if anything is: what is
    /// lent to a block in a view is what its view shows under it, all that is lent is lent to one
    /// block in a view, and views and pages agree on what is shown.
    pub(in crate::heap) fn check_in_views(&self) -> Result<(), String> {
        let mut lent = HashSet::new();
        for (&id, homes) in &self.paged.in_views {
            let block = &self.space[id];
            if !self.space.is_in_view(id) || !matches!(block.state, State::Live | State::Waiting) {
                return Err(format!("{id:?} is listed as in a view and is not"));
            }
            let home = |&home: &BlockId| {
                let Block { segment, addr, size_bytes, .. } = self.space[home];
                Home { segment, span: Span::new(addr, size_bytes) }
            };
            let lent_homes: Vec<Home> = homes.iter().map(home).collect();
            if self.space.homes_under(block.segment, block.span()).as_ref() != Some(&lent_homes) {
                return Err(format!(
                    "{id:?} was lent {lent_homes:?}, which is not what lies under it"
                ));
            }
            for &home in homes {
                if self.space[home].state != State::Lent || !lent.insert(home) {
                    return Err(format!("{home:?} is lent to {id:?} and to another, or not lent"));
                }
            }
        }
        let mut shown = HashMap::new();
        for (id, segment) in self.space.segments().iter() {
            if segment.is_view() != self.paged.views.contains(&id) {
                return Err(format!("{id:?} is a view that is not listed, or listed and none"));
            }
            for page in segment.parts().iter().filter_map(|part| part.page) {
                if self.space[page.segment].page(page.index).is_none() {
                    return Err(format!("{id:?} shows {page:?}, which is gone"));
                }
                *shown.entry(page).or_insert(0) += 1;
            }
            for block in self.space.chain(id) {
                let state = self.space[block].state;
                let is_at_home = (state == State::Lent) == lent.contains(&block);
                let is_in_view = !segment.is_view()
                    || state == State::Hollow
                    || self.paged.in_views.contains_key(&block);
                if !is_at_home || !is_in_view || (state == State::Hollow && !segment.is_view()) {
                    return Err(format!("{block:?} is {state:?}, and nobody knows of it"));
                }
            }
        }
        let shown_pages: u64 = shown.values().map(|&times| u64::from(times)).sum();
        if shown == self.paged.shown && shown_pages == self.paged.shown_pages {
            Ok(())
        } else {
            Err("pages are shown otherwise than counted".to_owned())
        }
    }
}
