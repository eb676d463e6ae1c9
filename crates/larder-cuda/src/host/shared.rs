//! Memory that is mapped here: in large pages where the system gives them, every page touched, on
//! the part of the host that is nearest to the GPU.
//!
//! It is shared with processes that are forked from this one. Private memory would be copied when
//! one of the two writes to it, and what the GPU goes on reading is the page of before.

use std::ffi::c_void;
use std::thread;
use std::{io, ptr};

use larder_core::device::DeviceError;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::node::{self, Node};

/// The system's large page, and what memory starts at a multiple of.
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// What one thread is worth starting for.
const PART_MIN_BYTES: u64 = 32 << 20;
/// More threads make nothing faster.
const THREADS_MAX: usize = 16;

/// Maps memory of whole pages and touches it by so many threads; 0 threads are as many as are best.
pub(super) fn map(size_bytes: u64, threads: usize, node: &Node) -> Result<u64, DeviceError> {
    // The system promises any amount, and ends the process that then touches it.
    if size_bytes > node::host_memory().free_bytes {
        return Err(DeviceError::OutOfMemory);
    }
    let addr = map_aligned(size_bytes).map_err(refusal)?;
    // SAFETY: it was mapped just now. Where there are no large pages small ones will do.
    let _ = unsafe { advise(addr, size_bytes, Advice::LinuxHugepage) };
    let threads = if threads > 0 { threads } else { best_threads(size_bytes, node) };
    // SAFETY: it was mapped just now, and nobody knows of it.
    if let Err(error) = unsafe { touch(addr, size_bytes, threads, node) } {
        // SAFETY: as above.
        unsafe { unmap(addr, size_bytes) };
        return Err(refusal(error));
    }
    Ok(addr)
}

/// Gives mapped memory back.
///
/// # Safety
/// It is mapped, and nobody uses it any more.
pub(super) unsafe fn unmap(addr: u64, size_bytes: u64) {
    // SAFETY: the caller promises it.
    let unmapped = unsafe { rustix::mm::munmap(addr as *mut c_void, size_bytes as usize) };
    debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
}

/// Maps memory from a multiple of a large page on.
fn map_aligned(size_bytes: u64) -> Result<u64, Errno> {
    let whole_bytes = size_bytes + LARGE_PAGE_BYTES;
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the system chooses the place.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), whole_bytes as usize, access, kind) }?
            as u64;
    let addr = mapped.next_multiple_of(LARGE_PAGE_BYTES);
    let (before, behind) = (addr - mapped, mapped + whole_bytes - (addr + size_bytes));
    // SAFETY: both ends were mapped just now, and nobody knows of them.
    unsafe {
        if before > 0 {
            unmap(mapped, before);
        }
        if behind > 0 {
            unmap(addr + size_bytes, behind);
        }
    }
    Ok(addr)
}

/// # Safety
/// The memory is mapped, and nobody knows of it yet.
unsafe fn advise(addr: u64, size_bytes: u64, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the caller promises it.
    unsafe { rustix::mm::madvise(addr as *mut c_void, size_bytes as usize, advice) }
}

/// How many threads are best: half of the processors there are, so that the program goes on.
fn best_threads(size_bytes: u64, node: &Node) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let near = if node.processors.is_empty() { processors } else { node.processors.len() };
    let worth = usize::try_from(size_bytes / PART_MIN_BYTES).unwrap_or(THREADS_MAX);
    (processors.min(near) / 2).min(worth).clamp(1, THREADS_MAX)
}

/// Has every page filled with zeros, by so many threads.
///
/// # Safety
/// The memory is mapped, and nobody knows of it yet.
unsafe fn touch(addr: u64, size_bytes: u64, threads: usize, node: &Node) -> Result<(), Errno> {
    let part_bytes = size_bytes.div_ceil(threads as u64).next_multiple_of(LARGE_PAGE_BYTES);
    let starts = (0..size_bytes).step_by(part_bytes as usize);
    let mut parts = starts.map(|start| (addr + start, part_bytes.min(size_bytes - start)));
    // SAFETY: each part is in what the caller promises to be mapped.
    let touch = |(start, length)| unsafe { touch_part(start, length) };
    if threads == 1 && node.processors.is_empty() {
        return parts.try_for_each(touch);
    }
    thread::scope(|scope| {
        let started: Vec<_> = parts
            .map(|part| {
                let touch_near = move || {
                    node.bind_thread();
                    touch(part)
                };
                let started = thread::Builder::new().spawn_scoped(scope, touch_near);
                started.map_err(|_: io::Error| part)
            })
            .collect();
        // A part for which there was no thread is touched here.
        let ended = started.into_iter().map(|started| match started {
            Ok(thread) => thread.join().unwrap_or(Err(Errno::FAULT)),
            Err(part) => touch(part),
        });
        ended.collect()
    })
}

/// # Safety
/// The part is mapped, and nobody knows of it yet.
unsafe fn touch_part(addr: u64, size_bytes: u64) -> Result<(), Errno> {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: the caller promises that it is mapped.
    match unsafe { advise(addr, size_bytes, Advice::LinuxPopulateWrite) } {
        // What systems before Linux 5.14 say of it.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        answer => return answer,
    }
    for start in (0..size_bytes).step_by(PAGE_BYTES) {
        // SAFETY: the page is mapped, and nobody reads or writes it.
        unsafe { ptr::write_volatile((addr + start) as *mut u8, 0) };
    }
    Ok(())
}

fn refusal(error: Errno) -> DeviceError {
    match error {
        Errno::NOMEM => DeviceError::OutOfMemory,
        other => DeviceError::Other {
            code: other.raw_os_error(),
            text: format!("the system gives no memory of the host: {other}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_whole_and_zero_and_can_be_written() {
        for (size_bytes, threads) in [(4096, 0), (5 << 20, 1), ((8 << 20) + 4096, 3)] {
            let addr = map(size_bytes, threads, &Node::default()).unwrap();
            assert!(addr.is_multiple_of(LARGE_PAGE_BYTES));
            for at in [addr, addr + size_bytes / 2, addr + size_bytes - 1] {
                // SAFETY: it is mapped, and nobody else knows of it.
                unsafe {
                    assert_eq!(ptr::read_volatile(at as *const u8), 0);
                    ptr::write_volatile(at as *mut u8, 7);
                }
            }
            // SAFETY: nobody uses it any more.
            unsafe { unmap(addr, size_bytes) };
        }
    }

    #[test]
    fn more_than_there_is_is_refused_before_anything_is_touched() {
        assert_eq!(map(1 << 50, 0, &Node::default()), Err(DeviceError::OutOfMemory));
    }
}
