//! Kernels: they do nothing and take their time.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

use larder_core::types::StreamId;

use crate::border::{Answer, Out, Shown, Status, runtime, text_at};
use crate::gpu::{fleet, gpu};
use crate::values;
use crate::work::kernel_ns;

/// Three sizes of a grid or a block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Dimensions([u32; 3]);

impl Dimensions {
    fn count(self) -> u64 {
        self.0.iter().map(|&size| u64::from(size)).product()
    }
}

/// CUDA's description of a launch. The runtime's and the driver's have the stream at one place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: usize,
    stream: u64,
}

impl LaunchConfig {
    pub(crate) fn threads(&self) -> u64 {
        self.grid.count() * self.block.count()
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }
}

/// Puts a kernel with so many threads on a stream.
pub(crate) fn launch(threads: u64, stream: u64) -> Answer {
    gpu()?.launch(StreamId(stream), kernel_ns(&fleet()?.card, threads))
}

/// Something ran that may have written anywhere.
pub(crate) fn note_unknown_writes() {
    values::forget_all();
}

/// The kernel that waits for so many cycles, by the function of the host that stands for it.
static SLEEPERS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn is_sleeper(function: u64) -> bool {
    let sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    sleepers.contains(&function)
}

fn launch_function(function: u64, threads: u64, arguments: &Shown<u64>, stream: u64) -> Answer {
    if is_sleeper(function) {
        // Cycles at about two gigahertz.
        let first = arguments.read()?;
        // SAFETY: a launch's arguments are an array of pointers, and the first of this kernel,
        // whose name was compared, points to a number of eight bytes.
        let cycles = unsafe { (first as *const i64).read_unaligned() };
        return gpu()?.launch(StreamId(stream), cycles.max(0) as u64 / 2);
    }
    launch(threads, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernel(
    function: u64,
    grid: Dimensions,
    block: Dimensions,
    arguments: Shown<u64>,
    _shared_bytes: usize,
    stream: u64,
) -> Status {
    runtime(|| launch_function(function, grid.count() * block.count(), &arguments, stream))
}

#[unsafe(no_mangle)]
extern "C" fn __cudaLaunchKernel(
    function: u64,
    grid: Dimensions,
    block: Dimensions,
    arguments: Shown<u64>,
    _shared_bytes: usize,
    stream: u64,
) -> Status {
    runtime(|| launch_function(function, grid.count() * block.count(), &arguments, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchCooperativeKernel(
    function: u64,
    grid: Dimensions,
    block: Dimensions,
    arguments: Shown<u64>,
    _shared_bytes: usize,
    stream: u64,
) -> Status {
    runtime(|| launch_function(function, grid.count() * block.count(), &arguments, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchKernelExC(
    config: Shown<LaunchConfig>,
    function: u64,
    arguments: Shown<u64>,
) -> Status {
    runtime(|| {
        let config = config.read()?;
        let threads = config.grid.count() * config.block.count();
        launch_function(function, threads, &arguments, config.stream)
    })
}

/// What the host asks for runs at once: nobody on the card waits for it.
#[unsafe(no_mangle)]
extern "C" fn cudaLaunchHostFunc(
    stream: u64,
    function: extern "C" fn(u64),
    argument: u64,
) -> Status {
    runtime(|| {
        gpu()?.launch(StreamId(stream), 0)?;
        function(argument);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamAddCallback(
    stream: u64,
    function: extern "C" fn(u64, Status, u64),
    argument: u64,
    _flags: u32,
) -> Status {
    runtime(|| {
        gpu()?.launch(StreamId(stream), 0)?;
        function(stream, Status::SUCCESS, argument);
        Ok(())
    })
}

// What the compiler makes of a launch.

thread_local! {
    static CONFIGURED: RefCell<Vec<LaunchConfig>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: usize,
    stream: u64,
) -> u32 {
    CONFIGURED.with_borrow_mut(|open| {
        open.push(LaunchConfig { grid, block, shared_bytes, stream });
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration(
    grid: Out<Dimensions>,
    block: Out<Dimensions>,
    shared_bytes: Out<usize>,
    stream: Out<u64>,
) -> Status {
    runtime(|| {
        let config = CONFIGURED.with_borrow_mut(Vec::pop).ok_or(Status::INVALID_VALUE)?;
        grid.put(config.grid)?;
        block.put(config.block)?;
        shared_bytes.put(config.shared_bytes)?;
        stream.put(config.stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: u64) -> *const u64 {
    static HANDLE: u64 = 0;
    &raw const HANDLE
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_handle: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: u64) -> u8 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(
    _handle: u64,
    function: u64,
    _device_function: u64,
    name: *const c_char,
) {
    if text_at(name).is_ok_and(|name| name.contains("spin_kernel")) {
        let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.insert(function);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __cudaGetKernel(kernel: Out<u64>, function: u64) -> Status {
    runtime(|| kernel.put(function))
}

// What is asked about kernels.

/// CUDA 13's structure, of which PyTorch reads the threads of a block and the version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FunctionAttributes {
    sizes: [u64; 3],
    threads_per_block: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode: i32,
    dynamic_shared_bytes: i32,
    rest: [i32; 24],
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncGetAttributes(found: Out<FunctionAttributes>, _function: u64) -> Status {
    runtime(|| {
        let (major, minor) = fleet()?.card.compute_capability;
        let version = major * 10 + minor;
        found.put(FunctionAttributes {
            sizes: [0; 3],
            threads_per_block: 1024,
            registers: 32,
            ptx_version: version,
            binary_version: version,
            cache_mode: 0,
            dynamic_shared_bytes: fleet()?.card.shared_bytes_per_block,
            rest: [0; 24],
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFuncSetAttribute(_function: u64, _attribute: i32, _value: i32) -> Status {
    Status::SUCCESS
}

/// As many blocks as a multiprocessor has threads for.
pub(crate) fn blocks_at_once(blocks: Out<i32>, threads: i32) -> Answer {
    let card = &fleet()?.card;
    let fitting = card.threads_per_multiprocessor / threads.max(32);
    blocks.put(fitting.clamp(1, card.blocks_per_multiprocessor))
}

#[unsafe(no_mangle)]
extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<i32>,
    _function: u64,
    threads: i32,
    _shared_bytes: usize,
) -> Status {
    runtime(|| blocks_at_once(blocks, threads))
}

#[unsafe(no_mangle)]
extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<i32>,
    _function: u64,
    threads: i32,
    _shared_bytes: usize,
    _flags: u32,
) -> Status {
    runtime(|| blocks_at_once(blocks, threads))
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_layouts_are_those_of_cuda_13() {
        assert_eq!(offset_of!(LaunchConfig, stream), 32);
        assert_eq!(size_of::<FunctionAttributes>(), 144);
        assert_eq!(offset_of!(FunctionAttributes, binary_version), 36);
    }
}
