//! Private pools, and their layouts.

use std::sync::Arc;
use std::thread;

use larder_core::allocator::history::SnapshotOptions;
use larder_core::heap::Filter;
use larder_core::{Addr, Error, MemPool};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::allocator::Allocator;
use crate::errors::of_core;
use crate::number;
use crate::snapshot::Snapshot;

/// Memory set apart. Inside `with pool:` all requests of the thread are served from it.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Pool {
    core: Arc<larder_core::Allocator>,
    pool: MemPool,
}

impl Pool {
    pub(crate) fn new(core: &Arc<larder_core::Allocator>) -> Result<Pool, Error> {
        Ok(Pool { core: core.clone(), pool: MemPool::new(core)? })
    }
}

#[pymethods]
impl Pool {
    /// Its name, two numbers.
    #[getter]
    fn id(&self) -> (u64, u64) {
        let id = self.pool.id();
        (id.0, id.1)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        let filter = Filter::Thread(thread::current().id());
        let begun = slf.core.begin_pool(slf.pool.id(), filter);
        begun.map_err(|error| of_core(slf.py(), &error))?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        let id = self.pool.id();
        // Beginning added a use, which ending leaves in place.
        let ended = self.core.end_pool(id).and_then(|()| self.core.drop_pool_use(id));
        ended.map_err(|error| of_core(py, &error))
    }

    /// What it holds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let held = self.pool.stats();
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
        let options = SnapshotOptions::default().pool(Some(self.pool.id())).traces(false);
        py.detach(|| Allocator::take_snapshot(&self.core, options))
    }

    /// Lends its free blocks to requests that would run out of memory.
    fn set_use_on_oom(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.pool.set_use_on_oom(on).map_err(|error| of_core(py, &error))
    }

    /// Never splits a block from now on.
    fn set_no_split(&self, py: Python<'_>) -> PyResult<()> {
        self.pool.set_no_split().map_err(|error| of_core(py, &error))
    }

    /// Saves its layout.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<Checkpoint> {
        self.pool.checkpoint().map(Checkpoint).map_err(|error| of_core(py, &error))
    }

    /// Puts a layout back: the addresses that were live before, and those that are live now.
    fn restore(&self, py: Python<'_>, checkpoint: &Checkpoint) -> PyResult<(Vec<u64>, Vec<u64>)> {
        let restored = self.pool.restore(&checkpoint.0).map_err(|error| of_core(py, &error))?;
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
        self.pool.has_live(&expected).map_err(|error| of_core(py, &error))
    }

    fn __repr__(&self) -> String {
        let (id, held) = (self.pool.id(), self.pool.stats());
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
