//! What can go wrong before there is a device to ask.

use std::fmt;

use larder_core::device::DeviceError;

/// Why a GPU cannot be had, or a call to it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not on this machine.
    NoDriver,
    /// The driver is there, but has no GPU of this index.
    NoDevice {
        /// What was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver refused a call.
    Driver {
        /// What we asked of it.
        call: &'static str,
        /// What it said.
        error: DeviceError,
    },
    /// The GPU has no stream-ordered memory pools.
    NoMemoryPools {
        /// Which GPU.
        index: u32,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::NoDriver => write!(
                f,
                "there is no CUDA driver on this machine: the library libcuda.so.1 cannot be \
                 loaded; \
                 install the NVIDIA driver, or use a simulated GPU"
            ),
            CudaError::NoDevice { index, count } => {
                write!(f, "there is no GPU {index} on this machine: the driver knows {count}")
            }
            CudaError::Driver { call, error } => {
                write!(f, "the CUDA driver refused to {call}: {error}")
            }
            CudaError::NoMemoryPools { index } => {
                write!(f, "GPU {index} has no memory pools, which backend:cudaMallocAsync needs")
            }
        }
    }
}

impl std::error::Error for CudaError {}

impl CudaError {
    /// Turns a refusal into an error that names the call.
    pub(crate) fn driver(call: &'static str) -> impl FnOnce(DeviceError) -> CudaError {
        move |error| CudaError::Driver { call, error }
    }
}
