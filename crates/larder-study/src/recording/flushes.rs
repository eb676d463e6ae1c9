//! Flushes: who gave memory back to the device, the program or the allocator itself.
//!
//! A program empties the cache; an allocator gives back what it has cached when a request found no
//! room, or lies above its threshold, and goes on with that request. The entries are the same. What
//! tells them apart: the call stack, where there is one; whether the request that follows could
//! have been served with what was free before; whether there was room for it on the device; and
//! whether anything idle was left, which the emptying of a cache does not do.

use std::collections::HashSet;
use std::ops::Range;

use larder_core::config::Config;
use larder_core::heap::size;
use larder_core::types::PoolKind;
use larder_snapshot::{Action, Snapshot, StackId, TraceEntry};

use super::memory::{Levels, RecordedMemory, Request, Requests, reserved_after};
use super::places::{DEFAULT_POOL, Places};
use super::prehistory::{OldBlock, Tells};
use super::shadow::Shadow;

/// Who gave back what, by the numbers of entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Flushes {
    /// The first of the entries with which the program emptied its cache.
    pub(super) empties: HashSet<usize>,
    /// Blocks that became free because the allocator waited for them before it tried again.
    pub(super) waited_for: HashSet<usize>,
    /// Requests to free a block that looks freed at once, but that the allocator had to wait for
    /// before it tried again: had the block been free, the next request would have been served with
    /// it.
    pub(super) late_frees: HashSet<usize>,
    /// Failed requests that were made while idle memory was left, which a retry would have taken.
    pub(super) hurried_failures: HashSet<usize>,
    /// How often the allocator gave memory back by itself.
    pub(super) own: u64,
    /// How many of those the program may have asked for all the same.
    pub(super) doubtful: u64,
    /// How often the allocator tried again: at least, as far as the trace tells, and at most.
    pub(super) retries: (u64, u64),
    /// Whether one of them was for want of memory.
    was_full: bool,
    /// The least that was reserved and asked for together by a request that found no room.
    refused_bytes: Option<u64>,
    /// How much memory there was, if that can be told.
    pub(super) memory: Option<RecordedMemory>,
}

/// Whose doing a run of entries is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Program,
    /// The allocator gave back some of what was idle.
    Part,
    /// The allocator waited for everything and gave it back.
    Retry,
}

/// What the call stacks of a run say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stacks {
    /// They are those of the request that follows.
    Same,
    Others,
    Nothing,
}

impl Flushes {
    pub(super) fn of(
        snapshot: &Snapshot,
        device: u32,
        trace: &[TraceEntry],
        old: &[OldBlock],
    ) -> Flushes {
        let config = snapshot.recorded_config();
        let segments = || snapshot.segments.iter().filter(|segment| segment.device == device);
        let gives_back =
            |entry: &TraceEntry| is_given_back(entry) || entry.action == Action::OutOfMemory;
        let room = snapshot.room(device);
        if !trace.iter().any(gives_back) {
            let levels = room.map(|_| Levels::of(&config, segments(), trace));
            let told =
                room.zip(levels).and_then(|(room, levels)| levels.memory_in(&config, room, None));
            return Flushes { memory: told, ..Flushes::default() };
        }
        let mut levels = Levels::of(&config, segments(), trace);
        let mut search = Search {
            snapshot,
            trace,
            config: &config,
            requests: Requests::of(trace),
            room_bytes: levels.room_bytes,
            reserved_bytes: levels.first_bytes,
            shadow: Shadow::before(&config, segments(), trace, old),
            places: Places::new(snapshot, device, trace),
            tells: Tells::of(trace),
            found: Flushes::default(),
        };
        search.run();
        let mut found = search.found;
        if let Some(full_bytes) = found.refused_bytes {
            levels.refuse(full_bytes);
        }
        found.memory = levels.memory(&config, found.was_full);
        if let Some(room) = room {
            found.memory = levels.memory_in(&config, room, found.memory);
        }
        found
    }
}

fn is_given_back(entry: &TraceEntry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

/// Walks through a trace.
struct Search<'a> {
    snapshot: &'a Snapshot,
    trace: &'a [TraceEntry],
    config: &'a Config,
    requests: Requests,
    room_bytes: u64,
    reserved_bytes: u64,
    shadow: Shadow<'a>,
    places: Places<'a>,
    tells: Tells,
    found: Flushes,
}

/// What was known before the first entry of a run.
struct Before {
    run: Range<usize>,
    request: Option<Request>,
    pool_id: (u64, u64),
    reserved_bytes: u64,
    is_served: bool,
}

