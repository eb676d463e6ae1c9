//! The checks that any source of segments must pass: by itself, and under an allocator.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use larder_core::device::DeviceError;
use larder_core::source::SegmentSource;
use larder_core::types::{Bytes, DeviceIndex, MIB, PoolId, Span};
use larder_core::{Addr, Allocator, Config, MemPool, Policy, StreamId};

use crate::device::SimDevice;
use crate::options::SimOptions;
use crate::random::Random;

/// The stream that segments are asked for.
const STREAM: StreamId = StreamId(0);
/// The size of most segments that are asked for.
const PIECE_BYTES: u64 = 2 * MIB;
/// How much memory a source has to have for the checks.
pub const NEEDED_BYTES: u64 = 64 * MIB;

/// Which check a source failed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The check's name.
    pub check: &'static str,
    /// What was wrong.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it fails '{}': {}", self.check, self.text)
    }
}

impl std::error::Error for Failure {}

type Outcome = Result<(), String>;
type SourceCheck = (&'static str, fn(&Arc<dyn SegmentSource>) -> Outcome);

const CHECKS: &[SourceCheck] = &[
    ("it begins", begins),
    ("it says the same of itself each time", is_steady),
    ("it gives segments, which begin at multiples of 512 and are nobody else's", gives_memory),
    ("what it takes back it can give again", gives_again),
    ("without memory it says so", runs_out),
    ("hooks answer", answers),
    ("under an allocator everything comes back", serves_a_pool),
    ("a symmetric pool places blocks in it", serves_a_symmetric_pool),
];

/// Runs every check on a source that has at least [`NEEDED_BYTES`], in order, up to the first that
/// fails, and says how many there are. A source that passes is left as it was. Where making
/// segments is collective, all ranks run this at once.
pub fn check_source(source: &Arc<dyn SegmentSource>) -> Result<usize, Failure> {
    for &(name, run) in CHECKS {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(source)));
        let outcome = outcome.unwrap_or_else(|_| Err("it panicked".to_owned()));
        outcome.map_err(|text| Failure { check: name, text })?;
    }
    Ok(CHECKS.len())
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(text()) }
}

/// The value of a call that has to succeed.
fn must<T>(call: &str, result: Result<T, DeviceError>) -> Result<T, String> {
    result.map_err(|error| format!("{call} failed: {error}"))
}

fn begins(source: &Arc<dyn SegmentSource>) -> Outcome {
    must("init", source.init(DeviceIndex(0)))
}

fn is_steady(source: &Arc<dyn SegmentSource>) -> Outcome {
    let (first, second) = (source.properties(), source.properties());
    ensure(first == second, || format!("it said {first:?} and then {second:?}"))
}

/// Takes so many segments, and looks at each.
fn take(source: &Arc<dyn SegmentSource>, count: u64) -> Result<Vec<Span>, String> {
    let mut taken: Vec<Span> = Vec::new();
    for _ in 0..count {
        let addr = must("alloc", source.alloc(PIECE_BYTES, STREAM))?;
        ensure(addr != Addr(0), || "it gave address 0".to_owned())?;
        ensure(addr.0.is_multiple_of(512), || format!("it gave {addr}, no multiple of 512"))?;
        ensure(addr.0.checked_add(PIECE_BYTES).is_some(), || {
            format!("what it gave at {addr} runs past the last address")
        })?;
        let span = Span::new(addr, PIECE_BYTES);
        let other = taken.iter().find(|other| other.overlaps(span));
        ensure(other.is_none(), || {
            let (before, size) = (other.map_or(Addr(0), |other| other.addr), Bytes(PIECE_BYTES));
            format!("{addr} lies in or reaches into the {size} at {before}, which it gave before")
        })?;
        taken.push(span);
    }
    Ok(taken)
}

fn give_back(source: &Arc<dyn SegmentSource>, taken: Vec<Span>) -> Outcome {
    taken.into_iter().try_for_each(|span| must("free", source.free(span, STREAM)))
}

fn gives_memory(source: &Arc<dyn SegmentSource>) -> Outcome {
    let mut taken = take(source, 8)?;
    // In another order than they came.
    taken.reverse();
    taken.swap(1, 5);
    give_back(source, taken)
}

/// Far more in all than a source needs to have at once.
fn gives_again(source: &Arc<dyn SegmentSource>) -> Outcome {
    for _ in 0..100 {
        let taken = take(source, 2)?;
        give_back(source, taken)?;
    }
    Ok(())
}

fn runs_out(source: &Arc<dyn SegmentSource>) -> Outcome {
    match source.alloc(1 << 59, STREAM) {
        Err(DeviceError::OutOfMemory) => Ok(()),
        Err(error) => Err(format!("it did not say that it is out of memory, but: {error}")),
        Ok(addr) => Err(format!("asked for half an exabyte it gave {addr}, and not OutOfMemory")),
    }
}

fn answers(source: &Arc<dyn SegmentSource>) -> Outcome {
    let pool = PoolId(0, 1);
    must("reset", source.reset())?;
    must("set_memory_fraction", source.set_memory_fraction(1.0))?;
    must("begin_pool", source.begin_pool(pool))?;
    must("end_pool", source.end_pool(pool))?;
    let taken = take(source, 1)?;
    let base = must("base_allocation", source.base_allocation(taken[0]))?;
    let covers = base.is_none_or(|base| base.covers(taken[0]));
    ensure(covers, || {
        let (addr, base) = (taken[0].addr, base.map_or(Addr(0), |base| base.addr));
        format!("the base allocation that it names at {base} does not hold the segment at {addr}")
    })?;
    must("record_stream", source.record_stream(taken[0], StreamId(1)))?;
    give_back(source, taken)
}

