//! A device that writes down every call in its order, and that can hold a plain allocation back.

use std::sync::{Arc, Condvar, Mutex};

use larder_core::device::{Device, DeviceError, MemoryInfo, ProcessMemory, Properties};
use larder_core::types::{Addr, CaptureId, EventId, NodeId, PageHandle, Span, StreamId};
use larder_sim::SimDevice;

/// A simulated device under observation.
pub(crate) struct ObservedDevice {
    pub(crate) device: Arc<SimDevice>,
    properties: Properties,
    log: Mutex<Vec<&'static str>>,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl ObservedDevice {
    pub(crate) fn new(device: SimDevice) -> ObservedDevice {
        let properties = device.properties().clone();
        ObservedDevice {
            device: Arc::new(device),
            properties,
            log: Mutex::default(),
            closed: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// From now on plain allocations wait for `open`.
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    /// Lets plain allocations through.
    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn note(&self, call: &'static str) {
        self.log.lock().unwrap().push(call);
    }
}

impl Device for ObservedDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.note("memory_info");
        self.device.memory_info()
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.note("processes");
        self.device.processes()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.note("alloc");
        let closed = self.closed.lock().unwrap();
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        self.device.alloc(size_bytes)
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        self.note("free");
        self.device.free(addr)
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.note("reserve");
        self.device.reserve(size_bytes)
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        self.note("unreserve");
        self.device.unreserve(span)
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        self.note("create_page");
        self.device.create_page(size_bytes)
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        self.note("release_page");
        self.device.release_page(page)
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        self.note("map");
        self.device.map(span, page)
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        self.note("unmap");
        self.device.unmap(span)
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        self.note("set_access");
        self.device.set_access(span)
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.note("create_event");
        self.device.create_event()
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.note("destroy_event");
        self.device.destroy_event(event)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.note("record_event");
        self.device.record_event(event, stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        self.note("query_event");
        self.device.query_event(event)
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.note("follow_event");
        self.device.follow_event(stream, event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.note("wait_event");
        self.device.wait_event(event)
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.note("wait_stream");
        self.device.wait_stream(stream)
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.note("wait_device");
        self.device.wait_device()
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        self.note("capture_of");
        self.device.capture_of(stream)
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        self.note("capture_ends");
        self.device.capture_ends(stream)
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        self.note("node_dependencies");
        self.device.node_dependencies(node)
    }

    fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        self.note("copy_out");
        self.device.copy_out(copies)
    }

    fn copy_in(&self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        self.note("copy_in");
        self.device.copy_in(copies)
    }

    fn clear(&self, spans: &[Span]) -> Result<(), DeviceError> {
        self.note("clear");
        self.device.clear(spans)
    }

    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }
}
