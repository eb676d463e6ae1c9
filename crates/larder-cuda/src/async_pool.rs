//! The driver's own stream-ordered pool with the calls of our allocator: the backend
//! `cudaMallocAsync`.
//!
//! The driver caches, so there is nothing to snapshot here, no private pool and no sharing. What
//! other streams use is freed on a stream of its own that waits for them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::device::{Device, DeviceError, MemoryInfo};
use larder_core::error::Error;
use larder_core::out_of_memory::OutOfMemory;
use larder_core::types::{Addr, DeviceIndex, StreamId};

use crate::context::Context;
use crate::device::CudaDevice;
use crate::driver;
use crate::error::CudaError;
use crate::stream::CudaStream;
use crate::sys::{self, CUdevice_attribute, CUmemPool_attribute as PoolAttribute};

/// What the driver tells of its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncStats {
    /// Bytes in live allocations.
    pub allocated_bytes: u64,
    /// The most bytes there were in live allocations.
    pub allocated_peak_bytes: u64,
    /// Bytes that the pool holds of the device.
    pub reserved_bytes: u64,
    /// The most bytes that the pool held.
    pub reserved_peak_bytes: u64,
}

/// An allocator over the device's default pool. It can be shared between threads.
pub struct AsyncPool {
    device: Arc<CudaDevice>,
    context: Context,
    pool: Pool,
    /// The stream on which blocks are freed that several streams used.
    unifier: CudaStream,
    shelf: Mutex<Shelf>,
    observers: Mutex<Vec<Observer>>,
}

type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// The device's default pool, which lives as long as the device.
struct Pool(sys::CUmemoryPool);

// SAFETY: the driver's pools may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

#[derive(Default)]
struct Shelf {
    live: HashMap<u64, Block>,
    live_bytes: u64,
    cap_bytes: Option<u64>,
    /// Blocks that were allocated outside a capture and freed inside one; they go later.
    deferred: Vec<(u64, Block)>,
}

struct Block {
    size_bytes: u64,
    stream: StreamId,
    /// The other streams that use it.
    uses: Vec<StreamId>,
    /// Whether it is memory of a graph, allocated inside a capture.
    captured: bool,
}

impl AsyncPool {
    /// The device's default pool, which is told to keep what is freed.
    pub fn new(device: Arc<CudaDevice>) -> Result<AsyncPool, CudaError> {
        let index = device.properties().index.0;
        let context = device.context().beside().map_err(CudaError::driver("make a context"))?;
        let cuda = context.primary().map_err(CudaError::driver("make a context"))?.device();
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let supported = driver::attribute(cuda, supported);
        if supported.map_err(CudaError::driver("tell what the GPU can do"))? == 0 {
            return Err(CudaError::NoMemoryPools { index });
        }
        let call = || -> Result<(Pool, CudaStream), DeviceError> {
            let _entered = context.enter()?;
            let pool = driver::default_pool(cuda)?;
            let keep = [
                (PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX),
                (PoolAttribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1),
                (PoolAttribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1),
                (PoolAttribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1),
            ];
            for (attribute, value) in keep {
                // SAFETY: the default pool lives as long as the device.
                unsafe { driver::set_pool_attribute(pool, attribute, value) }?;
            }
            Ok((Pool(pool), device.new_stream()?))
        };
        let (pool, unifier) = call().map_err(CudaError::driver("prepare its memory pool"))?;
        let (shelf, observers) = (Mutex::default(), Mutex::default());
        Ok(AsyncPool { device, context, pool, unifier, shelf, observers })
    }

    /// Which device this is.
    pub fn device_index(&self) -> DeviceIndex {
        self.device.properties().index
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of `size_bytes`, for use on `stream`. No bytes are at address 0.
    pub fn malloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        if size_bytes == 0 {
            return Ok(Addr(0));
        }
        let entered = self.context.enter();
        let _entered = entered.map_err(refused("enter its context"))?;
        let captured = self.device.capture_of(stream);
        let captured = captured.map_err(refused("tell of a capture"))?.is_some();
        let mut shelf = self.lock();
        if !captured {
            let deferred = std::mem::take(&mut shelf.deferred);
            for (addr, block) in deferred {
                self.give_back(addr, &block).map_err(refused("free memory"))?;
            }
        }
        if shelf.cap_bytes.is_some_and(|cap| shelf.live_bytes + size_bytes > cap) {
            return Err(self.out_of_memory(shelf, size_bytes));
        }
        let vouched = self.device.vouched(stream).map_err(refused("use a stream"))?;
        // SAFETY: somebody vouched for the stream.
        let addr = match unsafe { driver::alloc_async(size_bytes, vouched.handle) } {
            Ok(addr) => addr,
            Err(DeviceError::OutOfMemory) => return Err(self.out_of_memory(shelf, size_bytes)),
            Err(error) => return Err(Error::Device { call: "allocate memory", error }),
        };
        shelf.live_bytes += size_bytes;
        shelf.live.insert(addr, Block { size_bytes, stream, uses: Vec::new(), captured });
        Ok(Addr(addr))
    }

