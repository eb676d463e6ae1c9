//! Streams: the order in which work runs, and in which memory is handed out again.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::StreamId;
use larder_sim::SimDevice;

/// A stream of a GPU, real or simulated. Clones are the same stream.
///
/// A `cudarc` stream becomes one by itself wherever a stream is taken.
#[derive(Clone)]
pub struct Stream {
    id: StreamId,
    gpu: Side,
}

/// The GPU that a stream is of. Numbers of streams mean something there alone.
#[derive(Clone)]
enum Side {
    Simulated(Arc<SimDevice>),
    Cuda(Arc<CudaStream>),
}

impl Stream {
    /// A stream of a simulated GPU.
    pub(crate) fn simulated(id: StreamId, device: &Arc<SimDevice>) -> Stream {
        Stream { id, gpu: Side::Simulated(Arc::clone(device)) }
    }

    /// The simulated GPU that the stream is of; none if it is real.
    pub(crate) fn simulated_device(&self) -> Option<&Arc<SimDevice>> {
        match &self.gpu {
            Side::Simulated(device) => Some(device),
            Side::Cuda(_) => None,
        }
    }

    /// The number by which the allocator knows the stream: the value of its raw handle.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream as `cudarc` has it; none on a simulated GPU.
    pub fn cuda(&self) -> Option<&Arc<CudaStream>> {
        match &self.gpu {
            Side::Simulated(_) => None,
            Side::Cuda(cuda) => Some(cuda),
        }
    }
}

impl From<Arc<CudaStream>> for Stream {
    fn from(cuda: Arc<CudaStream>) -> Stream {
        Stream { id: id_of(&cuda), gpu: Side::Cuda(cuda) }
    }
}

impl From<&Arc<CudaStream>> for Stream {
    fn from(cuda: &Arc<CudaStream>) -> Stream {
        Stream::from(Arc::clone(cuda))
    }
}

impl From<&Stream> for Stream {
    fn from(stream: &Stream) -> Stream {
        stream.clone()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.id.0)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        match (&self.gpu, &other.gpu) {
            (Side::Simulated(ours), Side::Simulated(theirs)) => {
                self.id == other.id && Arc::ptr_eq(ours, theirs)
            }
            (Side::Cuda(ours), Side::Cuda(theirs)) => is_same(ours, theirs),
            _ => false,
        }
    }
}

impl Eq for Stream {}

/// Whether the two are one stream. The default streams of all GPUs have the same handle.
pub(crate) fn is_same(one: &CudaStream, other: &CudaStream) -> bool {
    one.cu_stream() == other.cu_stream() && one.context().cu_ctx() == other.context().cu_ctx()
}

/// The number of a `cudarc` stream.
pub(crate) fn id_of(cuda: &CudaStream) -> StreamId {
    StreamId(cuda.cu_stream() as u64)
}
