//! The allocator as programs use it: one handle, whatever is behind it.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_core::allocator::history::{DeviceSnapshot, HistoryOptions, SnapshotOptions};
use larder_core::allocator::share::Shared;
use larder_core::device::{Device, MemoryInfo};
use larder_core::heap::states::SegmentState;
use larder_core::{Addr, Config, DeviceIndex, OutOfMemory, Stats, StreamId};
#[cfg(feature = "cuda")]
use larder_cuda::{AsyncPool, AsyncStats, CudaDevice, HostDevice};
#[cfg(feature = "sim")]
use larder_sim::{SimDevice, SimHost};

use crate::error::Error;
use crate::host::Host;
#[cfg(feature = "cuda")]
use crate::real::gpu::RealGpu;
use crate::stream::Stream;

/// A caching allocator for one GPU. Clones are the same allocator, and any thread may use it.
///
/// Memory is handed out on a stream and, once freed, handed out again on that stream at once: work
/// on a stream runs in order, so whoever gets it next comes after whoever had it.
///
/// ```
/// use larder::Allocator;
///
/// let allocator = Allocator::simulated(0)?;
/// let stream = allocator.new_stream()?;
/// let buffer = allocator.alloc::<f32>(1000, &stream)?;
/// assert_eq!(buffer.len(), 1000);
/// drop(buffer);
/// let again = allocator.alloc::<f32>(1000, &stream)?;
/// assert_eq!(allocator.stats().num_device_alloc, 1, "the second came out of the cache");
/// # drop(again);
/// # Ok::<(), larder::Error>(())
/// ```
#[derive(Clone)]
pub struct Allocator(Arc<Inner>);

struct Inner {
    backend: Backend,
    gpu: Gpu,
    /// Why a block could not be freed when it was dropped, if nobody has asked yet.
    drop_error: Mutex<Option<Error>>,
    /// How many streams were forgotten; what was admitted before the last of them is looked at
    /// again.
    forgotten: AtomicU64,
    /// Pinned memory of the host, from when it is first wanted.
    host: OnceLock<Arc<Host>>,
    /// Tells this allocator from all others of the process.
    number: u64,
    /// The streams that were ever used. They come last: what is above may still wait for them.
    streams: Mutex<HashMap<StreamId, Stream>>,
}

/// The memory of a simulated host.
#[cfg(feature = "sim")]
const SIMULATED_HOST_BYTES: u64 = 256 << 30;

/// The number of the next allocator.
static NUMBER_NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The allocator and the stream that this thread used last, so that a program that stays on
    /// one stream is not asked to prove it again and again.
    static LAST_ADMITTED: Cell<Option<(u64, StreamId, u64)>> = const { Cell::new(None) };
}

/// Where blocks come from.
pub(crate) enum Backend {
    /// Our own cache.
    Native(Arc<larder_core::Allocator>),
    /// The driver's own pool.
    #[cfg(feature = "cuda")]
    Async(AsyncPool),
}

/// The GPU itself.
pub(crate) enum Gpu {
    #[cfg(feature = "cuda")]
    Cuda(RealGpu),
    #[cfg(feature = "sim")]
    Simulated(Arc<SimDevice>),
}

impl Allocator {
    pub(crate) fn assemble(backend: Backend, gpu: Gpu) -> Allocator {
        Allocator(Arc::new(Inner {
            backend,
            gpu,
            drop_error: Mutex::default(),
            forgotten: AtomicU64::new(0),
            host: OnceLock::new(),
            number: NUMBER_NEXT.fetch_add(1, Ordering::Relaxed),
            streams: Mutex::default(),
        }))
    }

    // Streams.

