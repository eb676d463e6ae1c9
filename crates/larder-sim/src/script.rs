//! Op scripts: what a program asks of an allocator, one operation a line.

/// One operation of a script. IDs name allocations; streams and pools are small numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Allocate `size_bytes` on `stream` and call it `id`, an integer not used before.
    Alloc { id: u64, size_bytes: u64, stream: u32 },
    /// Free the allocation.
    Free { id: u64 },
    /// The allocation is used on `stream` too.
    Record { id: u64, stream: u32 },
    /// All work issued on the stream so far has finished.
    Sync { stream: u32 },
    /// Empty the cache.
    Empty,
    /// Create private pool (0, pool), or add a use of it.
    PoolNew { pool: u32 },
    /// Route allocations on the stream (`None`: on every stream) to the pool; adds a use.
    PoolBegin { pool: u32, stream: Option<u32> },
    /// Stop routing.
    PoolEnd { pool: u32 },
    /// Drop one use.
    PoolRelease { pool: u32 },
    /// Empty that pool's cache.
    PoolEmpty { pool: u32 },
    /// Whether the pool may serve other requests before they run out of memory.
    PoolUseOnOom { pool: u32, on: bool },
    /// The pool's blocks are never split.
    PoolNoSplit { pool: u32 },
    /// Cap the memory at this part of the device.
    Fraction { fraction: f64 },
    /// The stream is under graph capture from here on.
    CaptureBegin { stream: u32 },
    /// The stream is no longer under graph capture.
    CaptureEnd { stream: u32 },
    /// Peaks become the current values.
    ResetPeak,
    /// Sums of increases and decreases become zero.
    ResetAccumulated,
}
