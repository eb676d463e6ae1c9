//! What happened. The heap states each fact once, as a [`Record`]; whoever counts or remembers
//! listens to it, and nothing else counts.

pub(crate) mod caught;
pub mod context;
mod counter;
pub mod event;
mod gauge;
pub mod history;
mod keep;
pub mod note;
mod ring;
pub mod stats;

use crate::types::{Addr, DeviceIndex, PoolKind, StreamId};
use history::History;
use stats::{Counter, Counts, Stats};

/// Where and how large: what most facts have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of pool it belongs to.
    pub kind: PoolKind,
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Its first address.
    pub addr: Addr,
    /// Its size.
    pub size_bytes: u64,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A block was handed out.
    Alloc {
        /// The block.
        place: Place,
        /// What the program asked for.
        requested_bytes: u64,
        /// The block is at or above the split limit.
        oversize: bool,
    },
    /// The program gave a block back, and no stream uses it: it is free.
    Free {
        /// The block, as it was before it merged.
        place: Place,
        /// What the program had asked for.
        requested_bytes: u64,
        /// The block counts as oversize.
        oversize: bool,
    },
    /// The program gave a block back; some stream may still use it.
    FreeRequested {
        /// The block.
        place: Place,
        /// What the program had asked for.
        requested_bytes: u64,
        /// The block counts as oversize.
        oversize: bool,
    },
    /// A block that some stream used is free: none uses it any more.
    FreeCompleted {
        /// The block, as it was before it merged.
        place: Place,
        /// What the program had asked for.
        requested_bytes: u64,
    },
    /// The free pieces of segments that are partly in use changed by so many and so much.
    InactiveSplit {
        /// The kind of pool.
        kind: PoolKind,
        /// More or fewer pieces.
        blocks: i64,
        /// More or fewer bytes.
        bytes: i64,
    },
    /// The same, where it is known that they became fewer or stayed as many, and less.
    FewerPieces {
        /// The kind of pool.
        kind: PoolKind,
        /// Fewer pieces.
        blocks: u64,
        /// Fewer bytes.
        bytes: u64,
    },
    /// The device gave a segment.
    SegmentAlloc {
        /// The segment.
        place: Place,
        /// The segment is at or above the split limit.
        oversize: bool,
    },
    /// A segment went back to the device.
    SegmentFree {
        /// The segment.
        place: Place,
        /// The segment counts as oversize.
        oversize: bool,
    },
    /// Pages were mapped into an expandable segment.
    SegmentMap {
        /// The mapped span.
        place: Place,
    },
    /// Pages were taken out of an expandable segment.
    SegmentUnmap {
        /// The unmapped span.
        place: Place,
    },
    /// Pages were mapped a second time, in a view.
    Shown,
    /// Pages were unmapped from a view.
    Hidden,
    /// Everything cached was given back and the device is asked once more.
    Retry,
    /// All events were waited for.
    SyncAllStreams,
    /// A request could not be met.
    OutOfMemory,
    /// A request was refused by a rule before the device was asked.
    Rejected,
}

/// Passes each record on to all who listen.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    counts: Counts,
    /// Whether records have to be told to the history. One flag, beside the numbers that every
    /// record touches anyway: off, the history costs a branch that never goes the other way.
    is_listening: bool,
    /// Whether nothing but entries is asked of the history: no contexts, and no trackers.
    tells_simply: bool,
    history: Option<Box<History>>,
}

impl Recorder {
    /// States a fact. Inlined without exception: then a record that is stated in place is never
    /// built, and only its counting remains.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn record(&mut self, record: Record) {
        self.counts.record(record);
    }

    /// Whether records have to be told to the history.
    #[inline]
    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Tells the history nothing until `go_on`. Says whether it was told until now.
    pub(crate) fn pause(&mut self) -> bool {
        std::mem::replace(&mut self.is_listening, false)
    }

    /// Tells the history again, if it was told before `pause`.
    pub(crate) fn go_on(&mut self, was_listening: bool) {
        debug_assert!(!self.is_listening, "paused once and not twice");
        self.is_listening = was_listening;
    }

    /// The history while records have to be told to it, and nothing but entries is asked for.
    #[inline]
    pub(crate) fn simple_listener(&mut self) -> Option<&mut History> {
        if self.tells_simply { self.history.as_deref_mut() } else { None }
    }

    /// The history, if there is or was anything to remember.
    pub(crate) fn history(&self) -> Option<&History> {
        self.history.as_deref()
    }

    /// The history while records have to be told to it.
    #[inline]
    pub(crate) fn listener(&mut self) -> Option<&mut History> {
        if self.is_listening { self.history.as_deref_mut() } else { None }
    }

    /// Changes the history, which is made where there is none, and then listens as it needs.
    pub(crate) fn change_history<T>(
        &mut self,
        device: DeviceIndex,
        change: impl FnOnce(&mut History) -> T,
    ) -> T {
        let history = self.history.get_or_insert_with(|| Box::new(History::new(device)));
        let result = change(history);
        self.is_listening = history.is_needed();
        self.tells_simply = self.is_listening && history.is_simple();
        result
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        self.counts.stats()
    }

    /// How many free pieces of segments there are, small and large, and how many bytes in them.
    pub(crate) fn pieces(&self) -> [[i64; 2]; 2] {
        self.counts.pieces()
    }

    /// Bytes in live allocations, without the cost of all statistics.
    pub fn allocated_bytes(&self) -> u64 {
        self.counts.allocated_bytes()
    }

    /// Bytes in live blocks and in those that are still awaited.
    pub(crate) fn active_bytes(&self) -> Counter {
        self.counts.active_bytes()
    }

    /// The most bytes that were active since the phase began, whether or not somebody reset the
    /// peaks that are shown.
    pub(crate) fn phase_peak_bytes(&self) -> u64 {
        self.counts.phase_peak_bytes()
    }

    /// A phase of the program begins, with what is active now.
    pub(crate) fn begin_phase(&mut self) {
        self.counts.begin_phase();
    }

    /// Peaks become the current values.
    pub(crate) fn reset_peak(&mut self) {
        self.counts.reset_peak();
    }

    /// Sums of increases and decreases, and the plain counters, become zero.
    pub(crate) fn reset_accumulated(&mut self) {
        self.counts.reset_accumulated();
    }
}
