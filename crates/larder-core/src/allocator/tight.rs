//! Tight: the device calls of the tight policy. The heap says what to do next; it is done, and the
//! heap is asked again, until the request is served or there is no room.

use crate::allocator::inferred::capture_of;
use crate::allocator::ladder::Grown;
use crate::allocator::pages::reserve;
use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::Error;
use crate::heap::Want;
use crate::heap::paged::ground::Ground;
use crate::heap::paged::seek::{Asking, Move};
use crate::heap::release::Release;
use crate::types::{Addr, StreamId};

impl Allocator {
    /// Makes pages and shows them, until the request has its block.
    pub(super) fn tighten(&self, inner: &mut Inner, want: &Want) -> Result<Grown, Error> {
        let device = &*self.device;
        inner.drop_orphans(device);
        let open = inner.open_neighbours(device, want)?;
        let mut asking = Asking::Freely;
        let mut has_asked_pools = false;
        loop {
            match inner.heap.plan_move(want, &open, asking) {
                Move::Fits => {
                    let addr = inner.heap.take_again(want);
                    return Ok(addr.map_or(Grown::NoRoom, Grown::Served));
                }
                Move::Place { segment, addr, waits } => {
                    inner.follow(device, want, &waits)?;
                    inner.heap.absorb(want, &waits);
                    let addr = inner.heap.take_place(want, segment, addr);
                    return Ok(addr.map_or(Grown::NoRoom, Grown::Served));
                }
                Move::Capped => return Ok(Grown::NoRoom),
                Move::Reserve { page_bytes, size_bytes } => {
                    let Some(span) = reserve(device, size_bytes)? else { return Ok(Grown::NoRoom) };
                    inner.heap.commit_reserve_of(want, span, page_bytes);
                }
                Move::Map(plan) => {
                    if !std::mem::replace(&mut has_asked_pools, true)
                        && inner.pass_on(device, want, plan.span.size_bytes)?
                    {
                        continue;
                    }
                    let mapped = inner.map_pages(device, &plan)?;
                    inner.tick(device);
                    match mapped {
                        Some(pages) => {
                            inner.heap.commit_map(&plan, &pages);
                        }
                        // What is free may suffice in pieces, and what the device has left in
                        // smaller pages.
                        None => match inner.heap.ask_less(asking, plan.page_bytes) {
                            Some(left) => asking = left,
                            None => return Ok(Grown::NoRoom),
                        },
                    }
                }
                // What was waited for may make one piece with what the stream has.
                Move::View { waits, .. } if !waits.is_empty() => {
                    inner.follow(device, want, &waits)?;
                    inner.heap.absorb(want, &waits);
                }
                Move::View { plan, .. } => {
                    inner.thin(device, want.stream)?;
                    let Some(span) = inner.show(device, &plan)? else { return Ok(Grown::NoRoom) };
                    let view = inner.heap.commit_view(want, &plan, span);
                    let addr = span.addr.offset(plan.page_list.skip_bytes);
                    let addr = inner.heap.take_place(want, view, addr);
                    return Ok(addr.map_or(Grown::NoRoom, Grown::Served));
                }
            }
        }
    }
}

impl Inner {
    /// The same as `take_from_others` for a request that missed on the fast path while its program
    /// repeats itself: nothing is merged for it unless it has lost its place, and it goes on with
    /// its cycle.
    pub(super) fn take_after_others(
        &mut self,
        device: &dyn Device,
        requested_bytes: u64,
        stream: StreamId,
    ) -> Result<Option<Addr>, Error> {
        let Some(want) = self.heap.missed_for_others(requested_bytes, stream) else {
            return Ok(None);
        };
        let taken = match self.heap.plan_told(&want) {
            Some(ground) => self.take_ground(device, &want, &ground),
            None => Ok(self.heap.take_lost(&want)),
        };
        if !matches!(taken, Ok(None)) {
            self.heap.forget_miss(&want);
        }
        taken
    }

