//! What can go wrong, as values. Out of memory is a set of numbers; the words come last.

use std::fmt;

use crate::config::ConfigError;
use crate::device::{DeviceError, ProcessMemory};
use crate::types::{Addr, Bytes, DeviceIndex, PoolId, StreamId};

/// Why an allocator's call failed. Whatever the case, the call changed nothing that the caller
/// could observe, but for memory that was given back to the device on the way.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// No memory could be found, whatever was tried.
    OutOfMemory(Box<OutOfMemory>),
    /// The address is not that of a live allocation: never handed out, or freed already.
    UnknownAddress(Addr),
    /// The block lies in an expandable segment, which has no allocation of its own to name.
    NoBaseAllocation(Addr),
    /// The device refused a call.
    Device {
        /// What we asked of it.
        call: &'static str,
        /// What it said.
        error: DeviceError,
    },
    /// A settings text cannot be read.
    Config(ConfigError),
    /// A memory fraction outside 0 to 1.
    BadFraction(f64),
    /// The process has no device of this index.
    NoDevice(DeviceIndex),
    /// A history is to remember contexts, and nothing gathers them.
    NoContextHook,
    /// A private pool cannot be used in this way.
    Pool {
        /// The pool.
        pool: PoolId,
        /// What is wrong.
        problem: PoolProblem,
    },
    /// Bytes that should name shared memory do not.
    BadShare(ShareProblem),
    /// Nothing that another process shares is open at this address.
    NotOpened(Addr),
    /// A capture, or a stream that is to be forgotten, is not as the call takes it to be.
    Capture {
        /// The stream.
        stream: StreamId,
        /// What is wrong.
        problem: CaptureProblem,
    },
}

/// Why bytes do not name shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareProblem {
    /// They are of a format newer than those known here.
    Version(u8),
    /// They name neither a plain allocation nor pages.
    Kind(u8),
    /// There are more or fewer of them than their head says.
    Length(usize),
    /// They name no page, or pages of no size, or more bytes than there are addresses.
    Size,
    /// They name pages by a kind of handle that is not known here.
    HandleKind(u32),
}

impl fmt::Display for ShareProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareProblem::Version(version) => {
                write!(f, "their format {version} is newer than those known here")
            }
            ShareProblem::Kind(kind) => {
                write!(f, "their kind {kind:#x} is neither a plain allocation nor pages")
            }
            ShareProblem::Length(length) => {
                write!(f, "{length} bytes are not what their head says")
            }
            ShareProblem::Size => write!(f, "the pages they name have no sensible size"),
            ShareProblem::HandleKind(kind) => write!(f, "the kind of handle {kind} is not known"),
        }
    }
}

/// Why a private pool cannot be used in a certain way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolProblem {
    /// There is no such pool.
    Unknown,
    /// Its last use was released; it only waits for its memory to be given back.
    Released,
    /// Requests are routed to it already.
    Open,
    /// No requests are routed to it.
    NotOpen,
    /// (0, 0) names no private pool.
    NoName,
    /// It exists already, and a source of segments is given to a new pool only.
    Exists,
    /// Its source gave memory at an address that is no multiple of 512 or that is in use.
    BadSegment(Addr),
    /// A block of it is still used or awaited by another stream, so that its layout is not settled.
    Unsettled(Addr),
    /// The segment that starts here is no longer there as it was when the checkpoint was made.
    SegmentGone(Addr),
    /// The checkpoint is of another pool.
    OtherPool,
    /// The checkpoint was made by another allocator, which may have a pool of the same name.
    OtherAllocator,
}

impl fmt::Display for PoolProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolProblem::Unknown => "there is no such pool",
            PoolProblem::Released => "its last use was released",
            PoolProblem::Open => "requests are routed to it already",
            PoolProblem::NotOpen => "no requests are routed to it",
            PoolProblem::NoName => "(0, 0) names no private pool",
            PoolProblem::Exists => "it exists already, and only a new pool is given a source",
            PoolProblem::OtherPool => "the checkpoint is of another pool",
            PoolProblem::OtherAllocator => "the checkpoint was made by another allocator",
            PoolProblem::BadSegment(addr) => {
                return write!(f, "its source gave {addr}, which is in use or no multiple of 512");
            }
            PoolProblem::Unsettled(addr) => {
                return write!(f, "another stream still uses or awaits the block at {addr}");
            }
            PoolProblem::SegmentGone(addr) => {
                return write!(f, "the segment at {addr} is not as the checkpoint has it");
            }
        })
    }
}

