//! The request log: what was asked for in a lane, in order, and where it was put. A program that
//! repeats itself walks its own request log, and gets each block where it lay the last time: then
//! it finds every view that it needs made already, and asks nothing of the device.
//!
//! Every request leaves an entry. A guide walks along the entries of the past, as far behind as the
//! program is late: it is set down where the last requests were once the same, and goes on from
//! there entry by entry, so that the tenth of ten equal layers is told from the first. When a whole
//! cycle was walked and every block got its old place, the cycle is closed: from then on the
//! program repeats itself in it, and leaves no entries. That costs one comparison a request.

use crate::heap::ids::SegmentId;
use crate::heap::size::BLOCK_UNIT_BYTES;
use crate::types::Addr;

/// How many requests in a row have to be the same for the guide to be set down.
const WINDOW: usize = 16;
/// So many entries are kept; then the request log begins anew. It bounds what the host pays for a
/// program that never repeats itself.
const ENTRIES_MAX: usize = 1 << 20;
/// Where there are more lanes than this, all of them share what so many may keep.
const LONG_LOGS: usize = 8;
/// A cycle that was closed once is trusted again after so many entries.
const TRUST: u32 = 64;
/// What requests are multiplied with to tell them apart, and the same for one that is a window
/// behind.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_WINDOW: u64 = MIX.wrapping_pow(WINDOW as u32);
/// Names no entry.
const NOWHERE: u32 = u32::MAX;

/// What is asked for, in units of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask(u32);

impl Ask {
    #[inline]
    pub(crate) fn new(size_bytes: u64) -> Ask {
        Ask(units(size_bytes))
    }

    /// Whether so many bytes are asked for.
    #[inline]
    fn is_for(self, size_bytes: u64) -> bool {
        u64::from(self.0) == size_bytes / BLOCK_UNIT_BYTES
    }

    #[inline]
    fn mixed(self) -> u64 {
        u64::from(self.0).wrapping_mul(MIX)
    }
}

/// Where a block was put: how far into a segment, in units of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) segment: SegmentId,
    pub(crate) at: u32,
    /// Where the free block began that it was cut out of.
    pub(crate) from: u32,
    /// That block was noted among the small ones when it was found last.
    pub(crate) is_small: bool,
    /// The request had to wait for other streams to go there.
    pub(crate) was_others: bool,
    /// The address that this was then, while the segment was where it was then.
    pub(crate) addr: Addr,
}

impl Spot {
    const NONE: Spot = Spot {
        segment: SegmentId::NONE,
        at: 0,
        from: 0,
        is_small: false,
        was_others: false,
        addr: Addr(0),
    };

    /// An address in a segment that begins at another, in a free block that began at a third.
    #[inline]
    pub(crate) fn new(segment: SegmentId, begin: Addr, addr: Addr, from: Addr) -> Spot {
        let [at, from] = [addr, from].map(|addr| units(addr.0 - begin.0));
        Spot { segment, at, from, is_small: false, was_others: false, addr }
    }
}

/// What of a spot a request of a cycle has to know, in one word: the address, and in its lowest
/// bit, which no address has, whether the request was the first in what was free there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Goal(u64);

impl Goal {
    #[inline]
    fn new(spot: Spot) -> Goal {
        Goal(spot.addr.0 | u64::from(spot.at == spot.from))
    }

    /// The address where the request goes.
    #[inline]
    pub(crate) fn addr(self) -> Addr {
        Addr(self.0 & !1)
    }

    /// Whether the free block that the request was cut out of began there.
    #[inline]
    pub(crate) fn is_first(self) -> bool {
        self.0 & 1 != 0
    }
}

/// How many requests came, and how many of them the program had not come by before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) strange: u64,
}

impl Tally {
    /// This one and another.
    pub(crate) fn plus(self, other: Tally) -> Tally {
        Tally { requests: self.requests + other.requests, strange: self.strange + other.strange }
    }

    /// What came since an earlier moment.
    pub(crate) fn since(self, earlier: Tally) -> Tally {
        Tally {
            requests: self.requests.saturating_sub(earlier.requests),
            strange: self.strange.saturating_sub(earlier.strange),
        }
    }
}

