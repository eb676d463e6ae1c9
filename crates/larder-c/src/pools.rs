//! Private pools: uses and scopes.

use std::thread;

use larder_core::heap::Filter as CoreFilter;
use larder_core::{Addr, Allocator, CaptureToken, PoolId, StreamId};

use crate::border::{Foreign, Held, HookData, Out, PoolName, Problem, Shown, Status, Token, guard};
use crate::larder::Larder;
use crate::sources::Source;

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
        let source = source.read().map(|source| source.taken(device)).transpose()?;
        let allocator = larder.get("larder")?.device(device)?;
        let pool = PoolId::from(pool);
        match source {
            None => Ok(allocator.add_pool_use(pool)?),
            Some(source) => Ok(allocator.add_pool_with_source(pool, source)?),
        }
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
extern "C" fn larder_plain_begin(larder: Held<Larder>) -> Status {
    guard(|| {
        larder.get("larder")?.allocators().iter().for_each(Allocator::begin_plain);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_plain_end(larder: Held<Larder>) -> Status {
    guard(|| {
        // All have as many beginnings, so that all of them end one or none does.
        let allocators = larder.get("larder")?.allocators().iter();
        if allocators.filter(|allocator| allocator.end_plain()).count() == 0 {
            let words = "this thread began no plain memory that could end";
            return Err(Problem::Argument(words.to_owned()));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_capture_start(
    larder: Held<Larder>,
    device: i32,
    stream: Token,
    out: Out<u64>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let token = larder.get("larder")?.device(device)?.begin_capture(stream.stream())?;
        out.put(token.0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_capture_stop(larder: Held<Larder>, device: i32, capture: u64) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.end_capture(CaptureToken(capture))?))
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
