//! Symmetric pools: private pools in which a block lies where the calls so far put it, and nothing
//! else has a say: no address, no stream, no event.
//!
//! Each segment is a pool of its own, a plot, on the default stream. A request takes the first
//! plot, in the order in which they came, with a free block that will do, and in it the smallest,
//! the lowest first: where in the address space the plots are does not matter. What is freed is
//! free at once; who has to wait for whom is between streams, and the shell sees to it. So ranks
//! that make the same calls have every block in the same plot at the same offset.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::PoolProblem;
use crate::heap::ids::{BlockId, PoolIndex};
use crate::heap::pools::pool::PoolRole;
use crate::heap::size::{self, SEGMENT_UNIT_BYTES};
use crate::heap::{Heap, Want};
use crate::record::caught;
use crate::record::context::Context;
use crate::record::history::History;
use crate::sequence::{Call, Divergence, Position, Sequence, mix};
use crate::types::{Addr, PoolId, PoolKind, Span, StreamId};

/// The stream by which symmetric pools order the use of their memory.
pub(crate) const HOME: StreamId = StreamId(0);

/// A segment of a symmetric pool.
#[derive(Clone, Copy, Debug)]
struct Plot {
    /// How many there were before it.
    number: u64,
    pool: PoolIndex,
    kind: PoolKind,
    span: Span,
}

/// What a symmetric pool knows besides its blocks.
#[derive(Clone, Default)]
pub(crate) struct Symmetric {
    /// In the order in which they came.
    plots: Vec<Plot>,
    /// How many plots there ever were.
    plots_made: u64,
    /// No plot is smaller.
    growth_bytes: u64,
    /// The live blocks, each with the number of the call that made it.
    live: BTreeMap<Addr, u64>,
    sequence: Sequence,
    /// Where calls came from, by their numbers, as far as a history gathered it.
    contexts: BTreeMap<u64, Arc<dyn Context>>,
    /// What the ranks were told when they parted.
    divergence: Option<Divergence>,
}

impl std::fmt::Debug for Symmetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symmetric").field("plots", &self.plots).finish_non_exhaustive()
    }
}

impl Symmetric {
    /// The pools that its plots are, in order.
    pub(crate) fn pools(&self) -> impl Iterator<Item = PoolIndex> + '_ {
        self.plots.iter().map(|plot| plot.pool)
    }

    /// Whether any request was made.
    pub(crate) fn has_begun(&self) -> bool {
        self.sequence.count() > 1
    }

    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub(crate) fn divergence(&self) -> Option<&Divergence> {
        self.divergence.as_ref()
    }

    /// The ranks were told that they parted.
    pub(crate) fn set_divergence(&mut self, divergence: Divergence) {
        self.divergence = Some(divergence);
    }

    /// Where a call came from, as lines `function (file:line)`, the innermost first.
    pub(crate) fn context_of(&self, number: u64) -> Option<Arc<dyn Context>> {
        self.contexts.get(&number).cloned()
    }

    /// All ranks agree on the calls before this one.
    pub(crate) fn agree_before(&mut self, number: u64) {
        self.sequence.forget_before(number);
        let rest = self.contexts.split_off(&self.sequence.first());
        // What contexts do when they are dropped is their own, and may need locks.
        std::mem::replace(&mut self.contexts, rest).into_values().for_each(caught::drop_later);
    }

    fn note(&mut self, call: Call, context: Option<Arc<dyn Context>>) -> u64 {
        let number = self.sequence.note(call);
        if let Some(context) = context {
            self.contexts.insert(number, context);
        }
        // A sequence that nobody ever seals forgets its oldest calls.
        while let Some(oldest) = self.contexts.first_entry()
            && *oldest.key() < self.sequence.first()
        {
            caught::drop_later(oldest.remove());
        }
        number
    }
}

impl Heap {
    /// Makes a symmetric pool, whose segments come from a source of its own and have at least so
    /// many bytes.
    pub(crate) fn add_symmetric_pool(
        &mut self,
        id: PoolId,
        growth_bytes: u64,
    ) -> Result<(), PoolProblem> {
        self.check_new(id)?;
        self.add_private(id, true, true);
        let growth_bytes = growth_bytes.next_multiple_of(SEGMENT_UNIT_BYTES);
        let mut symmetric = Symmetric { growth_bytes, ..Symmetric::default() };
        symmetric.note(Call::Begin { settings: self.placement_mark(growth_bytes) }, None);
        self.privates.symmetric.insert(id, symmetric);
        Ok(())
    }

