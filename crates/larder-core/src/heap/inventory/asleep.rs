//! Asleep: what of a pool's memory can sleep, what has to be done for that and for waking, and what
//! came of it.

use std::collections::HashMap;
use std::ops::Range;

use crate::heap::ids::{BlockId, LaneId, PageAt, PoolIndex, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::pools::Pools;
use crate::heap::pools::pool::PoolRole;
use crate::heap::space::block::State;
use crate::record::event::Action;
use crate::record::{Place, Record};
use crate::types::{PageHandle, Span};

/// What is in use is copied in as few pieces as can be: over so much that is free between.
const GAP_BYTES: u64 = 64 << 10;

/// What of some pools can sleep.
#[derive(Clone, Debug, Default)]
pub(crate) struct SleepPlan {
    pub(in crate::heap) segments: Vec<SegmentId>,
    /// Where views show pages.
    pub(crate) shown: Vec<(Span, PageHandle)>,
    /// Each page with its addresses at home.
    pub(crate) pages: Vec<(Span, PageHandle)>,
    /// What is to be there again after waking, in order.
    pub(crate) contents: Vec<Span>,
    /// Plain memory, whose addresses would go with it.
    pub(crate) plain: Vec<Span>,
}

/// What has to be made for pools to wake.
#[derive(Clone, Debug, Default)]
pub(crate) struct WakePlan {
    pub(in crate::heap) segments: Vec<SegmentId>,
    /// Where a page is at home, of those to be made.
    pub(in crate::heap) homes: Vec<PageAt>,
    /// The addresses of each.
    pub(crate) pages: Vec<Span>,
    /// Where a view shows one of the pages, by its place in the list.
    pub(crate) shown: Vec<(Span, usize)>,
}

impl WakePlan {
    /// How much memory it takes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.pages.iter().map(|span| span.size_bytes).sum()
    }
}

impl Inventory {
    /// Adds what of a pool can sleep.
    pub(in crate::heap) fn plan_sleep(&self, pool: PoolIndex, plan: &mut SleepPlan) {
        // A graph may read what was written where nothing is allocated by now.
        let owner = self.pools.pool(pool);
        let is_whole = owner.owner().is_some() && owner.role() != PoolRole::Tag;
        for (id, segment) in self.space.segments().iter() {
            if self.pools.lane(segment.lane()).pool() != pool {
                continue;
            }
            if segment.is_fixed() {
                plan.plain.push(segment.span());
                continue;
            }
            plan.segments.push(id);
            for part in segment.parts() {
                let page = part.page.and_then(|at| self.space[at.segment].page(at.index));
                plan.shown.extend(page.map(|page| (segment.place_of(part), page)));
            }
            if segment.is_expandable() {
                let places = segment.pages_over(segment.span());
                let pages = places.filter_map(|at| {
                    let page = segment.page(at)?;
                    Some((segment.span_of(at..at + 1), page))
                });
                plan.pages.extend(pages);
                self.add_contents(id, is_whole, &mut plan.contents);
            }
        }
    }

    /// Adds what is in use of a segment, or all that has memory behind it.
    fn add_contents(&self, id: SegmentId, is_whole: bool, contents: &mut Vec<Span>) {
        let from = contents.len();
        for block in self.space.chain(id).map(|block| &self.space[block]) {
            let is_kept = match block.state {
                State::Live | State::Waiting | State::Lent => true,
                State::Free | State::Deferred => is_whole,
                State::Unmapped | State::Hollow => false,
            };
            if !is_kept {
                continue;
            }
            let backed = |gap: Span| {
                let mut pages = self.space[id].pages_over(gap);
                gap.size_bytes == 0 || pages.all(|at| self.space[id].page(at).is_some())
            };
            match contents[from..].last_mut() {
                Some(last)
                    if block.addr.0 - last.end().0 <= GAP_BYTES
                        && backed(Span::new(last.end(), block.addr.0 - last.end().0)) =>
                {
                    last.size_bytes = block.span().end().0 - last.addr.0;
                }
                _ => contents.push(block.span()),
            }
        }
    }

