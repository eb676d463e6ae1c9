//! Views: the sequences of device calls that show pages at a second place, and that take them from
//! there again.

use crate::allocator::Inner;
use crate::allocator::pages::reserve;
use crate::device::{Device, DeviceError};
use crate::error::Error;
use crate::heap::paged::views::{UnviewPlan, ViewPlan};
use crate::types::{Addr, Span};

/// A view that could not be made, of which the device did not take everything back. It is offered
/// again whenever memory is given back.
pub(super) struct DeadView {
    span: Span,
    /// Where pages are still mapped. They are at home elsewhere.
    mapped: Vec<Span>,
}

impl Inner {
    /// Maps the pages of a view side by side in addresses of their own. None if the device has no
    /// room; then, and on an error, nothing of it remains but what the device would not take back.
    pub(super) fn show(
        &mut self,
        device: &dyn Device,
        plan: &ViewPlan,
    ) -> Result<Option<Span>, Error> {
        let Some(span) = reserve(device, plan.size_bytes)? else { return Ok(None) };
        let mut mapped: Vec<Span> = Vec::with_capacity(plan.pages.len());
        let result = (|| {
            let mut addr: Addr = span.addr;
            for &(page, size_bytes) in &plan.pages {
                let part = Span::new(addr, size_bytes);
                device.map(part, page).map_err(|error| ("map memory", error))?;
                mapped.push(part);
                addr = part.end();
            }
            device.set_access(span).map_err(|error| ("give access to memory", error))?;
            for &peer in self.exports.peers() {
                let opened = device.set_peer_access(span, peer);
                opened.map_err(|error| ("give a peer access to memory", error))?;
            }
            Ok(())
        })();
        let Err((call, error)) = result else { return Ok(Some(span)) };
        let left: Vec<Span> =
            mapped.into_iter().filter(|&part| device.unmap(part).is_err()).collect();
        if left.is_empty() && device.unreserve(span).is_ok() {
            self.tick(device);
        } else {
            self.dead_views.push(DeadView { span, mapped: left });
        }
        match error {
            DeviceError::OutOfMemory => Ok(None),
            error => Err(Error::Device { call, error }),
        }
    }

    /// Takes the pages of a plan out of their view, once the work that may use them is done, and
    /// gives the addresses back if it shows nothing any more.
    pub(super) fn unshow(&mut self, device: &dyn Device, plan: &UnviewPlan) -> Result<(), Error> {
        if let Some(stream) = plan.stream.filter(|_| !plan.parts.is_empty()) {
            device.wait_stream(stream).map_err(Error::device("wait for a stream"))?;
        }
        for (done, &(_, span)) in plan.parts.iter().enumerate() {
            if let Err(error) = device.unmap(span) {
                self.heap.commit_unview(plan, done);
                return Err(Error::Device { call: "unmap memory", error });
            }
        }
        self.heap.commit_unview(plan, plan.parts.len());
        if plan.is_whole {
            let span = self.heap.inventory().segment_span(plan.view);
            device.unreserve(span).map_err(Error::device("give back addresses"))?;
            self.heap.commit_unreserve_view(plan.view);
        }
        Ok(())
    }

    /// Offers the dead views to the device once more.
    pub(super) fn clear_dead_views(&mut self, device: &dyn Device) {
        for mut dead in std::mem::take(&mut self.dead_views) {
            dead.mapped.retain(|&part| device.unmap(part).is_err());
            if !dead.mapped.is_empty() || device.unreserve(dead.span).is_err() {
                self.dead_views.push(dead);
            }
        }
    }
}
