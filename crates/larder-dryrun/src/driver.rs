//! The driver's functions, by name for who asks the runtime or the loader for them.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::ptr;

use larder_core::device::Device;

use crate::border::{Out, Shown, Status, driver, runtime as runtime_call, text_at};
use crate::gpu::{current, fleet, gpu_of, set_current};
use crate::kernels::{self, LaunchConfig};
use crate::runtime::{VERSION, allocation_at, is_pinned};
use crate::{arena, copies, pages, streams};

/// The function of this name, as an address to call. A name that ends in a version means the
/// function that the name without it does.
pub(crate) fn function(name: &str) -> Option<*const c_void> {
    let bare = |name: &str| name.trim_end_matches("_v2").trim_end_matches("_v3").to_owned();
    let found = FUNCTIONS.iter().find(|(known, _)| bare(known) == bare(name));
    found.map(|&(_, Function(address))| address)
}

/// A name that is not here is no error: the answer says that it was not found.
#[unsafe(no_mangle)]
extern "C" fn cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    place: Out<*const c_void>,
    _version: u32,
    _flags: u64,
    answer: Out<i32>,
) -> Status {
    const FOUND: i32 = 0;
    const NOT_FOUND: i32 = 1;
    runtime_call(|| {
        let found = function(text_at(name)?);
        answer.put_if_wanted(if found.is_some() { FOUND } else { NOT_FOUND });
        place.put(found.unwrap_or(ptr::null()))?;
        if found.is_some() { Ok(()) } else { Err(Status::NOT_FOUND) }
    })
}

/// An address that is only handed out.
#[derive(Clone, Copy)]
struct Function(*const c_void);
// SAFETY: it is the address of code, which all threads may call.
unsafe impl Sync for Function {}

/// Exports the driver's functions under the names that its header gives them, each of which is a
/// jump to its body, and lists them.
macro_rules! functions {
    ($($name:ident = $body:path;)*) => {
        static FUNCTIONS: &[(&str, Function)] =
            &[$((stringify!($name), Function($body as *const c_void)),)*];
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!("jmp {}", sym $body);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!("b {}", sym $body);
            }
        )*
    };
}

functions! {
    cuInit = init;
    cuDriverGetVersion = driver_version;
    cuDeviceGet = device_get;
    cuDeviceGetCount = device_count;
    cuDeviceGetName = device_name;
    cuDeviceGetUuid = device_uuid;
    cuDeviceTotalMem_v2 = device_memory;
    cuDeviceGetAttribute = device_attribute;
    cuDevicePrimaryCtxRetain = context_retain;
    cuDevicePrimaryCtxRelease_v2 = context_release;
    cuDevicePrimaryCtxGetState = context_state;
    cuCtxGetCurrent = context_current;
    cuCtxSetCurrent = context_set;
    cuCtxPushCurrent_v2 = context_set;
    cuCtxPopCurrent_v2 = context_current;
    cuCtxGetDevice = context_device;
    cuCtxSynchronize = context_synchronize;
    cuGetErrorName = error_name;
    cuGetErrorString = error_string;
    cuMemGetInfo_v2 = memory_info;
    cuMemGetAddressRange_v2 = address_range;
    cuPointerGetAttribute = pointer_attribute;
    cuMemAddressReserve = pages::reserve;
    cuMemAddressFree = pages::unreserve;
    cuMemCreate = pages::create;
    cuMemRelease = pages::release;
    cuMemMap = pages::map;
    cuMemUnmap = pages::unmap;
    cuMemSetAccess = pages::set_access;
    cuMemGetAllocationGranularity = pages::granularity;
    cuMemsetD32Async = copies::fill_words;
    cuModuleLoad = module_load;
    cuModuleLoadData = module_load;
    cuModuleLoadDataEx = module_load;
    cuModuleUnload = module_unload;
    cuModuleGetFunction = module_function;
    cuFuncGetAttribute = function_attribute;
    cuFuncSetAttribute = nothing;
    cuFuncSetCacheConfig = nothing;
    cuLaunchKernel = launch;
    cuLaunchKernelEx = launch_ex;
    cuLaunchCooperativeKernel = launch;
    cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy;
    cuOccupancyMaxActiveClusters = clusters;
    cuTensorMapEncodeTiled = nothing;
    cuStreamGetCaptureInfo_v3 = not_supported;
    cuStreamWriteValue32 = nothing;
    cuMemExportToShareableHandle = not_supported;
    cuMemImportFromShareableHandle = not_supported;
    cuMemRetainAllocationHandle = not_supported;
    cuMemGetAllocationPropertiesFromHandle = not_supported;
    cuMulticastCreate = not_supported;
    cuMulticastAddDevice = not_supported;
    cuMulticastBindMem = not_supported;
    cuMulticastUnbind = not_supported;
    cuGreenCtxCreate = not_supported;
    cuGreenCtxDestroy = not_supported;
    cuGreenCtxStreamCreate = not_supported;
    cuCtxFromGreenCtx = not_supported;
    cuDevResourceGenerateDesc = not_supported;
    cuDevSmResourceSplitByCount = not_supported;
    cuDeviceGetDevResource = not_supported;
    cuLinkCreate_v2 = not_supported;
    cuLinkAddData_v2 = not_supported;
    cuLinkComplete = not_supported;
    cuLinkAddFile_v2 = not_supported;
    cuLinkDestroy = not_supported;
    cuModuleLoadFatBinary = module_load;
    cuModuleGetGlobal_v2 = not_supported;
    cuCtxPushCurrent = context_set;
    cuCtxPopCurrent = context_current;
    cuCtxGetLimit = not_supported;
    cuCtxSetLimit = nothing;
    cuDevicePrimaryCtxRelease = context_release;
    cuDevicePrimaryCtxReset = context_release;
    cuStreamSynchronize = nothing;
    cuMemcpyDtoH_v2 = not_supported;
    cuStreamGetCtx = not_supported;
    cuLibraryLoadData = module_load;
    cuLibraryLoadFromFile = module_load;
    cuLibraryUnload = module_unload;
    cuLibraryGetKernel = module_function;
    cuKernelGetAttribute = function_attribute;
    cuKernelSetAttribute = nothing;
    cuOccupancyMaxPotentialClusterSize = clusters;
    cuLinkCreate = not_supported;
    cuLinkAddData = not_supported;
}

