//! `SimDevice`: the simulated GPU as a `Device`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use larder_core::device::{
    Device, DeviceError, HANDLE_BYTES, MemoryInfo, ProcessMemory, Properties, SharedPage,
};
use larder_core::types::{
    Addr, CaptureId, DeviceIndex, EventId, NodeId, PageHandle, Span, StreamId,
};

use crate::calls::{CallKind, Calls};
use crate::clock::Clock;
use crate::faults::{FaultPlan, Faults, TenantStep};
use crate::hands::Hands;
use crate::memory::{Memory, UNIT_BYTES};
use crate::options::SimOptions;
use crate::sharing::Sharing;
use crate::streams::Streams;
use crate::timing::Timing;

/// The process number under which the other tenant of the device's memory is listed.
pub const TENANT_PID: u32 = u32::MAX;

/// A simulated GPU. The crate's page says what is modelled.
#[derive(Debug)]
pub struct SimDevice {
    properties: Properties,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) sharing: Sharing,
    pub(crate) streams: Streams,
    pub(crate) hands: Hands,
    faults: Faults,
    pub(crate) calls: Calls,
    pub(crate) clock: Clock,
    /// On a device whose time counts.
    timing: Option<Timing>,
}

impl SimDevice {
    /// A device as `options` say, with nothing on it.
    pub fn new(options: SimOptions) -> SimDevice {
        let SimOptions { index, memory_bytes, virtual_memory, wire, peers, .. } = options;
        let SimOptions { recorded_addresses, faults, pause, timed, like_a_driver, .. } = options;
        let properties = Properties {
            index: DeviceIndex(index),
            total_bytes: memory_bytes,
            granularity_bytes: UNIT_BYTES,
            virtual_memory,
        };
        let memory = Memory::new(index, memory_bytes, &recorded_addresses);
        let state = State {
            memory: if like_a_driver { memory.like_a_driver() } else { memory },
            sharing: Sharing::new(wire, DeviceIndex(index), peers),
            streams: Streams::default(),
            hands: Hands::default(),
            faults: Faults::new(faults),
            calls: Calls::default(),
            clock: Clock::default(),
            timing: timed.then(Timing::default),
        };
        SimDevice { properties, pause, state: Mutex::new(state) }
    }

    // What the one who simulates may look at. None of these is a device call.

    // What the one who simulates may do. None of these is a device call.

    /// Puts a piece of work on the stream, as a program does that launches a kernel. Under a
    /// capture the work is captured and does not run.
    pub fn issue(&self, stream: StreamId) {
        self.state().streams.issue(stream);
    }

    /// Puts a piece of work on the stream that lasts so long, on a device whose time counts.
    pub fn run(&self, stream: StreamId, duration_ns: u64) {
        let mut state = self.state();
        state.streams.issue(stream);
        state.note_work(stream, 0, duration_ns);
        state.settle();
    }

    /// Writes the byte at this address, as work on the device would; false if it could not write
    /// there.
    pub fn write(&self, addr: Addr, value: u8) -> bool {
        self.state().memory.write(addr, value)
    }

    /// Lets the stream wait for what the other one has been given so far, as an event recorded
    /// there and waited for here does. A stream that waits for a captured one joins its capture.
    /// To let one capture wait for another, or for work that is not captured, breaks the first.
    pub fn follow(&self, stream: StreamId, other: StreamId) -> Result<(), DeviceError> {
        self.state().streams.follow(stream, other)
    }

    /// Begins a graph capture of the stream, which must be under none.
    pub fn begin_capture(&self, stream: StreamId) -> Result<CaptureId, DeviceError> {
        let one = [stream];
        self.in_hand(&one, "the beginning of a capture", |state| {
            state.streams.begin_capture(stream)
        })
    }

    /// Ends the capture that was begun on the stream, of all the streams that joined it too. It is
    /// an error if the capture was broken, or if work on a stream that joined it was not waited for
    /// by this one; the capture is ended all the same.
    pub fn end_capture(&self, stream: StreamId) -> Result<(), DeviceError> {
        let streams = self.state().streams.captures().streams_with(stream);
        self.in_hand(&streams, "the end of a capture", |state| state.streams.end_capture(stream))
    }

