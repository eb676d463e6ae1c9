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
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::node::{self, Node};
use super::part::Part;
use super::spare::Spare;

/// The system's large page, and what memory starts at a multiple of.
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// What one thread is worth starting for.
const PART_MIN_BYTES: u64 = 4 << 20;
/// More threads make nothing faster.
const THREADS_MAX: usize = 16;

/// Memory that is mapped here, by the calls that mapped its parts, which lie side by side.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) parts: Vec<Part>,
}

impl Mapped {
    pub(super) fn addr(&self) -> u64 {
        self.parts[0].addr
    }
}

/// Maps memory of whole pages, of which there is some, and touches what is not spare of it by so
/// many threads; 0 threads are as many as are best.
pub(super) fn map(
    size_bytes: u64,
    threads: usize,
    node: &Node,
    spare: &Spare,
) -> Result<Mapped, DeviceError> {
    // The system promises any amount, and ends the process that then touches it.
    if size_bytes > node::host_memory().free_bytes.saturating_add(spare.size_bytes()) {
        return Err(DeviceError::OutOfMemory);
    }
    let place = reserve_aligned(size_bytes).map_err(refusal)?;
    // SAFETY: the place is reserved, and nobody knows of it.
    let parts = unsafe { fill(place, threads, node, spare) };
    parts.map(|parts| Mapped { parts }).map_err(|error| {
        // SAFETY: as above; what was filled lies in it.
        unsafe { place.unmap() };
        refusal(error)
    })
}

/// Puts memory behind reserved addresses, spare pages first.
///
/// # Safety
/// The place is reserved, and nobody knows of it.
unsafe fn fill(
    place: Part,
    threads: usize,
    node: &Node,
    spare: &Spare,
) -> Result<Vec<Part>, Errno> {
    let (mut parts, mut empty) = (Vec::new(), place);
    for part in spare.take(place.size_bytes) {
        let (to, rest) = empty.split_at(part.size_bytes);
        // SAFETY: nobody uses what is spare, nor where it is moved.
        match unsafe { move_to(part, to.addr) } {
            Ok(()) => {
                parts.push(to);
                empty = rest;
            }
            // SAFETY: it was taken out, so that nobody else knows of it.
            Err(_) => unsafe { part.unmap() },
        }
    }
    if empty.size_bytes > 0 {
        // SAFETY: the caller promises that nobody knows of the place.
        unsafe {
            map_at(empty)?;
            // Where there are no large pages small ones will do.
            let _ = advise(empty.addr, empty.size_bytes, Advice::LinuxHugepage);
            let threads = if threads > 0 { threads } else { best_threads(empty.size_bytes, node) };
            touch(empty.addr, empty.size_bytes, threads, node)?;
        }
        parts.push(empty);
    }
    Ok(parts)
}

/// Addresses from a multiple of a large page on, with nothing behind them.
fn reserve_aligned(size_bytes: u64) -> Result<Part, Errno> {
    let whole_bytes = size_bytes + LARGE_PAGE_BYTES;
    let (access, kind) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: the system chooses the place.
    let reserved =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), whole_bytes as usize, access, kind) }?
            as u64;
    let before = reserved.next_multiple_of(LARGE_PAGE_BYTES) - reserved;
    let (before, rest) = Part { addr: reserved, size_bytes: whole_bytes }.split_at(before);
    let (place, behind) = rest.split_at(size_bytes);
    for end in [before, behind] {
        if end.size_bytes > 0 {
            // SAFETY: both ends were reserved just now, and nobody knows of them.
            unsafe { end.unmap() };
        }
    }
    Ok(place)
}

/// # Safety
/// The place is reserved, and nobody knows of it.
unsafe fn map_at(place: Part) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let kind = MapFlags::SHARED | MapFlags::FIXED;
    let (addr, size) = (place.addr as *mut c_void, place.size_bytes as usize);
    // SAFETY: the caller promises that it takes the place of nothing that is used.
    unsafe { rustix::mm::mmap_anonymous(addr, size, access, kind) }.map(drop)
}

/// Moves mapped memory to other addresses.
///
/// # Safety
/// One call mapped it, and nobody uses it, nor what is at the other addresses.
unsafe fn move_to(part: Part, addr: u64) -> Result<(), Errno> {
    let (from, size) = (part.addr as *mut c_void, part.size_bytes as usize);
    let to = addr as *mut c_void;
    // SAFETY: the caller promises it.
    unsafe { rustix::mm::mremap_fixed(from, size, size, MremapFlags::MAYMOVE, to) }.map(drop)
}

