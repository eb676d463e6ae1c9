//! Outcomes: what a step did to the program's memory.

use larder_core::types::{Addr, PoolKind, StreamId};

/// What a step did to the program's memory, as far as the program can tell.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Allocated {
        addr: Addr,
        size_bytes: u64,
        requested_bytes: u64,
        stream: StreamId,
        /// So much right before it was handed out first, and given back after it.
        before_bytes: u64,
    },
    Freed {
        addr: Addr,
    },
    /// A layout was put back: these blocks were freed, and then those of the layout handed out, of
    /// which the live ones stay.
    Restored {
        freed: Vec<Addr>,
        layout: Vec<Placed>,
    },
    Nothing,
}

/// A block of a layout that was saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) addr: Addr,
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) kind: PoolKind,
    pub(super) live: bool,
}
