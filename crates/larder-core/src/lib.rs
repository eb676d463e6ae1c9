//! The allocator itself: policy and state, with no GPU in sight.
#![forbid(unsafe_code)]

pub mod device;
pub mod types;
