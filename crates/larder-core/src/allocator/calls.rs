//! How a call begins and ends: the lock, what a history is told of the call, and what is dropped
//! once the lock is.
//!
//! A call's context is gathered before the lock is taken, and contexts that nobody names any more
//! are dropped after it is: either may need locks of its own.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_lock::{Poisoned, TurnGuard};

use crate::allocator::{Allocator, Inner};
use crate::device::Device;
use crate::record::caught;
use crate::record::context::{Context, ContextHook};
use crate::record::event::Level;
use crate::record::history::{History, Scene, Ticket};
use crate::record::note;
use crate::types::{Addr, DeviceIndex, StreamId};

/// What stands beside the lock: all that is asked before it is taken.
#[derive(Default)]
pub(super) struct Watch {
    /// Whether calls are told to a history.
    on: AtomicBool,
    level: AtomicU8,
    /// Whether contexts may wait to be dropped.
    keeps_contexts: AtomicBool,
    hook: Mutex<Option<ContextHook>>,
}

impl Watch {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What the hook says, if the level asks for it.
    fn gather(&self, level: Level) -> Option<Arc<dyn Context>> {
        if self.level.load(Ordering::Relaxed) < level as u8 {
            return None;
        }
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hook.and_then(|hook| hook())
    }

    /// Sets who says the contexts, and returns who did so before: to be dropped with no lock held.
    pub(super) fn swap_hook(&self, new: Option<ContextHook>) -> Option<ContextHook> {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *hook, new)
    }
}

/// What is said where the heap may be half changed. Nothing could be made of it, so that it is a
/// panic.
#[cold]
#[inline(never)]
pub(super) fn lost(poisoned: Poisoned) -> ! {
    panic!("the allocator cannot be used any more: {poisoned}")
}

impl Allocator {
    /// Which device this is.
    pub fn device_index(&self) -> DeviceIndex {
        self.device.properties().index
    }

    /// Locks to change something.
    pub(super) fn lock(&self) -> TurnGuard<'_, Inner> {
        let mut inner = self.lock_as_is();
        inner.heap.settle();
        inner
    }

    /// Locks to look: deferred frees stay deferred, so that no request gets another block because
    /// somebody looked.
    pub(super) fn look(&self) -> impl Deref<Target = Inner> + '_ {
        self.lock_as_is()
    }

    pub(super) fn lock_as_is(&self) -> TurnGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| lost(poisoned))
    }

    /// Locks for a call in which something may happen that is remembered. Its context is gathered
    /// before, if contexts of this level are.
    #[inline]
    pub(super) fn enter(&self, level: Level) -> TurnGuard<'_, Inner> {
        let mut inner = self.enter_as_is(level);
        inner.heap.settle();
        inner
    }

    /// The same for a call that does not change the heap, or not yet.
    pub(super) fn enter_as_is(&self, level: Level) -> TurnGuard<'_, Inner> {
        if !self.watch.is_on() {
            return self.lock_as_is();
        }
        let context = self.watch.gather(level);
        let mut inner = self.lock_as_is();
        inner.begin(&*self.device, context);
        inner
    }

    /// Locks again in the middle of a call.
    pub(super) fn lock_again(&self, ticket: Option<&Ticket>) -> TurnGuard<'_, Inner> {
        let mut inner = self.lock();
        let device = self.device_index();
        if let Some(ticket) = ticket {
            inner.heap.change_history(device, |history| history.bring_back(ticket));
            // What it may have let go of is dropped when the call ends.
            self.watch.keeps_contexts.store(true, Ordering::Relaxed);
        }
        inner.tick(&*self.device);
        inner
    }

    /// The end of a call that was entered, once its lock is dropped: what nobody names any more
    /// goes, and a panic that was caught under the lock goes on.
    #[inline]
    pub(super) fn leave(&self) {
        if self.watch.keeps_contexts.load(Ordering::Relaxed) {
            self.change_history(|history| history.resume(Scene::default()));
        }
        caught::go_on();
    }

    /// Drops the lock while something of the program's or of the device's runs, which may take
    /// long, or call the allocator. None if it panicked; the panic goes on at the end of the call.
    ///
    /// Whatever was known before may have changed after it: all but what the request holds.
    pub(super) fn step_aside<'a, T>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        work: impl FnOnce() -> T,
    ) -> (TurnGuard<'a, Inner>, Option<T>) {
        let ticket = inner.suspend();
        drop(inner);
        let done = caught::catch(work);
        (self.lock_again(ticket.as_ref()), done)
    }

    /// Changes the history, notes what malloc and free have to know of it, and drops the contexts
    /// that nobody names any more.
    pub(super) fn change_history<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        let device = self.device_index();
        let mut inner = self.lock_as_is();
        let (result, level, keeps_contexts, dropped) =
            inner.heap.change_history(device, |history| {
                let result = change(history);
                let keeps = history.has_contexts() || history.level() > Level::Never;
                (result, history.level(), keeps, history.take_dropped())
            });
        let is_on = inner.heap.recorder().is_listening();
        self.watch.level.store(level as u8, Ordering::Relaxed);
        self.watch.keeps_contexts.store(keeps_contexts, Ordering::Relaxed);
        self.watch.on.store(is_on, Ordering::Relaxed);
        drop(inner);
        drop(dropped);
        result
    }

    /// Hands out a free block as the fast path does while a history is on that asks for entries
    /// alone.
    #[inline(never)]
    pub(super) fn malloc_listed(&self, size_bytes: u64, stream: StreamId) -> Option<Addr> {
        let mut inner = self.lock_as_is();
        inner.begin_simply(&*self.device).then(|| inner.heap.malloc_listed(size_bytes, stream))?
    }

    /// Takes back a block as the fast path does, likewise.
    #[inline(never)]
    pub(super) fn free_listed(&self, addr: Addr) -> bool {
        let mut inner = self.lock_as_is();
        inner.begin_simply(&*self.device) && inner.heap.free_listed(addr)
    }
}

