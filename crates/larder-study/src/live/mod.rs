//! Live: the memory of a program that runs now, out of what it writes or says while it runs.

mod followed;
mod served;

use larder_core::types::{PoolId, StreamId};

pub use followed::Followed;
pub use served::{Served, read_page};

/// What a program has at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What is there of each sum, as the allocator's statistics have it.
    pub sums: Sums,
    /// What each stream has in each pool, most first.
    pub lanes: Vec<LiveLane>,
    /// The stacks that hold most, with their bytes and blocks; only a tape has them.
    pub stacks: Vec<(String, u64, u64)>,
}

/// Sums over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Bytes in live allocations, rounded as the allocator does; not on a tape.
    pub allocated_bytes: Option<u64>,
    /// Bytes that are live or still awaited by a stream; not on a tape.
    pub active_bytes: Option<u64>,
    /// Bytes that were asked for and are live or still awaited.
    pub requested_bytes: u64,
    /// Bytes held of the devices.
    pub reserved_bytes: u64,
    /// Live allocations.
    pub live_allocations: u64,
    /// Segments held of the devices, or pieces of expandable ones.
    pub segments: u64,
    /// Allocations ever made.
    pub allocations: u64,
    /// Frees ever made.
    pub frees: u64,
    /// Requests that failed.
    pub ooms: u64,
    /// Times the cache was given back to try again; not on a tape.
    pub retries: Option<u64>,
    /// Bytes of pinned memory held of the host, and those of them in use, if there is any.
    pub pinned: Option<(u64, u64)>,
}

/// What one stream has in one pool of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveLane {
    /// The device.
    pub device: u32,
    /// The stream.
    pub stream: StreamId,
    /// The private pool, or none.
    pub pool: PoolId,
    /// Bytes held.
    pub reserved_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}
