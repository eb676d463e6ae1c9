//! Memory snapshots: PyTorch's, and those of our own allocators.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_snapshot::Epoch;
use larder_snapshot::pickle::Limits;
use larder_study::convert::{self, Format, Unsaved};
use larder_study::file::Contents;
use larder_study::recording::{Recording, RecordingError};
use larder_study::watch::Unwatched;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{FileError, UsageError, of_recording};
use crate::number;
use crate::workload::Workload;

/// A snapshot: the segments at the end, and for each device what happened before.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Snapshot(Arc<larder_snapshot::Snapshot>);

impl Snapshot {
    pub(crate) fn of_allocator(
        taken: &larder_core::allocator::history::DeviceSnapshot,
    ) -> Snapshot {
        let devices = std::slice::from_ref(taken);
        Snapshot(Arc::new(larder_snapshot::Snapshot::of_allocators(devices, Epoch::default())))
    }
}

#[pymethods]
impl Snapshot {
    /// Reads a file: a pickle, JSON or a tape, packed or not.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Snapshot> {
        let contents = py.detach(|| Contents::load(&path, &Unwatched));
        match contents.map_err(|error| FileError::new_err(error.to_string()))? {
            Contents::Snapshot(snapshot) => Ok(Snapshot(Arc::from(snapshot))),
            Contents::Script(_) => Err(FileError::new_err(format!(
                "{}: this is a script, which larder.replay runs, not a snapshot",
                path.display()
            ))),
        }
    }

    /// Reads a pickle.
    #[staticmethod]
    fn unpickle(py: Python<'_>, pickled: &[u8]) -> PyResult<Snapshot> {
        let read =
            py.detach(|| larder_snapshot::Snapshot::read(pickled, Limits::default(), |_| ()));
        let snapshot = read.map_err(|error| FileError::new_err(error.to_string()))?;
        Ok(Snapshot(Arc::new(snapshot)))
    }

    /// PyTorch's dictionary, as a pickle.
    fn pickle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let pickled = py.detach(|| {
            let mut bytes = Vec::new();
            self.0.write_pickle(&mut bytes).map(|()| bytes)
        })?;
        Ok(PyBytes::new(py, &pickled))
    }

    /// Writes a file that is there whole or not at all.
    #[pyo3(signature = (path, format = None, device = 0))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        #[pyo3(from_py_with = number::device)] device: u32,
    ) -> PyResult<()> {
        let format = match format {
            Some(name) => name.parse::<Format>().map_err(|_| unknown_format(name))?,
            None => Format::of_path(&path).ok_or_else(|| no_format(&path))?,
        };
        let saved = py.detach(|| convert::save(&self.0, &path, format, device));
        saved.map_err(|problem| match problem {
            Unsaved::Snapshot(sentence) => UsageError::new_err(sentence),
            problem => FileError::new_err(problem.to_string()),
        })
    }

    /// The operations that the trace of a device records.
    fn workload(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::device)] device: u32,
    ) -> PyResult<Workload> {
        let recording = py.detach(|| Recording::from_snapshot(&self.0, device));
        let recording = recording.map_err(|error| of_recording(None, &error))?;
        Ok(Workload { work: recording.into(), snapshot: Some((Arc::clone(&self.0), device)) })
    }

    /// How many devices there are traces for.
    #[getter]
    fn device_count(&self) -> usize {
        self.0.device_count()
    }

    /// How many segments there are, how many bytes they have, and how many of them are live.
    fn sizes(&self) -> (usize, u64, u64) {
        use larder_snapshot::BlockState;
        let blocks = self.0.segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state == BlockState::Allocated);
        let reserved_bytes = self.0.segments.iter().map(|segment| segment.size_bytes).sum();
        (self.0.segments.len(), reserved_bytes, live.map(|block| block.size_bytes).sum())
    }

    /// How many entries the trace of a device has; an error if there is no such device.
    fn entry_count(&self, #[pyo3(from_py_with = number::device)] device: u32) -> PyResult<usize> {
        let device_count = self.0.device_count();
        let missing = match device_count {
            0 => RecordingError::NoTraces,
            _ => RecordingError::NoSuchDevice { device, device_count },
        };
        self.0.trace(device).map(<[_]>::len).ok_or_else(|| of_recording(None, &missing))
    }

    /// The settings of the recorded allocator, if the snapshot has them.
    #[getter]
    fn settings(&self) -> Option<&str> {
        self.0.allocator_conf.as_deref()
    }
}

/// The formats that a snapshot can be written in.
const FORMATS: &str = "pickle, json, ops and perfetto";

fn unknown_format(name: &str) -> PyErr {
    UsageError::new_err(format!("there is no format '{name}' for a snapshot; there are {FORMATS}"))
}

fn no_format(path: &Path) -> PyErr {
    UsageError::new_err(format!(
        "{}: the name does not say the format, so format= has to; there are {FORMATS}",
        path.display()
    ))
}
