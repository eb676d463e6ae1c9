//! The ladder: what a malloc that missed the cache tries, rung by rung, and how it gives up.

use larder_lock::TurnGuard;

use crate::allocator::pages::reserve;
use crate::allocator::pools::Hold;
use crate::allocator::sources::panicked;
use crate::allocator::{Allocator, Inner};
use crate::device::MemoryInfo;
use crate::error::Error;
use crate::heap::Want;
use crate::heap::growth::{Expansion, Growth};
use crate::out_of_memory::{OutOfMemory, Pieces};
use crate::record::Record;
use crate::types::{Addr, Span};

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
        mut inner: TurnGuard<'a, Inner>,
        want: &Want,
    ) -> Result<Addr, Error> {
        // On the way the lock is dropped, and pools are emptied; the request's own must stay.
        let _hold = Hold::new(self, &mut inner, want);
        self.climb_held(inner, want)
    }

    fn climb_held<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        want: &Want,
    ) -> Result<Addr, Error> {
        let device = &*self.device;
        let mut want = *want;
        let freed;
        (inner, freed) = self.ask_hooks(inner, &mut want);
        if freed && let Some(addr) = inner.heap.take_again(&want) {
            return Ok(addr);
        }
        let want = &mut want;
        let search_again = inner.heap.policy().search_after_recovery;
        if inner.heap.policy().refuse_hopeless && inner.heap.inventory().is_hopeless(want) {
            let refusal = match inner.heap.inventory().plan_growth(want) {
                Growth::Rejected => Refusal::Rejected,
                _ => Refusal::NoRoom,
            };
            return self.give_up(inner, want, refusal);
        }
        // Garbage collection gives back what lay idle, so that the device has room.
        if inner.heap.is_collecting() {
            let plan = inner.heap.inventory().plan_collection();
            inner.release(device, &plan)?;
        }
        let plan = inner.heap.inventory().plan_replacement(want);
        if !plan.is_empty() {
            inner.release(device, &plan)?;
        }
        let mut grown;
        (inner, grown) = self.grow(inner, want)?;
        // Pools that were told to lend to those in need do so.
        if let Grown::NoRoom = grown {
            for lender in inner.heap.pools().lenders_for(want) {
                if let Some(addr) = inner.take_lent(device, want, lender) {
                    return Ok(addr);
                }
            }
        }
        // Where oversize blocks are not split, one of them may be given back for this request.
        if let Grown::NoRoom = grown {
            let (plan, enough) = inner.heap.inventory().plan_room(want);
            inner.release(device, &plan)?;
            if enough {
                (inner, grown) = self.grow(inner, want)?;
            }
        }
        // Everything that is awaited is waited for, and everything cached given back; not while a
        // capture is on, which a wait would break.
        let is_stuck = matches!(grown, Grown::NoRoom);
        let captured = is_stuck && inner.is_captured(device, want.stream)?;
        if is_stuck && !captured {
            inner.wait_for_events(device)?;
            if search_again && let Some(addr) = inner.heap.take_again(want) {
                return Ok(addr);
            }
            // What was waited for may suffice in pieces, with nothing given back.
            if inner.heap.joins_pieces() {
                (inner, grown) = self.grow(inner, want)?;
            }
            if let Grown::NoRoom = grown {
                inner.flush(device, false, Some(want.stream))?;
                inner.heap.recorder_mut().record(Record::Retry);
                (inner, grown) = self.grow(inner, want)?;
            }
        }
        let no_room = if captured { Refusal::Captured } else { Refusal::NoRoom };
        match grown {
            Grown::Served(addr) => Ok(addr),
            Grown::Rejected => self.give_up(inner, want, Refusal::Rejected),
            Grown::NoRoom => match search_again.then(|| inner.heap.take_again(want)).flatten() {
                Some(addr) => Ok(addr),
                None => self.give_up(inner, want, no_room),
            },
        }
    }

    /// Asks the program, with nothing locked, whether it can free something, and what a new segment
    /// should reserve. Says whether something was freed.
    fn ask_hooks<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        want: &mut Want,
    ) -> (TurnGuard<'a, Inner>, bool) {
        let callbacks = self.hooks.miss_callbacks();
        let expands = inner.heap.config().expandable_segments;
        let reserve = self.hooks.reserve_hook().filter(|_| expands);
        if callbacks.is_empty() && reserve.is_none() {
            return (inner, false);
        }
        let (stream, total_bytes) = (want.stream, self.device.properties().total_bytes);
        let ask_all = || {
            let freed = callbacks.iter().fold(false, |freed, callback| callback() | freed);
            (freed, reserve.map(|reserve| reserve(stream, total_bytes)))
        };
        let answers;
        (inner, answers) = self.step_aside(inner, ask_all);
        *want = inner.heap.inventory().want_again(want);
        let (freed, reserve) = answers.unwrap_or_default();
        if let Some(size_bytes) = reserve {
            inner.heap.tell_reserve(stream, size_bytes);
        }
        (inner, freed)
    }

    /// Asks the device for more memory. The lock is dropped around a plain allocation if the
    /// settings say so.
    fn grow<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        want: &mut Want,
    ) -> Result<(TurnGuard<'a, Inner>, Grown), Error> {
        let grown = match inner.heap.inventory().plan_growth(want) {
            Growth::Capped => Grown::NoRoom,
            Growth::Rejected => Grown::Rejected,
            Growth::Expand => self.expand(&mut inner, want)?,
            Growth::Tighten => self.tighten(&mut inner, want)?,
            Growth::Segment { size_bytes } => {
                let span;
                (inner, span) = self.ask_segment(inner, want, size_bytes)?;
                match span {
                    Some(span) => Grown::Served(inner.heap.take_segment(want, span)),
                    None => Grown::NoRoom,
                }
            }
        };
        Ok((inner, grown))
    }

    /// Asks the device, or the source of the request's pool, for a segment; none if there is no
    /// room.
    pub(super) fn ask_segment<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        want: &mut Want,
        size_bytes: u64,
    ) -> Result<(TurnGuard<'a, Inner>, Option<Span>), Error> {
        let source = inner.source_for(want);
        let stream = want.stream;
        let ask = || match &source {
            None => self.device.alloc(size_bytes),
            Some((_, source)) => source.alloc(size_bytes, stream),
        };
        let given = if inner.heap.config().release_lock_on_device_alloc {
            inner.heap.begin_asking(size_bytes);
            let given;
            (inner, given) = self.step_aside(inner, ask);
            inner.heap.end_asking(size_bytes);
            *want = inner.heap.inventory().want_again(want);
            given.unwrap_or_else(|| Err(panicked()))
        } else {
            let given = ask();
            inner.tick(&*self.device);
            given
        };
        let span = inner.take_in(source.as_ref(), size_bytes, want.stream, given)?;
        Ok((inner, span))
    }

    /// Maps pages until an expandable block is large enough. What was mapped before the device ran
    /// out stays, as free blocks.
    fn expand(&self, inner: &mut Inner, want: &Want) -> Result<Grown, Error> {
        let device = &*self.device;
        inner.drop_orphans(device);
        let mut from = None;
        loop {
            match inner.heap.inventory().plan_expansion(want, from) {
                Expansion::Ready(block) => {
                    return Ok(Grown::Served(inner.heap.take_block(want, block)));
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
                    Some(span) => from = Some(inner.heap.commit_reserve(want, span)),
                    None => return Ok(Grown::NoRoom),
                },
                Expansion::Map(plan) => {
                    let counted = inner.heap.policy().cap_counts_pages;
                    if counted && inner.heap.inventory().exceeds_cap(plan.span.size_bytes) {
                        return Ok(Grown::NoRoom);
                    }
                    let mapped = inner.map_pages(device, &plan)?;
                    inner.tick(device);
                    match mapped {
                        Some(pages) => from = Some(inner.heap.commit_map(&plan, &pages)),
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
        mut inner: TurnGuard<'_, Inner>,
        want: &Want,
        refusal: Refusal,
    ) -> Result<Addr, Error> {
        let tried_bytes = inner.heap.inventory().segment_bytes(want);
        let mut report = self.report(&inner, want.requested_bytes, tried_bytes);
        report.rounded_bytes = want.size_bytes;
        report.pieces = inner.heap.pieces(want);
        report.pieces.can_expand &= self.device.properties().virtual_memory;
        report.rejected = refusal == Refusal::Rejected;
        report.rule_bytes = if report.rejected { inner.heap.inventory().rule_bytes() } else { 0 };
        report.captured = refusal == Refusal::Captured;
        inner.tick(&*self.device);
        if report.rejected {
            inner.heap.recorder_mut().record(Record::Rejected);
        } else {
            inner.heap.record_out_of_memory(want, report.free_bytes);
        }
        drop(inner);
        report.snapshot = self.hooks.write_out_of_memory(self, &report);
        self.hooks.tell_out_of_memory(&report);
        Err(Error::OutOfMemory(Box::new(report)))
    }

    /// The numbers of a request that could not be met.
    pub(super) fn report(
        &self,
        inner: &Inner,
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
            allocated_bytes: inner.heap.recorder().allocated_bytes(),
            reserved_bytes: inner.heap.reserved_bytes(),
            private_free_bytes: inner.heap.inventory().private_free_bytes(),
            cap_bytes: inner.heap.cap_bytes(),
            largest_free_block_bytes: inner.heap.largest_free_bytes(),
            pieces: Pieces::default(),
            processes: self.device.processes(),
            expandable_segments: inner.heap.config().expandable_segments,
            own_settings: !inner.heap.policy().is_stock(),
            rejected: false,
            rule_bytes: 0,
            captured: false,
            snapshot: None,
        }
    }
}
