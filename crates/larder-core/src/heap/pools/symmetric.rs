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

use crate::error::{PoolProblem, Unsound};
use crate::heap::Want;
use crate::heap::ids::PoolIndex;
use crate::heap::pools::Pools;
use crate::heap::pools::pool::PoolRole;
use crate::record::caught;
use crate::record::context::Context;
use crate::sequence::{Call, Divergence, Position, Sequence};
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

    /// A pool with no plots, none of which will be smaller than this.
    pub(in crate::heap) fn new(growth_bytes: u64, settings: u64) -> Symmetric {
        let mut symmetric = Symmetric { growth_bytes, ..Symmetric::default() };
        symmetric.note(Call::Begin { settings }, None);
        symmetric
    }

    /// No plot is smaller.
    pub(in crate::heap) fn growth_bytes(&self) -> u64 {
        self.growth_bytes
    }

    /// The pools that its plots for requests of a kind are, in order.
    pub(in crate::heap) fn pools_for(&self, kind: PoolKind) -> Vec<PoolIndex> {
        let plots = self.plots.iter().filter(|plot| plot.kind == kind);
        plots.map(|plot| plot.pool).collect()
    }

    /// The source gave a plot.
    fn add_plot(&mut self, pool: PoolIndex, kind: PoolKind, span: Span) {
        let is_apart = self.plots.iter().all(|plot| !plot.span.overlaps(span));
        assert!(is_apart, "a plot lies at {span:?} already");
        let number = self.plots_made;
        self.plots_made += 1;
        self.plots.push(Plot { number, pool, kind, span });
    }

    /// A request was served at an address.
    pub(in crate::heap) fn note_request(
        &mut self,
        addr: Addr,
        size_bytes: u64,
        context: Option<Arc<dyn Context>>,
    ) {
        let Some(plot) = self.plots.iter().find(|plot| plot.span.contains(addr)) else { return };
        let (segment, offset_bytes) = (plot.number, addr.0 - plot.span.addr.0);
        let number = self.note(Call::Request { size_bytes, segment, offset_bytes }, context);
        let before = self.live.insert(addr, number);
        debug_assert!(before.is_none(), "a block was handed out at {addr} and not freed");
    }

    /// The block at an address is freed.
    pub(in crate::heap) fn note_free(&mut self, addr: Addr, context: Option<Arc<dyn Context>>) {
        if let Some(number) = self.live.remove(&addr) {
            self.note(Call::Free { number }, context);
        }
    }

    /// Where the live block at an address lies.
    pub(in crate::heap) fn position_of(&self, addr: Addr) -> Option<Position> {
        let plot = self.plots.iter().find(|plot| plot.span.contains(addr))?;
        let offset_bytes = addr.0 - plot.span.addr.0;
        let generation = *self.live.get(&addr)?;
        Some(Position { segment: plot.number, offset_bytes, generation })
    }

    /// Whether a segment is a plot.
    pub(in crate::heap) fn has_plot(&self, pool: PoolIndex, span: Span) -> bool {
        self.plots.iter().any(|plot| (plot.pool, plot.span) == (pool, span))
    }

    /// Whether a live block at an address was asked for by a call.
    pub(in crate::heap) fn knows(&self, addr: Addr) -> bool {
        self.live.contains_key(&addr)
    }

    /// How many live blocks and how many plots there are.
    pub(in crate::heap) fn counts(&self) -> (usize, usize) {
        (self.live.len(), self.plots.len())
    }

    /// Its plots are in the order of their numbers.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        let is_ordered = self.plots.is_sorted_by(|one, next| one.number < next.number);
        if is_ordered && self.plots.iter().all(|plot| plot.number < self.plots_made) {
            Ok(())
        } else {
            Err("its segments are out of order".into())
        }
    }

    pub(in crate::heap) fn note(&mut self, call: Call, context: Option<Arc<dyn Context>>) -> u64 {
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

impl Pools {
    pub(crate) fn symmetric(&self, id: PoolId) -> Result<&Symmetric, PoolProblem> {
        let known = self.privates.get(id).ok_or(PoolProblem::Unknown)?;
        let symmetric = self.privates.symmetric.get(&id).filter(|_| known.symmetric);
        symmetric.ok_or(PoolProblem::NotSymmetric)
    }

    pub(crate) fn symmetric_mut(&mut self, id: PoolId) -> Result<&mut Symmetric, PoolProblem> {
        self.symmetric(id)?;
        self.privates.symmetric.get_mut(&id).ok_or(PoolProblem::NotSymmetric)
    }

    /// A private pool, if it is symmetric.
    pub(in crate::heap) fn with_symmetry(&self, owner: Option<PoolId>) -> Option<PoolId> {
        owner.filter(|&id| self.privates.get(id).is_some_and(|private| private.symmetric))
    }

    /// The segments of a symmetric pool, with their numbers, in the order in which they came.
    pub(crate) fn plots(&self, id: PoolId) -> Result<Vec<(u64, Span)>, PoolProblem> {
        let plots = self.symmetric(id)?.plots.iter();
        Ok(plots.map(|plot| (plot.number, plot.span)).collect())
    }

    /// The source gave a plot to a symmetric pool, for requests like this one. It is a pool of its
    /// own.
    pub(in crate::heap) fn add_plot(&mut self, id: PoolId, want: &Want, span: Span) -> PoolIndex {
        let pool = self.add(want.kind, Some(id));
        let part = self.pool_mut(pool);
        part.set_role(PoolRole::OwnSource);
        part.set_no_split(!want.splits);
        if let Some(symmetric) = self.symmetric_entry(id) {
            symmetric.add_plot(pool, want.kind, span);
        }
        pool
    }

    /// What a symmetric pool knows besides its blocks, if there is one of this name.
    pub(in crate::heap) fn symmetric_entry(&mut self, id: PoolId) -> Option<&mut Symmetric> {
        self.privates.symmetric.get_mut(&id)
    }

    /// Makes a symmetric pool, whose segments come from a source of its own.
    pub(in crate::heap) fn add_symmetric(&mut self, id: PoolId, symmetric: Symmetric) {
        self.add_private(id, true, true);
        self.privates.symmetric.insert(id, symmetric);
    }

    /// The segment of a pool that went back may have been a plot, which is gone with it.
    pub(in crate::heap) fn forget_plot(&mut self, pool: PoolIndex) {
        let Some(owner) = self.pool(pool).owner() else { return };
        let Some(symmetric) = self.privates.symmetric.get_mut(&owner) else { return };
        let before = symmetric.plots.len();
        symmetric.plots.retain(|plot| plot.pool != pool);
        if symmetric.plots.len() < before {
            self.remove(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::heap::Heap;
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
            let (size_bytes, may_grow) = heap.inventory().plan_plot(POOL, &want);
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
            assert_eq!(
                one.inventory().position_of(places.0),
                other.inventory().position_of(places.1)
            );
            live.push(places);
            if step % 3 != 0 {
                let (first, second) = live.swap_remove((step * 7 % live.len() as u64) as usize);
                put(&mut one, first);
                put(&mut other, second);
            }
        }
        let hashes =
            [&one, &other].map(|heap| heap.pools().symmetric(POOL).unwrap().sequence().hash());
        assert_eq!(hashes[0], hashes[1]);
    }

    #[test]
    fn settings_that_place_blocks_otherwise_make_another_sequence() {
        let config = Config::parse("roundup_power2_divisions:4").unwrap();
        let mut odd = Heap::new(config, Policy::larder(), 1 << 40);
        odd.add_symmetric_pool(POOL, 0).unwrap();
        let hash = |heap: &Heap| heap.pools().symmetric(POOL).unwrap().sequence().hash();
        assert_ne!(hash(&odd), hash(&heap()));
        assert_eq!(heap().pools().symmetric(PoolId(0, 9)).unwrap_err(), PoolProblem::Unknown);
    }

    #[test]
    fn a_generation_tells_a_block_from_one_that_lay_there_before() {
        let mut heap = heap();
        let mut place = || 3;
        let addr = ask(&mut heap, &mut place, 512, 0);
        let before = heap.inventory().position_of(addr).unwrap();
        put(&mut heap, addr);
        assert_eq!(
            (heap.inventory().position_of(addr), ask(&mut heap, &mut place, 512, 0)),
            (None, addr)
        );
        let after = heap.inventory().position_of(addr).unwrap();
        assert_eq!((after.segment, after.offset_bytes), (before.segment, before.offset_bytes));
        assert!(after.generation > before.generation);
    }
}
