//! The border to C: the guard that keeps panics in, status codes, the last error of each thread,
//! and the pointers that callers pass.
//!
//! All unsafe code of the crate stands here. The types for pointers can only be made by a caller in
//! C, which promises what the top of `larder.h` asks for: a pointer is null, or it is what the
//! function's declaration says for the length of the call.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};

use larder_core::device::DeviceError;
use larder_core::error::{AddressProblem, SleepProblem, Unsound};
use larder_core::{Error, PoolId, StreamId};
use larder_cuda::CudaDevice;

use crate::out_of_memory::OutOfMemoryReport;

/// What every call that can fail returns: `larder_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Status {
    Ok = 0,
    OutOfMemory = 1,
    UnknownAddress = 2,
    BadArgument = 3,
    BadSetting = 4,
    BadPool = 5,
    NoDevice = 6,
    DeviceError = 7,
    NotSupported = 8,
    Internal = 9,
    Diverged = 10,
    ExchangeFailed = 11,
    NotFree = 12,
    Other = 13,
    NotWoken = 14,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// What the allocator says.
    Core(Box<Error>),
    /// The request could not be met; in numbers, and in words.
    OutOfMemory(Box<(OutOfMemoryReport, String)>),
    Argument(String),
    Setting(String),
    NoDevice(String),
    /// Something of our own does not hold.
    Unsound(Unsound),
}

impl Problem {
    /// An argument that is null and must not be.
    #[cold]
    fn null(name: &'static str) -> Problem {
        Problem::Argument(format!("`{name}` must not be NULL"))
    }

    fn status(&self) -> Status {
        match self {
            Problem::Core(error) => status_of(error),
            Problem::OutOfMemory(_) => Status::OutOfMemory,
            Problem::Argument(_) => Status::BadArgument,
            Problem::Setting(_) => Status::BadSetting,
            Problem::NoDevice(_) => Status::NoDevice,
            Problem::Unsound(_) => Status::Internal,
        }
    }
}

impl From<Error> for Problem {
    #[cold]
    fn from(error: Error) -> Problem {
        Problem::Core(Box::new(error))
    }
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::OutOfMemory(_) => Status::OutOfMemory,
        Error::UnknownAddress(_) | Error::NotOpened(_) => Status::UnknownAddress,
        Error::NotAt { problem: AddressProblem::NotFree, .. } => Status::NotFree,
        Error::Config(_) => Status::BadSetting,
        Error::Pool { .. } => Status::BadPool,
        Error::NoDevice(_) => Status::NoDevice,
        Error::Device { error: DeviceError::NotSupported, .. }
        | Error::Source { error: DeviceError::NotSupported, .. } => Status::NotSupported,
        Error::Device { .. } | Error::Source { .. } => Status::DeviceError,
        Error::Diverged(_) => Status::Diverged,
        Error::Exchange(_) => Status::ExchangeFailed,
        Error::NotAt { problem: AddressProblem::Unaligned(_), .. }
        | Error::NoBaseAllocation(_)
        | Error::BadFraction(_)
        | Error::NoContextHook
        | Error::BadShare(_)
        | Error::Capture { .. }
        | Error::NotDeclared(_)
        | Error::Sleep(
            SleepProblem::UnknownTag(_) | SleepProblem::NotOpen(_) | SleepProblem::NoName,
        ) => Status::BadArgument,
        Error::Sleep(_) => Status::NotWoken,
        // An error that C has no name for yet.
        _ => Status::Other,
    }
}

/// The driver's number for what it refused.
fn device_code(error: &Error) -> Option<i32> {
    match error {
        Error::Device { error: DeviceError::Other { code, .. }, .. }
        | Error::Source { error: DeviceError::Other { code, .. }, .. } => Some(*code),
        // CUDA's number for it, whichever device says so.
        Error::Device { error: DeviceError::OutOfMemory, .. } => Some(2),
        _ => None,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_DEVICE_CODE: Cell<i32> = const { Cell::new(0) };
    static LAST_OUT_OF_MEMORY: Cell<Option<OutOfMemoryReport>> = const { Cell::new(None) };
}

/// Runs the body of a call. A panic becomes `Internal`.
#[inline]
pub(crate) fn guard(act: impl FnOnce() -> Result<(), Problem>) -> Status {
    // What a panic leaves behind is the allocator's: its lock is poisoned, and every later call
    // ends here too instead of trusting the heap.
    match panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(problem)) => fail(&problem),
        Err(payload) => {
            note_error(format!("Larder made a mistake: {}", words_of(&*payload)));
            Status::Internal
        }
    }
}

