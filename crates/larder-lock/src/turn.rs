//! The lock itself.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::thread;
use std::time::Duration;

use crate::contest::Contest;
use crate::sys::{AtomicU32, AtomicUsize, GIVES_WAY, LONG_WAIT_NS, Ordering, Patience, UnsafeCell};
use crate::{Poisoned, fork, sys, token};

/// Nobody is inside; nobody bars the way.
const FREE: u32 = 0;
/// A thread panicked inside. Nobody gets in any more.
const POISONED: u32 = u32::MAX;

/// How long somebody who finds the lock taken looks again at once.
const LOOK: Duration = Duration::from_micros(2);
/// How long somebody who claims the next turn waits for whoever is inside. One who is running is
/// out long before.
const CLAIM: Duration = Duration::from_micros(5);
/// The lookout waits so long before it looks for the first time, twice as long before the second,
/// and so on: whoever had its turn for a moment loses no more than such a moment, and whoever uses
/// it whole is seldom disturbed.
const GAP: Duration = Duration::from_micros(1);
/// The longest gap: somebody is inside who does not leave.
const LONG_GAP: Duration = Duration::from_millis(1);
/// Whoever is inside and running leaves within this, and is seen to, even if it comes back at once
/// each time.
const MOVE: Duration = Duration::from_micros(10);
/// How long whoever insists sleeps between two looks.
const NAP: Duration = Duration::from_micros(200);
/// Nobody comes any more if nobody was inside for so long.
const IDLE: Duration = Duration::from_micros(1);
/// What taking the lock twice on one thread leads to.
const TWICE: &str = "the thread has the lock already";

/// A mutual exclusion lock that gives turns. See the crate's page.
///
/// It is not fair. To take it twice on one thread is a bug: inside of a guard it panics, inside of
/// [`run`](TurnLock::run) it waits for ever.
pub struct TurnLock<T> {
    /// `FREE`, `POISONED`, or the number of the process whose thread is inside.
    held: AtomicU32,
    /// `FREE`, or the number of the process of which a thread is awake, wants to be the next, and
    /// bars the way to all others until it is in.
    barred: AtomicU32,
    /// The thread that is inside, if it came to stay: with a guard.
    owner: AtomicUsize,
    contest: Contest,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out access to the value to one thread at a time; going from one to the
// next moves the value between threads, so that it must be `Send`.
unsafe impl<T: Send> Send for TurnLock<T> {}
// SAFETY: as above; a shared lock gives exclusive access, so that `T` need not be `Sync`.
unsafe impl<T: Send> Sync for TurnLock<T> {}

/// Access to what the lock guards, until it is dropped. It stays on its thread:
///
/// ```compile_fail,E0277
/// let lock = larder_lock::TurnLock::new(0);
/// let guard = lock.lock().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(guard));
/// });
/// ```
pub struct TurnGuard<'a, T> {
    lock: &'a TurnLock<T>,
    /// Whether the thread was unwinding already when it came.
    was_panicking: bool,
    /// It stays on its thread, and may be shared where the value may.
    like: PhantomData<MutexGuard<'a, T>>,
}

impl<T> TurnLock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> TurnLock<T> {
        fork::watch();
        // A clock that is set going by the first contest might be half so when the process is
        // forked.
        sys::now_ns();
        TurnLock {
            held: AtomicU32::new(FREE),
            barred: AtomicU32::new(FREE),
            owner: AtomicUsize::new(token::NOBODY),
            contest: Contest::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else is inside, and goes in to stay for a while.
    #[inline]
    pub fn lock(&self) -> Result<TurnGuard<'_, T>, Poisoned> {
        if !self.try_enter() {
            self.wait()?;
        }
        self.owner.store(token::own(), Ordering::Relaxed);
        let was_panicking = thread::panicking();
        Ok(TurnGuard { lock: self, was_panicking, like: PhantomData })
    }

