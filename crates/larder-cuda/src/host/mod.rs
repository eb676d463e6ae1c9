//! `HostDevice`: pinned memory of the host as a device of its own. Its memory is the host's; its
//! streams and events are those of the GPUs that copy to and from it, of which there may be many.
//!
//! A stream is named by the number that [`stream_of`] makes of a GPU and a handle: handles of
//! different GPUs may be equal. The host's own work is [`HOST_STREAM`], which no GPU has.

mod calls;
mod events;
mod keeper;
mod node;
#[cfg(target_os = "linux")]
mod part;
mod pinning;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod spare;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use larder_core::device::{Device, DeviceError, MemoryInfo, ProcessMemory, Properties};
use larder_core::heap::size::HOST_PAGE_BYTES;
use larder_core::types::{
    Addr, CaptureId, DeviceIndex, EventId, HOST_STREAM, NodeId, PageHandle, Span, StreamId,
};

use crate::CudaDevice;
use calls::CallTimes;
use events::Events;
use node::Node;
use pinning::Pinned;

pub use calls::{HostCalls, SIZE_CLASSES, Timed};
pub use keeper::PinnedKeeper;
pub use pinning::PinBy;

/// In a stream's number, the GPU's index stands above the bits of the handle.
const GPU_SHIFT: u32 = 56;
/// The driver's code for an argument that makes no sense.
const INVALID_VALUE: i32 = 1;

/// The number by which a GPU's stream is named here.
pub fn stream_of(gpu: u32, handle: u64) -> StreamId {
    StreamId(u64::from(gpu) << GPU_SHIFT | handle)
}

/// Pinned memory of the host.
pub struct HostDevice {
    properties: Properties,
    gpus: Vec<Arc<CudaDevice>>,
    /// The GPU in whose context memory is pinned: the first that the process uses.
    home: OnceLock<usize>,
    /// Which GPUs had an event recorded here.
    copies: Vec<AtomicBool>,
    pin_by: AtomicUsize,
    threads: AtomicUsize,
    node: OnceLock<Node>,
    held_bytes: AtomicU64,
    /// What was mapped and is not held any more.
    spare: Arc<pinning::Spare>,
    /// What is held, with its size.
    pinned: Mutex<HashMap<u64, (Pinned, u64)>>,
    events: Mutex<Events>,
    times: CallTimes,
    epoch: Instant,
}

impl HostDevice {
    /// Pinned memory for copies to and from these GPUs, of which there is at least one. It takes no
    /// memory of theirs before the first request.
    pub fn new(gpus: Vec<Arc<CudaDevice>>) -> HostDevice {
        HostDevice::with_memory(gpus, u64::MAX)
    }

    /// The same for a host that has at most so many bytes for it.
    pub fn with_memory(gpus: Vec<Arc<CudaDevice>>, most_bytes: u64) -> HostDevice {
        assert!(!gpus.is_empty(), "memory is pinned for a GPU");
        let properties = Properties {
            index: DeviceIndex(0),
            total_bytes: node::host_memory().total_bytes.min(most_bytes),
            granularity_bytes: HOST_PAGE_BYTES,
            virtual_memory: false,
        };
        HostDevice {
            properties,
            home: OnceLock::new(),
            copies: gpus.iter().map(|_| AtomicBool::new(false)).collect(),
            pin_by: AtomicUsize::new(PinBy::Best as usize),
            threads: AtomicUsize::new(0),
            node: OnceLock::new(),
            held_bytes: AtomicU64::new(0),
            spare: Arc::default(),
            pinned: Mutex::default(),
            events: Mutex::default(),
            times: CallTimes::default(),
            epoch: Instant::now(),
            gpus,
        }
    }

    /// How memory is got from now on, and how many threads touch it first where that is ours to do;
    /// with 0 threads, as many as are best.
    pub fn set_pinning(&self, by: PinBy, threads: usize) {
        self.pin_by.store(by as usize, Ordering::Relaxed);
        self.threads.store(threads, Ordering::Relaxed);
    }

    /// How many allocations are held, and how many bytes.
    pub fn held(&self) -> (usize, u64) {
        (self.pinned().len(), self.held_bytes.load(Ordering::Relaxed))
    }

    /// How long the calls took that got memory and gave it back.
    pub fn calls(&self) -> HostCalls {
        self.times.read()
    }

    /// Counts and sums begin anew.
    pub fn reset_call_sums(&self) {
        self.times.reset_sums();
    }

    /// The shortest and the longest call are sought anew.
    pub fn reset_call_peaks(&self) {
        self.times.reset_peaks();
    }

    /// The GPU in whose context memory is pinned.
    fn home(&self) -> &CudaDevice {
        let home = self
            .home
            .get_or_init(|| self.gpus.iter().position(|gpu| gpu.is_in_use()).unwrap_or_default());
        &self.gpus[*home]
    }

    /// The GPU of a stream, and the stream as that GPU names it.
    fn owner_of(&self, stream: StreamId) -> Result<(usize, StreamId), DeviceError> {
        let index = (stream.0 >> GPU_SHIFT) as usize;
        if index >= self.gpus.len() {
            let text = format!("{stream} is a stream of no GPU");
            return Err(DeviceError::Other { code: INVALID_VALUE, text });
        }
        Ok((index, StreamId(stream.0 & ((1 << GPU_SHIFT) - 1))))
    }

    /// The GPUs that copied here.
    fn copying(&self) -> impl Iterator<Item = &CudaDevice> {
        let copying = self.copies.iter().map(|copies| copies.load(Ordering::Acquire));
        self.gpus.iter().zip(copying).filter(|(_, copies)| *copies).map(|(gpu, _)| &**gpu)
    }

