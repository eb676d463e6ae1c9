//! Symmetric pools: the calls that make, use, trim and seal them.
//!
//! All use of a symmetric pool's memory is ordered by the default stream: a request on another
//! stream makes that wait for the default stream, and a free makes the default stream wait for all
//! streams that used the block. No host ever waits, and when a free takes effect depends on
//! nobody's timing.

use larder_lock::TurnGuard;

use crate::allocator::ladder::Refusal;
use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::error::{Error, ExchangeError, PoolProblem};
use crate::heap::Want;
use crate::heap::ids::BlockId;
use crate::heap::pools::symmetric::HOME;
use crate::record::caught;
use crate::record::context::Context;
use crate::record::event::Level;
use crate::sequence::{Position, Search, Step};
use crate::source::SegmentSource;
use crate::types::{Addr, PoolId, Span, StreamId};
use std::sync::Arc;
use std::thread;

/// Gives what one rank says to all ranks, and returns what each of them said, in the order of the
/// ranks, this one included.
pub type Exchange<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;

/// How a symmetric pool grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SymmetricOptions {
    /// No segment is smaller than this; at 0 they are as large as those of any pool.
    pub growth_bytes: u64,
}

impl SymmetricOptions {
    /// Takes the options as they are so far, and gives them back with this one set.
    #[must_use]
    pub fn growth_bytes(mut self, growth_bytes: u64) -> Self {
        self.growth_bytes = growth_bytes;
        self
    }
}

/// How a symmetric pool's calls stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceState {
    /// How many calls there were, the making of the pool included.
    pub calls: u64,
    /// The hash of them.
    pub hash: u64,
}

impl Allocator {
    /// Makes a symmetric pool: one in which a block's segment and offset follow from the calls so
    /// far alone, so that ranks which make the same calls have every block at the same place. See
    /// [`MemPool::symmetric`](crate::MemPool::symmetric).
    pub fn add_symmetric_pool(
        &self,
        pool: PoolId,
        source: Arc<dyn SegmentSource>,
        options: SymmetricOptions,
    ) -> Result<(), Error> {
        let result = {
            let mut inner = self.lock();
            inner.add_sourced(pool, source, self.device_index(), |heap| {
                heap.add_symmetric_pool(pool, options.growth_bytes)
            })
        };
        caught::go_on();
        result
    }

    /// Where a live block lies in its symmetric pool.
    pub fn position_of(&self, addr: Addr) -> Result<Position, Error> {
        let inner = self.look();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        let none = || {
            Error::pool(inner.heap.inventory().pool_of(block).unwrap_or(PoolId::NONE))(
                PoolProblem::NotSymmetric,
            )
        };
        inner.heap.inventory().position_of(addr).ok_or_else(none)
    }

    /// The segments of a symmetric pool, with their numbers, in the order in which they came.
    pub fn symmetric_segments(&self, pool: PoolId) -> Result<Vec<(u64, Span)>, Error> {
        self.look().heap.pools().plots(pool).map_err(Error::pool(pool))
    }

    /// How a symmetric pool's calls stand.
    pub fn sequence_of(&self, pool: PoolId) -> Result<SequenceState, Error> {
        let inner = self.look();
        let sequence = inner.heap.pools().symmetric(pool).map_err(Error::pool(pool))?.sequence();
        Ok(SequenceState { calls: sequence.count(), hash: sequence.hash() })
    }

    /// Gives back the segments of a symmetric pool in which there is no block, in order. This is a
    /// call of the sequence, which all ranks have to make. Says how many went.
    pub fn trim_pool(&self, pool: PoolId) -> Result<u64, Error> {
        let mut inner = self.enter(Level::All);
        let result = inner.trim(&*self.device, pool);
        drop(inner);
        self.leave();
        result
    }

    /// Compares the calls of all ranks, each of which calls this at the same point. If they are the
    /// same, says how many there were; then every block lies at the same place on every rank. If
    /// not, every rank is told the same first call that differs, now and whenever it asks again.
    ///
    /// The exchange is called once, and some more times where ranks differ, with no lock held.
    pub fn seal_pool(&self, pool: PoolId, exchange: Exchange<'_>) -> Result<u64, Error> {
        let mut search = {
            let inner = self.look();
            let symmetric = inner.heap.pools().symmetric(pool).map_err(Error::pool(pool))?;
            if let Some(divergence) = symmetric.divergence() {
                return Err(Error::Diverged(Box::new(divergence.clone())));
            }
            Search::begin(symmetric.sequence())
        };
        loop {
            let message = self.seal_message(pool, &search)?;
            let heard = exchange(&message).map_err(Error::Exchange)?;
            if !heard.contains(&message) {
                let words = "the exchange did not bring back what this rank had said itself";
                return Err(Error::Exchange(words.into()));
            }
            let step = search
                .hear(&heard)
                .map_err(|garbled| Error::Exchange(garbled.to_string().into()))?;
            match step {
                Step::Ask(next) => search = next,
                Step::Agreed(calls) => {
                    let mut inner = self.lock();
                    inner
                        .heap
                        .pools_mut()
                        .symmetric_mut(pool)
                        .map_err(Error::pool(pool))?
                        .agree_before(calls);
                    drop(inner);
                    caught::go_on();
                    return Ok(calls);
                }
                Step::Differs(divergence) => {
                    let mut inner = self.lock();
                    let symmetric =
                        inner.heap.pools_mut().symmetric_mut(pool).map_err(Error::pool(pool))?;
                    symmetric.set_divergence(divergence.clone());
                    return Err(Error::Diverged(Box::new(divergence)));
                }
            }
        }
    }

