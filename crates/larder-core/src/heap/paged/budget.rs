//! The budget: what a program's memory may cost it in calls of the driver. Views are made while
//! there is some left, and where it is spent new pages are made instead.
//!
//! It is counted by what is known in a replay as well as on a card: calls cost what was measured,
//! and of the program's time no more is known than how often it asked for memory.

use crate::config::Config;
use crate::heap::paged::prices::{HIDDEN_PAGE_NS, HOME_PAGE_NS, RESERVE_NS, SHOWN_PAGE_NS};
use crate::heap::paged::request_log::Tally;
use crate::types::MIB;

/// What to grow by a mebibyte costs in pages of 20 MiB, as PyTorch's expandable segments have them.
const GROWTH_NS_PER_MIB: u64 = HOME_PAGE_NS / 20;
/// The time that a program is taken to need from one request to the next. A program that serves a
/// large model was seen to take 18 µs, others from 20 to 300.
const REQUEST_NS: u64 = 15_000;
/// The time that is counted beforehand: most views are made when a program begins. Where most
/// requests are such as came before, the views serve again and again, and it is so many times that.
const START_NS: u64 = 15_000_000_000;
const REPEATED: u64 = 3;

/// What was spent, and what that is compared with.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    /// What calls have cost.
    spent_ns: u64,
    /// By how much memory grew.
    grown_bytes: u64,
    /// What had come when the budget began.
    begin: Tally,
    /// Whether there ever was too little left for a view.
    is_spent: bool,
}

impl Budget {
    /// Begins anew, when so much has come.
    pub(super) fn begin(&mut self, tally: Tally) {
        *self = Budget { begin: tally, ..Budget::default() };
    }

    /// So many pages were made.
    pub(super) fn note_grown(&mut self, pages: u64, bytes: u64) {
        self.grown_bytes = self.grown_bytes.saturating_add(bytes);
        self.spend(pages.saturating_mul(HOME_PAGE_NS));
    }

    /// A view of so many pages was made.
    pub(super) fn note_shown(&mut self, pages: u64) {
        self.spend(view_ns(pages));
    }

    /// So many pages were taken out of a view.
    pub(super) fn note_hidden(&mut self, pages: u64) {
        self.spend(pages.saturating_mul(HIDDEN_PAGE_NS));
    }

    fn spend(&mut self, ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(ns);
    }

    /// Whether a view of so many pages can be paid for, when so much has come. If not, it is known
    /// from then on that the program makes more views than it can pay for.
    pub(super) fn affords_view(&mut self, config: &Config, pages: u64, tally: Tally) -> bool {
        let affords = self.spent_ns.saturating_add(view_ns(pages)) <= self.total_ns(config, tally);
        self.is_spent |= !affords;
        affords
    }

    /// Whether there ever was too little left for a view since the budget began.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// All that may be spent: the part of the time that the settings say; and what is counted
    /// beforehand is never less than what expandable segments would have paid to grow as much.
    fn total_ns(&self, config: &Config, tally: Tally) -> u64 {
        let part = config.tight_views_percent / 100.0;
        let Tally { requests, strange } = tally.since(self.begin);
        let begin_ns = if 2 * strange < requests { REPEATED * START_NS } else { START_NS };
        let elapsed_ns = requests.saturating_mul(REQUEST_NS);
        let [start_ns, earned_ns] = [begin_ns, elapsed_ns].map(|ns| (part * ns as f64) as u64);
        start_ns.max(self.grown_bytes / MIB * GROWTH_NS_PER_MIB).saturating_add(earned_ns)
    }
}

/// To make a view of so many pages.
fn view_ns(pages: u64) -> u64 {
    RESERVE_NS.saturating_add(pages.saturating_mul(SHOWN_PAGE_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::GIB;

    const START_PAGES: u64 = START_NS / 100 / SHOWN_PAGE_NS;

    /// So many requests of which none came before.
    fn strange(requests: u64) -> Tally {
        Tally { requests, strange: requests }
    }

    const NONE: Tally = Tally { requests: 0, strange: 0 };

    #[test]
    fn views_are_paid_for_until_the_beginning_is_spent() {
        let (mut budget, config) = (Budget::default(), Config::default());
        assert!(budget.affords_view(&config, START_PAGES - 1, NONE));
        assert!(!budget.is_spent());
        budget.note_shown(START_PAGES / 2);
        assert!(!budget.affords_view(&config, START_PAGES / 2, NONE));
        assert!(budget.is_spent(), "which is not forgotten");
        assert!(budget.affords_view(&config, 1, NONE));
        assert!(budget.is_spent());
    }

    #[test]
    fn each_request_earns_its_part_of_the_time() {
        let (mut budget, config) = (Budget::default(), Config::default());
        budget.note_shown(START_PAGES);
        assert!(!budget.affords_view(&config, 1, NONE));
        let requests = (RESERVE_NS + 2 * SHOWN_PAGE_NS) * 100 / REQUEST_NS;
        assert!(budget.affords_view(&config, 1, strange(requests)));
        assert!(!budget.affords_view(&config, 3, strange(requests)));
    }

    #[test]
    fn a_program_that_repeats_itself_may_pay_more_at_first() {
        let (mut budget, config) = (Budget::default(), Config::default());
        let pages = 2 * START_PAGES;
        assert!(budget.affords_view(&config, pages, Tally { requests: 100, strange: 49 }));
        assert!(!budget.affords_view(&config, pages, Tally { requests: 100, strange: 50 }));
    }

    #[test]
    fn what_growth_costs_counts_and_expandable_segments_are_the_measure_of_it() {
        let (mut budget, config) = (Budget::default(), Config::default());
        // 100 GiB in pages of 64 MiB: the difference to pages of 20 MiB is there for views.
        budget.note_grown(100 * 16, 100 * GIB);
        let left_ns = 100 * 1024 * GROWTH_NS_PER_MIB - 100 * 16 * HOME_PAGE_NS;
        let pages = left_ns / SHOWN_PAGE_NS;
        assert!(budget.affords_view(&config, pages - 1, NONE));
        assert!(!budget.affords_view(&config, pages + 1, NONE));
        // In pages of 2 MiB there is nothing left.
        budget.begin(NONE);
        budget.note_grown(100 * 512, 100 * GIB);
        assert!(!budget.affords_view(&config, 1, NONE));
    }

    #[test]
    fn a_budget_that_begins_anew_has_spent_nothing_and_earned_nothing() {
        let (mut budget, config) = (Budget::default(), Config::default());
        budget.note_shown(10 * START_PAGES);
        assert!(!budget.affords_view(&config, 1, NONE));
        budget.begin(strange(1_000_000));
        assert!(!budget.is_spent());
        assert!(budget.affords_view(&config, START_PAGES - 1, strange(1_000_000)));
        assert!(!budget.affords_view(&config, START_PAGES + 1, strange(1_000_000)));
    }

    #[test]
    fn the_settings_say_which_part_of_the_time() {
        let mut budget = Budget::default();
        let none = Config { tight_views_percent: 0.0, ..Config::default() };
        assert!(!budget.affords_view(&none, 1, strange(1 << 60)));
        let all = Config { tight_views_percent: 100.0, ..Config::default() };
        assert!(budget.affords_view(&all, 99 * START_PAGES, NONE));
    }
}
