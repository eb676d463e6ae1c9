//! Recording: the operations behind the trace of one device.

mod error;
mod flushes;
mod memory;
mod places;
mod prehistory;
mod shadow;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use larder_core::types::Span;
use larder_core::{Policy, TorchVersion};
use larder_sim::script::{Op, Route};

use flushes::Flushes;
use larder_snapshot::{Action, Snapshot, TraceEntry};
use places::{DEFAULT_POOL, Places};
use prehistory::{OldBlock, Tells, old_blocks};

pub use error::RecordingError;
pub use memory::{Bounds, RecordedMemory, ToldBy};

/// A trace as a script, and what a replay of it needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The operations. They begin with the blocks that were live before the recording.
    pub ops: Vec<Op>,
    /// What each allocation is in the trace, by its ID: IDs count up from 0.
    pub origins: Vec<Origin>,
    /// Where the recorded device put its segments: first those that are older than the recording,
    /// by address, then the allocated ones in their order.
    pub segment_addresses: Vec<Span>,
    /// How many blocks were there before the recording began.
    pub preexisting_blocks: u64,
    /// How many bytes they had, as the program asked for them.
    pub preexisting_bytes: u64,
    /// How many streams the program used, the default stream included. Their numbers are those
    /// below this; higher ones are made up for blocks that waited.
    pub streams: u32,
    /// How many private pools there are. Their numbers begin at 1.
    pub pools: u32,
    /// How many entries the trace has.
    pub entries: u64,
    /// How many allocations the trace has, those from before it not counted.
    pub allocations: u64,
    /// How many frees the trace has.
    pub frees: u64,
    /// How many of the frees waited for another stream.
    pub waited_frees: u64,
    /// How many allocations failed while it was recorded. They are requests like all others; where
    /// one is met after all, its block goes back at once if the program went on without it.
    pub ooms: u64,
    /// Whether nothing was asked for after the last of them: the program went no further.
    pub ends_at_failure: bool,
    /// How often the program emptied the cache.
    pub empties: u64,
    /// How often the recorded allocator gave memory back by itself: to try again, or because its
    /// settings told it to. That is not replayed, because a replay does the same by itself.
    pub own_flushes: u64,
    /// How many of those the program may have asked for all the same.
    pub doubtful_flushes: u64,
    /// How often the recorded allocator gave its cache back and tried again: at least, as far as
    /// the trace tells, and at most.
    pub retries: (u64, u64),
    /// How much memory the recorded program had, if the trace tells it.
    pub memory: Option<RecordedMemory>,
    /// The most that it held at once.
    pub held_bytes: u64,
    /// The allocations that are requests which failed: the program never had them.
    pub refused: Vec<u64>,
    /// The settings of the recorded allocator, in its own syntax, if the snapshot has them.
    pub conf: Option<String>,
    /// The PyTorch that made the recording, as far as its keys tell.
    pub torch: Option<TorchVersion>,
    /// The policy of Larder's that made it, if one did.
    pub policy: Option<Policy>,
    /// Whether a request that failed had the snapshot written, the last that it tells of.
    pub on_failure: bool,
    /// How many entries have an action that is not known. They are not replayed.
    pub unknown_entries: u64,
    /// Where the trace tells of each allocation, in the order of their IDs, which begin at 0.
    pub lives: Vec<Life>,
    /// The recorded addresses of the blocks from before the recording, which are the first
    /// allocations.
    pub old_addrs: Vec<u64>,
}

/// Which entries of a trace tell of one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// The entry at which it was asked for; none if it is older than the recording.
    pub begin: Option<u32>,
    /// The entry at which the program gave it back, if it did.
    pub end: Option<u32>,
}

/// What an allocation of the operations is in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was there before the trace began, at this address.
    Before(u64),
    /// The entry of this number in the device's trace asks for it.
    Entry(usize),
}

