//! Recording: the operations behind the trace of one device.

mod error;
mod places;
mod prehistory;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use larder_core::types::Span;
use larder_sim::script::{Op, Route};

use larder_snapshot::{Action, Snapshot, TraceEntry};
use places::{DEFAULT_POOL, Places};
use prehistory::{OldBlock, Tells, old_blocks};

pub use error::RecordingError;

/// A trace as a script, and what a replay of it needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The operations. They begin with the blocks that were live before the recording.
    pub ops: Vec<Op>,
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
    /// How many allocations failed while it was recorded. They are not replayed.
    pub ooms: u64,
    /// How many entries have an action that is not known. They are not replayed.
    pub unknown_entries: u64,
}

impl Recording {
    /// The operations that the trace of a device records.
    pub fn from_snapshot(snapshot: &Snapshot, device: u32) -> Result<Recording, RecordingError> {
        let trace = trace_of(snapshot, device)?;
        let places = Places::new(snapshot, device, trace);
        let old = old_blocks(snapshot, device, trace, &places)?;
        let mut writer = Writer::new(places, &old, trace);
        for block in &old {
            writer.old_block(block);
        }
        for block in old.iter().filter(|block| block.is_waiting) {
            writer.free_waiting(block.addr);
        }
        for (index, entry) in trace.iter().enumerate() {
            writer.entry(index, entry, trace.get(index + 1));
        }
        Ok(writer.finish())
    }
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
    /// The pool and the stream of the scope that is open.
    scope: Option<(u32, u32)>,
    holdings: HashMap<u64, Holding>,
    next_id: u64,
    tells: Tells,
    /// Whether the last entry that counts freed a segment.
    in_segment_frees: bool,
}

impl<'a> Writer<'a> {
    fn new(places: Places<'a>, old: &[OldBlock], trace: &[TraceEntry]) -> Writer<'a> {
        let mut streams = HashMap::from([(0, 0)]);
        let allocations = trace.iter().filter(|entry| entry.action == Action::Alloc);
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
            ..Recording::default()
        };
        Writer {
            recording,
            places,
            next_stream: streams.len() as u32,
            streams,
            pools: HashMap::new(),
            scope: None,
            holdings: HashMap::new(),
            next_id: 0,
            tells: Tells::of(trace),
            in_segment_frees: false,
        }
    }

    fn push(&mut self, op: Op) {
        self.recording.ops.push(op);
    }

    fn entry(&mut self, index: usize, entry: &TraceEntry, next: Option<&TraceEntry>) {
        self.places.follow(index, entry);
        let was_in_segment_frees = self.in_segment_frees;
        // What is unmapped in the same sweep does not end a run of freed segments.
        self.in_segment_frees = match entry.action {
            Action::SegmentFree => true,
            Action::SegmentUnmap => was_in_segment_frees,
            _ => false,
        };
        match entry.action {
            Action::Alloc => {
                self.recording.allocations += 1;
                self.alloc(entry.addr, entry.size_bytes, entry.stream, self.places.pool_of(entry));
            }
            Action::FreeRequested => {
                self.recording.frees += 1;
                let completes_at_once = next.is_some_and(|next| {
                    next.action == Action::FreeCompleted && next.addr == entry.addr
                });
                if completes_at_once || !self.tells.completions {
                    self.free(entry.addr);
                } else {
                    self.recording.waited_frees += 1;
                    self.free_waiting(entry.addr);
                }
            }
            Action::FreeCompleted => self.complete(entry.addr),
            Action::SegmentFree if !was_in_segment_frees => {
                self.close_scope();
                self.push(Op::Empty);
            }
            Action::OutOfMemory => self.recording.ooms += 1,
            Action::Other => self.recording.unknown_entries += 1,
            Action::SegmentFree
            | Action::SegmentAlloc
            | Action::SegmentMap
            | Action::SegmentUnmap
            | Action::Snapshot => {}
        }
    }

    fn old_block(&mut self, block: &OldBlock) {
        self.alloc(block.addr, block.size_bytes, block.stream, block.pool_id);
    }

    fn alloc(&mut self, addr: u64, size_bytes: u64, stream: u64, pool_id: (u64, u64)) {
        let stream = self.streams.get(&stream).copied().unwrap_or(0);
        self.route(pool_id, stream);
        let id = self.next_id;
        self.next_id += 1;
        self.holdings.insert(addr, Holding::Live(id));
        self.push(Op::Alloc { id, size_bytes, stream });
    }

    fn free(&mut self, addr: u64) {
        if let Some(Holding::Live(id)) = self.holdings.remove(&addr) {
            self.push(Op::Free { id });
        }
    }

    /// Frees a block that waits for a stream which nothing else uses.
    fn free_waiting(&mut self, addr: u64) {
        if let Some(&Holding::Live(id)) = self.holdings.get(&addr) {
            let stream = self.next_stream;
            self.next_stream += 1;
            self.close_scope();
            self.push(Op::Record { id, stream });
            self.push(Op::Free { id });
            self.holdings.insert(addr, Holding::Waiting(stream));
        }
    }

    fn complete(&mut self, addr: u64) {
        match self.holdings.remove(&addr) {
            Some(Holding::Waiting(stream)) => {
                self.close_scope();
                self.push(Op::Sync { stream });
            }
            // The request was left out of the recording.
            Some(Holding::Live(id)) => {
                self.recording.frees += 1;
                self.push(Op::Free { id });
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
        if pool == next_pool {
            self.push(Op::PoolNew { pool });
        }
        self.push(Op::PoolBegin { pool, route: Route::Stream(stream) });
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
        self.recording.pools = self.pools.len() as u32;
        self.recording
    }
}
