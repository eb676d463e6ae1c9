//! The driver's calls that a device needs, each as a function with a `Result`.
//!
//! Each needs the device's context to be current on the calling thread, and says what else.
//! The functions that take handles are unsafe, because the driver does not check all of them.

mod captures;
mod host;
mod pool;
mod sharing;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use larder_core::device::DeviceError;

use crate::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};
use crate::table;

pub use captures::{capture_ends, capture_of, node_dependencies};
pub use host::{
    alloc_host, copy_in, copy_out, free_host, has_primary_context, register_host, unregister_host,
};
pub use pool::{
    alloc_async, default_pool, free_async, pool_attribute, set_pool_attribute, trim_pool,
};
pub use sharing::{
    can_reach, close_alloc, enable_peer, export_alloc, export_page_descriptor, export_page_fabric,
    import_alloc, import_page_descriptor, import_page_fabric,
};

/// What the driver calls a page.
pub type CudaPage = sys::CUmemGenericAllocationHandle;

/// Whether the driver's library is on this machine.
pub fn is_present() -> bool {
    table::is_present()
}

/// The driver's refusal as a device's.
pub fn refusal(result: CUresult) -> DeviceError {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory,
        CUresult::CUDA_ERROR_NOT_SUPPORTED => DeviceError::NotSupported,
        // SAFETY: both tell of any number, known or not.
        _ => unsafe {
            let name = word(|text| table::cuGetErrorName(result, text));
            let text = word(|text| table::cuGetErrorString(result, text));
            DeviceError::Other { code: result.0 as i32, text: format!("{name}: {text}") }
        },
    }
}

/// A word that the driver has for something, and keeps as long as it is loaded.
///
/// # Safety
/// What the call writes is null or a text of C that stays.
unsafe fn word(call: impl FnOnce(*mut *const c_char) -> CUresult) -> String {
    let mut text = ptr::null();
    if call(&raw mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
        return String::from("unknown");
    }
    // SAFETY: the caller promises that it is a text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn check(result: CUresult) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(refusal(result)) }
}

/// What the driver wrote through the pointer, if the call succeeded.
fn written<T: Copy>(empty: T, call: impl FnOnce(*mut T) -> CUresult) -> Result<T, DeviceError> {
    let mut value = empty;
    check(call(&raw mut value))?;
    Ok(value)
}

// Devices and contexts.

/// Starts the driver; again does no harm.
pub fn init() -> Result<(), DeviceError> {
    // SAFETY: it takes no pointer.
    check(unsafe { table::cuInit(0) })
}

/// The version of CUDA that the driver speaks, as 1000 times the major and 10 times the minor.
pub fn version() -> Result<i32, DeviceError> {
    // SAFETY: the pointer is to a number of the right type.
    written(0, |version| unsafe { table::cuDriverGetVersion(version) })
}

/// How many devices there are. The driver must have been started.
pub fn device_count() -> Result<u32, DeviceError> {
    // SAFETY: the pointer is to a number of the right type.
    written(0, |count| unsafe { table::cuDeviceGetCount(count) }).map(|count: c_int| count as u32)
}

/// The device of this number.
pub fn device(ordinal: i32) -> Result<sys::CUdevice, DeviceError> {
    // SAFETY: the pointer is to a handle of the right type.
    written(0, |device| unsafe { table::cuDeviceGet(device, ordinal) })
}

/// How much memory the device has.
pub fn total_bytes(device: sys::CUdevice) -> Result<u64, DeviceError> {
    // SAFETY: the pointer is to a number of the right type.
    written(0, |bytes| unsafe { table::cuDeviceTotalMem_v2(bytes, device) })
        .map(|bytes| bytes as u64)
}

/// One of the device's numbers.
pub fn attribute(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
) -> Result<i32, DeviceError> {
    // SAFETY: the pointer is to a number of the right type.
    written(0, |value| unsafe { table::cuDeviceGetAttribute(value, attribute, device) })
}

/// The device's address on the bus, as NVML names devices.
pub fn bus_id(device: sys::CUdevice) -> Result<String, DeviceError> {
    let mut name = [0_u8; 32];
    // SAFETY: the buffer has the length that is said, and the driver ends the text with a zero.
    check(unsafe {
        table::cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), name.len() as c_int, device)
    })?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// The device's primary context, which stays until it is released as often as it was retained.
