//! Stories about the lock: nobody is ever inside with somebody else, whoever has a turn, and nothing
//! that was written inside is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use larder_lock::{Poisoned, TurnLock, barrier};

/// Two numbers that are equal whenever nobody is inside.
#[derive(Default)]
struct Pair {
    one: u64,
    other: u64,
}

impl Pair {
    fn step(&mut self) {
        assert_eq!(self.one, self.other, "somebody else is inside");
        self.one += 1;
        std::hint::black_box(&mut self.one);
        self.other += 1;
    }
}

/// More steps than it takes to get a turn.
const MANY: u64 = 5_000;

fn steps(lock: &TurnLock<Pair>, count: u64) {
    for _ in 0..count {
        lock.run(Pair::step).unwrap();
    }
}

fn total(lock: &TurnLock<Pair>) -> u64 {
    lock.run(|pair| pair.one).unwrap()
}

#[test]
fn threads_that_hammer_it_lose_nothing() {
    for threads in [2, 3, 8] {
        let lock = TurnLock::new(Pair::default());
        let ready = Barrier::new(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    ready.wait();
                    steps(&lock, 20 * MANY);
                });
            }
        });
        assert_eq!(total(&lock), threads as u64 * 20 * MANY);
    }
}

#[test]
fn threads_that_take_long_runs_one_after_the_other_lose_nothing() {
    let lock = TurnLock::new(Pair::default());
    let next = Barrier::new(2);
    thread::scope(|scope| {
        for first in [true, false] {
            let (lock, next) = (&lock, &next);
            scope.spawn(move || {
                for round in 0..20 {
                    if (round % 2 == 0) == first {
                        steps(lock, MANY);
                    }
                    next.wait();
                }
            });
        }
    });
    assert_eq!(total(&lock), 20 * MANY);
}

#[test]
fn a_guard_and_a_run_exclude_each_other() {
    let lock = TurnLock::new(Pair::default());
    thread::scope(|scope| {
        scope.spawn(|| steps(&lock, 10 * MANY));
        scope.spawn(|| {
            for _ in 0..MANY {
                lock.lock().unwrap().step();
            }
        });
    });
    assert_eq!(total(&lock), 11 * MANY);
}

/// Whoever ends a turn waits for the thread that is inside, however long it stays.
#[test]
fn a_thread_that_stays_long_is_waited_for() {
    let lock = TurnLock::new(Pair::default());
    let (inside, left) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            steps(&lock, MANY);
            lock.run(|pair| {
                inside.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
                left.store(true, Ordering::SeqCst);
                pair.step();
            })
            .unwrap();
        });
        while !inside.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        lock.run(|_| assert!(left.load(Ordering::SeqCst))).unwrap();
    });
}

/// Many more threads than there are seats, each with a run that is long enough for a turn.
#[test]
fn threads_that_ended_leave_their_seats_to_others() {
    let lock = TurnLock::new(Pair::default());
    for _ in 0..200 {
        thread::scope(|scope| {
            scope.spawn(|| steps(&lock, 1000));
        });
    }
    assert_eq!(total(&lock), 200 * 1000);
}

#[test]
fn a_panic_inside_is_known_to_everybody() {
    // Before any turn, during one, and with a guard.
    for (count, guarded) in [(0, false), (MANY, false), (0, true), (MANY, true)] {
        let mut lock = TurnLock::new(Pair::default());
        steps(&lock, count);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            if guarded {
                let _guard = lock.lock().unwrap();
                panic!("on purpose");
            }
            lock.run(|_| panic!("on purpose")).unwrap();
        }));
        assert!(panicked.is_err());
        assert_eq!(lock.run(|pair| pair.one), Err(Poisoned));
        assert_eq!(lock.lock().err(), Some(Poisoned));
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(lock.run(|pair| pair.one), Err(Poisoned)));
        });
        assert_eq!(lock.get_mut().err(), Some(Poisoned));
    }
}

/// A buffer that is freed while its thread unwinds must not make the lock useless.
#[test]
fn a_thread_that_comes_while_it_unwinds_does_no_harm() {
    struct Late(Arc<TurnLock<Pair>>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.lock().unwrap().step();
        }
    }
    let lock = Arc::new(TurnLock::new(Pair::default()));
    let late = Late(Arc::clone(&lock));
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _late = late;
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(total(&lock), 1);
}

/// Else two would change the value at once.
#[test]
fn taking_it_twice_during_a_turn_panics() {
    if !barrier::is_available() {
        return;
    }
    let lock = TurnLock::new(Pair::default());
    steps(&lock, MANY);
    let twice = catch_unwind(AssertUnwindSafe(|| lock.run(|_| lock.run(Pair::step))));
    assert!(twice.is_err());
}

#[test]
fn the_fence_answers_alike_each_time() {
    assert_eq!(barrier::is_available(), barrier::is_available());
    if barrier::is_available() {
        barrier::heavy();
    }
}
