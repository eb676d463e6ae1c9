//! Private pools, and their layouts.

use std::sync::Arc;
use std::thread;

use larder_core::allocator::history::SnapshotOptions;
use larder_core::heap::Filter;
use larder_core::{Addr, Error, MemPool};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::allocator::Allocator;
use crate::errors::of_core;
use crate::freely::freely;
use crate::number;
use crate::snapshot::Snapshot;

/// Memory set apart. Inside `with pool:` all requests of the thread are served from it.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Pool {
    core: Arc<larder_core::Allocator>,
    /// There until the pool is dropped.
    pool: Option<MemPool>,
}

impl Pool {
    pub(crate) fn new(core: &Arc<larder_core::Allocator>) -> Result<Pool, Error> {
        Ok(Pool::of(core, MemPool::new(core)?))
    }

    pub(crate) fn of(core: &Arc<larder_core::Allocator>, pool: MemPool) -> Pool {
        Pool { core: core.clone(), pool: Some(pool) }
    }

    pub(crate) fn core(&self) -> &larder_core::Allocator {
        &self.core
    }

    pub(crate) fn get(&self) -> &MemPool {
        self.pool.as_ref().expect("a pool that is not dropped")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let pool = self.pool.take();
        Python::attach(|py| freely(py, || drop(pool)));
    }
}

#[pymethods]
impl Pool {
    /// Its name, two numbers.
    #[getter]
    fn id(&self) -> (u64, u64) {
        let id = self.get().id();
        (id.0, id.1)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        let filter = Filter::Thread(thread::current().id());
        let (core, id) = (slf.core.clone(), slf.get().id());
        let begun = freely(slf.py(), || core.begin_pool(id, filter));
        begun.map_err(|error| of_core(slf.py(), &error))?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        let id = self.get().id();
        // Beginning added a use, which ending leaves in place.
        let end = || self.core.end_pool(id).and_then(|()| self.core.drop_pool_use(id));
        let ended = freely(py, end);
        ended.map_err(|error| of_core(py, &error))
    }

    /// What it holds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let held = freely(py, || self.get().stats());
        let stats = PyDict::new(py);
        stats.set_item("uses", held.uses)?;
        stats.set_item("segments", held.segments)?;
        stats.set_item("reserved_bytes", held.reserved_bytes.current)?;
        stats.set_item("peak_reserved_bytes", held.reserved_bytes.peak)?;
        stats.set_item("allocations", held.allocations)?;
        stats.set_item("allocated_bytes", held.allocated_bytes)?;
        stats.set_item("active_bytes", held.active_bytes)?;
        stats.set_item("free_bytes", held.free_bytes)?;
        Ok(stats)
    }

    fn take_snapshot(&self, py: Python<'_>) -> Snapshot {
        let options = SnapshotOptions::default().pool(Some(self.get().id())).traces(false);
        py.detach(|| Allocator::take_snapshot(&self.core, options))
    }

    /// Lends its free blocks to requests that would run out of memory.
    fn set_use_on_oom(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        freely(py, || self.get().set_use_on_oom(on)).map_err(|error| of_core(py, &error))
    }

    /// Never splits a block from now on.
    fn set_no_split(&self, py: Python<'_>) -> PyResult<()> {
        freely(py, || self.get().set_no_split()).map_err(|error| of_core(py, &error))
    }

    /// Saves its layout.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<Checkpoint> {
        freely(py, || self.get().checkpoint()).map(Checkpoint).map_err(|error| of_core(py, &error))
    }

    /// Puts a layout back: the addresses that were live before, and those that are live now.
    fn restore(&self, py: Python<'_>, checkpoint: &Checkpoint) -> PyResult<(Vec<u64>, Vec<u64>)> {
        let restored = freely(py, || self.get().restore(&checkpoint.0))
            .map_err(|error| of_core(py, &error))?;
        let numbers = |addrs: Vec<Addr>| addrs.into_iter().map(|addr| addr.0).collect();
        Ok((numbers(restored.freed), numbers(restored.created)))
    }

    /// Whether exactly these of its blocks are live.
    fn has_live(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::addresses)] addresses: Vec<u64>,
    ) -> PyResult<bool> {
        let expected: Vec<Addr> = addresses.into_iter().map(Addr).collect();
        freely(py, || self.get().has_live(&expected)).map_err(|error| of_core(py, &error))
    }

    /// Where a live block lies: its segment, its offset there, and the number of the call that made
    /// it.
    fn position_of(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::address)] address: u64,
    ) -> PyResult<(u64, u64, u64)> {
        let found = freely(py, || self.core().position_of(Addr(address)));
        let found = found.map_err(|error| of_core(py, &error))?;
        Ok((found.segment, found.offset_bytes, found.generation))
    }

    /// How many calls it has seen, and their hash.
    fn sequence(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let state = freely(py, || self.get().sequence()).map_err(|error| of_core(py, &error))?;
        Ok((state.calls, state.hash))
    }

    /// Its segments: the number, the address and the size of each, in the order in which they came.
    fn segments(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64, u64)>> {
        let segments = freely(py, || self.get().symmetric_segments());
        let segments = segments.map_err(|error| of_core(py, &error))?.into_iter();
        Ok(segments.map(|(number, span)| (number, span.addr.0, span.size_bytes)).collect())
    }

    /// Gives back the segments in which there is no block, and says how many.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.get().trim()).map_err(|error| of_core(py, &error))
    }

    /// Compares the calls of all ranks, and says how many there are.
    fn seal(&self, py: Python<'_>, exchange: Py<PyAny>) -> PyResult<u64> {
        // What the exchange raised goes on from here.
        let mut raised = None;
        let sealed = py.detach(|| {
            self.get().seal(|said| {
                Python::attach(|py| {
                    let heard = exchange.call1(py, (PyBytes::new(py, said),));
                    let heard = heard.and_then(|heard| heard.extract::<Vec<Vec<u8>>>(py));
                    heard.map_err(|error| {
                        let words = error.to_string();
                        raised = Some(error);
                        words.into()
                    })
                })
            })
        });
        match (sealed, raised) {
            (_, Some(raised)) => Err(raised),
            (Ok(calls), None) => Ok(calls),
            (Err(error), None) => Err(of_core(py, &error)),
        }
    }

    /// What its source was asked for so far; none if it has no source of its own.
    fn source_counts<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(counts) = freely(py, || self.get().source_counts()) else { return Ok(None) };
        let told = PyDict::new(py);
        told.set_item("made", counts.made)?;
        told.set_item("given_back", counts.given_back)?;
        told.set_item("refused", counts.refused)?;
        told.set_item("failed", counts.failed)?;
        told.set_item("held_bytes", counts.held_bytes)?;
        Ok(Some(told))
    }

    fn __repr__(&self) -> String {
        let (id, held) = (self.get().id(), self.get().stats());
        let reserved = larder_core::Bytes(held.reserved_bytes.current.max(0) as u64);
        format!("<larder.Pool {},{}: {reserved} reserved>", id.0, id.1)
    }
}

/// The layout of a private pool as it was.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Checkpoint(larder_core::heap::checkpoint::Checkpoint);

#[pymethods]
impl Checkpoint {
    /// The address and the size of each block that was live.
    #[getter]
    fn live(&self) -> Vec<(u64, u64)> {
        self.0.live().into_iter().map(|span| (span.addr.0, span.size_bytes)).collect()
    }

    fn __repr__(&self) -> String {
        let (pool, live) = (self.0.pool(), self.0.live().len());
        format!("<larder.Checkpoint of pool {},{}: {live} live>", pool.0, pool.1)
    }
}
