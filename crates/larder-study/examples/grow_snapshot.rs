//! Makes a large snapshot out of a small one: the same recording, many times over.
//!
//! `cargo run --release --example grow_snapshot -- IN.pickle.gz OUT.pickle LAPS`
//!
//! Between two laps everything is given back, blocks and segments, so the result is a valid
//! recording. It is written as Python's pickler writes it, protocol 4 with memoised keys, about 71
//! bytes an entry; call stacks are left out.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use larder_snapshot::{Action, BlockState, SegmentInfo, Snapshot, TraceEntry};
use larder_study::recording::Recording;

/// Python cuts its pickles into frames of about this size.
const FRAME_BYTES: usize = 64 << 10;
/// Python adds at most this many items to a list at once.
const BATCH_ITEMS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, input, output, laps] = arguments.as_slice() else {
        return Err("usage: grow_snapshot IN OUT LAPS".into());
    };
    let laps: u64 = laps.parse()?;
    let snapshot = Snapshot::open(Path::new(input), |_| ())?;
    if Recording::from_snapshot(&snapshot, 0)?.preexisting_blocks > 0 {
        return Err("the recording does not start with an empty allocator".into());
    }
    let trace = snapshot.trace(0).unwrap_or_default();
    let mut writer = PickleWriter::new(BufWriter::new(File::create(output)?))?;
    writer.write_snapshot(&snapshot, trace, laps)?;
    writer.finish()?;
    Ok(())
}

/// What gives back everything that a trace leaves behind.
fn clean_up(trace: &[TraceEntry]) -> Vec<TraceEntry> {
    let mut blocks: BTreeMap<u64, TraceEntry> = BTreeMap::new();
    let mut segments: BTreeMap<u64, TraceEntry> = BTreeMap::new();
    for entry in trace {
        match entry.action {
            Action::Alloc | Action::FreeRequested => drop(blocks.insert(entry.addr, *entry)),
            Action::FreeCompleted => drop(blocks.remove(&entry.addr)),
            Action::SegmentAlloc => drop(segments.insert(entry.addr, *entry)),
            Action::SegmentFree => drop(segments.remove(&entry.addr)),
            _ => {}
        }
    }
    let mut entries = Vec::new();
    for block in blocks.into_values() {
        if block.action == Action::Alloc {
            entries.push(TraceEntry { action: Action::FreeRequested, ..block });
        }
        entries.push(TraceEntry { action: Action::FreeCompleted, ..block });
    }
    let freed = segments.into_values();
    entries.extend(freed.map(|segment| TraceEntry { action: Action::SegmentFree, ..segment }));
    entries
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::OutOfMemory => "oom",
        Action::Annotate => "annotate",
        Action::Snapshot | Action::Other => "snapshot",
    }
}

/// Writes opcodes as Python's own pickler does.
struct PickleWriter<W> {
    output: W,
    frame: Vec<u8>,
    texts: HashMap<&'static str, u32>,
    memo_count: u32,
}

impl<W: Write> PickleWriter<W> {
    fn new(mut output: W) -> io::Result<PickleWriter<W>> {
        output.write_all(&[0x80, 4])?;
        Ok(PickleWriter { output, frame: Vec::new(), texts: HashMap::new(), memo_count: 0 })
    }

    fn finish(mut self) -> io::Result<()> {
        self.frame.push(b'.');
        self.end_frame()?;
        self.output.flush()
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.output.write_all(&[0x95])?;
        self.output.write_all(&(self.frame.len() as u64).to_le_bytes())?;
        self.output.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }

    fn memoise(&mut self) {
        self.frame.push(0x94);
        self.memo_count += 1;
    }

    fn container(&mut self, opcode: u8) {
        self.frame.push(opcode);
        self.memoise();
    }

    fn key(&mut self, text: &'static str) {
        let Some(&number) = self.texts.get(text) else {
            self.texts.insert(text, self.memo_count);
            self.fresh_text(text);
            return;
        };
        if let Ok(number) = u8::try_from(number) {
            self.frame.extend([b'h', number]);
        } else {
            self.frame.push(b'j');
            self.frame.extend(number.to_le_bytes());
        }
    }

