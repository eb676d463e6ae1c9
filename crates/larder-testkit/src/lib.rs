//! What tests Larder, and is no part of what programs use.
//!
//! - [`generate`] makes up op scripts from a seed.
//! - [`soak`] runs them on an allocator beside a naive model and a checker, and many threads on one
//!   allocator.
//! - [`conformance`] has the checks that any `Device` must pass.
//! - [`sleep`] runs programs that put memory to sleep and wake it, beside a naive model.
//! - [`cluster`] has simulated ranks that grow a symmetric heap together.
//!
//! The program `larder-testkit` runs soaks and clusters for as long as one likes.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod conformance;
pub mod generate;
pub mod sleep;
pub mod soak;
