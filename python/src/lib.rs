//! The native module of the Python package `larder`.
//!
//! It holds what needs the Rust crates: allocators, snapshots, replays, and the reading of
//! settings. The package around it, in `lib/larder`, gives it the shape that Python programs
//! expect. The library exports the C interface too, which the C++ part for PyTorch is linked to.
#![forbid(unsafe_code)]
// What Python passes is made for the call.
#![allow(clippy::needless_pass_by_value)]

mod allocator;
mod answers;
mod conf;
mod divergence;
mod errors;
mod freely;
mod many;
mod number;
mod pool;
mod progress;
mod snapshot;
mod source;
mod stack;
mod streams;
mod workload;

use pyo3::prelude::*;

/// What the Rust crates can do, for the package around it.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<allocator::Allocator>()?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::Checkpoint>()?;
    module.add_class::<snapshot::Snapshot>()?;
    module.add_class::<workload::Workload>()?;
    module.add_class::<workload::Outcome>()?;
    module.add_function(wrap_pyfunction!(source::check_source, module)?)?;
    module.add_function(wrap_pyfunction!(answers::explain, module)?)?;
    module.add_function(wrap_pyfunction!(answers::outlook, module)?)?;
    module.add_function(wrap_pyfunction!(answers::tune_settings, module)?)?;
    module.add_function(wrap_pyfunction!(answers::memory_over_time, module)?)?;
    module.add_function(wrap_pyfunction!(many::explain_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(many::diff, module)?)?;
    module.add_function(wrap_pyfunction!(progress::on_progress, module)?)?;
    module.add_function(wrap_pyfunction!(answers::perform, module)?)?;
    module.add_function(wrap_pyfunction!(conf::check_own_settings, module)?)?;
    module.add_function(wrap_pyfunction!(conf::check_torch_settings, module)?)?;
    module.add_function(wrap_pyfunction!(conf::device_kind, module)?)?;
    module.add_function(wrap_pyfunction!(conf::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(conf::format_size, module)?)?;
    module.add("POLICIES", conf::policies())?;
    module.add("OWN_KEYS", larder::setup::settings::OWN_KEYS)?;
    module.add("TORCH_VARIABLES", larder::setup::settings::TORCH_VARIABLES)
}
