//! The device's context, and what must be so on a thread that calls the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use larder_core::device::DeviceError;

use crate::driver;
use crate::sys::{self, CUstreamCaptureMode};

/// A device's primary context, which other libraries of the process share. It stays while this
/// lives.
pub(crate) struct Primary {
    device: sys::CUdevice,
    handle: usize,
}

impl Primary {
    fn retain(ordinal: i32) -> Result<Primary, DeviceError> {
        let device = driver::device(ordinal)?;
        Ok(Primary { device, handle: driver::retain_primary_context(device)? as usize })
    }

    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(crate) fn handle(&self) -> sys::CUcontext {
        self.handle as sys::CUcontext
    }

    /// Makes a call with the context current on this thread, and then what was current before.
    pub(crate) fn current<T>(
        &self,
        call: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let previous = driver::current_context()?;
        // SAFETY: this very value keeps the context alive.
        unsafe { driver::set_current_context(self.handle()) }?;
        let result = call();
        // SAFETY: it was current when we were called.
        let restored = unsafe { driver::set_current_context(previous) };
        result.and_then(|value| restored.map(|()| value))
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: it was retained when this value was made, and nobody uses it any more.
        // Nobody can be told if the driver refuses; it does once the process is on its way out.
        let _ = unsafe { driver::release_primary_context(self.device) };
    }
}

/// The primary context of a device, kept alive once it is made. Making it takes memory of the
/// device, some hundred MiB, which a process that only might use the device should not take.
pub(crate) struct Context {
    ordinal: i32,
    primary: OnceLock<Arc<Primary>>,
    /// How often it was entered, which is how many calls came.
    entries: AtomicU64,
}

impl Context {
    /// The context of the device of this number, which is made when it is first entered.
    pub(crate) fn of(ordinal: i32) -> Context {
        Context { ordinal, primary: OnceLock::new(), entries: AtomicU64::new(0) }
    }

    /// A second way into the same context, with a count of its own.
    pub(crate) fn beside(&self) -> Result<Context, DeviceError> {
        let context = Context::of(self.ordinal);
        let _ = context.primary.set(Arc::clone(self.primary()?));
        Ok(context)
    }

    /// How often it was entered.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// The context, made if need be. What is current on the thread stays so.
    pub(crate) fn primary(&self) -> Result<&Arc<Primary>, DeviceError> {
        if let Some(primary) = self.primary.get() {
            return Ok(primary);
        }
        let retained = Arc::new(Primary::retain(self.ordinal)?);
        Ok(self.primary.get_or_init(|| retained))
    }

    /// Makes the context current on this thread, and lets the thread make calls that a capture
    /// would forbid, until the guard is dropped. Where the context is current already, which is
    /// the usual case, that is no more than a look.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let own = self.primary()?.handle();
        let previous = driver::current_context()?;
        let restore = previous != own;
        if restore {
            // SAFETY: this very value keeps the context alive.
            unsafe { driver::set_current_context(own) }?;
        }
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mode = driver::exchange_capture_mode(relaxed)?;
        Ok(Entered { previous: restore.then_some(previous), mode, context: self })
    }
}

/// While it lives, the context is current on the thread that made it.
pub(crate) struct Entered<'a> {
    previous: Option<sys::CUcontext>,
    mode: CUstreamCaptureMode,
    context: &'a Context,
}

impl<'a> Entered<'a> {
    /// The context that is current.
    pub(crate) fn context(&self) -> &'a Context {
        self.context
    }
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
