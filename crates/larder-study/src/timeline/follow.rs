//! Follow: a replay, event by event.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::Allocator;
use larder_core::record::event::{Action, Event};
use larder_core::types::Addr;
use larder_sim::script::Op;

use super::gaps::Gaps;
use super::series::{Levels, Series};
use super::{Allocation, Growth, Lane, NEVER, Stretch, Timeline};
use crate::replay::{Audience, Outcome};
use crate::watch::{Extent, Watch, Watched};

/// How many operations go by between two looks at a progress bar.
const LOOK_OPS: usize = 1 << 14;

/// An event, as it is told under the allocator's lock.
#[derive(Clone, Copy)]
struct Told {
    action: Action,
    addr: u64,
    size_bytes: u64,
    lane: Lane,
}

/// Hears of each event, and asks the allocator after each operation how large the block is.
pub(super) struct Follower<'a> {
    told: Arc<Mutex<Vec<Told>>>,
    ops: &'a [Op],
    watched: Watched<'a>,
    /// The operation whose events come next.
    op: usize,
    heard: Vec<Told>,
    events: u32,
    now: Levels,
    series: Series,
    gaps: Gaps,
    lanes: HashMap<Lane, u32>,
    allocations: Vec<Allocation>,
    /// The allocation at each address that is active.
    active: HashMap<u64, u32>,
    stretches: Vec<Stretch>,
    /// The stretch at each address that is held.
    held: BTreeMap<u64, u32>,
    growths: Vec<Growth>,
    failures: Vec<Growth>,
    /// A growth whose request has not been heard of yet.
    pending: Option<Growth>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(allocator: &Allocator, ops: &'a [Op], watch: &'a dyn Watch) -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = told.clone();
        allocator.on_event(move |event: &Event<'_>| {
            let lane = Lane { stream: event.stream, pool: event.pool };
            let Event { action, addr, size_bytes, .. } = *event;
            let told = Told { action, addr, size_bytes, lane };
            teller.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        });
        Follower {
            told,
            ops,
            watched: Watched::begin(watch, "replaying", Extent::Steps(ops.len() as u64)),
            op: 0,
            heard: Vec::new(),
            events: 0,
            now: Levels::default(),
            series: Series::new(),
            gaps: Gaps::default(),
            lanes: HashMap::new(),
            allocations: Vec::new(),
            active: HashMap::new(),
            stretches: Vec::new(),
            held: BTreeMap::new(),
            growths: Vec::new(),
            failures: Vec::new(),
            pending: None,
        }
    }

    pub(super) fn finish(self, outcome: Outcome) -> Timeline {
        let mut lanes: Vec<(Lane, u32)> = self.lanes.into_iter().collect();
        lanes.sort_unstable_by_key(|&(_, number)| number);
        Timeline {
            events: self.events,
            allocations: self.allocations,
            stretches: self.stretches,
            lanes: lanes.into_iter().map(|(lane, _)| lane).collect(),
            series: self.series,
            growths: self.growths,
            failures: self.failures,
            outcome,
        }
    }

    /// The events of the operation that was just run.
    fn hear(&mut self, allocator: &Allocator) {
        let mut heard = std::mem::take(&mut self.heard);
        std::mem::swap(&mut heard, &mut *self.told.lock().unwrap_or_else(PoisonError::into_inner));
        for told in &heard {
            if matches!(told.action, Action::Snapshot | Action::Annotate) {
                continue;
            }
            self.event(told, allocator);
            self.now.free = self.now.reserved.saturating_sub(self.now.active);
            self.now.largest = self.gaps.largest_bytes();
            self.series.push(self.now);
            self.events += 1;
        }
        heard.clear();
        self.heard = heard;
    }

    fn lane(&mut self, lane: Lane) -> u32 {
        let next = self.lanes.len() as u32;
        *self.lanes.entry(lane).or_insert(next)
    }

    fn event(&mut self, told: &Told, allocator: &Allocator) {
        let lane = self.lane(told.lane);
        let (addr, size_bytes) = (told.addr, told.size_bytes);
        match told.action {
            Action::Alloc => self.alloc(told, lane, allocator),
            Action::FreeRequested => {
                if let Some(&number) = self.active.get(&addr) {
                    let allocation = &mut self.allocations[number as usize];
                    allocation.freed = self.events;
                    self.now.allocated = self.now.allocated.saturating_sub(allocation.size_bytes);
                }
            }
            Action::FreeCompleted => self.complete(addr),
            Action::SegmentAlloc | Action::SegmentMap => {
                let expandable = told.action == Action::SegmentMap;
                if self.pending.is_none() {
                    self.pending = Some(self.growth(lane));
                }
                self.hold(addr, size_bytes, lane, expandable);
                self.now.reserved += size_bytes;
                self.gaps.hold(addr, size_bytes, expandable);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.let_go(addr, size_bytes);
                self.now.reserved = self.now.reserved.saturating_sub(size_bytes);
                self.gaps.release(addr, size_bytes);
            }
            Action::OutOfMemory => {
                let failure = Growth { asked_bytes: size_bytes, ..self.growth(lane) };
                self.failures.push(failure);
            }
            Action::Snapshot | Action::Annotate => {}
        }
    }

    fn growth(&self, lane: u32) -> Growth {
        Growth {
            event: self.events,
            lane,
            asked_bytes: 0,
            free_bytes: self.gaps.free_bytes,
            largest_bytes: self.gaps.largest_bytes(),
            runs: self.gaps.count(),
        }
    }

    fn alloc(&mut self, told: &Told, lane: u32, allocator: &Allocator) {
        let id = match self.ops.get(self.op) {
            Some(&Op::Alloc { id, .. }) => id,
            _ => u64::MAX,
        };
        // A block that is gone again already was of no use to anybody.
        let size_bytes = allocator.usable_bytes(Addr(told.addr)).unwrap_or(told.size_bytes);
        if let Some(growth) = self.pending.take() {
            self.growths.push(Growth { asked_bytes: size_bytes, ..growth });
        }
        self.active.insert(told.addr, self.allocations.len() as u32);
        self.allocations.push(Allocation {
            id,
            begin: self.events,
            freed: NEVER,
            end: NEVER,
            lane,
            addr: told.addr,
            size_bytes,
            asked_bytes: told.size_bytes,
        });
        self.now.allocated += size_bytes;
        self.now.active += size_bytes;
        self.gaps.take(told.addr, size_bytes);
    }

    fn complete(&mut self, addr: u64) {
        let Some(number) = self.active.remove(&addr) else { return };
        let allocation = &mut self.allocations[number as usize];
        if allocation.freed == NEVER {
            allocation.freed = self.events;
            self.now.allocated = self.now.allocated.saturating_sub(allocation.size_bytes);
        }
        allocation.end = self.events;
        let (addr, size_bytes) = (allocation.addr, allocation.size_bytes);
        self.now.active = self.now.active.saturating_sub(size_bytes);
        if self.is_held(addr) {
            self.gaps.give(addr, size_bytes);
        }
    }

    /// Whether there is memory of its own at an address; a view has none.
    fn is_held(&self, addr: u64) -> bool {
        self.held.range(..=addr).next_back().is_some_and(|(&start, &number)| {
            addr < start + self.stretches[number as usize].size_bytes
        })
    }

    fn hold(&mut self, addr: u64, size_bytes: u64, lane: u32, expandable: bool) {
        let begin = self.events;
        self.held.insert(addr, self.stretches.len() as u32);
        self.stretches.push(Stretch { begin, end: NEVER, lane, expandable, addr, size_bytes });
    }

    /// Memory goes back, be it whole stretches or a part of one.
    fn let_go(&mut self, addr: u64, size_bytes: u64) {
        let end = addr + size_bytes;
        let from = self.held.range(..=addr).next_back().map_or(addr, |(&from, _)| from);
        let met: Vec<(u64, u32)> =
            self.held.range(from..end).map(|(&at, &number)| (at, number)).collect();
        for (at, number) in met {
            let stretch = self.stretches[number as usize];
            let stretch_end = at + stretch.size_bytes;
            if stretch_end <= addr {
                continue;
            }
            self.stretches[number as usize].end = self.events;
            self.held.remove(&at);
            if at < addr {
                self.hold(at, addr - at, stretch.lane, stretch.expandable);
            }
            if end < stretch_end {
                self.hold(end, stretch_end - end, stretch.lane, stretch.expandable);
            }
        }
    }
}

impl Audience for Follower<'_> {
    fn before(&mut self, allocator: &Allocator, index: usize) {
        self.hear(allocator);
        self.op = index;
        if index.is_multiple_of(LOOK_OPS) {
            self.watched.reach(index as u64);
        }
    }

    fn after(&mut self, allocator: &Allocator) {
        self.hear(allocator);
    }
}