    fn fresh_text(&mut self, text: &str) {
        self.frame.extend([0x8c, text.len() as u8]);
        self.frame.extend(text.as_bytes());
        self.memoise();
    }

    fn integer(&mut self, number: u64) {
        if let Ok(number) = u8::try_from(number) {
            self.frame.extend([b'K', number]);
        } else if let Ok(number) = u16::try_from(number) {
            self.frame.push(b'M');
            self.frame.extend(number.to_le_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.frame.push(b'J');
            self.frame.extend(number.to_le_bytes());
        } else {
            // One bit more than the number has, for the sign.
            let count = (64 - number.leading_zeros()) / 8 + 1;
            let bytes = u128::from(number).to_le_bytes();
            self.frame.extend([0x8a, count as u8]);
            self.frame.extend(&bytes[..count as usize]);
        }
    }

    fn field(&mut self, key: &'static str, number: u64) {
        self.key(key);
        self.integer(number);
    }

    fn entry(&mut self, entry: &TraceEntry, delay_us: u64) {
        self.container(b'}');
        self.frame.push(b'(');
        self.key("action");
        self.key(action_name(entry.action));
        let is_oom = entry.action == Action::OutOfMemory;
        self.field(if is_oom { "device_free" } else { "addr" }, entry.addr);
        self.field("size", entry.size_bytes);
        self.field("stream", entry.stream);
        self.field("time_us", entry.time_us + delay_us);
        self.key("compile_context");
        self.key("N/A");
        self.key("user_metadata");
        self.fresh_text("");
        self.frame.push(b'u');
    }

    fn segment(&mut self, segment: &SegmentInfo) {
        self.container(b'}');
        self.frame.push(b'(');
        self.field("device", u64::from(segment.device));
        self.field("address", segment.addr);
        self.field("total_size", segment.size_bytes);
        self.field("stream", segment.stream);
        self.key("segment_type");
        self.key(if segment.is_small { "small" } else { "large" });
        self.key("segment_pool_id");
        self.integer(segment.pool_id.0);
        self.integer(segment.pool_id.1);
        self.container(0x86);
        self.key("is_expandable");
        self.frame.push(if segment.is_expandable { 0x88 } else { 0x89 });
        self.key("blocks");
        self.container(b']');
        self.frame.push(b'(');
        for block in &segment.blocks {
            self.container(b'}');
            self.frame.push(b'(');
            self.field("address", block.addr);
            self.field("size", block.size_bytes);
            self.field("requested_size", block.requested_bytes);
            self.key("state");
            self.key(match block.state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            });
            self.frame.push(b'u');
        }
        self.frame.extend(b"eu");
    }

    fn write_snapshot(
        &mut self,
        snapshot: &Snapshot,
        trace: &[TraceEntry],
        laps: u64,
    ) -> io::Result<()> {
        self.container(b'}');
        self.frame.push(b'(');
        self.key("segments");
        self.container(b']');
        self.frame.push(b'(');
        for segment in snapshot.segments.iter().filter(|segment| segment.device == 0) {
            self.segment(segment);
        }
        self.frame.push(b'e');
        self.key("device_traces");
        self.container(b']');
        self.container(b']');
        let times = || trace.iter().map(|entry| entry.time_us);
        let lap_us = times().max().unwrap_or(0) - times().min().unwrap_or(0) + 1;
        let rest = clean_up(trace);
        for lap in 0..laps {
            let rest = if lap + 1 == laps { &[] } else { rest.as_slice() };
            for batch in trace.chunks(BATCH_ITEMS).chain(rest.chunks(BATCH_ITEMS)) {
                self.frame.push(b'(');
                for entry in batch {
                    self.entry(entry, lap * lap_us);
                    if self.frame.len() >= FRAME_BYTES {
                        self.end_frame()?;
                    }
                }
                self.frame.push(b'e');
            }
        }
        self.frame.extend(b"au");
        Ok(())
    }
}
