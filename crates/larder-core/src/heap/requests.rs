//! Requests: one of the slow way gets a free block, or one that was made for it.

use std::thread::ThreadId;

use crate::error::PoolProblem;
use crate::heap::ids::BlockId;
use crate::heap::pools::private::Caller;
use crate::heap::{Heap, Want};
use crate::out_of_memory::Pieces;
use crate::types::{Addr, PoolId, Span, StreamId};

/// A block of a pool that lends, on its way to a request.
pub(crate) struct Lent {
    block: BlockId,
    want: Want,
}

impl Heap {
    /// Rounds a request, and routes it to the default pools.
    pub(crate) fn want(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        self.inventory.want(requested_bytes, stream)
    }

    /// Rounds a request and routes it through the open scopes.
    pub(crate) fn want_routed(&mut self, requested_bytes: u64, caller: &Caller<'_>) -> Want {
        self.inventory.want_routed(requested_bytes, caller)
    }

    /// The request as its thread wants it: for plain memory, if the thread asked for that.
    pub(crate) fn want_of(&self, want: &Want, thread: ThreadId) -> Want {
        self.inventory.want_of(want, thread)
    }

    /// The request is the first of a capture in its pool.
    pub(crate) fn want_captured(&mut self, want: &Want) -> Want {
        self.inventory.want_captured(want)
    }

    /// Whether the request is put into pages.
    #[inline]
    pub(crate) fn is_paged(&self, want: &Want) -> bool {
        self.inventory.rules().puts_into_pages(want)
    }

    /// Hands out a free block, or none if no free block will do. A request is taken once; who tries
    /// again later for the same request says so by `take_again`.
    pub(crate) fn take(&mut self, want: &Want) -> Option<Addr> {
        self.expect_settled();
        let want = self.inventory.begin_search(want);
        self.placement.take(&mut self.inventory, &want)
    }

    /// Hands out the best free block to a request that found none before.
    pub(crate) fn take_again(&mut self, want: &Want) -> Option<Addr> {
        self.expect_settled();
        let want = self.inventory.begin_search(want);
        let (id, addr) = self.inventory.take_best(&want, self.placement.fit(&want))?;
        self.placement.note_taken(&self.inventory, &want, id);
        Some(addr)
    }

    /// Whether the cache has a block for the request.
    pub(crate) fn is_ready_for(&mut self, want: &Want) -> bool {
        self.expect_settled();
        self.inventory.fits(want, self.placement.fit(want))
    }

    /// Hands out what lies at an address, if a free block of the request's own pool and stream
    /// holds all of it. None, and nothing is done, if there is no such block.
    pub(crate) fn take_at(&mut self, want: &Want, addr: Addr) -> Option<Addr> {
        self.expect_settled();
        self.inventory.take_at(want, addr)
    }

    /// The device gave a segment for this request; serves the request from it.
    pub(crate) fn take_segment(&mut self, want: &Want, span: Span) -> Addr {
        self.expect_settled();
        let id = self.inventory.add_fixed(want, span);
        self.hand_out(id, want)
    }

    /// The device gave a segment ahead of such requests: it is free.
    pub(crate) fn keep_segment(&mut self, want: &Want, span: Span) {
        self.expect_settled();
        let id = self.inventory.add_fixed(want, span);
        self.inventory.shelve(id);
    }

    /// Serves the request from a free block that was made for it.
    pub(crate) fn take_block(&mut self, want: &Want, id: BlockId) -> Addr {
        self.expect_settled();
        self.inventory.take_grown(want, id);
        self.hand_out(id, want)
    }

    /// Makes a block live that is in no index, and has the placement know.
    fn hand_out(&mut self, id: BlockId, want: &Want) -> Addr {
        let addr = self.inventory.hand_out(id, want);
        self.placement.note_taken(&self.inventory, want, id);
        addr
    }

    /// Serves a request of the default pools with a free block of a pool that lends to those in
    /// need. The block stays a block of that pool.
    pub(crate) fn take_lent(&mut self, want: &Want, lender: PoolId) -> Option<Addr> {
        let lent = self.take_off_lent(want, lender)?;
        Some(self.hand_out_lent(&lent))
    }

    /// A request as it goes to a pool that lends. A lent block must not be one that can grow, but
    /// where all can.
    fn want_lent(&mut self, want: &Want, lender: PoolId) -> Option<Want> {
        let pool = self.inventory.pools().privates().get(lender)?.pool(want.kind);
        let lent = self.inventory.want_from(want, pool);
        Some(Want { expandable: lent.expandable && self.placement.lends_growing(), ..lent })
    }

    /// Takes the block that a pool lends out of the index, and nothing more: `hand_out_lent` is
    /// next.
    pub(crate) fn take_off_lent(&mut self, want: &Want, lender: PoolId) -> Option<Lent> {
        self.expect_settled();
        let lent = self.want_lent(want, lender)?;
        let fit = self.placement.fit(&lent);
        let block = self.inventory.take_off(&lent, fit)?;
        self.placement.note_lent(&mut self.inventory, want);
        Some(Lent { block, want: lent })
    }

    /// Hands out what was taken off.
    pub(crate) fn hand_out_lent(&mut self, lent: &Lent) -> Addr {
        self.inventory.hand_out(lent.block, &lent.want)
    }

    /// Makes a symmetric pool, whose segments come from a source of its own and have at least so
    /// many bytes.
    pub(crate) fn add_symmetric_pool(
        &mut self,
        id: PoolId,
        growth_bytes: u64,
    ) -> Result<(), PoolProblem> {
        self.inventory.add_symmetric_pool(id, growth_bytes)
    }

    /// Serves a request from the plots that are there, if one of them can.
    pub(crate) fn take_symmetric(&mut self, id: PoolId, want: &Want) -> Option<Addr> {
        self.inventory.take_symmetric(id, want)
    }

    /// The source gave a plot for a request; serves the request from it.
    pub(crate) fn take_plot(&mut self, id: PoolId, want: &Want, span: Span) -> Addr {
        self.expect_settled();
        self.inventory.take_plot(id, want, span)
    }

    /// A request for a symmetric pool could not be served.
    pub(crate) fn note_refused(&mut self, id: PoolId, size_bytes: u64) {
        self.inventory.note_refused(id, size_bytes);
    }

    /// Plots with no block in them were given back.
    pub(crate) fn note_trim(&mut self, id: PoolId, segments: u64) {
        self.inventory.note_trim(id, segments);
    }

    /// The numbers of what is free when this request fails.
    pub(crate) fn pieces(&mut self, want: &Want) -> Pieces {
        let fit = self.placement.fit(want);
        self.inventory.pieces(want, fit, &self.waiting.put_off())
    }
}
