//! The calls of a `Device`, each made of the driver's.

use std::sync::{Arc, PoisonError};

use larder_core::device::{
    Device, DeviceError, HANDLE_BYTES, MemoryInfo, ProcessMemory, Properties, SharedPage,
};
use larder_core::keeper::Keeper;
use larder_core::types::{
    Addr, CaptureId, DeviceIndex, EventId, NodeId, PageHandle, Span, StreamId,
};

use crate::context::Context;
use crate::device::{CudaDevice, RANGE_ALIGNMENT_BYTES, export, import};
use crate::host::{HostDevice, PinnedKeeper};
use crate::sys::{self, CUevent};
use crate::{descriptors, driver};

/// Every address that the device gives out is a multiple of this.
const ALIGNMENT_BYTES: u64 = 512;
/// The handles of the default stream, which is never captured.
const LEGACY_STREAMS: [u64; 2] = [0, 1];

/// Nodes without repetitions, in the order of their first.
fn distinct(nodes: Vec<u64>) -> Vec<NodeId> {
    let mut distinct: Vec<NodeId> = Vec::with_capacity(nodes.len());
    for node in nodes.into_iter().map(NodeId) {
        if !distinct.contains(&node) {
            distinct.push(node);
        }
    }
    distinct
}

impl Device for CudaDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        let _entered = self.context.enter()?;
        let (free_bytes, total_bytes) = driver::memory_info()?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.processes.of(&self.bus_id)
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        // The driver answers a request that makes no sense at all in another way.
        if size_bytes > self.properties.total_bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let _entered = self.context.enter()?;
        let addr = driver::alloc(size_bytes.next_multiple_of(ALIGNMENT_BYTES))?;
        if !addr.is_multiple_of(ALIGNMENT_BYTES) {
            // SAFETY: it was given just now, and nobody knows of it.
            unsafe { driver::free(addr) }?;
            let text = format!("the driver gave memory at {addr:#x}, no multiple of 512");
            return Err(DeviceError::Other { code: 1, text });
        }
        self.ledger().add_plain(addr);
        Ok(Addr(addr))
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        self.ledger().take_plain(addr)?;
        // SAFETY: it is a plain allocation that we gave out, and whoever had it gives it up.
        let freed = unsafe { driver::free(addr.0) };
        if freed.is_err() {
            self.ledger().add_plain(addr.0);
        }
        freed
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        let _entered = self.enter_virtual()?;
        let alignment_bytes = RANGE_ALIGNMENT_BYTES.max(self.properties.granularity_bytes);
        let addr = Addr(driver::reserve(size_bytes, alignment_bytes)?);
        self.ledger().add_range(Span::new(addr, size_bytes));
        Ok(addr)
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        self.ledger().take_range(span)?;
        // SAFETY: it is a whole range with nothing in it, by the ledger.
        let freed = unsafe { driver::unreserve(span.addr.0, span.size_bytes) };
        if freed.is_err() {
            self.ledger().add_range(span);
        }
        freed
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        let _entered = self.enter_virtual()?;
        if size_bytes > self.properties.total_bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let page = driver::create_page(size_bytes, &self.page_kind.0)?;
        Ok(self.ledger().add_page(page, size_bytes))
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        let taken = self.ledger().take_page(page)?;
        // SAFETY: the page is alive and mapped nowhere, by the ledger.
        let released = unsafe { driver::release_page(taken.cuda()) };
        if released.is_err() {
            self.ledger().put_page(&taken);
        }
        released
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        // Held over the call, so that no other thread maps there meanwhile.
        let mut ledger = self.ledger();
        let cuda = ledger.check_map(span, page)?;
        // SAFETY: the page is alive and as large as the span, where nothing is, by the ledger.
        unsafe { driver::map(span.addr.0, span.size_bytes, cuda) }?;
        ledger.add_mapping(span, page);
        Ok(())
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        let mut ledger = self.ledger();
        ledger.check_unmap(span)?;
        // SAFETY: one whole page is mapped there, by the ledger, and the caller promises that work
        // that uses it has finished.
        unsafe { driver::unmap(span.addr.0, span.size_bytes) }?;
        ledger.remove_mapping(span);
        Ok(())
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        self.ledger().check_mapped(span)?;
        // SAFETY: all of it is mapped, by the ledger.
        unsafe { driver::set_access(span.addr.0, span.size_bytes, self.ordinal) }
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let _entered = self.context.enter()?;
        let event = driver::create_event()?;
        Ok(self.ledger().add_event(event as usize))
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let cuda = self.ledger().take_event(event)?;
        // SAFETY: the event is alive, by the ledger, which has it no longer.
        let destroyed = unsafe { driver::destroy_event(cuda as CUevent) };
        if destroyed.is_err() {
            self.ledger().put_event(event, cuda);
        }
        destroyed
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let event = self.ledger().event(event)? as CUevent;
        let stream = self.vouched(stream)?;
        // SAFETY: the event is alive, by the ledger; for the stream somebody vouched.
        unsafe { driver::record_event(event, stream.handle) }
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let _entered = self.context.enter()?;
        let event = self.ledger().event(event)? as CUevent;
        // SAFETY: the event is alive, by the ledger.
        unsafe { driver::query_event(event) }
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let event = self.ledger().event(event)? as CUevent;
        let stream = self.vouched(stream)?;
        // SAFETY: the event is alive, by the ledger; for the stream somebody vouched.
        unsafe { driver::stream_wait_event(stream.handle, event) }
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let event = self.ledger().event(event)? as CUevent;
        // SAFETY: the event is alive, by the ledger.
        unsafe { driver::wait_event(event) }
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let stream = self.vouched(stream)?;
        // SAFETY: somebody vouched for the stream.
        unsafe { driver::wait_stream(stream.handle) }
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        driver::wait_context()
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        // The driver refuses to be asked about the default stream while others are captured.
        if LEGACY_STREAMS.contains(&stream.0) {
            return Ok(None);
        }
        let _entered = self.context.enter()?;
        let stream = self.vouched(stream)?;
        // SAFETY: somebody vouched for the stream.
        let capture = unsafe { driver::capture_of(stream.handle) }?;
        Ok(capture.map(|(id, goes_well)| CaptureId(if goes_well { id } else { 0 })))
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        if LEGACY_STREAMS.contains(&stream.0) {
            return Ok(Vec::new());
        }
        let _entered = self.context.enter()?;
        let stream = self.vouched(stream)?;
        // SAFETY: somebody vouched for the stream; it is its user who asks, so that nobody else
        // works on it.
        unsafe { driver::capture_ends(stream.handle) }.map(distinct)
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller got the node from a capture that is still running.
        unsafe { driver::node_dependencies(node.0) }.map(distinct)
    }

    fn export_alloc(&self, addr: Addr) -> Result<[u8; HANDLE_BYTES], DeviceError> {
        let _entered = self.context.enter()?;
        self.ledger().check_plain(addr)?;
        // SAFETY: it is a plain allocation, by the ledger.
        unsafe { driver::export_alloc(addr.0) }
    }

    fn import_alloc(&self, handle: [u8; HANDLE_BYTES]) -> Result<Addr, DeviceError> {
        let _entered = self.context.enter()?;
        let addr = driver::import_alloc(handle)?;
        self.ledger().add_opened(addr);
        Ok(Addr(addr))
    }

    fn close_alloc(&self, addr: Addr) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        self.ledger().take_opened(addr)?;
        // SAFETY: it was opened here, by the ledger, and the caller promises that nobody uses it.
        let closed = unsafe { driver::close_alloc(addr.0) };
        if closed.is_err() {
            self.ledger().add_opened(addr.0);
        }
        closed
    }

    fn export_page(&self, page: PageHandle) -> Result<SharedPage, DeviceError> {
        let _entered = self.enter_virtual()?;
        let mut ledger = self.ledger();
        // SAFETY: the page is alive, by the ledger, and all pages are made to be shared this way.
        let shared = unsafe { export(ledger.page(page)?, self.share_by) }?;
        ledger.add_shared(shared);
        Ok(shared)
    }

    fn unexport_page(&self, shared: SharedPage) -> Result<(), DeviceError> {
        self.ledger().take_shared(shared)?;
        if let SharedPage::Descriptor(descriptor) = shared {
            // SAFETY: the driver made it for us, and by the ledger it was not closed yet.
            unsafe { descriptors::close(descriptor) };
        }
        Ok(())
    }

    fn import_page(
        &self,
        shared: SharedPage,
        pid: u32,
        size_bytes: u64,
    ) -> Result<PageHandle, DeviceError> {
        let _entered = self.enter_virtual()?;
        let page = import(shared, pid)?;
        Ok(self.ledger().add_page(page, size_bytes))
    }

    fn open_to_peer(&self, peer: DeviceIndex) -> Result<(), DeviceError> {
        let refused = |text: &str| DeviceError::Other {
            code: sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.0 as i32,
            text: format!("{peer} cannot use the memory of {}: {text}", self.properties.index),
        };
        if peer == self.properties.index {
            return Err(refused("a device is no peer of itself"));
        }
        if peer.0 >= driver::device_count()? {
            return Err(refused("there is no such device"));
        }
        let context = Context::of(peer.0 as i32);
        let (theirs, own) = (context.primary()?, self.context.primary()?);
        if !driver::can_reach(theirs.device(), own.device())? {
            return Err(refused("no way leads from the one to the other"));
        }
        let entered = context.enter()?;
        // SAFETY: this very value keeps the context alive.
        unsafe { driver::enable_peer(own.handle()) }?;
        drop(entered);
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        Ok(())
    }

    fn set_peer_access(&self, span: Span, peer: DeviceIndex) -> Result<(), DeviceError> {
        let _entered = self.enter_virtual()?;
        self.ledger().check_mapped(span)?;
        // SAFETY: all of it is mapped, by the ledger.
        unsafe { driver::set_access(span.addr.0, span.size_bytes, peer.0 as i32) }
    }

    fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        let entered = self.enter_virtual()?;
        copies.iter().try_for_each(|(span, _)| self.ledger().check_within(*span))?;
        // SAFETY: all of it is mapped, by the ledger, and the caller promises that no work is on.
        unsafe { self.copies.copy_out(entered.context(), copies) }
    }

    fn copy_in(&self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        let entered = self.enter_virtual()?;
        copies.iter().try_for_each(|&(_, span)| self.ledger().check_within(span))?;
        // SAFETY: as above.
        unsafe { self.copies.copy_in(entered.context(), copies) }
    }

    fn clear(&self, spans: &[Span]) -> Result<(), DeviceError> {
        let entered = self.enter_virtual()?;
        spans.iter().try_for_each(|&span| self.ledger().check_within(span))?;
        // SAFETY: as above.
        unsafe { self.copies.clear(entered.context(), spans) }
    }

    fn keeper(self: Arc<Self>) -> Option<Arc<dyn Keeper>> {
        Some(Arc::new(PinnedKeeper::new(HostDevice::new(vec![self]))))
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}
