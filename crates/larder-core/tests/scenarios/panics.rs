//! Panics: a function of the program's that panics takes nothing with it but the call that it was
//! called for.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::bench_top::{BenchTop, MAIN};
use larder_core::allocator::history::HistoryOptions;
use larder_core::record::context::{Context, Frame};
use larder_core::record::event::{Action, Level};
use larder_core::source::SourceFunctions;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, MemPool, PoolId};

const POOL: PoolId = PoolId(0, 77);

/// Whether what the program gave the allocator panics now.
#[derive(Clone, Default)]
struct Mood(Arc<AtomicBool>);

impl Mood {
    fn turn(&self, bad: bool) {
        self.0.store(bad, Ordering::Relaxed);
    }

    fn show(&self) {
        assert!(!self.0.load(Ordering::Relaxed), "a bad mood");
    }
}

/// What a call panicked with.
fn panic_of<T>(call: impl FnOnce() -> T) -> Option<String> {
    let panic = panic::catch_unwind(AssertUnwindSafe(call)).err()?;
    Some(panic.downcast_ref::<&str>().map(ToString::to_string).unwrap_or_default())
}

const BAD: &str = "a bad mood";

/// The allocator is whole and can be used, by this thread and by others.
fn goes_on(top: &BenchTop) {
    top.allocator.check().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let block = top.allocator.malloc(3 * MIB, MAIN).unwrap();
            top.allocator.free(block).unwrap();
        });
    });
    let block = top.allocator.malloc(100, MAIN).unwrap();
    top.allocator.free(block).unwrap();
    top.allocator.check().unwrap();
}

/// A malloc and a free panic, one after the other, and leave nothing behind.
fn panics_by_turns(top: &BenchTop, mood: &Mood) {
    let live = || top.allocator.stats().allocation.all.current;
    mood.turn(true);
    assert_eq!(panic_of(|| top.allocator.malloc(5 * MIB, MAIN)).as_deref(), Some(BAD));
    mood.turn(false);
    assert_eq!(live(), 0, "nobody has the address of what was handed out");
    goes_on(top);
    let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
    mood.turn(true);
    assert_eq!(panic_of(|| top.allocator.free(block)).as_deref(), Some(BAD));
    mood.turn(false);
    assert_eq!(live(), 0, "the block was freed all the same");
    goes_on(top);
}

#[test]
fn a_change_of_settings_that_panics_changes_nothing() {
    let top = BenchTop::larder(GIB, "");
    let panic = panic_of(|| {
        top.allocator.reconfigure(|config| {
            config.expandable_segments = true;
            panic!("no");
        })
    });
    assert_eq!(panic.as_deref(), Some("no"));
    assert!(!top.allocator.config().expandable_segments);
    goes_on(&top);
}

#[test]
fn a_change_of_settings_may_call_the_allocator_and_none_is_lost() {
    let top = BenchTop::larder(GIB, "");
    let rounds = AtomicU64::new(0);
    let change = |config: &mut larder_core::Config| {
        let block = top.allocator.malloc(100, MAIN).unwrap();
        top.allocator.free(block).unwrap();
        // Somebody else changes something in the middle of the first round.
        if rounds.fetch_add(1, Ordering::Relaxed) == 0 {
            top.allocator.configure("max_split_size_mb:40").unwrap();
        }
        config.expandable_segments = true;
    };
    top.allocator.reconfigure(change).unwrap();
    let config = top.allocator.config();
    assert_eq!(config.max_split_bytes, Some(40 * MIB), "what the other one said stands");
    assert!(config.expandable_segments);
    assert_eq!(rounds.into_inner(), 2);

    let top = BenchTop::larder(GIB, "");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let add = |config: &mut larder_core::Config| {
                        let limit = config.max_split_bytes.unwrap_or(20 * MIB) + 512;
                        config.max_split_bytes = Some(limit);
                    };
                    top.allocator.reconfigure(add).unwrap();
                }
            });
        }
    });
    assert_eq!(top.allocator.config().max_split_bytes, Some(20 * MIB + 400 * 512));
}

#[test]
fn a_tracker_that_panics() {
    for settings in ["", "expandable_segments:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let mood = Mood::default();
            let tracker = mood.clone();
            top.allocator.on_event(move |_| tracker.show());
            panics_by_turns(top, &mood);
            mood.turn(true);
            assert_eq!(panic_of(|| top.allocator.empty_cache()).as_deref(), Some(BAD));
            mood.turn(false);
            assert_eq!(top.device.used_bytes(), 0);
            goes_on(top);
        });
    }
}

/// Frees a block at its end.
struct Late<'a>(&'a BenchTop, Addr);

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.0.allocator.free(self.1).unwrap();
    }
}

#[test]
fn a_tracker_that_panics_while_the_program_unwinds_does_not_end_it() {
    let top = BenchTop::larder(GIB, "");
    let block = top.allocator.malloc(5 * MIB, MAIN).unwrap();
    top.allocator.on_event(|event| assert_ne!(event.action, Action::FreeRequested, "a bad mood"));
    let panic = panic_of(|| {
        let _late = Late(&top, block);
        panic!("for another reason");
    });
    assert_eq!(panic.as_deref(), Some("for another reason"));
    goes_on_without_frees(&top);
}

