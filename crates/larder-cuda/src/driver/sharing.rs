//! Memory of one process in another, and of one device in another.

use std::ffi::{c_int, c_void};

use larder_core::device::{DeviceError, HANDLE_BYTES};

use super::{CudaPage, check, written};
use crate::sys::{self, CUresult};
use crate::table;

/// The handle of a plain allocation.
///
/// # Safety
/// The address is that of a plain allocation.
pub unsafe fn export_alloc(addr: u64) -> Result<[u8; HANDLE_BYTES], DeviceError> {
    let empty = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the pointer is to a handle of the right type.
    let handle = written(empty, |handle| unsafe { table::cuIpcGetMemHandle(handle, addr) })?;
    Ok(handle.reserved)
}

/// Opens an allocation of another process.
pub fn import_alloc(handle: [u8; HANDLE_BYTES]) -> Result<u64, DeviceError> {
    let handle = sys::CUipcMemHandle { reserved: handle };
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
    // SAFETY: the pointer is to an address of the right type; a handle that names nothing is
    // refused.
    written(0, |addr| unsafe { table::cuIpcOpenMemHandle_v2(addr, handle, flags) })
}

/// Closes an allocation of another process.
///
/// # Safety
/// It was opened here, and nobody uses it any more.
pub unsafe fn close_alloc(addr: u64) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that nobody uses it.
    check(unsafe { table::cuIpcCloseMemHandle(addr) })
}

/// A descriptor of the page, which is the caller's to close.
///
/// # Safety
/// The page is alive and was made to be shared so.
pub unsafe fn export_page_descriptor(page: CudaPage) -> Result<i32, DeviceError> {
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: for this kind of handle the driver writes an int.
    written(-1, |descriptor: *mut c_int| unsafe {
        table::cuMemExportToShareableHandle(descriptor.cast::<c_void>(), page, kind, 0)
    })
}

/// The page of a descriptor, which may be closed afterwards.
///
/// # Safety
/// The descriptor is open.
pub unsafe fn import_page_descriptor(descriptor: i32) -> Result<CudaPage, DeviceError> {
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // A descriptor is handed over as the value of the pointer.
    let handle = descriptor as usize as *mut c_void;
    // SAFETY: the pointer is to a handle of the right type; the driver checks what the descriptor
    // is.
    written(0, |page| unsafe { table::cuMemImportFromShareableHandle(page, handle, kind) })
}

/// The fabric's name of a page.
///
/// # Safety
/// The page is alive and was made to be shared so.
pub unsafe fn export_page_fabric(page: CudaPage) -> Result<[u8; HANDLE_BYTES], DeviceError> {
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    // SAFETY: for this kind of handle the driver writes 64 bytes.
    written([0; HANDLE_BYTES], |handle: *mut [u8; HANDLE_BYTES]| unsafe {
        table::cuMemExportToShareableHandle(handle.cast::<c_void>(), page, kind, 0)
    })
}

/// The page of a fabric's name.
pub fn import_page_fabric(mut handle: [u8; HANDLE_BYTES]) -> Result<CudaPage, DeviceError> {
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    let handle = handle.as_mut_ptr().cast::<c_void>();
    // SAFETY: the driver reads 64 bytes and checks what they name.
    written(0, |page| unsafe { table::cuMemImportFromShareableHandle(page, handle, kind) })
}

// Peers.

/// Whether a device can reach the memory of another.
pub fn can_reach(device: sys::CUdevice, other: sys::CUdevice) -> Result<bool, DeviceError> {
    // SAFETY: the pointer is to a number of the right type.
    written(0, |answer| unsafe { table::cuDeviceCanAccessPeer(answer, device, other) })
        .map(|answer: c_int| answer != 0)
}

/// Lets the current context reach the plain memory of another; again does no harm.
///
/// # Safety
/// The other context is alive.
pub unsafe fn enable_peer(other: sys::CUcontext) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    match unsafe { table::cuCtxEnablePeerAccess(other, 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        result => check(result),
    }
}
