//! One run: the allocator, its checker and its model, one step after the other.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use larder_core::allocator::history::HistoryOptions;
use larder_core::heap::State;
use larder_core::heap::checkpoint::Checkpoint;
use larder_core::heap::states::SegmentState;
use larder_core::record::context::{Context, Frame, Stack};
use larder_core::record::event::Level;
use larder_core::types::{MIB, Span};
use larder_core::{Addr, Allocator, Config, Error, StreamId};

use super::abroad::Abroad;
use super::contents;
use super::external_checker::{ExternalChecker, Terms};
use super::model::{self, Model};
use super::order::Order;
use super::outcome::{Outcome, Placed};
use super::plan::Plan;
use super::report::Report;
use super::source::DeviceSource;
use super::tally;
use larder_sim::script::Op;
use larder_sim::{FaultPlan, SimDevice, SimOptions};

/// A layout that was saved, by the allocator and by the model, with what there is to know of it.
pub(super) struct Saved {
    pub(super) checkpoint: Checkpoint,
    pub(super) modelled: Option<model::Checkpoint>,
    /// The allocations of the script that were live.
    pub(super) ids: HashMap<Addr, u64>,
    /// All blocks of the pool with memory behind them.
    pub(super) layout: Vec<Placed>,
}

/// No request can be as large as this.
const REQUEST_TOO_LARGE_BYTES: u64 = 1 << 60;

/// What a run found wrong, and when.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) step: usize,
    pub(super) reason: String,
}

/// A run under way.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) device: Arc<SimDevice>,
    pub(super) allocator: Allocator,
    pub(super) model: Option<Model>,
    pub(super) checker: ExternalChecker,
    /// Where the allocations of the script are that are live.
    pub(super) addresses: HashMap<u64, Addr>,
    /// The pools that requests are routed to.
    pub(super) open_pools: Vec<u32>,
    /// Every pool that the script has named.
    pub(super) pools: BTreeSet<u32>,
    pub(super) saved: HashMap<u32, Saved>,
    /// Who uses which bytes, where streams share them.
    pub(super) order: Option<Order>,
    /// The blocks that were filled, and with what.
    pub(super) filled: HashMap<Addr, u64>,
    /// Streams that are gone.
    pub(super) gone: BTreeSet<StreamId>,
    pub(super) abroad: Abroad,
    /// Where pools with a source have their segments from.
    pub(super) source: Arc<DeviceSource>,
    pub(super) report: Report,
}

