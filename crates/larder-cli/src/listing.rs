//! Listing: what the allocator remembers of a script, as lines of text, for the comparison with
//! PyTorch's own allocator, which `torch/history.hpp` lists in the same way.
//!
//! A script says nothing of contexts, remarks or snapshots, so both sides make them up alike: the
//! context of an event is the number of the operation, and the numbers also say when a remark
//! changes, when something is compiled, when a snapshot is taken and when an annotation begins.

use std::any::Any;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::allocator::history::{DeviceSnapshot, HistoryOptions, SnapshotOptions};
use larder_core::config::Config;
use larder_core::heap::State;
use larder_core::heap::run::Run;
use larder_core::record::context::{Context, Frame};
use larder_core::record::event::{Actions, Event, Level};
use larder_core::record::history::{Stage, TraceEntry};
use larder_core::record::note;
use larder_core::types::{Addr, PoolId, PoolKind};
use larder_core::{Allocator, Error, TorchVersion};
use larder_study::replay::Audience;

/// How many private pools a script may have.
const POOLS: u64 = 8;

/// What a listing shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// For what contexts are gathered.
    pub(crate) level: Level,
    /// How many entries are kept.
    pub(crate) max_entries: usize,
    /// What is not remembered.
    pub(crate) skip: Actions,
}

/// What is written down of a replay besides its outcome.
#[derive(Default)]
pub(crate) struct Notes {
    /// Each allocation's ID and address, if that was asked for.
    pub(crate) placements: Option<Vec<(u64, Addr)>>,
    /// What the allocator remembers, as lines, if that was asked for.
    pub(crate) listed: String,
    listing: Option<Listing>,
}

impl Notes {
    /// Lists what the allocator remembers from now on.
    pub(crate) fn list(&mut self, allocator: &Allocator, wishes: &Wishes) -> Result<(), Error> {
        self.listing = Some(Listing::begin(allocator, wishes)?);
        Ok(())
    }
}

impl Audience for Notes {
    fn before(&mut self, allocator: &Allocator, index: usize) {
        if let Some(listing) = &mut self.listing {
            listing.before(allocator, index as u64 + 1);
        }
    }

    fn placed(&mut self, id: u64, addr: Addr) {
        if let Some(placements) = &mut self.placements {
            placements.push((id, addr));
        }
    }

    fn after(&mut self, allocator: &Allocator) {
        if let Some(listing) = self.listing.take() {
            self.listed = listing.finish(allocator);
        }
    }
}

/// The number of an operation, counted from 1, as a context.
struct Operation(u64);

impl Context for Operation {
    fn fingerprint(&self) -> u64 {
        self.0
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        (other as &dyn Any).downcast_ref::<Operation>().is_some_and(|other| other.0 == self.0)
    }

    fn frames(&self) -> Vec<Frame> {
        vec![Frame { name: "operation".to_owned(), filename: String::new(), line: self.0 as u32 }]
    }
}

/// Everything that trackers were told, as one number and how often.
#[derive(Clone, Copy, Default)]
struct Tracked {
    count: u64,
    sum: u64,
}

