//! Snapshots: the state of all devices and what is remembered, as lists that C can read.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::Arc;

use larder_core::allocator::history::{DeviceSnapshot, SnapshotOptions};
use larder_core::heap::State;
use larder_core::heap::run::{Run, RunBlock};
use larder_core::record::history::Stage;
use larder_core::types::PoolKind;
use larder_core::{Allocator, PoolId};

use crate::border::{
    Foreign, Held, Out, Owned, PoolName, Status, Token, c_string, guard, guard_or,
};
use crate::checkpoint::list;
use crate::context;
use crate::history::{Event, NOT_COMPILING};
use crate::larder::Larder;

/// `larder_block_state`
pub(crate) mod block_state {
    pub(crate) const FREE: u32 = 0;
    pub(crate) const LIVE: u32 = 1;
    pub(crate) const WAITING: u32 = 2;
}

/// `larder_snapshot_block`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) requested_size: u64,
    pub(crate) state: u32,
    pub(crate) context: Foreign,
}

/// `larder_snapshot_segment`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) device: i32,
    pub(crate) addr: u64,
    pub(crate) total_size: u64,
    pub(crate) allocated_size: u64,
    pub(crate) active_size: u64,
    pub(crate) requested_size: u64,
    pub(crate) stream: Token,
    pub(crate) is_large: bool,
    pub(crate) is_expandable: bool,
    pub(crate) pool: PoolName,
    pub(crate) serial: u64,
    pub(crate) context: Foreign,
    pub(crate) blocks: *const Block,
    pub(crate) block_count: usize,
}

/// `larder_annotation`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Annotation {
    pub(crate) device: i32,
    pub(crate) start: bool,
    pub(crate) time_ns: u64,
    pub(crate) name: *const c_char,
}

/// `larder_snapshot`
pub(crate) struct Snapshots {
    segments: Vec<Segment>,
    /// For each device what happened there.
    events: Vec<Vec<Event>>,
    annotations: Vec<Annotation>,
    /// What the lists above point to: the blocks of each segment, the texts, and the snapshots that
    /// keep the contexts.
    _behind: (Vec<Vec<Block>>, Texts, Vec<DeviceSnapshot>),
}

/// Texts for C, each of them once.
#[derive(Default)]
struct Texts(HashMap<Arc<str>, CString>);

impl Texts {
    fn put(&mut self, text: &Arc<str>) -> *const c_char {
        if let Some(kept) = self.0.get(text) {
            return kept.as_ptr();
        }
        // Its bytes stay where they are when the table grows.
        self.0.entry(Arc::clone(text)).or_insert_with(|| c_string(&**text)).as_ptr()
    }
}

impl Snapshots {
    fn new(kept: Vec<DeviceSnapshot>) -> Snapshots {
        let mut texts = Texts::default();
        let mut blocks = Vec::new();
        let (mut segments, mut events, mut annotations) = (Vec::new(), Vec::new(), Vec::new());
        for (at, snapshot) in kept.iter().enumerate() {
            let device = at as i32;
            for run in &snapshot.runs {
                let list: Vec<Block> = run.blocks.iter().map(block).collect();
                segments.push(segment(device, run, &list));
                blocks.push(list);
            }
            let entries = snapshot.trace.iter().map(|entry| {
                let compiling = entry.compile_context.as_ref();
                let compiling = compiling.map_or(NOT_COMPILING.as_ptr(), |text| texts.put(text));
                let metadata = texts.put(&entry.user_metadata);
                let own = texts.put(&entry.internal_metadata);
                Event::remembered(device, entry, compiling, metadata, own)
            });
            events.push(entries.collect());
            for annotation in &snapshot.annotations {
                annotations.push(Annotation {
                    device,
                    start: annotation.stage == Stage::Start,
                    time_ns: annotation.time_ns,
                    name: texts.put(&annotation.name),
                });
            }
        }
        Snapshots { segments, events, annotations, _behind: (blocks, texts, kept) }
    }
}

fn block(block: &RunBlock) -> Block {
    let state = match block.state {
        State::Live => block_state::LIVE,
        State::Waiting => block_state::WAITING,
        // A run has none of the others.
        State::Free | State::Deferred | State::Unmapped | State::Lent | State::Hollow => {
            block_state::FREE
        }
    };
    Block {
        addr: block.span.addr.0,
        size: block.span.size_bytes,
        requested_size: block.requested_bytes,
        state,
        context: context::pointer_of(block.context.as_deref()),
    }
}

/// The blocks must stay where they are.
fn segment(device: i32, run: &Run, blocks: &[Block]) -> Segment {
    Segment {
        device,
        addr: run.addr.0,
        total_size: run.size_bytes(),
        allocated_size: run.allocated_bytes(),
        active_size: run.active_bytes(),
        requested_size: run.requested_bytes(),
        stream: Token::new(run.stream.0),
        is_large: run.kind == PoolKind::Large,
        is_expandable: run.expandable,
        pool: run.pool.into(),
        serial: run.serial,
        context: context::pointer_of(run.context.as_deref()),
        blocks: blocks.as_ptr(),
        block_count: blocks.len(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_take_snapshot(
    larder: Held<Larder>,
    pool: PoolName,
    traces: bool,
    out: Out<Owned<Snapshots>>,
) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let pool = Some(PoolId::from(pool)).filter(|&pool| pool != PoolId::NONE);
        let options = SnapshotOptions::default().pool(pool).traces(traces);
        let take = |allocator: &Allocator| allocator.take_snapshot(options);
        let taken: Vec<DeviceSnapshot> = larder.allocators().iter().map(take).collect();
        out.put(Owned::give(Snapshots::new(taken)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_snapshot_segments(
    snapshot: Held<Snapshots>,
    count: Out<usize>,
) -> *const Segment {
    list(snapshot.read().map_or(&[], |snapshot| &snapshot.segments), count)
}

#[unsafe(no_mangle)]
extern "C" fn larder_snapshot_events(
    snapshot: Held<Snapshots>,
    device: i32,
    count: Out<usize>,
) -> *const Event {
    let at = usize::try_from(device).unwrap_or(usize::MAX);
    let events = snapshot.read().and_then(|snapshot| snapshot.events.get(at));
    list(events.map_or(&[], Vec::as_slice), count)
}

#[unsafe(no_mangle)]
extern "C" fn larder_snapshot_annotations(
    snapshot: Held<Snapshots>,
    count: Out<usize>,
) -> *const Annotation {
    list(snapshot.read().map_or(&[], |snapshot| &snapshot.annotations), count)
}

#[unsafe(no_mangle)]
extern "C" fn larder_snapshot_free(snapshot: Held<Snapshots>) {
    guard_or((), || drop(snapshot.take()));
}