/// So many bytes in units of a block. What is more than fits is taken for another number, which
/// does no harm: a place is looked at before a block is put there.
#[inline]
fn units(bytes: u64) -> u32 {
    (bytes / BLOCK_UNIT_BYTES) as u32
}

/// A request and where it went. A program that repeats itself reads one for each request, and there
/// are more of them than the processor keeps at hand, so that they are short; what else is to be
/// known of entries is kept apart.
#[derive(Clone, Copy, Debug)]
struct Entry {
    goal: Goal,
    ask: Ask,
    /// The entry behind it.
    next: u32,
}

impl Entry {
    /// No entry: nobody asks for as much.
    const NONE: Entry = Entry { goal: Goal(0), ask: Ask(u32::MAX), next: NOWHERE };
}

/// The way of a program through its requests.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog {
    entries: Vec<Entry>,
    /// For each entry, all that is known of where the request went.
    spots: Vec<Spot>,
    /// So many may be kept.
    entries_max: usize,
    /// For each entry, what the last requests amounted to, with that one.
    prints: Vec<u64>,
    /// For each entry that is part of a cycle that was closed, the last entry of the cycle; nowhere
    /// for the others.
    ends: Vec<u32>,
    /// The entry of the last request.
    last: u32,
    /// While the program repeats itself in a cycle that was closed, the entry that the next request
    /// should be; else nowhere.
    ahead: u32,
    /// What came so far.
    tally: Tally,
    /// A copy of that entry. It is fetched when the request before it comes, because the next one
    /// would have to wait for it.
    upcoming: Entry,
    /// While it does not, the entry that the next request should be, where the guide is.
    guide: u32,
    /// Whether the last request was told where to go, and went there.
    is_good: bool,
    /// So many requests in a row went where they were told.
    good_entries: u32,
    /// The last requests, as a ring, but for those of a cycle: its entries tell them. Those before
    /// the last `WINDOW` are kept for a while, to be taken off what the last ones amount to.
    recent: [Ask; 2 * WINDOW],
    at: usize,
    /// What the last requests amount to; none if some of them were not counted, as in a cycle.
    print: Option<u64>,
    /// For what the last requests amount to, the last entry at which they did; found by its lowest
    /// bits.
    seen: Vec<u32>,
}

impl Default for RequestLog {
    fn default() -> RequestLog {
        RequestLog {
            entries: Vec::new(),
            spots: Vec::new(),
            entries_max: ENTRIES_MAX,
            prints: Vec::new(),
            ends: Vec::new(),
            last: NOWHERE,
            ahead: NOWHERE,
            tally: Tally::default(),
            upcoming: Entry::NONE,
            guide: NOWHERE,
            is_good: false,
            good_entries: 0,
            recent: [Ask(0); 2 * WINDOW],
            at: 0,
            print: None,
            seen: Vec::new(),
        }
    }
}

impl RequestLog {
    /// So many lanes share what may be kept.
    pub(crate) fn share_with(&mut self, lanes: usize) {
        self.entries_max = ENTRIES_MAX / lanes.div_ceil(LONG_LOGS).max(1);
    }

    /// Whether the program repeats itself in a cycle that was closed.
    #[inline]
    pub(crate) fn repeats(&self) -> bool {
        self.ahead != NOWHERE
    }

