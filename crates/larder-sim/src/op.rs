//! Operations: what a program asks of an allocator and of its device, one at a time.

use std::fmt;

/// Which allocations go to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// All of them.
    All,
    /// Those on this stream.
    Stream(u32),
    /// Those on streams under the same graph capture as this one.
    Capture(u32),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::All => write!(f, "*"),
            Route::Stream(stream) => write!(f, "{stream}"),
            Route::Capture(stream) => write!(f, "capture {stream}"),
        }
    }
}

/// One operation of a script. IDs name allocations; streams and pools are small numbers.
///
/// It prints as its line in a script, and [`Script::parse`](crate::script::Script::parse) reads
/// back what was printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Allocate `size_bytes` on `stream` and call it `id`, an integer not used before.
    Alloc {
        /// The allocation's name from here on.
        id: u64,
        /// How many bytes are asked for.
        size_bytes: u64,
        /// The stream that it is for.
        stream: u32,
    },
    /// Free the allocation.
    Free {
        /// Which allocation.
        id: u64,
    },
    /// The allocation is used on `stream` too.
    Record {
        /// Which allocation.
        id: u64,
        /// The stream that uses it.
        stream: u32,
    },
    /// All work issued on the stream so far has finished.
    Sync {
        /// Which stream.
        stream: u32,
    },
    /// Empty the cache.
    Empty,
    /// Create private pool (0, pool), or add a use of it.
    PoolNew {
        /// Which pool.
        pool: u32,
    },
    /// Route allocations to the pool; adds a use.
    PoolBegin {
        /// Which pool.
        pool: u32,
        /// Which allocations.
        route: Route,
    },
    /// Stop routing.
    PoolEnd {
        /// Which pool.
        pool: u32,
    },
    /// Drop one use.
    PoolRelease {
        /// Which pool.
        pool: u32,
    },
    /// Empty that pool's cache.
    PoolEmpty {
        /// Which pool.
        pool: u32,
    },
    /// Whether the pool may serve other requests before they run out of memory.
    PoolUseOnOom {
        /// Which pool.
        pool: u32,
        /// Whether it may.
        on: bool,
    },
    /// The pool's blocks are never split.
    PoolNoSplit {
        /// Which pool.
        pool: u32,
    },
    /// Cap the memory at this part of the device.
    Fraction {
        /// The part, from 0 to 1.
        fraction: f64,
    },
    /// The stream is under graph capture from here on.
    CaptureBegin {
        /// Which stream.
        stream: u32,
    },
    /// The stream, and all that joined its capture, are no longer under graph capture.
    CaptureEnd {
        /// The stream on which the capture began.
        stream: u32,
    },
    /// A piece of work is issued on the stream; under a capture it is captured.
    Launch {
        /// Which stream.
        stream: u32,
    },
    /// The stream waits for what the other one was given so far, and joins its capture.
    Wait {
        /// Which stream waits.
        stream: u32,
        /// For which stream's work.
        other: u32,
    },
    /// Save the layout of the pool.
    Checkpoint {
        /// The checkpoint's name, a number not used before.
        checkpoint: u32,
        /// Which pool.
        pool: u32,
    },
    /// Put a saved layout back. The pool's allocations that were live then are live again, under
    /// their IDs; its others are freed.
    Restore {
        /// Which checkpoint.
        checkpoint: u32,
    },
    /// Peaks become the current values.
    ResetPeak,
    /// Sums of increases and decreases become zero.
    ResetAccumulated,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Alloc { id, size_bytes, stream } => write!(f, "alloc {id} {size_bytes} {stream}"),
            Op::Free { id } => write!(f, "free {id}"),
            Op::Record { id, stream } => write!(f, "record {id} {stream}"),
            Op::Sync { stream } => write!(f, "sync {stream}"),
            Op::Empty => write!(f, "empty"),
            Op::PoolNew { pool } => write!(f, "pool-new {pool}"),
            Op::PoolBegin { pool, route } => write!(f, "pool-begin {pool} {route}"),
            Op::PoolEnd { pool } => write!(f, "pool-end {pool}"),
            Op::PoolRelease { pool } => write!(f, "pool-release {pool}"),
            Op::PoolEmpty { pool } => write!(f, "pool-empty {pool}"),
            Op::PoolUseOnOom { pool, on: true } => write!(f, "pool-use-on-oom {pool} on"),
            Op::PoolUseOnOom { pool, on: false } => write!(f, "pool-use-on-oom {pool} off"),
            Op::PoolNoSplit { pool } => write!(f, "pool-no-split {pool}"),
            Op::Fraction { fraction } => write!(f, "fraction {fraction}"),
            Op::CaptureBegin { stream } => write!(f, "capture-begin {stream}"),
            Op::CaptureEnd { stream } => write!(f, "capture-end {stream}"),
            Op::Launch { stream } => write!(f, "launch {stream}"),
            Op::Wait { stream, other } => write!(f, "wait {stream} {other}"),
            Op::Checkpoint { checkpoint, pool } => write!(f, "checkpoint {checkpoint} {pool}"),
            Op::Restore { checkpoint } => write!(f, "restore {checkpoint}"),
            Op::ResetPeak => write!(f, "reset-peak"),
            Op::ResetAccumulated => write!(f, "reset-accumulated"),
        }
    }
}
