//! What can go wrong, as one type.

use std::fmt;

use larder_core::OutOfMemory;
use larder_core::device::DeviceError;
use larder_core::keeper::KeeperError;
#[cfg(feature = "cuda")]
use larder_cuda::CudaError;

/// Why a call failed. Whatever the case, nothing is half done.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The allocator could not do it: out of memory, an unknown address, a device that refused.
    Allocator(larder_core::Error),
    /// The GPU cannot be had.
    #[cfg(feature = "cuda")]
    Cuda(CudaError),
    /// The driver refused a call that `cudarc` made.
    Driver(DeviceError),
    /// The stream is not one of the allocator's GPU.
    ForeignStream,
    /// More elements than addresses can count.
    TooLarge {
        /// How many elements were asked for.
        len: usize,
        /// How large one is.
        element_bytes: usize,
    },
    /// The driver's own pool, chosen by `backend:cudaMallocAsync`, cannot do this.
    NotWithAsync(&'static str),
    /// The simulated GPU has no pool of a driver's.
    AsyncSimulated,
    /// Who keeps contents of memory that sleeps refuses, because of this.
    Keeper(KeeperError),
    /// The statistics cannot be served, because of this.
    #[cfg(feature = "metrics")]
    Metrics(String),
    /// A shape whose elements are not as many as the buffer's.
    Shape {
        /// How many elements the shape has.
        shape_len: u64,
        /// How many the buffer has.
        len: usize,
    },
    /// A shape with more elements, or more dimensions, than can be counted.
    ShapeTooLarge {
        /// How many dimensions it has.
        dimensions: usize,
    },
    /// DLPack counts the bits of an element in one byte.
    ElementTooLarge {
        /// How large one is.
        element_bytes: usize,
    },
    /// What was opened is shorter than what was asked for.
    Outside {
        /// How many elements were asked for.
        len: usize,
        /// How large one is.
        element_bytes: usize,
        /// Where they should start.
        offset_bytes: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Allocator(error) => error.fmt(f),
            #[cfg(feature = "cuda")]
            Error::Cuda(error) => error.fmt(f),
            Error::Driver(error) => write!(f, "the CUDA driver refused a call: {error}"),
            Error::ForeignStream => {
                write!(f, "the stream is not one of the GPU that the allocator is for")
            }
            Error::TooLarge { len, element_bytes } => {
                write!(f, "{len} elements of {element_bytes} bytes are more than any GPU has")
            }
            #[cfg(feature = "metrics")]
            Error::Metrics(why) => write!(f, "the statistics cannot be served: {why}"),
            Error::NotWithAsync(what) => {
                write!(f, "the driver's own pool (backend:cudaMallocAsync) cannot {what}")
            }
            Error::AsyncSimulated => write!(
                f,
                "backend:cudaMallocAsync is the driver's own allocator, which a simulated GPU does \
                 not have"
            ),
            Error::Keeper(why) => write!(f, "what contents are kept in stays as it is: {why}"),
            Error::Shape { shape_len, len } => {
                write!(f, "a shape of {shape_len} elements does not fit a buffer of {len}")
            }
            Error::ShapeTooLarge { dimensions } => write!(
                f,
                "a shape of {dimensions} dimensions has more elements than can be counted"
            ),
            Error::ElementTooLarge { element_bytes } => write!(
                f,
                "an element of {element_bytes} bytes is larger than DLPack has a name for"
            ),
            Error::Outside { len, element_bytes, offset_bytes } => write!(
                f,
                "{len} elements of {element_bytes} bytes from byte {offset_bytes} on do not fit"
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<larder_core::Error> for Error {
    fn from(error: larder_core::Error) -> Error {
        Error::Allocator(error)
    }
}

#[cfg(feature = "cuda")]
impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Cuda(error)
    }
}

/// Freeing went wrong. It has what was not freed, so that the caller can try again, and why.
///
/// ```
/// # use larder::{Allocator, Error, FreeError};
/// let allocator = Allocator::simulated(0)?;
/// let block = allocator.alloc_block(1 << 20, allocator.default_stream())?;
/// if let Err(FreeError { error, unfreed, .. }) = block.free() {
///     eprintln!("not freed yet: {error}");
///     drop(unfreed); // or keep it, and try again later
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct FreeError<B: fmt::Debug> {
    /// Why.
    pub error: Error,
    /// What is live still; none if its bytes are no longer there to be freed, because somebody
    /// freed them by their address.
    pub unfreed: Option<B>,
}

impl<B: fmt::Debug> fmt::Display for FreeError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> std::error::Error for FreeError<B> {}

impl<B: fmt::Debug> From<FreeError<B>> for Error {
    /// Drops what was not freed, which tries once more.
    fn from(failed: FreeError<B>) -> Error {
        failed.error
    }
}

impl Error {
    /// Turns a refusal of the device into an error that names the call.
    pub(crate) fn refused(call: &'static str) -> impl FnOnce(DeviceError) -> larder_core::Error {
        move |error| larder_core::Error::Device { call, error }
    }

    /// The numbers, if the request could not be met for want of memory.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Error::Allocator(larder_core::Error::OutOfMemory(report)) => Some(report),
            _ => None,
        }
    }
}

#[cfg(feature = "cudarc")]
impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Error {
        let result = larder_cuda::sys::CUresult(error.0 as u32);
        Error::Driver(larder_cuda::driver::refusal(result))
    }
}

impl From<larder_core::config::ConfigError> for Error {
    fn from(error: larder_core::config::ConfigError) -> Error {
        Error::Allocator(error.into())
    }
}