    /// Destroys a stream: no call may name it any more, until [`SimDevice::create_stream`] gives
    /// out its handle again.
    pub fn destroy_stream(&self, stream: StreamId) {
        self.in_hand(&[stream], "the end of a stream", |state| state.hands.destroy(stream));
    }

    /// A number for a new stream, which this gives to nobody else.
    pub fn name_stream(&self) -> StreamId {
        self.state().hands.name()
    }

    /// A new stream gets this handle, perhaps that of one that was destroyed. Streams that were not
    /// destroyed are there without it.
    pub fn create_stream(&self, stream: StreamId) {
        self.state().hands.create(stream);
    }

    /// Does something to streams that takes its time.
    fn in_hand<T>(
        &self,
        streams: &[StreamId],
        what: &'static str,
        act: impl FnOnce(&mut State) -> T,
    ) -> T {
        self.state().hands.take(streams, what);
        if !self.pause.is_zero() {
            thread::sleep(self.pause);
        }
        let mut state = self.state();
        let result = act(&mut state);
        state.hands.put(streams);
        result
    }

    /// All work issued on the stream so far has finished.
    pub fn sync(&self, stream: StreamId) {
        self.state().streams.finish(stream);
    }

    /// Lets time go by.
    pub fn advance(&self, duration_ns: u64) {
        self.state().clock.advance(duration_ns);
    }

    /// Puts another plan of faults in force, and starts it from its beginning.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.state().faults = Faults::new(plan);
    }

    /// Another process takes memory, in units of 2 MiB and as far as there is some. Returns how
    /// much it got.
    pub fn tenant_take(&self, size_bytes: u64) -> u64 {
        self.state().memory.tenant_take(size_bytes)
    }

    /// The other process gives memory back, in units of 2 MiB and as far as it has some. Returns
    /// how much that was.
    pub fn tenant_give(&self, size_bytes: u64) -> u64 {
        self.state().memory.tenant_give(size_bytes)
    }

    /// The state, also after a thread panicked with it locked: every change to it is made whole by
    /// a function that does not panic midway.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every device call has in common: time, the other tenant, faults, and counting.
    fn call<T>(
        &self,
        kind: CallKind,
        act: impl FnOnce(&mut State) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut state = self.state();
        state.clock.begin(kind);
        match state.faults.tenant_step(kind) {
            Some(TenantStep::Take(size_bytes)) => _ = state.memory.tenant_take(size_bytes),
            Some(TenantStep::Give(size_bytes)) => _ = state.memory.tenant_give(size_bytes),
            None => {}
        }
        let page_count = state.memory.page_count();
        let result = match state.faults.strike(kind, page_count) {
            Some(fault) => Err(fault.error()),
            None => act(&mut state),
        };
        state.calls.count(kind, result.is_ok());
        result
    }

    /// A call that needs virtual memory.
    fn virtual_call<T>(
        &self,
        kind: CallKind,
        act: impl FnOnce(&mut State) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let supported = self.properties.virtual_memory;
        self.call(kind, |state| if supported { act(state) } else { Err(DeviceError::NotSupported) })
    }
}

impl State {
    /// The last piece of work of a stream does not begin before a time and takes so long. What is
    /// captured does not run.
    fn note_work(&mut self, stream: StreamId, begin_ns: u64, duration_ns: u64) {
        let Some(timing) = &mut self.timing else { return };
        if self.streams.captures().of(stream).is_none() {
            let begin_ns = begin_ns.max(self.clock.now_ns());
            timing.begin(stream, self.streams.last_place(stream), begin_ns, duration_ns);
        }
    }

    /// What has ended by now has finished.
    pub(crate) fn settle(&mut self) {
        let Some(timing) = &mut self.timing else { return };
        for (stream, place) in timing.settle(self.clock.now_ns()) {
            self.streams.finish_up_to(stream, place);
        }
    }