/// It looks at none of its arguments.
extern "C" fn not_supported() -> Status {
    Status::NOT_SUPPORTED
}

/// Likewise.
extern "C" fn nothing() -> Status {
    Status::SUCCESS
}

extern "C" fn init(_flags: u32) -> Status {
    driver(|| fleet().map(drop))
}

extern "C" fn driver_version(version: Out<i32>) -> Status {
    driver(|| version.put(VERSION))
}

extern "C" fn device_get(device: Out<i32>, number: i32) -> Status {
    driver(|| device.put(gpu_of(number)?.index as i32))
}

extern "C" fn device_count(count: Out<i32>) -> Status {
    driver(|| count.put(fleet()?.gpus.len() as i32))
}

extern "C" fn device_name(name: Out<u8>, room: i32, device: i32) -> Status {
    driver(|| {
        gpu_of(device)?;
        name.put_all(format!("{}\0", fleet()?.card.name).as_bytes(), room as usize)
    })
}

extern "C" fn device_uuid(uuid: Out<u8>, device: i32) -> Status {
    driver(|| {
        let mut bytes = *b"larder dry run  ";
        bytes[15] = gpu_of(device)?.index as u8 + 1;
        uuid.put_all(&bytes, 16)
    })
}

extern "C" fn device_memory(bytes: Out<usize>, device: i32) -> Status {
    driver(|| {
        gpu_of(device)?;
        bytes.put(fleet()?.card.total_bytes as usize)
    })
}

extern "C" fn device_attribute(value: Out<i32>, attribute: i32, device: i32) -> Status {
    driver(|| {
        gpu_of(device)?;
        value.put(fleet()?.card.attribute(attribute))
    })
}

