//! A real GPU's streams: those of `cudarc` where a program uses that, otherwise our own.

#[cfg(feature = "cudarc")]
pub(crate) use cudarc::driver::CudaStream as RealStream;
use larder_core::StreamId;
#[cfg(not(feature = "cudarc"))]
pub(crate) use larder_cuda::CudaStream as RealStream;

/// The number of a stream: the value of its handle.
pub(crate) fn id_of(stream: &RealStream) -> StreamId {
    #[cfg(feature = "cudarc")]
    return StreamId(stream.cu_stream() as u64);
    #[cfg(not(feature = "cudarc"))]
    return stream.id();
}

/// The handle of the context that a stream is of, as a number.
pub(crate) fn context_of(stream: &RealStream) -> u64 {
    #[cfg(feature = "cudarc")]
    return stream.context().cu_ctx() as u64;
    #[cfg(not(feature = "cudarc"))]
    return stream.raw_context();
}

/// Whether the two are one stream. The default streams of all GPUs have the same handle.
pub(crate) fn is_same(one: &RealStream, other: &RealStream) -> bool {
    id_of(one) == id_of(other) && context_of(one) == context_of(other)
}
