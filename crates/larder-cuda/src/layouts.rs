//! The sizes of what crosses the border to the driver, for comparison with CUDA's headers.

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys;

/// The name of something in CUDA's headers, as an expression in C, and what it is here.
pub type Layout = (&'static str, usize);

macro_rules! size {
    ($type:ident) => {
        (concat!("sizeof(", stringify!($type), ")"), size_of::<sys::$type>())
    };
}

macro_rules! align {
    ($type:ident) => {
        (concat!("alignof(", stringify!($type), ")"), align_of::<sys::$type>())
    };
}

macro_rules! offset {
    ($type:ident, $field:ident, $name:literal) => {
        (concat!("offsetof(", stringify!($type), ", ", $name, ")"), offset_of!(sys::$type, $field))
    };
}

macro_rules! value {
    ($name:ident, $type:path) => {{
        use $type as Type;
        (stringify!($name), Type::$name as usize)
    }};
    ($name:ident, $type:path, $field:tt) => {{
        use $type as Type;
        (stringify!($name), Type::$name.$field as usize)
    }};
}

/// Everything that this crate hands to the driver by its layout or by its number.
pub fn all() -> Vec<Layout> {
    [structs(), numbers()].concat()
}

fn structs() -> Vec<Layout> {
    vec![
        size!(CUipcMemHandle),
        size!(CUmemFabricHandle),
        size!(CUmemLocation),
        align!(CUmemLocation),
        offset!(CUmemLocation, type_, "type"),
        offset!(CUmemLocation, id, "id"),
        size!(CUmemAccessDesc),
        offset!(CUmemAccessDesc, location, "location"),
        offset!(CUmemAccessDesc, flags, "flags"),
        size!(CUmemAllocationProp),
        align!(CUmemAllocationProp),
        offset!(CUmemAllocationProp, type_, "type"),
        offset!(CUmemAllocationProp, requestedHandleTypes, "requestedHandleTypes"),
        offset!(CUmemAllocationProp, location, "location"),
        offset!(CUmemAllocationProp, win32HandleMetaData, "win32HandleMetaData"),
        offset!(CUmemAllocationProp, allocFlags, "allocFlags"),
        size!(CUgraphEdgeData),
        size!(CUmemGenericAllocationHandle),
        size!(CUdeviceptr),
        size!(CUdevice),
        size!(CUmemAllocationHandleType),
        size!(CUresult),
    ]
}

fn numbers() -> Vec<Layout> {
    use sys::CUmemAllocationHandleType as Handle;
    use sys::CUmemPool_attribute as Pool;
    use sys::CUresult as Refusal;
    vec![
        value!(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Handle, 0),
        value!(CU_MEM_HANDLE_TYPE_FABRIC, Handle, 0),
        value!(CU_MEM_ALLOCATION_TYPE_PINNED, sys::CUmemAllocationType),
        value!(CU_MEM_LOCATION_TYPE_DEVICE, sys::CUmemLocationType),
        value!(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, sys::CUmemAccess_flags),
        value!(CU_EVENT_DISABLE_TIMING, sys::CUevent_flags),
        value!(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, sys::CUipcMem_flags),
        value!(CU_STREAM_CAPTURE_MODE_RELAXED, sys::CUstreamCaptureMode),
        value!(CU_STREAM_CAPTURE_STATUS_ACTIVE, sys::CUstreamCaptureStatus),
        value!(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, Pool),
        value!(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, Pool),
        value!(CU_MEMPOOL_ATTR_USED_MEM_HIGH, Pool),
        value!(CUDA_ERROR_OUT_OF_MEMORY, Refusal),
        value!(CUDA_ERROR_NOT_READY, Refusal),
        value!(CUDA_ERROR_NOT_SUPPORTED, Refusal),
        value!(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, Refusal),
    ]
}
