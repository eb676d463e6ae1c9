//! Sources of segments that are written in Python.

use std::sync::Arc;

use larder_core::device::DeviceError;
use larder_core::source::{SegmentSource, SourceProperties};
use larder_core::types::Span;
use larder_core::{Addr, DeviceIndex, PoolId, StreamId};
use larder_sim::source_check::check_source as check;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::Error;
use crate::freely;

/// An object of Python's with the methods of `larder.Source`.
struct PythonSource {
    object: Py<PyAny>,
    properties: SourceProperties,
}

/// What Python raised, as a source fails: `MemoryError` says that there is no memory.
fn failure(py: Python<'_>, error: &PyErr) -> DeviceError {
    if error.is_instance_of::<PyMemoryError>(py) {
        return DeviceError::OutOfMemory;
    }
    DeviceError::Other { code: 0, text: error.to_string() }
}

impl PythonSource {
    /// The source, which says of itself what its attributes say.
    fn new(object: &Bound<'_, PyAny>) -> PyResult<PythonSource> {
        let mut properties = SourceProperties::default()
            .may_split(object.getattr("may_split")?.extract()?)
            .collective(object.getattr("collective")?.extract()?)
            .declines(object.getattr("declines")?.extract()?);
        if let Some(registrar) = object.getattr("registrar")?.extract::<Option<String>>()? {
            properties = properties.registrar(registrar);
        }
        freely::begin();
        Ok(PythonSource { object: object.clone().unbind(), properties })
    }

    fn ask<'py, T, A>(
        &self,
        py: Python<'py>,
        method: &str,
        arguments: A,
        read: impl FnOnce(Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T, DeviceError>
    where
        A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    {
        let asked = arguments
            .into_pyobject(py)
            .and_then(|arguments| self.object.bind(py).call_method1(method, arguments))
            .and_then(read);
        asked.map_err(|error| failure(py, &error))
    }
}

impl SegmentSource for PythonSource {
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        Python::attach(|py| {
            let given: Option<u64> =
                self.ask(py, "alloc", (size_bytes, stream.0), |given| given.extract())?;
            given.map(Addr).ok_or(DeviceError::OutOfMemory)
        })
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        let told = (segment.addr.0, segment.size_bytes, stream.0);
        Python::attach(|py| self.ask(py, "free", told, |_| Ok(())))
    }

    fn properties(&self) -> SourceProperties {
        self.properties.clone()
    }

    fn decline(&self, size_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "decline", (size_bytes, stream.0), |_| Ok(())))
    }

    fn init(&self, device: DeviceIndex) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "init", (device.0,), |_| Ok(())))
    }

    fn reset(&self) -> Result<(), DeviceError> {
        Python::attach(|py| {
            let asked = self.object.call_method0(py, "reset");
            asked.map(|_| ()).map_err(|error| failure(py, &error))
        })
    }

    fn set_memory_fraction(&self, fraction: f64) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "set_memory_fraction", (fraction,), |_| Ok(())))
    }

    fn base_allocation(&self, segment: Span) -> Result<Option<Span>, DeviceError> {
        Python::attach(|py| {
            let told = (segment.addr.0, segment.size_bytes);
            let base: Option<(u64, u64)> =
                self.ask(py, "base_allocation", told, |base| base.extract())?;
            Ok(base.map(|(addr, size_bytes)| Span { addr: Addr(addr), size_bytes }))
        })
    }

    fn record_stream(&self, block: Span, stream: StreamId) -> Result<(), DeviceError> {
        let told = (block.addr.0, block.size_bytes, stream.0);
        Python::attach(|py| self.ask(py, "record_stream", told, |_| Ok(())))
    }

    fn begin_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "begin_pool", ((pool.0, pool.1),), |_| Ok(())))
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "end_pool", ((pool.0, pool.1),), |_| Ok(())))
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        Python::attach(|py| self.ask(py, "release_pool", ((pool.0, pool.1),), |_| Ok(())))
    }
}

/// An object of Python's as a source for a pool.
pub(crate) fn of_python(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn SegmentSource>> {
    Ok(Arc::new(PythonSource::new(object)?))
}

/// Runs the checks that any source must pass, and says how many there are.
#[pyfunction]
pub(crate) fn check_source(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<usize> {
    let source = of_python(source)?;
    let checked = py.detach(|| check(&source));
    checked.map_err(|failure| Error::new_err(format!("the source: {failure}")))
}
