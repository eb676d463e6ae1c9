//! Sources: a caller's functions as a source of segments, with what they say of themselves and
//! their hooks.

use std::sync::Arc;

use larder_core::device::DeviceError;
use larder_core::source::{SegmentSource, SourceCounts as CoreCounts, SourceProperties};
use larder_core::types::Span;
use larder_core::{Addr, DeviceIndex, PoolId, StreamId};
use larder_sim::source_check::check_source;

use crate::border::{
    Foreign, Held, HookData, Out, PoolName, Problem, Shown, Status, Text, Token, guard,
};
use crate::larder::Larder;

/// `larder_source_property`
pub(crate) mod source_property {
    pub(crate) const UNSPLIT: u32 = 1;
    pub(crate) const COLLECTIVE: u32 = 2;
}

type PoolHook = Option<extern "C" fn(Foreign, i32, PoolName) -> bool>;
type DeclineHook = Option<extern "C" fn(Foreign, usize, i32, Token) -> bool>;
type DeviceHook = Option<extern "C" fn(Foreign, i32) -> bool>;
type FractionHook = Option<extern "C" fn(Foreign, f64, i32) -> bool>;
type BaseHook = Option<extern "C" fn(Foreign, Token, usize, &mut Token, &mut usize) -> bool>;
type StreamHook = Option<extern "C" fn(Foreign, Token, usize, Token) -> bool>;

/// `larder_source`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Source {
    pub(crate) alloc: Option<extern "C" fn(Foreign, usize, i32, Token) -> Token>,
    pub(crate) free: Option<extern "C" fn(Foreign, Token, usize, i32, Token)>,
    pub(crate) release: Option<extern "C" fn(Foreign)>,
    pub(crate) data: Foreign,
    pub(crate) properties: u32,
    pub(crate) registrar: Text,
    pub(crate) decline: DeclineHook,
    pub(crate) init: DeviceHook,
    pub(crate) reset: DeviceHook,
    pub(crate) set_memory_fraction: FractionHook,
    pub(crate) base_allocation: BaseHook,
    pub(crate) record_stream: StreamHook,
    pub(crate) begin_pool: PoolHook,
    pub(crate) end_pool: PoolHook,
    pub(crate) release_pool: PoolHook,
}

impl Source {
    /// The caller's source, who is told when it is not needed any more, whatever goes wrong from
    /// here on.
    pub(crate) fn taken(self, device: i32) -> Result<Arc<ForeignSource>, Problem> {
        let hook = HookData::new(self.data, self.release);
        let (Some(alloc), Some(free)) = (self.alloc, self.free) else {
            let words = "a source needs both functions, `alloc` and `free`";
            return Err(Problem::Argument(words.to_owned()));
        };
        let known = source_property::UNSPLIT | source_property::COLLECTIVE;
        if self.properties & !known != 0 {
            let words = format!("there is no property {:#x} of a source", self.properties & !known);
            return Err(Problem::Argument(words));
        }
        let has = |property| self.properties & property != 0;
        let mut properties = SourceProperties::default()
            .may_split(!has(source_property::UNSPLIT))
            .collective(has(source_property::COLLECTIVE))
            .declines(self.decline.is_some());
        if let Some(registrar) = self.registrar.read("registrar")? {
            properties = properties.registrar(registrar);
        }
        let Source { decline, init, reset, set_memory_fraction, .. } = self;
        let Source { base_allocation, record_stream, begin_pool, end_pool, release_pool, .. } =
            self;
        Ok(Arc::new(ForeignSource {
            alloc,
            free,
            decline,
            init,
            reset,
            set_memory_fraction,
            base_allocation,
            record_stream,
            begin_pool,
            end_pool,
            release_pool,
            device,
            properties,
            hook,
        }))
    }
}