    /// When the work before an event ends; zero if it has.
    fn end_of(&self, event: EventId) -> u64 {
        let Some(timing) = &self.timing else { return 0 };
        let place = self.streams.place_of(event);
        place.map_or(0, |(stream, place)| timing.end_of(stream, place))
    }

    /// When all work of the stream ends.
    pub(crate) fn last_end_of(&self, stream: StreamId) -> u64 {
        self.timing.as_ref().map_or(0, |timing| timing.last_of(stream))
    }

    /// Time goes by until then.
    fn pass_until(&mut self, end_ns: u64) {
        self.clock.advance(end_ns.saturating_sub(self.clock.now_ns()));
        self.settle();
    }
}

impl Default for SimDevice {
    fn default() -> SimDevice {
        SimDevice::new(SimOptions::default())
    }
}

impl Device for SimDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.call(CallKind::MemoryInfo, |state| Ok(state.memory.info()))
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        let listed = self.call(CallKind::Processes, |state| {
            let used_bytes = state.memory.used_bytes();
            let own = ProcessMemory { pid: std::process::id(), own: true, used_bytes };
            let used_bytes = state.memory.tenant_bytes();
            let tenant = ProcessMemory { pid: TENANT_PID, own: false, used_bytes };
            Ok(if used_bytes > 0 { vec![own, tenant] } else { vec![own] })
        });
        // A device that fails here is one that does not know its processes.
        listed.unwrap_or_default()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.call(CallKind::Alloc, |state| {
            let addr = state.memory.alloc(size_bytes)?;
            state.clock.charge(CallKind::Alloc, &[size_bytes]);
            Ok(addr)
        })
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        self.call(CallKind::Free, |state| {
            let size_bytes = state.memory.free(addr)?;
            state.clock.charge(CallKind::Free, &[size_bytes]);
            state.sharing.forget_alloc(addr);
            Ok(())
        })
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.virtual_call(CallKind::Reserve, |state| state.memory.reserve(size_bytes))
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Unreserve, |state| state.memory.unreserve(span))
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        self.virtual_call(CallKind::Create, |state| {
            let page = state.memory.create_page(size_bytes)?;
            state.clock.charge(CallKind::Create, &[size_bytes]);
            Ok(page)
        })
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Release, |state| {
            let size_bytes = state.memory.release_page(page)?;
            state.clock.charge(CallKind::Release, &[size_bytes]);
            Ok(())
        })
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Map, |state| state.memory.map(span, page))
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Unmap, |state| state.memory.unmap(span))
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Access, |state| {
            let pages = state.memory.set_access(span)?;
            state.clock.charge(CallKind::Access, &pages);
            Ok(())
        })
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.call(CallKind::CreateEvent, |state| Ok(state.streams.create_event()))
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.call(CallKind::DestroyEvent, |state| state.streams.destroy_event(event))
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.call(CallKind::Record, |state| {
            state.hands.touch(stream, "record_event");
            let late_queries = state.faults.late_queries();
            state.streams.record_event(event, stream, late_queries)?;
            state.note_work(stream, 0, 0);
            Ok(())
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        self.call(CallKind::Query, |state| {
            state.settle();
            state.streams.query_event(event)
        })
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.call(CallKind::WaitEvent, |state| {
            state.pass_until(state.end_of(event));
            state.streams.wait_event(event)
        })
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.call(CallKind::Follow, |state| {
            state.hands.touch(stream, "follow_event");
            let end_ns = state.end_of(event);
            state.streams.follow_event(stream, event)?;
            state.note_work(stream, end_ns, 0);
            Ok(())
        })
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.call(CallKind::WaitStream, |state| {
            state.hands.touch(stream, "wait_stream");
            state.pass_until(state.last_end_of(stream));
            state.streams.wait_stream(stream)
        })
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.call(CallKind::WaitDevice, |state| {
            state.pass_until(state.timing.as_ref().map_or(0, Timing::last));
            state.streams.wait_device()
        })
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        self.call(CallKind::CaptureOf, |state| {
            state.hands.touch(stream, "capture_of");
            Ok(state.streams.captures().of(stream))
        })
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        self.call(CallKind::CaptureEnds, |state| {
            state.hands.touch(stream, "capture_ends");
            Ok(state.streams.captures().ends(stream))
        })
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        self.call(CallKind::NodeDependencies, |state| state.streams.captures().dependencies(node))
    }

    fn export_alloc(&self, addr: Addr) -> Result<[u8; HANDLE_BYTES], DeviceError> {
        self.call(CallKind::Share, |state| state.sharing.export_alloc(&state.memory, addr))
    }

    fn import_alloc(&self, handle: [u8; HANDLE_BYTES]) -> Result<Addr, DeviceError> {
        self.call(CallKind::OpenShared, |state| {
            state.sharing.import_alloc(&mut state.memory, handle)
        })
    }

    fn close_alloc(&self, addr: Addr) -> Result<(), DeviceError> {
        self.call(CallKind::CloseShared, |state| state.sharing.close_alloc(&mut state.memory, addr))
    }

    fn export_page(&self, page: PageHandle) -> Result<SharedPage, DeviceError> {
        self.virtual_call(CallKind::Share, |state| state.sharing.export_page(&state.memory, page))
    }

    fn unexport_page(&self, shared: SharedPage) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::CloseShared, |state| state.sharing.unexport_page(shared))
    }

    fn import_page(
        &self,
        shared: SharedPage,
        pid: u32,
        size_bytes: u64,
    ) -> Result<PageHandle, DeviceError> {
        self.virtual_call(CallKind::OpenShared, |state| {
            state.sharing.import_page(&mut state.memory, shared, pid, size_bytes)
        })
    }

    fn open_to_peer(&self, peer: DeviceIndex) -> Result<(), DeviceError> {
        self.call(CallKind::Peer, |state| state.sharing.open_to_peer(peer))
    }

    fn set_peer_access(&self, span: Span, peer: DeviceIndex) -> Result<(), DeviceError> {
        self.virtual_call(CallKind::Peer, |state| {
            state.sharing.check_peer(peer)?;
            state.memory.set_peer_access(span, peer)
        })
    }

    fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        self.call(CallKind::CopyOut, |state| state.memory.copy_out(copies))
    }

    fn copy_in(&self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        self.call(CallKind::CopyIn, |state| state.memory.copy_in(copies))
    }

    fn clear(&self, spans: &[Span]) -> Result<(), DeviceError> {
        self.call(CallKind::Clear, |state| state.memory.clear(spans))
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.calls.count(CallKind::Clock, true);
        state.clock.now_ns()
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;
    use crate::faults::Fault;
    use crate::memory::{DEVICE_STRIDE, PLAIN_BASE, RESERVE_BASE};

    fn device(memory_bytes: u64, faults: FaultPlan) -> SimDevice {
        SimDevice::new(SimOptions { memory_bytes, faults, ..SimOptions::default() })
    }

    #[test]
    fn devices_share_no_address_and_each_starts_at_its_base() {
        for index in [0, 1, 1023] {
            let device = SimDevice::new(SimOptions { index, ..SimOptions::default() });
            let area = u64::from(index) * DEVICE_STRIDE;
            assert_eq!(device.alloc(1), Ok(Addr(area + PLAIN_BASE)));
            assert_eq!(device.reserve(1), Ok(Addr(area + RESERVE_BASE)));
        }
    }

    #[test]
    fn a_replay_gets_the_recorded_addresses_moved_up() {
        let recorded = Addr(0x7f20_b000_0000);
        let recorded_addresses = vec![Span::new(recorded, 20 * MIB)];
        let device = SimDevice::new(SimOptions { recorded_addresses, ..SimOptions::default() });
        assert_eq!(device.alloc(2 * MIB), Ok(Addr(PLAIN_BASE)));
        assert_eq!(device.alloc(20 * MIB), Ok(recorded.offset(PLAIN_BASE)));
        assert_eq!(device.alloc(20 * MIB), Ok(Addr(PLAIN_BASE + 2 * MIB)));
    }

    #[test]
    fn calls_are_counted_and_take_time() {
        let device = device(4 * MIB, FaultPlan::default());
        let addr = device.alloc(MIB).unwrap();
        assert_eq!(device.alloc(4 * MIB), Err(DeviceError::OutOfMemory));
        assert_eq!(device.create_page(4 * MIB), Err(DeviceError::OutOfMemory));
        device.free(addr).unwrap();
        let calls = device.calls();
        assert_eq!((calls.alloc, calls.create, calls.free, calls.failed), (2, 0, 1, 2));
        assert_eq!(device.total_calls(), 4);
        assert_eq!(device.now_ns(), 2 * 72_000 + 13_500 + 51_000, "what fails costs time too");
        assert_eq!(device.spent(), crate::costs::Spent { calls: 4, ns: device.now_ns() });
        device.advance(7);
        assert_eq!(device.now_ns() % 500, 7);
        assert_eq!(device.total_calls(), 7, "looking at the clock is a call");
    }

    #[test]
    fn a_planned_fault_changes_nothing() {
        let plan = FaultPlan::new(0).fail_nth(CallKind::Alloc, 1, Fault::OutOfMemory).fail_nth(
            CallKind::Free,
            1,
            Fault::Other,
        );
        let device = device(2 * MIB, plan);
        assert_eq!(device.alloc(1), Err(DeviceError::OutOfMemory));
        assert_eq!(device.used_bytes(), 0);
        let addr = device.alloc(1).unwrap();
        assert_eq!(device.free(addr), Err(Fault::Other.error()));
        assert_eq!(device.used_bytes(), 2 * MIB, "it is still held");
        device.free(addr).unwrap();
    }

    #[test]
    fn pages_run_out_while_a_range_is_being_mapped() {
        let device = device(80 * MIB, FaultPlan::new(0).page_limit(2));
        let first = device.create_page(UNIT_BYTES).unwrap();
        device.create_page(UNIT_BYTES).unwrap();
        assert_eq!(device.create_page(UNIT_BYTES), Err(DeviceError::OutOfMemory));
        device.release_page(first).unwrap();
        device.create_page(UNIT_BYTES).unwrap();
        assert_eq!(device.page_count(), 2);
    }

    #[test]
    fn a_tenant_is_listed_while_it_holds_something() {
        let device = device(8 * MIB, FaultPlan::default());
        assert_eq!(device.processes().len(), 1);
        device.tenant_take(6 * MIB);
        let tenant = ProcessMemory { pid: TENANT_PID, own: false, used_bytes: 6 * MIB };
        assert_eq!(device.processes()[1], tenant);
        assert_eq!(device.memory_info().unwrap().free_bytes, 2 * MIB);
        assert_eq!(device.alloc(4 * MIB), Err(DeviceError::OutOfMemory));
        device.tenant_give(6 * MIB);
        device.alloc(4 * MIB).unwrap();
    }

    #[test]
    fn a_tenant_with_a_mind_of_its_own_replays_from_the_seed() {
        let run = || {
            let device = device(64 * MIB, FaultPlan::new(3).tenant(0.5, 40 * MIB));
            let answers: Vec<_> =
                (0..200).map(|_| device.alloc(1).and_then(|addr| device.free(addr))).collect();
            (answers.iter().filter(|answer| answer.is_err()).count(), answers)
        };
        let (failed, answers) = run();
        assert!(failed > 0 && failed < 200, "{failed} of 200 failed");
        assert_eq!(run().1, answers);
    }

    #[test]
    fn a_device_without_virtual_memory_says_so() {
        let device = SimDevice::new(SimOptions { virtual_memory: false, ..SimOptions::default() });
        assert_eq!(device.reserve(UNIT_BYTES), Err(DeviceError::NotSupported));
        assert_eq!(device.create_page(UNIT_BYTES), Err(DeviceError::NotSupported));
        assert!(!device.properties().virtual_memory);
    }
}
