//! The simulated GPU in the place of CUDA's libraries, so that a PyTorch program runs where there
//! is no GPU, and its allocator gets the requests that it would get on a card.
//!
//! The library is loaded before all others (`LD_PRELOAD`), and what it exports is found first: the
//! runtime's functions, the driver's, and those of cuBLAS, cuDNN and NVML whose answers matter. A
//! function that is not here is the vendor's own. It finds no driver and says so, which the program
//! hears as the error that it is.
//!
//! - **Memory, addresses, streams, events, captures** are those of [`larder_sim::SimDevice`].
//! - **Kernels** do nothing, and last as long as `work.rs` says.
//! - **Values.** An address is one of the host's, with memory behind it that costs nothing until it
//!   is written. Small pieces of data that are known are kept there; of all other bytes it is known
//!   that they are not known (`values.rs`), and who reads them is told so.
//!
//! The environment says what card it is (`card.rs`). A panic ends in the error "unknown" and never
//! reaches the caller's frames.

mod arena;
mod blas;
mod border;
mod card;
mod copies;
mod dnn;
mod driver;
mod gpu;
mod graphs;
mod kernels;
mod nvml;
mod pages;
mod properties;
mod runtime;
mod streams;
mod values;
mod vendor;
mod work;