    /// The GPU's default stream.
    ///
    /// # Panics
    /// If the device was opened with `late_context` and the driver refuses to make the context now.
    pub fn default_stream(&self) -> Stream {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(gpu) => Stream::of_real(
                gpu.default_stream().expect("a context, made when the GPU was opened"),
            ),
            #[cfg(feature = "sim")]
            Gpu::Simulated(device) => Stream::simulated(StreamId(0), device),
        }
    }

    /// A new stream.
    pub fn new_stream(&self) -> Result<Stream, Error> {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(gpu) => Ok(Stream::of_real(gpu.new_stream()?)),
            #[cfg(feature = "sim")]
            Gpu::Simulated(device) => Ok(Stream::simulated(device.name_stream(), device)),
        }
    }

    /// Fails unless the stream is one of this GPU. From here on the stream lives as long as the
    /// allocator, unless it is forgotten: memory is cached for it, and a wait for it must not find
    /// it gone.
    pub(crate) fn admit(&self, stream: &Stream) -> Result<(), Error> {
        // Before anything that goes by the number: streams of different GPUs have the same ones.
        self.check_stream(stream)?;
        let forgotten = self.0.forgotten.load(Ordering::Acquire);
        let known = (self.0.number, stream.id(), forgotten);
        if LAST_ADMITTED.get() == Some(known) {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let (Gpu::Cuda(gpu), Some(real)) = (&self.0.gpu, stream.real()) {
            gpu.admit(real)?;
        }
        let mut streams = self.0.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.entry(stream.id()).or_insert_with(|| stream.clone());
        LAST_ADMITTED.set(Some(known));
        Ok(())
    }

    /// Lets go of a stream that the program has done with, which otherwise lives as long as the
    /// allocator: waits for its work, and gives back what is cached for it. Memory that was handed
    /// out on it stays good. Clones of the stream must not be used any more, and nobody may issue
    /// work on it. The default stream and one under a capture are refused, and the driver's own
    /// pool lets go of none.
    ///
    /// ```
    /// let allocator = larder::Allocator::simulated(0)?;
    /// let stream = allocator.new_stream()?;
    /// drop(allocator.alloc::<f32>(1 << 20, &stream)?);
    /// allocator.forget_stream(stream)?;
    /// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn forget_stream(&self, stream: impl Into<Stream>) -> Result<(), Error> {
        let stream = stream.into();
        self.admit(&stream)?;
        self.native("let go of a stream")?.forget_stream(stream.id())?;
        self.0.forgotten.fetch_add(1, Ordering::Release);
        let mut streams = self.0.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = streams.remove(&stream.id());
        drop(streams);
        drop(kept);
        #[cfg(feature = "cuda")]
        if let Gpu::Cuda(gpu) = &self.0.gpu {
            gpu.device().dismiss(stream.id());
        }
        Ok(())
    }

    fn check_stream(&self, stream: &Stream) -> Result<(), Error> {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(gpu) => gpu.check_stream(stream.real().ok_or(Error::ForeignStream)?),
            #[cfg(feature = "sim")]
            Gpu::Simulated(device) if stream.is_of(device) => Ok(()),
            #[cfg(feature = "sim")]
            Gpu::Simulated(_) => Err(Error::ForeignStream),
        }
    }

    /// The stream is of this class from now on; an empty name is none. The settings may say of
    /// classes how many addresses expandable segments reserve for their streams.
    pub fn set_stream_class(&self, stream: impl Into<Stream>, class: &str) -> Result<(), Error> {
        let stream = stream.into();
        self.admit(&stream)?;
        self.native("keep classes of streams")?.set_stream_class(stream.id(), class);
        Ok(())
    }

    // Memory.

    /// The address of bytes for use on a stream that was admitted.
    pub(crate) fn malloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        Ok(match &self.0.backend {
            Backend::Native(native) => native.malloc(size_bytes, stream)?,
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.malloc(size_bytes, stream)?,
        })
    }

    pub(crate) fn annotate(&self, addr: Addr, remark: &str) -> Result<(), Error> {
        Ok(self.native("remember what happens")?.annotate_memory(addr, remark)?)
    }

    /// Frees what a block had.
    pub(crate) fn free(&self, addr: Addr) -> Result<(), Error> {
        match &self.0.backend {
            Backend::Native(native) => native.free(addr)?,
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.free(addr)?,
        }
        Ok(())
    }

    pub(crate) fn record_stream(&self, addr: Addr, stream: StreamId) -> Result<(), Error> {
        match &self.0.backend {
            Backend::Native(native) => native.record_stream(addr, stream)?,
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.record_stream(addr, stream)?,
        }
        Ok(())
    }

    pub(crate) fn share(&self, addr: Addr) -> Result<Shared, Error> {
        Ok(self.native("share memory")?.share(addr)?)
    }

    pub(crate) fn close(&self, base: Addr) -> Result<(), Error> {
        Ok(self.native("close shared memory")?.close_shared(base)?)
    }

    /// Lets another GPU of this process use this one's memory, what there is and what will be.
    pub fn open_to_peer(&self, peer: u32) -> Result<(), Error> {
        Ok(self.native("open memory to a peer")?.open_to_peer(DeviceIndex(peer))?)
    }

    /// Runs `body` with plain memory for all requests of this thread: memory that the driver can
    /// export and other libraries can register (IPC handles, RDMA), whatever the settings say of
    /// expandable segments. It is cut from segments, cached and given back like all other.
    ///
    /// ```
    /// use larder::Allocator;
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// let stream = allocator.new_stream()?;
    /// let sent = allocator.plain_memory(|| allocator.alloc::<f32>(1 << 20, &stream))?;
    /// assert!(allocator.snapshot()?.iter().all(|segment| !segment.expandable));
    /// # drop(sent);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn plain_memory<T>(&self, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _plain = self.native("give plain memory")?.plain_memory();
        body()
    }

    /// Waits for all events and gives everything cached back to the GPU.
    pub fn empty_cache(&self) -> Result<(), Error> {
        match &self.0.backend {
            Backend::Native(native) => native.empty_cache()?,
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.empty_cache()?,
        }
        Ok(())
    }

    /// Caps what may be held at this part of the GPU's memory; 1 lifts the cap.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        match &self.0.backend {
            Backend::Native(native) => native.set_memory_fraction(fraction)?,
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.set_memory_fraction(fraction)?,
        }
        Ok(())
    }

    // What there is to see.

    /// All statistics. Of the driver's own pool only the bytes allocated and reserved are known.
    pub fn stats(&self) -> Stats {
        match &self.0.backend {
            Backend::Native(native) => native.stats(),
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => {
                // A driver that does not tell is one of which nothing is known.
                stats_of(pool.stats().unwrap_or_default())
            }
        }
    }

    /// Peaks become the current values.
    pub fn reset_peak_stats(&self) -> Result<(), Error> {
        match &self.0.backend {
            Backend::Native(native) => native.reset_peak_stats(),
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.reset_peak_stats()?,
        }
        Ok(())
    }

    /// Every segment and block as it stands. The driver's own pool does not tell.
    pub fn snapshot(&self) -> Result<Vec<SegmentState>, Error> {
        Ok(self.native("tell its blocks")?.snapshot())
    }

    /// Remembers what happens from now on; [`Allocator::take_snapshot`] shows it. The driver's own
    /// pool remembers nothing.
    ///
    /// ```
    /// use larder::{Allocator, HistoryOptions, SnapshotOptions};
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// allocator.record_history(HistoryOptions::default())?;
    /// drop(allocator.alloc::<f32>(1000, &allocator.default_stream())?);
    /// let snapshot = allocator.take_snapshot(SnapshotOptions::default())?;
    /// assert_eq!(snapshot.trace.len(), 4); // A segment, a block, and the two steps of its free.
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn record_history(&self, options: HistoryOptions) -> Result<(), Error> {
        Ok(self.native("remember what happens")?.record_history(options)?)
    }

    /// Remembers nothing from now on, and forgets what was remembered.
    pub fn stop_history(&self) -> Result<(), Error> {
        self.native("remember what happens")?.stop_history();
        Ok(())
    }

    /// The state of the memory, what is remembered, and the settings.
    pub fn take_snapshot(&self, options: SnapshotOptions) -> Result<DeviceSnapshot, Error> {
        Ok(self.native("tell its blocks")?.take_snapshot(options))
    }

    /// What [`Allocator::take_snapshot`] gives as PyTorch's dictionary, to be saved for PyTorch's
    /// viewer (`.pickle`), for Perfetto (`.perfetto.json`), or as JSON; the command `larder`
    /// replays it.
    ///
    /// ```
    /// use larder::{Allocator, HistoryOptions, SnapshotOptions};
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// allocator.record_history(HistoryOptions::default())?;
    /// drop(allocator.alloc::<f32>(1000, &allocator.default_stream())?);
    /// let snapshot = allocator.torch_snapshot(SnapshotOptions::default())?;
    /// let path = std::env::temp_dir().join(format!("larder-{}.pickle", std::process::id()));
    /// snapshot.save(&path)?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "snapshot")]
    pub fn torch_snapshot(
        &self,
        options: SnapshotOptions,
    ) -> Result<larder_snapshot::Snapshot, Error> {
        let epoch = larder_snapshot::Epoch::default();
        let taken = self.take_snapshot(options)?;
        let snapshot = larder_snapshot::Snapshot::of_allocators(&[taken], epoch);
        // The host's pinned memory beside the GPU's, once there is any.
        Ok(match self.0.host.get() {
            Some(host) if options.pool.is_none() => {
                snapshot.with_host(&host.cache.take_snapshot(options), epoch)
            }
            _ => snapshot,
        })
    }

    /// Remembers what happens from now on, and writes it to this file, with all memory as it
    /// stands, whenever a request cannot be met: `larder explain` says of it why, and what would
    /// help. The error names it.
    #[cfg(feature = "snapshot")]
    pub fn snapshot_on_failure(&self, path: &str) -> Result<(), Error> {
        let allocator = self.native("a snapshot of its own")?;
        Ok(larder_snapshot::write_on_failure(allocator, path, larder_snapshot::Epoch::default())?)
    }

    /// Serves the statistics to Prometheus at this address until what it gives is dropped.
    #[cfg(feature = "metrics")]
    pub fn serve_metrics(
        &self,
        address: impl std::net::ToSocketAddrs,
    ) -> Result<crate::metrics::Exporter, Error> {
        let allocator = Arc::clone(self.native("statistics by stream")?);
        let page = move || crate::metrics::page([&*allocator]);
        crate::metrics::Exporter::serve(address, page)
            .map_err(|error| Error::Metrics(error.to_string()))
    }

    /// How much memory the GPU has, and how much nobody holds.
    pub fn memory_info(&self) -> Result<MemoryInfo, Error> {
        use larder_core::device::Device;
        let info = match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(gpu) => gpu.device().memory_info(),
            #[cfg(feature = "sim")]
            Gpu::Simulated(device) => device.memory_info(),
        };
        Ok(info.map_err(Error::refused("tell its free memory"))?)
    }

    /// The settings in force; those of the driver's own pool are its alone.
    pub fn config(&self) -> Config {
        match &self.0.backend {
            Backend::Native(native) => native.config(),
            #[cfg(feature = "cuda")]
            Backend::Async(_) => {
                let mut config = Config::default();
                config.backend = larder_core::config::Backend::CudaMallocAsync;
                config
            }
        }
    }

    /// Changes settings while running. A text that cannot be read changes nothing.
    pub fn configure(&self, text: &str) -> Result<(), Error> {
        Ok(self.native("be configured while running")?.configure(text)?)
    }

    /// Tells this of every request that could not be met, before the error goes out. It may call
    /// the allocator.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        match &self.0.backend {
            Backend::Native(native) => native.on_out_of_memory(observer),
            #[cfg(feature = "cuda")]
            Backend::Async(pool) => pool.on_out_of_memory(observer),
        }
    }

    /// Calls this whenever no cached block fits; it says whether it freed anything. It may call the
    /// allocator.
    pub fn on_miss(
        &self,
        callback: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.native("tell when its cache has nothing")?.on_miss(callback);
        Ok(())
    }

    /// Why a block could not be freed when it was dropped; none if all went well since the last
    /// time this was asked. [`Block::free`](crate::Block::free) and
    /// [`Buffer::free`](crate::Buffer::free) say it at once.
    pub fn take_drop_error(&self) -> Option<Error> {
        self.0.drop_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn note_drop_error(&self, error: Error) {
        let mut place = self.0.drop_error.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(error);
    }

    // What is behind it.

    /// The allocator of `larder-core`, with everything that it can do by address. The driver's own
    /// pool has none.
    pub fn core(&self) -> Option<&Arc<larder_core::Allocator>> {
        match &self.0.backend {
            Backend::Native(native) => Some(native),
            #[cfg(feature = "cuda")]
            Backend::Async(_) => None,
        }
    }

    /// The allocator behind it, for a call that the driver's own pool does not have.
    pub(crate) fn native(&self, what: &'static str) -> Result<&Arc<larder_core::Allocator>, Error> {
        self.core().ok_or(Error::NotWithAsync(what))
    }

    /// The allocator of pinned memory for copies to and from this GPU.
    pub(crate) fn host(&self) -> &Arc<Host> {
        let open = || {
            let device: Arc<dyn Device> = match &self.0.gpu {
                #[cfg(feature = "cuda")]
                Gpu::Cuda(gpu) => Arc::new(HostDevice::new(vec![Arc::clone(gpu.device())])),
                #[cfg(feature = "sim")]
                Gpu::Simulated(gpu) => {
                    Arc::new(SimHost::new(Arc::clone(gpu), SIMULATED_HOST_BYTES))
                }
            };
            Arc::new(Host::new(device))
        };
        self.0.host.get_or_init(open)
    }

    /// Whether the GPU is a real one.
    pub(crate) fn is_real(&self) -> bool {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(_) => true,
            #[cfg(feature = "sim")]
            Gpu::Simulated(_) => false,
        }
    }

    /// The real GPU; none if it is simulated.
    #[cfg(feature = "cuda")]
    pub fn cuda_device(&self) -> Option<&Arc<CudaDevice>> {
        self.real_gpu().map(RealGpu::device)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn real_gpu(&self) -> Option<&RealGpu> {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(gpu) => Some(gpu),
            #[cfg(feature = "sim")]
            Gpu::Simulated(_) => None,
        }
    }

    /// The simulated GPU; none if it is real.
    #[cfg(feature = "sim")]
    pub fn simulated_device(&self) -> Option<&Arc<SimDevice>> {
        match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(_) => None,
            #[cfg(feature = "sim")]
            Gpu::Simulated(device) => Some(device),
        }
    }
}

/// What the driver tells of its own pool, among all statistics.
#[cfg(feature = "cuda")]
fn stats_of(known: AsyncStats) -> Stats {
    use larder_core::record::stats::{ByPool, Counter};

    let bytes = |current: u64, peak: u64| {
        let (current, peak) = (current as i64, peak as i64);
        let all = Counter { current, peak, ..Counter::default() };
        ByPool { all, ..ByPool::default() }
    };
    let allocated = bytes(known.allocated_bytes, known.allocated_peak_bytes);
    Stats {
        allocated_bytes: allocated,
        active_bytes: allocated,
        reserved_bytes: bytes(known.reserved_bytes, known.reserved_peak_bytes),
        ..Stats::default()
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = match &self.0.gpu {
            #[cfg(feature = "cuda")]
            Gpu::Cuda(_) => "cuda",
            #[cfg(feature = "sim")]
            Gpu::Simulated(_) => "simulated",
        };
        f.debug_struct("Allocator").field("gpu", &gpu).finish_non_exhaustive()
    }
}
