//! Python's lock and the allocator's. A source that is written in Python needs Python's lock while
//! the allocator's is held; so where there is one, nobody waits for the allocator's lock with
//! Python's in hand.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// Whether any source of the process was ever written in Python.
static HAS_SOURCES: AtomicBool = AtomicBool::new(false);

/// From now on nobody holds Python's lock while waiting for an allocator's.
pub(crate) fn begin() {
    HAS_SOURCES.store(true, Ordering::Relaxed);
}

/// Makes a call of the allocator's, without Python's lock where that could be needed in it. Else it
/// is not worth letting go of: most calls take less time than that.
pub(crate) fn freely<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    if HAS_SOURCES.load(Ordering::Relaxed) { py.detach(work) } else { work() }
}
