//! The lock itself.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::{barrier, token};

/// A thread that takes the lock so often in a row gets a turn. Ending one costs microseconds, so
/// that a turn must be likely to save more.
const STREAK: u32 = 512;
/// How long a thread that uses its turn all the time is left alone: some thousand operations. The
/// next one finds what it needs in the other processor's cache, which costs it as much as hundreds.
const TURN: Duration = Duration::from_micros(200);
/// A holder that was outside at so many looks in a row is not using its turn.
const QUIET_LOOKS: u32 = 6;
/// The time between two looks.
const LOOK: Duration = Duration::from_nanos(400);
/// So often whoever ended a turn looks whether its thread has noticed by itself.
const NOTICE_LOOKS: u32 = 64;
/// So often whoever waits for the holder looks again at once; then it gives the processor away
/// each time; then it sleeps.
const SPINS: u32 = 2_000;
const YIELDS_END: u32 = SPINS + 200;
const NAP: Duration = Duration::from_micros(50);
/// So many threads can have turns, one after the other, before some of them must have ended.
const SEATS: usize = 1 << SEAT_BITS;
const SEAT_BITS: u32 = 6;
/// What taking the lock twice on one thread leads to.
const TWICE: &str = "the thread has the lock already";

/// A mutual exclusion lock that gives turns. See the crate's page.
///
/// It is not fair. Taking it twice on one thread is a bug: it panics during a turn, and blocks for
/// ever outside one.
pub struct TurnLock<T> {
    /// Whose turn it is: a thread's token and, in the lowest bits, its seat. Set only by whoever
    /// holds the gate; unset also by the thread itself while it is inside.
    turn: AtomicUsize,
    /// For each seat, whether its thread is inside on its turn. Only that thread writes it: a
    /// thread that finds its turn ended just as it goes in must not disturb the next one's flag.
    inside: [AtomicBool; SEATS],
    /// Who came to the gate last, and so is outside and knows that it has no turn. A turn's own
    /// thread unsets it when it gets the turn.
    at_the_gate: AtomicUsize,
    /// A thread panicked inside. Nobody gets in any more.
    poisoned: AtomicBool,
    /// Held by whoever is inside without a turn, and by whoever changes whose turn it is.
    gate: Mutex<Gate>,
    value: UnsafeCell<T>,
}

/// What decides on turns.
struct Gate {
    /// Who came last, and how often in a row before.
    last: usize,
    streak: u32,
    /// The turn that was given last, unless it was ended.
    given: Option<Given>,
    seats: Vec<Seat>,
}

struct Given {
    token: usize,
    seat: usize,
    began: Instant,
}

/// Whose seat it is.
struct Seat {
    token: usize,
    life: Weak<()>,
}

/// A thread panicked while it held the lock; what the lock guards may be half changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poisoned;

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a thread panicked while it held the lock")
    }
}

impl std::error::Error for Poisoned {}

/// Access to what the lock guards, until it is dropped.
pub struct TurnGuard<'a, T> {
    lock: &'a TurnLock<T>,
    pass: Pass<'a>,
    /// Whether the thread was unwinding already when it came.
    was_panicking: bool,
    /// A shared guard is as good as a shared value, so it may be shared between threads only where
    /// the value may.
    value: PhantomData<&'a T>,
}

/// Access to what the lock guards for a thread whose turn it is, until [`Visit::leave`].
pub struct Visit<'a, T> {
    lock: &'a TurnLock<T>,
    inside: &'a AtomicBool,
    /// As that of a guard.
    value: PhantomData<&'a T>,
}

/// By what right a thread is inside.
enum Pass<'a> {
    /// It is its turn, from this seat.
    Turn(usize),
    /// It holds the gate.
    Gate { _gate: MutexGuard<'a, Gate> },
}

// SAFETY: the lock hands out access to the value to one thread at a time; going from one to the
// next moves the value between threads, so that it must be `Send`.
unsafe impl<T: Send> Send for TurnLock<T> {}
// SAFETY: as above; a shared lock gives exclusive access, so that `T` need not be `Sync`.
unsafe impl<T: Send> Sync for TurnLock<T> {}

