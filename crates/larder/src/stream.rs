//! Streams: the order in which work runs, and in which memory is handed out again.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "cudarc")]
use cudarc::driver::CudaStream;
use larder_core::StreamId;
#[cfg(feature = "sim")]
use larder_sim::SimDevice;

#[cfg(feature = "cuda")]
use crate::real::stream::{RealStream, id_of, is_same};

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
    #[cfg(feature = "sim")]
    Simulated(Arc<SimDevice>),
    #[cfg(feature = "cuda")]
    Real(Arc<RealStream>),
}

impl Stream {
    /// A stream of a simulated GPU.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(id: StreamId, device: &Arc<SimDevice>) -> Stream {
        Stream { id, gpu: Side::Simulated(Arc::clone(device)) }
    }

    /// A stream of a real GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_real(real: Arc<RealStream>) -> Stream {
        Stream { id: id_of(&real), gpu: Side::Real(real) }
    }

    /// Whether it is a stream of this simulated GPU.
    #[cfg(feature = "sim")]
    pub(crate) fn is_of(&self, device: &Arc<SimDevice>) -> bool {
        match &self.gpu {
            #[cfg(feature = "sim")]
            Side::Simulated(own) => Arc::ptr_eq(own, device),
            #[cfg(feature = "cuda")]
            Side::Real(_) => false,
        }
    }

    /// The number by which the allocator knows the stream: the value of its raw handle.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The stream of a real GPU; none on a simulated one.
    #[cfg(feature = "cuda")]
    pub(crate) fn real(&self) -> Option<&Arc<RealStream>> {
        match &self.gpu {
            #[cfg(feature = "sim")]
            Side::Simulated(_) => None,
            Side::Real(real) => Some(real),
        }
    }

    /// The stream as `cudarc` has it; none on a simulated GPU.
    ///
    /// ```no_run
    /// use larder::Allocator;
    ///
    /// let allocator = Allocator::cuda(0)?;
    /// let stream = allocator.new_stream()?;
    /// let cuda = stream.cuda().expect("a real GPU");
    /// let mut buffer = allocator.alloc::<f32>(4, &stream)?;
    /// cuda.memcpy_htod(&[1.0_f32, 2.0, 3.0, 4.0], &mut buffer)?;
    /// assert_eq!(cuda.clone_dtoh(&buffer)?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), larder::Error>(())
    /// ```
    #[cfg(feature = "cudarc")]
    pub fn cuda(&self) -> Option<&Arc<CudaStream>> {
        self.real()
    }
}

#[cfg(feature = "cudarc")]
impl From<Arc<CudaStream>> for Stream {
    fn from(cuda: Arc<CudaStream>) -> Stream {
        Stream::of_real(cuda)
    }
}

#[cfg(feature = "cudarc")]
impl From<&Arc<CudaStream>> for Stream {
    fn from(cuda: &Arc<CudaStream>) -> Stream {
        Stream::of_real(Arc::clone(cuda))
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
            #[cfg(feature = "sim")]
            (Side::Simulated(ours), Side::Simulated(theirs)) => {
                self.id == other.id && Arc::ptr_eq(ours, theirs)
            }
            #[cfg(feature = "cuda")]
            (Side::Real(ours), Side::Real(theirs)) => is_same(ours, theirs),
            #[cfg(all(feature = "cuda", feature = "sim"))]
            _ => false,
        }
    }
}

impl Eq for Stream {}