    /// Puts a request where it was told to go, though others had that place: its stream waits for
    /// theirs. None if it was told nothing that is free, or may not wait for them.
    pub(super) fn take_from_others(
        &mut self,
        device: &dyn Device,
        want: &Want,
    ) -> Result<Option<Addr>, Error> {
        if !self.heap.is_paged(want) {
            return Ok(None);
        }
        let Some(ground) = self.heap.plan_told(want) else { return Ok(None) };
        self.take_ground(device, want, &ground)
    }

    /// Puts a request where it was told to go, which is free: at once if there is nobody to wait
    /// for.
    fn take_ground(
        &mut self,
        device: &dyn Device,
        want: &Want,
        ground: &Ground,
    ) -> Result<Option<Addr>, Error> {
        if !ground.waits.is_empty() && capture_of(device, want.stream)?.is_some() {
            return Ok(None);
        }
        for &stream in &ground.waits {
            if !self.may_wait_for(device, stream, Some(want.stream))? {
                return Ok(None);
            }
        }
        self.follow(device, want, &ground.waits)?;
        if self.heap.absorb_outside_cycle(want, &ground.waits) {
            let ground = self.heap.plan_told(want);
            return Ok(ground.and_then(|ground| self.heap.take_told_ground(want, &ground)));
        }
        Ok(self.heap.take_told_ground(want, ground))
    }

    /// The other streams whose free memory the request may have: those that its own can be made to
    /// wait for, which a captured one cannot.
    fn open_neighbours(
        &mut self,
        device: &dyn Device,
        want: &Want,
    ) -> Result<Vec<StreamId>, Error> {
        let mut open = self.heap.neighbours(want);
        // Also where no scope is open: to let a captured stream wait for work that runs breaks its
        // capture.
        if open.is_empty() || capture_of(device, want.stream)?.is_some() {
            return Ok(Vec::new());
        }
        let mut refused = Ok(());
        open.retain(|&stream| {
            let may_wait = self.may_wait_for(device, stream, Some(want.stream));
            may_wait.unwrap_or_else(|error| {
                refused = Err(error);
                false
            })
        });
        refused.map(|()| open)
    }

    /// Makes a request's stream wait for what others have been given to do so far.
    fn follow(
        &mut self,
        device: &dyn Device,
        want: &Want,
        others: &[StreamId],
    ) -> Result<(), Error> {
        for &other in others {
            let event = self.record_event(device, other)?;
            let followed = device.follow_event(want.stream, event);
            self.events.give(event);
            followed.map_err(Error::device("wait for an event"))?;
            self.heap.note_followed(want, &[other]);
        }
        Ok(())
    }

    /// Has other pools give back what is free in them before a request makes so many bytes of new
    /// pages. Says whether anything was to be given back. While a capture may be on, nothing is.
    fn pass_on(
        &mut self,
        device: &dyn Device,
        want: &Want,
        more_bytes: u64,
    ) -> Result<bool, Error> {
        let plan = self.heap.plan_pass_on(want, more_bytes);
        if plan.is_empty() || self.is_any_captured(device)? {
            return Ok(false);
        }
        self.release_for(device, &plan, Some(want.stream))?;
        Ok(true)
    }

    /// Does without views that nobody has, where too much is shown.
    fn thin(&mut self, device: &dyn Device, own: StreamId) -> Result<(), Error> {
        let views = self.heap.plan_thinning().into_iter();
        let plan: Vec<Release> = views.map(Release::View).collect();
        if plan.is_empty() { Ok(()) } else { self.release_for(device, &plan, Some(own)) }
    }

    /// Waits for streams whose free memory lies side by side, so that it can be put together again.
    /// Streams that may be captured are left alone.
    pub(super) fn unite(
        &mut self,
        device: &dyn Device,
        own: Option<StreamId>,
    ) -> Result<(), Error> {
        if !self.heap.joins_pieces() {
            return Ok(());
        }
        let mut quiet = Vec::new();
        for stream in self.heap.mixed_streams() {
            if self.may_wait_for(device, stream, own)? {
                device.wait_stream(stream).map_err(Error::device("wait for a stream"))?;
                quiet.push(stream);
            }
        }
        self.heap.unite(&quiet);
        Ok(())
    }
}
