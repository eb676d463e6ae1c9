//! A caching allocator for GPU memory.
//!
//! It makes the decisions of PyTorch's CUDA caching allocator, or better ones, for Rust programs:
//! memory is handed out in tens of nanoseconds out of a cache, in the order of streams, and given
//! back to the GPU only when that helps.
//!
//! ```
//! use larder::Allocator;
//!
//! let allocator = Allocator::simulated(0)?; // or Allocator::cuda(0)?
//! let [compute, copy] = [allocator.new_stream()?, allocator.new_stream()?];
//! let batch = allocator.alloc::<f32>(300_000, &compute)?;
//! batch.record_stream(&copy)?; // another stream reads it
//! drop(batch); // handed out again when that stream is done
//! println!("{} bytes at the peak", allocator.stats().reserved_bytes.all.peak);
//! # Ok::<(), larder::Error>(())
//! ```
//!
//! What there is for what one wants:
//!
//! - an allocator for a GPU, or for a simulated one: [`Allocator::cuda`], [`Allocator::simulated`];
//! - settings, a policy, a cap, hooks: [`Allocator::builder`];
//! - elements, or bytes: [`Allocator::alloc`] gives a [`Buffer`], [`Allocator::alloc_block`] a
//!   [`Block`];
//! - their use with `cudarc` and its libraries: the feature `cudarc`, with which [`Buffer`]
//!   implements its traits;
//! - their use elsewhere: [`Buffer::addr`], [`Buffer::into_dlpack`];
//! - their use on several streams: [`Buffer::read_on`] and [`Buffer::write_on`] for launches,
//!   [`Buffer::record_stream`];
//! - memory set apart, for a graph or otherwise: [`Allocator::new_pool`], [`Pool::within`],
//!   [`Pool::capture`], [`Pool::begin_capture`];
//! - equal offsets on every rank of a cluster: [`Pool::symmetric`];
//! - memory that goes back to the GPU while its addresses stay: [`Allocator::region`],
//!   [`Allocator::sleep`], [`Allocator::wake`];
//! - memory shared with other processes: [`Buffer::share`] there, [`Allocator::open`] here;
//! - what happens: [`Allocator::stats`], [`Allocator::snapshot`], [`Allocator::torch_snapshot`],
//!   [`Allocator::on_out_of_memory`];
//! - everything else, by address: [`Allocator::core`].
//!
//! It builds with no CUDA installed. The driver is loaded when a GPU is asked for; where there is
//! none, that is one clear error. A simulated GPU does everything but hold bytes, so programs and
//! their tests run anywhere.
//!
//! | feature | |
//! |---|---|
//! | `cuda`, on by default | real GPUs, for CUDA from 11.4 on; else nothing of CUDA is built |
//! | `sim`, on by default | simulated GPUs |
//! | `snapshot`, on by default | snapshots as files, for PyTorch's viewer and Perfetto |
//! | `cudarc` | buffers and streams go into `cudarc` and come from it |
//! | `metrics` | statistics for Prometheus |
//! | `setup` | devices and settings by text, or from the environment |
//!
//! The version of CUDA is the program's own choice: it names one to `cudarc`, as in
//! `cudarc = { version = "0.19", features = ["cuda-12040"] }`. If nobody names one, `cudarc` takes
//! that of the `nvcc` on the machine, or else the newest that it has.
#![deny(unsafe_code)]
// Some pages are there with their feature only.
#![cfg_attr(not(feature = "cudarc"), allow(rustdoc::broken_intra_doc_links))]
// Some calls go wrong, or look at anything, on one sort of GPU alone.
#![cfg_attr(
    not(all(feature = "cuda", feature = "sim")),
    allow(
        irrefutable_let_patterns,
        clippy::drop_non_drop,
        clippy::unnecessary_wraps,
        clippy::unused_self
    )
)]

#[cfg(not(any(feature = "cuda", feature = "sim")))]
compile_error!("larder has no GPU to allocate on: turn on its feature `cuda` or `sim`");

mod allocator;
mod block;
mod buffer;
mod builder;
mod capture;
mod error;
mod host;
mod interop;
#[cfg(feature = "metrics")]
pub mod metrics;
mod opened;
mod pinned;
mod pool;
#[cfg(feature = "cuda")]
mod real;
#[cfg(feature = "setup")]
pub mod setup;
mod sleep;
mod stream;
#[cfg(feature = "cudarc")]
mod uses;

pub use allocator::Allocator;
pub use block::Block;
pub use buffer::Buffer;
pub use builder::Builder;
pub use capture::Capture;
pub use error::{Error, FreeError};
#[cfg(feature = "cudarc")]
pub use interop::InUse;
pub use interop::dlpack;
pub use opened::Opened;
pub use pinned::PinnedBuffer;
pub use pool::Pool;
pub use stream::Stream;

/// PyTorch's memory snapshots: what [`Allocator::torch_snapshot`] gives, and readers of others.
#[cfg(feature = "snapshot")]
pub use larder_snapshot as snapshot;

/// The version of `cudarc` whose traits a [`Buffer`] implements.
#[cfg(feature = "cudarc")]
pub use cudarc;
/// What [`Error::Allocator`] says.
pub use larder_core::Error as AllocatorError;
pub use larder_core::allocator::history::{DeviceSnapshot, HistoryOptions, SnapshotOptions};
pub use larder_core::allocator::share::Shared;
pub use larder_core::allocator::sleep::{SleepStats, Slept, Which};
pub use larder_core::allocator::symmetric::{SequenceState, SymmetricOptions};
pub use larder_core::allocator::tags::TagState;
pub use larder_core::config::ConfigError;
pub use larder_core::device::{DeviceError, MemoryInfo, ProcessMemory};
pub use larder_core::error::{
    CaptureProblem, ExchangeError, PoolProblem, ShareProblem, SleepProblem,
};
pub use larder_core::heap::checkpoint::{Checkpoint, Restored};
pub use larder_core::heap::states::{BlockState, PoolStats, SegmentState};
pub use larder_core::keeper::{Keep, Keeper, KeeperError, Kept, PlainKeeper};
pub use larder_core::record::context::{Context, RustStack};
pub use larder_core::record::event::Level;
/// What the ranks of a symmetric pool compare.
pub use larder_core::sequence;
/// Where segments come from, if not from the GPU's plain memory.
pub use larder_core::source;
pub use larder_core::{
    Addr, Bytes, Config, DeviceIndex, MemPool, OutOfMemory, Policy, PoolId, Stats, StreamId,
};
/// NCCL and NVSHMEM as sources of segments, loaded at run time.
#[cfg(feature = "cuda")]
pub use larder_cuda::source::{nccl, nvshmem};
#[cfg(feature = "cuda")]
pub use larder_cuda::{CudaDevice, CudaError, CudaOptions, ShareBy};
#[cfg(feature = "sim")]
pub use larder_sim::{SimDevice, SimOptions, Wire};

/// The README's example, so that it keeps working.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the manual for Rust programs.
#[cfg(all(doctest, feature = "cudarc"))]
#[doc = include_str!("../../../docs/rust.md")]
struct Manual;
