//! Build: a snapshot from something else than a pickle.

use std::ops::Range;

use serde_json::{Map, Value};

use super::entry::{Action, BlockInfo, Frame, Note, SegmentInfo, StackId, TraceEntry};
use super::parts::Parts;
use super::tree::text_of;
use super::{Snapshot, word};
use crate::pickle::{TextId, Texts};

/// A snapshot on the way.
pub(super) struct Builder {
    parts: Parts,
    texts: Texts,
    traces: Vec<Range<usize>>,
    pub(super) segments: Vec<SegmentInfo>,
    pub(super) more: Option<Map<String, Value>>,
}

/// What an entry is made of.
pub(super) struct NewEntry<'a> {
    pub(super) action: Action,
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) stream: u64,
    pub(super) time_us: Option<u64>,
    pub(super) compile_context: Option<&'a str>,
    pub(super) user_metadata: Option<&'a str>,
    pub(super) pool_id: Option<(u64, u64)>,
    pub(super) stack: Option<StackId>,
    pub(super) more: Map<String, Value>,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            parts: Parts::new(),
            texts: Texts::new(word::WORDS),
            traces: Vec::new(),
            segments: Vec::new(),
            more: None,
        }
    }

    fn text(&mut self, text: &str) -> TextId {
        self.texts.intern(text).expect("fewer than 4 billion texts")
    }

    fn more(&mut self, more: Map<String, Value>) -> Option<TextId> {
        (!more.is_empty()).then(|| self.text(&text_of(more)))
    }

    pub(super) fn frame(
        &mut self,
        name: &str,
        filename: &str,
        line: u32,
        more: Map<String, Value>,
    ) -> u32 {
        let (name, filename) = (self.text(name), self.text(filename));
        let more = self.more(more);
        self.parts.stacks.add_frame(Frame { name, filename, line, more })
    }

    pub(super) fn stack(&mut self, frames: &[u32]) -> Option<StackId> {
        self.parts.stacks.add(frames)
    }

    /// What else is said of a block.
    pub(super) fn block_more(&mut self, block: &mut BlockInfo, more: Map<String, Value>) {
        block.more = self.more(more);
    }

    /// How many traces there are.
    pub(super) fn trace_count(&self) -> usize {
        self.traces.len()
    }

    /// The trace of the next device begins.
    pub(super) fn begin_trace(&mut self) {
        let at = self.parts.entries.len();
        self.traces.push(at..at);
    }

    /// The next entry of the last trace.
    pub(super) fn entry(&mut self, new: NewEntry<'_>) {
        let note = Note {
            compile_context: new.compile_context.map(|text| self.text(text)),
            user_metadata: new.user_metadata.map(|text| self.text(text)),
        };
        let more = self.more(new.more);
        if let Some(more) = more {
            self.parts.more.insert(self.parts.entries.len() as u32, more);
        }
        let entry = TraceEntry {
            addr: new.addr,
            size_bytes: new.size_bytes,
            stream: new.stream,
            time_us: new.time_us.unwrap_or(0),
            stack: new.stack,
            note: self.parts.add_note(note),
            pool: new.pool_id.map(|pool| self.parts.pool(pool)),
            action: new.action,
            has_time: new.time_us.is_some(),
            has_more: more.is_some(),
        };
        self.parts.entries.push(entry);
        if let Some(trace) = self.traces.last_mut() {
            trace.end += 1;
        }
    }

    pub(super) fn finish(self) -> Snapshot {
        let Builder { parts, texts, traces, segments, more } = self;
        let settings = more.as_ref().and_then(|more| more.get("allocator_settings"));
        let conf = settings.and_then(|settings| settings.get("PYTORCH_CUDA_ALLOC_CONF"));
        let (frames, stacks) = parts.stacks.into_parts();
        Snapshot {
            segments,
            allocator_conf: conf.and_then(Value::as_str).map(str::to_owned),
            more,
            unkept_values: 0,
            entries: parts.entries,
            entries_more: parts.more,
            traces,
            frames,
            stacks,
            notes: parts.notes,
            pools: parts.pools,
            texts,
        }
    }
}
