//! Paged: the placement of the policy tight, under which a program holds what it uses.
//!
//! Physical memory is pages, and each page has one **home**: the address where it is mapped as long
//! as it exists. All sizes share the lanes of the large pools, so that what is free is free for
//! all. When no free block holds a request, pages out of several free blocks are mapped a second
//! time, side by side, in a
//! **view**, and the request gets a block there; the home blocks under it are *lent* until it is
//! freed. Views are remembered: where the bytes under one are free again it serves with
//! no call. And the **request log** puts each request where it lay the last time.
//!
//! New pages are made as long as what is held stays within `tight_soft` of the most that was in
//! use; beyond that only where all that is free does not suffice, or where views have cost what
//! they may (`budget.rs`).

pub(in crate::heap) mod absorb;
mod budget;
mod cycle;
mod free_runs;
pub(crate) mod ground;
pub(in crate::heap) mod in_place;
mod lending;
mod notes;
mod pass_on;
mod place;
pub mod prices;
mod recency;
pub(crate) mod request_log;
pub(crate) mod seek;
pub(crate) mod stitch;
pub(crate) mod views;

use std::collections::{BTreeMap, HashMap};

use crate::config::Config;
use crate::heap::ids::{BlockId, LaneId, PageAt};
use crate::types::MIB;
use budget::Budget;
use recency::Recency;
use request_log::{Ask, Goal, RequestLog, Tally};

/// The smallest page, and the unit of all of them. What is smaller than this is no block in a view.
pub(crate) const PAGE_MIN_BYTES: u64 = 2 * MIB;
/// The largest page.
const PAGE_MAX_BYTES: u64 = 64 * MIB;
/// A page is at most a part of what is held: what is lost in pages that are partly in use grows
/// with the pages, and must not grow beside what is held. The less is lost so far, the larger that
/// part may be: while what is lost times the first is less than what is held, as many pages as the
/// second says are the fewest.
const PAGES_MIN: [(u64, u64); 3] = [(512, 256), (100, 512), (0, 1024)];
/// A program that holds so much has pages that many times as large: what is lost in them does not
/// matter beside it, and views of them cost less.
const LARGE_BYTES: u64 = 5 << 30;
const LARGE_FACTOR: u64 = 4;
/// Or this part of what a request needs, though not more than that: a program that is about to hold
/// much does not have to begin with the smallest pages.
const GROWTH_PAGES_MIN: u64 = 16;
const EARLY_PAGE_MAX_BYTES: u64 = 4 * MIB;
/// Pages are shown at most this many times over, on average. Views that nobody has go before that,
/// those first that were not used for the longest time.
pub(crate) const SHOWN_MAX: u64 = 16;

/// What the tight policy knows beside the blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paged {
    /// For each lane, the way of its requests: threads that work on streams of their own come in
    /// any order.
    ways: Vec<Way>,
    /// For each block in a view, the home blocks that are lent to it, in the order in which they
    /// lie under it.
    in_views: BTreeMap<BlockId, Vec<BlockId>>,
    /// In how many views a page is shown.
    shown: HashMap<PageAt, u32>,
    /// The sum of that.
    shown_pages: u64,
    /// All views.
    views: Recency,
    /// What calls may cost, and have cost.
    budget: Budget,
    /// What came in lanes that are gone.
    past: Tally,
    /// The most that was in use since the phase began, as far as it was looked at.
    high_bytes: u64,
    /// How much went from pool to pool since the phase began.
    passed_bytes: u64,
}

/// What is known of the requests in one lane.
#[derive(Clone, Debug, Default)]
struct Way {
    log: RequestLog,
    /// The request that missed on the fast path last, if nothing was asked for since.
    missed: Option<Miss>,
}

/// How often a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::heap) enum Attempt {
    /// On the fast path: if it gets nothing it comes again.
    First,
    /// On the slow way.
    Again,
}

/// A request that missed on the fast path.
#[derive(Clone, Copy, Debug)]
struct Miss {
    ask: Ask,
    /// What it was told to have is probably free, but another lane's.
    is_others: bool,
}

impl Paged {
    /// The way of a lane's requests.
    #[inline]
    fn way(&mut self, lane: LaneId) -> &mut Way {
        let at = lane.0 as usize;
        if at >= self.ways.len() {
            self.make_way(at);
        }
        &mut self.ways[at]
    }

    /// A request comes in a lane. Says where it was put the last time, if the program repeats
    /// itself and it is the next.
    #[inline]
    fn walk_cycle(&mut self, lane: LaneId, size_bytes: u64) -> Option<Goal> {
        self.ways.get_mut(lane.0 as usize)?.log.walk_cycle(size_bytes)
    }