    fn seal_message(&self, pool: PoolId, search: &Search) -> Result<Vec<u8>, Error> {
        let context = {
            let inner = self.look();
            let symmetric = inner.heap.pools().symmetric(pool).map_err(Error::pool(pool))?;
            search.wants_stack().and_then(|number| symmetric.context_of(number))
        };
        // To look up what a stack says may take long, and locks.
        let stack = context.map_or(String::new(), |context| lines_of(&*context));
        let inner = self.look();
        let symmetric = inner.heap.pools().symmetric(pool).map_err(Error::pool(pool))?;
        Ok(search.message(symmetric.sequence(), &stack))
    }

    /// Serves a request that is routed to a symmetric pool. What cannot be served is part of the
    /// sequence too: the other ranks may have got theirs.
    #[cold]
    pub(super) fn serve_symmetric<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        want: &Want,
        pool: PoolId,
    ) -> Result<Addr, Error> {
        let placed = inner.place(&*self.device, want, pool);
        if !matches!(placed, Ok(Some(_))) {
            inner.heap.note_refused(pool, want.requested_bytes);
        }
        match placed? {
            Some(addr) => Ok(addr),
            None => self.give_up(inner, want, Refusal::NoRoom),
        }
    }
}

/// A stack as lines, the innermost frame first.
fn lines_of(context: &dyn Context) -> String {
    let mut lines = String::new();
    for frame in context.frames() {
        lines += &format!("{} ({}:{})\n", frame.name, frame.filename, frame.line);
    }
    lines
}

impl Inner {
    /// Finds a request's place. None if there is no memory.
    fn place(
        &mut self,
        device: &dyn Device,
        want: &Want,
        pool: PoolId,
    ) -> Result<Option<Addr>, Error> {
        if want.stream != HOME {
            // The stream is the caller's, who may be asked about it.
            if self.heap.pools().may_capture() && self.ask(device, want.stream)?.is_some() {
                return Err(Error::pool(pool)(PoolProblem::Captured));
            }
            self.chain_streams(device, &[HOME], want.stream)?;
        }
        let addr = match self.heap.take_symmetric(pool, want) {
            Some(addr) => Some(addr),
            None => self.add_plot(device, want, pool)?,
        };
        if let Some(block) = addr.and_then(|addr| self.heap.live(addr)) {
            self.observed.note_user(want.stream, thread::current().id());
            self.heap.note_use(block, want.stream, false);
        }
        Ok(addr)
    }

    /// Asks the pool's source for a segment, and if there is none once more with all caches
    /// emptied. All ranks ask equally often, whoever of them is short: a source that makes segments
    /// for all of them together says the same to each.
    fn add_plot(
        &mut self,
        device: &dyn Device,
        want: &Want,
        pool: PoolId,
    ) -> Result<Option<Addr>, Error> {
        for is_last in [false, true] {
            let (size_bytes, may_grow) = self.heap.inventory().plan_plot(pool, want);
            if may_grow || self.must_join(pool) {
                let source = self.source_for(want);
                let Some((_, asked)) = &source else { return Ok(None) };
                let given = asked.alloc(size_bytes, HOME);
                self.tick(device);
                if let Some(span) = self.take_in(source.as_ref(), size_bytes, HOME, given)? {
                    return Ok(Some(self.heap.take_plot(pool, want, span)));
                }
            } else {
                self.decline(pool, size_bytes, HOME);
            }
            if !is_last {
                // What this rank cannot give back must not keep it from asking again with the
                // others.
                let captured = self.may_anybody_capture(device).unwrap_or(true);
                if !captured {
                    let _ = self.wait_for_events(device);
                }
                let _ = self.flush(device, captured, Some(want.stream));
            }
        }
        Ok(None)
    }

    /// Frees a block of a symmetric pool: the default stream comes after all who used it, and it is
    /// free.
    pub(super) fn free_symmetric(
        &mut self,
        device: &dyn Device,
        pool: PoolId,
        block: BlockId,
    ) -> Result<(), Error> {
        let users = self.heap.uses(block).to_vec();
        if !users.is_empty() {
            if self.is_free_captured(device, block)? {
                return Err(Error::pool(pool)(PoolProblem::Captured));
            }
            self.chain_streams(device, &users, HOME)?;
        }
        self.heap.put_symmetric(pool, block);
        Ok(())
    }

    /// Whether the streams of a block that is freed may be under a capture, or are gone, so that no
    /// event can be recorded on them.
    fn is_free_captured(&mut self, device: &dyn Device, block: BlockId) -> Result<bool, Error> {
        if self.observed.is_any_gone(self.heap.uses(block)) {
            return Ok(true);
        }
        if !self.heap.pools().may_capture() {
            return Ok(false);
        }
        if self.heap.policy().capture_is_by_stream() {
            return Ok(self.plan_putting_off(device, block)?.is_some());
        }
        self.may_anybody_capture(device)
    }

    /// Makes a stream wait for what others have been given to do so far.
    fn chain_streams(
        &mut self,
        device: &dyn Device,
        before: &[StreamId],
        after: StreamId,
    ) -> Result<(), Error> {
        let events = self.record_events(device, before)?;
        let followed = events.iter().try_for_each(|&(_, event)| device.follow_event(after, event));
        self.unrecord(events);
        followed.map_err(Error::device("wait for an event"))
    }

    fn trim(&mut self, device: &dyn Device, pool: PoolId) -> Result<u64, Error> {
        self.heap.pools().symmetric(pool).map_err(Error::pool(pool))?;
        self.finish_symmetric(device, pool)?;
        let plan = self.heap.plan_release_private(pool);
        let mut gone = 0;
        let result = plan.iter().try_for_each(|step| {
            self.release(device, std::slice::from_ref(step))?;
            gone += 1;
            Ok(())
        });
        self.heap.note_trim(pool, gone);
        result.map(|()| gone)
    }
}