/// Runs the body of a call that cannot fail; if it panics, `otherwise` is the result.
pub(crate) fn guard_or<T>(otherwise: T, act: impl FnOnce() -> T) -> T {
    let mut result = otherwise;
    let place = &mut result;
    guard(|| {
        *place = act();
        Ok(())
    });
    result
}

#[cold]
fn fail(problem: &Problem) -> Status {
    let words = match problem {
        Problem::Core(error) => {
            if let Some(code) = device_code(error) {
                // A thread that is ending has no place left for it, and nobody who asks.
                let _ = LAST_DEVICE_CODE.try_with(|last| last.set(code));
            }
            error.to_string()
        }
        Problem::OutOfMemory(report) => {
            let _ = LAST_OUT_OF_MEMORY.try_with(|last| last.set(Some(report.0)));
            report.1.clone()
        }
        Problem::Argument(words) | Problem::Setting(words) | Problem::NoDevice(words) => {
            words.clone()
        }
        Problem::Unsound(unsound) => unsound.to_string(),
    };
    note_error(words);
    problem.status()
}

fn words_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("for no stated reason")
}

fn note_error(words: String) {
    let words = c_string(words);
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = words);
}

/// A text for C, which ends at the first zero.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes: Vec<u8> = text.into();
    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default()
}

/// The words of the calling thread's last error.
pub(crate) fn last_words() -> String {
    let words = LAST_ERROR.try_with(|last| last.borrow().to_string_lossy().into_owned());
    words.unwrap_or_default()
}

#[unsafe(no_mangle)]
extern "C" fn larder_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn larder_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn larder_last_device_code() -> i32 {
    LAST_DEVICE_CODE.try_with(Cell::get).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn larder_last_out_of_memory(out: Out<OutOfMemoryReport>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let last = LAST_OUT_OF_MEMORY.try_with(Cell::get).unwrap_or(None);
        let none = || Problem::Argument("this thread's requests were all met so far".to_owned());
        out.put(last.ok_or_else(none)?);
        Ok(())
    })
}

/// `larder_pool_id`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PoolName {
    pub(crate) a: u64,
    pub(crate) b: u64,
}

impl From<PoolName> for PoolId {
    fn from(name: PoolName) -> PoolId {
        PoolId(name.a, name.b)
    }
}

impl From<PoolId> for PoolName {
    fn from(id: PoolId) -> PoolName {
        PoolName { a: id.0, b: id.1 }
    }
}

/// An address of the device, or a stream's handle: a number that is written as a pointer in C. It
/// is never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Token(*mut c_void);

impl Token {
    pub(crate) const NULL: Token = Token(ptr::null_mut());

    pub(crate) fn new(number: u64) -> Token {
        Token(ptr::without_provenance_mut(number as usize))
    }

    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0.addr() as u64
    }

    #[inline]
    pub(crate) fn stream(self) -> StreamId {
        StreamId(self.number())
    }
}

/// A device that takes every stream that callers of the library name for one that is there.
pub(crate) fn trusting(device: CudaDevice) -> CudaDevice {
    // SAFETY: whoever names a stream in a call of this library promises by larder.h that it is one
    // of the device's primary context, and that it lives until the library is told to forget it.
    unsafe { device.trust_streams() };
    device
}

// SAFETY: it is a number, which is never followed as a pointer.
unsafe impl Send for Token {}
// SAFETY: as above.
unsafe impl Sync for Token {}

/// Something of the caller's that is passed back to the caller and never followed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Foreign(*mut c_void);

impl Foreign {
    pub(crate) const NULL: Foreign = Foreign(ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn number(self) -> u64 {
        self.0.addr() as u64
    }
}

// SAFETY: we never follow it, and the header asks of its owner that the functions it is passed to
// may be called from any thread, also several at once.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

/// What a hook of the caller's works with; its owner is told when it is not needed any more.
pub(crate) struct HookData {
    data: Foreign,
    release: Option<extern "C" fn(Foreign)>,
}

impl HookData {
    pub(crate) fn new(data: Foreign, release: Option<extern "C" fn(Foreign)>) -> HookData {
        HookData { data, release }
    }

