//! The runtime's functions about devices, errors and memory.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use larder_core::device::Device;
use larder_core::types::Addr;

use crate::border::{Answer, Out, Status, last_error, runtime, take_last_error};
use crate::gpu::{Gpu, current, fleet, gpu, gpu_of, set_current};
use crate::properties::DeviceProperties;
use crate::{arena, values};

/// CUDA 13.0, as both the runtime and the driver count.
pub(crate) const VERSION: i32 = 13000;

// Devices.

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceCount(count: Out<i32>) -> Status {
    runtime(|| count.put(fleet()?.gpus.len() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDevice(device: Out<i32>) -> Status {
    runtime(|| device.put(current()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: i32) -> Status {
    runtime(|| set_current(device))
}

#[unsafe(no_mangle)]
extern "C" fn cudaInitDevice(device: i32, _flags: u32, _more: u32) -> Status {
    runtime(|| set_current(device))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDriverGetVersion(version: Out<i32>) -> Status {
    runtime(|| version.put(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cudaRuntimeGetVersion(version: Out<i32>) -> Status {
    runtime(|| version.put(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(properties: Out<DeviceProperties>, device: i32) -> Status {
    runtime(|| {
        let gpu = gpu_of(device)?;
        properties.put(DeviceProperties::of(&fleet()?.card, gpu.index))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) -> Status {
    runtime(|| {
        gpu_of(device)?;
        value.put(fleet()?.card.attribute(attribute))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetPCIBusId(name: Out<u8>, room: i32, device: i32) -> Status {
    runtime(|| {
        let number = gpu_of(device)?.index + 1;
        name.put_all(format!("0000:{number:02X}:00.0\0").as_bytes(), room as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Status {
    runtime(|| {
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    })
}

/// Cards of one process reach each other, as those of one machine mostly do.
#[unsafe(no_mangle)]
extern "C" fn cudaDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> Status {
    runtime(|| {
        let is_other = gpu_of(device)?.index != gpu_of(peer)?.index;
        can.put(i32::from(is_other))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceEnablePeerAccess(peer: i32, _flags: u32) -> Status {
    runtime(|| gpu_of(peer).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> Status {
    runtime(|| Ok(gpu()?.device.wait_device()?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaProfilerStart() -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaProfilerStop() -> Status {
    Status::SUCCESS
}

// Errors.

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Status {
    take_last_error()
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Status {
    last_error()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(status: Status) -> *const c_char {
    status.describe().0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(status: Status) -> *const c_char {
    status.describe().1.as_ptr()
}

// Memory of the card.

#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) -> Status {
    runtime(|| {
        free.put(gpu()?.device.memory_info()?.free_bytes as usize)?;
        total.put(fleet()?.card.total_bytes as usize)
    })
}

pub(crate) fn alloc(gpu: &Gpu, size_bytes: u64) -> Answer<u64> {
    if size_bytes == 0 {
        // CUDA gives null for nothing.
        return Ok(0);
    }
    let addr = gpu.device.alloc(size_bytes)?;
    let Some(host) = arena::to_host(addr) else {
        gpu.device.free(addr)?;
        return Err(Status::OUT_OF_MEMORY);
    };
    gpu.beside().sizes.insert(host, size_bytes);
    Ok(host)
}

/// Like that of a card, a free waits for all work.
pub(crate) fn free(host: u64) -> Answer {
    if host == 0 {
        return Ok(());
    }
    let (card, addr) = arena::to_card(host).ok_or(Status::INVALID_VALUE)?;
    let gpu = gpu_of(card as i32)?;
    gpu.device.wait_device()?;
    gpu.device.free(addr)?;
    let size_bytes = gpu.beside().sizes.remove(&host).unwrap_or(0);
    values::forget(host, size_bytes);
    if size_bytes > 0 {
        arena::discard(host, size_bytes);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(addr: Out<u64>, size_bytes: usize) -> Status {
    runtime(|| addr.put(alloc(gpu()?, size_bytes as u64)?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(addr: u64) -> Status {
    runtime(|| {
        gpu()?;
        free(addr)
    })
}

/// The driver's own pools are not modelled, so that a program that wants them is told so.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync(_addr: Out<u64>, _size_bytes: usize, _stream: u64) -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(_addr: u64, _stream: u64) -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetDefaultMemPool(_pool: Out<u64>, _device: i32) -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

// Pinned memory of the host.

/// Where pinned memory is, and how much of it: each given out or registered.
static PINNED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

pub(crate) fn is_pinned(addr: u64) -> bool {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    pinned.iter().any(|&(start, size)| (start..start + size).contains(&addr))
}

fn pin(addr: u64, size_bytes: usize) {
    let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    pinned.push((addr, size_bytes as u64));
}

fn unpin(addr: u64) -> Answer {
    let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = pinned.iter().position(|&(start, _)| start == addr).ok_or(Status::INVALID_VALUE)?;
    pinned.swap_remove(at);
    Ok(())
}

pub(crate) fn alloc_pinned(size_bytes: usize) -> Answer<u64> {
    let mut place = ptr::null_mut();
    // SAFETY: the call writes an address that `place` has room for; 4096 is a power of two.
    if unsafe { libc::posix_memalign(&raw mut place, 4096, size_bytes.max(1)) } != 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
    pin(place as u64, size_bytes);
    Ok(place as u64)
}

pub(crate) fn free_pinned(addr: u64) -> Answer {
    if addr == 0 {
        return Ok(());
    }
    unpin(addr)?;
    // SAFETY: it was in the list, which has what `alloc_pinned` made and nobody freed; what was
    // only registered is not freed this way by CUDA's rules.
    unsafe { libc::free(addr as *mut c_void) };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(addr: Out<u64>, size_bytes: usize, _flags: u32) -> Status {
    runtime(|| addr.put(alloc_pinned(size_bytes)?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocHost(addr: Out<u64>, size_bytes: usize) -> Status {
    runtime(|| addr.put(alloc_pinned(size_bytes)?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(addr: u64) -> Status {
    runtime(|| free_pinned(addr))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostRegister(addr: u64, size_bytes: usize, _flags: u32) -> Status {
    runtime(|| {
        pin(addr, size_bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostUnregister(addr: u64) -> Status {
    runtime(|| unpin(addr))
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    reserved: [u64; 8],
}

#[unsafe(no_mangle)]
extern "C" fn cudaPointerGetAttributes(found: Out<PointerAttributes>, addr: u64) -> Status {
    const UNKNOWN: i32 = 0;
    const HOST: i32 = 1;
    const DEVICE: i32 = 2;
    runtime(|| {
        let place = arena::to_card(addr);
        let pinned = place.is_none() && is_pinned(addr);
        found.put(PointerAttributes {
            kind: match (place, pinned) {
                (Some(_), _) => DEVICE,
                (None, true) => HOST,
                (None, false) => UNKNOWN,
            },
            device: place.map_or(0, |(card, _)| card as i32),
            device_pointer: if place.is_some() || pinned { addr } else { 0 },
            host_pointer: if pinned { addr } else { 0 },
            reserved: [0; 8],
        })
    })
}

/// The plain allocation that an address lies in.
pub(crate) fn allocation_at(host: u64) -> Answer<(u64, u64)> {
    let (card, _) = arena::to_card(host).ok_or(Status::INVALID_VALUE)?;
    let beside = gpu_of(card as i32)?.beside();
    let found = beside.sizes.iter().find(|&(&start, &size)| (start..start + size).contains(&host));
    found.map(|(&start, &size)| (start, size)).ok_or(Status::INVALID_VALUE)
}

/// The card that an address is on, or the one that this thread is at.
pub(crate) fn gpu_with(addr: u64) -> Answer<&'static Gpu> {
    arena::to_card(addr).map_or_else(gpu, |(card, _): (usize, Addr)| gpu_of(card as i32))
}

/// Functions for which there is no model. They look at none of their arguments.
macro_rules! not_supported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            runtime(|| Err(Status::NOT_SUPPORTED))
        }
    )*};
}

not_supported! {
    cudaDeviceGetGraphMemAttribute
    cudaDeviceSetGraphMemAttribute
    cudaGetSymbolAddress
    cudaGraphDebugDotPrint
    cudaIpcCloseMemHandle
    cudaIpcGetEventHandle
    cudaIpcGetMemHandle
    cudaIpcOpenEventHandle
    cudaIpcOpenMemHandle
    cudaMallocManaged
    cudaMemPoolGetAttribute
    cudaMemPoolSetAccess
    cudaMemPoolSetAttribute
    cudaMemPoolTrimTo
}
