//! Symmetric pools: their requests and frees, each noted in the pool's sequence.

use std::sync::Arc;

use crate::error::PoolProblem;
use crate::heap::ids::BlockId;
use crate::heap::inventory::{Fit, Inventory};
use crate::heap::pools::symmetric::{HOME, Symmetric};
use crate::heap::size::{self, SEGMENT_UNIT_BYTES};
use crate::heap::{State, Want};
use crate::record::context::Context;
use crate::record::history::History;
use crate::sequence::{Call, Position, mix};
use crate::types::{Addr, PoolId, Span};

impl Inventory {
    /// Makes a symmetric pool, whose segments come from a source of its own and have at least so
    /// many bytes.
    pub(crate) fn add_symmetric_pool(
        &mut self,
        id: PoolId,
        growth_bytes: u64,
    ) -> Result<(), PoolProblem> {
        self.pools.check_new(id)?;
        let growth_bytes = growth_bytes.next_multiple_of(SEGMENT_UNIT_BYTES);
        let symmetric = Symmetric::new(growth_bytes, self.placement_mark(growth_bytes));
        self.pools.add_symmetric(id, symmetric);
        Ok(())
    }

    /// A number that differs where settings do that say where blocks are placed.
    fn placement_mark(&self, growth_bytes: u64) -> u64 {
        let config = self.rules.config();
        let numbers = [growth_bytes, config.large_segment_bytes, self.rules.split_limit_bytes()];
        let numbers = numbers.into_iter().chain([config.max_non_split_rounding_bytes]);
        let by_segment = u64::from(self.rules.policy().split_by_segment_kind);
        numbers.chain(config.roundup_divisions).chain([by_segment]).fold(0, mix)
    }

    /// The request as plots are searched for it: on the default stream, small or large by its size
    /// under every policy.
    fn want_symmetric(&self, id: PoolId, want: &Want) -> Want {
        let kind = size::kind(want.size_bytes);
        let splits = !self.pools.privates().is_unsplit(id);
        Want { kind, stream: HOME, expandable: false, splits, ..*want }
    }

    /// Serves a request from the plots that are there, if one of them can.
    pub(crate) fn take_symmetric(&mut self, id: PoolId, want: &Want) -> Option<Addr> {
        let want = self.want_symmetric(id, want);
        let pools = self.pools.privates().symmetric(id)?.pools_for(want.kind);
        let found = pools.into_iter().find_map(|pool| {
            let want = self.want_from(&want, pool);
            let want = self.begin_search(&want);
            self.take_best(&want, Fit::Smallest)
        });
        found.map(|(block, addr)| {
            self.note_request(id, &want, block);
            addr
        })
    }

    /// How large a plot has to be for a request, and whether the settings let the device be asked
    /// for it.
    pub(crate) fn plan_plot(&self, id: PoolId, want: &Want) -> (u64, bool) {
        let growth_bytes = self.pools.privates().symmetric(id).map_or(0, Symmetric::growth_bytes);
        let size_bytes = self.segment_bytes(want).max(growth_bytes);
        (size_bytes, !self.exceeds_cap(size_bytes) && !self.rejects(size_bytes))
    }

    /// The source gave a plot for a request; serves the request from it.
    pub(crate) fn take_plot(&mut self, id: PoolId, want: &Want, span: Span) -> Addr {
        let want = self.want_symmetric(id, want);
        let pool = self.pools.add_plot(id, &want, span);
        let want = self.want_from(&want, pool);
        let block = self.add_fixed(&want, span);
        let addr = self.hand_out(block, &want);
        self.note_request(id, &want, block);
        addr
    }

    /// A request was served. Its block is never put back on the fast path, where nobody would hear
    /// of it.
    fn note_request(&mut self, id: PoolId, want: &Want, block: BlockId) {
        self.space[block].used_elsewhere = true;
        let addr = self.space[block].addr;
        let context = self.own_context();
        if let Some(symmetric) = self.pools.symmetric_entry(id) {
            symmetric.note_request(addr, want.requested_bytes, context);
        }
    }

    /// A request could not be served.
    pub(crate) fn note_refused(&mut self, id: PoolId, size_bytes: u64) {
        let context = self.own_context();
        if let Some(symmetric) = self.pools.symmetric_entry(id) {
            symmetric.note(Call::Refused { size_bytes }, context);
        }
    }

    /// Plots with no block in them were given back.
    pub(crate) fn note_trim(&mut self, id: PoolId, segments: u64) {
        let context = self.own_context();
        if let Some(symmetric) = self.pools.symmetric_entry(id) {
            symmetric.note(Call::Trim { segments }, context);
        }
    }

    fn own_context(&self) -> Option<Arc<dyn Context>> {
        self.recorder.history().and_then(History::share_own_context)
    }

    /// Where a live block lies in its symmetric pool.
    pub(crate) fn position_of(&self, addr: Addr) -> Option<Position> {
        let id = self.symmetric_of(self.live(addr)?)?;
        self.pools.privates().symmetric(id)?.position_of(addr)
    }

    /// A live block of a symmetric pool is freed: the default stream comes after all its uses.
    pub(in crate::heap) fn note_symmetric_free(&mut self, pool: PoolId, id: BlockId) {
        assert!(self.space[id].state == State::Live, "{id:?} is not live");
        let addr = self.space[id].addr;
        let context = self.own_context();
        if let Some(symmetric) = self.pools.symmetric_entry(pool) {
            symmetric.note_free(addr, context);
        }
        self.space[id].used_elsewhere = false;
    }
}