    /// Gives back memory that `malloc` gave, in the order of its stream and of those that were
    /// recorded. An address that is not live is an error and changes nothing.
    pub fn free(&self, addr: Addr) -> Result<(), Error> {
        if addr == Addr(0) {
            return Ok(());
        }
        let entered = self.context.enter();
        let _entered = entered.map_err(refused("enter its context"))?;
        let mut shelf = self.lock();
        let block = shelf.live.get(&addr.0).ok_or(Error::UnknownAddress(addr))?;
        let now_captured = self.device.capture_of(block.stream);
        let now_captured = now_captured.map_err(refused("tell of a capture"))?.is_some();
        if now_captured && !block.captured {
            // A capture cannot free memory that it did not allocate.
            if let Some(block) = shelf.live.remove(&addr.0) {
                shelf.live_bytes -= block.size_bytes;
                shelf.deferred.push((addr.0, block));
            }
            return Ok(());
        }
        self.give_back(addr.0, block).map_err(refused("free memory"))?;
        if let Some(block) = shelf.live.remove(&addr.0) {
            shelf.live_bytes -= block.size_bytes;
        }
        Ok(())
    }

    /// Frees a block on its stream, or on one that waits for all streams that use it.
    fn give_back(&self, addr: u64, block: &Block) -> Result<(), DeviceError> {
        let unifier = self.unifier.handle();
        if block.uses.is_empty() {
            let stream = self.device.vouched(block.stream)?;
            // SAFETY: somebody vouched for the stream, and whoever had the block gives it up.
            return unsafe { driver::free_async(addr, stream.handle) };
        }
        for &stream in block.uses.iter().chain([&block.stream]) {
            let stream = self.device.vouched(stream)?;
            let event = driver::create_event()?;
            // SAFETY: the event was made just now, somebody vouched for the stream, and the unifier
            // is ours. The driver keeps what it needs of an event that is destroyed
            // while somebody waits.
            let joined = unsafe {
                driver::record_event(event, stream.handle)
                    .and_then(|()| driver::stream_wait_event(unifier, event))
                    .and(driver::destroy_event(event))
            };
            joined?;
        }
        // SAFETY: the stream is alive and waits for everybody who uses the block.
        unsafe { driver::free_async(addr, unifier) }
    }

    /// The memory is used on this stream too.
    pub fn record_stream(&self, addr: Addr, stream: StreamId) -> Result<(), Error> {
        if addr == Addr(0) {
            return Ok(());
        }
        let mut shelf = self.lock();
        let block = shelf.live.get_mut(&addr.0).ok_or(Error::UnknownAddress(addr))?;
        if stream != block.stream && !block.uses.contains(&stream) {
            block.uses.push(stream);
        }
        Ok(())
    }

    /// How many bytes a live block has.
    pub fn usable_bytes(&self, addr: Addr) -> Result<u64, Error> {
        let shelf = self.lock();
        let block = shelf.live.get(&addr.0).ok_or(Error::UnknownAddress(addr))?;
        Ok(block.size_bytes)
    }

    /// Waits for the device and gives everything cached back to it.
    pub fn empty_cache(&self) -> Result<(), Error> {
        let empty = || {
            let _entered = self.context.enter()?;
            driver::wait_context()?;
            // SAFETY: the default pool lives as long as the device.
            unsafe { driver::trim_pool(self.pool.0) }
        };
        empty().map_err(refused("empty its memory pool"))
    }

    /// What the driver tells of its pool.
    pub fn stats(&self) -> Result<AsyncStats, Error> {
        let read = || {
            let _entered = self.context.enter()?;
            // SAFETY: the default pool lives as long as the device.
            let number = |attribute| unsafe { driver::pool_attribute(self.pool.0, attribute) };
            Ok(AsyncStats {
                allocated_bytes: number(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
                allocated_peak_bytes: number(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
                reserved_bytes: number(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
                reserved_peak_bytes: number(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            })
        };
        read().map_err(refused("tell of its memory pool"))
    }

    /// Peaks become the current values.
    pub fn reset_peak_stats(&self) -> Result<(), Error> {
        let reset = || {
            let _entered = self.context.enter()?;
            for attribute in [
                PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
                PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
            ] {
                // SAFETY: the default pool lives as long as the device. Zero is what the driver
                // takes for "from now on".
                unsafe { driver::set_pool_attribute(self.pool.0, attribute, 0) }?;
            }
            Ok(())
        };
        reset().map_err(refused("reset the peaks of its memory pool"))
    }

    /// Caps the bytes in live allocations at this part of the device; 1 lifts the cap.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::BadFraction(fraction));
        }
        let total_bytes = self.device.properties().total_bytes;
        let cap_bytes = (fraction * total_bytes as f64).round() as u64;
        self.lock().cap_bytes = (fraction < 1.0).then_some(cap_bytes);
        Ok(())
    }

    /// Registers an observer that is told of every request that could not be met, before `malloc`
    /// returns.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        let mut observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner);
        observers.push(Arc::new(observer));
    }

    /// Gathers the numbers, drops the lock and tells the observers.
    fn out_of_memory(&self, shelf: MutexGuard<'_, Shelf>, size_bytes: u64) -> Error {
        let properties = self.device.properties();
        let unknown = MemoryInfo { free_bytes: 0, total_bytes: properties.total_bytes };
        let memory = self.device.memory_info().unwrap_or(unknown);
        let (live_bytes, cap_bytes) = (shelf.live_bytes, shelf.cap_bytes);
        drop(shelf);
        let mut report = OutOfMemory::new(properties.index, size_bytes);
        report.free_bytes = memory.free_bytes;
        report.total_bytes = memory.total_bytes;
        report.allocated_bytes = live_bytes;
        report.reserved_bytes = self.stats().map_or(live_bytes, |stats| stats.reserved_bytes);
        report.cap_bytes = cap_bytes;
        report.processes = self.device.processes();
        let observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for observer in observers {
            observer(&report);
        }
        Error::OutOfMemory(Box::new(report))
    }
}

fn refused(call: &'static str) -> impl FnOnce(DeviceError) -> Error {
    move |error| Error::Device { call, error }
}