pub fn retain_primary_context(device: sys::CUdevice) -> Result<sys::CUcontext, DeviceError> {
    // SAFETY: the pointer is to a handle of the right type.
    written(ptr::null_mut(), |context| unsafe { table::cuDevicePrimaryCtxRetain(context, device) })
}

/// Lets go of the device's primary context once.
///
/// # Safety
/// It was retained by whoever calls this, who does not use it after this.
pub unsafe fn release_primary_context(device: sys::CUdevice) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it was retained.
    check(unsafe { table::cuDevicePrimaryCtxRelease_v2(device) })
}

/// The context that is current on this thread; null if there is none.
pub fn current_context() -> Result<sys::CUcontext, DeviceError> {
    // SAFETY: the pointer is to a handle of the right type.
    written(ptr::null_mut(), |context| unsafe { table::cuCtxGetCurrent(context) })
}

/// Makes a context current on this thread; null makes none current.
///
/// # Safety
/// The context is null or alive.
pub unsafe fn set_current_context(context: sys::CUcontext) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that the context is alive.
    check(unsafe { table::cuCtxSetCurrent(context) })
}

/// Sets the thread's capture mode and says what it was.
pub fn exchange_capture_mode(
    mode: sys::CUstreamCaptureMode,
) -> Result<sys::CUstreamCaptureMode, DeviceError> {
    // SAFETY: the pointer is to a mode, which the driver reads and writes.
    written(mode, |mode| unsafe { table::cuThreadExchangeStreamCaptureMode(mode) })
}

/// Free and total bytes.
pub fn memory_info() -> Result<(u64, u64), DeviceError> {
    let mut total = 0;
    // SAFETY: both pointers are to numbers of the right type.
    let free = written(0, |free| unsafe { table::cuMemGetInfo_v2(free, &raw mut total) })?;
    Ok((free as u64, total as u64))
}

/// Waits for all work of the context.
pub fn wait_context() -> Result<(), DeviceError> {
    // SAFETY: it takes no pointer.
    check(unsafe { table::cuCtxSynchronize() })
}

// Plain memory.

/// Memory of that many bytes.
pub fn alloc(size_bytes: u64) -> Result<u64, DeviceError> {
    // SAFETY: the pointer is to an address of the right type.
    written(0, |addr| unsafe { table::cuMemAlloc_v2(addr, size_bytes as usize) })
}

/// Gives memory back, once all work of the device is done.
///
/// # Safety
/// Nobody uses the memory any more.
pub unsafe fn free(addr: CUdeviceptr) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that nobody uses it.
    check(unsafe { table::cuMemFree_v2(addr) })
}

/// Sets bytes to zero, in the order of a stream.
///
/// # Safety
/// The stream is alive, and so is the memory, until the work that the stream has by then is done.
pub unsafe fn zero(addr: u64, size_bytes: u64, stream: CUstream) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that both are alive.
    check(unsafe { table::cuMemsetD8Async(addr, 0, size_bytes as usize, stream) })
}

// Virtual memory.

/// A range of addresses.
pub fn reserve(size_bytes: u64, alignment_bytes: u64) -> Result<u64, DeviceError> {
    let (size, alignment) = (size_bytes as usize, alignment_bytes as usize);
    // SAFETY: the pointer is to an address of the right type.
    written(0, |addr| unsafe { table::cuMemAddressReserve(addr, size, alignment, 0, 0) })
}

/// Gives back a whole range.
///
/// # Safety
/// Nothing is mapped in it.
pub unsafe fn unreserve(addr: u64, size_bytes: u64) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that nothing is mapped in it.
    check(unsafe { table::cuMemAddressFree(addr, size_bytes as usize) })
}

