//! Live: what an allocator remembers, as a snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use larder_core::allocator::history::DeviceSnapshot;
use larder_core::config::Config;
use larder_core::heap::State;
use larder_core::heap::run::Run;
use larder_core::record::context::Context;
use larder_core::record::event::Action as CoreAction;
use larder_core::record::history::{Stage, TraceEntry};
use larder_core::types::PoolKind;
use larder_core::{Policy, TorchVersion};
use serde_json::{Map, Value, json};

use super::Snapshot;
use super::build::{Builder, NewEntry};
use super::entry::{Action, BlockInfo, BlockState, SegmentInfo, StackId};
use super::room::{DEVICES_KEY, rooms};
use super::version::POLICY_KEY;

/// How the times of a history are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Nanoseconds since 1970 at moment 0 of the history's clock; 0 leaves times as they are.
    pub unix_ns: u64,
}

impl From<CoreAction> for Action {
    fn from(action: CoreAction) -> Action {
        match action {
            CoreAction::Alloc => Action::Alloc,
            CoreAction::FreeRequested => Action::FreeRequested,
            CoreAction::FreeCompleted => Action::FreeCompleted,
            CoreAction::SegmentAlloc => Action::SegmentAlloc,
            CoreAction::SegmentFree => Action::SegmentFree,
            CoreAction::SegmentMap => Action::SegmentMap,
            CoreAction::SegmentUnmap => Action::SegmentUnmap,
            CoreAction::Snapshot => Action::Snapshot,
            CoreAction::OutOfMemory => Action::OutOfMemory,
            CoreAction::Annotate => Action::Annotate,
        }
    }
}

/// Contexts that many name have their frames looked up once.
#[derive(Default)]
struct Stacks(HashMap<usize, Option<StackId>>);

impl Stacks {
    fn stack(&mut self, builder: &mut Builder, context: &Arc<dyn Context>) -> Option<StackId> {
        let place = Arc::as_ptr(context).cast::<()>().addr();
        *self.0.entry(place).or_insert_with(|| {
            let frames: Vec<u32> = context
                .frames()
                .iter()
                .map(|frame| builder.frame(&frame.name, &frame.filename, frame.line, Map::new()))
                .collect();
            builder.stack(&frames)
        })
    }
}

impl Snapshot {
    /// What allocators remember, one of each device, in the order of the devices.
    pub fn of_allocators(devices: &[DeviceSnapshot], epoch: Epoch) -> Snapshot {
        let mut builder = Builder::new();
        let mut stacks = Stacks::default();
        let mut annotations = Vec::new();
        for device in devices {
            while builder.trace_count() <= device.device.0 as usize {
                builder.begin_trace();
            }
            for entry in &device.trace {
                push(&mut builder, &mut stacks, entry, epoch);
            }
            for run in &device.runs {
                let segment = segment(&mut builder, &mut stacks, run, device.device.0);
                builder.segments.push(segment);
            }
            annotations.extend(device.annotations.iter().map(|annotation| {
                json!({
                    "name": &*annotation.name,
                    "stage": if annotation.stage == Stage::Start { "START" } else { "END" },
                    "device": device.device.0,
                    "time_us": time_us(annotation.time_ns, epoch),
                })
            }));
        }
        let mut more = Map::new();
        let (config, policy) = match devices.first() {
            Some(device) => (device.config.clone(), device.policy.clone()),
            None => (Config::default(), Policy::default()),
        };
        let mut settings = settings(&config, &policy);
        settings[DEVICES_KEY] = rooms(devices);
        more.insert("allocator_settings".to_owned(), settings);
        // The host's memory is another allocator's; the keys are there where PyTorch has them.
        if policy.torch.is_none_or(|version| version >= TorchVersion::V2_14) {
            more.insert("host_segments".to_owned(), json!([]));
            more.insert("host_traces".to_owned(), json!([]));
        }
        more.insert("external_annotations".to_owned(), annotations.into());
        builder.more = Some(more);
        builder.finish()
    }
}

pub(super) fn time_us(time_ns: u64, epoch: Epoch) -> u64 {
    time_ns.saturating_add(epoch.unix_ns) / 1000
}

