//! NVSHMEM as a source: memory of the symmetric heap, which all processing elements make together.

use std::ffi::{OsStr, c_int, c_void};
use std::sync::Arc;

use larder_core::device::DeviceError;
use larder_core::source::{SegmentSource, SourceProperties};
use larder_core::types::{Addr, Span, StreamId};
use libloading::Library;

use crate::source::{Current, LibraryError, load};

const NAME: &str = "NVSHMEM";
const NAMES: [&str; 2] = ["libnvshmem_host.so.3", "libnvshmem_host.so"];

/// From this status on it was started.
const STATUS_INITIALIZED: c_int = 2;
/// `NVSHMEMX_INIT_WITH_UNIQUEID`
const WITH_UNIQUE_ID: u32 = 1 << 3;
const ARGUMENTS_BYTES: usize = 128;

/// `nvshmemx_uniqueid_t`: one process makes it, and all are given it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UniqueId {
    version: c_int,
    internal: [u8; 124],
}

impl UniqueId {
    const fn unset() -> UniqueId {
        UniqueId { version: (1 << 16) + size_of::<UniqueId>() as c_int, internal: [0; 124] }
    }

    /// Its bytes, to be sent to the others.
    pub fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&self.version.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.internal);
        bytes
    }

    /// The id that another process sent.
    pub fn of_bytes(bytes: [u8; 128]) -> UniqueId {
        let mut id = UniqueId::unset();
        id.version = c_int::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        id.internal.copy_from_slice(&bytes[4..]);
        id
    }
}

/// `nvshmemx_init_attr_t`, of whose arguments only NVSHMEM's own functions know the inside.
#[repr(C)]
struct InitAttributes {
    version: c_int,
    mpi_comm: *mut c_void,
    arguments: Arguments,
}

#[repr(C, align(8))]
struct Arguments {
    version: c_int,
    content: [u8; ARGUMENTS_BYTES - size_of::<c_int>()],
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Number = unsafe extern "C" fn() -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type SetUniqueId =
    unsafe extern "C" fn(c_int, c_int, *const UniqueId, *mut InitAttributes) -> c_int;
type InitAttr = unsafe extern "C" fn(u32, *mut InitAttributes) -> c_int;
type Finalize = unsafe extern "C" fn();
type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int);

/// The library, which stays loaded as long as anybody uses it.
pub struct Nvshmem {
    malloc: Malloc,
    free: Free,
    my_pe: Number,
    n_pes: Number,
    init_status: Number,
    get_unique_id: GetUniqueId,
    set_unique_id: SetUniqueId,
    init_attr: InitAttr,
    finalize: Finalize,
    barrier_all: Finalize,
    putmem: Move,
    getmem: Move,
    _library: Library,
}

impl Nvshmem {
    /// The NVSHMEM of this process, or of this machine.
    pub fn load() -> Result<Arc<Nvshmem>, LibraryError> {
        // SAFETY: these are NVSHMEM's own names.
        unsafe { Nvshmem::open(&NAMES) }
    }