thread_local! {
    /// The context that this thread has, which is a card's number and one; zero is none.
    static CONTEXT: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn context_retain(context: Out<u64>, device: i32) -> Status {
    driver(|| context.put(gpu_of(device)?.index as u64 + 1))
}

extern "C" fn context_release(_device: i32) -> Status {
    Status::SUCCESS
}

extern "C" fn context_state(_device: i32, flags: Out<u32>, active: Out<i32>) -> Status {
    driver(|| {
        flags.put_if_wanted(0);
        active.put(1)
    })
}

extern "C" fn context_current(context: Out<u64>) -> Status {
    driver(|| context.put(if CONTEXT.get() == 0 { current() as u64 + 1 } else { CONTEXT.get() }))
}

extern "C" fn context_set(context: u64) -> Status {
    driver(|| {
        CONTEXT.set(context);
        if context == 0 { Ok(()) } else { set_current(context as i32 - 1) }
    })
}

extern "C" fn context_device(device: Out<i32>) -> Status {
    driver(|| device.put(current()))
}

extern "C" fn context_synchronize() -> Status {
    driver(|| Ok(gpu_of(current())?.device.wait_device()?))
}

extern "C" fn error_name(status: Status, text: Out<*const c_char>) -> Status {
    driver(|| text.put(status.describe().0.as_ptr()))
}

extern "C" fn error_string(status: Status, text: Out<*const c_char>) -> Status {
    driver(|| text.put(status.describe().1.as_ptr()))
}

extern "C" fn memory_info(free: Out<usize>, total: Out<usize>) -> Status {
    driver(|| {
        free.put(gpu_of(current())?.device.memory_info()?.free_bytes as usize)?;
        total.put(fleet()?.card.total_bytes as usize)
    })
}

extern "C" fn address_range(base: Out<u64>, size_bytes: Out<usize>, addr: u64) -> Status {
    driver(|| {
        let (start, size) = allocation_at(addr)?;
        base.put_if_wanted(start);
        size_bytes.put_if_wanted(size as usize);
        Ok(())
    })
}

/// The kinds of answer that PyTorch and Triton ask for: the memory's kind, its address, its card.
extern "C" fn pointer_attribute(value: Out<u64>, attribute: i32, addr: u64) -> Status {
    const CONTEXT_OF: i32 = 1;
    const KIND: i32 = 2;
    const ON_CARD: i32 = 3;
    const ON_HOST: i32 = 4;
    const CARD: i32 = 9;
    const HOST: u64 = 1;
    const DEVICE: u64 = 2;
    driver(|| {
        let place = arena::to_card(addr);
        if place.is_none() && !is_pinned(addr) {
            return Err(Status::INVALID_VALUE);
        }
        let card = place.map_or(0, |(card, _)| card as u64);
        // Kinds and numbers of cards are four bytes wide, and where they go may be no wider.
        let narrow = |value: Out<u64>, answer: u64| {
            let place = value.narrow();
            place.put(answer as u32)
        };
        match attribute {
            CONTEXT_OF => value.put(card + 1),
            KIND => narrow(value, if place.is_some() { DEVICE } else { HOST }),
            ON_CARD | ON_HOST => value.put(addr),
            CARD => narrow(value, card),
            _ => Err(Status::INVALID_VALUE),
        }
    })
}

// Kernels that are compiled while the program runs.

extern "C" fn module_load(module: Out<u64>) -> Status {
    driver(|| module.put(streams::new_handle()))
}

extern "C" fn module_unload(_module: u64) -> Status {
    Status::SUCCESS
}

extern "C" fn module_function(function: Out<u64>, _module: u64, name: *const c_char) -> Status {
    driver(|| {
        text_at(name)?;
        function.put(streams::new_handle())
    })
}

/// Threads of a block and registers; of shared memory, constants and stack a kernel has none.
extern "C" fn function_attribute(value: Out<i32>, attribute: i32, _function: u64) -> Status {
    driver(|| {
        value.put(match attribute {
            0 => 1024,
            4 => 32,
            _ => 0,
        })
    })
}

extern "C" fn launch(
    _function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared_bytes: u32,
    stream: u64,
) -> Status {
    let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
    driver(|| {
        kernels::note_unknown_writes();
        kernels::launch(sizes.iter().map(|&size| u64::from(size)).product(), stream)
    })
}

extern "C" fn launch_ex(config: Shown<LaunchConfig>, _function: u64) -> Status {
    driver(|| {
        kernels::note_unknown_writes();
        let config = config.read()?;
        kernels::launch(config.threads(), config.stream())
    })
}

extern "C" fn occupancy(blocks: Out<i32>, _function: u64, threads: i32) -> Status {
    driver(|| kernels::blocks_at_once(blocks, threads))
}

extern "C" fn clusters(count: Out<i32>) -> Status {
    driver(|| count.put(1))
}
