//! `CudaDevice`: a GPU as a `Device`.

use std::any::Any;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_core::device::{
    Device, DeviceError, HANDLE_BYTES, MemoryInfo, ProcessMemory, Properties, SharedPage,
};
use larder_core::types::{
    Addr, CaptureId, DeviceIndex, EventId, NodeId, PageHandle, Span, StreamId,
};

use crate::context::{Context, Entered};
use crate::error::CudaError;
use crate::ledger::{Held, Ledger};
use crate::options::{CudaOptions, ShareBy};
use crate::processes::Processes;
use crate::stream::CudaStream;
use crate::streams::{Streams, Vouched};
use crate::sys::{self, CUdevice_attribute as Attribute, CUevent};
use crate::{descriptors, driver};

/// Every address that the device gives out is a multiple of this.
const ALIGNMENT_BYTES: u64 = 512;
/// Reserved ranges start at multiples of this, or of the granularity where that is more.
const RANGE_ALIGNMENT_BYTES: u64 = 2 << 20;
/// The handles of the default stream, which is never captured.
const LEGACY_STREAMS: [u64; 2] = [0, 1];

/// A GPU. The crate's page says what holds for every call.
pub struct CudaDevice {
    properties: Properties,
    context: Context,
    ordinal: i32,
    bus_id: String,
    page_kind: PageKind,
    share_by: ShareBy,
    ledger: Mutex<Ledger>,
    streams: Streams,
    /// Contexts of the devices that were given access, kept alive with it.
    peers: Mutex<Vec<Context>>,
    processes: Processes,
    epoch: Instant,
}

/// The driver's description of our pages.
struct PageKind(sys::CUmemAllocationProp);

// SAFETY: the one pointer in it is null and stays so.
unsafe impl Send for PageKind {}
// SAFETY: as above; nobody changes it.
unsafe impl Sync for PageKind {}

impl CudaDevice {
    /// The GPU of this index, in its primary context, which other libraries of the process share.
    pub fn new(index: u32, options: CudaOptions) -> Result<CudaDevice, CudaError> {
        if !driver::is_present() {
            return Err(CudaError::NoDriver);
        }
        let count = match driver::init() {
            Ok(()) => driver::device_count().map_err(CudaError::driver("count its GPUs"))?,
            // The driver's code for a machine with no GPU.
            Err(DeviceError::Other { code: 100, .. }) => 0,
            Err(error) => return Err(CudaError::Driver { call: "start", error }),
        };
        if index >= count {
            return Err(CudaError::NoDevice { index, count });
        }
        let device = CudaDevice::describe(index, options)?;
        if !options.late_context {
            device.context.primary().map_err(CudaError::driver("make a context"))?;
        }
        Ok(device)
    }