impl Inner {
    /// A call begins that is told to the history. Contexts may have been turned off since this one
    /// was gathered: then it comes too late, and nobody would keep track of whose it is.
    fn begin(&mut self, device: &dyn Device, context: Option<Arc<dyn Context>>) {
        let time_ns = self.now_ns(device);
        let mut late = context;
        if let Some(history) = self.heap.recorder_mut().listener() {
            let context = if history.level() > Level::Never { late.take() } else { None };
            history.begin(time_ns, context, note::current());
        }
        if let Some(late) = late {
            caught::drop_later(late);
        }
    }

    /// The same, if nothing but entries is asked of the history.
    #[inline]
    fn begin_simply(&mut self, device: &dyn Device) -> bool {
        if self.heap.recorder_mut().simple_listener().is_none() {
            return false;
        }
        // A clock that panics is left to the careful path, at whose end the panic can go on.
        let Some(time_ns) = self.try_now_ns(device) else { return false };
        if let Some(history) = self.heap.recorder_mut().simple_listener() {
            match note::current() {
                None => history.begin_simply(time_ns),
                note => history.begin(time_ns, None, note),
            }
        }
        true
    }

    #[inline]
    fn try_now_ns(&self, device: &dyn Device) -> Option<u64> {
        match &self.clock {
            None => Some(device.now_ns()),
            Some(clock) => caught::catch(|| clock()),
        }
    }

    fn now_ns(&self, device: &dyn Device) -> u64 {
        self.try_now_ns(device).unwrap_or_else(|| device.now_ns())
    }

    /// A device call took its time.
    pub(super) fn tick(&mut self, device: &dyn Device) {
        if self.heap.recorder().is_listening() {
            let time_ns = self.now_ns(device);
            if let Some(history) = self.heap.recorder_mut().listener() {
                history.set_time(time_ns);
            }
        }
    }

    /// What is to be kept of the call while the lock is dropped in its middle.
    pub(super) fn suspend(&mut self) -> Option<Ticket> {
        self.heap.recorder_mut().listener().map(History::send_away)
    }
}
