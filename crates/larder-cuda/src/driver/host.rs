//! Memory of the host that the device reads and writes by itself.

use std::ffi::c_void;
use std::ptr;

use larder_core::device::DeviceError;

use super::{check, written};
use crate::sys::{self, CUmemhost_flags};
use crate::table;

/// Pinned memory of that many bytes, for every context of the process.
pub fn alloc_host(size_bytes: u64) -> Result<u64, DeviceError> {
    let flags = CUmemhost_flags::CU_MEMHOSTALLOC_PORTABLE.0;
    // SAFETY: the pointer is to an address of the right type.
    let at = written(ptr::null_mut(), |at| unsafe {
        table::cuMemHostAlloc(at, size_bytes as usize, flags)
    })?;
    Ok(at as u64)
}

/// Gives pinned memory back, once all work that uses it is done.
///
/// # Safety
/// It is what `alloc_host` gave, and nobody uses it any more.
pub unsafe fn free_host(addr: u64) -> Result<(), DeviceError> {
    // SAFETY: the caller promises it.
    check(unsafe { table::cuMemFreeHost(addr as *mut c_void) })
}

/// Pins memory that is there already, for every context of the process.
///
/// # Safety
/// It is mapped, and stays so until it is unregistered.
pub unsafe fn register_host(addr: u64, size_bytes: u64) -> Result<(), DeviceError> {
    let flags = CUmemhost_flags::CU_MEMHOSTREGISTER_PORTABLE.0;
    // SAFETY: the caller promises it.
    check(unsafe { table::cuMemHostRegister_v2(addr as *mut c_void, size_bytes as usize, flags) })
}

/// Takes the pin off memory again.
///
/// # Safety
/// What was registered begins at the address, and no work uses it any more.
pub unsafe fn unregister_host(addr: u64) -> Result<(), DeviceError> {
    // SAFETY: the caller promises it.
    check(unsafe { table::cuMemHostUnregister(addr as *mut c_void) })
}

/// Copies memory of the device to the host's, in the order of a stream.
///
/// # Safety
/// The stream is alive, and both memories are there and large enough, until the work that the
/// stream has by then is done. Nobody else uses the host's meanwhile.
pub unsafe fn copy_out(
    from: u64,
    to: *mut u8,
    size_bytes: usize,
    stream: sys::CUstream,
) -> Result<(), DeviceError> {
    // SAFETY: the caller promises it.
    check(unsafe { table::cuMemcpyDtoHAsync_v2(to.cast(), from, size_bytes, stream) })
}

/// Copies the host's memory to memory of the device, in the order of a stream.
///
/// # Safety
/// The stream is alive, and both memories are there and large enough, until the work that the
/// stream has by then is done. Nobody writes to the host's meanwhile.
pub unsafe fn copy_in(
    from: *const u8,
    to: u64,
    size_bytes: usize,
    stream: sys::CUstream,
) -> Result<(), DeviceError> {
    // SAFETY: the caller promises it.
    check(unsafe { table::cuMemcpyHtoDAsync_v2(to, from.cast(), size_bytes, stream) })
}

/// Whether somebody of the process has made the device's primary context already.
pub fn has_primary_context(device: sys::CUdevice) -> Result<bool, DeviceError> {
    let mut flags = 0;
    // SAFETY: both pointers are to numbers of the right type.
    let active = written(0, |active| unsafe {
        table::cuDevicePrimaryCtxGetState(device, &raw mut flags, active)
    })?;
    Ok(active != 0)
}
