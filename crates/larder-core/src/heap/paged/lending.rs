//! Lending: blocks that live in views, and the home blocks that are lent to them.

use std::collections::{HashMap, HashSet};

use crate::error::Unsound;
use crate::heap::Want;
use crate::heap::ids::{BlockId, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Paged;
use crate::heap::paged::ground::{Ground, Site, ground, ground_told};
use crate::heap::space::block::{Block, State};
use crate::heap::space::homes::Home;
use crate::record::{Place, Record};
use crate::types::{Addr, Span};

impl Paged {
    /// Where a request was told to go, if that is free.
    pub(crate) fn plan_told(&mut self, inventory: &mut Inventory, want: &Want) -> Option<Ground> {
        let want = &Want { lane: inventory.lane_of(want), ..*want };
        let spot = self.way(want.lane).log.told(want.ask())?;
        ground_told(inventory, want, spot)
    }

    /// The request's stream waits for those that had the place that it was told.
    pub(crate) fn take_told_ground(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        ground: &Ground,
    ) -> Option<Addr> {
        let want = &Want { lane: inventory.lane_of(want), ..*want };
        let addr = self.settle_on(inventory, want, ground)?;
        if !ground.waits.is_empty() {
            self.way(want.lane).log.note_others();
        }
        Some(addr)
    }

    /// Puts a request at a place, in a view or at home, if all bytes under it are free and its
    /// stream waits for whoever had them.
    pub(crate) fn take_place(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        segment: SegmentId,
        addr: Addr,
    ) -> Option<Addr> {
        let want = &Want { lane: inventory.lane_of(want), ..*want };
        let ground =
            ground(inventory, want, segment, addr).filter(|ground| ground.waits.is_empty())?;
        self.settle_on(inventory, want, &ground)
    }

    pub(super) fn settle_on(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        ground: &Ground,
    ) -> Option<Addr> {
        debug_assert!(ground.span.size_bytes == want.size_bytes, "a place for another request");
        let &Ground { segment, span, ref site, .. } = ground;
        let first = match *site {
            Site::View { door, ref homes } => {
                return self.place_in_view(inventory, want, ground, door, homes);
            }
            Site::Home(first) => first,
        };
        let from = inventory.space()[inventory.space().first_free(first)].addr;
        let id = claim(inventory, want, first, span)?;
        let addr = inventory.hand_out(id, want);
        self.note_place(inventory, want, segment, addr, from);
        Some(addr)
    }

    /// A request becomes a block in a view.
    fn place_in_view(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        ground: &Ground,
        door: BlockId,
        homes: &[Home],
    ) -> Option<Addr> {
        let &Ground { segment: view, span, .. } = ground;
        let mut lent = Vec::with_capacity(homes.len());
        for &home in homes {
            let first = inventory.space().block_over(home.segment, home.span.addr)?;
            let id = claim(inventory, want, first, home.span)?;
            inventory.space_mut()[id].state = State::Lent;
            lent.push(id);
        }
        let door = inventory.space_mut().cut_out(door, span);
        let oversize = want.size_bytes >= inventory.rules().split_limit_bytes();
        let block = &mut inventory.space_mut()[door];
        (block.state, block.requested_bytes) = (State::Live, want.requested_bytes);
        block.used_elsewhere = true;
        block.oversize = oversize;
        self.in_views.insert(door, lent);
        self.views.note_use(view);
        let Span { addr, size_bytes } = span;
        inventory.space_mut().note_start(view, addr, size_bytes, door);
        let place = Place { kind: want.kind, stream: want.stream, addr, size_bytes };
        let requested_bytes = want.requested_bytes;
        inventory.record_of(door, Record::Alloc { place, requested_bytes, oversize });
        self.note_entry(inventory, want, door);
        Some(addr)
    }

    /// A block in a view is gone: what was lent to it is free again.
    pub(in crate::heap) fn vacate(&mut self, inventory: &mut Inventory, id: BlockId) {
        let lent = self.in_views.remove(&id).expect("what lives in a view was lent something");
        for home in lent {
            if inventory.deferred().is_in_place() {
                let lane = inventory.space()[home].lane;
                inventory.pools_mut().lane_mut(lane).count_free();
                inventory.defer_free(home);
                continue;
            }
            let whole = inventory.merge_and_shelve(home).id;
            inventory.note_free(whole);
        }
        let block = &mut inventory.space_mut()[id];
        (block.state, block.used_elsewhere) = (State::Hollow, false);
        let is_hollow = |id: &BlockId| inventory.space()[*id].state == State::Hollow;
        let &Block { prev, next, .. } = &inventory.space()[id];
        let (prev, next) = (prev.filter(is_hollow), next.filter(is_hollow));
        if let Some(next) = next {
            inventory.space_mut().join(id, next);
        }
        if let Some(prev) = prev {
            inventory.space_mut().join(prev, id);
        }
    }

    /// Says in one sentence what is wrong with blocks in views and views, if anything is: what is
    /// lent to a block in a view is what its view shows under it, all that is lent is lent to one
    /// block in a view, and views and pages agree on what is shown.
    pub(in crate::heap) fn check(&self, inventory: &Inventory) -> Result<(), Unsound> {
        let mut lent = HashSet::new();
        for (&id, homes) in &self.in_views {
            let block = &inventory.space()[id];
            if !inventory.space().is_in_view(id)
                || !matches!(block.state, State::Live | State::Waiting)
            {
                return Err(format!("{id:?} is listed as in a view and is not").into());
            }
            let home = |&home: &BlockId| {
                let Block { segment, addr, size_bytes, .. } = inventory.space()[home];
                Home { segment, span: Span::new(addr, size_bytes) }
            };
            let lent_homes: Vec<Home> = homes.iter().map(home).collect();
            if inventory.space().homes_under(block.segment, block.span()).as_ref()
                != Some(&lent_homes)
            {
                return Err(format!(
                    "{id:?} was lent {lent_homes:?}, which is not what lies under it"
                )
                .into());
            }
            for &home in homes {
                if inventory.space()[home].state != State::Lent || !lent.insert(home) {
                    return Err(
                        format!("{home:?} is lent to {id:?} and to another, or not lent").into()
                    );
                }
            }
        }
        let mut shown = HashMap::new();
        for (id, segment) in inventory.space().segments().iter() {
            if segment.is_view() != self.views.contains(id) {
                return Err(
                    format!("{id:?} is a view that is not listed, or listed and none").into()
                );
            }
            for page in segment.parts().iter().filter_map(|part| part.page) {
                let home = &inventory.space()[page.segment];
                if home.page(page.index).is_none() && !(home.is_asleep() && segment.is_asleep()) {
                    return Err(format!("{id:?} shows {page:?}, which is gone").into());
                }
                *shown.entry(page).or_insert(0) += 1;
            }
            for block in inventory.space().chain(id) {
                let state = inventory.space()[block].state;
                let is_at_home = (state == State::Lent) == lent.contains(&block);
                let is_in_view = !segment.is_view()
                    || state == State::Hollow
                    || self.in_views.contains_key(&block);
                if !is_at_home || !is_in_view || (state == State::Hollow && !segment.is_view()) {
                    return Err(format!("{block:?} is {state:?}, and nobody knows of it").into());
                }
            }
        }
        let shown_pages: u64 = shown.values().map(|&times| u64::from(times)).sum();
        if shown == self.shown && shown_pages == self.shown_pages {
            Ok(())
        } else {
            Err("pages are shown otherwise than counted".into())
        }
    }
}

/// Takes bytes out of the free blocks that they lie in, of which this is the first, as one
/// block of the request's lane, in no index.
fn claim(inventory: &mut Inventory, want: &Want, first: BlockId, span: Span) -> Option<BlockId> {
    let mut claimed: Option<BlockId> = None;
    let mut at = Some(first);
    while let Some(whole) = at.filter(|&id| inventory.space()[id].addr < span.end()) {
        let whole_span = inventory.space()[whole].span();
        at = inventory.space()[whole].next;
        let was_deferred = inventory.space()[whole].state == State::Deferred;
        if !was_deferred {
            inventory.unshelve(whole);
        }
        let begin = whole_span.addr.max(span.addr);
        let end = whole_span.end().min(span.end());
        let id = inventory.space_mut().cut_out(whole, Span::new(begin, end.0 - begin.0));
        let before = Some(whole).filter(|&whole| whole != id);
        let behind = inventory.space()[id].next.filter(|_| whole_span.end() > end);
        for rest in [before, behind].into_iter().flatten() {
            if was_deferred {
                inventory.defer_free(rest);
            } else {
                inventory.shelve(rest);
            }
        }
        inventory.space_mut()[id].lane = want.lane;
        match claimed {
            Some(first) => inventory.space_mut().join(first, id),
            None => claimed = Some(id),
        }
    }
    claimed
}
