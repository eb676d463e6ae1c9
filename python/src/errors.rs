//! What went wrong, as the exceptions of `larder.errors`.

use std::path::Path;

use larder_core::OutOfMemory;
use larder_core::sequence::Divergence;
use larder_study::recording::RecordingError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::divergence::ranks_of;

import_exception!(larder.errors, AddressError);
import_exception!(larder.errors, DeviceError);
import_exception!(larder.errors, DivergenceError);
import_exception!(larder.errors, Error);
import_exception!(larder.errors, ExchangeError);
import_exception!(larder.errors, FileError);
import_exception!(larder.errors, PoolError);
import_exception!(larder.errors, SettingsError);
import_exception!(larder.errors, UsageError);

/// The exception for an error of the allocator.
pub(crate) fn of_core(py: Python<'_>, error: &larder_core::Error) -> PyErr {
    use larder_core::Error;
    let said = error.to_string();
    match error {
        Error::OutOfMemory(report) => out_of_memory(py, report).unwrap_or_else(|error| error),
        Error::UnknownAddress(_) | Error::NoBaseAllocation(_) | Error::NotOpened(_) => {
            AddressError::new_err(said)
        }
        Error::Pool { .. } => PoolError::new_err(said),
        Error::Config(_) | Error::BadFraction(_) => SettingsError::new_err(said),
        Error::Device { .. } | Error::Source { .. } | Error::NoDevice(_) => {
            DeviceError::new_err(said)
        }
        Error::Diverged(divergence) => of_divergence(py, divergence),
        Error::Exchange(_) => ExchangeError::new_err(said),
        // What is left says that a call was made as it may not be.
        _ => UsageError::new_err(said),
    }
}

/// The exception for ranks that made different calls.
fn of_divergence(py: Python<'_>, divergence: &Divergence) -> PyErr {
    let made = (|| {
        let numbers = PyDict::new(py);
        numbers.set_item("call", divergence.call)?;
        numbers.set_item("ranks", ranks_of(divergence))?;
        numbers.set_item("odd_ranks", divergence.odd_ranks())?;
        let kind = py.get_type::<DivergenceError>();
        let error = kind.call((divergence.to_string(),), Some(&numbers))?;
        Ok(PyErr::from_value(error))
    })();
    made.unwrap_or_else(|error| error)
}

/// The exception for an error of the crate `larder`.
pub(crate) fn of_larder(py: Python<'_>, error: &larder::Error) -> PyErr {
    match error {
        larder::Error::Allocator(error) => of_core(py, error),
        larder::Error::AsyncSimulated => SettingsError::new_err(error.to_string()),
        _ => DeviceError::new_err(error.to_string()),
    }
}

/// The exception for a snapshot whose trace cannot be taken: there is no such device, or the trace
/// is no good.
pub(crate) fn of_recording(path: Option<&Path>, error: &RecordingError) -> PyErr {
    let said = match *error {
        RecordingError::EmptyTrace { device, recorded_device: Some(recorded) } => format!(
            "the trace of device {device} is empty; device {recorded} has one, choose it with \
             device={recorded}"
        ),
        _ => error.to_string(),
    };
    let said = path.map_or_else(|| said.clone(), |path| format!("{}: {said}", path.display()));
    match error {
        RecordingError::NoSuchDevice { .. } => UsageError::new_err(said),
        _ => FileError::new_err(said),
    }
}

/// The exception that carries the numbers.
fn out_of_memory(py: Python<'_>, report: &OutOfMemory) -> PyResult<PyErr> {
    let numbers = PyDict::new(py);
    numbers.set_item("requested_bytes", report.requested_bytes)?;
    numbers.set_item("tried_bytes", report.tried_bytes)?;
    numbers.set_item("free_bytes", report.free_bytes)?;
    numbers.set_item("total_bytes", report.total_bytes)?;
    numbers.set_item("allocated_bytes", report.allocated_bytes)?;
    numbers.set_item("reserved_bytes", report.reserved_bytes)?;
    numbers.set_item("private_free_bytes", report.private_free_bytes)?;
    numbers.set_item("cap_bytes", report.cap_bytes)?;
    numbers.set_item("largest_free_block_bytes", report.largest_free_block_bytes)?;
    let class = py.import("larder.errors")?.getattr("OutOfMemoryError")?;
    Ok(PyErr::from_value(class.call((report.to_string(),), Some(&numbers))?))
}