impl Recording {
    /// The operations that the trace of a device records.
    pub fn from_snapshot(snapshot: &Snapshot, device: u32) -> Result<Recording, RecordingError> {
        let trace = trace_of(snapshot, device)?;
        let places = Places::new(snapshot, device, trace);
        let old = old_blocks(snapshot, device, trace, &places)?;
        let flushes = Flushes::of(snapshot, device, trace, &old);
        let mut writer = Writer::new(places, &old, trace, flushes);
        writer.recording.conf = snapshot.conf_in_force();
        writer.recording.torch = snapshot.torch_version();
        writer.recording.on_failure = snapshot.is_on_failure();
        writer.recording.policy = snapshot.larder_policy().and_then(|name| name.parse().ok());
        let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
        writer.recording.held_bytes = memory::held_most_bytes(segments, trace);
        writer.made_by_program = made_by_program(snapshot, device);
        for block in &old {
            writer.old_block(block);
        }
        for block in old.iter().filter(|block| block.is_waiting) {
            writer.free_waiting(block.addr);
        }
        for index in 0..trace.len() {
            writer.entry(index, trace);
        }
        Ok(writer.finish())
    }
}

/// The pools that are no capture's for sure: where captures' memory was plain, theirs was not. Of
/// others that bear a program's name it is not known, since a capture may have been told to use
/// such a one.
fn made_by_program(snapshot: &Snapshot, device: u32) -> HashSet<(u64, u64)> {
    if !snapshot.recorded_config().plain_captures {
        return HashSet::new();
    }
    let segments = snapshot.segments.iter();
    let paged = segments.filter(|segment| segment.device == device && segment.is_expandable);
    paged.map(|segment| segment.pool_id).collect()
}

fn trace_of(snapshot: &Snapshot, device: u32) -> Result<&[TraceEntry], RecordingError> {
    let device_count = snapshot.device_count();
    if device_count == 0 {
        return Err(RecordingError::NoTraces);
    }
    match snapshot.trace(device) {
        None => Err(RecordingError::NoSuchDevice { device, device_count }),
        Some([]) => {
            let recorded_device = (0..device_count as u32)
                .find(|&device| snapshot.trace(device).is_some_and(|trace| !trace.is_empty()));
            Err(RecordingError::EmptyTrace { device, recorded_device })
        }
        Some(trace) => Ok(trace),
    }
}

/// Whether the last request of a trace failed.
fn ends_at_failure(trace: &[TraceEntry]) -> bool {
    let is_request =
        |entry: &&TraceEntry| matches!(entry.action, Action::Alloc | Action::OutOfMemory);
    trace.iter().rfind(is_request).is_some_and(|entry| entry.action == Action::OutOfMemory)
}

/// What stands at an address.
#[derive(Clone, Copy)]
enum Holding {
    /// The live allocation of this ID.
    Live(u64),
    /// A freed allocation that waits for this stream.
    Waiting(u32),
}

/// Writes the operations one after the other.
struct Writer<'a> {
    recording: Recording,
    places: Places<'a>,
    streams: HashMap<u64, u32>,
    next_stream: u32,
    pools: HashMap<(u64, u64), u32>,
    /// The pools that are known to be no capture's.
    made_by_program: HashSet<(u64, u64)>,
    /// The pool and the stream of the scope that is open.
    scope: Option<(u32, u32)>,
    holdings: HashMap<u64, Holding>,
    next_id: u64,
    tells: Tells,
    flushes: Flushes,
    /// The pool of the last allocation on each stream.
    last_pools: HashMap<u32, (u64, u64)>,
    /// Streams that the next request waits for by itself, where it has to.
    late: Vec<u32>,
    /// The entry that is being written.
    here: Option<u32>,
}

