//! The lock by model: loom runs through the ways in which threads can interleave, and through what
//! each may see of the others' stores. `RUSTFLAGS="--cfg loom" cargo test -p larder-lock --test
//! model`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;

use larder_lock::{Poisoned, TurnLock};

/// What is guarded: loom sees whether two touch it at once, or one without having seen the other's.
fn check(threads: usize, steps: usize, work: impl Fn(&TurnLock<usize>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if threads > 2 { 2 } else { 3 });
    model.max_branches = 100_000;
    // Three threads can interleave in more ways than anybody has the time for.
    model.max_permutations = Some(20_000);
    let work = std::sync::Arc::new(work);
    model.check(move || {
        let lock = Arc::new(TurnLock::new(0));
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let (lock, work) = (Arc::clone(&lock), std::sync::Arc::clone(&work));
                thread::spawn(move || work(&lock))
            })
            .collect();
        work(&lock);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(lock.run(|value| *value), Ok(steps * threads), "a step is lost");
    });
}

#[test]
fn runs_exclude_each_other() {
    check(2, 2, |lock| {
        for _ in 0..2 {
            lock.run(|value| *value += 1).unwrap();
        }
    });
}

#[test]
fn guards_and_runs_exclude_each_other() {
    check(2, 2, |lock| {
        *lock.lock().unwrap() += 1;
        lock.run(|value| *value += 1).unwrap();
    });
}

#[test]
fn three_threads_exclude_each_other() {
    check(3, 1, |lock| lock.run(|value| *value += 1).unwrap());
}

/// Goes in, and stays for so many looks of whoever waits.
fn stay(lock: &TurnLock<usize>, looks: usize) {
    let mut value = lock.lock().unwrap();
    for _ in 0..looks {
        thread::yield_now();
    }
    *value += 1;
}

/// Whoever waits gives way, which is dear, looks whether anybody moves before it bars the way
/// again, and insists at last, while the others stay, or leave and come back. In the other models
/// nobody waits so long: who is inside leaves as soon as somebody who waits lets it run.
#[test]
fn whoever_insists_gets_in_alone() {
    check(2, 1, |lock| stay(lock, 24));
    check(2, 2, |lock| {
        for _ in 0..2 {
            stay(lock, 12);
        }
    });
}

/// Two who wait may want to bar the way at once.
#[test]
fn three_of_whom_each_stays_exclude_each_other() {
    check(3, 1, |lock| stay(lock, 16));
}

/// Whoever gets in after a panic inside would see what is half changed.
#[test]
fn nobody_gets_in_after_a_panic() {
    loom::model(|| {
        let lock = Arc::new(TurnLock::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _ = lock.run(|value| {
                        *value = 1;
                        std::panic::resume_unwind(Box::new("on purpose"));
                    });
                }));
            })
        };
        match lock.run(|value| *value) {
            Ok(value) => assert_eq!(value, 0),
            Err(poisoned) => assert_eq!(poisoned, Poisoned::Panic),
        }
        other.join().unwrap();
        assert_eq!(lock.run(|value| *value), Err(Poisoned::Panic));
    });
}
