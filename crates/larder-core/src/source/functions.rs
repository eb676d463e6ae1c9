//! Sources put together from functions: a pair that gives and takes memory, and the hooks that a
//! program cares for.

use std::fmt;

use crate::device::DeviceError;
use crate::source::{SegmentSource, SourceProperties};
use crate::types::{Addr, DeviceIndex, PoolId, Span, StreamId};

type Answer = Result<(), DeviceError>;
type Hook<T> = Box<dyn Fn(T) -> Answer + Send + Sync>;
type BaseHook = Box<dyn Fn(Span) -> Result<Option<Span>, DeviceError> + Send + Sync>;

/// The hooks of a source of functions; those that nobody set do nothing.
#[derive(Default)]
struct SourceHooks {
    decline: Option<Hook<(u64, StreamId)>>,
    init: Option<Hook<DeviceIndex>>,
    reset: Option<Hook<()>>,
    set_memory_fraction: Option<Hook<f64>>,
    base_allocation: Option<BaseHook>,
    record_stream: Option<Hook<(Span, StreamId)>>,
    begin_pool: Option<Hook<PoolId>>,
    end_pool: Option<Hook<PoolId>>,
    release_pool: Option<Hook<PoolId>>,
}

fn call<T>(hook: Option<&Hook<T>>, told: T) -> Answer {
    hook.map_or(Ok(()), |hook| hook(told))
}

/// A source that is a pair of functions, such as those of a library that is loaded at run time, and
/// as many hooks as it likes.
pub struct SourceFunctions<A, F> {
    alloc: A,
    free: F,
    properties: SourceProperties,
    hooks: SourceHooks,
}

impl<A, F> SourceFunctions<A, F>
where
    A: Fn(u64, StreamId) -> Option<Addr> + Send + Sync,
    F: Fn(Span, StreamId) + Send + Sync,
{
    /// The pair of a function that gives memory, or none if it has none, and of one that takes it
    /// back.
    pub fn new(alloc: A, free: F) -> SourceFunctions<A, F> {
        let (properties, hooks) = (SourceProperties::default(), SourceHooks::default());
        SourceFunctions { alloc, free, properties, hooks }
    }
}

/// Each takes the source as it is so far, and gives it back with one thing set.
impl<A, F> SourceFunctions<A, F> {
    /// What holds for its segments.
    #[must_use]
    pub fn properties(mut self, properties: SourceProperties) -> Self {
        self.properties = properties;
        self
    }

    /// Is told where this rank may not have a segment that the others may be making.
    #[must_use]
    pub fn on_decline(
        mut self,
        hook: impl Fn((u64, StreamId)) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.hooks.decline = Some(Box::new(hook));
        self
    }

    /// Is told which device's pool got the source.
    #[must_use]
    pub fn on_init(mut self, hook: impl Fn(DeviceIndex) -> Answer + Send + Sync + 'static) -> Self {
        self.hooks.init = Some(Box::new(hook));
        self
    }

    /// Is told when caches are emptied.
    #[must_use]
    pub fn on_reset(mut self, hook: impl Fn(()) -> Answer + Send + Sync + 'static) -> Self {
        self.hooks.reset = Some(Box::new(hook));
        self
    }

    /// Is told of the part of the device that may be held.
    #[must_use]
    pub fn on_memory_fraction(
        mut self,
        hook: impl Fn(f64) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.hooks.set_memory_fraction = Some(Box::new(hook));
        self
    }

    /// Says which allocation a segment is part of.
    #[must_use]
    pub fn on_base_allocation(
        mut self,
        hook: impl Fn(Span) -> Result<Option<Span>, DeviceError> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.base_allocation = Some(Box::new(hook));
        self
    }

    /// Is told which other streams use its blocks.
    #[must_use]
    pub fn on_record_stream(
        mut self,
        hook: impl Fn((Span, StreamId)) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.hooks.record_stream = Some(Box::new(hook));
        self
    }

    /// Is told when requests begin to be routed to its pool.
    #[must_use]
    pub fn on_begin_pool(
        mut self,
        hook: impl Fn(PoolId) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.hooks.begin_pool = Some(Box::new(hook));
        self
    }

    /// Is told when they cease to be.
    #[must_use]
    pub fn on_end_pool(mut self, hook: impl Fn(PoolId) -> Answer + Send + Sync + 'static) -> Self {
        self.hooks.end_pool = Some(Box::new(hook));
        self
    }

    /// Is told when nobody uses its pool any more.
    #[must_use]
    pub fn on_release_pool(
        mut self,
        hook: impl Fn(PoolId) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.hooks.release_pool = Some(Box::new(hook));
        self
    }
}

impl<A, F> SegmentSource for SourceFunctions<A, F>
where
    A: Fn(u64, StreamId) -> Option<Addr> + Send + Sync,
    F: Fn(Span, StreamId) + Send + Sync,
{
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        (self.alloc)(size_bytes, stream).ok_or(DeviceError::OutOfMemory)
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        (self.free)(segment, stream);
        Ok(())
    }

    fn properties(&self) -> SourceProperties {
        self.properties.clone()
    }

    fn decline(&self, size_bytes: u64, stream: StreamId) -> Answer {
        call(self.hooks.decline.as_ref(), (size_bytes, stream))
    }

    fn init(&self, device: DeviceIndex) -> Answer {
        call(self.hooks.init.as_ref(), device)
    }

    fn reset(&self) -> Answer {
        call(self.hooks.reset.as_ref(), ())
    }

    fn set_memory_fraction(&self, fraction: f64) -> Answer {
        call(self.hooks.set_memory_fraction.as_ref(), fraction)
    }

    fn base_allocation(&self, segment: Span) -> Result<Option<Span>, DeviceError> {
        self.hooks.base_allocation.as_ref().map_or(Ok(None), |hook| hook(segment))
    }

    fn record_stream(&self, block: Span, stream: StreamId) -> Answer {
        call(self.hooks.record_stream.as_ref(), (block, stream))
    }

    fn begin_pool(&self, pool: PoolId) -> Answer {
        call(self.hooks.begin_pool.as_ref(), pool)
    }

    fn end_pool(&self, pool: PoolId) -> Answer {
        call(self.hooks.end_pool.as_ref(), pool)
    }

    fn release_pool(&self, pool: PoolId) -> Answer {
        call(self.hooks.release_pool.as_ref(), pool)
    }
}

impl<A, F> fmt::Debug for SourceFunctions<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceFunctions")
    }
}
