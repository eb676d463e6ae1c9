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
//! New pages are made as long as what is held stays within `soft` of the most that was ever in use;
//! beyond that only where all that is free does not suffice.

pub(in crate::heap) mod absorb;
mod cycle;
mod free_runs;
pub(crate) mod ground;
pub(in crate::heap) mod in_place;
mod lending;
mod notes;
mod pass_on;
mod place;
mod recency;
pub(crate) mod request_log;
pub(crate) mod seek;
pub(crate) mod stitch;
pub(crate) mod views;

use std::collections::{BTreeMap, HashMap};

use crate::config::Config;
use crate::heap::ids::{BlockId, LaneId, PageAt};
use crate::types::MIB;
use recency::Recency;
use request_log::{Ask, Goal, RequestLog};

/// The smallest page, and the unit of all of them. What is smaller than this is no block in a view.
pub(crate) const PAGE_MIN_BYTES: u64 = 2 * MIB;
/// The largest page.
const PAGE_MAX_BYTES: u64 = 64 * MIB;
/// A page is at most a part of what is held: what is lost in pages that are partly in use grows
/// with the pages, and must not grow beside what is held. The less is lost so far, the larger that
/// part may be: while what is lost times the first is less than what is held, as many pages as the
/// second says are the fewest.
const PAGES_MIN: [(u64, u64); 3] = [(512, 256), (100, 512), (0, 1024)];
/// Or this part of what a request needs, though not more than that: a program that is about to hold
/// much does not have to begin with the smallest pages.
const GROWTH_PAGES_MIN: u64 = 16;
const EARLY_PAGE_MAX_BYTES: u64 = 4 * MIB;
/// Pages are shown at most this many times over, on average. Views that nobody has go before that,
/// those first that were not used for the longest time.
pub(crate) const SHOWN_MAX: u64 = 16;

/// A program that shows so many times in new views what it holds does not repeat itself.
const DOUBT: u64 = 2;
/// It may hold this much more each time, as a part of what is in use: views cost time for as long
/// as it runs, and memory costs it once.
const SLACK: f64 = 0.01;
/// Once it has shown that, it is surer each time: half of what it holds will do, then a quarter,
/// down to one part in two to this power.
const SURE_MAX: u32 = 3;
/// A program that comes to use so much more than ever before still grows, and could not repeat
/// itself yet: what was shown until then is not counted.
const RISE: f64 = 1.1;

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
    /// How much new views showed since the slack grew, since the program did, or since pages were
    /// given back: then views have to be made anew though the program repeats itself.
    shown_anew_bytes: u64,
    /// The most that was in use when it last rose, so that counting began anew.
    risen_bytes: u64,
    /// How often what may be held grew, for views that were made.
    slacks: u32,
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
                *way = Way::default();
                way.log.share_with(lanes);
            }
        }
    }

    /// A view was made that shows so much, of so much that is held.
    fn note_shown(&mut self, shown_bytes: u64, held_bytes: u64) {
        if self.high_bytes as f64 > RISE * self.risen_bytes as f64 {
            self.risen_bytes = self.high_bytes;
            self.shown_anew_bytes = 0;
        }
        self.shown_anew_bytes += shown_bytes;
        let proof_bytes = match self.slacks {
            0 => DOUBT * held_bytes,
            times => held_bytes >> times.min(SURE_MAX),
        };
        if self.shown_anew_bytes >= proof_bytes {
            self.shown_anew_bytes = 0;
            self.slacks = self.slacks.saturating_add(1);
        }
    }

    /// Pages are given back: what is shown of those that come instead says nothing of the program.
    pub(super) fn note_given_back(&mut self) {
        self.shown_anew_bytes = 0;
    }

    /// A phase of the program begins: the cache was emptied while so much was in use. What the last
    /// one used says nothing of it. If little is left of what was in use, neither do the views that
    /// the last one needed: it is another program by now, which may well repeat itself.
    pub(super) fn begin_phase(&mut self, last_high_bytes: u64, active_bytes: u64) {
        self.high_bytes = active_bytes;
        self.risen_bytes = 0;
        self.shown_anew_bytes = 0;
        self.passed_bytes = 0;
        if active_bytes < last_high_bytes / 2 {
            self.slacks = 0;
        }
    }

    /// Whether the program may hold more than others, because it does not repeat itself.
    pub(super) fn has_slack(&self) -> bool {
        self.slacks > 0
    }

    /// How much may be held before views are made, as a multiple of the most that was in use.
    fn soft(&self, config: &Config) -> f64 {
        let grown = config.tight_soft + SLACK * f64::from(self.slacks);
        grown.min(config.tight_most.max(config.tight_soft))
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
    let limit_bytes = parts.map_or(0, |(_, parts)| reserved_bytes / parts).max(early_bytes);
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
        assert_eq!(page_mib(40_000, 4000, 0), 32);
        assert_eq!(page_mib(1 << 20, 1 << 20, 0), 64);
        assert_eq!(page_mib(0, 0, 1 << 20), 4, "at first");
    }

    #[test]
    fn what_may_be_held_grows_with_the_views_that_are_made() {
        let (mut tight, mut config) = (Paged::default(), Config::default());
        tight.note_shown(199, 100);
        assert!((tight.soft(&config) - config.tight_soft).abs() < 1e-9);
        tight.note_shown(1, 100);
        assert!((tight.soft(&config) - config.tight_soft - SLACK).abs() < 1e-9);
        tight.note_shown(49, 100);
        assert_eq!(tight.slacks, 1, "half of what is held is needed now");
        tight.note_shown(1, 100);
        tight.note_shown(25, 100);
        assert_eq!(tight.slacks, 3, "and then a quarter");
        (0..1000).for_each(|_| tight.note_shown(100, 100));
        assert!((tight.soft(&config) - config.tight_most).abs() < 1e-9, "and no further");
        config.tight_soft = 1.5;
        assert!((tight.soft(&config) - 1.5).abs() < 1e-9, "nor below what was asked for");
    }

    #[test]
    fn a_program_that_still_grows_has_not_shown_that_it_does_not_repeat_itself() {
        let mut tight = Paged { high_bytes: 1000, ..Paged::default() };
        tight.note_shown(199, 100);
        tight.high_bytes = 1100;
        tight.note_shown(0, 100);
        assert_eq!(tight.shown_anew_bytes, 199, "a tenth is no rise");
        tight.high_bytes = 1101;
        tight.note_shown(199, 100);
        assert_eq!((tight.shown_anew_bytes, tight.slacks), (199, 0));
        tight.note_shown(1, 100);
        assert_eq!(tight.slacks, 1);
    }

    #[test]
    fn pages_are_larger_where_little_is_lost() {
        assert_eq!(page_mib(8192, 82, 0), 8, "a hundredth is lost");
        assert_eq!(page_mib(8192, 80, 0), 16);
        assert_eq!(page_mib(8192, 15, 0), 32);
    }
}
