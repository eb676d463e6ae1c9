//! NCCL as a source: memory by `ncclMemAlloc`, registered with a communicator for as long as it is
//! a segment.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::device::DeviceError;
use larder_core::source::{Registered, Registrar, SegmentSource, SourceProperties};
use larder_core::types::{Addr, Span, StreamId};
use libloading::Library;

use crate::source::{Current, LibraryError, load};

const NAME: &str = "NCCL";
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// NCCL's answer to a CUDA call that failed; of memory that there is none of it says no more than
/// this.
const UNHANDLED_CUDA_ERROR: c_int = 1;
/// A window whose offsets are the same on every rank.
const WINDOW_SYMMETRIC: c_int = 1;

type MemAlloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
type MemFree = unsafe extern "C" fn(*mut c_void) -> c_int;
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut *mut c_void) -> c_int;
type Deregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type WindowRegister =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut *mut c_void, c_int) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library, which stays loaded as long as anybody uses it.
pub struct Nccl {
    mem_alloc: MemAlloc,
    mem_free: MemFree,
    register: Register,
    deregister: Deregister,
    /// Those of NCCL 2.27 and later.
    window: Option<(WindowRegister, Deregister)>,
    error_string: ErrorString,
    _library: Library,
}

impl Nccl {
    /// The NCCL of this process, or of this machine.
    pub fn load() -> Result<Arc<Nccl>, LibraryError> {
        // SAFETY: these are NCCL's own names.
        unsafe { Nccl::open(&NAMES) }
    }

    /// The NCCL under the first of these names that leads to one.
    ///
    /// # Safety
    /// Whatever is found under them is NCCL, or has its interface.
    pub unsafe fn open<N: AsRef<OsStr>>(names: &[N]) -> Result<Arc<Nccl>, LibraryError> {
        // SAFETY: the caller vouches for it.
        let library = unsafe { load(NAME, names) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: NCCL's function of this name has this type: its header says so.
                *unsafe { library.get($name) }
                    .map_err(|_| LibraryError::NoFunction { library: NAME, function: $name })?
            };
        }
        // SAFETY: as above; where there is none, nobody calls it.
        let window = unsafe { library.get("ncclCommWindowRegister") }.ok().map(|found| *found);
        // SAFETY: as above.
        let unwindow = unsafe { library.get("ncclCommWindowDeregister") }.ok().map(|found| *found);
        Ok(Arc::new(Nccl {
            mem_alloc: function!("ncclMemAlloc"),
            mem_free: function!("ncclMemFree"),
            register: function!("ncclCommRegister"),
            deregister: function!("ncclCommDeregister"),
            window: window.zip(unwindow),
            error_string: function!("ncclGetErrorString"),
            _library: library,
        }))
    }

    fn check(&self, code: c_int) -> Result<(), DeviceError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: any number may be asked for, and the text stays.
        let text = unsafe { (self.error_string)(code) };
        let text = if text.is_null() {
            "NCCL says nothing about it".to_owned()
        } else {
            // SAFETY: it is a text of NCCL's that ends in a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(DeviceError::Other { code, text: format!("NCCL: {text}") })
    }
}

/// Memory by `ncclMemAlloc`: such as NCCL can register, and map for its peers.
pub struct NcclMemory {
    nccl: Arc<Nccl>,
    current: Current,
    collective: bool,
}

impl NcclMemory {
    /// Memory of a device, or of the one that is current on the calling thread.
    pub fn new(nccl: &Arc<Nccl>, device: Option<u32>) -> NcclMemory {
        NcclMemory { nccl: nccl.clone(), current: Current::of(device), collective: false }
    }
}

impl SegmentSource for NcclMemory {
    fn alloc(&self, size_bytes: u64, _stream: StreamId) -> Result<Addr, DeviceError> {
        let _entered = self.current.enter()?;
        let mut place = std::ptr::null_mut();
        // SAFETY: the place may be written to.
        match unsafe { (self.nccl.mem_alloc)(&raw mut place, size_bytes as usize) } {
            UNHANDLED_CUDA_ERROR => Err(DeviceError::OutOfMemory),
            code => self.nccl.check(code).map(|()| Addr(place.addr() as u64)),
        }
    }

    fn free(&self, segment: Span, _stream: StreamId) -> Result<(), DeviceError> {
        let _entered = self.current.enter()?;
        let place = std::ptr::without_provenance_mut(segment.addr.0 as usize);
        // SAFETY: `alloc` gave it, and the allocator gives it back once, when nobody uses it any
        // more.
        let code = unsafe { (self.nccl.mem_free)(place) };
        self.nccl.check(code)
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties::default().collective(self.collective)
    }
}

/// How segments are registered with a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAs {
    /// Each rank for itself, so that collectives need not copy.
    Plain,
    /// By all ranks together as a symmetric window: NCCL 2.27 and later.
    Window,
    /// Both.
    Both,
}

impl RegisterAs {
    fn is_plain(self) -> bool {
        self != RegisterAs::Window
    }

    fn is_window(self) -> bool {
        self != RegisterAs::Plain
    }
}

