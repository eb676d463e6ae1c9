//! Out of memory: a set of numbers first; the words, and what a person could do, follow from them.

use std::fmt;

use crate::device::ProcessMemory;
use crate::types::{Bytes, DeviceIndex};

/// Everything there is to know about a request that could not be met.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
    /// A capture was on, so that nothing was waited for and nothing cached was given back.
    pub captured: bool,
}

impl OutOfMemory {
    /// A request for so many bytes of a device; all other numbers are yet to be filled in.
    pub fn new(device: DeviceIndex, requested_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            device,
            requested_bytes,
            rounded_bytes: requested_bytes,
            tried_bytes: requested_bytes,
            free_bytes: 0,
            total_bytes: 0,
            allocated_bytes: 0,
            reserved_bytes: 0,
            private_free_bytes: 0,
            cap_bytes: None,
            largest_free_block_bytes: 0,
            processes: Vec::new(),
            expandable_segments: false,
            rejected: false,
            captured: false,
        }
    }

    /// Bytes that the allocator holds but that neither a live allocation nor a private pool uses.
    pub fn unallocated_bytes(&self) -> u64 {
        let used_bytes = self.allocated_bytes.saturating_add(self.private_free_bytes);
        self.reserved_bytes.saturating_sub(used_bytes)
    }

    /// Bytes that the cap leaves, whether the device has them or not.
    fn cap_room_bytes(&self) -> u64 {
        self.cap_bytes.map_or(u64::MAX, |cap| cap.saturating_sub(self.reserved_bytes))
    }

    /// What a person could do about it, judged from the numbers.
    fn advice(&self) -> String {
        if self.rejected {
            return "The settings refuse at once what would pass the memory fraction, together with all that \
                    is reserved: empty the cache, raise the fraction, or ask for less."
                .to_owned();
        }
        if self.tried_bytes > self.total_bytes {
            return "The request is larger than the whole device.".to_owned();
        }
        if self.cap_bytes.is_some_and(|cap| self.tried_bytes > cap) {
            return "The request is larger than the memory fraction allows; raise the fraction or \
                    ask for less."
                .to_owned();
        }
        if self.free_bytes.min(self.cap_room_bytes()) >= self.tried_bytes {
            return "It was refused although so much is free: memory goes in whole pages, others come \
                    and go, and a pool's own source may have none left."
                .to_owned();
        }
        let remedies = [
            self.advice_on_pieces(),
            self.advice_on_the_fraction(),
            self.advice_on_private_pools(),
            self.advice_on_other_processes(),
        ];
        let remedies: Vec<String> = remedies.into_iter().flatten().collect();
        if remedies.is_empty() {
            return "The program needs more memory than there is: use smaller batches, or recompute \
                    instead of keeping activations."
                .to_owned();
        }
        remedies.join(" ")
    }

    /// The bytes are there, some on the device and some in the cache, but not side by side.
    fn advice_on_pieces(&self) -> Option<String> {
        let unallocated = self.unallocated_bytes();
        let room = self.free_bytes.min(self.cap_room_bytes());
        if room.saturating_add(unallocated) < self.tried_bytes {
            return None;
        }
        let (room, cached) = (Bytes(room), Bytes(unallocated));
        if self.captured {
            return Some(format!(
                "The cache has {cached} free that cannot be given back while a capture is on: empty it \
                 before the capture, or capture into a pool that has its memory already."
            ));
        }
        let (largest, cure) = (Bytes(self.largest_free_block_bytes), self.cure_for_pieces());
        Some(if unallocated >= self.tried_bytes {
            format!("The cache has enough bytes but in pieces, the largest {largest}: {cure}.")
        } else {
            format!(
                "There are enough bytes but in pieces, {room} to be had of the device and {cached} in the \
                 cache, there the largest {largest}: {cure}."
            )
        })
    }

    fn cure_for_pieces(&self) -> &'static str {
        if self.expandable_segments {
            "free memory on the stream that asks, or empty the cache between phases"
        } else {
            "set expandable_segments:True, which joins free pieces"
        }
    }

    /// The device has the bytes, and the cap keeps them from the program.
    fn advice_on_the_fraction(&self) -> Option<String> {
        let within = self.free_bytes.saturating_add(self.unallocated_bytes());
        if self.cap_room_bytes() >= self.free_bytes || within < self.tried_bytes {
            return None;
        }
        let cap = Bytes(self.cap_bytes.unwrap_or(self.total_bytes));
        let (reserved, free) = (Bytes(self.reserved_bytes), Bytes(self.free_bytes));
        let cure = if self.free_bytes < self.tried_bytes {
            format!(" and, because the memory is in pieces, {}", self.cure_for_pieces())
        } else {
            String::new()
        };
        Some(format!(
            "The memory fraction stops it: {reserved} of the {cap} that it allows is reserved, while the \
             device has {free} free; raise the fraction{cure}."
        ))
    }

    /// Private pools keep what would be enough.
    fn advice_on_private_pools(&self) -> Option<String> {
        let room = self.free_bytes.min(self.cap_room_bytes());
        let kept_bytes = self.private_free_bytes;
        let within = room.saturating_add(self.unallocated_bytes()).saturating_add(kept_bytes);
        (kept_bytes > 0 && within >= self.tried_bytes).then(|| {
            format!(
                "Private pools keep {} free: let go of those that are done with, or let requests \
                 from outside use them when memory runs out.",
                Bytes(kept_bytes)
            )
        })
    }

    /// Other processes hold what would be enough.
    fn advice_on_other_processes(&self) -> Option<String> {
        let others = self.processes.iter().filter(|process| !process.own);
        let held_bytes: u64 = others.map(|process| process.used_bytes).sum();
        let room = self.free_bytes.saturating_add(held_bytes).min(self.cap_room_bytes());
        (held_bytes > 0 && room >= self.tried_bytes)
            .then(|| format!("Other processes hold {}; stop them to make room.", Bytes(held_bytes)))
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
            captured: false,
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
            OutOfMemory { private_free_bytes: GIB / 2, allocated_bytes: 77 * GIB, ..report() };
        let text = OutOfMemory { free_bytes: GIB, ..little }.to_string();
        assert!(text.contains("smaller batches"), "that would not do");
        let full = OutOfMemory { allocated_bytes: 78 * GIB, ..report() };
        assert!(full.to_string().contains("smaller batches"));
        let other = ProcessMemory { pid: 7, own: false, used_bytes: 40 * GIB };
        let crowded = OutOfMemory { processes: vec![other], ..full };
        assert!(crowded.to_string().contains("Process 7 holds 40.00 GiB"));
        assert!(crowded.to_string().contains("stop them"));
        let capped = OutOfMemory { cap_bytes: Some(20 * MIB), ..report() };
        assert!(capped.to_string().contains("20.00 MiB allowed"));
        assert!(capped.to_string().contains("raise the fraction or ask for less"));
        let free = OutOfMemory { free_bytes: 3 * GIB, ..report() };
        assert!(free.to_string().contains("although so much is free"));
    }
}