/// An allocator that asks its own device for nothing: only the source gives memory.
fn allocator() -> Arc<Allocator> {
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    Arc::new(Allocator::new(device, Config::default(), Policy::larder()))
}

fn say<T, E: fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn serves_a_pool(source: &Arc<dyn SegmentSource>) -> Outcome {
    let allocator = allocator();
    let pool = say(MemPool::with_source(&allocator, source.clone()))?;
    live_in(&allocator, &pool, 1)?;
    drop(pool);
    say(allocator.empty_cache())?;
    say(allocator.check())
}

fn serves_a_symmetric_pool(source: &Arc<dyn SegmentSource>) -> Outcome {
    let allocator = allocator();
    let options = larder_core::allocator::symmetric::SymmetricOptions::default();
    let pool = say(MemPool::symmetric(&allocator, source.clone(), options))?;
    live_in(&allocator, &pool, 2)?;
    say(pool.trim())?;
    drop(pool);
    say(allocator.check())
}

/// Requests and frees in a pool; in the end all is free, and what the source gave is accounted for.
fn live_in(allocator: &Arc<Allocator>, pool: &MemPool, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let (mut live, mut live_bytes) = (Vec::new(), 0);
    // Blocks that are segments of their own take up to 20 MiB each.
    let properties = allocator.source_properties(pool.id()).unwrap_or_default();
    let live_max = if properties.may_split { usize::MAX } else { 2 };
    for _ in 0..200 {
        let size_bytes = *random.pick(&[100, 4096, 300_000, 3 * MIB / 2]);
        let has_room = live_bytes + size_bytes <= NEEDED_BYTES / 8 && live.len() < live_max;
        if has_room && random.chance(0.6) {
            let addr = say(say(pool.scope(|| allocator.malloc(size_bytes, STREAM)))?)?;
            live.push((addr, size_bytes));
            live_bytes += size_bytes;
        } else if !live.is_empty() {
            let (addr, size_bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
            live_bytes -= size_bytes;
            say(allocator.free(addr))?;
        }
        say(allocator.check())?;
    }
    live.into_iter().try_for_each(|(addr, _)| say(allocator.free(addr)))?;
    let counts = pool.source_counts().unwrap_or_default();
    ensure(counts.made > 0 && counts.failed == 0, || format!("the books have {counts:?}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use larder_core::source::{SourceFunctions, SourceProperties};

    use super::*;

    /// Memory as a source has it: the lowest free addresses come first.
    #[derive(Default)]
    struct Yard(Mutex<BTreeMap<u64, u64>>);

    const YARD: u64 = 1 << 45;

    impl Yard {
        fn take(&self, size_bytes: u64) -> Option<Addr> {
            let mut given = self.0.lock().unwrap();
            let held_bytes: u64 = given.values().sum();
            if held_bytes + size_bytes > NEEDED_BYTES {
                return None;
            }
            let mut addr = YARD;
            for (&start, &given_bytes) in &*given {
                if start - addr >= size_bytes {
                    break;
                }
                addr = start + given_bytes;
            }
            given.insert(addr, size_bytes);
            Some(Addr(addr))
        }

        fn put(&self, span: Span) -> bool {
            self.0.lock().unwrap().remove(&span.addr.0) == Some(span.size_bytes)
        }
    }

    /// A source over a yard, spoilt by a function that sees each answer.
    fn spoilt(
        spoil: impl Fn(Option<Addr>) -> Option<Addr> + Send + Sync + 'static,
    ) -> (Arc<dyn SegmentSource>, Arc<Yard>) {
        let yard = Arc::new(Yard::default());
        let (gives, takes) = (yard.clone(), yard.clone());
        let source = SourceFunctions::new(
            move |size_bytes, _| spoil(gives.take(size_bytes)),
            move |span, _| _ = takes.put(span),
        );
        (Arc::new(source), yard)
    }

    #[test]
    fn an_honest_source_passes_and_has_everything_back() {
        for may_split in [true, false] {
            let yard = Arc::new(Yard::default());
            let (gives, takes) = (yard.clone(), yard.clone());
            let source = SourceFunctions::new(
                move |size_bytes, _| gives.take(size_bytes),
                move |span, _| assert!(takes.put(span), "{span:?} was not given"),
            );
            let source = source.properties(SourceProperties::default().may_split(may_split));
            let source: Arc<dyn SegmentSource> = Arc::new(source);
            assert_eq!(check_source(&source), Ok(CHECKS.len()), "may_split {may_split}");
            assert!(yard.0.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn each_way_to_be_wrong_is_told_from_the_others() {
        let failed = |spoil: fn(Option<Addr>) -> Option<Addr>| {
            check_source(&spoilt(spoil).0).unwrap_err().to_string()
        };
        assert!(failed(|_| Some(Addr(0))).ends_with("it gave address 0"));
        assert!(failed(|given| given.map(|addr| Addr(addr.0 + 8))).contains("no multiple of 512"));
        assert!(failed(|given| given.map(|_| Addr(YARD))).contains("which it gave before"));
        assert!(failed(|_| None).contains("alloc failed: the device is out of memory"));
        assert!(failed(|_| panic!("as planned")).ends_with("it panicked"));
        assert!(failed(|given| given.or(Some(Addr(YARD + (1 << 60))))).contains("half an exabyte"));
    }

    #[test]
    fn a_source_that_leaks_runs_out() {
        let yard = Arc::new(Yard::default());
        let gives = yard.clone();
        let source = SourceFunctions::new(move |size_bytes, _| gives.take(size_bytes), |_, _| ());
        let source: Arc<dyn SegmentSource> = Arc::new(source);
        let failure = check_source(&source).unwrap_err();
        assert_eq!(failure.check, "what it takes back it can give again");
    }
}
