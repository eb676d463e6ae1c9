//! The driver's functions about virtual memory.

use std::ffi::c_void;

use larder_core::device::Device;
use larder_core::types::{Addr, PageHandle, Span};
use larder_sim::UNIT_BYTES;

use crate::border::{Answer, Out, Shown, Status, driver};
use crate::gpu::{Gpu, gpu_of};
use crate::runtime::gpu_with;
use crate::{arena, values};

/// The kinds of handle by which a page can be shared, as bits.
const POSIX_FILE_DESCRIPTOR: i32 = 1;
const FABRIC: i32 = 8;
/// The card that a page is on, in the upper bits of its handle: each card numbers its own.
const CARD_SHIFT: u32 = 48;

/// CUDA's description of a physical allocation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PageProperties {
    kind: i32,
    handle_kinds: i32,
    location: [i32; 2],
    windows_metadata: usize,
    flags: u64,
}

/// The card of an address and the span there.
fn span(addr: u64, size_bytes: usize) -> Answer<(&'static Gpu, Span)> {
    let (_, place): (usize, Addr) = arena::to_card(addr).ok_or(Status::INVALID_VALUE)?;
    Ok((gpu_with(addr)?, Span::new(place, size_bytes as u64)))
}

fn page(handle: u64) -> Answer<(&'static Gpu, PageHandle)> {
    let number = handle & ((1 << CARD_SHIFT) - 1);
    Ok((gpu_of((handle >> CARD_SHIFT) as i32)?, PageHandle(number)))
}

pub(crate) extern "C" fn reserve(
    addr: Out<u64>,
    size_bytes: usize,
    _alignment: usize,
    _wish: u64,
    _flags: u64,
) -> Status {
    driver(|| {
        let place = crate::gpu::gpu()?.device.reserve(size_bytes as u64)?;
        addr.put(arena::to_host(place).ok_or(Status::OUT_OF_MEMORY)?)
    })
}

pub(crate) extern "C" fn unreserve(addr: u64, size_bytes: usize) -> Status {
    driver(|| {
        // The device gives a range in whole units and wants it back as it gave it.
        let (gpu, span) = span(addr, size_bytes.next_multiple_of(UNIT_BYTES as usize))?;
        Ok(gpu.device.unreserve(span)?)
    })
}

pub(crate) extern "C" fn create(
    handle: Out<u64>,
    size_bytes: usize,
    properties: Shown<PageProperties>,
    _flags: u64,
) -> Status {
    driver(|| {
        let properties = properties.read()?;
        if properties.handle_kinds & !POSIX_FILE_DESCRIPTOR != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let [_, card] = properties.location;
        let page = gpu_of(card)?.device.create_page(size_bytes as u64)?;
        handle.put(page.0 | (card as u64) << CARD_SHIFT)
    })
}

pub(crate) extern "C" fn release(handle: u64) -> Status {
    driver(|| {
        let (gpu, page) = page(handle)?;
        Ok(gpu.device.release_page(page)?)
    })
}

pub(crate) extern "C" fn map(
    addr: u64,
    size_bytes: usize,
    offset: usize,
    handle: u64,
    _flags: u64,
) -> Status {
    driver(|| {
        if offset != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let ((_, span), (gpu, page)) = (span(addr, size_bytes)?, page(handle)?);
        Ok(gpu.device.map(span, page)?)
    })
}

/// What was at these addresses is not there any more.
pub(crate) extern "C" fn unmap(addr: u64, size_bytes: usize) -> Status {
    driver(|| {
        let (gpu, span) = span(addr, size_bytes)?;
        gpu.device.unmap(span)?;
        values::forget(addr, size_bytes as u64);
        arena::discard(addr, size_bytes as u64);
        Ok(())
    })
}

pub(crate) extern "C" fn set_access(
    addr: u64,
    size_bytes: usize,
    _accesses: *const c_void,
    _count: usize,
) -> Status {
    driver(|| {
        let (gpu, span) = span(addr, size_bytes)?;
        Ok(gpu.device.set_access(span)?)
    })
}

pub(crate) extern "C" fn granularity(
    size_bytes: Out<usize>,
    properties: Shown<PageProperties>,
    _option: i32,
) -> Status {
    driver(|| {
        if properties.read()?.handle_kinds & FABRIC != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        size_bytes.put(UNIT_BYTES as usize)
    })
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_layout_is_that_of_cuda_13() {
        assert_eq!(size_of::<PageProperties>(), 32);
        assert_eq!(offset_of!(PageProperties, location), 8);
    }
}
