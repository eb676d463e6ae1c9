//! Origins: what a recording says of the allocations of its script: call stacks, times and remarks.

use std::collections::HashMap;

use larder_snapshot::{BlockState, Snapshot, StackId, TraceEntry};

use crate::recording::Recording;

/// One frame of a call stack, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// The file.
    pub file: String,
    /// The line in the file.
    pub line: u32,
}

/// What is known of one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The number of its call stack.
    pub stack: Option<u32>,
    /// The number of the remark on it.
    pub remark: Option<u32>,
    /// When it was asked for, in microseconds.
    pub begin_us: Option<u64>,
    /// When the program gave it back, in microseconds.
    pub end_us: Option<u64>,
    /// Whether it is older than the recording.
    pub is_old: bool,
}

/// What a recording says of its allocations.
#[derive(Debug, Default)]
pub struct Origins {
    /// By the allocations' IDs.
    pub all: Vec<Origin>,
    /// The call stacks, innermost frame first, as numbers of frames.
    pub stacks: Vec<Vec<u32>>,
    /// The frames.
    pub frames: Vec<Frame>,
    /// The remarks.
    pub remarks: Vec<String>,
}

impl Origins {
    /// What a snapshot says of the allocations of a recording that was made from it.
    pub fn of(snapshot: &Snapshot, device: u32, recording: &Recording) -> Origins {
        let trace = snapshot.trace(device).unwrap_or_default();
        let mut gathering = Gathering {
            snapshot,
            origins: Origins::default(),
            stacks: HashMap::new(),
            frames: HashMap::new(),
            remarks: HashMap::new(),
        };
        let old_stacks = gathering.old_stacks(device);
        for (id, life) in recording.lives.iter().enumerate() {
            let entry = |index: Option<u32>| index.and_then(|index| trace.get(index as usize));
            let time = |entry: &TraceEntry| entry.has_time.then_some(entry.time_us);
            let begin = entry(life.begin);
            let stack = match (begin, recording.old_addrs.get(id)) {
                (Some(entry), _) => entry.stack,
                (None, Some(addr)) => old_stacks.get(addr).copied(),
                (None, None) => None,
            };
            let origin = Origin {
                stack: stack.and_then(|stack| gathering.stack(stack)),
                remark: begin.and_then(|entry| gathering.remark(entry)),
                begin_us: begin.and_then(time),
                end_us: entry(life.end).and_then(time),
                is_old: life.begin.is_none(),
            };
            gathering.origins.all.push(origin);
        }
        gathering.origins
    }

    /// What is known of the allocation of an ID; nothing of one that a script made up.
    pub fn get(&self, id: u64) -> Origin {
        usize::try_from(id).ok().and_then(|id| self.all.get(id)).copied().unwrap_or_default()
    }
}

struct Gathering<'a> {
    snapshot: &'a Snapshot,
    origins: Origins,
    stacks: HashMap<StackId, Option<u32>>,
    frames: HashMap<larder_snapshot::Frame, u32>,
    remarks: HashMap<String, u32>,
}

impl Gathering<'_> {
    /// The stacks of the blocks that were live at the end, by address: all that is known of those
    /// from before the recording.
    fn old_stacks(&self, device: u32) -> HashMap<u64, StackId> {
        let segments = self.snapshot.segments.iter().filter(|segment| segment.device == device);
        let blocks = segments.flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state != BlockState::Inactive);
        live.filter_map(|block| Some((block.addr, block.stack?))).collect()
    }

    /// The number of a stack; a stack with no frames says nothing.
    fn stack(&mut self, id: StackId) -> Option<u32> {
        if let Some(&number) = self.stacks.get(&id) {
            return number;
        }
        let frames: Vec<larder_snapshot::Frame> = self.snapshot.stack(id).collect();
        let numbers: Vec<u32> = frames.into_iter().map(|frame| self.frame(frame)).collect();
        let number = if numbers.is_empty() {
            None
        } else {
            self.origins.stacks.push(numbers);
            Some(self.origins.stacks.len() as u32 - 1)
        };
        self.stacks.insert(id, number);
        number
    }

    fn frame(&mut self, frame: larder_snapshot::Frame) -> u32 {
        if let Some(&number) = self.frames.get(&frame) {
            return number;
        }
        let number = self.origins.frames.len() as u32;
        self.origins.frames.push(Frame {
            name: self.snapshot.text(frame.name).to_owned(),
            file: self.snapshot.text(frame.filename).to_owned(),
            line: frame.line,
        });
        self.frames.insert(frame, number);
        number
    }

    /// What the program, or else the compiler, said of the moment.
    fn remark(&mut self, entry: &TraceEntry) -> Option<u32> {
        let note = self.snapshot.note(entry.note);
        let text = [note.user_metadata, note.compile_context];
        let texts = text.into_iter().flatten().map(|text| self.snapshot.text(text));
        let text = texts.into_iter().find(|text| !text.is_empty() && *text != "N/A")?.to_owned();
        if let Some(&number) = self.remarks.get(&text) {
            return Some(number);
        }
        let number = self.origins.remarks.len() as u32;
        self.origins.remarks.push(text.clone());
        self.remarks.insert(text, number);
        Some(number)
    }
}
