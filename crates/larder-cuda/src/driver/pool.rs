//! The driver's own pool.

use std::ffi::c_void;
use std::ptr;

use larder_core::device::DeviceError;

use super::{check, written};
use crate::sys::{self, CUstream};
use crate::table;

/// The device's default pool.
pub fn default_pool(device: sys::CUdevice) -> Result<sys::CUmemoryPool, DeviceError> {
    // SAFETY: the pointer is to a handle of the right type.
    written(ptr::null_mut(), |pool| unsafe { table::cuDeviceGetDefaultMemPool(pool, device) })
}

/// Sets one of a pool's numbers; those of 32 bits are in its lower half.
///
/// # Safety
/// The pool is alive.
pub unsafe fn set_pool_attribute(
    pool: sys::CUmemoryPool,
    attribute: sys::CUmemPool_attribute,
    mut value: u64,
) -> Result<(), DeviceError> {
    // SAFETY: the driver reads 4 or 8 bytes, by the attribute; on a little-endian host the first
    // 4 bytes of a small number are that number.
    check(unsafe {
        table::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast::<c_void>())
    })
}

/// One of a pool's numbers of 64 bits.
///
/// # Safety
/// The pool is alive.
pub unsafe fn pool_attribute(
    pool: sys::CUmemoryPool,
    attribute: sys::CUmemPool_attribute,
) -> Result<u64, DeviceError> {
    // SAFETY: the driver writes at most 8 bytes.
    written(0_u64, |value| unsafe {
        table::cuMemPoolGetAttribute(pool, attribute, value.cast::<c_void>())
    })
}

/// Gives back what the pool has cached.
///
/// # Safety
/// The pool is alive.
pub unsafe fn trim_pool(pool: sys::CUmemoryPool) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that it is alive.
    check(unsafe { table::cuMemPoolTrimTo(pool, 0) })
}

/// Memory from the device's pool, in the order of a stream.
///
/// # Safety
/// The stream is alive.
pub unsafe fn alloc_async(size_bytes: u64, stream: CUstream) -> Result<u64, DeviceError> {
    // SAFETY: the pointer is to an address of the right type.
    written(0, |addr| unsafe { table::cuMemAllocAsync(addr, size_bytes as usize, stream) })
}

/// Gives memory back to its pool, in the order of a stream.
///
/// # Safety
/// The stream is alive, and nobody uses the memory after the work that the stream has so far.
pub unsafe fn free_async(addr: u64, stream: CUstream) -> Result<(), DeviceError> {
    // SAFETY: the caller promises that nobody uses it.
    check(unsafe { table::cuMemFreeAsync(addr, stream) })
}