impl Search<'_> {
    fn run(&mut self) {
        let mut index = 0;
        while index < self.trace.len() {
            if self.is_late_free(index) {
                self.found.late_frees.insert(index);
                self.follow(index);
                // Its completion is the first thing that the retry did.
                index += 1;
                let before = self.before(index..self.end_of_run(index + 1));
                before.run.clone().for_each(|index| self.follow(index));
                self.judge(&before);
                index = before.run.end;
                continue;
            }
            let end = self.end_of_run(index);
            if end > index {
                let before = self.before(index..end);
                (index..end).for_each(|index| self.follow(index));
                self.judge(&before);
                index = end;
            } else {
                if self.trace[index].action == Action::OutOfMemory {
                    self.fail(index);
                }
                self.follow(index);
                index += 1;
            }
        }
    }

    /// A request failed. It was tried again, if it came to that.
    fn fail(&mut self, index: usize) {
        let is_hurried = self.shadow.has_idle_segment();
        if is_hurried {
            self.found.hurried_failures.insert(index);
        }
        self.found.retries.0 += u64::from(!is_hurried);
        self.found.retries.1 += 1;
    }

    /// Behind the entries from `start` on that give memory back, or tell of blocks that were waited
    /// for.
    fn end_of_run(&self, start: usize) -> usize {
        let belongs = |index: usize| {
            let entry = &self.trace[index];
            is_given_back(entry)
                || entry.action == Action::FreeCompleted && self.tells.requests && {
                    // The second half of a plain free belongs to the first.
                    let last = index.checked_sub(1).map(|last| &self.trace[last]);
                    last.is_none_or(|last| {
                        last.action != Action::FreeRequested || last.addr != entry.addr
                    })
                }
        };
        (start..self.trace.len()).find(|&index| !belongs(index)).unwrap_or(self.trace.len())
    }

    /// Whether the entry requests a free that completed only when the allocator waited for it,
    /// though nothing lies between the two: what comes next is a failure or a flush for a request
    /// that the block would have served.
    fn is_late_free(&self, index: usize) -> bool {
        let entry = &self.trace[index];
        let completes =
            |next: &TraceEntry| next.action == Action::FreeCompleted && next.addr == entry.addr;
        if entry.action != Action::FreeRequested
            || !self.trace.get(index + 1).is_some_and(completes)
        {
            return false;
        }
        let run = index + 1..self.end_of_run(index + 2);
        let Some(next) = self.trace.get(run.end).map(|next| next.action) else { return false };
        let is_flushed = run.clone().any(|at| is_given_back(&self.trace[at]));
        if !is_flushed && next != Action::OutOfMemory {
            return false;
        }
        let before = self.before(run);
        let Some(request) = before.request.filter(|_| !before.is_served) else { return false };
        let serves = |shadow: &Shadow<'_>| {
            shadow.serves(request.stream, before.pool_id, request.rounded_bytes)
        };
        let mut after = self.shadow.clone();
        after.put(entry.addr);
        if !serves(&after) {
            return false;
        }
        for entry in &self.trace[index + 2..before.run.end] {
            match entry.action {
                Action::FreeCompleted => after.put(entry.addr),
                _ => after.follow(entry, PoolKind::Large, DEFAULT_POOL),
            }
        }
        match (self.stacks(&before), next) {
            // A retry leaves no idle segment; whoever fails beside one never came to retry.
            (_, Action::OutOfMemory) if after.has_idle_segment() => false,
            (Stacks::Same, _) => true,
            (Stacks::Others, _) => !is_flushed,
            // Whoever emptied the cache would have been served with what is still there.
            (Stacks::Nothing, Action::OutOfMemory | Action::SegmentAlloc | Action::SegmentMap) => {
                serves(&after)
            }
            (Stacks::Nothing, _) => false,
        }
    }

    fn before(&self, run: Range<usize>) -> Before {
        let request = self.requests.at(run.end, self.trace, self.config);
        let pool_id = request.map_or(DEFAULT_POOL, |request| self.pool_of(&request));
        let is_served = request.is_some_and(|request| {
            self.shadow.serves(request.stream, pool_id, request.rounded_bytes)
        });
        Before { run, request, pool_id, reserved_bytes: self.reserved_bytes, is_served }
    }

    /// The pool that serves a request. A segment that comes for it is not followed yet.
    fn pool_of(&self, request: &Request) -> (u64, u64) {
        let entry = &self.trace[request.index];
        match entry.pool {
            Some(pool) => self.snapshot.pool_id(pool),
            None if entry.action == Action::OutOfMemory => DEFAULT_POOL,
            None => self.places.pool_of_request(request.index, self.trace),
        }
    }

    fn follow(&mut self, index: usize) {
        let entry = &self.trace[index];
        self.places.follow(index, entry);
        self.reserved_bytes = reserved_after(self.reserved_bytes, entry);
        let (mut kind, mut pool_id) = (PoolKind::Large, DEFAULT_POOL);
        if matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
            && let Some(request) = self.requests.at(index, self.trace, self.config)
        {
            (kind, pool_id) = (size::kind(request.rounded_bytes), self.pool_of(&request));
        }
        let is_free = match entry.action {
            Action::FreeRequested => !self.tells.completions,
            Action::FreeCompleted => true,
            _ => false,
        };
        if is_free {
            self.shadow.put(entry.addr);
        } else {
            self.shadow.follow(entry, kind, pool_id);
        }
    }

    fn judge(&mut self, before: &Before) {
        let run = before.run.clone();
        let first = run.clone().find(|&index| is_given_back(&self.trace[index]));
        let is_failure = |index| {
            self.trace
                .get(index)
                .is_some_and(|entry: &TraceEntry| entry.action == Action::OutOfMemory)
        };
        let Some(first) = first else {
            // What was waited for in vain.
            if is_failure(run.end) {
                self.found.waited_for.extend(run);
            }
            return;
        };
        let stacks = self.stacks(before);
        let doing = self.doing(before, stacks);
        if doing == Doing::Program {
            self.found.empties.insert(first);
            return;
        }
        self.found.own += 1;
        // Garbage is collected long before there is no room.
        let collects = self.config.garbage_collection_threshold > 0.0;
        let is_full = doing == Doing::Retry || !collects;
        self.found.was_full |= is_full;
        if let Some(request) = before.request.filter(|_| is_full) {
            let full_bytes = request.full_at(before.reserved_bytes, self.config);
            let known_bytes = self.found.refused_bytes.unwrap_or(u64::MAX);
            self.found.refused_bytes = Some(known_bytes.min(full_bytes));
        }
        let is_sure = stacks == Stacks::Same
            || is_failure(run.end)
            || self.has_grown(&run)
            || doing == Doing::Part && self.shadow.has_idle_segment();
        self.found.doubtful += u64::from(!is_sure);
        // The retry of a failure is counted with the failure. Where there are other reasons to give
        // memory back, it may have been enough without one.
        if !is_failure(run.end) {
            let is_only_reason = !collects && self.config.max_split_bytes.is_none();
            self.found.retries.0 += u64::from(is_sure && is_only_reason);
            self.found.retries.1 += 1;
        }
        if doing == Doing::Retry {
            let completed = run.filter(|&at| self.trace[at].action == Action::FreeCompleted);
            self.found.waited_for.extend(completed);
        }
    }

    fn doing(&self, before: &Before, stacks: Stacks) -> Doing {
        let Some(request) = before.request else { return Doing::Program };
        // Pages came, and no allocation after them: there were not enough.
        if self.has_grown(&before.run) {
            return Doing::Retry;
        }
        if stacks == Stacks::Others || before.is_served {
            return Doing::Program;
        }
        // What goes to a private pool is under a capture as a rule, which is no time to retry.
        if before.pool_id != DEFAULT_POOL && stacks != Stacks::Same {
            return Doing::Program;
        }
        let config = self.config;
        let collects = config.garbage_collection_threshold > 0.0;
        if (collects || config.max_split_bytes.is_some()) && self.shadow.has_idle_segment() {
            return Doing::Part;
        }
        let mut run = before.run.clone();
        match self.trace[before.run.end].action {
            Action::OutOfMemory => return Doing::Retry,
            Action::SegmentAlloc | Action::SegmentMap => {}
            // What was waited for serves it, beside pages that were given back.
            Action::Alloc if run.any(|at| self.trace[at].action == Action::FreeCompleted) => {}
            _ => return Doing::Program,
        }
        let asked_bytes = before.reserved_bytes.saturating_add(request.growth_bytes(config));
        let threshold = config.garbage_collection_threshold * self.room_bytes as f64;
        if asked_bytes > self.room_bytes {
            Doing::Retry
        } else if collects && before.reserved_bytes as f64 > threshold {
            Doing::Part
        } else {
            Doing::Program
        }
    }

    /// Whether memory was got just before a run, for a request that it was not enough for.
    fn has_grown(&self, run: &Range<usize>) -> bool {
        let last = run.start.checked_sub(1).map(|last| self.trace[last].action);
        matches!(last, Some(Action::SegmentAlloc | Action::SegmentMap))
    }

    fn stacks(&self, before: &Before) -> Stacks {
        let Some(request) = before.request else { return Stacks::Nothing };
        let stack = |index: usize| -> Option<StackId> {
            let stack = self.trace[index].stack?;
            (self.snapshot.stack(stack).len() > 0).then_some(stack)
        };
        let Some(asking) = stack(request.index) else { return Stacks::Nothing };
        let given_back = before.run.clone().filter(|&index| is_given_back(&self.trace[index]));
        let mut stacks = given_back.map(stack);
        if stacks.clone().all(|stack| stack.is_none()) {
            Stacks::Nothing
        } else if stacks.all(|stack| stack == Some(asking)) {
            Stacks::Same
        } else {
            Stacks::Others
        }
    }
}