impl<T> TurnLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> TurnLock<T> {
        let gate = Gate { last: token::NOBODY, streak: 0, given: None, seats: Vec::new() };
        TurnLock {
            turn: AtomicUsize::new(token::NOBODY),
            inside: [const { AtomicBool::new(false) }; SEATS],
            at_the_gate: AtomicUsize::new(token::NOBODY),
            poisoned: AtomicBool::new(false),
            gate: Mutex::new(gate),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else is inside, and goes in.
    #[inline]
    pub fn lock(&self) -> Result<TurnGuard<'_, T>, Poisoned> {
        let turn = self.turn.load(Ordering::Relaxed);
        if turn >> SEAT_BITS == token::peek() {
            let seat = turn % SEATS;
            assert!(!self.inside[seat].load(Ordering::Relaxed), "{TWICE}");
            self.inside[seat].store(true, Ordering::Relaxed);
            // Whoever ends the turn writes `turn`, passes the heavy fence, and reads `inside`.
            // Either that write is seen here, or the store above is seen there.
            barrier::light();
            if self.turn.load(Ordering::Relaxed) == turn {
                return Ok(self.guard(Pass::Turn(seat)));
            }
            self.inside[seat].store(false, Ordering::Release);
        }
        self.lock_at_the_gate()
    }

    /// Goes in if it is the calling thread's turn. As `lock`, but cheaper: nothing has to be
    /// remembered but where to say that it is over.
    // Always inlined: it is a handful of instructions, and a call would save registers.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn enter_on_turn(&self) -> Option<Visit<'_, T>> {
        let turn = self.turn.load(Ordering::Relaxed);
        if turn >> SEAT_BITS != token::peek() {
            return None;
        }
        let inside = &self.inside[turn % SEATS];
        assert!(!inside.load(Ordering::Relaxed), "{TWICE}");
        inside.store(true, Ordering::Relaxed);
        // As in `lock`.
        barrier::light();
        if self.turn.load(Ordering::Relaxed) == turn {
            return Some(Visit { lock: self, inside, value: PhantomData });
        }
        inside.store(false, Ordering::Release);
        None
    }

    /// Waits until nobody else is inside, and calls `work` there.
    pub fn run<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Poisoned> {
        let Some(mut visit) = self.enter_on_turn() else {
            return self.lock_at_the_gate().map(|mut guard| work(&mut guard));
        };
        let result = work(&mut visit);
        visit.leave();
        Ok(result)
    }

    #[inline]
    fn guard<'a>(&'a self, pass: Pass<'a>) -> TurnGuard<'a, T> {
        TurnGuard { lock: self, pass, was_panicking: thread::panicking(), value: PhantomData }
    }

    #[inline(never)]
    fn lock_at_the_gate(&self) -> Result<TurnGuard<'_, T>, Poisoned> {
        let me = token::own();
        // For whoever ended this thread's turn and waits to be sure.
        self.at_the_gate.store(me, Ordering::Release);
        // Poison of the gate says nothing: the gate is whole at every moment.
        let (mut gate, mut contended) = match self.gate.try_lock() {
            Ok(gate) => (gate, false),
            Err(TryLockError::Poisoned(gate)) => (gate.into_inner(), false),
            Err(TryLockError::WouldBlock) => {
                (self.gate.lock().unwrap_or_else(PoisonError::into_inner), true)
            }
        };
        if let Some(given) = gate.given.take() {
            contended |= self.end(&given);
        }
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Poisoned);
        }
        // Now, so that nothing is allocated when a turn is given.
        if gate.seats.capacity() == 0 {
            gate.seats.reserve(SEATS);
        }
        gate.streak = if gate.last == me { gate.streak + 1 } else { 0 };
        gate.last = me;
        if (contended || gate.streak >= STREAK)
            && barrier::is_available()
            && let Some(seat) = gate.seat_of(me)
        {
            gate.streak = 0;
            gate.given = Some(Given { token: me, seat, began: Instant::now() });
            self.at_the_gate.store(token::NOBODY, Ordering::Relaxed);
            self.inside[seat].store(true, Ordering::Relaxed);
            self.turn.store(me << SEAT_BITS | seat, Ordering::Relaxed);
            return Ok(self.guard(Pass::Turn(seat)));
        }
        Ok(self.guard(Pass::Gate { _gate: gate }))
    }

    /// Ends a turn, and waits until its thread is outside. One that keeps using its turn is left
    /// alone for a moment; says whether that was so.
    fn end(&self, given: &Given) -> bool {
        let inside = &self.inside[given.seat];
        let (mut quiet_looks, mut next_look) = (0, Duration::ZERO);
        loop {
            let elapsed = given.began.elapsed();
            if quiet_looks == QUIET_LOOKS || elapsed >= TURN {
                break;
            }
            // Each look takes the flag out of the holder's cache, so that there must be few.
            if elapsed >= next_look {
                quiet_looks = if inside.load(Ordering::Relaxed) { 0 } else { quiet_looks + 1 };
                next_look = elapsed + LOOK;
            }
            hint::spin_loop();
        }
        self.turn.store(token::NOBODY, Ordering::Relaxed);
        // A thread that keeps coming back sees that at once and comes to the gate. Else it is made
        // to see it, which takes longer.
        for _ in 0..NOTICE_LOOKS {
            if self.at_the_gate.load(Ordering::Acquire) == given.token {
                return quiet_looks < QUIET_LOOKS;
            }
            hint::spin_loop();
        }
        barrier::heavy();
        let mut looks = 0;
        while inside.load(Ordering::Acquire) {
            match looks {
                0..SPINS => hint::spin_loop(),
                SPINS..YIELDS_END => thread::yield_now(),
                _ => thread::sleep(NAP),
            }
            looks = (looks + 1).min(YIELDS_END);
        }
        quiet_looks < QUIET_LOOKS
    }

    /// Lets nobody in any more. Called by whoever is inside.
    fn poison(&self) {
        self.poisoned.store(true, Ordering::Relaxed);
        // So that this thread too comes to the gate, where the poison is seen.
        self.turn.store(token::NOBODY, Ordering::Relaxed);
    }

    /// The value, for whoever has the lock to itself.
    pub fn get_mut(&mut self) -> Result<&mut T, Poisoned> {
        if *self.poisoned.get_mut() { Err(Poisoned) } else { Ok(self.value.get_mut()) }
    }
}

