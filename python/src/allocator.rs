//! Allocators, by address.

use std::sync::Arc;

use larder::setup::devices::{self, Devices};
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::record::event::Level;
use larder_core::record::history::Stage;
use larder_core::types::{GIB, KIB, MIB};
use larder_core::{Addr, MemPool, OutOfMemory, StreamId};
use larder_sim::{SimDevice, SimOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::conf;
use crate::errors::{DeviceError, Error, UsageError, of_core, of_larder};
use crate::freely::freely;
use crate::number;
use crate::pool::Pool;
use crate::snapshot::Snapshot;
use crate::source;
use crate::stack;
use crate::streams::Streams;

/// A caching allocator for one GPU, real or simulated.
#[pyclass(module = "larder._native", subclass, frozen)]
pub(crate) struct Allocator {
    larder: larder::Allocator,
    core: Arc<larder_core::Allocator>,
    policy: &'static str,
    device: String,
    streams: Streams,
    /// Serves the statistics, where the settings ask for that.
    exporter: Option<larder::metrics::Exporter>,
}

/// The devices that a text names, or the environment, or a simulated GPU if nobody names one.
fn devices(text: Option<&str>) -> PyResult<Devices> {
    let found = match text {
        Some(text) => devices::parse(text),
        None if std::env::var_os(devices::VARIABLE).is_none() => devices::parse("sim"),
        None => devices::from_environment(),
    };
    found.map_err(|error| UsageError::new_err(error.to_string()))
}

/// An allocator for a real GPU. A stream is a number here, and whoever passes it vouches for it.
fn real(builder: larder::Builder, index: u32) -> Result<larder::Allocator, larder::Error> {
    builder.cuda_device(larder_c::open_trusting(index)?)
}

/// A number of bytes in the largest unit that holds it whole.
fn capacity_text(bytes: u64) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    let unit = units.into_iter().find(|(size, _)| bytes.is_multiple_of(*size));
    unit.map_or_else(|| format!("{bytes}B"), |(size, name)| format!("{}{name}", bytes / size))
}

impl Allocator {
    fn simulated(&self) -> PyResult<&Arc<SimDevice>> {
        self.larder
            .simulated_device()
            .ok_or_else(|| DeviceError::new_err("only a simulated GPU can be told what to do"))
    }

    pub(crate) fn take_snapshot(
        core: &larder_core::Allocator,
        options: SnapshotOptions,
    ) -> Snapshot {
        let taken = core.take_snapshot(options);
        Snapshot::of_allocator(&taken)
    }
}

#[pymethods]
impl Allocator {
    #[new]
    #[pyo3(signature = (device = None, memory = None, policy = None, settings = None))]
    fn new(
        py: Python<'_>,
        device: Option<&str>,
        memory: Option<u64>,
        policy: Option<&str>,
        settings: Option<&str>,
    ) -> PyResult<Allocator> {
        let read = conf::read(settings, policy)?;
        let (policy, snapshot, metrics) = (read.policy.name, read.oom_snapshot, read.metrics);
        let builder = larder::Allocator::builder().config(read.config).policy(read.policy);
        let (made, device) = match (devices(device)?, memory) {
            (Devices::Simulated { memory_bytes, count: 1 }, memory) => {
                let memory_bytes = memory.unwrap_or(memory_bytes);
                let options = SimOptions::default().memory_bytes(memory_bytes);
                let made = builder.simulated_with(options);
                (made, format!("sim:{}", capacity_text(memory_bytes)))
            }
            (Devices::Cuda(_) | Devices::AllCuda, Some(_)) => {
                return Err(UsageError::new_err("a real GPU has the memory that it has"));
            }
            (Devices::Cuda(indices), None) if indices.len() == 1 => {
                let index = indices[0];
                (py.detach(|| real(builder, index)), format!("cuda:{index}"))
            }
            (Devices::AllCuda, None) => (py.detach(|| real(builder, 0)), "cuda:0".to_owned()),
            _ => return Err(UsageError::new_err("an allocator is for one device")),
        };
        let larder = made.map_err(|error| of_larder(py, &error))?;
        let core = larder.core().cloned();
        let core = core.ok_or_else(|| Error::new_err("there is no allocator"))?;
        if let Some(path) = snapshot {
            larder.snapshot_on_failure(&path).map_err(|error| of_larder(py, &error))?;
        }
        let exporter = metrics.map(|address| larder.serve_metrics(address)).transpose();
        let exporter = exporter.map_err(|error| of_larder(py, &error))?;
        Ok(Allocator { larder, core, policy, device, streams: Streams::default(), exporter })
    }