    /// The segments of a plan have no memory any more.
    pub(in crate::heap) fn commit_sleep(&mut self, plan: &SleepPlan) {
        for &id in &plan.segments {
            let pages: Vec<usize> = if self.space[id].is_expandable() {
                let places = self.space[id].pages_over(self.space[id].span());
                places.filter(|&at| self.space[id].page(at).is_some()).collect()
            } else {
                Vec::new()
            };
            let runs: Vec<Range<usize>> = runs_of(&pages);
            for run in &runs {
                self.count_pages(id, run, -1);
            }
            self.tell_of_shown(id, Action::SegmentUnmap);
            let lane = self.pools.lane_asleep(self.space[id].lane());
            self.move_blocks(id, Pools::lane_asleep);
            self.space.fall_asleep(id, lane);
        }
    }

    /// What has to be made for a pool's memory to wake.
    pub(in crate::heap) fn plan_wake(&self, pool: PoolIndex, plan: &mut WakePlan) {
        let Some(asleep) = self.pools.asleep_of(pool) else { return };
        let segments = self.space.segments().iter();
        let here = segments.filter(|(_, one)| self.pools.lane(one.lane()).pool() == asleep);
        let here: Vec<SegmentId> = here.map(|(id, _)| id).collect();
        for &id in &here {
            for index in self.space.pages_awaited(id) {
                plan.homes.push(PageAt { segment: id, index });
                plan.pages.push(self.space[id].span_of(index..index + 1));
            }
        }
        let homes = plan.homes.iter().enumerate();
        let places: HashMap<PageAt, usize> = homes.map(|(at, &home)| (home, at)).collect();
        for &id in &here {
            let parts = self.space[id].parts().iter();
            for (part, page) in parts.filter_map(|part| part.page.map(|page| (part, page))) {
                // What a view of a pool shows sleeps with it.
                let at = places[&page];
                plan.shown.push((self.space[id].place_of(part), at));
            }
        }
        plan.segments.extend(here);
    }

    /// The pages of a plan were made, and are where they were.
    pub(in crate::heap) fn commit_wake(&mut self, plan: &WakePlan, pages: &[PageHandle]) {
        assert_eq!(plan.homes.len(), pages.len(), "a page for each place of the plan");
        for &id in &plan.segments {
            let awake = self.pools.lane_awake(self.space[id].lane());
            self.move_blocks(id, Pools::lane_awake);
            let own = plan.homes.iter().zip(pages).filter(|(home, _)| home.segment == id);
            let own: Vec<(usize, PageHandle)> =
                own.map(|(home, &page)| (home.index, page)).collect();
            self.space.wake_with(id, awake, own.iter().copied());
            let places: Vec<usize> = own.iter().map(|&(at, _)| at).collect();
            for run in &runs_of(&places) {
                self.count_pages(id, run, 1);
            }
            self.tell_of_shown(id, Action::SegmentMap);
        }
    }

    /// Trackers are told of what a view that falls asleep shows no more, or shows again.
    fn tell_of_shown(&self, id: SegmentId, action: Action) {
        let segment = &self.space[id];
        for part in segment.parts().iter().filter(|part| part.page.is_some()) {
            self.tell_of_view(id, action, segment.place_of(part));
        }
    }

    /// Nothing of a pool sleeps any more.
    pub(in crate::heap) fn forget_asleep(&mut self, pool: PoolIndex) {
        self.pools.forget_asleep(pool);
    }

    /// Pages that lie side by side came or went: they are counted, and told of.
    fn count_pages(&mut self, id: SegmentId, pages: &Range<usize>, sign: i64) {
        let span = self.space[id].span_of(pages.clone());
        let change_bytes = sign * span.size_bytes as i64;
        self.space.count_reserved(change_bytes);
        let lane = self.pools.lane(self.space[id].lane());
        let (kind, stream, pool) = (lane.kind(), lane.stream(), lane.pool());
        self.pools.count_reserved(pool, change_bytes);
        let place = Place { kind, stream, addr: span.addr, size_bytes: span.size_bytes };
        let first = self.space[id].first();
        if sign > 0 {
            self.record_of(first, Record::SegmentMap { place });
        } else {
            self.record_of(first, Record::SegmentUnmap { place });
        }
    }