    /// Waits until nobody else is inside, and does `work` there, which must be short and must not
    /// come back for this lock: it would wait for itself.
    // Always inlined: a handful of instructions, and `work` stays in registers.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn run<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Poisoned> {
        if !self.try_enter() {
            self.wait()?;
        }
        let poison = PoisonOnUnwind(self);
        // SAFETY: this thread alone is inside.
        let result = self.value.with_mut(|value| work(unsafe { &mut *value }));
        mem::forget(poison);
        self.leave();
        Ok(result)
    }

    /// Goes in if nobody is there and nobody bars the way.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn try_enter(&self) -> bool {
        self.barred.load(Ordering::Relaxed) == FREE && self.enter()
    }

    /// Goes in if nobody is there.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn enter(&self) -> bool {
        let own = fork::generation();
        // Acquire: what the last one inside wrote is seen.
        self.held.compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    #[allow(clippy::inline_always)]
    fn leave(&self) {
        // Release: what was written inside is seen by the next.
        self.held.store(FREE, Ordering::Release);
    }

    /// Waits until this thread is inside.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> Result<(), Poisoned> {
        // Said first: in a child another thread may have the number of one that was inside.
        self.is_free()?;
        assert!(self.owner.load(Ordering::Relaxed) != token::own(), "{TWICE}");
        // Who comes seldom is in and out at once, and takes no turn for it.
        if !self.contest.is_hot() && (self.try_for(LOOK, Self::try_enter)? || self.claim()?) {
            return Ok(());
        }
        self.contest.queue.join();
        let watched = self.watch();
        self.contest.queue.go(watched == Ok(Turn::Left));
        watched.map(|_| ())
    }

    /// Waits until whoever has the turn is done with it, or had all of it, and begins the next.
    /// Says which it was.
    fn watch(&self) -> Result<Turn, Poisoned> {
        let began_ns = sys::now_ns();
        let mut gap = GAP;
        let turn = loop {
            self.contest.pass(gap);
            if self.is_idle()? && self.try_enter() {
                break Turn::Left;
            }
            if self.claim()? {
                break Turn::Over;
            }
            if sys::now_ns().saturating_sub(began_ns) >= LONG_WAIT_NS {
                self.insist()?;
                break Turn::Over;
            }
            gap = (gap * 2).min(LONG_GAP);
        };
        self.contest.begin_turn();
        Ok(turn)
    }

    /// Whether nobody is inside for a moment.
    fn is_idle(&self) -> Result<bool, Poisoned> {
        let mut patience = Patience::of(IDLE);
        while self.is_free()? {
            if !patience.lasts() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tries for so long, whenever nobody is inside.
    fn try_for(&self, time: Duration, try_now: impl Fn(&Self) -> bool) -> Result<bool, Poisoned> {
        let mut patience = Patience::of(time);
        loop {
            if self.is_free()? && try_now(self) {
                return Ok(true);
            }
            if !patience.lasts() {
                return Ok(false);
            }
        }
    }

    /// Claims the next turn, if the present one is over and nobody else does. False if it is not
    /// this thread's turn yet, or if whoever is inside does not leave.
    fn claim(&self) -> Result<bool, Poisoned> {
        self.is_free()?;
        if !self.contest.is_over() {
            return Ok(false);
        }
        // Whoever is inside and does not leave is not running. To bar its way lets the lock lie
        // idle until this thread runs again: at once, if nobody else wants the processor.
        // On one processor it never runs while this thread does.
        if self.contest.is_dear() && !sys::is_on_one_processor() && !self.is_moving()? {
            return Ok(false);
        }
        if !self.bar() {
            return self.give_way(Self::try_enter);
        }
        let entered = self.enter_barred();
        self.barred.store(FREE, Ordering::Relaxed);
        entered
    }

    /// Whether somebody leaves within a moment: then whoever is inside is running.
    fn is_moving(&self) -> Result<bool, Poisoned> {
        self.try_for(MOVE, |_| true)
    }

    /// Bars the way and keeps it barred until this thread is inside, for one who waited long:
    /// whoever is inside stays for long each time, and comes back at once.
    fn insist(&self) -> Result<(), Poisoned> {
        // Whoever bars it now is in soon, or gives up.
        while !self.bar() {
            self.is_free()?;
            sys::sleep(NAP);
        }
        let entered = loop {
            match self.enter_barred() {
                Ok(true) => break Ok(()),
                Ok(false) => sys::sleep(NAP),
                Err(poisoned) => break Err(poisoned),
            }
        };
        self.barred.store(FREE, Ordering::Relaxed);
        entered
    }

    /// Bars the way to all others, if nobody else does.
    fn bar(&self) -> bool {
        let own = fork::generation();
        let barred = self.barred.load(Ordering::Relaxed);
        // Who barred the way in another process is not there any more.
        let expected = if barred == own { FREE } else { barred };
        self.barred.compare_exchange(expected, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Goes in past the barrier that this thread has put up, unless whoever is inside does not
    /// leave.
    fn enter_barred(&self) -> Result<bool, Poisoned> {
        if self.try_for(CLAIM, Self::enter)? {
            return Ok(true);
        }
        // Whoever is inside may be waiting for this very processor. The way stays barred meanwhile,
        // so that it leaves and does not come back at once.
        let before_ns = sys::now_ns();
        let entered = self.give_way(Self::enter);
        self.contest.note_wait(before_ns);
        entered
    }

    /// Lets others run who want this processor, a few times, and tries after each.
    fn give_way(&self, try_now: impl Fn(&Self) -> bool) -> Result<bool, Poisoned> {
        for _ in 0..GIVES_WAY {
            sys::give_way();
            if self.is_free()? && try_now(self) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether nobody is inside. An error if there is no use in waiting.
    fn is_free(&self) -> Result<bool, Poisoned> {
        match self.held.load(Ordering::Relaxed) {
            FREE => Ok(true),
            POISONED => Err(Poisoned::Panic),
            held if held == fork::generation() => Ok(false),
            _ => Err(Poisoned::Fork),
        }
    }

    /// Lets nobody in any more. Called by whoever is inside, in place of leaving.
    #[cold]
    fn poison(&self) {
        self.held.store(POISONED, Ordering::Release);
    }

    /// The value, for whoever has the lock to itself.
    pub fn get_mut(&mut self) -> Result<&mut T, Poisoned> {
        self.is_free()?;
        // SAFETY: the lock is borrowed for as long as the value is.
        Ok(self.value.with_mut(|value| unsafe { &mut *value }))
    }
}

/// What became of a turn.
#[derive(PartialEq, Eq)]
enum Turn {
    /// Whoever had it needed less, and comes no more.
    Left,
    Over,
}

/// Poisons the lock if the work inside panics.
struct PoisonOnUnwind<'a, T>(&'a TurnLock<T>);

impl<T> Drop for PoisonOnUnwind<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.0.poison();
    }
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its thread alone is inside.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists only while its thread alone is inside, and it is borrowed.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner.store(token::NOBODY, Ordering::Relaxed);
        if thread::panicking() && !self.was_panicking {
            self.lock.poison();
        } else {
            self.lock.leave();
        }
    }
}

#[cfg(all(test, unix, not(loom)))]
mod tests {
    use super::*;

    /// The thread that wanted to be the next is not there in the child.
    #[test]
    fn a_child_does_not_wait_for_who_barred_the_way() {
        let lock = TurnLock::new(7);
        lock.barred.store(fork::generation(), Ordering::Relaxed);
        // SAFETY: the child takes a lock that was made for it, and ends at once, by a signal if it
        // waits for ever.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(20) };
            let went_in = lock.run(|value| *value) == Ok(7) && lock.run(|value| *value) == Ok(7);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!went_in)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it waited for ever, or did not get in");
        lock.barred.store(FREE, Ordering::Relaxed);
    }
}
