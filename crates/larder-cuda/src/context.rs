//! The device's context, and what must be so on a thread that calls the driver.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUstreamCaptureMode};
use larder_core::device::DeviceError;

use crate::driver;

/// The primary context of a device, kept alive once it is made. Making it takes memory of the device,
/// some hundred MiB, which a process that only might use the device should not take.
pub(crate) struct Context {
    ordinal: i32,
    cuda: OnceLock<Arc<CudaContext>>,
    /// How often it was entered, which is how many calls came.
    entries: AtomicU64,
}

impl Context {
    /// The context of the device of this number, which is made when it is first entered.
    pub(crate) fn of(ordinal: i32) -> Context {
        Context { ordinal, cuda: OnceLock::new(), entries: AtomicU64::new(0) }
    }

    /// A context that is there already.
    pub(crate) fn new(cuda: Arc<CudaContext>) -> Context {
        let context = Context::of(cuda.ordinal() as i32);
        let _ = context.cuda.set(cuda);
        context
    }

    /// How often it was entered.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// The context, made if need be. What is current on the thread stays so.
    pub(crate) fn cuda(&self) -> Result<&Arc<CudaContext>, DeviceError> {
        if let Some(cuda) = self.cuda.get() {
            return Ok(cuda);
        }
        let before = driver::current_context();
        let made = CudaContext::new(self.ordinal as usize);
        // Making the context made it current; that is the program's affair, not ours.
        if let Ok(before) = before {
            // SAFETY: it was current when we were called.
            let _ = unsafe { driver::set_current_context(before) };
        }
        let made = made.map_err(|error| driver::refusal(error.0))?;
        Ok(self.cuda.get_or_init(|| made))
    }

    /// Makes the context current on this thread, and lets the thread make calls that a capture
    /// would forbid, until the guard is dropped. Where the context is current already, which is
    /// the usual case, that is no more than a look.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let own = self.cuda()?.cu_ctx();
        let previous = driver::current_context()?;
        let restore = previous != own;
        if restore {
            // SAFETY: this very value keeps the context alive.
            unsafe { driver::set_current_context(own) }?;
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
