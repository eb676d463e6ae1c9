//! Out of memory: a set of numbers first; the words, and what a person could do, follow from them.

use std::fmt;

use crate::device::ProcessMemory;
use crate::types::{Bytes, DeviceIndex, MIB};

/// The smallest pages that expandable segments can have: `page_size_mb:2`.
pub(crate) const FINE_PAGE_BYTES: u64 = 2 * MIB;

/// When nothing is waited for and nothing given back. PyTorch before 2.13 takes any open pool for a
/// capture.
const CAPTURE: &str = "a capture or a pool's scope is open";

/// Everything there is to know about a request that could not be met.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own; any mixture can be.
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
    /// What of the cache is free, and how it lies.
    pub pieces: Pieces,
    /// What each process holds, where that is known.
    pub processes: Vec<ProcessMemory>,
    /// Whether expandable segments were on.
    pub expandable_segments: bool,
    /// Whether settings of Larder's own may be advised: stock PyTorch, whose policy this may be,
    /// has none of them.
    pub own_settings: bool,
    /// The request was refused by a rule before the device was asked.
    pub rejected: bool,
    /// What that rule does not let be passed; 0 where none refused it.
    pub rule_bytes: u64,
    /// A capture was on, so that nothing was waited for and nothing cached was given back.
    pub captured: bool,
    /// The file to which all memory and what happened before was written for whoever asked for
    /// that.
    pub snapshot: Option<String>,
}

