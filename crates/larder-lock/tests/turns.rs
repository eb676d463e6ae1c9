//! Stories about the lock: nobody is ever inside with somebody else, nothing that was written
//! inside is lost, and whatever goes wrong is told and waited for by nobody.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use larder_lock::{Poisoned, TurnLock};

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

/// Enough for several turns.
const MANY: u64 = 50_000;

fn steps(lock: &TurnLock<Pair>, count: u64) {
    for _ in 0..count {
        lock.run(Pair::step).unwrap();
    }
}

fn total(lock: &TurnLock<Pair>) -> u64 {
    lock.run(|pair| pair.one).unwrap()
}

/// Runs `work` on so many threads at once, and waits until nothing is left of them.
fn at_once(threads: usize, work: impl Fn(usize) + Sync) {
    let ready = Barrier::new(threads);
    let (ready, work) = (&ready, &work);
    thread::scope(|scope| {
        let start = |number| {
            scope.spawn(move || {
                ready.wait();
                work(number);
            })
        };
        let threads: Vec<_> = (0..threads).map(start).collect();
        // The scope alone would not wait for what the threads kept to themselves.
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn threads_that_hammer_it_lose_nothing() {
    for threads in [2, 3, 8] {
        let lock = TurnLock::new(Pair::default());
        at_once(threads, |_| steps(&lock, MANY));
        assert_eq!(total(&lock), threads as u64 * MANY);
    }
}

#[test]
fn a_hundred_threads_lose_nothing() {
    let lock = TurnLock::new(Pair::default());
    at_once(100, |_| steps(&lock, MANY / 50));
    assert_eq!(total(&lock), 2 * MANY);
}

/// Nobody waits for ever while others hammer: each gets its turn.
#[test]
fn nobody_is_left_out() {
    let lock = TurnLock::new(Pair::default());
    let done = AtomicUsize::new(0);
    at_once(4, |_| {
        // All go on until the last has done its share.
        let mut mine = 0;
        while done.load(Ordering::Relaxed) < 4 {
            steps(&lock, 100);
            mine += 100;
            if mine == 10_000 {
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

#[test]
fn a_guard_and_a_run_exclude_each_other() {
    let lock = TurnLock::new(Pair::default());
    at_once(2, |number| {
        if number == 0 {
            steps(&lock, 10 * MANY);
        } else {
            for _ in 0..MANY {
                lock.lock().unwrap().step();
            }
        }
    });
    assert_eq!(total(&lock), 11 * MANY);
}

/// Whoever waits for a thread that stays long sleeps meanwhile: it uses next to none of the
/// processor.
#[test]
fn a_thread_that_stays_long_is_waited_for_asleep() {
    let lock = TurnLock::new(Pair::default());
    let (inside, left) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut pair = lock.lock().unwrap();
            inside.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(300));
            left.store(true, Ordering::SeqCst);
            pair.step();
        });
        while !inside.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let before = processor_time();
        lock.run(|_| assert!(left.load(Ordering::SeqCst))).unwrap();
        let used = processor_time().saturating_sub(before);
        assert!(used < Duration::from_millis(150), "{used:?} of 300 ms were spent on waiting");
    });
}

/// How long this thread has been running on a processor.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure that it is given.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_panic_inside_is_known_to_everybody() {
    // Before any contest and after one, with a guard and without.
    for (count, guarded) in [(0, false), (MANY, false), (0, true), (MANY, true)] {
        let mut lock = TurnLock::new(Pair::default());
        at_once(2, |_| steps(&lock, count));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            if guarded {
                let _guard = lock.lock().unwrap();
                panic!("on purpose");
            }
            lock.run(|_| panic!("on purpose")).unwrap();
        }));
        assert!(panicked.is_err());
        assert_eq!(lock.run(|pair| pair.one), Err(Poisoned::Panic));
        assert_eq!(lock.lock().err(), Some(Poisoned::Panic));
        at_once(2, |_| assert_eq!(lock.run(|pair| pair.one), Err(Poisoned::Panic)));
        assert_eq!(lock.get_mut().err(), Some(Poisoned::Panic));
    }
}

