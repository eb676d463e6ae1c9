//! A restless device: the simulated GPU, on which calls take their time now and then, so that
//! threads meet where they seldom would; and which knows which streams are not to be asked about.
//!
//! A real driver does not bear being asked about a stream whose capture another thread begins or
//! ends at that moment. Whoever does so here is told on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use larder_core::device::{Device, DeviceError, MemoryInfo, ProcessMemory, Properties};
use larder_core::types::{CaptureId, EventId, NodeId, PageHandle, Span};
use larder_core::{Addr, StreamId};

use super::trouble::Complaint;
use larder_sim::SimDevice;
use larder_sim::random::Random;

/// How long it takes to begin or to end a capture.
const EDGE: Duration = Duration::from_millis(1);

/// The device of a concurrent soak.
pub(super) struct Restless {
    sim: Arc<SimDevice>,
    seed: u64,
    calls: AtomicU64,
    /// The streams whose captures are being begun or ended, and by whom.
    edges: Mutex<HashMap<StreamId, ThreadId>>,
    complaint: Complaint,
}

impl Restless {
    pub(super) fn new(sim: Arc<SimDevice>, seed: u64, complaint: Complaint) -> Restless {
        Restless { sim, seed, calls: AtomicU64::new(0), edges: Mutex::default(), complaint }
    }

    /// Takes its time, or not.
    fn dawdle(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match Random::new(self.seed ^ call).below(64) {
            0 => thread::sleep(Duration::from_micros(50)),
            1..=8 => thread::yield_now(),
            _ => {}
        }
    }

    fn edges(&self) -> MutexGuard<'_, HashMap<StreamId, ThreadId>> {
        self.edges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins or ends a capture of these streams, which nobody else may ask about meanwhile.
    pub(super) fn at_edge<T>(&self, streams: &[StreamId], act: impl FnOnce(&SimDevice) -> T) -> T {
        let thread = thread::current().id();
        self.edges().extend(streams.iter().map(|&stream| (stream, thread)));
        // It takes so long that the others do something meanwhile.
        thread::sleep(EDGE);
        let result = act(&self.sim);
        self.dawdle();
        let mut edges = self.edges();
        for stream in streams {
            edges.remove(stream);
        }
        result
    }

    /// A call about a stream comes.
    fn about(&self, stream: StreamId, call: &str) {
        let busy = self.edges().get(&stream).copied();
        if busy.is_some_and(|thread| thread != thread::current().id()) {
            self.complaint.raise(format!(
                "the device was asked to {call} {stream} while another thread began or ended its \
                 capture"
            ));
        }
        self.dawdle();
    }
}

impl Device for Restless {
    fn properties(&self) -> &Properties {
        self.sim.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.sim.memory_info()
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.sim.processes()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.dawdle();
        let given = self.sim.alloc(size_bytes);
        self.dawdle();
        given
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        self.dawdle();
        self.sim.free(addr)
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.sim.reserve(size_bytes)
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        self.sim.unreserve(span)
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        self.dawdle();
        self.sim.create_page(size_bytes)
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        self.sim.release_page(page)
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        self.sim.map(span, page)
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        self.sim.unmap(span)
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        self.sim.set_access(span)
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.sim.create_event()
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.sim.destroy_event(event)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.about(stream, "record an event on");
        self.sim.record_event(event, stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        self.sim.query_event(event)
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.about(stream, "let wait");
        self.sim.follow_event(stream, event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.dawdle();
        self.sim.wait_event(event)
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.about(stream, "wait for");
        self.sim.wait_stream(stream)
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.dawdle();
        self.sim.wait_device()
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        self.about(stream, "tell the capture of");
        self.sim.capture_of(stream)
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        self.about(stream, "tell what was captured last on");
        self.sim.capture_ends(stream)
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        self.sim.node_dependencies(node)
    }

    fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        self.sim.copy_out(copies)
    }

    fn copy_in(&self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        self.sim.copy_in(copies)
    }

    fn clear(&self, spans: &[Span]) -> Result<(), DeviceError> {
        self.sim.clear(spans)
    }

    fn now_ns(&self) -> u64 {
        self.sim.now_ns()
    }
}