fn push(builder: &mut Builder, stacks: &mut Stacks, entry: &TraceEntry, epoch: Epoch) {
    let stack = entry.context.as_ref().and_then(|context| stacks.stack(builder, context));
    builder.entry(NewEntry {
        action: entry.action.into(),
        addr: entry.addr,
        size_bytes: entry.size_bytes,
        stream: entry.stream.0,
        time_us: Some(time_us(entry.time_ns, epoch)),
        compile_context: Some(entry.compile_context.as_deref().unwrap_or("N/A")),
        user_metadata: Some(&entry.user_metadata),
        pool_id: Some((entry.pool.0, entry.pool.1)),
        stack,
        more: own_doing(&entry.internal_metadata),
    });
}

/// What the allocator says of an entry, where it says something; since PyTorch 2.15.
pub(super) fn own_doing(doing: &str) -> Map<String, Value> {
    let mut more = Map::new();
    if !doing.is_empty() {
        more.insert("internal_metadata".to_owned(), doing.into());
    }
    more
}

fn segment(builder: &mut Builder, stacks: &mut Stacks, run: &Run, device: u32) -> SegmentInfo {
    let no_stack = builder.stack(&[]);
    let mut stack = |context: Option<&Arc<dyn Context>>| match context {
        Some(context) => stacks.stack(builder, context),
        None => no_stack,
    };
    let blocks = run.blocks.iter().map(|block| BlockInfo {
        addr: block.span.addr.0,
        size_bytes: block.span.size_bytes,
        requested_bytes: block.requested_bytes,
        stack: stack(block.context.as_ref()),
        state: match block.state {
            State::Live => BlockState::Allocated,
            State::Waiting => BlockState::PendingFree,
            // A run has none of the others.
            State::Free | State::Deferred | State::Unmapped | State::Lent | State::Hollow => {
                BlockState::Inactive
            }
        },
        more: None,
    });
    SegmentInfo {
        blocks: blocks.collect(),
        device,
        addr: run.addr.0,
        size_bytes: run.size_bytes(),
        stream: run.stream.0,
        pool_id: (run.pool.0, run.pool.1),
        is_small: run.kind == PoolKind::Small,
        is_expandable: run.expandable,
        stack: stack(run.context.as_ref()),
        more: sums(run.allocated_bytes(), run.active_bytes(), run.requested_bytes()),
    }
}

/// The sums that torch shows with a segment.
pub(super) fn sums(
    allocated_bytes: u64,
    active_bytes: u64,
    requested_bytes: u64,
) -> Map<String, Value> {
    let sums = [
        ("allocated_size", allocated_bytes),
        ("active_size", active_bytes),
        ("requested_size", requested_bytes),
    ];
    sums.into_iter().map(|(key, bytes)| (key.to_owned(), bytes.into())).collect()
}

/// The settings as torch shows them, with the policy.
pub(super) fn settings(config: &Config, policy: &Policy) -> Value {
    let divisions: Map<String, Value> = config
        .roundup_divisions
        .iter()
        .enumerate()
        .map(|(class, &divisions)| ((1_u64 << class).to_string(), divisions.into()))
        .collect();
    let mut settings = json!({
        "PYTORCH_CUDA_ALLOC_CONF": config.text_in_force(),
        "max_split_size": config.max_split_bytes.map_or(-1, |max| max as i64),
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "pinned_num_register_threads": config.pinned.register_threads,
        "release_lock_on_cudamalloc": config.release_lock_on_device_alloc,
        "pinned_use_cuda_host_register": config.pinned.use_host_register,
        "graph_capture_record_stream_reuse": config.capture_reuse,
        "roundup_power2_divisions": divisions,
    });
    if policy.torch.is_none_or(|version| version >= TorchVersion::V2_13) {
        let limit = |bytes: Option<u64>| json!(bytes.map_or(-1, |bytes| bytes as i64));
        settings["max_round_threshold"] = limit(config.pinned.max_round_threshold_bytes);
        settings["max_cached_size"] = limit(config.pinned.max_cached_bytes);
    }
    settings[POLICY_KEY] = policy.name.into();
    settings
}