/// Those who wait when a thread dies inside are told.
#[test]
fn a_thread_that_dies_inside_leaves_nobody_waiting() {
    let lock = TurnLock::new(Pair::default());
    let inside = Barrier::new(4);
    thread::scope(|scope| {
        let dying = scope.spawn(|| {
            lock.run(|_| {
                inside.wait();
                thread::sleep(Duration::from_millis(20));
                panic!("on purpose");
            })
        });
        for _ in 0..3 {
            scope.spawn(|| {
                inside.wait();
                assert_eq!(lock.run(Pair::step), Err(Poisoned::Panic));
            });
        }
        assert!(dying.join().is_err());
    });
}

/// A buffer that is freed while its thread unwinds must not make the lock useless.
#[test]
fn a_thread_that_comes_while_it_unwinds_does_no_harm() {
    struct Late(Arc<TurnLock<Pair>>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.lock().unwrap().step();
            self.0.run(Pair::step).unwrap();
        }
    }
    let lock = Arc::new(TurnLock::new(Pair::default()));
    let late = Late(Arc::clone(&lock));
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _late = late;
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(total(&lock), 2);
}

/// A thread whose last values are dropped after everything else of it may still come.
#[test]
fn a_thread_that_is_ending_can_come() {
    struct Late(Arc<TurnLock<Pair>>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.lock().unwrap().step();
            self.0.run(Pair::step).unwrap();
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let lock = Arc::new(TurnLock::new(Pair::default()));
    at_once(8, |_| {
        LATE.set(Some(Late(Arc::clone(&lock))));
        steps(&lock, MANY / 10);
    });
    // The threads have been joined, and what they kept to themselves was dropped.
    assert_eq!(total(&lock), 8 * MANY / 10 + 16);
}

/// Else it would wait for itself. Whoever else waits is not harmed by the panic: a panic of
/// somebody who is inside poisons, as ever.
#[test]
fn to_take_it_twice_panics_whatever_others_do() {
    for (others, is_guard) in [(0, false), (0, true), (3, false), (3, true)] {
        let lock = TurnLock::new(Pair::default());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) && lock.run(Pair::step).is_ok() {
                        std::hint::spin_loop();
                    }
                });
            }
            steps(&lock, MANY);
            let again = catch_unwind(AssertUnwindSafe(|| {
                let _guard = lock.lock()?;
                if is_guard { lock.lock().map(drop) } else { lock.run(Pair::step) }
            }));
            let panic = again.expect_err("the thread has it already");
            let text = panic.downcast_ref::<String>().expect("a sentence");
            assert!(text.contains("the thread has the lock already"), "{text}");
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// On one processor whoever wakes takes it away from the one inside: that one has to leave, and to
/// stay out until the other was there.
#[cfg(target_os = "linux")]
#[test]
fn who_comes_seldom_does_not_wait_while_others_come_and_go() {
    let most = visits_meanwhile(2, stay_on_one_processor);
    assert!(most < 2000, "others came {most} times meanwhile, or more, one time in ten");
}

/// Who stays long each time and comes back at once has to stay out at last.
#[test]
fn who_stays_long_each_time_lets_others_in() {
    const VISITS: usize = 20;
    let lock = TurnLock::new(Pair::default());
    let (stop, inside, stays) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let pair = lock.lock().unwrap();
                inside.store(true, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
                stays.fetch_add(1, Ordering::Relaxed);
                inside.store(false, Ordering::Relaxed);
                drop(pair);
            }
        });
        let before = stays.load(Ordering::Relaxed);
        for _ in 0..VISITS {
            while !inside.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            steps(&lock, 1);
        }
        let passed = stays.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        assert!(passed < 4 * VISITS, "{passed} stays of another one for {VISITS} visits");
    });
}

/// Those who hammer do not hand it to each other past one who waits: it is the next after those
/// before it.
#[test]
fn nobody_is_passed_over() {
    let most = visits_meanwhile(4, || {});
    assert!(most < 1_000_000, "others came {most} times meanwhile, or more, one time in ten");
}

