//! The border to C: status codes, the last error, and the pointers that callers pass.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;

use larder_core::device::DeviceError;

/// What a CUDA function returns. The runtime and the driver agree on every number used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub i32);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const INVALID_VALUE: Status = Status(1);
    pub(crate) const OUT_OF_MEMORY: Status = Status(2);
    pub(crate) const INVALID_DEVICE: Status = Status(101);
    pub(crate) const INVALID_HANDLE: Status = Status(400);
    pub(crate) const NOT_READY: Status = Status(600);
    pub(crate) const NOT_SUPPORTED: Status = Status(801);
    pub(crate) const UNKNOWN: Status = Status(999);

    /// The name and the words for it.
    pub(crate) fn describe(self) -> (&'static CStr, &'static CStr) {
        match self {
            Status::SUCCESS => (c"cudaSuccess", c"no error"),
            Status::INVALID_VALUE => (c"cudaErrorInvalidValue", c"invalid argument"),
            Status::OUT_OF_MEMORY => (c"cudaErrorMemoryAllocation", c"out of memory"),
            Status::INVALID_DEVICE => (c"cudaErrorInvalidDevice", c"invalid device ordinal"),
            Status::INVALID_HANDLE => {
                (c"cudaErrorInvalidResourceHandle", c"invalid resource handle")
            }
            Status::NOT_READY => (c"cudaErrorNotReady", c"device not ready"),
            Status::NOT_SUPPORTED => (c"cudaErrorNotSupported", c"operation not supported"),
            _ => (c"cudaErrorUnknown", c"unknown error"),
        }
    }
}

impl From<DeviceError> for Status {
    fn from(error: DeviceError) -> Status {
        match error {
            DeviceError::OutOfMemory => Status::OUT_OF_MEMORY,
            DeviceError::NotSupported => Status::NOT_SUPPORTED,
            DeviceError::Other { code, .. } => Status(code),
            _ => Status::UNKNOWN,
        }
    }
}

thread_local! {
    static LAST_ERROR: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

/// The last error of a runtime function in this thread, which is forgotten with that.
pub(crate) fn take_last_error() -> Status {
    LAST_ERROR.replace(Status::SUCCESS)
}

/// Runs the body of a driver function. A panic becomes an error.
pub(crate) fn driver(act: impl FnOnce() -> Result<(), Status>) -> Status {
    // What a panic leaves behind is the device's state, and the device keeps it whole.
    match panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status::UNKNOWN,
    }
}

/// Runs the body of a runtime function, and remembers its error.
pub(crate) fn runtime(act: impl FnOnce() -> Result<(), Status>) -> Status {
    let status = driver(act);
    if status != Status::SUCCESS {
        LAST_ERROR.set(status);
    }
    status
}

/// Where a caller wants a result, or null. Only a caller in C can make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(Option<NonNull<T>>);

impl<T> Out<T> {
    /// Writes the result; null is an error.
    pub(crate) fn put(self, value: T) -> Result<(), Status> {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that a pointer to a result is null or may be
        // written to, and lends it for the length of the call.
        unsafe { place.write(value) };
        Ok(())
    }

    /// Writes the result if the caller wants it.
    pub(crate) fn put_if_wanted(self, value: T) {
        // Null says that the caller does not want it.
        let _ = self.put(value);
    }
}

/// Something that a caller shows us, or null. Only a caller in C can make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Shown<T>(Option<NonNull<T>>);

impl<T: Copy> Shown<T> {
    /// What it points to; null is an error.
    pub(crate) fn read(&self) -> Result<T, Status> {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that a pointer to an argument is null or
        // points to a whole one that stays as it is for the length of the call.
        Ok(unsafe { place.read() })
    }
}

impl Shown<usize> {
    /// Writes into what the caller shows, where the interface says that it is result as well.
    pub(crate) fn write(&self, value: usize) -> Result<(), Status> {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that a pointer to a count is null or may be
        // read and written, and lends it for the length of the call.
        unsafe { place.write(value) };
        Ok(())
    }
}

/// Room for several results, or null. Only a caller in C can make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Room<T>(Option<NonNull<T>>);

