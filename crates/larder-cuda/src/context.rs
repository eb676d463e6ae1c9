//! The device's context, and what must be so on a thread that calls the driver.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUstreamCaptureMode};
use larder_core::device::DeviceError;

use crate::driver;

/// The primary context of a device, kept alive.
pub(crate) struct Context {
    cuda: Arc<CudaContext>,
    /// How often it was entered, which is how many calls came.
    entries: AtomicU64,
}

impl Context {
    pub(crate) fn new(cuda: Arc<CudaContext>) -> Context {
        Context { cuda, entries: AtomicU64::new(0) }
    }

    /// How often it was entered.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    pub(crate) fn cuda(&self) -> &Arc<CudaContext> {
        &self.cuda
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.cuda.cu_ctx()
    }

    /// Makes the context current on this thread, and lets the thread make calls that a capture
    /// would forbid, until the guard is dropped. Where the context is current already, which is
    /// the usual case, that is no more than a look.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let previous = driver::current_context()?;
        let restore = previous != self.raw();
        if restore {
            // SAFETY: this very value keeps the context alive.
            unsafe { driver::set_current_context(self.raw()) }?;
        }
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mode = driver::exchange_capture_mode(relaxed)?;
        Ok(Entered { previous: restore.then_some(previous), mode, context: PhantomData })
    }
}

/// While it lives, the context is current on the thread that made it.
pub(crate) struct Entered<'a> {
    previous: Option<sys::CUcontext>,
    mode: CUstreamCaptureMode,
    context: PhantomData<&'a Context>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Neither call can fail where its counterpart in `enter` did not; and if one does, the
        // driver repeats it to the next call that can tell.
        let _ = driver::exchange_capture_mode(self.mode);
        if let Some(previous) = self.previous {
            // SAFETY: it was current before, and whoever made it so has not been given the thread
            // back since.
            let _ = unsafe { driver::set_current_context(previous) };
        }
    }
}
