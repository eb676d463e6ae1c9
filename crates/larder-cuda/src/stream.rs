//! A stream of our own making.

use std::fmt;
use std::sync::Arc;

use larder_core::device::DeviceError;
use larder_core::types::StreamId;

use crate::context::Primary;
use crate::driver;
use crate::sys::CUstream;

/// A stream of a device's primary context, which goes when it is dropped. The default stream stays.
pub struct CudaStream {
    handle: usize,
    context: Arc<Primary>,
}

impl CudaStream {
    /// The default stream of a context.
    pub(crate) fn default_of(context: Arc<Primary>) -> CudaStream {
        CudaStream { handle: 0, context }
    }

    /// A new stream. The context must be current on this thread.
    pub(crate) fn new(context: Arc<Primary>) -> Result<CudaStream, DeviceError> {
        Ok(CudaStream { handle: driver::create_stream()? as usize, context })
    }

    /// The number by which calls name it: the value of its handle.
    pub fn id(&self) -> StreamId {
        StreamId(self.handle as u64)
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle as CUstream
    }

    /// The handle of the context that it is of, as a number.
    pub fn raw_context(&self) -> u64 {
        self.context.handle() as u64
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.handle == 0 {
            return;
        }
        // Nobody can be told if the driver refuses; it does once the process is on its way out.
        let _ = self.context.current(|| {
            // SAFETY: it was made with this value, and nobody else has it.
            unsafe { driver::destroy_stream(self.handle()) }
        });
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({:#x})", self.handle)
    }
}
