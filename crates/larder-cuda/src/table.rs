//! The driver's functions, loaded by name when the first of them is called.
//!
//! Nothing is linked, so a program builds and starts where there is no driver. A function that a
//! driver is too old for is not supported; the rest of the driver works.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData,
    CUgraphNode, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPool_attribute, CUmemoryPool, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, cuuint64_t,
};

/// The name under which every driver installs it, and the one that links it for compilers.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

macro_rules! functions {
    (
        declared { $($name:ident($($argument:ident: $type:ty),*);)* }
        older { $($old_name:ident($($old_argument:ident: $old_type:ty),*);)* }
    ) => {
        functions! { @table
            $($name($($argument: $type),*);)* $($old_name($($old_argument: $old_type),*);)*
        }

        /// Each function that headers still declare, with the types of its arguments as Rust
        /// writes them.
        pub(crate) fn declared() -> Vec<(&'static str, Vec<&'static str>)> {
            vec![$((stringify!($name), vec![$(stringify!($type)),*]),)*]
        }
    };
    (@table $($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// Those functions that the driver has.
        #[derive(Default)]
        pub(crate) struct Table {
            $(pub(crate) $name: Option<unsafe extern "C" fn($($type),*) -> CUresult>,)*
        }

        impl Table {
            /// # Safety
            /// The library is the CUDA driver, and stays loaded.
            unsafe fn load(driver: &Library) -> Table {
                Table {
                    // SAFETY: the driver's function of this name has this type: the header says so.
                    $($name: unsafe { driver.get(stringify!($name)) }.ok().map(|found| *found),)*
                }
            }
        }

        $(
            /// The driver's function of this name.
            ///
            /// # Safety
            /// What NVIDIA's manual says of it.
            pub(crate) unsafe fn $name($($argument: $type),*) -> CUresult {
                match table().$name {
                    // SAFETY: the caller promises what the driver needs.
                    Some(call) => unsafe { call($($argument),*) },
                    None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                }
            }
        )*
    };
}

functions! {
    declared {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuGetErrorName(error: CUresult, text: *mut *const c_char);
        cuGetErrorString(error: CUresult, text: *mut *const c_char);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        cuDeviceCanAccessPeer(answer: *mut c_int, device: CUdevice, peer: CUdevice);
        cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
        cuCtxGetCurrent(context: *mut CUcontext);
        cuCtxSetCurrent(context: CUcontext);
        cuCtxSynchronize();
        cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
        cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemAlloc_v2(addr: *mut CUdeviceptr, size: usize);
        cuMemFree_v2(addr: CUdeviceptr);
        cuMemHostAlloc(addr: *mut *mut c_void, size: usize, flags: c_uint);
        cuMemFreeHost(addr: *mut c_void);
        cuMemHostRegister_v2(addr: *mut c_void, size: usize, flags: c_uint);
        cuMemHostUnregister(addr: *mut c_void);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
        cuMemsetD8Async(addr: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        cuMemAddressReserve(
            addr: *mut CUdeviceptr, size: usize, alignment: usize, wish: CUdeviceptr,
            flags: c_ulonglong
        );
        cuMemAddressFree(addr: CUdeviceptr, size: usize);
        cuMemGetAllocationGranularity(
            size: *mut usize, kind: *const CUmemAllocationProp,
            flags: CUmemAllocationGranularity_flags
        );
        cuMemCreate(
            page: *mut CUmemGenericAllocationHandle, size: usize, kind: *const CUmemAllocationProp,
            flags: c_ulonglong
        );
        cuMemRelease(page: CUmemGenericAllocationHandle);
        cuMemMap(
            addr: CUdeviceptr, size: usize, offset: usize, page: CUmemGenericAllocationHandle,
            flags: c_ulonglong
        );
        cuMemUnmap(addr: CUdeviceptr, size: usize);
        cuMemSetAccess(
            addr: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize
        );
        cuMemExportToShareableHandle(
            shared: *mut c_void, page: CUmemGenericAllocationHandle,
            kind: CUmemAllocationHandleType,
            flags: c_ulonglong
        );
        cuMemImportFromShareableHandle(
            page: *mut CUmemGenericAllocationHandle, shared: *mut c_void,
            kind: CUmemAllocationHandleType
        );
        cuMemPoolSetAttribute(
            pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void
        );
        cuMemPoolGetAttribute(
            pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void
        );
        cuMemPoolTrimTo(pool: CUmemoryPool, kept: usize);
        cuMemAllocAsync(addr: *mut CUdeviceptr, size: usize, stream: CUstream);
        cuMemFreeAsync(addr: CUdeviceptr, stream: CUstream);
        cuIpcGetMemHandle(handle: *mut CUipcMemHandle, addr: CUdeviceptr);
        cuIpcOpenMemHandle_v2(addr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        cuIpcCloseMemHandle(addr: CUdeviceptr);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventQuery(event: CUevent);
        cuEventSynchronize(event: CUevent);
        cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamSynchronize(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuStreamGetCaptureInfo_v3(
            stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t,
            graph: *mut CUgraph, nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData,
            count: *mut usize
        );
        cuGraphNodeGetDependencies_v2(
            node: CUgraphNode, nodes: *mut CUgraphNode, edges: *mut CUgraphEdgeData,
            count: *mut usize
        );
    }
    // What drivers before CUDA 12.3 have in place of the last two: edges carry no data there.
    older {
        cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t,
            graph: *mut CUgraph, nodes: *mut *const CUgraphNode, count: *mut usize
        );
        cuGraphNodeGetDependencies(
            node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize
        );
    }
}

/// The driver, which stays loaded as long as the process lives.
struct Driver {
    functions: Table,
    _library: Library,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        // SAFETY: these are names of the CUDA driver, whose start has no demands.
        let library = LIBRARIES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // SAFETY: it is the driver, and it is kept beside its functions.
        let functions = unsafe { Table::load(&library) };
        Some(Driver { functions, _library: library })
    };
    DRIVER.get_or_init(load).as_ref()
}

/// Whether the driver's library is on this machine.
pub(crate) fn is_present() -> bool {
    driver().is_some()
}

/// What the driver has; nothing where there is none.
pub(crate) fn table() -> &'static Table {
    static NOTHING: OnceLock<Table> = OnceLock::new();
    driver().map_or_else(|| NOTHING.get_or_init(Table::default), |driver| &driver.functions)
}