    #[cold]
    #[inline(never)]
    fn make_way(&mut self, at: usize) {
        self.ways.resize_with(at + 1, Way::default);
        let lanes = self.ways.len();
        self.ways.iter_mut().for_each(|way| way.log.share_with(lanes));
    }

    /// How much of the host's memory is kept to know the lanes' ways again.
    pub(super) fn way_bytes(&self) -> usize {
        self.ways.iter().map(|way| size_of::<Way>() + way.log.held_bytes()).sum()
    }

    /// Forgets the ways of lanes that are not there any more: their names may be used again.
    pub(super) fn forget_ways(&mut self, is_there: impl Fn(LaneId) -> bool) {
        let lanes = self.ways.len();
        for (at, way) in self.ways.iter_mut().enumerate() {
            if !is_there(LaneId(at as u32)) {
                self.past = self.past.plus(way.log.tally());
                *way = Way::default();
                way.log.share_with(lanes);
            }
        }
    }

    /// What came so far, of all requests that are put into pages.
    fn tally(&self) -> Tally {
        let logs = self.ways.iter().map(|way| way.log.tally());
        logs.fold(self.past, Tally::plus)
    }

    /// So many pages were made.
    pub(super) fn note_grown(&mut self, pages: u64, bytes: u64) {
        self.budget.note_grown(pages, bytes);
    }

    /// A phase of the program begins: the cache was emptied while so much was in use. What the last
    /// one used says nothing of it. If little is left of what was in use, neither does what the
    /// last one spent: it is another program by now.
    pub(super) fn begin_phase(&mut self, last_high_bytes: u64, active_bytes: u64) {
        self.high_bytes = active_bytes;
        self.passed_bytes = 0;
        if active_bytes < last_high_bytes / 2 {
            let tally = self.tally();
            self.budget.begin(tally);
        }
    }

    /// Whether the program makes more views than it can pay for, because it does not repeat itself.
    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }
}

/// How much is held when a page is made, and what for.
#[allow(clippy::struct_field_names)] // Units come last.
#[derive(Clone, Copy, Debug)]
struct Growth {
    reserved_bytes: u64,
    /// What is held and not in use.
    lost_bytes: u64,
    more_bytes: u64,
}

/// The largest page that may be made; the settings may give all pages one size.
fn page_limit_bytes(config: &Config, growth: Growth) -> u64 {
    config.page_bytes.unwrap_or_else(|| fitting_page_bytes(growth))
}

/// The smallest page that may be made.
fn page_min_bytes(config: &Config) -> u64 {
    config.page_bytes.unwrap_or(PAGE_MIN_BYTES)
}

fn fitting_page_bytes(growth: Growth) -> u64 {
    let Growth { reserved_bytes, lost_bytes, more_bytes } = growth;
    let early_bytes = (more_bytes / GROWTH_PAGES_MIN).min(EARLY_PAGE_MAX_BYTES);
    let is_spared = |factor: u64| lost_bytes.saturating_mul(factor) < reserved_bytes;
    let parts = PAGES_MIN.into_iter().find(|&(factor, _)| is_spared(factor));
    let factor = if reserved_bytes < LARGE_BYTES { 1 } else { LARGE_FACTOR };
    let part_bytes = parts.map_or(0, |(_, parts)| reserved_bytes / parts * factor);
    let limit_bytes = part_bytes.max(early_bytes);
    1 << limit_bytes.clamp(PAGE_MIN_BYTES, PAGE_MAX_BYTES).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_mib(reserved_mib: u64, lost_mib: u64, more_mib: u64) -> u64 {
        let [reserved_bytes, lost_bytes, more_bytes] =
            [reserved_mib, lost_mib, more_mib].map(|mib| mib * MIB);
        fitting_page_bytes(Growth { reserved_bytes, lost_bytes, more_bytes }) / MIB
    }

    #[test]
    fn pages_grow_with_what_is_held() {
        assert_eq!(page_mib(0, 0, 0), 2);
        assert_eq!(page_mib(4096, 4096, 0), 4);
        assert_eq!(page_mib(5119, 5119, 0), 4);
        assert_eq!(page_mib(5120, 5120, 0), 16, "and once much is held");
        assert_eq!(page_mib(10_000, 1000, 0), 32);
        assert_eq!(page_mib(1 << 20, 1 << 20, 0), 64);
        assert_eq!(page_mib(0, 0, 1 << 20), 4, "at first");
    }

    #[test]
    fn pages_are_larger_where_little_is_lost() {
        assert_eq!(page_mib(4096, 41, 0), 4, "a hundredth is lost");
        assert_eq!(page_mib(4096, 40, 0), 8);
        assert_eq!(page_mib(4096, 7, 0), 16);
    }
}
