//! A real GPU, and what makes its streams.

use std::sync::Arc;
#[cfg(feature = "cudarc")]
use std::sync::OnceLock;

#[cfg(feature = "cudarc")]
use cudarc::driver::CudaContext;
use larder_core::StreamId;
use larder_core::types::Span;
use larder_cuda::CudaDevice;

use crate::error::Error;
#[cfg(feature = "cudarc")]
use crate::real::stream::id_of;
use crate::real::stream::{RealStream, context_of};

/// A GPU, and what makes its streams.
pub(crate) struct RealGpu {
    device: Arc<CudaDevice>,
    /// `cudarc`'s way into the same primary context, from when the first stream is wanted.
    #[cfg(feature = "cudarc")]
    context: OnceLock<Arc<CudaContext>>,
}

impl RealGpu {
    pub(crate) fn new(device: Arc<CudaDevice>) -> RealGpu {
        RealGpu {
            device,
            #[cfg(feature = "cudarc")]
            context: OnceLock::new(),
        }
    }

    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Fails unless the stream is one of the GPU's primary context.
    pub(crate) fn check_stream(&self, stream: &RealStream) -> Result<(), Error> {
        let own = self.device.raw_context().map_err(Error::refused("make a context"))?;
        if context_of(stream) == own { Ok(()) } else { Err(Error::ForeignStream) }
    }

    /// Sets bytes to zero, in the order of a stream that was admitted.
    ///
    /// # Safety
    /// The bytes are memory of this GPU, and stay so until the work that the stream has by then is
    /// done.
    pub(crate) unsafe fn zero(&self, span: Span, stream: StreamId) -> Result<(), Error> {
        // SAFETY: the caller vouches for the bytes.
        let zeroed = unsafe { self.device.zero(span, stream) };
        Ok(zeroed.map_err(Error::refused("set memory to zero"))?)
    }
}

#[cfg(feature = "cudarc")]
impl RealGpu {
    /// `cudarc`'s context, made if need be. What is current on the thread stays so.
    fn context(&self) -> Result<&Arc<CudaContext>, Error> {
        use larder_core::device::Device;
        use larder_cuda::driver;

        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let before = driver::current_context();
        let made = CudaContext::new(self.device.properties().index.0 as usize);
        if let Ok(before) = before {
            // SAFETY: it was current when we were called.
            let _ = unsafe { driver::set_current_context(before) };
        }
        let made = made?;
        Ok(self.context.get_or_init(|| made))
    }

    pub(crate) fn default_stream(&self) -> Result<Arc<RealStream>, Error> {
        Ok(self.context()?.default_stream())
    }

    pub(crate) fn new_stream(&self) -> Result<Arc<RealStream>, Error> {
        Ok(self.context()?.new_stream()?)
    }

    /// Lets the device's calls name the stream, if it is one of the GPU's primary context.
    pub(crate) fn admit(&self, stream: &Arc<RealStream>) -> Result<(), Error> {
        self.check_stream(stream)?;
        // SAFETY: the stream is one of that context, and alive while it is kept.
        let admitted = unsafe {
            self.device.admit_kept(id_of(stream), context_of(stream), Arc::clone(stream) as _)
        };
        Ok(admitted.map_err(Error::refused("use a stream"))?)
    }
}

#[cfg(not(feature = "cudarc"))]
impl RealGpu {
    pub(crate) fn default_stream(&self) -> Result<Arc<RealStream>, Error> {
        let stream = self.device.default_stream().map_err(Error::refused("make a context"))?;
        Ok(Arc::new(stream))
    }

    pub(crate) fn new_stream(&self) -> Result<Arc<RealStream>, Error> {
        let stream = self.device.new_stream().map_err(Error::refused("make a stream"))?;
        Ok(Arc::new(stream))
    }

    /// Lets the device's calls name the stream, if it is one of the GPU's primary context.
    pub(crate) fn admit(&self, stream: &Arc<RealStream>) -> Result<(), Error> {
        self.check_stream(stream)?;
        self.device.admit(stream).map_err(Error::refused("use a stream"))?;
        Ok(())
    }
}
