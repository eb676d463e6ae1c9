//! The simulated GPU as `libcudart.so.13`.
//!
//! PyTorch's allocator lives in a library that asks for nothing but a CUDA runtime. This crate is
//! one: the 43 functions that `libc10_cuda.so` of PyTorch 2.11 imports, and the functions of the
//! driver that it asks for by name, over one [`larder_sim::SimDevice`] for the process. So
//! PyTorch's own allocator runs on a machine with no GPU, on the very device that ours runs on.
//!
//! The environment says what device it is:
//!
//! - `LARDER_SIM_MEMORY`: how much memory it has, in bytes; 80 GiB without it.
//! - `LARDER_SIM_ADDRESSES`: a file with a line `SIZE ADDRESS` (bytes; hexadecimal, no 0x) for each
//!   plain allocation of a recorded device, in order.
//!
//! A stream exists as soon as a handle names it, and any handle will do: a program that runs
//! scripts chooses the handles of its streams itself. Null is the default stream.
//!
//! Beside CUDA's functions there are those of `control.rs`, by which the program that runs a script
//! plays the part of the device. What the simulated GPU has no model of (bytes and their copies,
//! sharing between processes, peers, the driver's own pools) answers "not supported".
//!
//! The library carries Larder's C interface (`larder.h`) too, and `larder_sim_offer` makes the GPU
//! known to it as "process": so one program can run either allocator on the same device.
//!
//! A panic ends in the error "unknown" and never reaches the caller's frames.

// The functions of larder.h are exported from here too; nothing else of it is used.
use larder_c as _;

mod border;
mod captures;
mod control;
mod driver;
mod gpu;
mod properties;
mod runtime;
mod streams;