    /// The address at which the statistics are served, if they are.
    #[getter]
    fn metrics_address(&self) -> Option<String> {
        Some(self.exporter.as_ref()?.address()?.to_string())
    }

    /// The device, as its text.
    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// Who decides.
    #[getter]
    fn policy(&self) -> &str {
        self.policy
    }

    /// The settings that were read last, as a text.
    #[getter]
    fn settings(&self, py: Python<'_>) -> String {
        freely(py, || self.core.config()).text
    }

    // Memory.

    /// Memory of at least `size` bytes for use on the stream: its address. No bytes are at 0.
    #[pyo3(signature = (size, stream = 0))]
    fn malloc(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::size)] size: u64,
        #[pyo3(from_py_with = number::stream)] stream: u64,
    ) -> PyResult<u64> {
        self.streams.note(stream);
        match freely(py, || self.core.malloc(size, StreamId(stream))) {
            Ok(addr) => Ok(addr.0),
            Err(error) => Err(of_core(py, &error)),
        }
    }

    /// Gives memory back to the cache.
    fn free(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::address)] address: u64,
    ) -> PyResult<()> {
        freely(py, || self.core.free(Addr(address))).map_err(|error| of_core(py, &error))
    }

    /// The memory is used on this stream too: once freed it is handed out again only when the work
    /// issued there by then is done.
    fn record_stream(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::address)] address: u64,
        #[pyo3(from_py_with = number::stream)] stream: u64,
    ) -> PyResult<()> {
        self.streams.note(stream);
        let result = freely(py, || self.core.record_stream(Addr(address), StreamId(stream)));
        result.map_err(|error| of_core(py, &error))
    }

    /// How many bytes a live block has: what was asked for, rounded up.
    fn usable_bytes(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::address)] address: u64,
    ) -> PyResult<u64> {
        freely(py, || self.core.usable_bytes(Addr(address))).map_err(|error| of_core(py, &error))
    }

    /// The whole allocation of the device in which a live block lies: its address and its size.
    fn base_allocation(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::address)] address: u64,
    ) -> PyResult<(u64, u64)> {
        let span = freely(py, || self.core.base_allocation(Addr(address)));
        let span = span.map_err(|error| of_core(py, &error))?;
        Ok((span.addr.0, span.size_bytes))
    }

    /// Waits for all events and gives everything cached back to the device.
    fn empty_cache(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.empty_cache()).map_err(|error| of_core(py, &error))
    }

    // Statistics.

    /// All statistics, with every key of `torch.cuda.memory_stats()`.
    fn memory_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (key, value) in freely(py, || self.core.stats()).entries() {
            stats.set_item(key, value)?;
        }
        let max_split_bytes = freely(py, || self.core.config()).max_split_bytes;
        stats.set_item("max_split_size", max_split_bytes.map_or(-1, |max| max as i64))?;
        Ok(stats)
    }

    /// Peaks become the current values.
    fn reset_peak_memory_stats(&self, py: Python<'_>) {
        freely(py, || self.core.reset_peak_stats());
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    fn reset_accumulated_memory_stats(&self, py: Python<'_>) {
        freely(py, || self.core.reset_accumulated_stats());
    }

    /// What nobody holds of the device, and all that it has.
    fn mem_get_info(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let info = freely(py, || self.core.memory_info()).map_err(|error| of_core(py, &error))?;
        Ok((info.free_bytes, info.total_bytes))
    }

    /// Caps what may be held at this part of the device's memory; 1 lifts the cap.
    fn set_memory_fraction(&self, py: Python<'_>, fraction: f64) -> PyResult<()> {
        freely(py, || self.core.set_memory_fraction(fraction)).map_err(|error| of_core(py, &error))
    }

    /// The part of the device's memory that may be held.
    fn memory_fraction(&self, py: Python<'_>) -> f64 {
        freely(py, || self.core.memory_fraction())
    }

    /// Changes settings while running. A text that cannot be read changes nothing.
    fn configure(&self, py: Python<'_>, settings: &str) -> PyResult<()> {
        freely(py, || self.core.configure(settings)).map_err(|error| of_core(py, &error))
    }

    /// Checks every invariant of the allocator; for tests.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        freely(py, || self.core.check()).map_err(|unsound| Error::new_err(unsound.to_string()))
    }

    // Pools.

    /// A new private pool.
    #[pyo3(name = "_new_pool")]
    fn new_pool(&self, py: Python<'_>) -> PyResult<Pool> {
        freely(py, || Pool::new(&self.core)).map_err(|error| of_core(py, &error))
    }

    /// A new private pool whose segments come from a source of its own.
    #[pyo3(name = "_new_pool_with_source")]
    fn new_pool_with_source(&self, py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Pool> {
        let source = source::of_python(source)?;
        let made = py.detach(|| MemPool::with_source(&self.core, source));
        made.map(|pool| Pool::of(&self.core, pool)).map_err(|error| of_core(py, &error))
    }

    /// A new symmetric pool, whose segments come from a source and have at least so many bytes.
    #[pyo3(name = "_new_symmetric_pool")]
    fn new_symmetric_pool(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = number::size)] growth: u64,
    ) -> PyResult<Pool> {
        let source = source::of_python(source)?;
        let options = SymmetricOptions::default().growth_bytes(growth);
        let made = py.detach(|| MemPool::symmetric(&self.core, source, options));
        made.map(|pool| Pool::of(&self.core, pool)).map_err(|error| of_core(py, &error))
    }

    // What happened.

    /// Remembers what happens from now on. `stacks` says for what Python's stacks are gathered:
    /// never, state, alloc or all.
    #[pyo3(signature = (stacks = "all", max_entries = None, clear = false))]
    fn record_history(
        &self,
        py: Python<'_>,
        stacks: &str,
        #[pyo3(from_py_with = number::max_entries)] max_entries: Option<usize>,
        clear: bool,
    ) -> PyResult<()> {
        let level: Level =
            stacks.parse().map_err(|error| UsageError::new_err(format!("stacks: {error}")))?;
        let options = HistoryOptions::default()
            .level(level)
            .max_entries(max_entries.unwrap_or(usize::MAX))
            .clear(clear)
            .context_hook(stack::hook());
        self.core.record_history(options).map_err(|error| of_core(py, &error))
    }

    /// Remembers nothing from now on, and forgets what was remembered.
    fn stop_history(&self) {
        self.core.stop_history();
    }

    /// A part of the program begins or ends, by name.
    #[pyo3(name = "_annotate")]
    fn annotate(&self, name: &str, begins: bool) {
        self.core.annotate(name, if begins { Stage::Start } else { Stage::End });
    }

    /// All segments and blocks, and what is remembered.
    #[pyo3(name = "_take_snapshot")]
    fn take_snapshot_of_all(&self, py: Python<'_>, traces: bool) -> Snapshot {
        let options = SnapshotOptions::default().pool(None).traces(traces);
        py.detach(|| Allocator::take_snapshot(&self.core, options))
    }

    /// Calls `observer(error)` for every request that cannot be met, before `malloc` raises it.
    #[pyo3(name = "_on_out_of_memory")]
    fn on_out_of_memory(&self, observer: Py<PyAny>) {
        self.core.on_out_of_memory(move |report: &OutOfMemory| {
            Python::attach(|py| {
                let error = larder_core::Error::OutOfMemory(Box::new(report.clone()));
                let error = of_core(py, &error).into_value(py);
                if let Err(raised) = observer.call1(py, (error,)) {
                    raised.write_unraisable(py, Some(observer.bind(py)));
                }
            });
        });
    }

    // The simulated GPU.

    /// A new stream, by its number, which nobody has used before.
    fn new_stream(&self, py: Python<'_>) -> PyResult<u64> {
        if self.larder.simulated_device().is_some() {
            let full = || DeviceError::new_err("all streams of the simulated GPU are in use");
            return self.streams.next().ok_or_else(full);
        }
        let stream = self.larder.new_stream().map_err(|error| of_larder(py, &error))?;
        Ok(self.streams.keep(stream))
    }

    /// The stream is about to be destroyed: waits for its work, and gives back what is cached for
    /// it.
    fn forget_stream(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number::stream)] stream: u64,
    ) -> PyResult<()> {
        let forgotten = py.detach(|| self.core.forget_stream(StreamId(stream)));
        forgotten.map_err(|error| of_core(py, &error))?;
        self.streams.drop(stream);
        Ok(())
    }

    /// Work begins on a stream of the simulated GPU, and goes on until somebody waits for it.
    fn issue(&self, #[pyo3(from_py_with = number::stream)] stream: u64) -> PyResult<()> {
        self.streams.note(stream);
        self.simulated()?.issue(StreamId(stream));
        Ok(())
    }

    /// All work on a stream of the simulated GPU is done.
    fn synchronize(&self, #[pyo3(from_py_with = number::stream)] stream: u64) -> PyResult<()> {
        self.streams.note(stream);
        self.simulated()?.sync(StreamId(stream));
        Ok(())
    }

    /// How often each call reached the simulated GPU.
    fn device_calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        crate::workload::calls(py, self.simulated()?.calls())
    }
}