/// Turns on a history that is short and has contexts of its own for every call, so that they come
/// and go all the time. Its clock is not the device's: reading that would shift the planned faults.
fn remember(allocator: &Allocator) {
    let calls = AtomicU32::new(0);
    let hook = move || -> Option<Arc<dyn Context>> {
        let line = calls.fetch_add(1, Ordering::Relaxed) % 1000;
        Some(Arc::new(Stack(vec![Frame { line, ..Frame::default() }])))
    };
    let options = HistoryOptions::default()
        .level(Level::All)
        .max_entries(64)
        .context_hook(Arc::new(hook))
        .clock(Arc::new(|| 0));
    allocator.record_history(options).expect("there is a hook");
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Run<'a> {
        let device = || {
            let faults = plan.trouble.fault_plan(plan.seed);
            let memory_bytes = plan.memory_bytes;
            Arc::new(SimDevice::new(
                SimOptions::default().memory_bytes(memory_bytes).faults(faults),
            ))
        };
        let (own, abroad) = Abroad::new(plan);
        let allocator = Allocator::new(own.clone(), plan.config(), plan.policy.clone());
        if plan.seed.is_multiple_of(3) {
            remember(&allocator);
        }
        let model =
            plan.has_model().then(|| Model::new(device(), plan.config(), plan.judge.clone()));
        let calls_work = !plan.trouble.has_failing_calls();
        let checker = ExternalChecker::new(Terms {
            oversize_is_remembered: plan.policy.oversize_is_remembered,
            calls_work,
            pages_go: calls_work || !plan.trouble.stubborn,
            capture_is_by_stream: plan.policy.capture_is_by_stream(),
            tight: plan.policy.tight,
        });
        let source = Arc::new(DeviceSource::new(own.clone()));
        Run {
            plan,
            device: own,
            allocator,
            model,
            checker,
            addresses: HashMap::new(),
            open_pools: Vec::new(),
            pools: BTreeSet::new(),
            saved: HashMap::new(),
            order: plan.policy.tight.then(Order::default),
            filled: HashMap::new(),
            gone: BTreeSet::new(),
            abroad,
            source,
            report: Report::default(),
        }
    }

    /// Runs a whole script and its ending, or as far as a program could go on. A panic is a finding
    /// like any other.
    pub(super) fn whole(plan: &Plan, ops: &[Op]) -> Result<Report, Finding> {
        let mut run = Run::new(plan);
        for (step, &op) in ops.iter().enumerate() {
            let result = catch_unwind(AssertUnwindSafe(|| run.step(op)));
            let result = result.unwrap_or_else(|panic| Err(panic_text(&*panic)));
            result.map_err(|reason| Finding { step, reason })?;
            if run.model.as_ref().is_some_and(Model::breaks_capture) {
                run.report.cut_short += 1;
                return Ok(run.report);
            }
        }
        let result = catch_unwind(AssertUnwindSafe(|| run.end()));
        let result = result.unwrap_or_else(|panic| Err(panic_text(&*panic)));
        result.map_err(|reason| Finding { step: ops.len(), reason })
    }

    /// Carries out one operation, and checks everything.
    fn step(&mut self, op: Op) -> Result<(), String> {
        self.report.steps += 1;
        self.revive(op);
        let outcome = match op {
            Op::Alloc { id, size_bytes, stream } => {
                self.change_settings(id)?;
                self.malloc(id, size_bytes, StreamId(u64::from(stream)))?
            }
            Op::Free { id } => match self.addresses.get(&id) {
                Some(&addr) => self.free(id, addr)?,
                None => Outcome::Nothing,
            },
            Op::Record { id, stream } => {
                self.record(id, StreamId(u64::from(stream)))?;
                Outcome::Nothing
            }
            Op::Sync { stream } => {
                self.sync(StreamId(u64::from(stream)));
                self.forget_now_and_then(StreamId(u64::from(stream)))?;
                Outcome::Nothing
            }
            Op::Empty => {
                let before = self.device.calls();
                let emptied = self.allocator.empty_cache();
                self.tolerate(emptied)?;
                self.note_waits(before);
                self.model.iter_mut().for_each(Model::empty_cache);
                Outcome::Nothing
            }
            Op::Fraction { fraction } => {
                let set = self.allocator.set_memory_fraction(fraction);
                set.map_err(|error| error.to_string())?;
                self.model.iter_mut().for_each(|model| model.set_fraction(fraction));
                Outcome::Nothing
            }
            Op::ResetPeak | Op::ResetAccumulated => return self.reset(op),
            Op::Restore { checkpoint } => self.restore(checkpoint)?,
            other => {
                self.pool_step(other)?;
                Outcome::Nothing
            }
        };
        self.check(&outcome)
    }

    /// Gives the new settings that come before this allocation, if there are some. A text that
    /// the settings in force rule out must be refused, and change nothing.
    fn change_settings(&mut self, id: u64) -> Result<(), String> {
        let change = self.plan.changes.iter().find(|change| change.before_id == id);
        let Some(change) = change else { return Ok(()) };
        let before = self.allocator.config();
        // What a PyTorch does not know yet, its policy refuses.
        let known = |config: Config| config.check_known(self.plan.policy.torch).map(|()| config);
        let mut expected = before.update(&change.settings).and_then(known);
        if let Ok(expected) = &mut expected {
            expected.expandable_segments |= self.plan.policy.tight;
        }
        let changed = self.allocator.configure(&change.settings);
        if changed.is_ok() != expected.is_ok() {
            return Err(format!("'{}' was taken or refused wrongly", change.settings));
        }
        if self.allocator.config() != expected.unwrap_or(before) {
            return Err(format!("'{}' left other settings than it says", change.settings));
        }
        if let Some(model) = &mut self.model {
            // It refuses the same texts; then its settings stay as they are too.
            let _ = model.configure(&change.settings);
        }
        self.report.changes += 1;
        Ok(())
    }

    /// An allocation, for plain memory if the plan says so.
    fn malloc(&mut self, id: u64, size_bytes: u64, stream: StreamId) -> Result<Outcome, String> {
        self.report.mallocs += 1;
        let asks_for_plain = self.plan.habits.wants_plain(id);
        if asks_for_plain {
            self.allocator.begin_plain();
            self.model.iter_mut().for_each(|model| model.set_plain(true));
        }
        let is_private = |segment: &SegmentState| segment.pool.is_some();
        let outcome = self.malloc_as_asked(id, size_bytes, stream)?;
        if asks_for_plain && !self.allocator.end_plain() {
            return Err("what began was not there to end".to_owned());
        }
        if asks_for_plain {
            self.model.iter_mut().for_each(|model| model.set_plain(false));
        }
        let Outcome::Allocated { addr, .. } = outcome else { return Ok(outcome) };
        let segment = self.allocator.snapshot().into_iter().find(|s| s.span.contains(addr));
        let segment = segment.ok_or(format!("{addr} lies in no segment"))?;
        let is_captured = self.device.is_captured(stream) && is_private(&segment);
        let is_plain = asks_for_plain || is_captured && self.allocator.config().plain_captures;
        if is_plain && (segment.expandable || segment.view) {
            return Err(format!("{addr} is for others to have, and not plain"));
        }
        self.report.plain += u64::from(is_plain);
        Ok(outcome)
    }

    fn malloc_as_asked(
        &mut self,
        id: u64,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Outcome, String> {
        if let Some(placed) = self.malloc_at_times(id, size_bytes, stream)? {
            return Ok(placed);
        }
        let active = |run: &Self| run.allocator.stats().active.all.current;
        let before = active(self);
        let result = self.allocator.malloc(size_bytes, stream);
        if self.device.is_captured(stream) && !self.open_pools.is_empty() {
            let left = active(self) - i64::from(result.is_ok());
            self.report.reclaimed_in_captures += before.saturating_sub(left) as u64;
        }
        let modelled = self.model.as_mut().map(|model| model.malloc(size_bytes, stream));
        let outcome = match result {
            Ok(addr) => {
                self.addresses.insert(id, addr);
                let usable =
                    self.allocator.usable_bytes(addr).map_err(|error| error.to_string())?;
                self.check_strangers(addr, usable)?;
                self.take_into_use(id, Span::new(addr, usable), stream)?;
                let (size_bytes, requested_bytes, before_bytes) = (usable, size_bytes, 0);
                Outcome::Allocated { addr, size_bytes, requested_bytes, stream, before_bytes }
            }
            Err(Error::OutOfMemory(report)) => {
                self.report.out_of_memory += 1;
                let requested = (report.requested_bytes, report.total_bytes);
                if requested != (size_bytes, self.plan.memory_bytes) {
                    return Err(format!("the report says {requested:?} for {size_bytes} bytes"));
                }
                Outcome::Nothing
            }
            Err(error) => {
                self.tolerate(Err(error))?;
                Outcome::Nothing
            }
        };
        let found = match outcome {
            Outcome::Allocated { addr, .. } => Some(addr),
            _ => None,
        };
        match modelled {
            Some(expected) if expected != found => {
                let text = |addr: Option<Addr>| {
                    addr.map_or("out of memory".to_owned(), |addr| addr.to_string())
                };
                Err(format!("the placement is {}, should be {}", text(found), text(expected)))
            }
            _ => Ok(outcome),
        }
    }

    /// Addresses that were never handed out are unknown, and naming one changes nothing.
    fn check_strangers(&self, addr: Addr, usable_bytes: u64) -> Result<(), String> {
        let before = (self.allocator.stats(), self.device.total_calls());
        if usable_bytes > 512 {
            self.check_unknown(addr.offset(512))?;
        }
        self.check_unknown(addr.offset(1))?;
        if self.allocator.malloc(0, StreamId(0)) != Ok(Addr(0))
            || self.allocator.free(Addr(0)).is_err()
        {
            return Err("an allocation of no bytes is not at address 0".to_owned());
        }
        if before != (self.allocator.stats(), self.device.total_calls()) {
            return Err(format!("naming an unknown address near {addr} changed something"));
        }
        Ok(())
    }

    fn check_unknown(&self, addr: Addr) -> Result<(), String> {
        let unknown = Err(Error::UnknownAddress(addr));
        let is_unknown = self.allocator.free(addr) == unknown
            && self.allocator.record_stream(addr, StreamId(0)) == unknown
            && self.allocator.usable_bytes(addr) == Err(Error::UnknownAddress(addr));
        if is_unknown { Ok(()) } else { Err(format!("{addr} is not live, and was taken for it")) }
    }

    fn free(&mut self, id: u64, addr: Addr) -> Result<Outcome, String> {
        let before = self.allocator.stats();
        let events = self.device.calls().record_event;
        self.leave_use(addr)?;
        let freed = self.allocator.free(addr);
        if freed.is_err() {
            self.tolerate(freed)?;
            if before != self.allocator.stats() {
                return Err("a free that failed changed the statistics".to_owned());
            }
            return Ok(Outcome::Nothing);
        }
        self.report.frees += 1;
        let after = self.allocator.stats();
        if after.active.all.current == before.active.all.current {
            self.report.waits += 1;
            self.report.deferrals += u64::from(self.device.calls().record_event == events);
        }
        let calls = self.device.total_calls();
        self.check_unknown(addr)?;
        if (after, calls) != (self.allocator.stats(), self.device.total_calls()) {
            return Err("a second free changed something".to_owned());
        }
        self.addresses.remove(&id);
        self.forget_block(addr);
        self.model.iter_mut().for_each(|model| model.free(addr));
        self.checker.freeing_in_scope(!self.open_pools.is_empty());
        Ok(Outcome::Freed { addr })
    }

    fn record(&mut self, id: u64, stream: StreamId) -> Result<(), String> {
        let Some(&addr) = self.addresses.get(&id) else { return Ok(()) };
        let captured = !self.open_pools.is_empty()
            && (!self.plan.policy.capture_is_by_stream() || self.device.is_captured(stream));
        let recorded = self.allocator.record_stream(addr, stream);
        if recorded.is_err() {
            return self.tolerate(recorded);
        }
        self.model.iter_mut().for_each(|model| model.record_stream(addr, stream));
        self.checker.record_stream(addr, stream, captured);
        if let Some(order) = self.order.as_mut().filter(|_| !captured) {
            order.used(addr, stream);
        }
        Ok(())
    }

    /// A block was handed out: what others did with its bytes is over when its stream begins, and
    /// from here on it holds what is written into it.
    pub(super) fn take_into_use(
        &mut self,
        id: u64,
        block: Span,
        stream: StreamId,
    ) -> Result<(), String> {
        let Some(order) = &mut self.order else { return Ok(()) };
        order.taken(&self.device, block, stream)?;
        contents::fill(&self.device, block, id)?;
        self.filled.insert(block.addr, id);
        self.share_now_and_then(block.addr)
    }

    /// A block is about to be freed, and holds what was written into it.
    fn leave_use(&mut self, addr: Addr) -> Result<(), String> {
        let Some(order) = &mut self.order else { return Ok(()) };
        if let Some(&id) = self.filled.get(&addr) {
            let size_bytes =
                self.allocator.usable_bytes(addr).map_err(|error| error.to_string())?;
            contents::check(&self.device, Span::new(addr, size_bytes), id)?;
        }
        self.checker.uses_end(addr, &order.freeing(&self.device, addr));
        Ok(())
    }

    /// A block was freed.
    pub(super) fn forget_block(&mut self, addr: Addr) {
        self.filled.remove(&addr);
        self.order.iter_mut().for_each(|order| order.freed(addr));
    }

    fn sync(&mut self, stream: StreamId) {
        self.device.sync(stream);
        self.model.iter_mut().for_each(|model| model.device().sync(stream));
        self.checker.sync(stream);
    }

    /// A reset does what it says and nothing else.
    fn reset(&mut self, op: Op) -> Result<(), String> {
        if op == Op::ResetPeak {
            self.allocator.reset_peak_stats();
            self.model.iter_mut().for_each(Model::reset_peak);
            self.checker.reset_peak();
        } else {
            self.allocator.reset_accumulated_stats();
            self.model.iter_mut().for_each(Model::reset_accumulated);
            self.checker.reset_accumulated();
        }
        let reset = tally::difference(&self.allocator.stats(), self.checker.seen());
        reset.map_or(Ok(()), |text| Err(format!("after the reset, {text}")))?;
        self.check(&Outcome::Nothing)
    }

    /// A call may fail because the device did, where that is part of the plan.
    pub(super) fn tolerate(&mut self, result: Result<(), Error>) -> Result<(), String> {
        match result {
            Ok(()) => Ok(()),
            Err(Error::Device { .. } | Error::Source { .. })
                if self.plan.trouble.has_failing_calls() =>
            {
                self.report.device_errors += 1;
                Ok(())
            }
            Err(error) => Err(format!("unexpected: {error}")),
        }
    }

    /// All that must hold after every step.
    pub(super) fn check(&mut self, outcome: &Outcome) -> Result<(), String> {
        self.allocator.check().map_err(|unsound| unsound.to_string())?;
        let stats = self.allocator.stats();
        let seen = *self.checker.seen();
        let snapshot = self.allocator.snapshot();
        let config = self.allocator.config();
        self.checker.reuse_in_captures(config.capture_reuse);
        let limit_bytes = config.max_split_bytes;
        self.checker.observe(outcome, &snapshot, &stats, limit_bytes, &self.device)?;
        self.check_peer()?;
        self.report.view_steps += u64::from(has_tenant(&snapshot));
        let retries = stats.num_alloc_retries - seen.num_alloc_retries;
        self.report.retries += retries;
        let gave_back = stats.num_device_free > seen.num_device_free;
        let took = stats.num_device_alloc > seen.num_device_alloc;
        if let Outcome::Allocated { .. } = outcome {
            self.report.hits += u64::from(!took);
            self.report.partial_releases += u64::from(gave_back && retries == 0);
        }
        let Some(model) = &mut self.model else { return Ok(()) };
        if let Some(difference) = model.difference(&stats) {
            return Err(difference);
        }
        let calls = |device: &SimDevice| {
            let calls = device.calls();
            [calls.alloc, calls.free, calls.reserve, calls.create, calls.map, calls.unmap]
        };
        let (found, expected) = (calls(&self.device), calls(model.device()));
        if found != expected {
            return Err(format!(
                "device calls (alloc, free, reserve, create, map, unmap) are {found:?}, should be \
                 {expected:?}"
            ));
        }
        self.report.model_steps += 1;
        Ok(())
    }

    /// The ending: everything goes back to the device, and dropping the allocator harms nothing.
    fn end(mut self) -> Result<Report, String> {
        let calls = self.device.calls();
        self.report.maps = calls.map;
        self.report.unmaps = calls.unmap;
        self.report.failed_calls = calls.failed;
        self.report.follows = calls.follow_event;
        self.report.source_segments = self.source.given();
        self.report.rested = self.model.as_ref().map_or(0, Model::taken_deferred);
        if !self.plan.abrupt_end {
            self.give_everything_back()?;
            // So that something is live when the allocator goes.
            let addr = self.allocator.malloc(MIB / 2, StreamId(0));
            self.addresses.extend(addr.ok().map(|addr| (0, addr)));
        }
        let spans: Vec<_> = self
            .allocator
            .snapshot()
            .into_iter()
            .flat_map(|segment| {
                segment.blocks.into_iter().filter(|block| block.state == State::Live)
            })
            .map(|block| block.span)
            .collect();
        for &span in &spans {
            if let Some(&id) = self.filled.get(&span.addr) {
                contents::check(&self.device, span, id)?;
            }
        }
        drop(self.allocator);
        if let Some(trespass) = self.device.trespasses().first().filter(|_| self.plan.policy.tight)
        {
            return Err(trespass.clone());
        }
        match spans.into_iter().find(|&span| !self.device.is_accessible(span)) {
            Some(span) => {
                Err(format!("dropping the allocator took the live block at {}", span.addr))
            }
            None => Ok(self.report),
        }
    }

    /// Nothing goes wrong any more, everything is freed and done, the cache is emptied: then the
    /// device must have all of its memory back.
    fn give_everything_back(&mut self) -> Result<(), String> {
        self.device.set_faults(FaultPlan::default());
        self.device.tenant_give(u64::MAX);
        let text = |error: Error| error.to_string();
        self.allocator.set_memory_fraction(1.0).map_err(text)?;
        let too_large = self.allocator.malloc(REQUEST_TOO_LARGE_BYTES, StreamId(0));
        if !matches!(too_large, Err(Error::OutOfMemory(_))) {
            return Err("a request that nothing can hold did not run out of memory".to_owned());
        }
        self.model = None;
        self.addresses.clear();
        self.revive_all();
        self.leave_pools()?;
        for addr in self.checker.live() {
            self.leave_use(addr)?;
            self.allocator.free(addr).map_err(text)?;
            self.forget_block(addr);
            self.check(&Outcome::Freed { addr })?;
        }
        for stream in 0..self.plan.script.streams {
            self.sync(StreamId(u64::from(stream)));
        }
        self.allocator.empty_cache().map_err(text)?;
        self.check(&Outcome::Nothing)?;
        if let Some(pool) = self.left_pool() {
            return Err(format!("pool {pool} is still there after everything was given back"));
        }
        let stats = self.allocator.stats();
        let left = [stats.active.all, stats.reserved_bytes.all, stats.segment.all];
        if left.iter().any(|counter| counter.current != 0) {
            return Err("something is left after everything was given back".to_owned());
        }
        let (used_bytes, pages) = (self.device.used_bytes(), self.device.page_count());
        if (used_bytes, pages) != (0, 0) {
            return Err(format!(
                "the device still has {used_bytes} bytes and {pages} pages for us"
            ));
        }
        if self.plan.policy.release_bare_segments && !self.allocator.snapshot().is_empty() {
            return Err("addresses are still reserved".to_owned());
        }
        Ok(())
    }
}

/// Whether a block in use lies in a view.
fn has_tenant(snapshot: &[SegmentState]) -> bool {
    let views = snapshot.iter().filter(|segment| segment.view);
    views.flat_map(|view| &view.blocks).any(|block| block.state != State::Hollow)
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("no words"))
}
