//! A real GPU and its streams: those of `cudarc` where a program uses that, otherwise our own.

use std::sync::Arc;
#[cfg(feature = "cudarc")]
use std::sync::OnceLock;

#[cfg(feature = "cudarc")]
use cudarc::driver::CudaContext;
#[cfg(feature = "cudarc")]
pub(crate) use cudarc::driver::CudaStream as RealStream;
use larder_core::StreamId;
use larder_core::types::Span;
use larder_cuda::CudaDevice;
#[cfg(not(feature = "cudarc"))]
pub(crate) use larder_cuda::CudaStream as RealStream;

use crate::error::Error;

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
    /// The bytes are memory of this GPU, and stay so until the work that the stream has by then is done.
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

/// The number of a stream: the value of its handle.
pub(crate) fn id_of(stream: &RealStream) -> StreamId {
    #[cfg(feature = "cudarc")]
    return StreamId(stream.cu_stream() as u64);
    #[cfg(not(feature = "cudarc"))]
    return stream.id();
}

/// The handle of the context that a stream is of, as a number.
fn context_of(stream: &RealStream) -> u64 {
    #[cfg(feature = "cudarc")]
    return stream.context().cu_ctx() as u64;
    #[cfg(not(feature = "cudarc"))]
    return stream.raw_context();
}

/// Whether the two are one stream. The default streams of all GPUs have the same handle.
pub(crate) fn is_same(one: &RealStream, other: &RealStream) -> bool {
    id_of(one) == id_of(other) && context_of(one) == context_of(other)
}
