//! The driver's functions, which the allocator asks for by name.

use std::ffi::{c_char, c_void};

use larder_core::device::Device;
use larder_core::types::{Addr, PageHandle, Span};
use larder_sim::UNIT_BYTES;

use crate::border::{Out, Shown, Status, driver};
use crate::gpu::gpu;

/// The kinds of handle by which a page can be shared, as bits.
const POSIX_FILE_DESCRIPTOR: i32 = 1;
const FABRIC: i32 = 8;

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

/// The function of this name, as an address to call.
pub(crate) fn function(name: &str) -> Option<*const c_void> {
    let function = match name {
        "cuDeviceGet" => device_get as *const c_void,
        "cuDeviceGetAttribute" => device_attribute as *const c_void,
        "cuGetErrorString" => error_string as *const c_void,
        "cuMemAddressReserve" => reserve as *const c_void,
        "cuMemAddressFree" => unreserve as *const c_void,
        "cuMemCreate" => create as *const c_void,
        "cuMemRelease" => release as *const c_void,
        "cuMemMap" => map as *const c_void,
        "cuMemUnmap" => unmap as *const c_void,
        "cuMemSetAccess" => set_access as *const c_void,
        "cuMemGetAllocationGranularity" => granularity as *const c_void,
        // PyTorch will not start without these, but its allocator calls them only to share memory.
        "cuMemGetAddressRange"
        | "cuMemExportToShareableHandle"
        | "cuMemImportFromShareableHandle"
        | "cuMemRetainAllocationHandle"
        | "cuMemGetAllocationPropertiesFromHandle"
        | "cuMemsetD32Async"
        | "cuStreamWriteValue32" => not_supported as *const c_void,
        _ => return None,
    };
    Some(function)
}

fn span(addr: u64, size_bytes: usize) -> Span {
    Span::new(Addr(addr), size_bytes as u64)
}

/// It looks at none of its arguments.
extern "C" fn not_supported() -> Status {
    Status::NOT_SUPPORTED
}

extern "C" fn device_get(device: Out<i32>, number: i32) -> Status {
    driver(|| if number == 0 { device.put(0) } else { Err(Status::INVALID_DEVICE) })
}

/// Virtual memory and handles that are file descriptors are all that there is.
extern "C" fn device_attribute(value: Out<i32>, attribute: i32, device: i32) -> Status {
    const VIRTUAL_MEMORY: i32 = 102;
    const FILE_DESCRIPTORS: i32 = 103;
    driver(|| {
        if device != 0 {
            return Err(Status::INVALID_DEVICE);
        }
        value.put(i32::from(matches!(attribute, VIRTUAL_MEMORY | FILE_DESCRIPTORS)))
    })
}

extern "C" fn error_string(status: Status, text: Out<*const c_char>) -> Status {
    driver(|| text.put(status.describe().1.as_ptr()))
}

extern "C" fn reserve(
    addr: Out<u64>,
    size_bytes: usize,
    _alignment: usize,
    _wish: u64,
    _flags: u64,
) -> Status {
    driver(|| addr.put(gpu()?.reserve(size_bytes as u64)?.0))
}

extern "C" fn unreserve(addr: u64, size_bytes: usize) -> Status {
    driver(|| {
        // The device gives a range in whole units and wants it back as it gave it.
        let size_bytes = size_bytes.next_multiple_of(UNIT_BYTES as usize);
        Ok(gpu()?.unreserve(span(addr, size_bytes))?)
    })
}

/// A page of a kind that is not supported never reaches the device.
extern "C" fn create(
    page: Out<u64>,
    size_bytes: usize,
    properties: Shown<PageProperties>,
    _flags: u64,
) -> Status {
    driver(|| {
        if properties.read()?.handle_kinds & !POSIX_FILE_DESCRIPTOR != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        page.put(gpu()?.create_page(size_bytes as u64)?.0)
    })
}

extern "C" fn release(page: u64) -> Status {
    driver(|| Ok(gpu()?.release_page(PageHandle(page))?))
}

extern "C" fn map(addr: u64, size_bytes: usize, offset: usize, page: u64, _flags: u64) -> Status {
    driver(|| {
        if offset != 0 {
            return Err(Status::INVALID_VALUE);
        }
        Ok(gpu()?.map(span(addr, size_bytes), PageHandle(page))?)
    })
}

extern "C" fn unmap(addr: u64, size_bytes: usize) -> Status {
    driver(|| Ok(gpu()?.unmap(span(addr, size_bytes))?))
}

extern "C" fn set_access(
    addr: u64,
    size_bytes: usize,
    _accesses: *const c_void,
    _count: usize,
) -> Status {
    driver(|| Ok(gpu()?.set_access(span(addr, size_bytes))?))
}

extern "C" fn granularity(
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
        assert_eq!(offset_of!(PageProperties, handle_kinds), 4);
    }

    #[test]
    fn unknown_names_have_no_function() {
        assert!(function("cuMemMap").is_some());
        assert!(function("cuMemMapArrayAsync").is_none());
        assert!(function("").is_none());
    }
}