fn goes_on_without_frees(top: &BenchTop) {
    top.allocator.check().unwrap();
    assert_eq!(top.allocator.stats().allocation.all.current, 0);
    top.allocator.malloc(100, MAIN).unwrap();
}

#[test]
fn a_clock_that_panics() {
    for contexts in [false, true] {
        let top = BenchTop::larder(GIB, "");
        let mood = Mood::default();
        let (clock, time_ns) = (mood.clone(), AtomicU64::new(0));
        let hook = || -> Option<Arc<dyn Context>> { None };
        let options = HistoryOptions::default()
            .level(if contexts { Level::All } else { Level::Never })
            .context_hook(Arc::new(hook))
            .clock(Arc::new(move || {
                clock.show();
                time_ns.fetch_add(1, Ordering::Relaxed)
            }));
        top.allocator.record_history(options).unwrap();
        panics_by_turns(&top, &mood);
    }
}

#[test]
fn a_filter_that_panics() {
    BenchTop::under_each_policy(GIB, "", |top| {
        let mood = Mood::default();
        let filter = mood.clone();
        let takes = move |_| {
            filter.show();
            true
        };
        top.allocator.begin_pool_by(POOL, takes).unwrap();
        mood.turn(true);
        assert_eq!(panic_of(|| top.allocator.malloc(5 * MIB, MAIN)).as_deref(), Some(BAD));
        mood.turn(false);
        assert_eq!(top.allocator.stats().allocation.all.current, 0);
        goes_on(top);
        top.allocator.end_pool(POOL).unwrap();
    });
}

#[test]
fn a_source_that_panics() {
    for settings in ["", "release_lock_on_cudamalloc:True"] {
        BenchTop::under_each_policy(GIB, settings, |top| {
            let [gives, takes] = [Mood::default(), Mood::default()];
            let (giving, taking) = (gives.clone(), takes.clone());
            let source = SourceFunctions::new(
                move |_, _| {
                    giving.show();
                    Some(Addr(0x7000_0000_0000))
                },
                move |_, _| taking.show(),
            );
            let pool = MemPool::with_source(&top.allocator, Arc::new(source)).unwrap();
            let malloc = || pool.scope(|| top.allocator.malloc(5 * MIB, MAIN)).unwrap();
            gives.turn(true);
            assert_eq!(panic_of(malloc).as_deref(), Some(BAD));
            goes_on(top);
            gives.turn(false);
            let block = malloc().unwrap();
            top.allocator.free(block).unwrap();
            let id = pool.id();
            takes.turn(true);
            assert_eq!(panic_of(|| drop(pool)).as_deref(), Some(BAD));
            goes_on(top);
            assert!(top.allocator.pool_stats(id).is_some(), "the segment was not taken back");
            takes.turn(false);
            top.allocator.empty_cache().unwrap();
            assert!(top.allocator.pool_stats(id).is_none());
        });
    }
}

/// Calls the allocator at its end.
struct Farewell(Arc<larder_core::Allocator>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

#[test]
fn a_source_that_calls_the_allocator_when_it_is_dropped() {
    let top = BenchTop::larder(GIB, "");
    let farewell = Farewell(top.allocator.clone());
    let source = SourceFunctions::new(
        move |_, _| {
            let _ = &farewell;
            None
        },
        |_, _| (),
    );
    let pool = MemPool::with_source(&top.allocator, Arc::new(source)).unwrap();
    drop(pool);
    goes_on(&top);
}

/// A context that cannot be compared.
struct Sullen(Mood);

impl Context for Sullen {
    fn fingerprint(&self) -> u64 {
        self.0.show();
        7
    }

    fn is_same(&self, _: &dyn Context) -> bool {
        self.0.show();
        true
    }

    fn frames(&self) -> Vec<Frame> {
        Vec::new()
    }
}

#[test]
fn a_context_that_panics() {
    let top = BenchTop::larder(GIB, "");
    let mood = Mood::default();
    let hook_mood = mood.clone();
    let hook = move || -> Option<Arc<dyn Context>> { Some(Arc::new(Sullen(hook_mood.clone()))) };
    let options = HistoryOptions::default().level(Level::All).context_hook(Arc::new(hook));
    top.allocator.record_history(options).unwrap();
    panics_by_turns(&top, &mood);
}

#[test]
fn a_context_hook_a_miss_callback_and_an_observer_that_panic() {
    let top = BenchTop::larder(GIB, "");
    let [hooked, missed, observed] = [Mood::default(), Mood::default(), Mood::default()];
    let mood = hooked.clone();
    let options = HistoryOptions::default().level(Level::All).context_hook(Arc::new(move || {
        mood.show();
        None
    }));
    top.allocator.record_history(options).unwrap();
    let mood = missed.clone();
    top.allocator.on_miss(move || {
        mood.show();
        false
    });
    let mood = observed.clone();
    top.allocator.on_out_of_memory(move |_| mood.show());
    for (mood, size_bytes) in [(&hooked, 5 * MIB), (&missed, 5 * MIB), (&observed, 2 * GIB)] {
        mood.turn(true);
        assert_eq!(panic_of(|| top.allocator.malloc(size_bytes, MAIN)).as_deref(), Some(BAD));
        mood.turn(false);
        assert_eq!(top.allocator.stats().allocation.all.current, 0);
        goes_on(&top);
        top.allocator.empty_cache().unwrap();
    }
}