impl<T: Copy> Room<T> {
    /// Writes as many of the results as the caller says there is room for, and tells how many that
    /// were. Without room it tells how many there are.
    pub(crate) fn fill(self, results: &[T], room: &Shown<usize>) -> Result<usize, Status> {
        let Some(place) = self.0 else { return Ok(results.len()) };
        let count = results.len().min(room.read()?);
        // SAFETY: CUDA's interface asks of its caller that a pointer to several results is null or
        // has room for as many as the count beside it says, which is not less than what is written;
        // the results are ours and do not overlap with it.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(results).cast(), count) };
        Ok(count)
    }
}

impl Shown<c_char> {
    /// The text up to the zero; null and bytes that are no text are errors.
    pub(crate) fn text(&self) -> Result<&str, Status> {
        let start = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that a name ends in a zero and stays as it is
        // for the length of the call, which the borrow of `self` does not outlive.
        let text = unsafe { CStr::from_ptr(start.as_ptr()) };
        text.to_str().map_err(|_| Status::INVALID_VALUE)
    }
}

#[cfg(test)]
impl<T> Out<T> {
    pub(crate) fn to(place: &mut T) -> Out<T> {
        Out(Some(NonNull::from(place)))
    }

    pub(crate) fn none() -> Out<T> {
        Out(None)
    }
}

#[cfg(test)]
impl<T> Shown<T> {
    pub(crate) fn to(place: &mut T) -> Shown<T> {
        Shown(Some(NonNull::from(place)))
    }
}

#[cfg(test)]
impl<T> Room<T> {
    pub(crate) fn to(places: &mut [T]) -> Room<T> {
        Room(Some(NonNull::from(places).cast()))
    }

    pub(crate) fn none() -> Room<T> {
        Room(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_written_where_they_are_wanted() {
        let mut number = 1_u32;
        assert_eq!(Out(Some(NonNull::from(&mut number))).put(2), Ok(()));
        assert_eq!(number, 2);
        assert_eq!(Out(None::<NonNull<u32>>).put(3), Err(Status::INVALID_VALUE));
        Out(None::<NonNull<u32>>).put_if_wanted(3);
    }

    #[test]
    fn arguments_are_read_and_null_is_an_error() {
        let mut number = 7_u32;
        assert_eq!(Shown(Some(NonNull::from(&mut number))).read(), Ok(7));
        assert_eq!(Shown(None::<NonNull<u32>>).read(), Err(Status::INVALID_VALUE));
        let name = c"cuMemMap";
        assert_eq!(Shown(NonNull::new(name.as_ptr().cast_mut())).text(), Ok("cuMemMap"));
        let wrong = c"\xff";
        assert!(Shown(NonNull::new(wrong.as_ptr().cast_mut())).text().is_err());
    }

    #[test]
    fn an_error_is_remembered_until_it_is_asked_for() {
        assert_eq!(runtime(|| Err(Status::OUT_OF_MEMORY)), Status::OUT_OF_MEMORY);
        assert_eq!(runtime(|| Ok(())), Status::SUCCESS, "success does not wipe it out");
        assert_eq!(driver(|| Err(Status::UNKNOWN)), Status::UNKNOWN, "the driver has none");
        assert_eq!(take_last_error(), Status::OUT_OF_MEMORY);
        assert_eq!(take_last_error(), Status::SUCCESS);
    }

    #[test]
    fn a_panic_stays_on_this_side() {
        assert_eq!(driver(|| panic!("a test of the border")), Status::UNKNOWN);
    }

    #[test]
    fn device_errors_have_the_codes_of_cuda() {
        assert_eq!(Status::from(DeviceError::OutOfMemory), Status::OUT_OF_MEMORY);
        assert_eq!(Status::from(DeviceError::NotSupported), Status::NOT_SUPPORTED);
        let other = DeviceError::Other { code: 400, text: String::new() };
        assert_eq!(Status::from(other), Status::INVALID_HANDLE);
        assert_eq!(Status::INVALID_HANDLE.describe().1, c"invalid resource handle");
        assert_eq!(Status(12345).describe().0, c"cudaErrorUnknown");
    }
}