impl Gate {
    /// The seat of the calling thread: its own, a new one, or that of a thread that has ended.
    fn seat_of(&mut self, me: usize) -> Option<usize> {
        if let Some(seat) = self.seats.iter().position(|seat| seat.token == me) {
            return Some(seat);
        }
        let own = Seat { token: me, life: token::life()? };
        if self.seats.len() < SEATS {
            self.seats.push(own);
            return Some(self.seats.len() - 1);
        }
        let seat = self.seats.iter().position(|seat| seat.life.strong_count() == 0)?;
        self.seats[seat] = own;
        Some(seat)
    }
}

impl<T> Visit<'_, T> {
    /// Ends the visit. To drop it does the same, but asks first whether a panic is the reason.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn leave(self) {
        self.inside.store(false, Ordering::Release);
        mem::forget(self);
    }
}

impl<T> Deref for Visit<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is this thread's turn, and whoever ends it waits for `inside`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Visit<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the visit is borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Visit<'_, T> {
    #[cold]
    fn drop(&mut self) {
        if thread::panicking() {
            self.lock.poison();
        }
        self.inside.store(false, Ordering::Release);
    }
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its thread alone is inside.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists only while its thread alone is inside, and it is borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.lock.poison();
        }
        if let Pass::Turn(seat) = self.pass {
            self.lock.inside[seat].store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_turn(lock: &TurnLock<u64>) -> bool {
        lock.turn.load(Ordering::Relaxed) >> SEAT_BITS == token::peek()
    }

    #[test]
    fn who_keeps_coming_back_gets_a_turn_and_who_comes_then_ends_it() {
        if !barrier::is_available() {
            return;
        }
        let lock = TurnLock::new(0);
        for _ in 0..STREAK {
            lock.run(|value| *value += 1).unwrap();
        }
        assert!(!has_turn(&lock));
        lock.run(|value| *value += 1).unwrap();
        assert!(has_turn(&lock));
        thread::scope(|scope| {
            scope.spawn(|| lock.run(|value| *value += 1).unwrap());
        });
        assert!(!has_turn(&lock));
        assert_eq!(lock.run(|value| *value), Ok(u64::from(STREAK) + 2));
    }

    #[test]
    fn a_thread_keeps_its_seat_and_one_that_ended_loses_it() {
        let mut gate = Gate { last: token::NOBODY, streak: 0, given: None, seats: Vec::new() };
        let mine = gate.seat_of(token::own());
        assert_eq!(gate.seat_of(token::own()), mine);
        let gone = thread::scope(|scope| {
            let gate = &mut gate;
            scope.spawn(move || gate.seat_of(token::own())).join().unwrap()
        });
        assert_ne!(gone, mine);
        while gate.seats.len() < SEATS {
            gate.seats.push(Seat { token: usize::MAX, life: token::life().unwrap() });
        }
        let heir = thread::scope(|scope| {
            let gate = &mut gate;
            scope.spawn(move || gate.seat_of(token::own())).join().unwrap()
        });
        assert_eq!(heir, gone);
    }
}
