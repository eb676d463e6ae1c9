//! Sources whose segments are registered with somebody: each when it comes, and no longer when it
//! goes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::DeviceError;
use crate::source::{SegmentSource, SourceProperties};
use crate::types::{Addr, DeviceIndex, PoolId, Span, StreamId};

/// Who memory is registered with, such as a communicator of a library for collectives.
pub trait Registrar: Send + Sync {
    /// What it is called, in a word or two.
    fn name(&self) -> String;

    /// Registers a segment, and gives a handle for it.
    fn register(&self, segment: Span) -> Result<u64, DeviceError>;

    /// Undoes it. If it fails the segment stays registered.
    fn deregister(&self, segment: Span, handle: u64) -> Result<(), DeviceError>;
}

/// That a segment is registered: who kept one from before the segment went and another came, even
/// at the same address, has an older generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The segment.
    pub segment: Span,
    /// What the registrar calls it.
    pub handle: u64,
    /// How many registrations there were before it.
    pub generation: u64,
}

/// A registration was kept for longer than the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What was kept.
    pub kept: Registration,
    /// The generation of what is registered there now, if anything is.
    pub now: Option<u64>,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stale { kept: Registration { segment, generation, .. }, now } = self;
        write!(f, "the registration of {} is of generation {generation}, and ", segment.addr)?;
        match now {
            Some(now) => write!(f, "what is registered there now is of generation {now}"),
            None => write!(f, "nothing is registered there any more"),
        }
    }
}

impl std::error::Error for Stale {}

/// How often segments were registered and no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationCounts {
    /// Times a segment was registered.
    pub registered: u64,
    /// Times a registration ended.
    pub deregistered: u64,
}

#[derive(Debug, Default)]
struct Books {
    current: BTreeMap<Addr, Registration>,
    counts: RegistrationCounts,
}

/// A source over another one, which registers each segment as it comes and deregisters it before it
/// goes. A segment that cannot be registered is not handed out.
#[derive(Debug)]
pub struct Registered<S, R> {
    source: S,
    registrar: R,
    books: Mutex<Books>,
}

impl<S: SegmentSource, R: Registrar> Registered<S, R> {
    /// The segments of `source`, registered with `registrar`.
    pub fn new(source: S, registrar: R) -> Registered<S, R> {
        Registered { source, registrar, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The source of the memory.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Who it is registered with.
    pub fn registrar(&self) -> &R {
        &self.registrar
    }

    /// How often segments were registered and no longer.
    pub fn counts(&self) -> RegistrationCounts {
        self.books().counts
    }

    /// The registration of the segment in which an address lies.
    pub fn registration_of(&self, addr: Addr) -> Option<Registration> {
        let books = self.books();
        let (_, &found) = books.current.range(..=addr).next_back()?;
        found.segment.contains(addr).then_some(found)
    }

    /// Refuses a registration that was kept for longer than its segment.
    pub fn check(&self, kept: Registration) -> Result<(), Stale> {
        let now = self.books().current.get(&kept.segment.addr).copied();
        if now == Some(kept) {
            return Ok(());
        }
        Err(Stale { kept, now: now.map(|registration| registration.generation) })
    }
}

impl<S: SegmentSource, R: Registrar> SegmentSource for Registered<S, R> {
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        let addr = self.source.alloc(size_bytes, stream)?;
        let segment = Span::new(addr, size_bytes);
        match self.registrar.register(segment) {
            Ok(handle) => {
                let mut books = self.books();
                let generation = books.counts.registered;
                books.counts.registered += 1;
                books.current.insert(addr, Registration { segment, handle, generation });
                Ok(addr)
            }
            Err(error) => {
                // Whatever it says to that, the segment is nobody's.
                let _ = self.source.free(segment, stream);
                Err(error)
            }
        }
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        // If an earlier try got so far, only the memory is left.
        let known = self.books().current.get(&segment.addr).copied();
        if let Some(known) = known {
            self.registrar.deregister(segment, known.handle)?;
            let mut books = self.books();
            books.current.remove(&segment.addr);
            books.counts.deregistered += 1;
        }
        self.source.free(segment, stream)
    }

    fn properties(&self) -> SourceProperties {
        self.source.properties().registrar(self.registrar.name())
    }

    fn decline(&self, size_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        self.source.decline(size_bytes, stream)
    }

    fn init(&self, device: DeviceIndex) -> Result<(), DeviceError> {
        self.source.init(device)
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.source.reset()
    }

    fn set_memory_fraction(&self, fraction: f64) -> Result<(), DeviceError> {
        self.source.set_memory_fraction(fraction)
    }

    fn base_allocation(&self, segment: Span) -> Result<Option<Span>, DeviceError> {
        self.source.base_allocation(segment)
    }

    fn record_stream(&self, block: Span, stream: StreamId) -> Result<(), DeviceError> {
        self.source.record_stream(block, stream)
    }

    fn begin_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.source.begin_pool(pool)
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.source.end_pool(pool)
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), DeviceError> {
        self.source.release_pool(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFunctions;

    /// A desk that numbers what it registers, and refuses when told to.
    #[derive(Default)]
    struct Desk(Mutex<(u64, bool)>);

    impl Registrar for Desk {
        fn name(&self) -> String {
            "a desk".to_owned()
        }

        fn register(&self, _segment: Span) -> Result<u64, DeviceError> {
            let mut desk = self.0.lock().unwrap();
            desk.0 += 1;
            if desk.1 { Err(DeviceError::NotSupported) } else { Ok(desk.0) }
        }

        fn deregister(&self, _segment: Span, _handle: u64) -> Result<(), DeviceError> {
            if self.0.lock().unwrap().1 { Err(DeviceError::NotSupported) } else { Ok(()) }
        }
    }

    #[test]
    fn what_was_registered_before_is_of_an_older_generation() {
        let always = SourceFunctions::new(|_, _| Some(Addr(512)), |_, _| ());
        let source = Registered::new(always, Desk::default());
        assert_eq!(source.properties().registrar.as_deref(), Some("a desk"));
        let stream = StreamId(0);
        let addr = source.alloc(1024, stream).unwrap();
        let first = source.registration_of(Addr(1000)).unwrap();
        assert_eq!((source.check(first), source.registration_of(Addr(2000))), (Ok(()), None));
        source.free(Span::new(addr, 1024), stream).unwrap();
        assert!(source.check(first).is_err());
        source.alloc(1024, stream).unwrap();
        let words = source.check(first).unwrap_err().to_string();
        assert!(words.ends_with("what is registered there now is of generation 1"), "{words}");
        assert_eq!(source.counts(), RegistrationCounts { registered: 2, deregistered: 1 });
    }

    #[test]
    fn a_segment_that_cannot_be_registered_goes_back_and_one_that_cannot_be_deregistered_stays() {
        let given_back = std::sync::Arc::new(Mutex::new(0));
        let counter = given_back.clone();
        let always =
            SourceFunctions::new(|_, _| Some(Addr(512)), move |_, _| *counter.lock().unwrap() += 1);
        let source = Registered::new(always, Desk::default());
        source.registrar().0.lock().unwrap().1 = true;
        assert_eq!(source.alloc(512, StreamId(0)), Err(DeviceError::NotSupported));
        assert_eq!(*given_back.lock().unwrap(), 1);
        source.registrar().0.lock().unwrap().1 = false;
        let addr = source.alloc(512, StreamId(0)).unwrap();
        source.registrar().0.lock().unwrap().1 = true;
        assert!(source.free(Span::new(addr, 512), StreamId(0)).is_err());
        assert!(source.registration_of(addr).is_some() && *given_back.lock().unwrap() == 1);
    }
}
