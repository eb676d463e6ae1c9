//! Streams: the order in which work runs, and in which memory is handed out again.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::StreamId;

/// A stream of a GPU, real or simulated. Clones are the same stream.
///
/// A `cudarc` stream becomes one by itself wherever a stream is taken.
#[derive(Clone)]
pub struct Stream {
    id: StreamId,
    cuda: Option<Arc<CudaStream>>,
}

impl Stream {
    /// A stream of a simulated GPU.
    pub(crate) fn simulated(id: StreamId) -> Stream {
        Stream { id, cuda: None }
    }

    /// The number by which the allocator knows the stream: the value of its raw handle.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream as `cudarc` has it; none on a simulated GPU.
    pub fn cuda(&self) -> Option<&Arc<CudaStream>> {
        self.cuda.as_ref()
    }
}

impl From<Arc<CudaStream>> for Stream {
    fn from(cuda: Arc<CudaStream>) -> Stream {
        Stream { id: id_of(&cuda), cuda: Some(cuda) }
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
        self.id == other.id && self.cuda.is_some() == other.cuda.is_some()
    }
}

impl Eq for Stream {}

/// The number of a `cudarc` stream.
pub(crate) fn id_of(cuda: &CudaStream) -> StreamId {
    StreamId(cuda.cu_stream() as u64)
}
