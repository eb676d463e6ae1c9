//! Quarries: sources of segments with memory of their own, who account for every byte of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use larder_core::device::DeviceError;
use larder_core::source::SegmentSource;
use larder_core::types::Span;
use larder_core::{Addr, StreamId};

use super::trouble::{Complaint, QUARRY_CODE};
use larder_sim::random::Random;

/// Where the addresses of quarries start: above all that a device reserves, below its plain memory.
const BASE: u64 = 1 << 51;
/// How far apart two quarries are, and so what each has at most.
const STRIDE: u64 = 1 << 32;

/// A source that gives memory at addresses of its own. The lowest free ones come first, so that
/// what was given back comes again.
pub(super) struct Quarry {
    number: u64,
    memory_bytes: u64,
    books: Mutex<Books>,
    complaint: Complaint,
}

struct Books {
    /// What it has given: the first address, the size and the stream.
    given: BTreeMap<u64, (u64, StreamId)>,
    random: Random,
    /// How often it fails.
    failure_probability: f64,
}

impl Quarry {
    pub(super) fn new(
        number: u64,
        memory_bytes: u64,
        random: Random,
        complaint: Complaint,
    ) -> Quarry {
        let books = Books { given: BTreeMap::new(), random, failure_probability: 0.1 };
        Quarry { number, memory_bytes, books: Mutex::new(books), complaint }
    }

    /// The number of the quarry that an address belongs to, if it belongs to one.
    pub(super) fn number_of(addr: Addr) -> Option<u64> {
        let distance = addr.0.checked_sub(BASE)?;
        (addr.0 < BASE << 1).then_some(distance / STRIDE)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It fails no more.
    pub(super) fn calm(&self) {
        self.books().failure_probability = 0.0;
    }

    /// All that it has given and not got back.
    pub(super) fn given(&self) -> Vec<Span> {
        let spans =
            |(&addr, &(size_bytes, _)): (&u64, &(u64, StreamId))| Span::new(Addr(addr), size_bytes);
        self.books().given.iter().map(spans).collect()
    }

    /// Whether the whole span lies in one piece that it has given.
    pub(super) fn covers(&self, span: Span) -> bool {
        let books = self.books();
        let before = books.given.range(..=span.addr.0).next_back();
        before.is_some_and(|(start, (size_bytes, _))| start + size_bytes >= span.end().0)
    }
}

fn failure() -> DeviceError {
    DeviceError::Other { code: QUARRY_CODE, text: "the quarry failed as planned".to_owned() }
}

impl SegmentSource for Quarry {
    fn alloc(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, DeviceError> {
        thread::yield_now();
        let mut books = self.books();
        let probability = books.failure_probability;
        if books.random.chance(probability) {
            return Err(if books.random.chance(0.5) {
                failure()
            } else {
                DeviceError::OutOfMemory
            });
        }
        let held_bytes: u64 = books.given.values().map(|(size_bytes, _)| size_bytes).sum();
        if held_bytes + size_bytes > self.memory_bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let mut addr = BASE + self.number * STRIDE;
        for (&start, &(given_bytes, _)) in &books.given {
            if start - addr >= size_bytes {
                break;
            }
            addr = start + given_bytes;
        }
        books.given.insert(addr, (size_bytes, stream));
        Ok(Addr(addr))
    }

    fn free(&self, segment: Span, stream: StreamId) -> Result<(), DeviceError> {
        let mut books = self.books();
        let probability = books.failure_probability;
        if books.random.chance(probability) {
            return Err(failure());
        }
        let known = books.given.get(&segment.addr.0).copied();
        if known != Some((segment.size_bytes, stream)) {
            let text = format!("{segment:?} of {stream} came back to a quarry that gave {known:?}");
            self.complaint.raise(text);
            return Err(failure());
        }
        books.given.remove(&segment.addr.0);
        Ok(())
    }
}
