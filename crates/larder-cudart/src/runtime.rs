//! The runtime's functions about the device and its plain memory.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::ffi::{c_char, c_void};
use std::ptr;

use larder_core::device::Device;
use larder_core::types::Addr;

use crate::border::{Out, Shown, Status, runtime, take_last_error};
use crate::driver;
use crate::gpu::gpu;
use crate::properties::DeviceProperties;

/// CUDA 13.0, as both the runtime and the driver count.
const VERSION: i32 = 13000;

/// The only device that there is.
const DEVICE: i32 = 0;

fn check_device(device: i32) -> Result<(), Status> {
    if device == DEVICE { Ok(()) } else { Err(Status::INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(count: Out<i32>) -> Status {
    runtime(|| count.put(1))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDevice(device: Out<i32>) -> Status {
    runtime(|| device.put(DEVICE))
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: i32) -> Status {
    runtime(|| check_device(device))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: Out<i32>) -> Status {
    runtime(|| version.put(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(properties: Out<DeviceProperties>, device: i32) -> Status {
    runtime(|| {
        check_device(device)?;
        properties.put(DeviceProperties::with_memory(gpu()?.properties().total_bytes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) -> Status {
    runtime(|| {
        let info = gpu()?.memory_info()?;
        free.put(info.free_bytes as usize)?;
        total.put(info.total_bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> Status {
    runtime(|| {
        check_device(device)?;
        check_device(peer)?;
        can.put(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(addr: Out<usize>, size_bytes: usize) -> Status {
    runtime(|| {
        let size_bytes = size_bytes as u64;
        // CUDA gives null for nothing.
        let given = if size_bytes == 0 { Addr(0) } else { gpu()?.alloc(size_bytes)? };
        addr.put(given.0 as usize)
    })
}

/// It waits for nothing, as the rules of the simulated GPU say.
#[unsafe(no_mangle)]
extern "C" fn cudaFree(addr: usize) -> Status {
    runtime(|| if addr == 0 { Ok(()) } else { Ok(gpu()?.free(Addr(addr as u64))?) })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Status {
    take_last_error()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(status: Status) -> *const c_char {
    status.describe().0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(status: Status) -> *const c_char {
    status.describe().1.as_ptr()
}

/// A name that the driver does not know is no error: the answer says that it was not found.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDriverEntryPointByVersion(
    name: Shown<c_char>,
    function: Out<*const c_void>,
    _version: u32,
    _flags: u64,
    answer: Out<i32>,
) -> Status {
    const FOUND: i32 = 0;
    const NOT_FOUND: i32 = 1;
    runtime(|| {
        let found = driver::function(name.text()?);
        answer.put_if_wanted(if found.is_some() { FOUND } else { NOT_FOUND });
        function.put(found.unwrap_or(ptr::null()))
    })
}

/// Functions for which the simulated GPU has no model. They look at none of their arguments.
macro_rules! not_supported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            runtime(|| Err(Status::NOT_SUPPORTED))
        }
    )*};
}

not_supported! {
    cudaDeviceEnablePeerAccess
    cudaDeviceGetDefaultMemPool
    cudaDeviceGetGraphMemAttribute
    cudaDeviceSetGraphMemAttribute
    cudaFreeAsync
    cudaIpcCloseMemHandle
    cudaIpcGetMemHandle
    cudaIpcOpenMemHandle
    cudaMallocAsync
    cudaMemPoolGetAttribute
    cudaMemPoolSetAccess
    cudaMemPoolSetAttribute
    cudaMemPoolTrimTo
    cudaMemcpy
    cudaMemcpyAsync
    cudaMemcpyPeerAsync
}
