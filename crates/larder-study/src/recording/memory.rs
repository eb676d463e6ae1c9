//! Memory: what a trace tells of the device that it was recorded on.

use std::fmt;
use std::num::NonZeroUsize;

use larder_core::config::Config;
use larder_core::heap::size;
use larder_core::types::{Bytes, MIB};

use larder_snapshot::{Action, Room, SegmentInfo, TraceEntry};

/// How much memory the recorded program had. What other processes, the CUDA context and other
/// libraries took of the card is not in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedMemory {
    /// What the device had for this program.
    pub device_bytes: u64,
    /// The part of it that the program was allowed, where a memory fraction was in force.
    pub fraction: Option<f64>,
    /// What tells it.
    pub told_by: ToldBy,
    /// Where the recording does not tell how much the program could have had: what is known of it.
    /// The most that goes with it is taken, because that is fair to other settings.
    pub bounds: Option<Bounds>,
    /// What the program was allowed, to the byte, where the recording says it.
    pub cap_bytes: Option<u64>,
}

impl RecordedMemory {
    /// What the program was allowed of the memory, if a fraction was in force.
    pub fn allowed_bytes(&self) -> Option<u64> {
        let fraction = self.fraction?;
        Some(self.cap_bytes.unwrap_or((fraction * self.device_bytes as f64) as u64))
    }
}

/// What is known of a limit that a recording does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// There was room for so much.
    pub least_bytes: u64,
    /// There was no room for so much.
    pub below_bytes: u64,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, below) = (Bytes(self.least_bytes), Bytes(self.below_bytes));
        write!(f, "at least {least} and less than {below}, more the recording does not tell")
    }
}

/// What tells how much memory there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldBy {
    /// An allocation failed, with so much free on the device and so much reserved.
    Failure {
        /// Free on the device.
        free_bytes: u64,
        /// Reserved by the program.
        reserved_bytes: u64,
    },
    /// The allocator gave its cache back and tried again: there was room for what it had reserved
    /// before, and for no more.
    Retry,
    /// The recording says what the device has, and how much of it the program was allowed.
    Snapshot,
}

impl fmt::Display for RecordedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.told_by {
            ToldBy::Failure { free_bytes, reserved_bytes } => {
                let (free, reserved) = (Bytes(free_bytes), Bytes(reserved_bytes));
                write!(
                    f,
                    "the recorded one's: {free} free and {reserved} reserved when it ran out"
                )?;
                // What else was on the card counts into what a fraction is of.
                let more_bytes = self.device_bytes.saturating_sub(free_bytes + reserved_bytes);
                if self.fraction.is_some() && self.cap_bytes.is_none() && more_bytes > 0 {
                    write!(
                        f,
                        ", and {} more, which its fraction must have been of",
                        Bytes(more_bytes)
                    )?;
                }
                Ok(())
            }
            ToldBy::Retry => f.write_str("at least what the recorded one had when it was full"),
            ToldBy::Snapshot => f.write_str("the recorded one's, all of it"),
        }?;
        match (self.fraction, self.bounds) {
            (Some(_), bounds) => {
                let allowed = Bytes(self.allowed_bytes().unwrap_or(self.device_bytes));
                match bounds {
                    None if self.cap_bytes.is_some() => {
                        write!(f, ", of which the program was allowed {allowed}")
                    }
                    None => write!(f, ", of which the program was allowed about {allowed}"),
                    Some(bounds) => write!(
                        f,
                        ", of which the program was allowed {bounds}; here it is {allowed}"
                    ),
                }?;
            }
            (None, Some(bounds)) => write!(f, ": {bounds}")?,
            (None, None) => {}
        }
        if self.told_by != ToldBy::Snapshot {
            f.write_str("; without what other processes and the CUDA context took")?;
        }
        if self.fraction.is_some() && self.cap_bytes.is_none() {
            f.write_str(", so give --card with the card's size if you know it, or --cap")?;
        }
        Ok(())
    }
}

/// The request that memory of the device was asked for, as the trace tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) rounded_bytes: u64,
    pub(super) stream: u64,
    /// Where its entry stands.
    pub(super) index: usize,
}

/// How much a request asks for after rounding. More than any allocator takes is as much as that.
pub(super) fn rounded(size_bytes: u64, config: &Config) -> u64 {
    size::round(size_bytes.min(size::REQUEST_LIMIT_BYTES), config)
}

