//! Hooks: what others asked to be called for. None of them runs under the allocator's lock.

use std::sync::{Arc, Mutex};

use crate::out_of_memory::OutOfMemory;

type MissCallback = Arc<dyn Fn() -> bool + Send + Sync>;
type OutOfMemoryObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// The registered hooks.
#[derive(Default)]
pub(super) struct Hooks {
    miss: Mutex<Vec<MissCallback>>,
    out_of_memory: Mutex<Vec<OutOfMemoryObserver>>,
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
