//! Sources: where the segments of a private pool come from, if not from the device's own plain
//! memory.
//!
//! A source is asked under the allocator's lock, as the device is: it must not call the allocator.
//! What it answers is checked, and one that panics, fails or gives what is no memory changes
//! nothing; the caller is told in one sentence.

pub mod functions;
pub mod registered;

pub use functions::SourceFunctions;
pub use registered::{Registered, Registrar, Registration};

use std::fmt;

use crate::device::DeviceError;
use crate::types::{Addr, DeviceIndex, PoolId, Span, StreamId};

/// What a source says of itself, once, when a pool gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceProperties {
    /// Whether one segment may serve several blocks. If not, each block is a segment of its own.
    pub may_split: bool,
    /// Whether making a segment, and giving it back, is something that every rank has to do in the
    /// same order and with the same size: all of them get memory, or none does.
    pub collective: bool,
    /// Where they make segments together: whether one that may not have memory can tell the others
    /// by [`SegmentSource::decline`]. If not, a cap does not keep it from asking with them: they
    /// would wait for it for ever.
    pub declines: bool,
    /// What the segments are registered with, in a word or two; none if they are not.
    pub registrar: Option<String>,
}

impl Default for SourceProperties {
    /// Plain memory: may be split, each process for itself, registered with nobody.
    fn default() -> SourceProperties {
        SourceProperties { may_split: true, collective: false, declines: false, registrar: None }
    }
}

/// Each takes the properties as they are so far, and gives them back with one of them set.
impl SourceProperties {
    /// Whether one segment may serve several blocks.
    #[must_use]
    pub fn may_split(mut self, may_split: bool) -> Self {
        self.may_split = may_split;
        self
    }

    /// Whether every rank has to make its segments together with the others.
    #[must_use]
    pub fn collective(mut self, collective: bool) -> Self {
        self.collective = collective;
        self
    }

    /// Whether one that may not have memory can tell the others.
    #[must_use]
    pub fn declines(mut self, declines: bool) -> Self {
        self.declines = declines;
        self
    }

    /// What the segments are registered with.
    #[must_use]
    pub fn registrar(mut self, registrar: impl Into<String>) -> Self {
        self.registrar = Some(registrar.into());
        self
    }
}

/// Gives segments to a private pool and takes them back. What a program registers with a network
/// card, or shares between devices, comes from such a source.
///
/// Everything above segments (caching, splitting, statistics) works as ever, but such a pool never
/// has expandable segments. All but the first two methods have answers of their own.
pub trait SegmentSource: Send + Sync {
    /// Memory of at least `size_bytes`, for requests on `stream`, at an address that is a multiple
    /// of 512. Without memory to give it says `OutOfMemory`. Where making segments is collective,
    /// it says so on every rank or on none.
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError>;

    /// Takes back what `alloc` gave. If it fails the segment stays the pool's, and is offered
    /// again.
    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError>;

    /// What holds for its segments. It is asked once.
    fn properties(&self) -> SourceProperties {
        SourceProperties::default()
    }

    /// This rank would ask for a segment now, but may not have it: a cap leaves no room. A source
    /// whose segments are made by all ranks together lets the others know, so that nobody waits.
    fn decline(&self, _size_bytes: u64, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A pool of this device got the source. If it fails there is no such pool.
    fn init(&self, _device: DeviceIndex) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The program empties its caches; what the source keeps for later may go.
    fn reset(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The program caps what may be held of the device at this part of it.
    fn set_memory_fraction(&self, _fraction: f64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The allocation that a segment is part of, where that is more than the segment.
    fn base_allocation(&self, _segment: Span) -> Result<Option<Span>, DeviceError> {
        Ok(None)
    }

    /// A block of the source's memory is used on another stream than the one it was made for.
    fn record_stream(&self, _block: Span, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Requests are routed to the pool from now on.
    fn begin_pool(&self, _pool: PoolId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// They are no longer.
    fn end_pool(&self, _pool: PoolId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Nobody uses the pool any more; its segments come back as they become free.
    fn release_pool(&self, _pool: PoolId) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What is wrong with a segment that a source gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentFault {
    /// It is at address 0, which is nobody's.
    Null,
    /// It does not begin at a multiple of 512.
    Misaligned,
    /// It runs past the last address there is.
    Endless,
    /// Some of it is in use.
    Overlaps,
}

impl fmt::Display for SegmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SegmentFault::Null => "nobody's address",
            SegmentFault::Misaligned => "no multiple of 512",
            SegmentFault::Endless => "too close to the last address for its size",
            SegmentFault::Overlaps => "in use",
        })
    }
}

/// What a pool's source was asked for so far, as the allocator's own books have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Segments that it gave.
    pub made: u64,
    /// Segments that it took back.
    pub given_back: u64,
    /// Times it had no memory, or this process was not to have any.
    pub refused: u64,
    /// Calls that failed, panicked, or gave what is no memory.
    pub failed: u64,
    /// Bytes of the segments that it gave and has not got back.
    pub held_bytes: u64,
}