/// How what is free in the cache lies, after all was given back that could be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pieces {
    /// A free block that the request would be given is there by now.
    pub fits_now: bool,
    /// The largest free block where the request looks for one: in its own pool, on its own stream.
    pub own_block_bytes: u64,
    /// Bytes of whole segments and whole pages that are free, which could go back to the device.
    pub idle_bytes: u64,
    /// Whether whole pages that are free were to be had, wherever they lie: a view shows them side
    /// by side.
    pub joins_pages: bool,
    /// Whether the request's memory could come from expandable segments.
    pub can_expand: bool,
    /// How many addresses a new expandable segment of its stream has, where the settings say so.
    pub reserve_bytes: Option<u64>,
    /// The size of the pages that it would get there.
    pub page_bytes: u64,
    /// What would be whole free pages if all memory lay in such pages, wherever they began.
    pub pages_sure_bytes: u64,
    /// The same, if every free piece began with a page.
    pub pages_at_best_bytes: u64,
    /// The same in the smallest pages, of 2 MiB.
    pub fine_pages_bytes: u64,
    /// Bytes of whole segments and whole pages that are free in private pools other than the
    /// request's.
    pub private_idle_bytes: u64,
    /// The largest free block that a private pool could lend to the request.
    pub lendable_block_bytes: u64,
    /// Bytes that were freed, and cannot be had before a capture is over.
    pub put_off_bytes: u64,
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
            pieces: Pieces::default(),
            processes: Vec::new(),
            expandable_segments: false,
            own_settings: false,
            rejected: false,
            rule_bytes: 0,
            captured: false,
            snapshot: None,
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

    /// Bytes that are to be had of the device.
    fn room_bytes(&self) -> u64 {
        self.free_bytes.min(self.cap_room_bytes())
    }

    /// Whether so many bytes of a device, in pages of this size, hold the request.
    fn holds(&self, bytes: u64, page_bytes: u64) -> bool {
        let page_bytes = page_bytes.max(1);
        let needed_bytes = self.rounded_bytes.checked_next_multiple_of(page_bytes);
        needed_bytes.is_some_and(|needed| bytes / page_bytes * page_bytes >= needed)
    }

    /// Whether the request would be served if the device had so many bytes for it.
    fn is_served_by(&self, bytes: u64) -> bool {
        if self.expandable_segments && self.pieces.can_expand {
            self.holds(bytes, self.pieces.page_bytes)
        } else {
            bytes >= self.tried_bytes
        }
    }

    /// What a person could do about it, judged from the numbers: only what they show to be enough.
    fn advice(&self) -> String {
        if self.pieces.fits_now {
            return format!(
                "A free block of {} would hold it: it came free while this was tried, as one does \
                 that another stream still used, and this policy does not look again (policy \
                 larder does). Asking again succeeds.",
                Bytes(self.pieces.own_block_bytes)
            );
        }
        if self.rejected {
            return self.advice_on_rejection();
        }
        if self.tried_bytes > self.total_bytes {
            return "The request is larger than the whole device.".to_owned();
        }
        if self.cap_bytes.is_some_and(|cap| self.tried_bytes > cap) {
            return "The request is larger than the memory fraction allows; raise the fraction or \
                    ask for less."
                .to_owned();
        }
        if self.room_bytes() >= self.tried_bytes {
            return self.advice_on_whole_pages();
        }
        let remedies = [
            self.advice_on_idle_memory(),
            self.advice_on_pieces(),
            self.advice_on_the_fraction(),
            self.advice_on_private_pools(),
            self.advice_on_other_processes(),
        ];
        let remedies: Vec<String> = remedies.into_iter().flatten().collect();
        if remedies.is_empty() { self.obstacle() } else { remedies.join(" ") }
    }

    /// A rule refused it before the device was asked.
    fn advice_on_rejection(&self) -> String {
        let rule = "throw_on_cudamalloc_oom refuses at once what would, with all that is \
                    reserved, be more than the";
        let limit = Bytes(self.rule_bytes);
        if self.rule_bytes < self.total_bytes {
            let cure = "empty the cache, raise per_process_memory_fraction, or ask for less";
            format!("{rule} {limit} that per_process_memory_fraction allows: {cure}.")
        } else {
            format!("{rule} {limit} of the device: empty the cache, or ask for less.")
        }
    }

    /// The device has the bytes, and yet it was refused.
    fn advice_on_whole_pages(&self) -> String {
        let reserve_bytes = self.pieces.reserve_bytes.filter(|_| self.expandable_segments);
        if let Some(reserve_bytes) = reserve_bytes.filter(|&bytes| bytes < self.rounded_bytes) {
            return format!(
                "expandable_segments_reserve lets a segment have no more than {} of addresses: \
                 raise it, or ask for less.",
                Bytes(reserve_bytes)
            );
        }
        let room = self.room_bytes();
        let is_served = self.is_served_by(room.saturating_add(self.pieces.idle_bytes));
        match self.cure_for_pieces(room).filter(|_| !is_served) {
            Some(cure) => {
                let page = Bytes(self.pieces.page_bytes);
                format!("It takes whole pages of {page}, and there are too few: {cure}.")
            }
            None => {
                "It was refused although so much is free: memory goes in whole pages, others come \
                     and go, and a pool's own source may have none left."
                    .to_owned()
            }
        }
    }

    /// What is free in the cache could go back to the device, and would be enough.
    fn advice_on_idle_memory(&self) -> Option<String> {
        let idle_bytes = self.pieces.idle_bytes;
        if idle_bytes == 0 || !self.is_served_by(self.room_bytes().saturating_add(idle_bytes)) {
            return None;
        }
        let idle = Bytes(idle_bytes);
        Some(if self.captured {
            format!(
                "The cache has {idle} free that cannot be given back while {CAPTURE}: empty it \
                 before, or capture into a pool that has its memory already."
            )
        } else {
            format!("Of the cache {idle} came free while this was tried: ask again.")
        })
    }

    /// The bytes are there, some on the device and some in the cache, but not side by side, and a
    /// setting joins them.
    fn advice_on_pieces(&self) -> Option<String> {
        let cure = self.cure_for_pieces(self.room_bytes())?;
        Some(format!("{}: {cure}.", self.pieces_in_words()))
    }

    /// Where the bytes are.
    fn pieces_in_words(&self) -> String {
        let (unallocated, kept_bytes) = (self.unallocated_bytes(), self.private_free_bytes);
        let largest = self.largest_in_words();
        if unallocated >= self.tried_bytes {
            return format!("The cache has enough bytes but in pieces, {largest}");
        }
        let (room, cached) = (Bytes(self.room_bytes()), Bytes(unallocated));
        let within_bytes = self.room_bytes().saturating_add(unallocated);
        if within_bytes >= self.rounded_bytes || kept_bytes == 0 {
            return format!(
                "There are enough bytes but in pieces, {room} to be had of the device and {cached} \
                 in the cache, there {largest}"
            );
        }
        format!(
            "There are enough bytes but in pieces, {room} to be had of the device, {cached} in the \
             cache and {} in private pools, there {largest}",
            Bytes(kept_bytes)
        )
    }

    /// The largest piece, and if it is large enough, why it did not do.
    fn largest_in_words(&self) -> String {
        let (own_bytes, any_bytes) = (self.pieces.own_block_bytes, self.largest_free_block_bytes);
        if own_bytes >= self.rounded_bytes {
            let own = Bytes(own_bytes);
            format!(
                "the largest {own}, which max_split_size_mb or a change of settings keeps from it"
            )
        } else if any_bytes >= self.rounded_bytes {
            format!("the largest {}, which another stream or a private pool has", Bytes(any_bytes))
        } else {
            format!("the largest {}", Bytes(any_bytes))
        }
    }

    /// The setting with which the free pieces and so many bytes of the device would hold the
    /// request.
    fn cure_for_pieces(&self, room_bytes: u64) -> Option<String> {
        let pieces = &self.pieces;
        let with = |bytes: u64| room_bytes.saturating_add(bytes);
        let page_bytes = pieces.page_bytes;
        // Under a capture no page goes from one place to another.
        if !pieces.can_expand || self.captured {
            return None;
        }
        let is_on = self.expandable_segments;
        if !is_on && self.holds(with(pieces.pages_sure_bytes), page_bytes) {
            return Some("set expandable_segments:True, which joins free pieces".to_owned());
        }
        let fine = self.cure_by_fine_pages(room_bytes);
        if is_on || !self.holds(with(pieces.pages_at_best_bytes), page_bytes) {
            return fine;
        }
        let page = Bytes(page_bytes);
        let also = fine.map_or(String::new(), |fine| format!("; {fine}"));
        Some(format!(
            "expandable_segments:True may help, which joins free pieces as far as they are whole \
             pages of {page}{also}"
        ))
    }

    /// The same, if it is a matter of smaller pages, which are a setting of Larder's own. Each
    /// variable is named, because PyTorch refuses a setting in its own that it does not know.
    fn cure_by_fine_pages(&self, room_bytes: u64) -> Option<String> {
        let fine_bytes = self.pieces.fine_pages_bytes;
        let within_bytes = room_bytes.saturating_add(fine_bytes);
        if !self.own_settings || !self.holds(within_bytes, FINE_PAGE_BYTES) {
            return None;
        }
        // With smaller pages a block or two may come to lie elsewhere.
        let ample_bytes = within_bytes.saturating_sub(2 * FINE_PAGE_BYTES);
        let is_ample = self.holds(ample_bytes, FINE_PAGE_BYTES);
        let settings = match (self.expandable_segments, is_ample) {
            (true, true) => "set page_size_mb:2 in LARDER_CONF",
            (true, false) => "page_size_mb:2 in LARDER_CONF may help",
            (false, _) => {
                "expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF with page_size_mb:2 in \
                 LARDER_CONF may help"
            }
        };
        let (fine, page) = (Bytes(fine_bytes), Bytes(FINE_PAGE_BYTES));
        Some(format!(
            "{settings}, for in pages of {page} there would be {fine} of the cache to give back"
        ))
    }

    /// The device has the bytes, and the cap keeps them from the program.
    fn advice_on_the_fraction(&self) -> Option<String> {
        if self.cap_room_bytes() >= self.free_bytes {
            return None;
        }
        let cure = if self.is_served_by(self.free_bytes) {
            String::new()
        } else if self.cure_for_pieces(self.room_bytes()).is_some() {
            return None;
        } else {
            let cure = self.cure_for_pieces(self.free_bytes)?;
            format!(" and, because the memory is in pieces: {cure}")
        };
        let cap = Bytes(self.cap_bytes.unwrap_or(self.total_bytes));
        let (reserved, free) = (Bytes(self.reserved_bytes), Bytes(self.free_bytes));
        Some(format!(
            "The memory fraction stops it: {reserved} of the {cap} that it allows is reserved, \
             while the device has {free} free; raise the fraction{cure}."
        ))
    }

    /// Private pools keep what would be enough.
    fn advice_on_private_pools(&self) -> Option<String> {
        let given_bytes = self.pieces.idle_bytes.saturating_add(self.pieces.private_idle_bytes);
        let is_enough = self.is_served_by(self.room_bytes().saturating_add(given_bytes));
        let let_go = self.pieces.private_idle_bytes > 0 && is_enough;
        let lend = self.pieces.lendable_block_bytes >= self.rounded_bytes;
        let ways = [
            let_go.then_some("let go of those that are done with"),
            lend.then_some("let requests from outside use them when memory runs out"),
        ];
        let ways: Vec<&str> = ways.into_iter().flatten().collect();
        let (kept, ways) = (Bytes(self.private_free_bytes), ways.join(", or "));
        (let_go || lend).then(|| format!("Private pools keep {kept} free: {ways}."))
    }

    /// Other processes hold what would be enough.
    fn advice_on_other_processes(&self) -> Option<String> {
        let others = self.processes.iter().filter(|process| !process.own);
        let held_bytes: u64 = others.map(|process| process.used_bytes).sum();
        let room = self.free_bytes.saturating_add(held_bytes).min(self.cap_room_bytes());
        (held_bytes > 0 && self.is_served_by(room))
            .then(|| format!("Other processes hold {}; stop them to make room.", Bytes(held_bytes)))
    }

    /// What is in the way, where no setting is known to help, and what is left to do.
    fn obstacle(&self) -> String {
        let within_bytes = self.room_bytes().saturating_add(self.unallocated_bytes());
        if within_bytes.saturating_add(self.private_free_bytes) < self.rounded_bytes {
            return "The program needs more memory than there is: use smaller batches, or recompute \
                    instead of keeping activations."
                .to_owned();
        }
        let pieces = self.pieces_in_words();
        if self.pieces.put_off_bytes > 0 {
            let put_off = Bytes(self.pieces.put_off_bytes);
            return format!(
                "{pieces}, and {put_off} of it was freed beside a capture, or in one, and comes \
                 back when that is over: ask again then."
            );
        }
        if self.captured {
            return format!(
                "{pieces}, and nothing is given back while {CAPTURE}: free or empty more before \
                 it, or use smaller batches."
            );
        }
        let apart = if self.pieces.joins_pages {
            "parts of pages that live blocks lie on, which no view can show side by side"
        } else {
            "beside live blocks that keep them apart"
        };
        format!(
            "{pieces}, {apart}: free those first, or ask for less at once, as with smaller batches."
        )
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
        write!(f, "and {unallocated} is reserved but unallocated. {}", self.advice())?;
        let Some(path) = &self.snapshot else { return Ok(()) };
        let device = match self.device.0 {
            0 => String::new(),
            device => format!(" --device {device}"),
        };
        write!(
            f,
            " All of it was written to {path}: `larder explain {path}{device}` says why, and what \
             would help."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::GIB;

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
            pieces: Pieces {
                can_expand: true,
                page_bytes: 20 * MIB,
                pages_sure_bytes: 2 * GIB,
                pages_at_best_bytes: 7 * GIB,
                fine_pages_bytes: 8 * GIB,
                ..Pieces::default()
            },
            processes: Vec::new(),
            expandable_segments: false,
            own_settings: true,
            rejected: false,
            rule_bytes: 0,
            captured: false,
            snapshot: None,
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

    /// What is free of the cache cannot be joined, by any setting.
    fn apart(report: OutOfMemory) -> OutOfMemory {
        OutOfMemory { pieces: Pieces { can_expand: true, ..Pieces::default() }, ..report }
    }

    #[test]
    fn a_snapshot_that_was_written_is_named_with_the_command_that_explains_it() {
        assert!(!report().to_string().contains("larder explain"), "nobody asked for one");
        let written = OutOfMemory { snapshot: Some("/tmp/oom.pickle".to_owned()), ..report() };
        let said =
            "All of it was written to /tmp/oom.pickle: `larder explain /tmp/oom.pickle` says why";
        assert!(written.to_string().contains(said), "{written}");
        let second = OutOfMemory { device: DeviceIndex(1), ..written };
        assert!(
            second.to_string().contains("`larder explain /tmp/oom.pickle --device 1`"),
            "{second}"
        );
    }

    #[test]
    fn the_advice_follows_from_the_numbers() {
        let full = apart(OutOfMemory { allocated_bytes: 78 * GIB, ..report() });
        assert!(full.to_string().contains("smaller batches"));
        let other = ProcessMemory { pid: 7, own: false, used_bytes: 40 * GIB };
        let crowded = OutOfMemory { processes: vec![other], ..full };
        assert!(crowded.to_string().contains("Process 7 holds 40.00 GiB"));
        assert!(crowded.to_string().contains("stop them"));
        let capped = OutOfMemory { cap_bytes: Some(20 * MIB), ..report() };
        assert!(capped.to_string().contains("20.00 MiB allowed"));
        assert!(capped.to_string().contains("raise the fraction or ask for less"));
        let free = OutOfMemory { free_bytes: 3 * GIB, ..apart(report()) };
        assert!(free.to_string().contains("although so much is free"));
    }

    #[test]
    fn a_setting_is_named_only_where_the_pieces_would_add_up_with_it() {
        let with = |pages_sure_bytes, pages_at_best_bytes, fine_pages_bytes| {
            let pieces = report().pieces;
            let pieces =
                Pieces { pages_sure_bytes, pages_at_best_bytes, fine_pages_bytes, ..pieces };
            OutOfMemory { pieces, ..report() }
        };
        let text = with(2 * GIB, 7 * GIB, 8 * GIB).to_string();
        assert!(text.contains("set expandable_segments:True, which"), "{text}");
        let text = with(0, 7 * GIB, 8 * GIB).to_string();
        assert!(text.contains("expandable_segments:True may help"), "{text}");
        let text = with(0, 0, 8 * GIB).to_string();
        let both = "expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF with page_size_mb:2 in \
                    LARDER_CONF";
        assert!(text.contains(both), "{text}");
        let stock = OutOfMemory { own_settings: false, ..with(0, 0, 8 * GIB) };
        assert!(!stock.to_string().contains("page_size_mb"), "PyTorch has none: {stock}");
        let on = OutOfMemory { expandable_segments: true, ..with(0, 0, 8 * GIB) };
        assert!(on.to_string().contains("set page_size_mb:2"), "{on}");
        assert!(!on.to_string().contains("expandable_segments:True"), "it is on already");
        let text = with(0, 0, GIB / 2).to_string();
        assert!(text.contains("beside live blocks that keep them apart: free those"), "{text}");
        assert!(!text.contains("expandable_segments") && !text.contains("page_size"), "{text}");
        let mut bound = with(2 * GIB, 7 * GIB, 8 * GIB);
        bound.pieces.can_expand = false;
        assert!(!bound.to_string().contains("expandable_segments"), "{bound}");
        bound.pieces.joins_pages = true;
        assert!(bound.to_string().contains("which no view can show side by side: free"), "{bound}");
    }

    #[test]
    fn a_piece_that_is_large_enough_is_not_called_too_small() {
        let mut report = apart(report());
        report.largest_free_block_bytes = 4 * GIB;
        assert!(report.to_string().contains("which another stream or a private pool has"));
        report.pieces.own_block_bytes = 4 * GIB;
        assert!(report.to_string().contains("which max_split_size_mb or a change of settings"));
        report.pieces.fits_now = true;
        assert!(report.to_string().contains("A free block of 4.00 GiB would hold it"));
        assert!(report.to_string().ends_with("Asking again succeeds."));
    }

    #[test]
    fn private_pools_are_named_as_far_as_what_they_keep_would_do() {
        let mut report = apart(OutOfMemory { private_free_bytes: 6 * GIB, ..report() });
        let text = report.to_string();
        assert!(text.contains("6.00 GiB is kept by private pools, and 2.00 GiB is"), "{text}");
        assert!(!text.contains("let go") && !text.contains("let requests"), "{text}");
        report.pieces.private_idle_bytes = GIB;
        assert!(report.to_string().ends_with("free: let go of those that are done with."));
        report.pieces.lendable_block_bytes = 3 * GIB;
        assert!(report.to_string().contains("done with, or let requests from outside use them"));
        report.pieces.private_idle_bytes = GIB / 2;
        assert!(report.to_string().contains("6.00 GiB free: let requests from outside use them"));
    }
}
