//! Sources: where the segments of a private pool come from, if not from the device's own plain
//! memory.

use std::fmt;

use crate::device::DeviceError;
use crate::types::{Addr, Span, StreamId};

/// Gives segments to a private pool and takes them back. What a program registers with a network
/// card, or shares between devices, comes from such a source.
///
/// The allocator calls it under its lock, as it calls the device: it must not call the allocator.
/// Everything above segments (caching, splitting, statistics) works as ever, but such a pool never
/// has expandable segments.
pub trait SegmentSource: Send + Sync {
    /// Memory of at least `size_bytes`, for requests on `stream`, at an address that is a multiple
    /// of 512. Without memory to give it says `OutOfMemory`.
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError>;

    /// Takes back what `alloc` gave. If it fails the segment stays the pool's, and is offered again.
    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError>;
}

/// A source that is a pair of functions, such as those of a library that is loaded at run time.
pub struct SourceFunctions<A, F> {
    alloc: A,
    free: F,
}

impl<A, F> SourceFunctions<A, F>
where
    A: Fn(u64, StreamId) -> Option<Addr> + Send + Sync,
    F: Fn(Span, StreamId) + Send + Sync,
{
    /// The pair of a function that gives memory, or none if it has none, and of one that takes it
    /// back.
    pub fn new(alloc: A, free: F) -> SourceFunctions<A, F> {
        SourceFunctions { alloc, free }
    }
}

impl<A, F> SegmentSource for SourceFunctions<A, F>
where
    A: Fn(u64, StreamId) -> Option<Addr> + Send + Sync,
    F: Fn(Span, StreamId) + Send + Sync,
{
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        (self.alloc)(size_bytes, stream).ok_or(DeviceError::OutOfMemory)
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        (self.free)(segment, stream);
        Ok(())
    }
}

impl<A, F> fmt::Debug for SourceFunctions<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceFunctions")
    }
}
