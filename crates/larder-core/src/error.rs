//! What can go wrong, as values.

use std::fmt;

use crate::config::ConfigError;
use crate::device::DeviceError;
use crate::keeper::KeeperError;
use crate::out_of_memory::OutOfMemory;
use crate::sequence::Divergence;
use crate::source::SegmentFault;
use crate::types::{Addr, Bytes, CaptureToken, DeviceIndex, PoolId, StreamId};

/// Why an allocator's call failed. Whatever the case, the call changed nothing that the caller
/// could observe, but for memory that was given back to the device on the way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// No memory could be found, whatever was tried.
    OutOfMemory(Box<OutOfMemory>),
    /// The address is not that of a live allocation: never handed out, or freed already.
    UnknownAddress(Addr),
    /// A block was asked for at an address where it cannot be.
    NotAt {
        /// The address.
        addr: Addr,
        /// How much was asked for.
        size_bytes: u64,
        /// The stream that it was asked for on.
        stream: StreamId,
        /// Why not.
        problem: AddressProblem,
    },
    /// The block lies in an expandable segment, which has no allocation of its own to name.
    NoBaseAllocation(Addr),
    /// The device refused a call.
    Device {
        /// What we asked of it.
        call: &'static str,
        /// What it said.
        error: DeviceError,
    },
    /// The source of a private pool failed.
    Source {
        /// The pool.
        pool: PoolId,
        /// What we asked of it.
        call: &'static str,
        /// What it said.
        error: DeviceError,
    },
    /// The ranks of a symmetric pool did not make the same calls.
    Diverged(Box<Divergence>),
    /// The ranks of a symmetric pool could not compare their calls.
    Exchange(ExchangeError),
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
    /// No capture of this token is declared: it was ended before.
    NotDeclared(CaptureToken),
    /// Memory cannot be put to sleep, or woken.
    Sleep(SleepProblem),
}

/// Why memory cannot be put to sleep, or woken. What slept sleeps on, with its contents, and what
/// was awake still is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SleepProblem {
    /// No memory was ever asked for under this tag.
    UnknownTag(String),
    /// No region of this tag is open in the calling thread; without a tag, none that leaves all
    /// regions.
    NotOpen(Option<String>),
    /// A tag has no name.
    NoName,
    /// A capture may be on, and the device can be waited for only when it is over.
    Captured,
    /// The keeper has no room for contents.
    NoKeep {
        /// How much was asked of it.
        size_bytes: u64,
        /// What it said.
        said: KeeperError,
    },
    /// The device has no memory for what is to be woken.
    NoRoom {
        /// How much all of it needs.
        needed_bytes: u64,
        /// How much of the device nobody holds.
        free_bytes: u64,
    },
    /// The cap leaves no room for what is to be woken.
    Capped {
        /// How much all of it needs.
        needed_bytes: u64,
        /// How much may still be taken.
        left_bytes: u64,
    },
}

impl fmt::Display for SleepProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SleepProblem::UnknownTag(tag) => {
                write!(f, "no memory was ever asked for under the tag {tag:?}")
            }
            SleepProblem::NotOpen(Some(tag)) => {
                write!(f, "no region of the tag {tag:?} is open in this thread")
            }
            SleepProblem::NotOpen(None) => f.write_str("this thread has left no region"),
            SleepProblem::NoName => f.write_str("a tag has a name, and this one is empty"),
            SleepProblem::Captured => f.write_str(
                "memory cannot be put to sleep or woken while a capture may be on, since the \
                 device can be waited for only when that is over",
            ),
            SleepProblem::NoKeep { size_bytes, said } => write!(
                f,
                "there is no room for {} of contents of what is to sleep: {said}",
                Bytes(*size_bytes)
            ),
            SleepProblem::NoRoom { needed_bytes, free_bytes } => {
                let (needed, free) = (Bytes(*needed_bytes), Bytes(*free_bytes));
                let missing = Bytes(needed_bytes.saturating_sub(*free_bytes));
                write!(
                    f,
                    "what is to be woken needs {needed} of the device, of which {free} are free: \
                     {missing} are missing, and all sleeps on"
                )
            }
            SleepProblem::Capped { needed_bytes, left_bytes } => write!(
                f,
                "what is to be woken needs {}, of which the memory fraction leaves {}: all sleeps \
                 on",
                Bytes(*needed_bytes),
                Bytes(*left_bytes)
            ),
        }
    }
}

/// Why a block cannot be at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressProblem {
    /// Blocks lie at multiples of so many bytes.
    Unaligned(u64),
    /// No free block of the request's pool and stream holds it.
    NotFree,
}