/// Why a call about a stream and its captures was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureProblem {
    /// No scope is open, and a capture runs inside one.
    NoScope,
    /// The stream is under no capture.
    NotCaptured,
    /// The stream is under a capture, and is needed until that is over.
    Captured,
    /// A capture may be on, so that the device cannot be waited for.
    DeviceBusy,
    /// It is the default stream, which is always there.
    Default,
}

impl fmt::Display for CaptureProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CaptureProblem::NoScope => "no scope is open, and a capture runs inside one",
            CaptureProblem::NotCaptured => "it is under no capture",
            CaptureProblem::Captured => "it is under a capture, and needed until that is over",
            CaptureProblem::DeviceBusy => {
                "a capture may be on, and the device can be waited for only when it is over"
            }
            CaptureProblem::Default => "it is the default stream, which is always there",
        })
    }
}

impl Error {
    /// Turns a device's refusal into an error that names the call.
    pub(crate) fn device(call: &'static str) -> impl FnOnce(DeviceError) -> Error {
        move |error| Error::Device { call, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfMemory(report) => report.fmt(f),
            Error::UnknownAddress(addr) => write!(
                f,
                "no live allocation starts at {addr}: it was freed already, or never handed out here"
            ),
            Error::NoBaseAllocation(addr) => {
                write!(f, "{addr} lies in an expandable segment, which has no base allocation")
            }
            Error::Device { call, error } => write!(f, "the device refused to {call}: {error}"),
            Error::Config(error) => error.fmt(f),
            Error::BadFraction(fraction) => {
                write!(f, "a memory fraction is a number from 0 to 1, not {fraction}")
            }
            Error::NoDevice(index) => write!(f, "there is no {index} in this process"),
            Error::NoContextHook => {
                write!(f, "contexts are asked for, and there is no hook that gathers them")
            }
            Error::Pool { pool, problem } => write!(f, "{pool} cannot be used so: {problem}"),
            Error::BadShare(problem) => write!(f, "the bytes name no shared memory: {problem}"),
            Error::Capture { stream, problem } => {
                write!(f, "{stream} cannot be used so: {problem}")
            }
            Error::NotOpened(addr) => {
                write!(f, "nothing that another process shares is open at {addr}")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

/// Everything there is to know about a request that could not be met.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// The device that had no room.
    pub device: DeviceIndex,
    /// What the program asked for.
    pub requested_bytes: u64,
    /// The size of the block that it would have got: what was asked for, rounded up.
    pub rounded_bytes: u64,
    /// What we asked of the device for it: rounded up, perhaps to a whole segment.
    pub tried_bytes: u64,
    /// Bytes of the device that nobody holds.
    pub free_bytes: u64,
    /// All bytes of the device.
    pub total_bytes: u64,
    /// Bytes in live allocations.
    pub allocated_bytes: u64,
    /// Bytes that the allocator holds of the device.
    pub reserved_bytes: u64,
    /// Of the reserved bytes, those that are free in private pools, where others do not get them.
    pub private_free_bytes: u64,
    /// The cap on `reserved_bytes`, if there is one.
    pub cap_bytes: Option<u64>,
    /// The largest cached block that is free, on any stream.
    pub largest_free_block_bytes: u64,
    /// What each process holds, where that is known.
    pub processes: Vec<ProcessMemory>,
    /// Whether expandable segments were on.
    pub expandable_segments: bool,
    /// The request was refused by a rule before the device was asked.
    pub rejected: bool,
}

impl OutOfMemory {
    /// Bytes that the allocator holds but that neither a live allocation nor a private pool uses.
    pub fn unallocated_bytes(&self) -> u64 {
        let used_bytes = self.allocated_bytes.saturating_add(self.private_free_bytes);
        self.reserved_bytes.saturating_sub(used_bytes)
    }

    /// What a person could do about it, judged from the numbers.
    fn advice(&self) -> String {
        let unallocated = self.unallocated_bytes();
        if self.rejected || self.cap_bytes.is_some_and(|cap| self.tried_bytes > cap) {
            return "The request is larger than the memory fraction allows; raise the fraction or \
                    ask for less."
                .to_owned();
        }
        if self.tried_bytes > self.total_bytes {
            return "The request is larger than the whole device.".to_owned();
        }
        if unallocated >= self.tried_bytes {
            let blocks = Bytes(self.largest_free_block_bytes);
            let cure = if self.expandable_segments {
                "free memory on the stream that asks, or empty the cache between phases"
            } else {
                "set expandable_segments:True, which joins free pieces"
            };
            return format!(
                "The cache has enough bytes but in pieces, the largest {blocks}: {cure}."
            );
        }
        if self.private_free_bytes >= self.tried_bytes {
            let kept = Bytes(self.private_free_bytes);
            return format!(
                "Private pools keep {kept} free: let go of those that are done with, or let requests \
                 from outside use them when memory runs out."
            );
        }
        let others: u64 = self
            .processes
            .iter()
            .filter(|process| !process.own)
            .map(|process| process.used_bytes)
            .sum();
        if others >= self.tried_bytes {
            return format!("Other processes hold {}; stop them to make room.", Bytes(others));
        }
        "The program needs more memory than there is: use smaller batches, or recompute instead \
         of keeping activations."
            .to_owned()
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} out of memory. Tried to allocate {}. {} has a total capacity of {} of which {} \
             is free. ",
            self.device,
            Bytes(self.tried_bytes),
            self.device,
            Bytes(self.total_bytes),
            Bytes(self.free_bytes)
        )?;
        for process in &self.processes {
            let used = Bytes(process.used_bytes);
            if process.own {
                write!(f, "This process holds {used}, other libraries' memory included. ")?;
            } else {
                write!(f, "Process {} holds {used}. ", process.pid)?;
            }
        }
        if let Some(cap) = self.cap_bytes {
            write!(f, "{} allowed. ", Bytes(cap))?;
        }
        write!(f, "{} is in live allocations, ", Bytes(self.allocated_bytes))?;
        if self.private_free_bytes > 0 {
            write!(f, "{} is kept by private pools, ", Bytes(self.private_free_bytes))?;
        }
        let unallocated = Bytes(self.unallocated_bytes());
        write!(f, "and {unallocated} is reserved but unallocated. {}", self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{GIB, MIB};

    fn report() -> OutOfMemory {
        OutOfMemory {
            device: DeviceIndex(0),
            requested_bytes: 3 * GIB - 5,
            rounded_bytes: 3 * GIB,
            tried_bytes: 3 * GIB,
            free_bytes: 2 * GIB,
            total_bytes: 80 * GIB,
            allocated_bytes: 70 * GIB,
            reserved_bytes: 78 * GIB,
            private_free_bytes: 0,
            cap_bytes: None,
            largest_free_block_bytes: GIB,
            processes: Vec::new(),
            expandable_segments: false,
            rejected: false,
        }
    }

    #[test]
    fn the_message_has_the_figures_and_a_way_out() {
        let text = report().to_string();
        assert!(text.starts_with("GPU 0 out of memory. Tried to allocate 3.00 GiB."), "{text}");
        assert!(text.contains("GPU 0 has a total capacity of 80.00 GiB of which 2.00 GiB is free"));
        assert!(text.contains("8.00 GiB is reserved but unallocated"), "{text}");
        assert!(text.contains("expandable_segments:True"), "{text}");
    }

    #[test]
    fn the_advice_follows_from_the_numbers() {
        let on = OutOfMemory { expandable_segments: true, ..report() };
        assert!(!on.to_string().contains("expandable_segments:True"), "it is on already");
        let pooled = OutOfMemory { private_free_bytes: 6 * GIB, ..report() };
        assert!(pooled.to_string().contains("6.00 GiB is kept by private pools, and 2.00 GiB is"));
        assert!(pooled.to_string().contains("Private pools keep 6.00 GiB free: let go of those"));
        let little =
            OutOfMemory { private_free_bytes: 2 * GIB, allocated_bytes: 75 * GIB, ..report() };
        assert!(little.to_string().contains("smaller batches"), "that would not do");
        let full = OutOfMemory { allocated_bytes: 78 * GIB, ..report() };
        assert!(full.to_string().contains("smaller batches"));
        let other = ProcessMemory { pid: 7, own: false, used_bytes: 40 * GIB };
        let crowded = OutOfMemory { processes: vec![other], ..full };
        assert!(crowded.to_string().contains("Process 7 holds 40.00 GiB"));
        assert!(crowded.to_string().contains("stop them"));
        let capped = OutOfMemory { cap_bytes: Some(20 * MIB), ..report() };
        assert!(capped.to_string().contains("20.00 MiB allowed"));
        assert!(capped.to_string().contains("raise the fraction"));
    }
}