/// How often others come while one waits who comes seldom, nine times in ten at most. That says how
/// long it waits, however fast or busy the machine is.
fn visits_meanwhile(others: usize, prepare: impl Fn() + Sync) -> usize {
    let lock = TurnLock::new(Pair::default());
    let stop = AtomicBool::new(false);
    let came = AtomicUsize::new(0);
    let mut waited = Vec::new();
    thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                prepare();
                while !stop.load(Ordering::Relaxed) {
                    lock.run(Pair::step).unwrap();
                    came.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        prepare();
        for _ in 0..300 {
            thread::sleep(Duration::from_millis(1));
            let before = came.load(Ordering::Relaxed);
            steps(&lock, 1);
            waited.push(came.load(Ordering::Relaxed) - before);
        }
        stop.store(true, Ordering::Relaxed);
    });
    waited.sort_unstable();
    waited[waited.len() * 9 / 10]
}

/// This thread, with all others that call this, runs on one processor from now on.
#[cfg(target_os = "linux")]
fn stay_on_one_processor() {
    static FIRST: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: a set of processors is plain bits; both calls read and write sets of this frame
    // alone, for the calling thread.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &raw mut all), 0);
        let first = || (0..libc::CPU_SETSIZE as usize).find(|&at| libc::CPU_ISSET(at, &all));
        let first = *FIRST.get_or_init(|| first().expect("a processor that it runs on"));
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
    }
}

/// What a child process says to that.
fn in_a_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `body`, which takes locks that were made for it, and ends at once; it
    // returns to nothing of the parent's.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a child that waits for ever is ended by a signal.
            unsafe { libc::alarm(20) };
            let good = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the process with nothing run in between.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status == 0
        }
    }
}

#[test]
fn a_child_can_use_what_nobody_held() {
    let lock = TurnLock::new(Pair::default());
    steps(&lock, MANY);
    assert!(in_a_child(|| {
        steps(&lock, MANY);
        total(&lock) == 2 * MANY
    }));
    assert_eq!(total(&lock), MANY, "the child has a copy of its own");
}

/// The thread that is inside is not there in the child: to wait for it would last for ever.
#[test]
fn a_child_is_told_that_somebody_was_inside() {
    let lock = TurnLock::new(Pair::default());
    let (inside, leave) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            lock.run(|_| {
                inside.wait();
                while !leave.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            })
            .unwrap();
        });
        inside.wait();
        let began = Instant::now();
        let told = in_a_child(|| {
            lock.run(Pair::step) == Err(Poisoned::Fork) && lock.lock().err() == Some(Poisoned::Fork)
        });
        assert!(told && began.elapsed() < Duration::from_secs(10));
        leave.store(true, Ordering::Relaxed);
    });
    assert_eq!(total(&lock), 0, "the parent goes on");
}

/// A thread of the child may have the number, that is, the place in memory, of one that was inside
/// in the parent.
#[test]
fn a_thread_of_a_child_is_told_that_somebody_was_inside() {
    let lock = TurnLock::new(Pair::default());
    let (inside, leave) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = lock.lock().unwrap();
            inside.wait();
            leave.wait();
        });
        inside.wait();
        let told = in_a_child(|| {
            thread::scope(|scope| {
                let other = scope.spawn(|| lock.lock().err() == Some(Poisoned::Fork));
                other.join().unwrap_or(false)
            })
        });
        leave.wait();
        assert!(told);
    });
}

/// Who forks while it is inside is inside in the child too, and leaves there.
#[test]
fn who_forks_inside_leaves_in_both_processes() {
    let lock = TurnLock::new(Pair::default());
    let mut pair = Some(lock.lock().unwrap());
    // The guard is copied with everything else; the child drops its copy and goes on.
    assert!(in_a_child(|| {
        pair.as_mut().unwrap().step();
        drop(pair.take());
        total(&lock) == 1
    }));
    drop(pair);
    assert_eq!(total(&lock), 0);
}
