//! The seam: everything the allocator asks of a device, as one object-safe trait.
//!
//! What holds for every method, so that it need not be said again:
//! - Sizes are above zero. Sizes and addresses given to the virtual-memory methods are multiples
//!   of `Properties::granularity_bytes`.
//! - A method may be called from any thread, also several at once; but one that names a stream
//!   (`record_event`, `wait_stream`, `capture_of`, `capture_ends`) never while another thread
//!   begins or ends a capture of that stream or destroys it, nor after it was destroyed. Whoever
//!   calls sees to it: the allocator names the stream that its own caller names, for the time of
//!   that call, and others only where no other thread can be capturing or the stream was not seen
//!   under a capture. A node is named by the thread whose capture it is of, while that runs.
//! - A method that fails changes nothing.
//! - A method never calls back into the allocator.
//! - While some stream is under a graph capture, all methods work that are not about that stream:
//!   memory comes and goes, and events of other streams are recorded, queried and waited for. To
//!   wait for the captured stream or for the whole device is an error, and it may break the
//!   capture. An event recorded on a captured stream belongs to the capture, and to query it or to
//!   wait for it is such an error too.
//!
//! `larder-testkit`'s conformance suite checks these and the promises of each method on any device.

use std::fmt;
use std::sync::Arc;

use crate::keeper::Keeper;
use crate::types::{Addr, CaptureId, DeviceIndex, EventId, NodeId, PageHandle, Span, StreamId};

/// What a device is and can do. It does not change while the device lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Which device of the process.
    pub index: DeviceIndex,
    /// All the memory that the device has.
    pub total_bytes: u64,
    /// The unit of physical memory; page sizes and mapped addresses are multiples of it.
    pub granularity_bytes: u64,
    /// Whether reserve, create, map and their inverses work. Without it there are no expandable
    /// segments.
    pub virtual_memory: bool,
}

/// How much memory a device has, and how much of it nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// All the memory that the device has.
    pub total_bytes: u64,
}

/// What one process holds of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The process.
    pub pid: u32,
    /// Whether it is this process.
    pub own: bool,
    /// Bytes that it holds.
    pub used_bytes: u64,
}

/// How many bytes name a plain allocation, or a page on a fabric, to other processes.
pub const HANDLE_BYTES: usize = 64;

/// How another process can get hold of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedPage {
    /// A file descriptor of the process that shares.
    Descriptor(i32),
    /// A handle that is good on every machine of a fabric.
    Fabric([u8; HANDLE_BYTES]),
}

/// Why a device call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The memory (or the address space) does not suffice. The caller may free some and try again.
    OutOfMemory,
    /// The device cannot do this at all.
    NotSupported,
    /// Anything else: the device's own code and words.
    Other {
        /// The device's error code.
        code: i32,
        /// What the device says about it.
        text: String,
    },
}

impl DeviceError {
    /// The driver's code for an event that was recorded in a capture.
    pub const CAPTURED_EVENT: i32 = 907;

