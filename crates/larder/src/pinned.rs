//! Pinned memory of the host, for copies to and from a GPU.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytemuck::AnyBitPattern;
#[cfg(feature = "cudarc")]
use cudarc::driver::CudaEvent;
use larder_core::types::HOST_STREAM;
use larder_core::{Addr, Stats};

use crate::allocator::Allocator;
use crate::error::Error;
use crate::host::Host;
use crate::stream::Stream;

/// From this size on elements begin with a page of the host.
const PAGES_FROM_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// Elements of one type in pinned memory of the host, which a GPU copies from and to by itself.
/// They free themselves; whoever gets the memory next comes after the copies that use it.
///
/// With the feature `cudarc` it goes into that crate's copies on a real GPU: it implements
/// `HostSlice`. Copies that are made in another way are told by
/// [`PinnedBuffer::record_stream`].
pub struct PinnedBuffer<T> {
    allocator: Allocator,
    host: Arc<Host>,
    addr: Addr,
    len: usize,
    /// The streams that were recorded, to wait for.
    streams: Mutex<Vec<Stream>>,
    /// Behind the last of `cudarc`'s copies.
    #[cfg(feature = "cudarc")]
    pub(crate) copied: std::sync::OnceLock<CudaEvent>,
    element: PhantomData<T>,
}

impl<T> PinnedBuffer<T> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the elements are, as a number: on a real machine, the value of a pointer.
    pub fn addr(&self) -> u64 {
        self.addr.0
    }

    /// The buffer is copied from or to on this stream: once freed it is handed out again only when
    /// the work issued there by then is done.
    ///
    /// ```
    /// # use larder::Allocator;
    /// let allocator = Allocator::simulated(0)?;
    /// let copy = allocator.new_stream()?;
    /// let batch = allocator.alloc_pinned::<f32>(300_000)?;
    /// batch.record_stream(&copy)?;
    /// drop(batch);
    /// let stats = allocator.pinned_stats();
    /// assert_eq!(stats.active.all.current, 1, "the stream may still read it");
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn record_stream(&self, stream: impl Into<Stream>) -> Result<(), Error> {
        let stream = stream.into();
        self.allocator.admit(&stream)?;
        if self.len > 0 {
            self.host.cache.record_stream(self.addr, stream.id())?;
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(())
    }

    /// Waits until the streams that were recorded have done the work that they have by now.
    pub fn wait(&self) -> Result<(), Error> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in &*streams {
            let waited = self.host.device.wait_stream(stream.id());
            waited.map_err(Error::refused("wait for a stream"))?;
        }
        #[cfg(feature = "cudarc")]
        if let Some(copied) = self.copied.get() {
            copied.synchronize()?;
        }
        Ok(())
    }

    /// Whether the machine, and with it the memory, is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        !self.allocator.is_real()
    }
}

impl Allocator {
    /// `len` elements in pinned memory of the host. What they hold is whatever was there before,
    /// and any bytes are values of such a type. What is asked for is what is taken; the memory
    /// has a cache of its own, which the first request opens.
    ///
    /// ```
    /// let allocator = larder::Allocator::simulated(0)?;
    /// let weights = allocator.alloc_pinned::<f32>(10_000_000)?;
    /// let held = allocator.pinned_stats().reserved_bytes.all.current;
    /// assert!(held < 40_000_000 + 4096);
    /// # drop(weights);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn alloc_pinned<T: AnyBitPattern>(&self, len: usize) -> Result<PinnedBuffer<T>, Error> {
        let too_large = || Error::TooLarge { len, element_bytes: size_of::<T>() };
        let size_bytes = len.checked_mul(size_of::<T>()).ok_or_else(too_large)? as u64;
        let host = Arc::clone(self.host());
        let is_small = size_bytes <= PAGES_FROM_BYTES;
        let whole_bytes = size_bytes.checked_next_multiple_of(PAGE_BYTES);
        let asked_bytes = if is_small { size_bytes } else { whole_bytes.ok_or_else(too_large)? };
        let addr = host.cache.malloc(asked_bytes, HOST_STREAM)?;
        Ok(PinnedBuffer {
            allocator: self.clone(),
            host,
            addr,
            len,
            streams: Mutex::default(),
            #[cfg(feature = "cudarc")]
            copied: std::sync::OnceLock::new(),
            element: PhantomData,
        })
    }

    /// The statistics of pinned memory.
    pub fn pinned_stats(&self) -> Stats {
        self.host().cache.stats()
    }

    /// Waits for the copies under way and gives all pinned memory back that is cached.
    pub fn empty_pinned_cache(&self) -> Result<(), Error> {
        Ok(self.host().cache.empty_cache()?)
    }

    /// Gets pinned memory for a request of so many bytes to come, unless the cache has it. For a
    /// thread to spare: to pin memory takes long. Says whether any was got, which it is not where
    /// there is no room.
    ///
    /// ```
    /// let allocator = larder::Allocator::simulated(0)?;
    /// assert!(allocator.pin_ahead(1 << 30)?);
    /// let batch = allocator.alloc_pinned::<u8>(1 << 29)?; // Out of what was got.
    /// # assert_eq!(allocator.pinned_stats().segment.all.current, 1);
    /// # drop(batch);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn pin_ahead(&self, size_bytes: u64) -> Result<bool, Error> {
        Ok(self.host().cache.grow_ahead(size_bytes, HOST_STREAM)?)
    }

    /// Gives pinned memory back that has been cached and unused for so long, as far as calls of
    /// this have seen: whoever wants it calls it a few times within that age. Says how many bytes
    /// went.
    pub fn release_unused_pinned(&self, age: Duration) -> Result<u64, Error> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Ok(self.host().cache.release_unused(age_ns, 0)?)
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // Of `cudarc`'s copies the allocator knows nothing.
        #[cfg(feature = "cudarc")]
        if let Some(copied) = self.copied.get()
            && let Err(error) = copied.synchronize()
        {
            self.allocator.note_drop_error(error.into());
            return;
        }
        if let Err(error) = self.host.cache.free(self.addr) {
            self.allocator.note_drop_error(error.into());
        }
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "PinnedBuffer<{element}>({} at {:#x})", self.len, self.addr())
    }
}