    /// A number that differs where settings do that say where blocks are placed.
    fn placement_mark(&self, growth_bytes: u64) -> u64 {
        let config = &self.config;
        let numbers = [growth_bytes, config.large_segment_bytes, self.split_limit_bytes];
        let numbers = numbers.into_iter().chain([config.max_non_split_rounding_bytes]);
        let by_segment = u64::from(self.policy.split_by_segment_kind);
        numbers.chain(config.roundup_divisions).chain([by_segment]).fold(0, mix)
    }

    pub(crate) fn symmetric(&self, id: PoolId) -> Result<&Symmetric, PoolProblem> {
        let known = self.privates.get(id).ok_or(PoolProblem::Unknown)?;
        let symmetric = self.privates.symmetric.get(&id).filter(|_| known.symmetric);
        symmetric.ok_or(PoolProblem::NotSymmetric)
    }

    pub(crate) fn symmetric_mut(&mut self, id: PoolId) -> Result<&mut Symmetric, PoolProblem> {
        self.symmetric(id)?;
        self.privates.symmetric.get_mut(&id).ok_or(PoolProblem::NotSymmetric)
    }

    /// The symmetric pool that a request goes to, if it goes to one.
    pub(crate) fn symmetric_for(&self, want: &Want) -> Option<PoolId> {
        self.is_symmetric_pool(self.pools.pool(want.pool).owner)
    }

    /// The symmetric pool that a block belongs to, if it does to one.
    pub(crate) fn symmetric_of(&self, id: BlockId) -> Option<PoolId> {
        self.is_symmetric_pool(self.owner_of(self.space[id].segment))
    }

    fn is_symmetric_pool(&self, owner: Option<PoolId>) -> Option<PoolId> {
        owner.filter(|&id| self.privates.get(id).is_some_and(|private| private.symmetric))
    }

    pub(in crate::heap) fn is_symmetric(&self, id: BlockId) -> bool {
        self.symmetric_of(id).is_some()
    }

    /// The request as plots are searched for it: on the default stream, small or large by its size
    /// under every policy.
    fn want_symmetric(&self, id: PoolId, want: &Want) -> Want {
        let kind = size::kind(want.size_bytes);
        let splits = !self.privates.unsplit.contains(&id);
        Want { kind, stream: HOME, expandable: false, splits, ..*want }
    }

    /// Serves a request from the plots that are there, if one of them can.
    pub(crate) fn take_symmetric(&mut self, id: PoolId, want: &Want) -> Option<Addr> {
        let want = self.want_symmetric(id, want);
        let plots = self.privates.symmetric.get(&id)?.plots.iter();
        let pools: Vec<_> =
            plots.filter(|plot| plot.kind == want.kind).map(|plot| plot.pool).collect();
        let found = pools.into_iter().find_map(|pool| {
            let want = self.want_from(&want, pool);
            self.take_again(&want)
        });
        found.inspect(|&addr| self.note_request(id, &want, addr))
    }

    /// How large a plot has to be for a request, and whether the settings let the device be asked
    /// for it.
    pub(crate) fn plan_plot(&self, id: PoolId, want: &Want) -> (u64, bool) {
        let growth_bytes =
            self.privates.symmetric.get(&id).map_or(0, |symmetric| symmetric.growth_bytes);
        let size_bytes = self.segment_bytes(want).max(growth_bytes);
        (size_bytes, !self.exceeds_cap(size_bytes) && !self.rejects(size_bytes))
    }

    /// The source gave a plot for a request; serves the request from it.
    pub(crate) fn take_plot(&mut self, id: PoolId, want: &Want, span: Span) -> Addr {
        let want = self.want_symmetric(id, want);
        let pool = self.pools.add(want.kind, Some(id));
        let part = self.pools.pool_mut(pool);
        (part.role, part.no_split) = (PoolRole::OwnSource, !want.splits);
        if let Some(symmetric) = self.privates.symmetric.get_mut(&id) {
            let number = symmetric.plots_made;
            symmetric.plots_made += 1;
            symmetric.plots.push(Plot { number, pool, kind: want.kind, span });
        }
        let want = self.want_from(&want, pool);
        let addr = self.take_segment(&want, span);
        self.note_request(id, &want, addr);
        addr
    }

