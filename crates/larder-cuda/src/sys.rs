//! The driver's types and numbers, by the names that CUDA's header has for them.
//!
//! The driver's interface is one of C and only ever grows: what changes gets a new name. So these
//! are right for every driver, whichever version of CUDA it speaks; `cargo xtask headers` compares
//! them with a header.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

pub type CUdevice = c_int;
pub type CUdeviceptr = c_ulonglong;
pub type CUmemGenericAllocationHandle = c_ulonglong;
pub type cuuint64_t = u64;

macro_rules! handles {
    ($($handle:ident -> $thing:ident;)*) => {$(
        /// What a handle points to is the driver's own affair.
        #[repr(C)]
        pub struct $thing(c_void);
        pub type $handle = *mut $thing;
    )*};
}

handles! {
    CUcontext -> CUctx_st;
    CUevent -> CUevent_st;
    CUstream -> CUstream_st;
    CUgraph -> CUgraph_st;
    CUgraphNode -> CUgraphNode_st;
    CUmemoryPool -> CUmemPoolHandle_st;
}

/// Enumerations of C. The driver may know values that have no name here, so they are numbers.
macro_rules! numbers {
    ($($type:ident { $($name:ident = $value:literal,)* })*) => {
        $(
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $type(pub c_uint);

            impl $type {
                $(pub const $name: $type = $type($value);)*
            }
        )*

        /// Every number with its name.
        pub(crate) fn numbers() -> Vec<(&'static str, usize)> {
            vec![$($((stringify!($name), $value),)*)*]
        }
    };
}

numbers! {
    CUresult {
        CUDA_SUCCESS = 0,
        CUDA_ERROR_OUT_OF_MEMORY = 2,
        CUDA_ERROR_INVALID_CONTEXT = 201,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
        CUDA_ERROR_NOT_READY = 600,
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
        CUDA_ERROR_NOT_SUPPORTED = 801,
    }
    CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    }
    CUmemAllocationHandleType {
        CU_MEM_HANDLE_TYPE_NONE = 0,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
        CU_MEM_HANDLE_TYPE_FABRIC = 8,
    }
    CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1, }
    CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, }
    CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1, }
    CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3, }
    CUmemPool_attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
    }
    CUevent_flags { CU_EVENT_DISABLE_TIMING = 2, }
    CUstream_flags { CU_STREAM_NON_BLOCKING = 1, }
    CUmemhost_flags {
        CU_MEMHOSTALLOC_PORTABLE = 1,
        CU_MEMHOSTREGISTER_PORTABLE = 1,
    }
    CUipcMem_flags { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1, }
    CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_RELAXED = 2, }
    CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    pub reserved: [c_uchar; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemFabricHandle {
    pub data: [c_uchar; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemLocation {
    pub type_: CUmemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    pub type_: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: CUmemAllocationFlags,
}

/// It has no name in the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationFlags {
    pub compressionType: c_uchar,
    pub gpuDirectRDMACapable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUgraphEdgeData {
    pub from_port: c_uchar,
    pub to_port: c_uchar,
    pub type_: c_uchar,
    pub reserved: [c_uchar; 5],
}
