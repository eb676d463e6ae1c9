//! The real GPU, as a `Device` of `larder-core`.
//!
//! Three floors: the table of the driver's functions, loaded at run time; [`driver`], one function
//! for each call, with a `Result`; and [`CudaDevice`]. The crate builds where there is no CUDA, and
//! asking for a GPU there is one clear error, [`CudaError::NoDriver`]. It is for every version of
//! CUDA from 11.4 on: which one a program was built for, or with, is no matter here.
//!
//! What holds for every call:
//! - The device's primary context is current on the calling thread while the call runs, and what
//!   was current before is current again afterwards.
//! - The call is allowed while some stream is captured: the thread's capture mode is relaxed for
//!   it.
//! - A handle that the driver would trip over (a page, an event or an address that is gone) never
//!   reaches it: the device keeps a ledger of what it gave out.
//! - Nor does a number that nobody vouched for as a stream: streams are admitted
//!   ([`CudaDevice::admit`]), and one that was not is refused in words. The driver's default
//!   streams, 0, 1 and 2, are always there.
//!
//! [`HostDevice`] is pinned memory of the host as a device of its own.
//!
//! [`AsyncPool`] is the driver's own stream-ordered allocator with the calls of ours, for
//! `backend:cudaMallocAsync`.

mod async_pool;
mod calls;
mod context;
mod copies;
mod descriptors;
mod device;
pub mod driver;
mod error;
pub mod host;
pub mod layouts;
mod ledger;
mod options;
mod processes;
pub mod source;
mod stream;
mod streams;
pub mod sys;
mod table;

pub use async_pool::{AsyncPool, AsyncStats};
pub use device::CudaDevice;
pub use error::CudaError;
pub use host::HostDevice;
pub use ledger::Held;
pub use options::{CudaOptions, ShareBy};
pub use stream::CudaStream;