impl<'a> Writer<'a> {
    fn new(
        places: Places<'a>,
        old: &[OldBlock],
        trace: &[TraceEntry],
        flushes: Flushes,
    ) -> Writer<'a> {
        let mut streams = HashMap::from([(0, 0)]);
        let asks =
            |entry: &&TraceEntry| matches!(entry.action, Action::Alloc | Action::OutOfMemory);
        let allocations = trace.iter().filter(asks);
        let allocation_streams = allocations.map(|entry| entry.stream);
        for stream in old.iter().map(|block| block.stream).chain(allocation_streams) {
            let number = streams.len() as u32;
            streams.entry(stream).or_insert(number);
        }
        let recording = Recording {
            segment_addresses: places.segment_addresses.clone(),
            preexisting_blocks: old.len() as u64,
            preexisting_bytes: old
                .iter()
                .fold(0, |sum: u64, block| sum.saturating_add(block.size_bytes)),
            streams: streams.len() as u32,
            entries: trace.len() as u64,
            ends_at_failure: ends_at_failure(trace),
            empties: flushes.empties.len() as u64,
            own_flushes: flushes.own,
            doubtful_flushes: flushes.doubtful,
            retries: flushes.retries,
            memory: flushes.memory,
            old_addrs: old.iter().map(|block| block.addr).collect(),
            ..Recording::default()
        };
        Writer {
            recording,
            places,
            next_stream: streams.len() as u32,
            streams,
            pools: HashMap::new(),
            made_by_program: HashSet::new(),
            scope: None,
            holdings: HashMap::new(),
            next_id: 0,
            tells: Tells::of(trace),
            flushes,
            last_pools: HashMap::new(),
            late: Vec::new(),
            here: None,
        }
    }

    fn push(&mut self, op: Op) {
        self.recording.ops.push(op);
    }

    fn entry(&mut self, index: usize, trace: &[TraceEntry]) {
        let entry = &trace[index];
        self.here = u32::try_from(index).ok();
        self.places.follow(index, entry);
        match entry.action {
            Action::Alloc => {
                self.recording.allocations += 1;
                self.recording.origins.push(Origin::Entry(index));
                self.alloc(entry.addr, entry.size_bytes, entry.stream, self.places.pool_of(entry));
            }
            Action::FreeRequested => {
                self.recording.frees += 1;
                let completes_at_once = trace.get(index + 1).is_some_and(|next| {
                    next.action == Action::FreeCompleted && next.addr == entry.addr
                });
                let completes_at_once =
                    completes_at_once && !self.flushes.late_frees.contains(&index);
                if completes_at_once || !self.tells.completions {
                    self.free(entry.addr);
                } else {
                    self.recording.waited_frees += 1;
                    self.free_waiting(entry.addr);
                }
            }
            Action::FreeCompleted => {
                self.complete(entry.addr, self.flushes.waited_for.contains(&index));
            }
            Action::SegmentFree | Action::SegmentUnmap if self.flushes.empties.contains(&index) => {
                self.close_scope();
                self.push(Op::Empty);
            }
            Action::OutOfMemory => {
                self.recording.ooms += 1;
                self.fail(index, trace);
            }
            Action::Other => self.recording.unknown_entries += 1,
            Action::SegmentFree
            | Action::SegmentAlloc
            | Action::SegmentMap
            | Action::SegmentUnmap
            | Action::Snapshot
            | Action::Annotate => {}
        }
    }

    fn old_block(&mut self, block: &OldBlock) {
        self.recording.origins.push(Origin::Before(block.addr));
        self.alloc(block.addr, block.size_bytes, block.stream, block.pool_id);
    }

    fn alloc(&mut self, addr: u64, size_bytes: u64, stream: u64, pool_id: (u64, u64)) {
        let id = self.request(size_bytes, stream, pool_id);
        self.holdings.insert(addr, Holding::Live(id));
    }

    fn request(&mut self, size_bytes: u64, stream: u64, pool_id: (u64, u64)) -> u64 {
        let stream = self.streams.get(&stream).copied().unwrap_or(0);
        self.route(pool_id, stream);
        self.last_pools.insert(stream, pool_id);
        let id = self.next_id;
        self.next_id += 1;
        self.recording.lives.push(Life { begin: self.here, end: None });
        self.push(Op::Alloc { id, size_bytes, stream });
        if !self.late.is_empty() {
            self.close_scope();
            let late = std::mem::take(&mut self.late);
            self.recording.ops.extend(late.into_iter().map(|stream| Op::Sync { stream }));
        }
        id
    }

    /// A request that failed. The program never had its block: where it is met after all, the block
    /// counts at its moment, and goes back if the program went on.
    fn fail(&mut self, index: usize, trace: &[TraceEntry]) {
        let entry = &trace[index];
        let stream = self.streams.get(&entry.stream).copied().unwrap_or(0);
        // Whoever fails with idle memory left was in no position to give it back: under a capture,
        // or routed to a private pool, as what came before it on its stream.
        let last_pool = self.last_pools.get(&stream).copied().unwrap_or(DEFAULT_POOL);
        let pool_id = match entry.pool {
            Some(_) => self.places.pool_of(entry),
            None if self.flushes.hurried_failures.contains(&index) => last_pool,
            None => DEFAULT_POOL,
        };
        self.recording.origins.push(Origin::Entry(index));
        let id = self.request(entry.size_bytes, entry.stream, pool_id);
        self.recording.refused.push(id);
        if trace[index + 1..].iter().any(|later| later.action != Action::Snapshot) {
            self.give_back(id);
        }
    }

    fn give_back(&mut self, id: u64) {
        self.recording.lives[id as usize].end = self.here;
        self.push(Op::Free { id });
    }

    fn free(&mut self, addr: u64) {
        if let Some(Holding::Live(id)) = self.holdings.remove(&addr) {
            self.give_back(id);
        }
    }

    /// Frees a block that waits for a stream which nothing else uses.
    fn free_waiting(&mut self, addr: u64) {
        if let Some(&Holding::Live(id)) = self.holdings.get(&addr) {
            let stream = self.next_stream;
            self.next_stream += 1;
            self.close_scope();
            self.push(Op::Record { id, stream });
            self.give_back(id);
            self.holdings.insert(addr, Holding::Waiting(stream));
        }
    }

    fn complete(&mut self, addr: u64, is_waited_for: bool) {
        match self.holdings.remove(&addr) {
            Some(Holding::Waiting(stream)) if is_waited_for => self.late.push(stream),
            Some(Holding::Waiting(stream)) => {
                self.close_scope();
                self.push(Op::Sync { stream });
            }
            // The request was left out of the recording.
            Some(Holding::Live(id)) => {
                self.recording.frees += 1;
                self.give_back(id);
            }
            None => {}
        }
    }

    /// Sees to it that the next allocation on the stream goes to the pool. A scope stays open over
    /// a run of allocations and plain frees; whatever else an open scope could influence closes it.
    fn route(&mut self, pool_id: (u64, u64), stream: u32) {
        if pool_id == DEFAULT_POOL {
            self.close_scope();
            return;
        }
        let next_pool = self.pools.len() as u32 + 1;
        let pool = *self.pools.entry(pool_id).or_insert(next_pool);
        if self.scope == Some((pool, stream)) {
            return;
        }
        self.close_scope();
        let new = Op::PoolNew { pool };
        let begin = Op::PoolBegin { pool, route: Route::Stream(stream) };
        // A program makes its pool before it uses it; a capture's is made by the scope that uses it
        // first.
        let is_new = pool == next_pool;
        let is_programs = self.made_by_program.contains(&pool_id);
        let ops = [(is_new && is_programs, new), (true, begin), (is_new && !is_programs, new)];
        for (_, op) in ops.into_iter().filter(|&(is_due, _)| is_due) {
            self.push(op);
        }
        self.scope = Some((pool, stream));
    }

    fn close_scope(&mut self) {
        if let Some((pool, _)) = self.scope.take() {
            self.push(Op::PoolEnd { pool });
            // Opening the scope added a use; this keeps the count level.
            self.push(Op::PoolRelease { pool });
        }
    }

    fn finish(mut self) -> Recording {
        self.close_scope();
        for stream in std::mem::take(&mut self.late) {
            self.push(Op::Sync { stream });
        }
        self.recording.pools = self.pools.len() as u32;
        self.recording
    }
}