    fn describe(index: u32, options: CudaOptions) -> Result<CudaDevice, CudaError> {
        let ordinal = index as i32;
        let cuda = driver::device(ordinal).map_err(CudaError::driver("name a GPU"))?;
        let attribute = |attribute| {
            driver::attribute(cuda, attribute)
                .map(|value| value != 0)
                .map_err(CudaError::driver("tell what the GPU can do"))
        };
        let virtual_memory =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        let rdma =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?;
        let page_kind = driver::page_kind(ordinal, options.share_by.handles(), rdma);
        let granularity_bytes = if virtual_memory {
            let asked = driver::granularity(&page_kind);
            asked.map_err(CudaError::driver("tell the granularity of memory"))?
        } else {
            RANGE_ALIGNMENT_BYTES
        };
        let total_bytes =
            driver::total_bytes(cuda).map_err(CudaError::driver("tell its memory"))?;
        let bus_id = driver::bus_id(cuda);
        let properties = Properties {
            index: DeviceIndex(index),
            total_bytes,
            granularity_bytes,
            virtual_memory,
        };
        Ok(CudaDevice {
            properties,
            context: Context::of(ordinal),
            ordinal,
            bus_id: bus_id.map_err(CudaError::driver("tell the GPU's address"))?,
            page_kind: PageKind(page_kind),
            share_by: options.share_by,
            ledger: Mutex::default(),
            streams: Streams::default(),
            peers: Mutex::default(),
            processes: Processes::default(),
            epoch: Instant::now(),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Its address on the bus.
    pub(crate) fn bus_id(&self) -> &str {
        &self.bus_id
    }

    /// Whether the process uses the device already.
    pub(crate) fn is_in_use(&self) -> bool {
        let state = driver::device(self.ordinal).and_then(driver::has_primary_context);
        state.unwrap_or(false)
    }

    /// The handle of the primary context that the device works in, as a number.
    pub fn raw_context(&self) -> Result<u64, DeviceError> {
        Ok(self.context.primary()?.handle() as u64)
    }

    // Streams.

    /// The default stream.
    pub fn default_stream(&self) -> Result<CudaStream, DeviceError> {
        Ok(CudaStream::default_of(Arc::clone(self.context.primary()?)))
    }

    /// A new stream, which does not wait for the default one. Calls can name it once it is
    /// admitted.
    pub fn new_stream(&self) -> Result<CudaStream, DeviceError> {
        let _entered = self.context.enter()?;
        CudaStream::new(Arc::clone(self.context.primary()?))
    }

    /// Lets calls name this stream, which is kept alive until it is dismissed, and says by what
    /// number. A stream of another context is refused.
    pub fn admit(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceError> {
        // SAFETY: the stream is one of that context, and alive while it is kept.
        unsafe { self.admit_kept(stream.id(), stream.raw_context(), Arc::clone(stream) as _) }?;
        Ok(stream.id())
    }

    /// Lets calls name a stream of somebody else's making, of the context with this handle, by its
    /// raw handle. What keeps it alive is kept until the stream is dismissed. A stream of
    /// another context is refused.
    ///
    /// # Safety
    /// It is the handle of a stream of that context, and it is not destroyed while `keeper` lives.
    pub unsafe fn admit_kept(
        &self,
        stream: StreamId,
        raw_context: u64,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), DeviceError> {
        if raw_context != self.raw_context()? {
            let text = "the stream is not one of this device's context".to_owned();
            let code = sys::CUresult::CUDA_ERROR_INVALID_CONTEXT.0 as i32;
            return Err(DeviceError::Other { code, text });
        }
        self.streams.admit(stream, Some(keeper));
        Ok(())
    }

    /// Lets calls name a stream by its raw handle.
    ///
    /// # Safety
    /// It is the handle of a stream of this device's primary context, which is not destroyed before
    /// [`CudaDevice::dismiss`] was called for it and no call about it is running.
    pub unsafe fn admit_raw(&self, stream: StreamId) {
        self.streams.admit(stream, None);
    }

    /// No call names this stream any more; one that does is refused. An allocator that knows the
    /// stream has to forget it first.
    pub fn dismiss(&self, stream: StreamId) {
        self.streams.dismiss(stream);
    }

    /// Takes every number that calls name for the handle of a stream.
    ///
    /// # Safety
    /// Whoever names a stream to this device, or to an allocator over it, names one of this
    /// device's primary context that is not destroyed, and says to that allocator before it is.
    pub unsafe fn trust_streams(&self) {
        self.streams.trust();
    }

    pub(crate) fn vouched(&self, stream: StreamId) -> Result<Vouched, DeviceError> {
        self.streams.vouched(stream)
    }

    /// Sets bytes to zero, in the order of a stream that was admitted.
    ///
    /// # Safety
    /// The bytes are memory of this device, and stay so until the work that the stream has by then
    /// is done.
    pub unsafe fn zero(&self, span: Span, stream: StreamId) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let stream = self.vouched(stream)?;
        // SAFETY: somebody vouched for the stream, and the caller for the bytes.
        unsafe { driver::zero(span.addr.0, span.size_bytes, stream.handle) }
    }

    /// How many calls reached the driver.
    pub fn driver_calls(&self) -> u64 {
        self.context.entries()
    }

    /// What was given out and not given back.
    pub fn held(&self) -> Held {
        self.ledger().held()
    }

    /// Tries whether a page can be made known in this way, by making one, naming it, and getting
    /// hold of it by its name.
    pub fn try_sharing(&self, by: ShareBy) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        let mut kind = self.page_kind.0;
        kind.requestedHandleTypes = by.handles();
        let page = driver::create_page(self.properties.granularity_bytes, &kind)?;
        // SAFETY: the page was just made, to be shared in this way.
        let opened = unsafe { export(page, by) }.and_then(|shared| {
            let opened = import(shared, std::process::id());
            if let SharedPage::Descriptor(descriptor) = shared {
                // SAFETY: the driver made it for us, and nobody else knows of it.
                unsafe { descriptors::close(descriptor) };
            }
            opened
        });
        let opened = opened.and_then(|opened| {
            // SAFETY: it was opened just now and is mapped nowhere.
            unsafe { driver::release_page(opened) }
        });
        // SAFETY: it was made just now and is mapped nowhere.
        opened.and(unsafe { driver::release_page(page) })
    }

    /// Every change of the ledger is made whole by a function that does not panic midway.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the context for a call that needs virtual memory.
    fn enter_virtual(&self) -> Result<Entered<'_>, DeviceError> {
        if !self.properties.virtual_memory {
            return Err(DeviceError::NotSupported);
        }
        self.context.enter()
    }
}

/// A handle of the page.
///
/// # Safety
/// The page is alive and was made to be shared in this way.
unsafe fn export(page: driver::CudaPage, by: ShareBy) -> Result<SharedPage, DeviceError> {
    match by {
        ShareBy::Descriptor => {
            // SAFETY: the caller promises it.
            unsafe { driver::export_page_descriptor(page) }.map(SharedPage::Descriptor)
        }
        // SAFETY: the caller promises it.
        ShareBy::Fabric => unsafe { driver::export_page_fabric(page) }.map(SharedPage::Fabric),
        ShareBy::Nothing => Err(DeviceError::NotSupported),
    }
}

/// The driver's page that a process made known by this handle.
fn import(shared: SharedPage, pid: u32) -> Result<driver::CudaPage, DeviceError> {
    match shared {
        SharedPage::Descriptor(descriptor) => {
            let descriptor = descriptors::fetch(pid, descriptor)?;
            // SAFETY: it is open, and closed only behind the call.
            unsafe { driver::import_page_descriptor(descriptor.as_raw_fd()) }
        }
        SharedPage::Fabric(handle) => driver::import_page_fabric(handle),
    }
}

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

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}
