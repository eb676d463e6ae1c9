//! What is inferred of captures that nobody declared, or not all of: PyTorch opens a pool, begins a
//! capture, and says no more.
//!
//! The rest of the allocator asks the questions that stand in `questions.rs`, and tells of what it
//! learns: streams that are named, scopes, streams that are gone. How an answer is found is a
//! matter of `observed.rs` alone.

mod observed;
mod questions;

pub(super) use observed::Observed;
pub(super) use questions::capture_of;