/// The handles of a segment, by number: plain, and as window.
type Handles = (Option<usize>, Option<usize>);

/// A communicator, as something to register memory with.
pub struct NcclComm {
    nccl: Arc<Nccl>,
    comm: usize,
    how: RegisterAs,
    current: Current,
    handles: Mutex<BTreeMap<Addr, Handles>>,
}

impl NcclComm {
    /// Registers with this communicator.
    ///
    /// # Safety
    /// `comm` is an `ncclComm_t` of this very NCCL, and lives as long as this value.
    pub unsafe fn new(
        nccl: &Arc<Nccl>,
        comm: *mut c_void,
        how: RegisterAs,
        device: Option<u32>,
    ) -> Result<NcclComm, LibraryError> {
        if how.is_window() && nccl.window.is_none() {
            let function = "ncclCommWindowRegister";
            return Err(LibraryError::NoFunction { library: NAME, function });
        }
        let (nccl, current) = (nccl.clone(), Current::of(device));
        Ok(NcclComm {
            nccl,
            comm: comm.expose_provenance(),
            how,
            current,
            handles: Mutex::default(),
        })
    }

    fn comm(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.comm)
    }

    fn register_plain(&self, place: *mut c_void, size: usize) -> Result<usize, DeviceError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the communicator lives, the memory is there, and the handle may be written to.
        let code = unsafe { (self.nccl.register)(self.comm(), place, size, &raw mut handle) };
        self.nccl.check(code).map(|()| handle.expose_provenance())
    }

    fn register_window(&self, place: *mut c_void, size: usize) -> Result<usize, DeviceError> {
        let Some((register, _)) = self.nccl.window else { return Err(DeviceError::NotSupported) };
        let mut window = std::ptr::null_mut();
        // SAFETY: as for the plain registration.
        let code = unsafe { register(self.comm(), place, size, &raw mut window, WINDOW_SYMMETRIC) };
        self.nccl.check(code).map(|()| window.expose_provenance())
    }

    /// Undoes both registrations, as far as they are there; what NCCL refuses stays.
    fn undo(&self, handles: &mut Handles) -> Result<(), DeviceError> {
        if let (Some(window), Some((_, deregister))) = (handles.1, self.nccl.window) {
            let window = std::ptr::with_exposed_provenance_mut(window);
            // SAFETY: NCCL gave the window, and it is given back once.
            self.nccl.check(unsafe { deregister(self.comm(), window) })?;
            handles.1 = None;
        }
        if let Some(plain) = handles.0 {
            let plain = std::ptr::with_exposed_provenance_mut(plain);
            // SAFETY: NCCL gave the handle, and it is given back once.
            self.nccl.check(unsafe { (self.nccl.deregister)(self.comm(), plain) })?;
            handles.0 = None;
        }
        Ok(())
    }
}

impl Registrar for NcclComm {
    fn name(&self) -> String {
        match self.how {
            RegisterAs::Plain => "an NCCL communicator".to_owned(),
            RegisterAs::Window => "an NCCL communicator, as symmetric window".to_owned(),
            RegisterAs::Both => "an NCCL communicator, plain and as symmetric window".to_owned(),
        }
    }

    fn register(&self, segment: Span) -> Result<u64, DeviceError> {
        let _entered = self.current.enter()?;
        let place = std::ptr::without_provenance_mut(segment.addr.0 as usize);
        let size = segment.size_bytes as usize;
        let mut handles: Handles = (None, None);
        if self.how.is_plain() {
            handles.0 = Some(self.register_plain(place, size)?);
        }
        if self.how.is_window() {
            match self.register_window(place, size) {
                Ok(window) => handles.1 = Some(window),
                Err(error) => {
                    // Whatever it says to that, the segment is not handed out.
                    let _ = self.undo(&mut handles);
                    return Err(error);
                }
            }
        }
        let handle = handles.1.or(handles.0).unwrap_or(0);
        let mut all = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(segment.addr, handles);
        Ok(handle as u64)
    }

    fn deregister(&self, segment: Span, _handle: u64) -> Result<(), DeviceError> {
        let _entered = self.current.enter()?;
        let mut all = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handles) = all.get_mut(&segment.addr) else { return Ok(()) };
        self.undo(handles)?;
        all.remove(&segment.addr);
        Ok(())
    }
}

/// NCCL's memory, registered with a communicator: the source of a pool whose segments NCCL knows.
pub type NcclSource = Registered<NcclMemory, NcclComm>;

/// The source of a pool that is bound to a communicator. Each segment is registered when it comes
/// and deregistered before it goes; as windows, all ranks make segments together.
///
/// # Safety
/// `comm` is an `ncclComm_t` of this very NCCL, and lives as long as the source.
pub unsafe fn nccl_source(
    nccl: &Arc<Nccl>,
    comm: *mut c_void,
    how: RegisterAs,
    device: Option<u32>,
) -> Result<NcclSource, LibraryError> {
    // SAFETY: the caller promises it.
    let comm = unsafe { NcclComm::new(nccl, comm, how, device) }?;
    let mut memory = NcclMemory::new(nccl, device);
    memory.collective = how.is_window();
    Ok(Registered::new(memory, comm))
}
