//! Private pools: memory set apart, by a program or for a graph.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use larder_core::MemPool;
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::heap::Filter;
use larder_core::source::SegmentSource;

use crate::allocator::Allocator;
use crate::capture::Capture;
use crate::error::Error;
use crate::stream::Stream;

/// Memory set apart: what is allocated in its scopes comes from it, and what it has cached serves
/// nobody else. Dropping it gives its cached memory back; what is still live stays good.
///
/// It has all methods of [`MemPool`], checkpoints and statistics among them. `restore` speaks of
/// addresses and knows nothing of buffers: a block that it frees must be let go of by
/// [`Block::leak`](crate::Block::leak) before, or its drop frees what lies there then; and one that
/// it makes live again is freed by address, through [`Allocator::core`].
///
/// ```
/// use larder::Allocator;
///
/// let allocator = Allocator::simulated(0)?;
/// let stream = allocator.new_stream()?;
/// let pool = allocator.new_pool()?;
/// let apart = pool.within(|| allocator.alloc::<f32>(1 << 20, &stream))?;
/// assert_eq!(pool.snapshot().len(), 1, "one segment is the pool's own");
/// drop(apart);
/// let elsewhere = allocator.alloc::<f32>(1 << 20, &stream)?;
/// assert_eq!(allocator.stats().num_device_alloc, 2, "which serves nobody else");
/// # drop(elsewhere);
/// # Ok::<(), larder::Error>(())
/// ```
pub struct Pool {
    pool: MemPool,
    /// Kept, with its streams, for as long as the pool.
    allocator: Allocator,
}

impl Pool {
    pub(crate) fn new(pool: MemPool, allocator: Allocator) -> Pool {
        Pool { pool, allocator }
    }

    /// A new pool whose segments come from a source of its own: memory of another library, or
    /// memory that is registered with one.
    pub fn with_source(
        allocator: &Allocator,
        source: Arc<dyn SegmentSource>,
    ) -> Result<Pool, Error> {
        let pool = MemPool::with_source(allocator.native("have private pools")?, source)?;
        Ok(Pool::new(pool, allocator.clone()))
    }

    /// A new symmetric pool: where a block lies in it follows from the sequence of requests and
    /// frees alone. Ranks that make the same calls have every block in the same segment at the same
    /// offset; `seal` proves it, or tells all of them the first call that differs. See
    /// [`MemPool::symmetric`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use larder::source::SourceFunctions;
    /// use larder::{Addr, Allocator, Pool, SymmetricOptions};
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// let stream = allocator.new_stream()?;
    /// // The functions of a library that knows ranks, such as NCCL's; here a single address.
    /// let give = |_bytes, _stream| Some(Addr(1 << 40));
    /// let source = SourceFunctions::new(give, |_segment, _stream| ());
    /// let pool = Pool::symmetric(&allocator, Arc::new(source), SymmetricOptions::default())?;
    /// let block = pool.within(|| allocator.alloc::<f32>(1000, &stream))?;
    /// let position = pool.position_of(Addr(block.addr()))?;
    /// assert_eq!((position.segment, position.offset_bytes), (0, 0));
    /// // What all ranks say to each other; here there is one.
    /// pool.seal(|said| Ok(vec![said.to_vec()]))?;
    /// # drop(block);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn symmetric(
        allocator: &Allocator,
        source: Arc<dyn SegmentSource>,
        options: SymmetricOptions,
    ) -> Result<Pool, Error> {
        let core = allocator.native("have private pools")?;
        let pool = MemPool::symmetric(core, source, options)?;
        Ok(Pool::new(pool, allocator.clone()))
    }

    /// Runs `body` with all requests of this thread served from the pool. The scope ends with
    /// `body`, also if it panics. Scopes of different pools can be nested; the innermost counts.
    pub fn within<T>(&self, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.pool.scope(body)?
    }

    /// Runs `body`, which captures a graph on the stream, with all requests for streams under that
    /// capture served from the pool. The memory is the graph's for as long as the pool lives.
    ///
    /// The thread that calls this is the one that begins and ends the capture. Where other threads
    /// allocate for it on streams that join it, [`Pool::begin_capture`] is called once it has
    /// begun.
    pub fn capture<T>(
        &self,
        stream: impl Into<Stream>,
        body: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let stream = stream.into();
        self.allocator.admit(&stream)?;
        self.pool.scope_for(Filter::Capture(stream.id()), body)?
    }
}

impl Pool {
    /// Declares, inside [`Pool::capture`], that the capture has begun on the stream just now, so
    /// that other threads' requests for it find the pool before this thread has allocated anything.
    /// It is over when what this gives is ended or dropped.
    ///
    /// ```
    /// use larder::Allocator;
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// let stream = allocator.new_stream()?;
    /// let gpu = allocator.simulated_device().unwrap();
    /// let pool = allocator.new_capture_pool()?;
    /// let kept = pool.capture(&stream, || {
    ///     gpu.begin_capture(stream.id()).unwrap(); // on a real GPU: cuStreamBeginCapture
    ///     let capture = pool.begin_capture(&stream)?;
    ///     let kept = allocator.alloc::<f32>(1000, &stream)?;
    ///     gpu.end_capture(stream.id()).unwrap();
    ///     capture.end()?;
    ///     Ok(kept)
    /// })?;
    /// assert_eq!(pool.snapshot().len(), 1, "the graph's memory is the pool's");
    /// # drop(kept);
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn begin_capture(&self, stream: impl Into<Stream>) -> Result<Capture, Error> {
        let stream = stream.into();
        self.allocator.admit(&stream)?;
        let native = self.allocator.native("have private pools")?;
        Ok(Capture::new(Arc::clone(native), native.begin_capture(stream.id())?))
    }

    /// As [`Pool::begin_capture`], for a capture that is over with the scope.
    pub fn mark_capture(&self, stream: impl Into<Stream>) -> Result<(), Error> {
        let stream = stream.into();
        self.allocator.admit(&stream)?;
        Ok(self.allocator.native("have private pools")?.mark_capture_begin(stream.id())?)
    }
}

impl Allocator {
    /// A new private pool. See [`Pool`].
    pub fn new_pool(&self) -> Result<Pool, Error> {
        let pool = MemPool::new(self.native("have private pools")?)?;
        Ok(Pool::new(pool, self.clone()))
    }

    /// A new private pool for the memory of a graph. See [`Pool::capture`].
    pub fn new_capture_pool(&self) -> Result<Pool, Error> {
        let pool = MemPool::for_capture(self.native("have private pools")?)?;
        Ok(Pool::new(pool, self.clone()))
    }
}

impl Deref for Pool {
    type Target = MemPool;

    fn deref(&self) -> &MemPool {
        &self.pool
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}
