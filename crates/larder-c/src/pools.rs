//! Private pools: uses, scopes, and sources of segments.

use std::sync::Arc;
use std::thread;

use larder_core::device::DeviceError;
use larder_core::heap::Filter as CoreFilter;
use larder_core::source::SegmentSource;
use larder_core::types::Span;
use larder_core::{Addr, PoolId, StreamId};

use crate::border::{Foreign, Held, HookData, Out, PoolName, Problem, Shown, Status, Token, guard};
use crate::larder::Larder;

/// `larder_source`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Source {
    pub(crate) alloc: Option<extern "C" fn(Foreign, usize, i32, Token) -> Token>,
    pub(crate) free: Option<extern "C" fn(Foreign, Token, usize, i32, Token)>,
    pub(crate) release: Option<extern "C" fn(Foreign)>,
    pub(crate) data: Foreign,
}

/// A caller's functions as a source.
struct ForeignSource {
    alloc: extern "C" fn(Foreign, usize, i32, Token) -> Token,
    free: extern "C" fn(Foreign, Token, usize, i32, Token),
    device: i32,
    hook: HookData,
}

impl SegmentSource for ForeignSource {
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        let stream = Token::new(stream.0);
        let given = (self.alloc)(self.hook.data(), size_bytes as usize, self.device, stream);
        if given == Token::NULL { Err(DeviceError::OutOfMemory) } else { Ok(Addr(given.number())) }
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        let (addr, stream) = (Token::new(segment.addr.0), Token::new(stream.0));
        (self.free)(self.hook.data(), addr, segment.size_bytes as usize, self.device, stream);
        Ok(())
    }
}

/// `larder_filter_kind`
pub(crate) mod filter_kind {
    pub(crate) const ANY: u32 = 0;
    pub(crate) const STREAM: u32 = 1;
    pub(crate) const THREAD: u32 = 2;
    pub(crate) const CAPTURE: u32 = 3;
    pub(crate) const FUNCTION: u32 = 4;
}

/// `larder_filter`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Filter {
    pub(crate) kind: u32,
    pub(crate) stream: Token,
    pub(crate) takes: Option<extern "C" fn(Foreign, Token) -> bool>,
    pub(crate) release: Option<extern "C" fn(Foreign)>,
    pub(crate) data: Foreign,
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_add_use(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    source: Shown<Source>,
) -> Status {
    guard(|| {
        // Whatever goes wrong from here on, the source is released.
        let source =
            source.read().map(|source| (source, HookData::new(source.data, source.release)));
        let allocator = larder.get("larder")?.device(device)?;
        let pool = PoolId::from(pool);
        let Some((functions, hook)) = source else { return Ok(allocator.add_pool_use(pool)?) };
        let (Some(alloc), Some(free)) = (functions.alloc, functions.free) else {
            let words = "a source needs both functions, `alloc` and `free`";
            return Err(Problem::Argument(words.to_owned()));
        };
        let source = ForeignSource { alloc, free, device, hook };
        Ok(allocator.add_pool_with_source(pool, Arc::new(source))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_drop_use(larder: Held<Larder>, device: i32, pool: PoolName) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.drop_pool_use(pool.into())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_uses(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    out: Out<u32>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let uses = larder.get("larder")?.device(device)?.pool_uses(pool.into());
        out.put(uses.unwrap_or(0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_begin(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    filter: Shown<Filter>,
) -> Status {
    guard(|| {
        let filter = filter.needed("filter")?;
        // Whatever goes wrong from here on, the function is released.
        let hook = (filter.kind == filter_kind::FUNCTION)
            .then(|| HookData::new(filter.data, filter.release));
        let allocator = larder.get("larder")?.device(device)?;
        let pool = PoolId::from(pool);
        let known = match filter.kind {
            filter_kind::ANY => CoreFilter::Any,
            filter_kind::STREAM => CoreFilter::Stream(filter.stream.stream()),
            filter_kind::THREAD => CoreFilter::Thread(thread::current().id()),
            filter_kind::CAPTURE => CoreFilter::Capture(filter.stream.stream()),
            kind => {
                let Some((hook, takes)) = hook.zip(filter.takes) else {
                    let words = if kind == filter_kind::FUNCTION {
                        "a filter by function needs the function `takes`".to_owned()
                    } else {
                        format!("there is no kind of filter {kind}")
                    };
                    return Err(Problem::Argument(words));
                };
                let takes = move |stream: StreamId| takes(hook.data(), Token::new(stream.0));
                return Ok(allocator.begin_pool_by(pool, takes)?);
            }
        };
        Ok(allocator.begin_pool(pool, known)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_end(larder: Held<Larder>, device: i32, pool: PoolName) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.end_pool(pool.into())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_capture_begin(larder: Held<Larder>, device: i32, stream: Token) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.mark_capture_begin(stream.stream())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_capture_end(larder: Held<Larder>, device: i32, stream: Token) -> Status {
    guard(|| {
        larder.get("larder")?.device(device)?.mark_capture_end(stream.stream());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_set_use_on_oom(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    on: bool,
) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.set_pool_use_on_oom(pool.into(), on)?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_set_no_split(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.set_pool_no_split(pool.into())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_has_live(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    ptrs: Shown<Token>,
    count: usize,
    out: Out<bool>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let addrs = ptrs.list(count, "ptrs")?.iter().map(|ptr| Addr(ptr.number()));
        let expected: Vec<Addr> = addrs.collect();
        let allocator = larder.get("larder")?.device(device)?;
        out.put(allocator.pool_has_live(pool.into(), &expected)?);
        Ok(())
    })
}