/// Which request the entries about memory of the device belong to, that an allocator got or gave
/// back for it.
pub(super) struct Requests(Vec<Option<NonZeroUsize>>);

impl Requests {
    pub(super) fn of(trace: &[TraceEntry]) -> Requests {
        let mut next = None;
        let mut requests = vec![None; trace.len()];
        for (index, entry) in trace.iter().enumerate().rev() {
            match entry.action {
                // One behind it, because there is none before the first.
                Action::Alloc | Action::OutOfMemory => next = NonZeroUsize::new(index + 1),
                Action::SegmentAlloc
                | Action::SegmentFree
                | Action::SegmentMap
                | Action::SegmentUnmap
                | Action::FreeCompleted => {}
                Action::FreeRequested | Action::Snapshot | Action::Annotate | Action::Other => {
                    next = None;
                }
            }
            requests[index] = next;
        }
        Requests(requests)
    }

    /// The request that the entry at `index` is, or that it belongs to.
    pub(super) fn at(
        &self,
        index: usize,
        trace: &[TraceEntry],
        config: &Config,
    ) -> Option<Request> {
        let index = self.0.get(index).copied().flatten()?.get() - 1;
        Some(Request::of(index, trace, config))
    }
}

impl Request {
    fn of(index: usize, trace: &[TraceEntry], config: &Config) -> Request {
        let entry = &trace[index];
        let rounded_bytes = rounded(entry.size_bytes, config);
        Request { rounded_bytes, stream: entry.stream, index }
    }

    /// With so much reserved it makes out this much for a cap. Were it refused, there was less.
    pub(super) fn full_at(&self, reserved_bytes: u64, config: &Config) -> u64 {
        reserved_bytes.saturating_add(size::segment_bytes(self.rounded_bytes, config))
    }

    /// The most memory that it can need of the device.
    pub(super) fn growth_bytes(&self, config: &Config) -> u64 {
        let segment_bytes = size::segment_bytes(self.rounded_bytes, config);
        if !config.expandable_segments {
            return segment_bytes;
        }
        let page_bytes = size::page_bytes(size::kind(self.rounded_bytes), config);
        let pages_bytes = self.rounded_bytes.checked_next_multiple_of(page_bytes);
        segment_bytes.max(pages_bytes.unwrap_or(u64::MAX))
    }
}

/// How much was reserved in the course of a trace, and what follows for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Levels {
    /// Reserved before the first entry.
    pub(super) first_bytes: u64,
    /// There was room for so much, on the device and under a cap.
    pub(super) room_bytes: u64,
    /// The allocation that failed with the least on the device: free, and reserved.
    failure: Option<(u64, u64)>,
    /// The most that was free and reserved together when an allocation failed: a card has no less.
    seen_bytes: u64,
    /// Something failed though the device had room for it.
    is_capped: bool,
    /// The least that was reserved and asked for together by a request that failed.
    refused_bytes: Option<u64>,
    /// The same of those that failed though the device had room: what a cap refused.
    capped_bytes: Option<u64>,
}

/// Memory is got from a device in multiples of this, under all settings.
const STEP_BYTES: u64 = 2 * MIB;

/// What an entry changes about the memory that is reserved.
pub(super) fn reserved_after(reserved_bytes: u64, entry: &TraceEntry) -> u64 {
    match entry.action {
        Action::SegmentAlloc | Action::SegmentMap => {
            reserved_bytes.saturating_add(entry.size_bytes)
        }
        Action::SegmentFree | Action::SegmentUnmap => {
            reserved_bytes.saturating_sub(entry.size_bytes)
        }
        _ => reserved_bytes,
    }
}

/// The most that was held in the course of a trace.
pub(super) fn held_most_bytes<'b>(
    at_the_end: impl Iterator<Item = &'b SegmentInfo>,
    trace: &[TraceEntry],
) -> u64 {
    let end = at_the_end.fold(0_u64, |sum, info| sum.saturating_add(info.size_bytes));
    let (mut reserved_bytes, mut most_bytes) = (end, end);
    for entry in trace.iter().rev() {
        reserved_bytes = match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                reserved_bytes.saturating_sub(entry.size_bytes)
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                reserved_bytes.saturating_add(entry.size_bytes)
            }
            _ => reserved_bytes,
        };
        most_bytes = most_bytes.max(reserved_bytes);
    }
    most_bytes
}

