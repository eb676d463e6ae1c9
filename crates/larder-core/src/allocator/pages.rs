//! Pages: the sequences of device calls that map and unmap them, and that give memory back. A
//! sequence that fails midway is undone as far as it went, or stands as far as it went; the heap
//! hears the truth either way.

use crate::allocator::Inner;
use crate::device::{Device, DeviceError};
use crate::error::Error;
use crate::heap::growth::MapPlan;
use crate::heap::ids::SegmentId;
use crate::heap::release::{Release, UnmapPlan};
use crate::types::{PageHandle, Span, StreamId};

/// A page that the device would not take back when it should have gone. It is in no segment; it
/// is offered again whenever memory is given back.
pub(super) struct Orphan {
    page: PageHandle,
    /// Where it is still mapped.
    mapped: Vec<Span>,
}

impl Orphan {
    /// A page that is to go, and is mapped at these places.
    pub(super) fn new(page: PageHandle, mapped: Vec<Span>) -> Orphan {
        Orphan { page, mapped }
    }
}

/// Reserves addresses; none if there are none.
pub(super) fn reserve(device: &dyn Device, size_bytes: u64) -> Result<Option<Span>, Error> {
    match device.reserve(size_bytes) {
        Ok(addr) => Ok(Some(Span::new(addr, size_bytes))),
        Err(DeviceError::OutOfMemory) => Ok(None),
        Err(error) => Err(Error::Device { call: "reserve addresses", error }),
    }
}

impl Inner {
    /// Creates and maps the pages of a plan. None if the device has no memory for them; then, and
    /// on an error, nothing of it remains.
    pub(super) fn map_pages(
        &mut self,
        device: &dyn Device,
        plan: &MapPlan,
    ) -> Result<Option<Vec<PageHandle>>, Error> {
        self.clear_orphans_from(device, plan.span)?;
        let count = plan.page_count() as usize;
        let mut pages = Vec::with_capacity(count);
        let mut mapped = 0;
        let result = (|| {
            for _ in 0..count {
                let page = device.create_page(plan.page_bytes);
                pages.push(page.map_err(|error| ("create memory", error))?);
            }
            for &page in &pages {
                let span = plan.page_span(mapped as u64);
                device.map(span, page).map_err(|error| ("map memory", error))?;
                mapped += 1;
            }
            device.set_access(plan.span).map_err(|error| ("give access to memory", error))?;
            for &peer in self.exports.peers() {
                let opened = device.set_peer_access(plan.span, peer);
                opened.map_err(|error| ("give a peer access to memory", error))?;
            }
            Ok(())
        })();
        let Err((call, error)) = result else { return Ok(Some(pages)) };
        for (index, &page) in pages.iter().enumerate() {
            let span = (index < mapped).then(|| plan.page_span(index as u64));
            self.drop_page(device, Orphan::new(page, span.into_iter().collect()));
        }
        match error {
            DeviceError::OutOfMemory => Ok(None),
            error => Err(Error::Device { call, error }),
        }
    }

    /// Unmaps a page if it is mapped, and releases it. What the device refuses becomes an orphan.
    pub(super) fn drop_page(&mut self, device: &dyn Device, mut orphan: Orphan) {
        self.exports.close(device, orphan.page);
        orphan.mapped.retain(|&span| device.unmap(span).is_err());
        if !orphan.mapped.is_empty() || device.release_page(orphan.page).is_err() {
            self.orphans.push(orphan);
        }
    }

    /// Takes away what orphans still have mapped in addresses that are needed for something else,
    /// or are to go back. If the device refuses once more, that is why neither can be.
    pub(super) fn clear_orphans_from(
        &mut self,
        device: &dyn Device,
        span: Span,
    ) -> Result<(), Error> {
        self.clear_orphans(device, span).map_err(Error::device("unmap memory"))
    }

    /// The same, with the device's own refusal.
    pub(super) fn clear_orphans(
        &mut self,
        device: &dyn Device,
        span: Span,
    ) -> Result<(), DeviceError> {
        for orphan in &mut self.orphans {
            while let Some(at) = orphan.mapped.iter().position(|mapped| mapped.overlaps(span)) {
                device.unmap(orphan.mapped[at])?;
                orphan.mapped.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Offers the orphans to the device once more.
    pub(super) fn drop_orphans(&mut self, device: &dyn Device) {
        for orphan in std::mem::take(&mut self.orphans) {
            self.drop_page(device, orphan);
        }
    }

    /// Gives back what a plan names, in order. An error stops it; what went before stands.
    pub(super) fn release(&mut self, device: &dyn Device, plan: &[Release]) -> Result<(), Error> {
        self.release_for(device, plan, None)
    }

    /// The same for a caller whose stream is `own`.
    pub(super) fn release_for(
        &mut self,
        device: &dyn Device,
        plan: &[Release],
        own: Option<StreamId>,
    ) -> Result<(), Error> {
        self.clear_dead_views(device);
        self.drop_orphans(device);
        for &step in plan {
            match step {
                Release::Segment(id) => {
                    self.free_segment(device, id)?;
                    self.tick(device);
                    self.heap.commit_release(id);
                }
                Release::View(view) => {
                    let plan = self.heap.plan_unview(view);
                    if let Some(stream) = plan.stream
                        && !self.may_wait_for(device, stream, own)?
                    {
                        continue;
                    }
                    self.unshow(device, &plan)?;
                }
                Release::Pages { block, most } => {
                    let Some(plan) = self.heap.plan_unmap(block, most) else { continue };
                    // A stream that may be captured is not waited for; its pages go another time.
                    if let Some(stream) = plan.stream
                        && !self.may_wait_for(device, stream, own)?
                    {
                        continue;
                    }
                    self.unmap_pages(device, &plan)?;
                    if self.heap.space().is_bare(plan.segment) {
                        self.release(device, &[Release::Addresses(plan.segment)])?;
                    }
                }
                Release::Addresses(id) => {
                    let span = self.heap.inventory().segment_span(id);
                    self.clear_orphans_from(device, span)?;
                    device.unreserve(span).map_err(Error::device("give back addresses"))?;
                    self.heap.commit_unreserve(id);
                }
            }
        }
        Ok(())
    }

    /// Gives a whole segment back to where it came from.
    fn free_segment(&mut self, device: &dyn Device, id: SegmentId) -> Result<(), Error> {
        if self.return_to_source(id)? {
            return Ok(());
        }
        let span = self.heap.inventory().segment_span(id);
        device.free(span.addr).map_err(Error::device("free memory"))
    }

    /// Unmaps the pages of a plan, once the work that may use them is done: unlike a plain free,
    /// unmapping does not wait.
    fn unmap_pages(&mut self, device: &dyn Device, plan: &UnmapPlan) -> Result<(), Error> {
        if let Some(stream) = plan.stream {
            device.wait_stream(stream).map_err(Error::device("wait for a stream"))?;
        }
        for (done, &(span, page)) in plan.pages.iter().enumerate() {
            if let Err(error) = device.unmap(span) {
                if done > 0 {
                    self.heap.commit_unmap(plan, done);
                }
                return Err(Error::Device { call: "unmap memory", error });
            }
            self.drop_page(device, Orphan::new(page, Vec::new()));
        }
        self.tick(device);
        self.heap.commit_unmap(plan, plan.pages.len());
        Ok(())
    }
}
