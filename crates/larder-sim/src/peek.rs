//! Peek: what tests look at of a simulated GPU, besides what any device tells. None of it is a call
//! of the device.

use larder_core::types::{Addr, DeviceIndex, Span, StreamId};

use crate::calls::Calls;
use crate::costs::Spent;
use crate::device::SimDevice;
use crate::extents::Extent;
use crate::streams::Moment;

impl SimDevice {
    /// How many calls of each kind came so far.
    pub fn calls(&self) -> Calls {
        self.state().calls
    }

    /// How many calls came so far in all, failed ones included.
    pub fn total_calls(&self) -> u64 {
        self.state().calls.total()
    }

    /// How many calls about memory came so far, and what they cost on a real GPU.
    pub fn spent(&self) -> Spent {
        self.state().clock.spent()
    }

    /// How much of the memory is behind plain allocations and pages; other tenants do not count.
    pub fn used_bytes(&self) -> u64 {
        self.state().memory.used_bytes()
    }

    /// How many events have been created and not destroyed.
    pub fn event_count(&self) -> usize {
        self.state().streams.event_count()
    }

    /// How many pages have been created and not released.
    pub fn page_count(&self) -> u64 {
        self.state().memory.page_count()
    }

    /// Whether the device could read and write every byte of the span: it lies in one plain
    /// allocation, or on mapped pages that access was given to.
    pub fn is_accessible(&self, span: Span) -> bool {
        self.state().memory.is_accessible(span)
    }

    /// Whether some memory may be seen at two addresses. Where none is, spans that share no address
    /// share no byte.
    pub fn is_aliased(&self) -> bool {
        self.state().memory.is_aliased()
    }

    /// Where in the device's memory the bytes of the span lie, in the order of their addresses;
    /// none if the device could not use all of them. Two spans show the same bytes where their
    /// extents overlap.
    pub fn extents(&self, span: Span) -> Option<Vec<Extent>> {
        self.state().memory.extents(span)
    }

    /// The byte at this address, as work on the device would read it: 0 where nobody wrote; none if
    /// the device could not read there.
    pub fn read(&self, addr: Addr) -> Option<u8> {
        self.state().memory.read(addr)
    }

    /// Whether the peer could read and write every byte of the span.
    pub fn is_open_to_peer(&self, span: Span, peer: DeviceIndex) -> bool {
        let state = self.state();
        state.memory.is_open_to(span, peer, state.sharing.is_peer(peer))
    }

    /// Whether work issued on the stream has not finished yet.
    pub fn is_busy(&self, stream: StreamId) -> bool {
        let mut state = self.state();
        state.settle();
        state.streams.is_busy(stream)
    }

    /// When the work of the stream ends, on a device whose time counts.
    pub fn busy_until_ns(&self, stream: StreamId) -> u64 {
        let state = self.state();
        state.last_end_of(stream).max(state.clock.now_ns())
    }

    /// The end of the work that the stream has been given so far.
    pub fn moment(&self, stream: StreamId) -> Moment {
        self.state().streams.moment(stream)
    }

    /// Whether the work up to the moment has finished.
    pub fn is_over(&self, moment: Moment) -> bool {
        self.state().streams.is_over(moment)
    }

    /// Whether work issued on the stream from now on begins when the work up to the moment has
    /// finished: it is the stream's own, is done, or is waited for by an event.
    pub fn comes_after(&self, stream: StreamId, moment: Moment) -> bool {
        self.state().streams.comes_after(stream, moment)
    }

    /// Whether the stream is under a graph capture.
    pub fn is_captured(&self, stream: StreamId) -> bool {
        self.state().streams.captures().of(stream).is_some()
    }

    /// Calls that were made about a stream while another thread was beginning to capture it,
    /// ceasing to or destroying it, or after it was destroyed. A real device may end the process
    /// over one.
    pub fn trespasses(&self) -> Vec<String> {
        self.state().hands.trespasses().to_vec()
    }
}