    /// A request was served. Its block is never put back on the fast path, where nobody would hear
    /// of it.
    fn note_request(&mut self, id: PoolId, want: &Want, addr: Addr) {
        if let Some(block) = self.live(addr) {
            self.space[block].used_elsewhere = true;
        }
        let context = self.own_context();
        let Some(symmetric) = self.privates.symmetric.get_mut(&id) else { return };
        let Some(plot) = symmetric.plots.iter().find(|plot| plot.span.contains(addr)) else {
            return;
        };
        let (segment, offset_bytes) = (plot.number, addr.0 - plot.span.addr.0);
        let size_bytes = want.requested_bytes;
        let number = symmetric.note(Call::Request { size_bytes, segment, offset_bytes }, context);
        symmetric.live.insert(addr, number);
    }

    /// A request could not be served.
    pub(crate) fn note_refused(&mut self, id: PoolId, size_bytes: u64) {
        let context = self.own_context();
        if let Some(symmetric) = self.privates.symmetric.get_mut(&id) {
            symmetric.note(Call::Refused { size_bytes }, context);
        }
    }

    /// Plots with no block in them were given back.
    pub(crate) fn note_trim(&mut self, id: PoolId, segments: u64) {
        let context = self.own_context();
        if let Some(symmetric) = self.privates.symmetric.get_mut(&id) {
            symmetric.note(Call::Trim { segments }, context);
        }
    }

    fn own_context(&self) -> Option<Arc<dyn Context>> {
        self.herald.history().and_then(History::share_own_context)
    }

    /// Puts back a live block of a symmetric pool: the default stream comes after all its uses.
    pub(crate) fn put_symmetric(&mut self, pool: PoolId, id: BlockId) {
        let addr = self.space[id].addr;
        let context = self.own_context();
        if let Some(symmetric) = self.privates.symmetric.get_mut(&pool)
            && let Some(number) = symmetric.live.remove(&addr)
        {
            symmetric.note(Call::Free { number }, context);
        }
        self.pending.undefer(id);
        self.space[id].used_elsewhere = false;
        self.put(id);
    }

    /// Where a live block lies in its symmetric pool.
    pub(crate) fn position_of(&self, addr: Addr) -> Option<Position> {
        let id = self.symmetric_of(self.live(addr)?)?;
        let symmetric = self.privates.symmetric.get(&id)?;
        let plot = symmetric.plots.iter().find(|plot| plot.span.contains(addr))?;
        let offset_bytes = addr.0 - plot.span.addr.0;
        Some(Position {
            segment: plot.number,
            offset_bytes,
            generation: *symmetric.live.get(&addr)?,
        })
    }

    /// The segments of a symmetric pool, with their numbers, in the order in which they came.
    pub(crate) fn plots(&self, id: PoolId) -> Result<Vec<(u64, Span)>, PoolProblem> {
        let plots = self.symmetric(id)?.plots.iter();
        Ok(plots.map(|plot| (plot.number, plot.span)).collect())
    }

    /// The segment of a pool that went back may have been a plot, which is gone with it.
    pub(in crate::heap) fn forget_plot(&mut self, pool: PoolIndex) {
        let Some(owner) = self.pools.pool(pool).owner else { return };
        let Some(symmetric) = self.privates.symmetric.get_mut(&owner) else { return };
        let before = symmetric.plots.len();
        symmetric.plots.retain(|plot| plot.pool != pool);
        if symmetric.plots.len() < before {
            self.pools.remove(pool);
        }
    }

