//! The allocator itself: policy and state, with no GPU in sight.
//!
//! The layers, each of which imports only from those before it:
//!
//! 1. [`types`], [`torch_version`]: addresses, streams, handles; the known versions of PyTorch.
//! 2. [`config`], [`policy`], [`keeper`], [`device`], [`source`], [`sequence`], [`out_of_memory`],
//!    [`error`]: settings, choices, where contents are kept, the trait of all hardware, where else
//!    segments come from, what ranks compare, what goes wrong.
//! 3. [`record`]: what happened, and who counts it.
//! 4. [`heap`]: the state machine. It never names the device; it plans and commits.
//! 5. [`allocator`]: the shell. It has the lock and makes every device call.
//!
//! Most programs use [`Allocator`] alone.
#![forbid(unsafe_code)]

pub mod allocator;
pub mod config;
pub mod device;
pub mod error;
pub mod heap;
pub mod keeper;
pub mod nearest;
pub mod out_of_memory;
pub mod policy;
pub mod record;
pub mod sequence;
pub mod source;
pub mod torch_version;
pub mod types;

pub use allocator::Allocator;
pub use allocator::fleet::Fleet;
pub use allocator::mem_pool::MemPool;
pub use config::Config;
pub use error::Error;
pub use keeper::{Keep, Keeper};
pub use out_of_memory::OutOfMemory;
pub use policy::Policy;
pub use record::stats::Stats;
pub use torch_version::TorchVersion;
pub use types::{Addr, Bytes, CaptureToken, DeviceIndex, PoolId, StreamId};