/// Why bytes do not name shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
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
    /// Its source gave memory that is none, or not to be had.
    BadSegment(Addr, SegmentFault),
    /// Its source named an allocation that does not hold the block.
    BadBase(Addr),
    /// It is symmetric: where its blocks lie follows from the calls that ranks make, and from
    /// nothing else.
    Symmetric,
    /// It is not symmetric, so that there is no sequence of calls to compare.
    NotSymmetric,
    /// It is symmetric, and a capture is on that another stream than the default one would have to
    /// join.
    Captured,
    /// A block of it is still used or awaited by another stream, so that its layout is not settled.
    Unsettled(Addr),
    /// Its memory is put together of pieces here, or was given back before it: no layout can name
    /// that. No graph was captured in it.
    Spread(Addr),
    /// The segment that starts here is no longer there as it was when the checkpoint was made.
    SegmentGone(Addr),
    /// The checkpoint is of another pool.
    OtherPool,
    /// The checkpoint was made by another allocator, which may have a pool of the same name.
    OtherAllocator,
    /// Some of its memory sleeps.
    Asleep,
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
            PoolProblem::Asleep => "some of its memory sleeps, and has to be woken first",
            PoolProblem::Symmetric => {
                "it is symmetric, and where its blocks lie follows from the ranks' calls alone"
            }
            PoolProblem::NotSymmetric => "it is not symmetric, and keeps no sequence of calls",
            PoolProblem::Captured => {
                "it is symmetric, and while a capture is on only the default stream may use it"
            }
            PoolProblem::BadSegment(addr, fault) => {
                return write!(f, "its source gave {addr}, which is {fault}");
            }
            PoolProblem::BadBase(addr) => {
                return write!(f, "its source names an allocation that does not hold {addr}");
            }
            PoolProblem::Unsettled(addr) => {
                return write!(f, "another stream still uses or awaits the block at {addr}");
            }
            PoolProblem::Spread(addr) => {
                return write!(
                    f,
                    "its memory is spread over several segments at {addr}, and no graph was \
                     captured in it"
                );
            }
            PoolProblem::SegmentGone(addr) => {
                return write!(f, "the segment at {addr} is not as the checkpoint has it");
            }
        })
    }
}

/// Why a call about a stream and its captures was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Names the pool in an error about it.
    pub(crate) fn pool(pool: PoolId) -> impl FnOnce(PoolProblem) -> Error {
        move |problem| Error::Pool { pool, problem }
    }

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
                "no live allocation starts at {addr}: it was freed already, or never handed out \
                 here"
            ),
            Error::NotAt { addr, problem: AddressProblem::Unaligned(unit_bytes), .. } => {
                write!(f, "no block can be at {addr}: it is no multiple of {unit_bytes} bytes")
            }
            Error::NotAt { addr, size_bytes, stream, problem: AddressProblem::NotFree } => write!(
                f,
                "{size_bytes} bytes on {stream} cannot be at {addr}: no free block of the pool \
                 that serves them holds all of that"
            ),
            Error::NoBaseAllocation(addr) => {
                write!(
                    f,
                    "{addr} lies in an expandable segment, which has no base allocation; allocate \
                     it as plain memory, larder.torch.plain_memory() in PyTorch, or set \
                     expandable_segments:False, unless the policy is tight"
                )
            }
            Error::Device { call, error } => write!(f, "the device refused to {call}: {error}"),
            Error::Source { pool, call, error } => {
                write!(f, "the source of {pool} failed to {call}: {error}")
            }
            Error::Diverged(divergence) => divergence.fmt(f),
            Error::Exchange(words) => {
                write!(f, "the ranks of a symmetric pool could not compare their calls: {words}")
            }
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
            Error::NotDeclared(token) => write!(
                f,
                "no capture has the token {}: it was ended before, or never begun here",
                token.0
            ),
            Error::Sleep(problem) => problem.fmt(f),
            Error::NotOpened(addr) => {
                write!(f, "nothing that another process shares is open at {addr}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Why ranks could not tell each other what they have to say. Who exchanges it for them says so in
/// one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeError(String);

impl<S: Into<String>> From<S> for ExchangeError {
    fn from(sentence: S) -> ExchangeError {
        ExchangeError(sentence.into())
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ExchangeError {}

/// An invariant that does not hold, as a sentence: a mistake in Larder, and none of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsound(String);

impl<S: Into<String>> From<S> for Unsound {
    fn from(sentence: S) -> Unsound {
        Unsound(sentence.into())
    }
}

impl fmt::Display for Unsound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsound {}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}