/// A caller's functions as a source.
pub(crate) struct ForeignSource {
    alloc: extern "C" fn(Foreign, usize, i32, Token) -> Token,
    free: extern "C" fn(Foreign, Token, usize, i32, Token),
    decline: DeclineHook,
    init: DeviceHook,
    reset: DeviceHook,
    set_memory_fraction: FractionHook,
    base_allocation: BaseHook,
    record_stream: StreamHook,
    begin_pool: PoolHook,
    end_pool: PoolHook,
    release_pool: PoolHook,
    device: i32,
    properties: SourceProperties,
    hook: HookData,
}

/// What a hook's answer means.
fn answer(is_well: bool, hook: &str) -> Result<(), DeviceError> {
    if is_well {
        return Ok(());
    }
    Err(DeviceError::Other { code: 0, text: format!("its function `{hook}` said no") })
}

impl ForeignSource {
    fn tell_pool(&self, function: PoolHook, pool: PoolId, hook: &str) -> Result<(), DeviceError> {
        let told = function.is_none_or(|tell| tell(self.hook.data(), self.device, pool.into()));
        answer(told, hook)
    }
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

    fn properties(&self) -> SourceProperties {
        self.properties.clone()
    }

    fn decline(&self, size_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        let (size, stream) = (size_bytes as usize, Token::new(stream.0));
        let decline = self.decline;
        answer(
            decline.is_none_or(|tell| tell(self.hook.data(), size, self.device, stream)),
            "decline",
        )
    }

    fn init(&self, _device: DeviceIndex) -> Result<(), DeviceError> {
        answer(self.init.is_none_or(|tell| tell(self.hook.data(), self.device)), "init")
    }

    fn reset(&self) -> Result<(), DeviceError> {
        answer(self.reset.is_none_or(|tell| tell(self.hook.data(), self.device)), "reset")
    }

    fn set_memory_fraction(&self, fraction: f64) -> Result<(), DeviceError> {
        let set = self.set_memory_fraction;
        let told = set.is_none_or(|tell| tell(self.hook.data(), fraction, self.device));
        answer(told, "set_memory_fraction")
    }

    fn base_allocation(&self, segment: Span) -> Result<Option<Span>, DeviceError> {
        let Some(ask) = self.base_allocation else { return Ok(None) };
        let (addr, size) = (Token::new(segment.addr.0), segment.size_bytes as usize);
        let (mut base, mut base_size) = (addr, size);
        answer(ask(self.hook.data(), addr, size, &mut base, &mut base_size), "base_allocation")?;
        Ok(Some(Span::new(Addr(base.number()), base_size as u64)))
    }

    fn record_stream(&self, block: Span, stream: StreamId) -> Result<(), DeviceError> {
        let (addr, size) = (Token::new(block.addr.0), block.size_bytes as usize);
        let record = self.record_stream;
        let stream = Token::new(stream.0);
        answer(
            record.is_none_or(|tell| tell(self.hook.data(), addr, size, stream)),
            "record_stream",
        )
    }

    fn begin_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.tell_pool(self.begin_pool, pool, "begin_pool")
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.tell_pool(self.end_pool, pool, "end_pool")
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.tell_pool(self.release_pool, pool, "release_pool")
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_source_check(source: Shown<Source>, device: i32) -> Status {
    guard(|| {
        let source: Arc<dyn SegmentSource> = source.needed("source")?.taken(device)?;
        let checked = check_source(&source);
        checked.map(|_| ()).map_err(|failure| Problem::Argument(format!("the source: {failure}")))
    })
}

/// `larder_source_counts`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SourceCounts {
    pub(crate) made: u64,
    pub(crate) given_back: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) held_bytes: u64,
}

impl From<CoreCounts> for SourceCounts {
    fn from(counts: CoreCounts) -> SourceCounts {
        let CoreCounts { made, given_back, refused, failed, held_bytes } = counts;
        SourceCounts { made, given_back, refused, failed, held_bytes }
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_source_counts(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    out: Out<SourceCounts>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let counts = larder.get("larder")?.device(device)?.source_counts(pool.into());
        let none = || Problem::Argument("the pool has no source of its own".to_owned());
        out.put(counts.ok_or_else(none)?.into());
        Ok(())
    })
}
