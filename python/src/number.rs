//! Whole numbers. Python's have any size and any sign, so those that do not fit are told by name.

use std::fmt::Display;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors::UsageError;

/// A number of bytes that is asked for.
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("size", value, u64::MAX)
}

/// Where a block is.
pub(crate) fn address(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("address", value, u64::MAX)
}

/// Where several blocks are.
pub(crate) fn addresses(values: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    values.try_iter()?.map(|value| address(&value?)).collect()
}

/// The number of a stream.
pub(crate) fn stream(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole("stream", value, u64::MAX)
}

/// The number of a device.
pub(crate) fn device(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole("device", value, u32::MAX)
}

/// How many times over a program is run.
pub(crate) fn passes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    from_one("passes", value)
}

/// Which of the requests that fail, counted from 1.
pub(crate) fn failure(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    if value.is_none() {
        return Ok(None);
    }
    from_one("failure", value).map(Some)
}

/// In how many stretches a timeline is.
pub(crate) fn stretches(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    from_one("stretches", value)
}

fn from_one(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match whole(name, value, u64::MAX)? {
        0 => Err(UsageError::new_err(format!("{name} is a whole number from 1, not 0"))),
        number => Ok(number),
    }
}

/// How many entries are remembered; without a word, all.
pub(crate) fn max_entries(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if value.is_none() { Ok(None) } else { whole("max_entries", value, usize::MAX).map(Some) }
}

fn whole<'py, N>(name: &str, value: &Bound<'py, PyAny>, largest: N) -> PyResult<N>
where
    N: Display + for<'any> FromPyObject<'any, 'py, Error = PyErr>,
{
    value.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(value.py()) {
            return error;
        }
        let said = value.str().map_or_else(|_| "that".to_owned(), |text| text.to_string());
        UsageError::new_err(format!("{name} is a whole number from 0 to {largest}, not {said}"))
    })
}
