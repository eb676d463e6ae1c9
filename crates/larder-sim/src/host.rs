//! The simulated host: pinned memory of its own, and the streams and events of a simulated GPU that
//! copies from it and to it.

use std::sync::Arc;

use larder_core::device::{Device, DeviceError, MemoryInfo, ProcessMemory, Properties};
use larder_core::types::{
    Addr, CaptureId, EventId, HOST_STREAM, NodeId, PageHandle, Span, StreamId,
};

use crate::{SimDevice, SimOptions};

/// Devices of the indices from here on are hosts.
const FIRST_HOST: u32 = 512;

/// Pinned memory of a simulated host. It has no virtual memory.
pub struct SimHost {
    memory: SimDevice,
    gpu: Arc<SimDevice>,
}

impl SimHost {
    /// A host with so much memory, beside a GPU.
    pub fn new(gpu: Arc<SimDevice>, memory_bytes: u64) -> SimHost {
        let index = FIRST_HOST + gpu.properties().index.0 % FIRST_HOST;
        let options = SimOptions::default().index(index);
        let memory = SimDevice::new(options.memory_bytes(memory_bytes).virtual_memory(false));
        SimHost { memory, gpu }
    }

    /// The device that is its memory, to look at and to plan faults for.
    pub fn memory(&self) -> &SimDevice {
        &self.memory
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<SimDevice> {
        &self.gpu
    }
}

impl Device for SimHost {
    fn properties(&self) -> &Properties {
        self.memory.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.memory.memory_info()
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.memory.processes()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.memory.alloc(size_bytes)
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        self.memory.free(addr)
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.memory.reserve(size_bytes)
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        self.memory.unreserve(span)
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        self.memory.create_page(size_bytes)
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        self.memory.release_page(page)
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        self.memory.map(span, page)
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        self.memory.unmap(span)
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        self.memory.set_access(span)
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.gpu.create_event()
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.gpu.destroy_event(event)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.gpu.record_event(event, stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        self.gpu.query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.gpu.wait_event(event)
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.gpu.follow_event(stream, event)
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if stream == HOST_STREAM { Ok(()) } else { self.gpu.wait_stream(stream) }
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.gpu.wait_device()
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        if stream == HOST_STREAM { Ok(None) } else { self.gpu.capture_of(stream) }
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        if stream == HOST_STREAM { Ok(Vec::new()) } else { self.gpu.capture_ends(stream) }
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        self.gpu.node_dependencies(node)
    }

    fn now_ns(&self) -> u64 {
        self.memory.now_ns()
    }
}
