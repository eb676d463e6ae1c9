//! The real GPU, as a `Device` of `larder-core`.
//!
//! Three floors: `cudarc`'s table of driver functions, loaded at run time; [`driver`], one function
//! for each call, with a `Result`; and [`CudaDevice`]. The crate builds where there is no CUDA, and
//! asking for a GPU there is one clear error, [`CudaError::NoDriver`].
//!
//! What holds for every call:
//! - The device's primary context is current on the calling thread while the call runs, and what
//!   was current before is current again afterwards.
//! - The call is allowed while some stream is captured: the thread's capture mode is relaxed for it.
//! - A handle that the driver would trip over (a page, an event or an address that is gone) never
//!   reaches it: the device keeps a ledger of what it gave out.
//! - Nor does a number that nobody vouched for as a stream: streams are admitted
//!   ([`CudaDevice::admit`]), and one that was not is refused in words. The driver's default streams,
//!   0, 1 and 2, are always there.
//!
//! [`AsyncPool`] is the driver's own stream-ordered allocator with the calls of ours, for
//! `backend:cudaMallocAsync`.

mod async_pool;
mod context;
mod descriptors;
mod device;
pub mod driver;
mod error;
pub mod layouts;
mod ledger;
mod processes;
mod streams;

pub use async_pool::{AsyncPool, AsyncStats};
pub use device::{CudaDevice, CudaOptions, ShareBy};
pub use error::CudaError;
pub use ledger::Held;

/// The crate whose driver table this one calls, and whose types its interface speaks.
pub use cudarc;