/// # Safety
/// The memory is mapped, and nobody knows of it yet.
unsafe fn advise(addr: u64, size_bytes: u64, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the caller promises it.
    unsafe { rustix::mm::madvise(addr as *mut c_void, size_bytes as usize, advice) }
}

/// How many threads are best: as many as there are processors near the GPU, for some milliseconds.
fn best_threads(size_bytes: u64, node: &Node) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let near = if node.processors.is_empty() { processors } else { node.processors.len() };
    let worth = usize::try_from(size_bytes / PART_MIN_BYTES).unwrap_or(THREADS_MAX);
    processors.min(near).min(worth).clamp(1, THREADS_MAX)
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
    use std::sync::Arc;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapped(size_bytes: u64, threads: usize, spare: &Spare) -> Mapped {
        map(size_bytes, threads, &Node::default(), spare).unwrap()
    }

    fn read(addr: u64) -> u8 {
        // SAFETY: it is mapped, and nobody else knows of it.
        unsafe { ptr::read_volatile(addr as *const u8) }
    }

    fn write(addr: u64, value: u8) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(addr as *mut u8, value) };
    }

    fn unmap_all(mapped: &Mapped) {
        for &part in &mapped.parts {
            // SAFETY: nobody uses it any more.
            unsafe { part.unmap() };
        }
    }

    #[test]
    fn what_is_mapped_is_whole_and_zero_and_can_be_written() {
        let spare = Spare::default();
        for (size_bytes, threads) in [(4096, 0), (5 * MIB, 1), (8 * MIB + 4096, 3)] {
            let memory = mapped(size_bytes, threads, &spare);
            let addr = memory.addr();
            assert!(addr.is_multiple_of(LARGE_PAGE_BYTES));
            for at in [addr, addr + size_bytes / 2, addr + size_bytes - 1] {
                assert_eq!(read(at), 0);
                write(at, 7);
            }
            unmap_all(&memory);
        }
    }

    #[test]
    fn spare_pages_come_first_with_what_was_in_them() {
        let spare = Arc::new(Spare::default());
        let kept: Vec<_> = [(6 * MIB, 6), (4 * MIB, 4)].into_iter().collect();
        let given: Vec<_> = kept.iter().map(|&(size, _)| mapped(size, 0, &spare)).collect();
        for (memory, &(size, value)) in given.iter().zip(&kept) {
            (0..size).step_by(4096).for_each(|at| write(memory.addr() + at, value));
            // No thread unmaps it meanwhile: it is taken at once, or the test would prove nothing.
            let part = memory.parts[0];
            let state = spare.clone();
            // SAFETY: nobody uses it any more.
            unsafe { state.put_unwatched(part) };
        }
        let memory = mapped(13 * MIB + 4096, 0, &spare);
        assert_eq!((memory.parts.len(), spare.size_bytes()), (3, 0));
        let addr = memory.addr();
        let found = [0, 6 * MIB - 1, 6 * MIB, 10 * MIB - 4096, 10 * MIB, 13 * MIB + 4095];
        let found = found.map(|at| read(addr + at));
        assert_eq!(found, [6, 0, 4, 4, 0, 0], "each page is where it was, behind the others");
        for pair in memory.parts.windows(2) {
            assert_eq!(pair[0].addr + pair[0].size_bytes, pair[1].addr);
        }
        (0..13 * MIB).step_by(4096).for_each(|at| write(addr + at, 9));
        unmap_all(&memory);
    }

    #[test]
    fn of_what_is_spare_no_more_is_taken_than_is_asked_for() {
        let spare = Arc::new(Spare::default());
        let memory = mapped(12 * MIB, 0, &spare);
        write(memory.addr(), 5);
        // SAFETY: nobody uses it any more.
        unsafe { spare.put_unwatched(memory.parts[0]) };
        let smaller = mapped(8 * MIB, 0, &spare);
        assert_eq!((read(smaller.addr()), spare.size_bytes()), (5, 4 * MIB));
        spare.flush();
        assert_eq!(spare.size_bytes(), 0);
        unmap_all(&smaller);
    }

    #[test]
    fn more_than_there_is_is_refused_before_anything_is_touched() {
        let refused = map(1 << 50, 0, &Node::default(), &Spare::default()).unwrap_err();
        assert_eq!(refused, DeviceError::OutOfMemory);
    }
}