    /// All blocks of a segment go to other lanes, and stay what they are.
    fn move_blocks(&mut self, id: SegmentId, to: impl Fn(&mut Pools, LaneId) -> LaneId) {
        let blocks: Vec<BlockId> = self.space.chain(id).collect();
        for block in blocks {
            let lane = to(&mut self.pools, self.space[block].lane);
            match self.space[block].state {
                State::Free => {
                    self.unshelve(block);
                    self.space[block].lane = lane;
                    self.shelve(block);
                }
                State::Unmapped => {
                    self.forget_unmapped(block);
                    self.space[block].lane = lane;
                    self.pools.lane_mut(lane).add_unmapped(self.space[block].addr, block);
                }
                State::Deferred => unreachable!("frees are deferred while memory goes or comes"),
                State::Live | State::Waiting | State::Lent | State::Hollow => {
                    self.space[block].lane = lane;
                }
            }
        }
    }

    /// Of a pool that sleeps nobody waits for the pages inside its free blocks: they are not made
    /// again. `is_shown` says which a view still shows.
    pub(in crate::heap) fn shed(
        &mut self,
        pool: PoolIndex,
        is_shown: impl Fn(SegmentId, usize) -> bool,
    ) {
        let Some(asleep) = self.pools.asleep_of(pool) else { return };
        let mut free: Vec<BlockId> = self.free_blocks(asleep).collect();
        while let Some(id) = free.pop() {
            let block = &self.space[id];
            let segment = &self.space[block.segment];
            let pages = segment.pages_inside(block.span());
            let unshown = pages.skip_while(|&at| is_shown(block.segment, at));
            let unshown: Vec<usize> =
                unshown.take_while(|&at| !is_shown(block.segment, at)).collect();
            let Some(run) = runs_of(&unshown).pop() else { continue };
            let (segment_id, span, end) = (block.segment, segment.span_of(run), block.span().end());
            self.space.shed(segment_id, span);
            let (unmapped, _) = self.cut_unmapped(id, span);
            self.pools.count_growth(pool, -1);
            // What lies behind is a block by itself now.
            free.extend(self.space[unmapped].next.filter(|_| span.end() < end));
        }
    }

    /// The addresses of a pool's segments that sleep, and that nobody waits for.
    pub(in crate::heap) fn bare_asleep(&self, pool: PoolIndex) -> Vec<SegmentId> {
        let Some(asleep) = self.pools.asleep_of(pool) else { return Vec::new() };
        let here = |id: &SegmentId| {
            let segment = &self.space[*id];
            self.pools.lane(segment.lane()).pool() == asleep
                && segment.is_expandable()
                && self.space.is_bare(*id)
        };
        self.space.segments().iter().map(|(id, _)| id).filter(here).collect()
    }

    /// How much memory sleeps of a pool, and how much of it is in use.
    pub(in crate::heap) fn asleep_bytes(&self, pool: PoolIndex) -> (u64, u64) {
        let Some(asleep) = self.pools.asleep_of(pool) else { return (0, 0) };
        let (mut page_bytes, mut used_bytes) = (0, 0);
        for (id, segment) in self.space.segments().iter() {
            if self.pools.lane(segment.lane()).pool() != asleep || segment.is_view() {
                continue;
            }
            page_bytes += self.space.pages_awaited(id).len() as u64 * segment.page_bytes();
            let blocks = self.space.chain(id).map(|block| &self.space[block]);
            let used =
                blocks.filter(|b| matches!(b.state, State::Live | State::Waiting | State::Lent));
            used_bytes += used.map(|block| block.size_bytes).sum::<u64>();
        }
        (page_bytes, used_bytes)
    }
}

/// Numbers that follow each other, as ranges. They are in order.
fn runs_of(numbers: &[usize]) -> Vec<Range<usize>> {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| run[0]..run[0] + run.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_are_one_run() {
        assert_eq!(runs_of(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        assert_eq!(runs_of(&[]), []);
    }
}