    /// Every change is made whole by a function that does not panic midway.
    fn pinned(&self) -> MutexGuard<'_, HashMap<u64, (Pinned, u64)>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, size_bytes: u64) -> Result<Pinned, DeviceError> {
        let home = self.home();
        let _entered = home.context().enter()?;
        let by = PinBy::of(self.pin_by.load(Ordering::Relaxed));
        let threads = self.threads.load(Ordering::Relaxed);
        let node = self.node.get_or_init(|| Node::of_gpu(home.bus_id()));
        Pinned::get(size_bytes, by, threads, node, &self.spare)
    }

    /// Counts so many bytes as held, if there are as many.
    fn count(&self, size_bytes: u64) -> Result<(), DeviceError> {
        let total_bytes = self.properties.total_bytes;
        let more = |held_bytes: u64| {
            held_bytes.checked_add(size_bytes).filter(|&bytes| bytes <= total_bytes)
        };
        let counted = self.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map(drop).map_err(|_| DeviceError::OutOfMemory)
    }

    fn uncount(&self, size_bytes: u64) {
        self.held_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

impl Device for HostDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        let total_bytes = self.properties.total_bytes;
        let left_bytes = total_bytes.saturating_sub(self.held_bytes.load(Ordering::Relaxed));
        let free_bytes = node::host_memory().free_bytes.min(left_bytes);
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// Who else holds the host's memory is not told: most of it is pinned by nobody.
    fn processes(&self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        if size_bytes > self.properties.total_bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let size_bytes = size_bytes.next_multiple_of(HOST_PAGE_BYTES);
        self.count(size_bytes)?;
        let start = Instant::now();
        let pinned = self.pin(size_bytes).inspect_err(|_| self.uncount(size_bytes))?;
        self.times.note_got(start.elapsed(), size_bytes);
        let addr = pinned.addr();
        self.pinned().insert(addr, (pinned, size_bytes));
        Ok(Addr(addr))
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        let start = Instant::now();
        // Taken out first, so that of two threads that free one address only one gets further.
        let taken = self.pinned().remove(&addr.0);
        let Some((pinned, size_bytes)) = taken else {
            let text = format!("{addr} is not the address of pinned memory that is held");
            return Err(DeviceError::Other { code: INVALID_VALUE, text });
        };
        let home = self.home().context().enter();
        // SAFETY: whoever had the memory gives it up, and work that uses it is waited for.
        let freed = home.and_then(|_entered| unsafe { pinned.give_back(&self.spare) });
        match &freed {
            Ok(()) => {
                self.uncount(size_bytes);
                self.times.note_given_back(start.elapsed());
            }
            Err(_) => {
                self.pinned().insert(addr.0, (pinned, size_bytes));
            }
        }
        freed
    }

    fn reserve(&self, _size_bytes: u64) -> Result<Addr, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn unreserve(&self, _span: Span) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn create_page(&self, _size_bytes: u64) -> Result<PageHandle, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn release_page(&self, _page: PageHandle) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn map(&self, _span: Span, _page: PageHandle) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn unmap(&self, _span: Span) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    fn set_access(&self, _span: Span) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// The event is made on a GPU when it is recorded: it is not known before on which.
    fn create_event(&self) -> Result<EventId, DeviceError> {
        Ok(self.events().add())
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let Some((gpu, made)) = self.events().take(event)? else { return Ok(()) };
        let destroyed = self.gpus[gpu].destroy_event(made);
        if destroyed.is_err() {
            self.events().put(event, Some((gpu, made)));
        }
        destroyed
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let (gpu, stream) = self.owner_of(stream)?;
        let before = self.events().of(event)?;
        let made = match before {
            Some((owner, made)) if owner == gpu => made,
            _ => self.gpus[gpu].create_event()?,
        };
        if let Err(error) = self.gpus[gpu].record_event(made, stream) {
            if before != Some((gpu, made)) {
                let _ = self.gpus[gpu].destroy_event(made);
            }
            return Err(error);
        }
        self.copies[gpu].store(true, Ordering::Release);
        self.events().put(event, Some((gpu, made)));
        // Of another GPU's event nobody knows any more.
        if let Some((owner, old)) = before.filter(|&(owner, _)| owner != gpu) {
            let _ = self.gpus[owner].destroy_event(old);
        }
        Ok(())
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let made = self.events().of(event)?;
        made.map_or(Ok(true), |(gpu, made)| self.gpus[gpu].query_event(made))
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        let made = self.events().of(event)?;
        made.map_or(Ok(()), |(gpu, made)| self.gpus[gpu].wait_event(made))
    }

    /// A stream may wait for an event of another GPU.
    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let (gpu, stream) = self.owner_of(stream)?;
        let Some((owner, made)) = self.events().of(event)? else { return Ok(()) };
        if owner == gpu {
            return self.gpus[gpu].follow_event(stream, made);
        }
        self.gpus[owner].wait_event(made)
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if stream == HOST_STREAM {
            return Ok(());
        }
        let (gpu, stream) = self.owner_of(stream)?;
        self.gpus[gpu].wait_stream(stream)
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.copying().try_for_each(Device::wait_device)
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        if stream == HOST_STREAM {
            return Ok(None);
        }
        let (gpu, stream) = self.owner_of(stream)?;
        self.gpus[gpu].capture_of(stream)
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        if stream == HOST_STREAM {
            return Ok(Vec::new());
        }
        let (gpu, stream) = self.owner_of(stream)?;
        self.gpus[gpu].capture_ends(stream)
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        self.home().node_dependencies(node)
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}
