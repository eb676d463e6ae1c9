//! The border to C: status codes, the last error, and where callers want results.

use std::cell::Cell;
use std::ffi::CStr;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;

use larder_core::device::DeviceError;

/// What a CUDA function returns. The runtime and the driver agree on every number used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(pub i32);

/// What a function answers inside of this library.
pub(crate) type Answer<T = ()> = Result<T, Status>;

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const INVALID_VALUE: Status = Status(1);
    pub(crate) const OUT_OF_MEMORY: Status = Status(2);
    pub(crate) const INVALID_DEVICE: Status = Status(101);
    pub(crate) const INVALID_HANDLE: Status = Status(400);
    pub(crate) const NOT_FOUND: Status = Status(500);
    pub(crate) const NOT_READY: Status = Status(600);
    pub(crate) const NOT_SUPPORTED: Status = Status(801);
    pub(crate) const UNKNOWN: Status = Status(999);

    /// The name and the words for it.
    pub(crate) fn describe(self) -> (&'static CStr, &'static CStr) {
        match self.0 {
            0 => (c"cudaSuccess", c"no error"),
            1 => (c"cudaErrorInvalidValue", c"invalid argument"),
            2 => (c"cudaErrorMemoryAllocation", c"out of memory"),
            101 => (c"cudaErrorInvalidDevice", c"invalid device ordinal"),
            400 => (c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
            500 => (c"cudaErrorSymbolNotFound", c"named symbol not found"),
            600 => (c"cudaErrorNotReady", c"device not ready"),
            801 => (c"cudaErrorNotSupported", c"the dry run cannot do this"),
            900 => (
                c"cudaErrorStreamCaptureUnsupported",
                c"operation not permitted when stream is capturing",
            ),
            901 => (
                c"cudaErrorStreamCaptureInvalidated",
                c"operation failed due to a previous error during capture",
            ),
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

/// The last error of a runtime function in this thread.
pub(crate) fn last_error() -> Status {
    LAST_ERROR.get()
}

/// The last error, which is forgotten with that.
pub(crate) fn take_last_error() -> Status {
    LAST_ERROR.replace(Status::SUCCESS)
}

/// Runs the body of a driver function. A panic becomes an error.
pub(crate) fn driver(act: impl FnOnce() -> Answer) -> Status {
    // What a panic leaves behind is the device's state, and the device keeps it whole.
    match panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status::UNKNOWN,
    }
}

/// Runs the body of a runtime function, and remembers its error.
pub(crate) fn runtime(act: impl FnOnce() -> Answer) -> Status {
    let status = driver(act);
    if status != Status::SUCCESS && status != Status::NOT_READY {
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
    pub(crate) fn put(self, value: T) -> Answer {
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

    /// A place that is known to be for a smaller number.
    pub(crate) fn narrow<S>(self) -> Out<S> {
        Out(self.0.map(NonNull::cast))
    }

    /// Writes several results one behind the other, as many as there is room for.
    pub(crate) fn put_all(self, values: &[T], room: usize) -> Answer
    where
        T: Copy,
    {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        let count = values.len().min(room);
        // SAFETY: CUDA's interface asks of its caller that there is room for as many results as the
        // count beside the pointer says; the values are ours and do not overlap with it.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(values).cast(), count) };
        Ok(())
    }
}

/// Something that a caller shows us, or null. Only a caller in C can make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Shown<T>(Option<NonNull<T>>);

impl<T: Copy> Shown<T> {
    /// What it points to; null is an error.
    pub(crate) fn read(&self) -> Answer<T> {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that a pointer to an argument is null or
        // points to a whole one that stays as it is for the length of the call.
        Ok(unsafe { place.read_unaligned() })
    }

    /// Writes where the interface says that an argument is a result as well.
    pub(crate) fn write(&self, value: T) -> Answer {
        let place = self.0.ok_or(Status::INVALID_VALUE)?;
        // SAFETY: CUDA's interface asks of its caller that such a pointer is null or may be read
        // and written, and lends it for the length of the call.
        unsafe { place.write(value) };
        Ok(())
    }
}

/// The text up to the zero; null and bytes that are no text are errors.
pub(crate) fn text_at(start: *const std::ffi::c_char) -> Answer<&'static str> {
    if start.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: CUDA's interface asks of its caller that a name ends in a zero and stays as it is for
    // the length of the call, which nobody here outlives.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map_err(|_| Status::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_where_there_is_room_and_null_is_an_error() {
        let mut numbers = [0_u32; 3];
        let place = Out(Some(NonNull::from(&mut numbers).cast::<u32>()));
        assert_eq!(place.put_all(&[1, 2, 3, 4], 2), Ok(()));
        assert_eq!(numbers, [1, 2, 0]);
        assert_eq!(Out::<u32>(None).put(7), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn an_error_is_remembered_until_it_is_asked_for_and_a_panic_is_one() {
        assert_eq!(runtime(|| Err(Status::OUT_OF_MEMORY)), Status::OUT_OF_MEMORY);
        assert_eq!(runtime(|| Err(Status::NOT_READY)), Status::NOT_READY, "which is no error");
        assert_eq!(last_error(), Status::OUT_OF_MEMORY);
        assert_eq!(take_last_error(), Status::OUT_OF_MEMORY);
        assert_eq!(last_error(), Status::SUCCESS);
        assert_eq!(driver(|| panic!("a test of the border")), Status::UNKNOWN);
    }
}