    /// A symmetric pool's plots are its segments, in the order of their numbers; its live blocks
    /// are those that a call made and none freed; and the two pools that any private pool has are
    /// empty.
    pub(in crate::heap) fn check_symmetric(&self) -> Result<(), String> {
        for (&id, symmetric) in &self.privates.symmetric {
            let is_ordered = symmetric.plots.is_sorted_by(|one, next| one.number < next.number);
            if !is_ordered || symmetric.plots.iter().any(|plot| plot.number >= symmetric.plots_made)
            {
                return Err(format!("the segments of {id} are out of order"));
            }
            let mut live = 0;
            let segments =
                self.space.segments().iter().filter(|&(at, _)| self.owner_of(at) == Some(id));
            let mut count = 0;
            for (at, segment) in segments {
                count += 1;
                let pool = self.pools.lane(segment.lane).pool;
                let is_plot = |plot: &Plot| (plot.pool, plot.span) == (pool, segment.span);
                if !symmetric.plots.iter().any(is_plot) || self.segment_stream(at) != HOME {
                    return Err(format!("{at:?} of {id} is no plot of it"));
                }
                let blocks = self.space.chain(at).map(|block| &self.space[block]);
                let here = blocks.filter(|block| block.state == crate::heap::State::Live);
                live += here.filter(|block| symmetric.live.contains_key(&block.addr)).count();
            }
            if (live, count) != (symmetric.live.len(), symmetric.plots.len()) {
                return Err(format!("{id} knows of blocks or segments that are not there"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::policy::Policy;
    use crate::types::MIB;

    const POOL: PoolId = PoolId(0, 1);

    fn heap() -> Heap {
        let mut heap = Heap::new(Config::default(), Policy::larder(), 1 << 40);
        heap.add_symmetric_pool(POOL, 0).unwrap();
        heap
    }

    /// Serves a request; new plots lie at what `places` says next.
    fn ask(heap: &mut Heap, places: &mut dyn FnMut() -> u64, size_bytes: u64, stream: u64) -> Addr {
        let want = heap.want(size_bytes, StreamId(stream));
        let addr = heap.take_symmetric(POOL, &want).unwrap_or_else(|| {
            let (size_bytes, may_grow) = heap.plan_plot(POOL, &want);
            assert!(may_grow);
            heap.take_plot(POOL, &want, Span::new(Addr(places() * 64 * MIB), size_bytes))
        });
        assert_eq!(heap.check(), Ok(()));
        addr
    }

    fn put(heap: &mut Heap, addr: Addr) {
        let block = heap.live(addr).unwrap();
        heap.put_symmetric(POOL, block);
        assert_eq!(heap.check(), Ok(()));
    }

    #[test]
    fn blocks_lie_where_the_calls_put_them_whatever_the_addresses_and_streams() {
        let (mut one, mut other) = (heap(), heap());
        let (mut up, mut down) = (1, 1000);
        let mut upwards = || {
            up += 1;
            up
        };
        let mut downwards = || {
            down -= 1;
            down
        };
        let mut live = Vec::new();
        for step in 0..400_u64 {
            let size_bytes = [700, 5000, 300_000, 3 * MIB, 9 * MIB][step as usize % 5];
            let places = (
                ask(&mut one, &mut upwards, size_bytes, 0),
                ask(&mut other, &mut downwards, size_bytes, step % 3),
            );
            assert_eq!(one.position_of(places.0), other.position_of(places.1));
            live.push(places);
            if step % 3 != 0 {
                let (first, second) = live.swap_remove((step * 7 % live.len() as u64) as usize);
                put(&mut one, first);
                put(&mut other, second);
            }
        }
        let hashes = [&one, &other].map(|heap| heap.symmetric(POOL).unwrap().sequence().hash());
        assert_eq!(hashes[0], hashes[1]);
    }

    #[test]
    fn settings_that_place_blocks_otherwise_make_another_sequence() {
        let config = Config::parse("roundup_power2_divisions:4").unwrap();
        let mut odd = Heap::new(config, Policy::larder(), 1 << 40);
        odd.add_symmetric_pool(POOL, 0).unwrap();
        let hash = |heap: &Heap| heap.symmetric(POOL).unwrap().sequence().hash();
        assert_ne!(hash(&odd), hash(&heap()));
        assert_eq!(heap().symmetric(PoolId(0, 9)).unwrap_err(), PoolProblem::Unknown);
    }

    #[test]
    fn a_generation_tells_a_block_from_one_that_lay_there_before() {
        let mut heap = heap();
        let mut place = || 3;
        let addr = ask(&mut heap, &mut place, 512, 0);
        let before = heap.position_of(addr).unwrap();
        put(&mut heap, addr);
        assert_eq!((heap.position_of(addr), ask(&mut heap, &mut place, 512, 0)), (None, addr));
        let after = heap.position_of(addr).unwrap();
        assert_eq!((after.segment, after.offset_bytes), (before.segment, before.offset_bytes));
        assert!(after.generation > before.generation);
    }
}
