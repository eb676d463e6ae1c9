//! The management library: as many cards as there are, and nothing else about them. Whoever asks
//! for more is told that it is not supported.
#![allow(non_snake_case, reason = "the names are NVML's")]

use std::ffi::c_char;
use std::process;

use larder_core::device::Device;

use crate::border::{Out, Shown, Status, driver};
use crate::gpu::{fleet, gpu_of};
use crate::runtime::VERSION;

/// What NVML returns where the card cannot say.
const NOT_SUPPORTED: Status = Status(3);
const INSUFFICIENT_ROOM: Status = Status(7);

/// The handle of a card is its number and one.
fn index(handle: u64) -> i32 {
    handle as i32 - 1
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Status {
    driver(|| fleet().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(_status: Status) -> *const c_char {
    c"the dry run cannot say this".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> Status {
    driver(|| version.put(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<u32>) -> Status {
    driver(|| count.put(fleet()?.gpus.len() as u32))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(number: u32, handle: Out<u64>) -> Status {
    driver(|| handle.put(gpu_of(number as i32)?.index as u64 + 1))
}

/// A bus identity ends in the card's number and one, as the runtime says it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(name: *const c_char, handle: Out<u64>) -> Status {
    driver(|| {
        let name = crate::border::text_at(name)?;
        let number = name.split(':').nth(1).and_then(|part| u64::from_str_radix(part, 16).ok());
        let number = number.filter(|&number| number > 0).ok_or(Status::INVALID_VALUE)?;
        gpu_of(number as i32 - 1)?;
        handle.put(number)
    })
}

/// Total, free and used.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(handle: u64, memory: Out<[u64; 3]>) -> Status {
    driver(|| {
        let total = fleet()?.card.total_bytes;
        let free = gpu_of(index(handle))?.device.memory_info()?.free_bytes;
        memory.put([total, free, total - free])
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(handle: u64, name: Out<u8>, room: u32) -> Status {
    driver(|| {
        gpu_of(index(handle))?;
        name.put_all(format!("{}\0", fleet()?.card.name).as_bytes(), room as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    handle: u64,
    major: Out<i32>,
    minor: Out<i32>,
) -> Status {
    driver(|| {
        gpu_of(index(handle))?;
        major.put(fleet()?.card.compute_capability.0)?;
        minor.put(fleet()?.card.compute_capability.1)
    })
}

/// A process and what it has of a card.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Process {
    id: u32,
    used_bytes: u64,
    instances: [u32; 2],
}

fn processes(handle: u64, count: &Shown<u32>, found: Out<Process>) -> Status {
    driver(|| {
        let used_bytes = gpu_of(index(handle))?.device.used_bytes();
        let room = count.read()?;
        count.write(1)?;
        if room == 0 {
            return Err(INSUFFICIENT_ROOM);
        }
        found.put(Process { id: process::id(), used_bytes, instances: [u32::MAX; 2] })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: u64,
    count: Shown<u32>,
    found: Out<Process>,
) -> Status {
    processes(handle, &count, found)
}

/// The oldest form of it has a smaller structure, the name of which PyTorch's headers give a newer
/// one.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    handle: u64,
    count: Shown<u32>,
    found: Out<Process>,
) -> Status {
    processes(handle, &count, found)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType() -> Status {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2() -> Status {
    NOT_SUPPORTED
}