impl Tracked {
    fn add(&mut self, event: &Event<'_>) {
        self.count += 1;
        for number in [event.action as u64, event.addr, event.size_bytes] {
            self.sum = (self.sum ^ number).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Listens to an allocator while a script runs.
pub(crate) struct Listing {
    operation: Arc<AtomicU64>,
    tracked: Arc<Mutex<Tracked>>,
    /// How many annotations the snapshots showed that were asked for without the history.
    annotations_without_traces: usize,
}

impl Listing {
    /// Turns the allocator's history on.
    pub(crate) fn begin(allocator: &Allocator, wishes: &Wishes) -> Result<Listing, Error> {
        let operation = Arc::new(AtomicU64::new(0));
        let current = operation.clone();
        let gather = move || -> Option<Arc<dyn Context>> {
            Some(Arc::new(Operation(current.load(Ordering::Relaxed))))
        };
        allocator.record_history(
            HistoryOptions::default()
                .level(wishes.level)
                .max_entries(wishes.max_entries)
                .clear(true)
                .skip(wishes.skip)
                .context_hook(Arc::new(gather)),
        )?;
        let tracked = Arc::new(Mutex::new(Tracked::default()));
        let told = tracked.clone();
        allocator.on_event(move |event| {
            told.lock().expect("counting does not panic").add(event);
        });
        note::set_user_metadata("");
        Ok(Listing { operation, tracked, annotations_without_traces: 0 })
    }

    /// What goes on beside the operation of this number, counted from 1.
    pub(crate) fn before(&mut self, allocator: &Allocator, number: u64) {
        self.operation.store(number, Ordering::Relaxed);
        if number.is_multiple_of(16) {
            note::set_user_metadata(&format!("part {}", number / 16));
        }
        match number % 10 {
            3 => note::push_compile_context(&format!("graph {number}")),
            7 => note::pop_compile_context(),
            _ => {}
        }
        if number.is_multiple_of(32) {
            let stage = if number.is_multiple_of(64) { Stage::Start } else { Stage::End };
            allocator.annotate(&format!("step {}", number / 64), stage);
        }
        if number % 100 == 50 {
            let shot = allocator.take_snapshot(SnapshotOptions::default().traces(false));
            self.annotations_without_traces += shot.annotations.len();
        }
    }

    /// Everything, as lines.
    pub(crate) fn finish(self, allocator: &Allocator) -> String {
        let mut text = String::new();
        let all = allocator.take_snapshot(SnapshotOptions::default());
        let DeviceSnapshot { runs, trace, annotations, config, .. } = &all;
        for entry in trace {
            entry_line(&mut text, entry);
        }
        let shown = self.annotations_without_traces;
        text.push_str(&format!("annotations without traces {shown}\n"));
        for annotation in annotations {
            let stage = if annotation.stage == Stage::Start { "START" } else { "END" };
            text.push_str(&format!("annotation {stage} {}\n", annotation.name));
        }
        run_lines(&mut text, runs);
        for pool in 1..=POOLS {
            text.push_str(&format!("pool {pool}\n"));
            let options = SnapshotOptions::default().pool(Some(PoolId(0, pool))).traces(false);
            run_lines(&mut text, &allocator.take_snapshot(options).runs);
        }
        let Tracked { count, sum } = *self.tracked.lock().expect("counting does not panic");
        text.push_str(&format!("tracked {count} {sum}\n"));
        setting_lines(&mut text, config, allocator.policy().torch);
        text
    }
}

/// The number of the operation in whose context something happened.
fn context(context: Option<&Arc<dyn Context>>) -> String {
    let number = context.and_then(|context| {
        (&**context as &dyn Any).downcast_ref::<Operation>().map(|operation| operation.0)
    });
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn entry_line(text: &mut String, entry: &TraceEntry) {
    let TraceEntry { action, addr, size_bytes, stream, pool, user_metadata, .. } = entry;
    let context = context(entry.context.as_ref());
    let compiling = entry.compile_context.as_deref().unwrap_or("N/A");
    let _ = writeln!(
        text,
        "{action} {addr} {size_bytes} {} {},{} {context} [{compiling}] [{user_metadata}]",
        stream.0, pool.0, pool.1
    );
}

fn run_lines(text: &mut String, runs: &[Run]) {
    for run in runs {
        let kind = if run.kind == PoolKind::Small { "small" } else { "large" };
        let backing = if run.expandable { "expandable" } else { "fixed" };
        let _ = writeln!(
            text,
            "segment {} {} {} {} {} {} {kind} {},{} {backing} {}",
            run.addr.0,
            run.size_bytes(),
            run.allocated_bytes(),
            run.active_bytes(),
            run.requested_bytes(),
            run.stream.0,
            run.pool.0,
            run.pool.1,
            context(run.context.as_ref())
        );
        for block in &run.blocks {
            let state = match block.state {
                State::Live => "active_allocated",
                State::Waiting => "active_pending_free",
                State::Free | State::Deferred | State::Unmapped | State::Lent | State::Hollow => {
                    "inactive"
                }
            };
            let _ = writeln!(
                text,
                "block {} {} {} {state} {}",
                block.span.addr.0,
                block.span.size_bytes,
                block.requested_bytes,
                context(block.context.as_ref())
            );
        }
    }
}

fn setting_lines(text: &mut String, config: &Config, torch: Option<TorchVersion>) {
    let divisions: Vec<String> = config.roundup_divisions.iter().map(u64::to_string).collect();
    let mut settings = vec![
        ("PYTORCH_CUDA_ALLOC_CONF", config.text.clone()),
        ("max_split_size", config.max_split_bytes.map_or(-1, |max| max as i64).to_string()),
        ("garbage_collection_threshold", config.garbage_collection_threshold.to_string()),
        ("expandable_segments", u8::from(config.expandable_segments).to_string()),
        ("pinned_num_register_threads", config.pinned.register_threads.to_string()),
        ("release_lock_on_cudamalloc", u8::from(config.release_lock_on_device_alloc).to_string()),
        ("pinned_use_cuda_host_register", u8::from(config.pinned.use_host_register).to_string()),
        ("graph_capture_record_stream_reuse", u8::from(config.capture_reuse).to_string()),
        ("roundup_power2_divisions", divisions.join(" ")),
    ];
    if torch.is_none_or(|version| version >= TorchVersion::V2_13) {
        let limit = |bytes: Option<u64>| bytes.map_or(-1, |bytes| bytes as i64).to_string();
        settings.push(("max_round_threshold", limit(config.pinned.max_round_threshold_bytes)));
        settings.push(("max_cached_size", limit(config.pinned.max_cached_bytes)));
    }
    for (key, value) in settings {
        text.push_str(&format!("setting {key} {value}\n"));
    }
}
