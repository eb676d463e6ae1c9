//! `CudaDevice`: a GPU, opened, and what programs may do with it beside a `Device`'s calls.

use std::any::Any;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_core::device::{DeviceError, Properties, SharedPage};
use larder_core::types::{DeviceIndex, Span, StreamId};

use crate::context::{Context, Entered};
use crate::copies::Copies;
use crate::error::CudaError;
use crate::ledger::{Held, Ledger};
use crate::options::{CudaOptions, ShareBy};
use crate::processes::Processes;
use crate::stream::CudaStream;
use crate::streams::{Streams, Vouched};
use crate::sys::{self, CUdevice_attribute as Attribute};
use crate::{descriptors, driver};

/// Reserved ranges start at multiples of this, or of the granularity where that is more.
pub(crate) const RANGE_ALIGNMENT_BYTES: u64 = 2 << 20;

/// A GPU. The crate's page says what holds for every call.
pub struct CudaDevice {
    pub(crate) properties: Properties,
    pub(crate) context: Context,
    pub(crate) ordinal: i32,
    pub(crate) bus_id: String,
    pub(crate) page_kind: PageKind,
    pub(crate) share_by: ShareBy,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) streams: Streams,
    /// Contexts of the devices that were given access, kept alive with it.
    pub(crate) peers: Mutex<Vec<Context>>,
    pub(crate) processes: Processes,
    pub(crate) copies: Copies,
    pub(crate) epoch: Instant,
}

/// The driver's description of our pages.
pub(crate) struct PageKind(pub(crate) sys::CUmemAllocationProp);

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
            copies: Copies::default(),
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
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the context for a call that needs virtual memory.
    pub(crate) fn enter_virtual(&self) -> Result<Entered<'_>, DeviceError> {
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
pub(crate) unsafe fn export(
    page: driver::CudaPage,
    by: ShareBy,
) -> Result<SharedPage, DeviceError> {
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
pub(crate) fn import(shared: SharedPage, pid: u32) -> Result<driver::CudaPage, DeviceError> {
    match shared {
        SharedPage::Descriptor(descriptor) => {
            let descriptor = descriptors::fetch(pid, descriptor)?;
            // SAFETY: it is open, and closed only behind the call.
            unsafe { driver::import_page_descriptor(descriptor.as_raw_fd()) }
        }
        SharedPage::Fabric(handle) => driver::import_page_fabric(handle),
    }
}