/// How the pages of a device are made.
pub fn page_kind(
    device: c_int,
    handles: sys::CUmemAllocationHandleType,
    is_rdma_capable: bool,
) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationFlags {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(is_rdma_capable),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// The unit of pages of this kind.
pub fn granularity(kind: &sys::CUmemAllocationProp) -> Result<u64, DeviceError> {
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the pointers are to a number and to a kind that live through the call.
    let size =
        written(0, |size| unsafe { table::cuMemGetAllocationGranularity(size, kind, minimum) })?;
    Ok(size as u64)
}

/// A page.
pub fn create_page(
    size_bytes: u64,
    kind: &sys::CUmemAllocationProp,
) -> Result<CudaPage, DeviceError> {
    // SAFETY: the pointers are to a handle and to a kind that live through the call.
    written(0, |page| unsafe { table::cuMemCreate(page, size_bytes as usize, kind, 0) })
}

/// Gives a page back.
///
/// # Safety
/// The page is alive, and not used after this.
pub unsafe fn release_page(page: CudaPage) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that the page is alive.
    check(unsafe { table::cuMemRelease(page) })
}

/// Puts a page behind addresses.
///
/// # Safety
/// The page is alive and as large as that, and nothing is mapped there.
pub unsafe fn map(addr: u64, size_bytes: u64, page: CudaPage) -> Result<(), DeviceError> {
    // SAFETY: the caller promises what the driver needs.
    check(unsafe { table::cuMemMap(addr, size_bytes as usize, 0, page, 0) })
}

/// Takes the page behind addresses away.
///
/// # Safety
/// One whole page is mapped there, and nobody uses it any more.
pub unsafe fn unmap(addr: u64, size_bytes: u64) -> Result<(), DeviceError> {
    // SAFETY: the caller promises what the driver needs.
    check(unsafe { table::cuMemUnmap(addr, size_bytes as usize) })
}

/// Lets a device read and write addresses.
///
/// # Safety
/// All of them are mapped.
pub unsafe fn set_access(addr: u64, size_bytes: u64, device: c_int) -> Result<(), DeviceError> {
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the caller promises that all is mapped; the description lives through the call.
    check(unsafe { table::cuMemSetAccess(addr, size_bytes as usize, &raw const access, 1) })
}

// Events and streams.

/// An event that takes no time.
pub fn create_event() -> Result<CUevent, DeviceError> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
    // SAFETY: the pointer is to a handle of the right type.
    written(ptr::null_mut(), |event| unsafe { table::cuEventCreate(event, flags) })
}

/// Gives an event back.
///
/// # Safety
/// The event is alive, and not used after this.
pub unsafe fn destroy_event(event: CUevent) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    check(unsafe { table::cuEventDestroy_v2(event) })
}

/// Records an event on a stream.
///
/// # Safety
/// Both are alive and of the current context.
pub unsafe fn record_event(event: CUevent, stream: CUstream) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that both are alive.
    check(unsafe { table::cuEventRecord(event, stream) })
}

/// Whether an event is done.
///
/// # Safety
/// It is alive.
pub unsafe fn query_event(event: CUevent) -> Result<bool, DeviceError> {
    // SAFETY: the caller promises that it is alive.
    match unsafe { table::cuEventQuery(event) } {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => Err(refusal(result)),
    }
}

/// Waits for an event.
///
/// # Safety
/// It is alive.
pub unsafe fn wait_event(event: CUevent) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    check(unsafe { table::cuEventSynchronize(event) })
}

/// A stream that does not wait for the default one.
pub fn create_stream() -> Result<CUstream, DeviceError> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING.0;
    // SAFETY: the pointer is to a handle of the right type.
    written(ptr::null_mut(), |stream| unsafe { table::cuStreamCreate(stream, flags) })
}

/// Gives a stream back, whose work so far still runs.
///
/// # Safety
/// It is alive, and not used after this.
pub unsafe fn destroy_stream(stream: CUstream) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    check(unsafe { table::cuStreamDestroy_v2(stream) })
}

/// Lets a stream wait for an event.
///
/// # Safety
/// Both are alive.
pub unsafe fn stream_wait_event(stream: CUstream, event: CUevent) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that both are alive.
    check(unsafe { table::cuStreamWaitEvent(stream, event, 0) })
}

/// Waits for a stream.
///
/// # Safety
/// It is alive.
pub unsafe fn wait_stream(stream: CUstream) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    check(unsafe { table::cuStreamSynchronize(stream) })
}