    /// What the hook is called with. A closure that calls this keeps the whole of it, where one
    /// that read a field would copy the field and let the rest go.
    pub(crate) fn data(&self) -> Foreign {
        self.data
    }
}

impl Drop for HookData {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            release(self.data);
        }
    }
}

/// Where a caller wants a result, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(Option<NonNull<T>>);

/// Where a result goes.
#[derive(Debug)]
pub(crate) struct Wanted<T>(NonNull<T>);

impl<T> Out<T> {
    /// The place; null is an error. It is asked for before anything is done.
    #[inline]
    pub(crate) fn wanted(self, name: &'static str) -> Result<Wanted<T>, Problem> {
        self.0.map(Wanted).ok_or_else(|| Problem::null(name))
    }

    /// Writes the result if the caller wants it.
    pub(crate) fn put_if_wanted(self, value: T) {
        if let Some(place) = self.0 {
            Wanted(place).put(value);
        }
    }
}

impl<T> Wanted<T> {
    #[inline]
    pub(crate) fn put(self, value: T) {
        // SAFETY: `larder.h` asks of its caller that a pointer to a result is null or may be
        // written to, and lends it for the length of the call.
        unsafe { self.0.write(value) };
    }
}

/// Something that a caller shows us, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Shown<T>(Option<NonNull<T>>);

impl<T: Copy> Shown<T> {
    /// What it points to; null is none.
    pub(crate) fn read(self) -> Option<T> {
        // SAFETY: `larder.h` asks of its caller that a pointer to an argument is null or points to
        // a whole one that stays as it is for the length of the call.
        self.0.map(|place| unsafe { place.read() })
    }

    /// What it points to; null is an error.
    pub(crate) fn needed(self, name: &'static str) -> Result<T, Problem> {
        self.read().ok_or_else(|| Problem::null(name))
    }

    /// `count` of them, one behind the other. Null is an error unless there are none.
    pub(crate) fn list(&self, count: usize, name: &'static str) -> Result<&[T], Problem> {
        if count == 0 {
            return Ok(&[]);
        }
        let start = self.0.ok_or_else(|| Problem::null(name))?;
        // SAFETY: `larder.h` asks of its caller that a pointer with a count beside it points to
        // that many, which stay as they are for the length of the call; the borrow of `self` is
        // shorter.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) })
    }
}

/// Text that a caller shows us, or null. It is the caller's, so that nobody keeps it for longer
/// than the call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(Option<NonNull<c_char>>);

impl Text {
    /// The text up to the zero; null is none, and bytes that are no text are an error.
    pub(crate) fn read(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        let Some(start) = self.0 else { return Ok(None) };
        // SAFETY: `larder.h` asks of its caller that a text ends in a zero and stays as it is for
        // the length of the call; the borrow of `self` is shorter.
        let text = unsafe { CStr::from_ptr(start.as_ptr()) };
        let wrong = |_| Problem::Argument(format!("`{name}` is no text in UTF-8"));
        text.to_str().map(Some).map_err(wrong)
    }

    /// The text up to the zero; null is an error.
    pub(crate) fn needed(&self, name: &'static str) -> Result<&str, Problem> {
        self.read(name)?.ok_or_else(|| Problem::null(name))
    }

    /// The text up to the zero as far as it is one; null is the empty text.
    pub(crate) fn lossy(&self) -> String {
        let Some(start) = self.0 else { return String::new() };
        // SAFETY: as in `read`; the text is copied before the call ends.
        unsafe { CStr::from_ptr(start.as_ptr()) }.to_string_lossy().into_owned()
    }
}

/// Room for several results, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Room<T>(Option<NonNull<T>>);

impl<T: Copy> Room<T> {
    /// Null is an error unless there is room for none.
    pub(crate) fn check(&self, room: usize, name: &'static str) -> Result<(), Problem> {
        if self.0.is_none() && room > 0 { Err(Problem::null(name)) } else { Ok(()) }
    }

