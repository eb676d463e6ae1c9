//! Progress: what work that takes seconds tells a function of Python's, as a bar in a notebook.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use larder_study::watch::{Extent, Watch};
use pyo3::prelude::*;

/// Who is told, if anybody.
static LISTENER: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
/// When it was told last, in milliseconds since 1970.
static TOLD_MS: AtomicU64 = AtomicU64::new(0);
/// Nobody looks more often than this.
const EVERY_MS: u64 = 100;

/// Has a function be told of work: what it is, how much of it is done, and how much there is, 0
/// where nobody knows. When it is done, the last two are None.
#[pyfunction]
pub(crate) fn on_progress(listener: Option<Py<PyAny>>) {
    if let Ok(mut known) = LISTENER.lock() {
        *known = listener;
    }
}

/// Passes on how far work has come.
#[derive(Default)]
pub(crate) struct Shown(Mutex<(&'static str, u64)>);

impl Shown {
    fn tell(done: Option<(&'static str, u64, u64)>) {
        Python::attach(|py| {
            let listener =
                LISTENER.lock().ok().and_then(|known| Some(known.as_ref()?.clone_ref(py)));
            let Some(listener) = listener else { return };
            let called = match done {
                Some((what, done, total)) => listener.call1(py, (what, done, total)),
                None => listener.call1(py, ("", py.None(), py.None())),
            };
            // A bar that cannot be drawn is no reason to lose an answer.
            if let Err(error) = called {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Watch for Shown {
    fn begin(&self, what: &'static str, extent: Extent) {
        let (Extent::Bytes(total) | Extent::Steps(total)) = extent;
        if let Ok(mut work) = self.0.lock() {
            *work = (what, total);
        }
        Shown::tell(Some((what, 0, total)));
    }

    fn reach(&self, done: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = now.as_millis() as u64;
        if now_ms.saturating_sub(TOLD_MS.load(Ordering::Relaxed)) < EVERY_MS {
            return;
        }
        TOLD_MS.store(now_ms, Ordering::Relaxed);
        let (what, total) = self.0.lock().map(|work| *work).unwrap_or_default();
        Shown::tell(Some((what, done, total)));
    }

    fn end(&self) {
        Shown::tell(None);
    }
}
