//! What may go wrong, and what may not: errors that were planned, and complaints about all others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::Error;
use larder_core::device::DeviceError;

use larder_sim::FAULT_CODE;

/// The code of a failure that a quarry planned.
pub(super) const QUARRY_CODE: i32 = 998;

/// The first thing that was found wrong, whoever found it.
#[derive(Clone, Default)]
pub(super) struct Complaint(Arc<Raised>);

#[derive(Default)]
struct Raised {
    is_raised: AtomicBool,
    first: Mutex<Option<String>>,
}

impl Complaint {
    pub(super) fn raise(&self, text: String) {
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(text);
        self.0.is_raised.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_raised(&self) -> bool {
        self.0.is_raised.load(Ordering::Relaxed)
    }

    pub(super) fn text(&self) -> Option<String> {
        self.0.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether a call may fail so: for want of memory, or because a fault was planned. Nothing else is
/// excused, least of all a device that was asked for something that it refuses.
pub(super) fn excuse(error: &Error) -> Result<(), String> {
    match error {
        Error::OutOfMemory(_) => Ok(()),
        Error::Device { error: DeviceError::Other { code, .. }, .. }
        | Error::Source { error: DeviceError::Other { code, .. }, .. }
            if [FAULT_CODE, QUARRY_CODE].contains(code) =>
        {
            Ok(())
        }
        other => Err(other.to_string()),
    }
}

/// The value of a call that may fail as planned; none if it did.
pub(super) fn planned<T>(result: Result<T, Error>) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => excuse(&error).map(|()| None),
    }
}