    /// Whether a call was refused because its event was recorded in a capture.
    pub fn is_captured_event(&self) -> bool {
        matches!(self, DeviceError::Other { code, .. } if *code == DeviceError::CAPTURED_EVENT)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::OutOfMemory => write!(f, "the device is out of memory"),
            DeviceError::NotSupported => write!(f, "the device does not support this"),
            DeviceError::Other { code, text } => write!(f, "{text} (device error {code})"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// One device. See the module's page for what holds for every method.
pub trait Device: Send + Sync {
    // Identity and free memory.

    /// What the device is and can do.
    fn properties(&self) -> &Properties;

    /// How much memory there is and how much nobody holds.
    fn memory_info(&self) -> Result<MemoryInfo, DeviceError>;

    /// What each process holds of the memory, this one included; empty where that is not known.
    fn processes(&self) -> Vec<ProcessMemory>;

    // Plain memory.

    /// Memory of at least `size_bytes` at an address that is a multiple of 512.
    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError>;

    /// Gives back what `alloc` gave. An address that `alloc` did not give, or that was given back
    /// already, is an error.
    fn free(&self, addr: Addr) -> Result<(), DeviceError>;

    // Virtual memory.

    /// A range of addresses with nothing behind it, from a multiple of 2 MiB on.
    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError>;

    /// Gives back a whole range that `reserve` gave. Nothing may be mapped in it.
    fn unreserve(&self, span: Span) -> Result<(), DeviceError>;

    /// Physical memory, mapped nowhere yet.
    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError>;

    /// Gives back physical memory. While it is mapped anywhere, at however many places, that is an
    /// error.
    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError>;

    /// Puts a whole page behind `span`, whose size is the page's. The span must lie in one
    /// reserved range and have nothing behind it. The page stays the caller's to unmap and release.
    ///
    /// A page may be behind any number of spans at once. They all show the same bytes: what work
    /// writes at one place, work that comes after it reads at every other. Further places take none
    /// of the memory that `memory_info` counts.
    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError>;

    /// Takes away the page behind `span`, which was mapped in one piece. Work that uses it there
    /// must have finished. At its other places the page stays, with its bytes.
    fn unmap(&self, span: Span) -> Result<(), DeviceError>;

    /// Lets the device read and write `span`, all of which is mapped. That is about these
    /// addresses, and not about other places of the same pages.
    fn set_access(&self, span: Span) -> Result<(), DeviceError>;

    // Streams and events.

    /// A new event, recorded nowhere yet.
    fn create_event(&self) -> Result<EventId, DeviceError>;

    /// Gives back an event.
    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError>;

    /// Puts the event behind all work issued on `stream` so far, and forgets an earlier record.
    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError>;

    /// Whether the work in front of the event has finished. True for one recorded nowhere.
    fn query_event(&self, event: EventId) -> Result<bool, DeviceError>;

    /// Waits until the work in front of the event has finished.
    fn wait_event(&self, event: EventId) -> Result<(), DeviceError>;

    /// Work issued on `stream` from now on begins when the work in front of the event has finished.
    /// The host does not wait.
    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Waits until all work issued on `stream` so far has finished.
    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// Waits until all work issued on the device so far has finished.
    fn wait_device(&self) -> Result<(), DeviceError>;

    // Graph capture: which streams are captured, and how the work captured so far hangs together.

    /// The capture that the stream is under; none if it is under none. A capture that was broken
    /// is one until it is ended.
    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError>;

    /// The nodes that the work captured next on the stream will depend on, each once. Empty as long
    /// as nothing was captured there, and for a stream that is under no capture or under a broken
    /// one.
    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError>;

    /// The nodes that a node of a running capture depends on directly, each once.
    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError>;

    // Sharing with other processes. A device that cannot share answers `NotSupported`.

    /// A handle by which another process can open the plain allocation that starts at `addr`.
    fn export_alloc(&self, _addr: Addr) -> Result<[u8; HANDLE_BYTES], DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Opens the plain allocation of another process, and says where it starts here.
    fn import_alloc(&self, _handle: [u8; HANDLE_BYTES]) -> Result<Addr, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Closes what `import_alloc` opened. Work that uses it must have finished.
    fn close_alloc(&self, _addr: Addr) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// A handle by which another process can get hold of the page, until `unexport_page`.
    fn export_page(&self, _page: PageHandle) -> Result<SharedPage, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// The handle names the page no longer. Whoever got hold of the page keeps it.
    fn unexport_page(&self, _shared: SharedPage) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// The page of `size_bytes` that process `pid` shares. It is the caller's to map and release;
    /// its memory goes when the last of those who have it releases it.
    fn import_page(
        &self,
        _shared: SharedPage,
        _pid: u32,
        _size_bytes: u64,
    ) -> Result<PageHandle, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    // Peers: other devices of the process that may use this one's memory.

    /// Lets the peer read and write plain memory of this device, what there is and what will be.
    /// Once is enough, and again does no harm.
    fn open_to_peer(&self, _peer: DeviceIndex) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Lets the peer read and write `span`, all of which is mapped.
    fn set_peer_access(&self, _span: Span, _peer: DeviceIndex) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    // Contents, for memory that is put to sleep. A device that cannot copy answers `NotSupported`.

    /// Copies what is at each span, all of which the device can use, to the host's memory beside
    /// it, which has as many bytes. Work that writes there must have finished. It returns when all
    /// is copied; if it fails, some of it may be.
    fn copy_out(&self, _copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Copies the host's memory to each span beside it, in the same way. Work that is issued later
    /// finds it there.
    fn copy_in(&self, _copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Writes zeros to each span, in the same way.
    fn clear(&self, _spans: &[Span]) -> Result<(), DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Who keeps contents of its memory best; none where any memory of the host will do.
    fn keeper(self: Arc<Self>) -> Option<Arc<dyn Keeper>> {
        None
    }

    // Time.

    /// Nanoseconds since some fixed moment; never runs backwards. Simulated devices have their
    /// own time.
    fn now_ns(&self) -> u64;
}
