//! The ladder: what a malloc that missed the cache tries, rung by rung, and how it gives up.

use larder_lock::TurnGuard;

use crate::allocator::pages::reserve;
use crate::allocator::pools::Hold;
use crate::allocator::sources::panicked;
use crate::allocator::{Allocator, Shelf};
use crate::device::MemoryInfo;
use crate::error::Error;
use crate::heap::Want;
use crate::heap::growth::{Expansion, Growth};
use crate::out_of_memory::{OutOfMemory, Pieces};
use crate::record::Record;
use crate::types::Addr;

/// What came of asking the device.
pub(super) enum Grown {
    /// The request is served.
    Served(Addr),
    /// There is no room, on the device or under the cap.
    NoRoom,
    /// A rule refuses the request whatever else might be tried.
    Rejected,
}

/// Why the ladder ends without memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is none, and all that could be tried was.
    NoRoom,
    /// There is none, and a capture kept the last rung from being tried.
    Captured,
    /// A rule refused the request.
    Rejected,
}

impl Allocator {
    /// Climbs the ladder. Each rung either serves the request or makes the next one more likely to.
    #[cold]
    #[inline(never)]
    pub(super) fn climb<'a>(
        &'a self,
        mut shelf: TurnGuard<'a, Shelf>,
        want: &Want,
    ) -> Result<Addr, Error> {
        // On the way the lock is dropped, and pools are emptied; the request's own must stay.
        let _hold = Hold::new(self, &mut shelf, want);
        self.climb_held(shelf, want)
    }

    fn climb_held<'a>(
        &'a self,
        mut shelf: TurnGuard<'a, Shelf>,
        want: &Want,
    ) -> Result<Addr, Error> {
        let device = &*self.device;
        let mut want = *want;
        let freed;
        (shelf, freed) = self.ask_hooks(shelf, &mut want);
        if freed && let Some(addr) = shelf.heap.take_again(&want) {
            return Ok(addr);
        }
        let want = &mut want;
        let search_again = shelf.heap.policy().search_after_recovery;
        if shelf.heap.policy().refuse_hopeless && shelf.heap.inventory().is_hopeless(want) {
            let refusal = match shelf.heap.inventory().plan_growth(want) {
                Growth::Rejected => Refusal::Rejected,
                _ => Refusal::NoRoom,
            };
            return self.give_up(shelf, want, refusal);
        }
        // Garbage collection gives back what lay idle, so that the device has room.
        if shelf.heap.is_collecting() {
            let plan = shelf.heap.inventory().plan_collection();
            shelf.release(device, &plan)?;
        }
        let mut grown;
        (shelf, grown) = self.grow(shelf, want)?;
        // Pools that were told to lend to those in need do so.
        if let Grown::NoRoom = grown {
            for lender in shelf.heap.pools().lenders_for(want) {
                if let Some(addr) = shelf.take_lent(device, want, lender) {
                    return Ok(addr);
                }
            }
        }
        // Where oversize blocks are not split, one of them may be given back for this request.
        if let Grown::NoRoom = grown {
            let (plan, enough) = shelf.heap.inventory().plan_room(want);
            shelf.release(device, &plan)?;
            if enough {
                (shelf, grown) = self.grow(shelf, want)?;
            }
        }
        // Everything that is awaited is waited for, and everything cached given back; not while a
        // capture is on, which a wait would break.
        let is_stuck = matches!(grown, Grown::NoRoom);
        let captured = is_stuck && shelf.is_captured(device, want.stream)?;
        if is_stuck && !captured {
            shelf.wait_for_events(device)?;
            if search_again && let Some(addr) = shelf.heap.take_again(want) {
                return Ok(addr);
            }
            // What was waited for may suffice in pieces, with nothing given back.
            if shelf.heap.joins_pieces() {
                (shelf, grown) = self.grow(shelf, want)?;
            }
            if let Grown::NoRoom = grown {
                shelf.flush(device, false, Some(want.stream))?;
                shelf.heap.herald_mut().record(Record::Retry);
                (shelf, grown) = self.grow(shelf, want)?;
            }
        }
        let no_room = if captured { Refusal::Captured } else { Refusal::NoRoom };
        match grown {
            Grown::Served(addr) => Ok(addr),
            Grown::Rejected => self.give_up(shelf, want, Refusal::Rejected),
            Grown::NoRoom => match search_again.then(|| shelf.heap.take_again(want)).flatten() {
                Some(addr) => Ok(addr),
                None => self.give_up(shelf, want, no_room),
            },
        }
    }

    /// Asks the program, with nothing locked, whether it can free something, and what a new segment
    /// should reserve. Says whether something was freed.
    fn ask_hooks<'a>(
        &'a self,
        mut shelf: TurnGuard<'a, Shelf>,
        want: &mut Want,
    ) -> (TurnGuard<'a, Shelf>, bool) {
        let callbacks = self.hooks.miss_callbacks();
        let expands = shelf.heap.config().expandable_segments;
        let reserve = self.hooks.reserve_hook().filter(|_| expands);
        if callbacks.is_empty() && reserve.is_none() {
            return (shelf, false);
        }
        let (stream, total_bytes) = (want.stream, self.device.properties().total_bytes);
        let ask_all = || {
            let freed = callbacks.iter().fold(false, |freed, callback| callback() | freed);
            (freed, reserve.map(|reserve| reserve(stream, total_bytes)))
        };
        let answers;
        (shelf, answers) = self.step_aside(shelf, ask_all);
        *want = shelf.heap.inventory().want_again(want);
        let (freed, reserve) = answers.unwrap_or_default();
        if let Some(size_bytes) = reserve {
            shelf.heap.tell_reserve(stream, size_bytes);
        }
        (shelf, freed)
    }

    /// Asks the device for more memory. The lock is dropped around a plain allocation if the
    /// settings say so.
    fn grow<'a>(
        &'a self,
        mut shelf: TurnGuard<'a, Shelf>,
        want: &mut Want,
    ) -> Result<(TurnGuard<'a, Shelf>, Grown), Error> {
        let grown = match shelf.heap.inventory().plan_growth(want) {
            Growth::Capped => Grown::NoRoom,
            Growth::Rejected => Grown::Rejected,
            Growth::Expand => self.expand(&mut shelf, want)?,
            Growth::Tighten => self.tighten(&mut shelf, want)?,
            Growth::Segment { size_bytes } => {
                let source = shelf.source_for(want);
                let stream = want.stream;
                let ask = || match &source {
                    None => self.device.alloc(size_bytes),
                    Some((_, source)) => source.alloc(size_bytes, stream),
                };
                let given = if shelf.heap.config().release_lock_on_device_alloc {
                    shelf.heap.begin_asking(size_bytes);
                    let given;
                    (shelf, given) = self.step_aside(shelf, ask);
                    shelf.heap.end_asking(size_bytes);
                    *want = shelf.heap.inventory().want_again(want);
                    given.unwrap_or_else(|| Err(panicked()))
                } else {
                    let given = ask();
                    shelf.tick(&*self.device);
                    given
                };
                match shelf.take_in(source.as_ref(), size_bytes, want.stream, given)? {
                    Some(span) => Grown::Served(shelf.heap.take_segment(want, span)),
                    None => Grown::NoRoom,
                }
            }
        };
        Ok((shelf, grown))
    }

    /// Maps pages until an expandable block is large enough. What was mapped before the device ran
    /// out stays, as free blocks.
    fn expand(&self, shelf: &mut Shelf, want: &Want) -> Result<Grown, Error> {
        let device = &*self.device;
        shelf.drop_orphans(device);
        let mut from = None;
        loop {
            match shelf.heap.inventory().plan_expansion(want, from) {
                Expansion::Ready(block) => {
                    return Ok(Grown::Served(shelf.heap.take_block(want, block)));
                }
                Expansion::NoRoom => return Ok(Grown::NoRoom),
                // PyTorch finds out when it has them, which shows in the addresses of what comes
                // next.
                Expansion::TooFew { size_bytes } => {
                    if let Some(span) = reserve(device, size_bytes)? {
                        let given_back = device.unreserve(span);
                        given_back.map_err(Error::device("give back addresses"))?;
                    }
                    return Ok(Grown::NoRoom);
                }
                Expansion::Reserve { size_bytes } => match reserve(device, size_bytes)? {
                    Some(span) => from = Some(shelf.heap.commit_reserve(want, span)),
                    None => return Ok(Grown::NoRoom),
                },
                Expansion::Map(plan) => {
                    let counted = shelf.heap.policy().cap_counts_pages;
                    if counted && shelf.heap.inventory().exceeds_cap(plan.span.size_bytes) {
                        return Ok(Grown::NoRoom);
                    }
                    let mapped = shelf.map_pages(device, &plan)?;
                    shelf.tick(device);
                    match mapped {
                        Some(pages) => from = Some(shelf.heap.commit_map(&plan, &pages)),
                        None => return Ok(Grown::NoRoom),
                    }
                }
            }
        }
    }

    /// No rung is left: counts the failure, gathers the numbers, and tells the observers once the
    /// lock is dropped.
    pub(super) fn give_up(
        &self,
        mut shelf: TurnGuard<'_, Shelf>,
        want: &Want,
        refusal: Refusal,
    ) -> Result<Addr, Error> {
        let tried_bytes = shelf.heap.inventory().segment_bytes(want);
        let mut report = self.report(&shelf, want.requested_bytes, tried_bytes);
        report.rounded_bytes = want.size_bytes;
        report.pieces = shelf.heap.pieces(want);
        report.pieces.can_expand &= self.device.properties().virtual_memory;
        report.rejected = refusal == Refusal::Rejected;
        report.rule_bytes = if report.rejected { shelf.heap.inventory().rule_bytes() } else { 0 };
        report.captured = refusal == Refusal::Captured;
        shelf.tick(&*self.device);
        if report.rejected {
            shelf.heap.herald_mut().record(Record::Rejected);
        } else {
            shelf.heap.record_out_of_memory(want, report.free_bytes);
        }
        drop(shelf);
        report.snapshot = self.hooks.write_out_of_memory(self, &report);
        self.hooks.tell_out_of_memory(&report);
        Err(Error::OutOfMemory(Box::new(report)))
    }

    /// The numbers of a request that could not be met.
    pub(super) fn report(
        &self,
        shelf: &Shelf,
        requested_bytes: u64,
        tried_bytes: u64,
    ) -> OutOfMemory {
        let properties = self.device.properties();
        // The report must not fail for want of a number.
        let unknown = MemoryInfo { free_bytes: 0, total_bytes: properties.total_bytes };
        let memory = self.device.memory_info().unwrap_or(unknown);
        OutOfMemory {
            device: properties.index,
            requested_bytes,
            rounded_bytes: requested_bytes,
            tried_bytes,
            free_bytes: memory.free_bytes,
            total_bytes: memory.total_bytes,
            allocated_bytes: shelf.heap.herald().allocated_bytes(),
            reserved_bytes: shelf.heap.reserved_bytes(),
            private_free_bytes: shelf.heap.inventory().private_free_bytes(),
            cap_bytes: shelf.heap.cap_bytes(),
            largest_free_block_bytes: shelf.heap.largest_free_bytes(),
            pieces: Pieces::default(),
            processes: self.device.processes(),
            expandable_segments: shelf.heap.config().expandable_segments,
            own_settings: !shelf.heap.policy().is_stock(),
            rejected: false,
            rule_bytes: 0,
            captured: false,
            snapshot: None,
        }
    }
}
