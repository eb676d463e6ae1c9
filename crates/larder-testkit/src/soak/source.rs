//! A source of segments with the device's own memory, so that its faults and its limits are the
//! source's too, and what is not given back is missed at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::device::{Device, DeviceError};
use larder_core::source::SegmentSource;
use larder_core::types::{Addr, Span, StreamId};

use larder_sim::SimDevice;

pub(super) struct DeviceSource {
    device: Arc<SimDevice>,
    given: AtomicU64,
}

impl DeviceSource {
    pub(super) fn new(device: Arc<SimDevice>) -> DeviceSource {
        DeviceSource { device, given: AtomicU64::new(0) }
    }

    /// How many segments it gave.
    pub(super) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }
}

impl SegmentSource for DeviceSource {
    fn alloc(&self, size_bytes: u64, _stream: StreamId) -> Result<Addr, DeviceError> {
        let addr = self.device.alloc(size_bytes)?;
        self.given.fetch_add(1, Ordering::Relaxed);
        Ok(addr)
    }

    fn free(&self, segment: Span, _stream: StreamId) -> Result<(), DeviceError> {
        self.device.free(segment.addr)
    }
}