    /// What came so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// How much it holds of the host's memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.spots.capacity() * size_of::<Spot>()
            + self.prints.capacity() * size_of::<u64>()
            + self.ends.capacity() * size_of::<u32>()
            + self.seen.capacity() * size_of::<u32>()
    }

    /// A request comes. Says where it was put the last time, if it is one that the program came by
    /// before.
    #[inline]
    pub(crate) fn walk(&mut self, size_bytes: u64) -> Option<Spot> {
        if self.walk_cycle(size_bytes).is_some() {
            return Some(self.spots[self.last as usize]);
        }
        if self.repeats() {
            self.leave_cycle();
        }
        let ask = Ask::new(size_bytes);
        self.note_recent(ask);
        self.walk_on(ask)
    }

    /// A request comes while the program repeats itself. Says where it was put the last time; none,
    /// and it is as if it had not come, if it is not the one that is next in the cycle.
    #[inline]
    pub(crate) fn walk_cycle(&mut self, size_bytes: u64) -> Option<Goal> {
        let Entry { goal, ask, next } = self.upcoming;
        if !ask.is_for(size_bytes) {
            return None;
        }
        self.tally.requests += 1;
        self.last = self.ahead;
        self.look_ahead(next);
        Some(goal)
    }

    /// The next request should be this entry.
    #[inline]
    fn look_ahead(&mut self, at: u32) {
        self.ahead = at;
        self.upcoming = self.entries.get(at as usize).copied().unwrap_or(Entry::NONE);
    }

    /// The program leaves its cycle. The last requests are those that led here.
    #[cold]
    #[inline(never)]
    fn leave_cycle(&mut self) {
        let mut entries = [NOWHERE; WINDOW];
        let mut at = Some(self.last);
        for entry in entries.iter_mut().rev() {
            *entry = at.unwrap_or(NOWHERE);
            at = at.and_then(|at| self.entry_before(at));
        }
        for entry in entries {
            self.note_recent(self.entries.get(entry as usize).map_or(Ask(0), |entry| entry.ask));
        }
        (self.ahead, self.guide, self.good_entries) = (NOWHERE, NOWHERE, 0);
        self.upcoming = Entry::NONE;
        (self.is_good, self.print) = (false, None);
    }

    /// The entry before another: at the beginning of a cycle the last one of it.
    fn entry_before(&self, at: u32) -> Option<u32> {
        let end = self.ends[at as usize];
        let leads_here = self.entries.get(end as usize).is_some_and(|last| last.next == at);
        if leads_here { Some(end) } else { at.checked_sub(1) }
    }

    #[inline]
    fn note_recent(&mut self, ask: Ask) {
        self.recent[self.at % (2 * WINDOW)] = ask;
        self.at = self.at.wrapping_add(1);
    }

    /// A request outside of all cycles.
    #[cold]
    #[inline(never)]
    fn walk_on(&mut self, ask: Ask) -> Option<Spot> {
        self.tally.requests += 1;
        self.good_entries = if self.is_good { self.good_entries + 1 } else { 0 };
        if self.try_close() && self.entries[self.guide as usize].ask == ask {
            self.last = self.guide;
            self.look_ahead(self.entries[self.guide as usize].next);
            return Some(self.spots[self.last as usize]);
        }
        let print = self.print_on();
        let followed = self.entries.get(self.guide as usize).filter(|entry| entry.ask == ask);
        let known = followed.is_some().then_some(self.guide).or_else(|| self.find(ask, print));
        self.guide = known.map_or(NOWHERE, |at| self.entries[at as usize].next);
        self.is_good = known.is_some();
        self.tally.strange += u64::from(known.is_none());
        let spot = known.map(|at| self.spots[at as usize]);
        self.add(ask, spot.unwrap_or(Spot::NONE), print);
        spot
    }

    /// Closes a cycle if the guide is as far behind as the requests went where they were told. Says
    /// whether the guide is in a cycle that can be taken up, that one or one that was closed
    /// before.
    fn try_close(&mut self) -> bool {
        let Some(&end) = self.ends.get(self.guide as usize) else { return false };
        if end != NOWHERE {
            return self.good_entries >= TRUST;
        }
        let behind = self.entries.len() as u32 - self.guide;
        if self.good_entries < behind {
            return false;
        }
        self.ends[self.guide as usize..].fill(self.entries.len() as u32 - 1);
        if let Some(last) = self.entries.last_mut() {
            last.next = self.guide;
        }
        true
    }

    /// The last entry at which the last requests were the same.
    fn find(&self, ask: Ask, print: u64) -> Option<u32> {
        let at = *self.seen.get(self.slot(print))?;
        let entry = self.entries.get(at as usize)?;
        (self.prints[at as usize] == print && entry.ask == ask).then_some(at)
    }

    fn add(&mut self, ask: Ask, spot: Spot, print: u64) {
        if self.entries.len() >= self.entries_max {
            self.begin_anew();
        }
        if 2 * self.entries.len() >= self.seen.len() {
            self.seen = vec![NOWHERE; (4 * self.entries.len()).next_power_of_two().max(1 << 10)];
            for at in 0..self.prints.len() {
                let print = self.prints[at];
                let slot = self.slot(print);
                self.seen[slot] = at as u32;
            }
        }
        let at = self.entries.len() as u32;
        self.entries.push(Entry { goal: Goal::new(spot), ask, next: at + 1 });
        self.spots.push(spot);
        self.prints.push(print);
        self.ends.push(NOWHERE);
        let slot = self.slot(print);
        (self.seen[slot], self.last) = (at, at);
    }

    /// All entries are forgotten. What they lay in is kept: whoever never repeats itself comes by
    /// here again and again.
    #[cold]
    #[inline(never)]
    fn begin_anew(&mut self) {
        let most = self.entries_max;
        self.entries.clear();
        self.entries.shrink_to(most);
        self.spots.clear();
        self.spots.shrink_to(most);
        self.prints.clear();
        self.prints.shrink_to(most);
        self.ends.clear();
        self.ends.shrink_to(most);
        self.seen.truncate((4 * most).next_power_of_two());
        self.seen.shrink_to_fit();
        self.seen.fill(NOWHERE);
        self.guide = NOWHERE;
    }

    /// What the last requests amount to, after one that is not part of a cycle.
    fn print_on(&mut self) -> u64 {
        let back = |back: usize| self.recent[self.at.wrapping_sub(back) % (2 * WINDOW)].mixed();
        let print = match self.print {
            // The newest comes in, and the one that is a window behind it goes.
            Some(print) => {
                let gone = back(WINDOW + 1).wrapping_mul(MIX_WINDOW);
                print.wrapping_mul(MIX).wrapping_add(back(1)).wrapping_sub(gone)
            }
            None => (1..=WINDOW)
                .rev()
                .fold(0, |print: u64, at| print.wrapping_mul(MIX).wrapping_add(back(at))),
        };
        self.print = Some(print);
        print
    }

    /// Where it is kept which entry the last requests led to, if they amount to this. The higher
    /// bits depend on all of what was asked for.
    fn slot(&self, print: u64) -> usize {
        (print >> 32) as usize & self.seen.len().wrapping_sub(1)
    }

    /// Where the last request was told to go, if this is what it asked for.
    pub(crate) fn told(&self, ask: Ask) -> Option<Spot> {
        let at = self.last as usize;
        self.entries.get(at).filter(|entry| entry.ask == ask)?;
        Some(self.spots[at]).filter(|&spot| spot != Spot::NONE)
    }

    /// Where the last request was put, if this is what it asked for and it is not where it was told
    /// to go.
    #[inline]
    pub(crate) fn note(&mut self, ask: Ask, spot: Spot) {
        let at = self.last as usize;
        if let Some(entry) = self.entries.get_mut(at)
            && entry.ask == ask
        {
            entry.goal = Goal::new(spot);
            // A cycle of one request.
            if self.last == self.ahead {
                self.upcoming = *entry;
            }
            let old = std::mem::replace(&mut self.spots[at], spot);
            self.is_good &= (old.segment, old.at) == (spot.segment, spot.at);
        }
    }

    /// The last request, if this is what it asked for, was put where it should not be led again.
    pub(crate) fn forget_place(&mut self, ask: Ask) {
        self.note(ask, Spot::NONE);
    }

    /// The last request had to wait for other streams to go where it was put.
    pub(crate) fn note_others(&mut self) {
        if let Some(spot) = self.spots.get_mut(self.last as usize) {
            spot.was_others = true;
        }
    }

    /// The free block that the last request is cut out of is noted among the small ones, or among
    /// the others.
    pub(crate) fn note_kind(&mut self, is_small: bool) {
        if let Some(spot) = self.spots.get_mut(self.last as usize) {
            spot.is_small = is_small;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(log: &mut RequestLog, sizes: &[u64], at: &mut u64) -> usize {
        let mut known = 0;
        for &size_bytes in sizes {
            let ask = Ask::new(size_bytes);
            let spot = log.walk(size_bytes);
            known += usize::from(spot.is_some());
            *at += 512;
            let spot = spot.unwrap_or(Spot::new(SegmentId::NONE, Addr(0), Addr(*at), Addr(*at)));
            log.note(ask, spot);
        }
        known
    }

    #[test]
    fn a_program_that_repeats_itself_is_recognised_and_then_never_lost() {
        let cycle: Vec<u64> = (1..=40).map(|at| 512 * at).collect();
        let (mut log, mut at) = (RequestLog::default(), 0);
        assert_eq!(walk(&mut log, &cycle, &mut at), 0);
        assert_eq!(walk(&mut log, &cycle, &mut at), 40 - (WINDOW - 1));
        for _ in 0..2 {
            assert_eq!(walk(&mut log, &cycle, &mut at), 40);
        }
        let entries = log.entries.len();
        for _ in 0..5 {
            assert_eq!(walk(&mut log, &cycle, &mut at), 40);
        }
        assert_eq!(log.entries.len(), entries, "what is known is not noted again");
    }

    /// Training with an evaluation now and then: both are known after they came once each way.
    #[test]
    fn a_detour_that_was_taken_before_is_known_from_its_first_step() {
        let cycle: Vec<u64> = (1..=40).map(|at| 512 * at).collect();
        let detour: Vec<u64> = (1..=30).map(|at| 512 * (100 + at)).collect();
        let (mut log, mut at) = (RequestLog::default(), 0);
        for _ in 0..2 {
            walk(&mut log, &cycle, &mut at);
            walk(&mut log, &cycle, &mut at);
            walk(&mut log, &detour, &mut at);
        }
        assert_eq!(walk(&mut log, &cycle, &mut at), 40);
        assert_eq!(walk(&mut log, &cycle, &mut at), 40);
        assert_eq!(walk(&mut log, &detour, &mut at), 30);
        assert_eq!(walk(&mut log, &cycle, &mut at), 40);
    }

    #[test]
    fn what_requests_amount_to_depends_on_the_last_of_them_alone() {
        let (mut log, mut other, mut at) = (RequestLog::default(), RequestLog::default(), 0);
        let sizes: Vec<u64> = (1..=50).map(|at| 512 * (at * at % 23 + 1)).collect();
        walk(&mut log, &sizes, &mut at);
        walk(&mut other, &sizes[50 - WINDOW..], &mut at);
        assert_eq!(log.print, other.print);
        walk(&mut other, &sizes[..1], &mut at);
        assert_ne!(log.print, other.print);
    }

    /// A cycle leaves no note of its requests: its entries tell them, over its beginning too.
    #[test]
    fn who_leaves_a_round_knows_the_last_requests_of_it() {
        let cycle: Vec<u64> = (1..=40).map(|at| 512 * (at * at % 23 + 1)).collect();
        for left_at in [3, WINDOW, 39] {
            let (mut log, mut other, mut at) = (RequestLog::default(), RequestLog::default(), 0);
            let asked = [&cycle[..], &cycle, &cycle, &cycle, &cycle[..left_at]].concat();
            walk(&mut log, &asked, &mut at);
            assert!(log.repeats());
            let stranger = 512 * 1000;
            walk(&mut log, &[stranger], &mut at);
            assert!(!log.repeats());
            walk(&mut other, &asked[asked.len() + 1 - WINDOW..], &mut at);
            walk(&mut other, &[stranger], &mut at);
            assert_eq!(log.print, other.print, "left at {left_at}");
        }
    }

    #[test]
    fn a_request_of_more_than_a_step_can_tell_is_none_of_a_round() {
        let cycle: Vec<u64> = (1..=40).map(|at| 512 * at).collect();
        let (mut log, mut at) = (RequestLog::default(), 0);
        (0..4).for_each(|_| {
            walk(&mut log, &cycle, &mut at);
        });
        assert_eq!(log.walk_cycle(512 + (BLOCK_UNIT_BYTES << 32)), None);
        assert!(log.walk_cycle(512).is_some());
    }

    #[test]
    fn a_log_that_grew_too_long_begins_anew() {
        let (mut log, mut at) = (RequestLog::default(), 0);
        for cycle in 0..ENTRIES_MAX as u64 / 1000 + 2 {
            let sizes: Vec<u64> = (0..1000).map(|size| 512 * (cycle * 1000 + size + 1)).collect();
            assert_eq!(walk(&mut log, &sizes, &mut at), 0);
        }
        assert!(log.entries.len() < ENTRIES_MAX);
        log.share_with(1000 * LONG_LOGS);
        walk(&mut log, &[512], &mut at);
        assert_eq!(log.entries.len(), 1, "it was longer than its share");
    }
}
