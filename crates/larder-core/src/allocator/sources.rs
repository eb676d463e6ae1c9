//! Sources: how private pools' sources are called, and the books that are kept of what they gave.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocator::{Allocator, Inner};
use crate::device::DeviceError;
use crate::error::{Error, PoolProblem, Unsound};
use crate::heap::Want;
use crate::heap::ids::{BlockId, SegmentId};
use crate::record::caught;
use crate::source::{SegmentFault, SegmentSource, SourceCounts, SourceProperties};
use crate::types::{Addr, DeviceIndex, PoolId, Span, StreamId};

/// All addresses of blocks are multiples of this, so those of segments have to be.
const SEGMENT_ALIGNMENT: u64 = 512;

/// A private pool's source of segments.
pub(super) type PoolSource = (PoolId, Arc<Calm>);

/// A source whose panics do not go through the heap: to the allocator they are refusals.
pub(super) struct Calm(Arc<dyn SegmentSource>);

impl Calm {
    pub(super) fn new(source: Arc<dyn SegmentSource>) -> Calm {
        Calm(source)
    }

    fn calmly<T>(
        &self,
        call: impl FnOnce(&dyn SegmentSource) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        caught::catch(|| call(&*self.0)).unwrap_or_else(|| Err(panicked()))
    }

    pub(super) fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        self.calmly(|source| source.alloc(size_bytes, stream))
    }
}

pub(super) fn panicked() -> DeviceError {
    DeviceError::Other { code: 0, text: "what was asked for memory panicked".to_owned() }
}

/// Names the pool and the call in an error of its source.
fn failed(pool: PoolId, call: &'static str) -> impl FnOnce(DeviceError) -> Error {
    move |error| Error::Source { pool, call, error }
}

/// A pool's source, and what it gave.
pub(super) struct Sourced {
    source: Arc<Calm>,
    properties: SourceProperties,
    /// What it gave and has not got back: where each piece begins, and how large it is.
    given: BTreeMap<Addr, u64>,
    counts: SourceCounts,
}

impl Sourced {
    pub(super) fn new(
        source: Arc<dyn SegmentSource>,
        device: DeviceIndex,
    ) -> Result<Sourced, DeviceError> {
        let source = Arc::new(Calm::new(source));
        let properties = source.calmly(|source| Ok(source.properties()))?;
        source.calmly(|source| source.init(device))?;
        let (given, counts) = (BTreeMap::new(), SourceCounts::default());
        Ok(Sourced { source, properties, given, counts })
    }

    fn is_given(&self, span: Span) -> bool {
        let before = self.given.range(..span.end()).next_back();
        before.is_some_and(|(&addr, &size_bytes)| Span::new(addr, size_bytes).overlaps(span))
    }
}

impl Allocator {
    /// What the source of a private pool was asked for so far; none if the pool has no source of
    /// its own.
    pub fn source_counts(&self, pool: PoolId) -> Option<SourceCounts> {
        self.look().sources.get(&pool).map(|sourced| sourced.counts)
    }

    /// What the source of a private pool says of itself; none if the pool has no source of its own.
    pub fn source_properties(&self, pool: PoolId) -> Option<SourceProperties> {
        self.look().sources.get(&pool).map(|sourced| sourced.properties.clone())
    }
}

impl Inner {
    /// Gives a source to a pool that was just made.
    pub(super) fn keep_source(&mut self, pool: PoolId, sourced: Sourced) {
        if !sourced.properties.may_split {
            // The pool is new, so that nothing stands against it.
            let _ = self.heap.pools_mut().set_no_split(pool);
        }
        self.sources.insert(pool, sourced);
    }

    /// The source of segments for a request, if its pool has one of its own.
    pub(super) fn source_for(&self, want: &Want) -> Option<PoolSource> {
        let pool = self.heap.inventory().source_for(want)?;
        Some((pool, self.sources.get(&pool)?.source.clone()))
    }

    /// Whether the segments of a pool are made and given back by all ranks together.
    pub(super) fn is_collective(&self, pool: PoolId) -> bool {
        self.sources.get(&pool).is_some_and(|sourced| sourced.properties.collective)
    }

    /// Whether this process has to ask for a segment when the others do, though it may not have it.
    pub(super) fn must_join(&self, pool: PoolId) -> bool {
        let properties = self.sources.get(&pool).map(|sourced| &sourced.properties);
        properties.is_some_and(|properties| properties.collective && !properties.declines)
    }

    /// Tells a pool's source that this process would ask for a segment, but may not.
    pub(super) fn decline(&mut self, pool: PoolId, size_bytes: u64, stream: StreamId) {
        let Some(sourced) = self.sources.get_mut(&pool) else { return };
        sourced.counts.refused += 1;
        // Whatever it says to that, there is no segment.
        let _ = sourced.source.calmly(|source| source.decline(size_bytes, stream));
    }