    /// The NVSHMEM under the first of these names that leads to one.
    ///
    /// # Safety
    /// Whatever is found under them is NVSHMEM 3, or has its interface.
    pub unsafe fn open<N: AsRef<OsStr>>(names: &[N]) -> Result<Arc<Nvshmem>, LibraryError> {
        // SAFETY: the caller vouches for it.
        let library = unsafe { load(NAME, names) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: NVSHMEM's function of this name has this type: its header says so.
                *unsafe { library.get($name) }
                    .map_err(|_| LibraryError::NoFunction { library: NAME, function: $name })?
            };
        }
        Ok(Arc::new(Nvshmem {
            malloc: function!("nvshmem_malloc"),
            free: function!("nvshmem_free"),
            my_pe: function!("nvshmem_my_pe"),
            n_pes: function!("nvshmem_n_pes"),
            init_status: function!("nvshmemx_init_status"),
            get_unique_id: function!("nvshmemx_get_uniqueid"),
            set_unique_id: function!("nvshmemx_set_attr_uniqueid_args"),
            init_attr: function!("nvshmemx_hostlib_init_attr"),
            finalize: function!("nvshmemx_hostlib_finalize"),
            barrier_all: function!("nvshmem_barrier_all"),
            putmem: function!("nvshmem_putmem"),
            getmem: function!("nvshmem_getmem"),
            _library: library,
        }))
    }

    /// Whether it was started in this process, by this program or by something else in it.
    pub fn is_started(&self) -> bool {
        // SAFETY: it may be called at any time.
        let status = unsafe { (self.init_status)() };
        (STATUS_INITIALIZED..c_int::MAX).contains(&status)
    }

    /// A new id, by which processes start together.
    pub fn unique_id(&self) -> Result<UniqueId, LibraryError> {
        let mut id = UniqueId::unset();
        // SAFETY: the id may be written to.
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        refused("make a unique id", code).map(|()| id)
    }

    /// Starts it as one of so many, all of whom have the same id. The device that it is to use is
    /// current on the thread.
    pub fn start(&self, id: &UniqueId, rank: u32, ranks: u32) -> Result<(), LibraryError> {
        let arguments = Arguments {
            version: (1 << 16) + size_of::<Arguments>() as c_int,
            content: [0; ARGUMENTS_BYTES - size_of::<c_int>()],
        };
        let version = (1 << 16) + size_of::<InitAttributes>() as c_int;
        let mut attributes = InitAttributes { version, mpi_comm: std::ptr::null_mut(), arguments };
        let (rank, ranks) = (rank as c_int, ranks as c_int);
        // SAFETY: id and attributes live until both calls are over.
        let code = unsafe { (self.set_unique_id)(rank, ranks, id, &raw mut attributes) };
        refused("take a unique id", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.init_attr)(WITH_UNIQUE_ID, &raw mut attributes) };
        refused("start", code)
    }

    /// Ends it, which is for whoever started it. All its memory has to be given back before.
    ///
    /// # Safety
    /// Nobody uses memory of the symmetric heap any more.
    pub unsafe fn end(&self) {
        // SAFETY: the caller promises it.
        unsafe { (self.finalize)() };
    }

    /// The number of this processing element.
    pub fn rank(&self) -> i32 {
        // SAFETY: it may be called whenever the library is started, and says -1 before.
        unsafe { (self.my_pe)() }
    }

    /// How many processing elements there are.
    pub fn ranks(&self) -> i32 {
        // SAFETY: as above.
        unsafe { (self.n_pes)() }
    }

    /// Waits until all processing elements have come here, and all that was put is there.
    pub fn barrier(&self) {
        // SAFETY: the library was started, or it says so and does nothing.
        unsafe { (self.barrier_all)() };
    }

    /// Copies bytes of this device into the same place of another one's symmetric heap.
    ///
    /// # Safety
    /// `to` lies in the symmetric heap and `from` in memory of this device, with so many bytes
    /// each, and nobody else writes there.
    pub unsafe fn put(&self, to: Addr, from: Addr, size_bytes: u64, rank: i32) {
        let (to, from) = (place(to), place(from).cast_const());
        // SAFETY: the caller promises it.
        unsafe { (self.putmem)(to, from, size_bytes as usize, rank) };
    }

    /// Copies bytes of another one's symmetric heap into memory of this device.
    ///
    /// # Safety
    /// As for [`Nvshmem::put`], with the sides changed.
    pub unsafe fn get(&self, to: Addr, from: Addr, size_bytes: u64, rank: i32) {
        let (to, from) = (place(to), place(from).cast_const());
        // SAFETY: the caller promises it.
        unsafe { (self.getmem)(to, from, size_bytes as usize, rank) };
    }
}

fn place(addr: Addr) -> *mut c_void {
    std::ptr::without_provenance_mut(addr.0 as usize)
}

fn refused(call: &'static str, code: c_int) -> Result<(), LibraryError> {
    if code == 0 { Ok(()) } else { Err(LibraryError::Refused { library: NAME, call, code }) }
}

/// Segments of the symmetric heap.
pub struct NvshmemSource {
    nvshmem: Arc<Nvshmem>,
    current: Current,
}

impl NvshmemSource {
    /// Segments for a device, or for the one that is current on the calling thread. NVSHMEM has to
    /// be started, by [`Nvshmem::start`] or by the program's own means.
    pub fn new(nvshmem: &Arc<Nvshmem>, device: Option<u32>) -> Result<NvshmemSource, LibraryError> {
        if !nvshmem.is_started() {
            return Err(LibraryError::Refused {
                library: NAME,
                call: "give memory before it was started",
                code: 0,
            });
        }
        Ok(NvshmemSource { nvshmem: nvshmem.clone(), current: Current::of(device) })
    }
}

impl SegmentSource for NvshmemSource {
    fn alloc(&self, size_bytes: u64, _stream: StreamId) -> Result<Addr, DeviceError> {
        let _entered = self.current.enter()?;
        // SAFETY: it was started, and all processing elements come here with the same size.
        let given = unsafe { (self.nvshmem.malloc)(size_bytes as usize) };
        if given.is_null() { Err(DeviceError::OutOfMemory) } else { Ok(Addr(given.addr() as u64)) }
    }

    fn free(&self, segment: Span, _stream: StreamId) -> Result<(), DeviceError> {
        let _entered = self.current.enter()?;
        // SAFETY: `alloc` gave it, and all processing elements give it back together, once.
        unsafe { (self.nvshmem.free)(place(segment.addr)) };
        Ok(())
    }

    fn properties(&self) -> SourceProperties {
        // One of them cannot decline: the others would wait for it.
        SourceProperties::default().collective(true).registrar("NVSHMEM's symmetric heap")
    }
}