impl Levels {
    pub(super) fn of<'b>(
        config: &Config,
        at_the_end: impl Iterator<Item = &'b SegmentInfo>,
        trace: &[TraceEntry],
    ) -> Levels {
        let end = at_the_end.fold(0_u64, |sum, info| sum.saturating_add(info.size_bytes));
        let first_bytes = trace.iter().rev().fold(end, |after, entry| match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => after.saturating_sub(entry.size_bytes),
            Action::SegmentFree | Action::SegmentUnmap => after.saturating_add(entry.size_bytes),
            _ => after,
        });
        let is_capped = config.memory_fraction < 1.0;
        let mut levels = Levels {
            first_bytes,
            room_bytes: 0,
            failure: None,
            seen_bytes: 0,
            is_capped,
            refused_bytes: None,
            capped_bytes: None,
        };
        let (mut reserved_bytes, mut grown_from) = (first_bytes, None);
        let (mut held_max_bytes, mut asked_max_bytes) = (first_bytes, 0_u64);
        let mut failures = Vec::new();
        for (index, entry) in trace.iter().enumerate() {
            let before_bytes = reserved_bytes;
            reserved_bytes = reserved_after(reserved_bytes, entry);
            held_max_bytes = held_max_bytes.max(reserved_bytes);
            match entry.action {
                Action::SegmentAlloc => asked_max_bytes = asked_max_bytes.max(reserved_bytes),
                Action::SegmentMap => {
                    grown_from.get_or_insert(before_bytes);
                }
                // Under a cap a request is measured before whole pages are mapped for it.
                Action::Alloc => {
                    if let Some(from_bytes) = grown_from.take() {
                        let rounded_bytes = rounded(entry.size_bytes, config);
                        let asked_bytes = size::segment_bytes(rounded_bytes, config);
                        asked_max_bytes =
                            asked_max_bytes.max(from_bytes.saturating_add(asked_bytes));
                    }
                }
                Action::OutOfMemory => {
                    let request = Request::of(index, trace, config);
                    let full_bytes = request.full_at(reserved_bytes, config);
                    levels.refuse(full_bytes);
                    if entry.addr >= request.growth_bytes(config) {
                        levels.is_capped = true;
                        let known_bytes = levels.capped_bytes.unwrap_or(u64::MAX);
                        levels.capped_bytes = Some(known_bytes.min(full_bytes));
                    }
                    failures.push((entry.addr, reserved_bytes));
                    grown_from = None;
                }
                _ => grown_from = None,
            }
        }
        let seen = failures.iter().map(|&(free, held): &(u64, u64)| free.saturating_add(held));
        levels.seen_bytes = seen.max().unwrap_or(0);
        levels.failure = failures.into_iter().min_by_key(|&(free, held)| free.saturating_add(held));
        levels.room_bytes = match (levels.is_capped, levels.failure) {
            (true, _) => asked_max_bytes,
            (false, Some((free, held))) => held_max_bytes.max(free.saturating_add(held)),
            (false, None) => held_max_bytes,
        };
        levels
    }

    /// There was less than this.
    pub(super) fn refuse(&mut self, full_bytes: u64) {
        let known_bytes = self.refused_bytes.unwrap_or(u64::MAX);
        self.refused_bytes = Some(known_bytes.min(full_bytes));
    }

    /// How much memory there was, if anything tells it. `has_retried` says whether the allocator
    /// was seen to give its cache back for want of it.
    pub(super) fn memory(&self, config: &Config, has_retried: bool) -> Option<RecordedMemory> {
        let (device_bytes, told_by) = match self.failure {
            Some((free_bytes, reserved_bytes)) => {
                let told_by = ToldBy::Failure { free_bytes, reserved_bytes };
                (free_bytes.saturating_add(reserved_bytes), told_by)
            }
            None if has_retried => (0, ToldBy::Retry),
            None => return None,
        };
        let has_fraction = config.memory_fraction < 1.0;
        // A failure tells the device, and settings that name the fraction tell its part of that.
        let is_told = self.failure.is_some() && !self.is_capped;
        let bounds = self.bounds().filter(|_| !is_told);
        let room_bytes = match bounds {
            // How many pages of the device a request was short of is not known; too many would do.
            Some(_) if config.expandable_segments && !self.is_capped => self.room_bytes,
            Some(bounds) => bounds.most_bytes(),
            None => self.room_bytes,
        };
        if !self.is_capped {
            let device_bytes = device_bytes.max(room_bytes);
            let (fraction, cap_bytes) = (None, None);
            return Some(RecordedMemory { device_bytes, fraction, told_by, bounds, cap_bytes });
        }
        if has_fraction {
            return Some(self.part_of_card(config.memory_fraction, told_by));
        }
        let device_bytes = device_bytes.max(room_bytes).max(1);
        // Half a byte more, so that what is cut off is not the last byte of the room.
        let fraction = ((room_bytes as f64 + 0.5) / device_bytes as f64).min(1.0);
        let (fraction, cap_bytes) = (Some(fraction), None);
        Some(RecordedMemory { device_bytes, fraction, told_by, bounds, cap_bytes })
    }

    /// How much memory there was, where the recording says what the device has. What it says is
    /// left out where it cannot have been in force when something was got or refused: a program may
    /// change its cap.
    pub(super) fn memory_in(
        &self,
        config: &Config,
        room: Room,
        found: Option<RecordedMemory>,
    ) -> Option<RecordedMemory> {
        let Some(cap_bytes) = room.cap_bytes.filter(|&cap| cap < room.total_bytes) else {
            return found;
        };
        let is_refuted = cap_bytes < self.room_bytes
            || self.capped_bytes.is_some_and(|refused_bytes| cap_bytes >= refused_bytes);
        if is_refuted {
            return found;
        }
        let (device_bytes, told_by) = match found {
            Some(found) => (found.device_bytes.clamp(cap_bytes, room.total_bytes), found.told_by),
            None => (room.total_bytes, ToldBy::Snapshot),
        };
        // A fraction that the settings name keeps its digits.
        let named = config.memory_fraction;
        let is_named = (named * room.total_bytes as f64) as u64 == cap_bytes;
        let fraction = if is_named { named } else { cap_bytes as f64 / room.total_bytes as f64 };
        Some(RecordedMemory {
            device_bytes,
            fraction: Some(fraction),
            told_by,
            bounds: None,
            cap_bytes: Some(cap_bytes),
        })
    }

    /// Under a fraction that the settings name: the card is no smaller than what was seen of it,
    /// and so much larger that there was room for what was held; what was refused is the limit.
    fn part_of_card(&self, fraction: f64, told_by: ToldBy) -> RecordedMemory {
        let part = |card_bytes: u64| (fraction * card_bytes as f64) as u64;
        let (room_bytes, refused_bytes) = match (told_by, self.bounds()) {
            (ToldBy::Failure { .. }, _) => (self.room_bytes, self.capped_bytes),
            (ToldBy::Retry | ToldBy::Snapshot, None) => (self.room_bytes, None),
            (ToldBy::Retry | ToldBy::Snapshot, Some(bounds)) => {
                (bounds.most_bytes(), self.refused_bytes)
            }
        };
        // What else is on the card counts into what the fraction is of.
        let least_bytes = (room_bytes as f64 / fraction).ceil() as u64;
        let has_room = |bytes: &u64| part(*bytes) >= room_bytes;
        let least_bytes = (least_bytes..least_bytes.saturating_add(1 << 20)).find(has_room);
        let device_bytes = self.seen_bytes.max(least_bytes.unwrap_or(0));
        let least_bytes = self.room_bytes.max(part(self.seen_bytes));
        let bounds = refused_bytes.map(|below_bytes| Bounds { least_bytes, below_bytes });
        let bounds = bounds.filter(|bounds| bounds.below_bytes > part(device_bytes));
        let (fraction, cap_bytes) = (Some(fraction), None);
        RecordedMemory { device_bytes, fraction, told_by, bounds, cap_bytes }
    }

    fn bounds(&self) -> Option<Bounds> {
        let (least_bytes, below_bytes) = (self.room_bytes, self.refused_bytes?);
        (below_bytes > least_bytes).then_some(Bounds { least_bytes, below_bytes })
    }
}

impl Bounds {
    /// The most that an allocator could have had: it gets memory in steps.
    fn most_bytes(&self) -> u64 {
        let most_bytes = (self.below_bytes - 1) / STEP_BYTES * STEP_BYTES;
        most_bytes.max(self.least_bytes)
    }
}
