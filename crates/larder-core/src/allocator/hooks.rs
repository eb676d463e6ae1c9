//! Hooks: what others asked to be called for. None of them runs under the allocator's lock.

use std::sync::{Arc, Mutex};

use crate::allocator::Allocator;
use crate::out_of_memory::OutOfMemory;
use crate::types::StreamId;

type MissCallback = Arc<dyn Fn() -> bool + Send + Sync>;
type OutOfMemoryObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;
type ReserveHook = Arc<dyn Fn(StreamId, u64) -> Option<u64> + Send + Sync>;
pub(super) type OutOfMemoryWriter =
    Arc<dyn Fn(&Allocator, &OutOfMemory) -> Option<String> + Send + Sync>;

/// The registered hooks.
#[derive(Default)]
pub(super) struct Hooks {
    miss: Mutex<Vec<MissCallback>>,
    out_of_memory: Mutex<Vec<OutOfMemoryObserver>>,
    writers: Mutex<Vec<OutOfMemoryWriter>>,
    reserve: Mutex<Option<ReserveHook>>,
}

/// A copy of a list of hooks, so that none runs under the list's own lock either.
fn copy<T: Clone>(list: &Mutex<Vec<T>>) -> Vec<T> {
    list.lock().expect("registering a hook does not panic").clone()
}

impl Hooks {
    pub(super) fn on_miss(&self, callback: MissCallback) {
        self.miss.lock().expect("registering a hook does not panic").push(callback);
    }

    pub(super) fn on_out_of_memory(&self, observer: OutOfMemoryObserver) {
        self.out_of_memory.lock().expect("registering a hook does not panic").push(observer);
    }

    pub(super) fn write_on_out_of_memory(&self, writer: OutOfMemoryWriter) {
        self.writers.lock().expect("registering a hook does not panic").push(writer);
    }

    /// Gives back the one that was there before.
    pub(super) fn set_reserve_hook(&self, hook: ReserveHook) -> Option<ReserveHook> {
        self.reserve.lock().expect("registering a hook does not panic").replace(hook)
    }

    /// Who is asked for the addresses of a stream's next segment.
    pub(super) fn reserve_hook(&self) -> Option<ReserveHook> {
        self.reserve.lock().expect("registering a hook does not panic").clone()
    }

    /// Has everything written down by who was asked to; the file of the last who did.
    pub(super) fn write_out_of_memory(
        &self,
        allocator: &Allocator,
        report: &OutOfMemory,
    ) -> Option<String> {
        let written = copy(&self.writers).into_iter().map(|writer| writer(allocator, report));
        written.flatten().last()
    }

    /// The callbacks for a miss.
    pub(super) fn miss_callbacks(&self) -> Vec<MissCallback> {
        copy(&self.miss)
    }

    /// Tells all observers.
    pub(super) fn tell_out_of_memory(&self, report: &OutOfMemory) {
        for observer in copy(&self.out_of_memory) {
            observer(report);
        }
    }
}