    /// Writes as many of the results as there is room for.
    pub(crate) fn fill(self, results: &[T], room: usize) {
        let Some(place) = self.0 else { return };
        let count = results.len().min(room);
        // SAFETY: `larder.h` asks of its caller that there is room for as many as the count beside
        // it says, which is no less than what is written; the results are ours and lie elsewhere.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(results).cast(), count) };
    }
}

/// Something of ours that the caller holds by a pointer, or null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Held<T>(Option<NonNull<T>>);

impl<T> Held<T> {
    /// What it is; null is an error.
    #[inline]
    pub(crate) fn get(&self, name: &'static str) -> Result<&T, Problem> {
        self.read().ok_or_else(|| Problem::null(name))
    }

    /// What it is; null is none.
    #[inline]
    pub(crate) fn read(&self) -> Option<&T> {
        // SAFETY: `larder.h` asks of its caller that a pointer to something of ours is null or one
        // that `Owned` gave, and that nobody gives it back while a call uses it.
        self.0.map(|place| unsafe { place.as_ref() })
    }

    /// Takes it back from the caller, who must not use it any more.
    pub(crate) fn take(self) -> Option<Box<T>> {
        // SAFETY: it came from `Owned::give`, and the caller gives it back once.
        self.0.map(|place| unsafe { Box::from_raw(place.as_ptr()) })
    }

    /// Whether it is this very thing.
    pub(crate) fn is(&self, other: &T) -> bool {
        self.0 == Some(NonNull::from(other))
    }
}

/// A pointer to something of ours, for the caller to hold.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Owned<T>(*mut T);

impl<T> Owned<T> {
    /// The caller's from now on, until `Held::take`.
    pub(crate) fn give(value: T) -> Owned<T> {
        Owned(Box::into_raw(Box::new(value)))
    }

    /// Lends what is never given back.
    pub(crate) fn lend(value: &'static T) -> Owned<T> {
        Owned(ptr::from_ref(value).cast_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_on_this_side_and_is_told() {
        assert_eq!(guard(|| panic!("a test of {}", "the border")), Status::Internal);
        assert_eq!(last_words(), "Larder made a mistake: a test of the border");
        assert_eq!(guard_or(7, || panic!("again")), 7);
        assert_eq!(guard_or(7, || 8), 8);
    }

    #[test]
    fn each_thread_has_its_own_last_error() {
        assert_eq!(guard(|| Err(Problem::null("out"))), Status::BadArgument);
        std::thread::spawn(|| assert_eq!(last_words(), "")).join().unwrap();
        assert_eq!(guard(|| Ok(())), Status::Ok, "success does not wipe it out");
        assert_eq!(last_words(), "`out` must not be NULL");
    }

    #[test]
    fn the_code_of_the_device_is_kept() {
        let other = DeviceError::Other { code: 719, text: "launch failed".to_owned() };
        let error = Error::Device { call: "record an event", error: other };
        assert_eq!(guard(|| Err(error.into())), Status::DeviceError);
        assert_eq!(larder_last_device_code(), 719);
        let error = Error::Device { call: "share", error: DeviceError::NotSupported };
        assert_eq!(guard(|| Err(error.into())), Status::NotSupported);
        assert_eq!(larder_last_device_code(), 719, "of the last one that had a code");
    }

    #[test]
    fn null_pointers_are_told_by_name() {
        assert!(Out::<u32>(None).wanted("out").is_err());
        assert!(Shown::<u32>(None).list(0, "list").is_ok());
        assert!(Shown::<u32>(None).list(1, "list").is_err());
        assert!(Room::<u32>(None).check(0, "room").is_ok());
        assert!(Room::<u32>(None).check(1, "room").is_err());
        assert!(Held::<u32>(None).get("larder").is_err());
        let wrong = c"\xff";
        let text = Text(NonNull::new(wrong.as_ptr().cast_mut()));
        assert!(text.needed("settings").is_err());
        assert_eq!(text.lossy(), "\u{fffd}");
    }

    #[test]
    fn a_text_for_c_ends_at_its_first_zero() {
        assert_eq!(c_string("abc\0def").as_bytes(), b"abc");
        assert_eq!(c_string("").as_bytes(), b"");
    }
}
