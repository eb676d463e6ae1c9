//! Larder behind a C interface: `liblarder.so`, whose header is `include/larder.h`.
//!
//! The header is the contract, written by hand; a test compares it with what is here, name by name
//! and layout by layout. Each function of it is in the file of its subject. None of them unwinds:
//! `border` catches panics, keeps the last error of each thread, and holds all unsafe code.
//!
//! For Rust there are [`devices`] and [`settings`], which read what the environment and programs say
//! about either.

mod addresses;
mod border;
mod checkpoint;
mod configure;
mod context;
pub mod devices;
mod history;
mod hooks;
mod larder;
#[cfg(test)]
mod layouts;
mod memory;
mod out_of_memory;
mod pools;
pub mod settings;
mod share;
mod snapshot;
mod stats;
mod torch;