    /// Takes in what the device or a pool's source answered to a request for a segment. None if
    /// there is no memory. What a source should not have given it gets back, and everything stays
    /// as it was.
    pub(super) fn take_in(
        &mut self,
        source: Option<&PoolSource>,
        size_bytes: u64,
        stream: StreamId,
        given: Result<Addr, DeviceError>,
    ) -> Result<Option<Span>, Error> {
        let Some(&(pool, ref source)) = source else {
            return match given {
                Ok(addr) => Ok(Some(Span::new(addr, size_bytes))),
                Err(DeviceError::OutOfMemory) => Ok(None),
                Err(error) => Err(Error::Device { call: "allocate memory", error }),
            };
        };
        let fault =
            given.as_ref().ok().and_then(|&addr| self.fault_of(Span::new(addr, size_bytes)));
        let books = self.sources.get_mut(&pool);
        let mut unlisted = SourceCounts::default();
        let (counts, listed) = match books {
            Some(sourced) => (&mut sourced.counts, Some(&mut sourced.given)),
            None => (&mut unlisted, None),
        };
        match (given, fault) {
            (Ok(addr), None) => {
                counts.made += 1;
                counts.held_bytes += size_bytes;
                if let Some(listed) = listed {
                    listed.insert(addr, size_bytes);
                }
                Ok(Some(Span::new(addr, size_bytes)))
            }
            (Ok(addr), Some(fault)) => {
                counts.failed += 1;
                // Whatever it says to that, the segment is not ours.
                let span = Span { addr, size_bytes };
                let _ = source.calmly(|source| source.free(span, stream));
                Err(Error::pool(pool)(PoolProblem::BadSegment(addr, fault)))
            }
            (Err(DeviceError::OutOfMemory), _) => {
                counts.refused += 1;
                Ok(None)
            }
            (Err(error), _) => {
                counts.failed += 1;
                Err(failed(pool, "give memory")(error))
            }
        }
    }

    /// What is wrong with a segment that a source gave, if anything is.
    fn fault_of(&self, span: Span) -> Option<SegmentFault> {
        if span.addr == Addr(0) {
            Some(SegmentFault::Null)
        } else if !span.addr.0.is_multiple_of(SEGMENT_ALIGNMENT) {
            Some(SegmentFault::Misaligned)
        } else if span.addr.0.checked_add(span.size_bytes).is_none() {
            Some(SegmentFault::Endless)
        } else {
            let is_given = self.sources.values().any(|sourced| sourced.is_given(span));
            (is_given || self.heap.space().overlaps(span)).then_some(SegmentFault::Overlaps)
        }
    }

    /// Gives a segment back to its pool's source; false if it did not come from one.
    pub(super) fn return_to_source(&mut self, id: SegmentId) -> Result<bool, Error> {
        let Some(pool) = self.heap.inventory().source_of(id) else { return Ok(false) };
        let (span, stream) =
            (self.heap.inventory().segment_span(id), self.heap.inventory().segment_stream(id));
        let Some(sourced) = self.sources.get_mut(&pool) else { return Ok(false) };
        let freed = sourced.source.calmly(|source| source.free(span, stream));
        if freed.is_ok() {
            sourced.given.remove(&span.addr);
            sourced.counts.given_back += 1;
            sourced.counts.held_bytes -= span.size_bytes;
        } else {
            sourced.counts.failed += 1;
        }
        freed.map_err(failed(pool, "take memory back"))?;
        Ok(true)
    }

    /// Tells a pool's source of something, if it has one.
    pub(super) fn tell_source(
        &self,
        pool: PoolId,
        call: &'static str,
        tell: impl FnOnce(&dyn SegmentSource) -> Result<(), DeviceError>,
    ) -> Result<(), Error> {
        let Some(sourced) = self.sources.get(&pool) else { return Ok(()) };
        sourced.source.calmly(tell).map_err(failed(pool, call))
    }

    /// Tells all sources of something, in the order of their pools, up to the first that fails.
    pub(super) fn tell_sources(
        &self,
        call: &'static str,
        tell: impl Fn(&dyn SegmentSource) -> Result<(), DeviceError>,
    ) -> Result<(), Error> {
        let mut pools: Vec<PoolId> = self.sources.keys().copied().collect();
        pools.sort_unstable();
        pools.into_iter().try_for_each(|pool| self.tell_source(pool, call, &tell))
    }

    /// The allocation that a block lies in, as its pool's source has it: the segment, or more.
    pub(super) fn base_by_source(&self, block: BlockId, segment: Span) -> Result<Span, Error> {
        let Some(pool) = self.heap.inventory().pool_of(block) else { return Ok(segment) };
        let Some(sourced) = self.sources.get(&pool) else { return Ok(segment) };
        let named = sourced.source.calmly(|source| source.base_allocation(segment));
        match named.map_err(failed(pool, "name an allocation"))? {
            Some(base) if !base.covers(segment) => {
                Err(Error::pool(pool)(PoolProblem::BadBase(self.heap.inventory().addr_of(block))))
            }
            base => Ok(base.unwrap_or(segment)),
        }
    }

    /// Says in one sentence where the books differ from the heap, if they do.
    pub(super) fn check_sources(&self) -> Result<(), Unsound> {
        for (&pool, sourced) in &self.sources {
            let segments = self.heap.snapshot_of(pool).unwrap_or_default().into_iter();
            let held: Vec<(Addr, u64)> =
                segments.map(|segment| (segment.span.addr, segment.span.size_bytes)).collect();
            let given: Vec<(Addr, u64)> =
                sourced.given.iter().map(|(&addr, &size_bytes)| (addr, size_bytes)).collect();
            if held != given {
                return Err(
                    format!("the source of {pool} gave {given:?}, and it holds {held:?}").into()
                );
            }
        }
        Ok(())
    }
}
