//! The line of those who wait for a turn. Its first is the lookout; all others sleep until they are
//! the first, or, where turns are short, until they are about to be.

use std::time::Duration;

use crate::sys::{AtomicU32, AtomicU64, Ordering, Patience};
use crate::{fork, sys};

/// On so many bells those who sleep are spread. If more than that sleep, some wake for nothing.
const BELLS: usize = 32;
/// Where turns are short, so many are awake: to wake takes longer than such a turn.
const AWAKE: u16 = 4;
/// Who was woken before it is the first stays awake so long.
const SOON: Duration = Duration::from_micros(16);

/// A queue of threads of one process. Only how they wait depends on it, never who is inside.
// Those who wait look at it, and take nothing out of the cache of whoever is inside.
#[repr(align(128))]
pub(crate) struct Queue {
    /// A [`Line`].
    line: AtomicU64,
    /// How often each bell rang. The thread with number `n` sleeps by the bell `n % BELLS`.
    bells: [AtomicU32; BELLS],
}

/// Who came and who went. The numbers begin anew after 65,535, and no more threads than that may
/// wait.
#[derive(Clone, Copy)]
struct Line {
    /// The process whose threads wait. Those of another are not there any more.
    generation: u32,
    /// The number of whoever comes next.
    next: u16,
    /// The number of the first.
    first: u16,
}

impl Line {
    fn from_bits(bits: u64) -> Line {
        let line =
            Line { generation: (bits >> 32) as u32, next: (bits >> 16) as u16, first: bits as u16 };
        let own = fork::generation();
        if line.generation == own { line } else { Line { generation: own, next: 0, first: 0 } }
    }

    fn is_empty(self) -> bool {
        self.next == self.first
    }

    fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.next) << 16 | u64::from(self.first)
    }
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { line: AtomicU64::new(0), bells: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Waits until this thread is the first.
    pub(crate) fn join(&self) {
        let line = self.change(|line| line.next = line.next.wrapping_add(1));
        let number = line.next;
        let bell = self.bell(number);
        loop {
            // Read before the line: if the thread becomes the first after it was seen not to be,
            // the bell has rung since, and nobody falls asleep over it.
            let rung = bell.load(Ordering::SeqCst);
            if self.place(number) == 0 {
                return;
            }
            sys::wait(bell, rung);
            let mut patience = Patience::of(SOON);
            while (1..=AWAKE).contains(&self.place(number)) && patience.lasts() {}
        }
    }

    /// How many are before the one with this number. If the line is empty it is that of a child,
    /// which was forked while this thread waited in the parent's.
    fn place(&self, number: u16) -> u16 {
        let line = Line::from_bits(self.line.load(Ordering::SeqCst));
        if line.is_empty() { 0 } else { number.wrapping_sub(line.first) }
    }

    /// The first goes, and wakes the next; if turns are `short`, some of those behind it as well.
    pub(crate) fn go(&self, short: bool) {
        let line = self.change(|line| {
            if !line.is_empty() {
                line.first = line.first.wrapping_add(1);
            }
        });
        if line.is_empty() {
            return;
        }
        let waiting = line.next.wrapping_sub(line.first) - 1;
        for place in 1..=waiting.min(if short { AWAKE } else { 1 }) {
            let bell = self.bell(line.first.wrapping_add(place));
            bell.fetch_add(1, Ordering::SeqCst);
            sys::wake_all(bell);
        }
    }

    fn bell(&self, number: u16) -> &AtomicU32 {
        &self.bells[usize::from(number) % BELLS]
    }

    /// Changes the line, and says what it was.
    fn change(&self, change: impl Fn(&mut Line)) -> Line {
        let changed = |bits| {
            let mut line = Line::from_bits(bits);
            change(&mut line);
            Some(line.to_bits())
        };
        let old = self.line.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
        Line::from_bits(old.unwrap_or_else(|bits| bits))
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn check(threads: usize, rounds: usize, short: bool, preemption_bound: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemption_bound);
        model.max_branches = 10_000;
        model.check(move || {
            let shared = Arc::new((Queue::new(), loom::cell::UnsafeCell::new(0)));
            let turns = move |(queue, value): &(Queue, loom::cell::UnsafeCell<usize>)| {
                for _ in 0..rounds {
                    queue.join();
                    // SAFETY: loom tells if another thread is here at the same time.
                    value.with_mut(|value| unsafe { *value += 1 });
                    queue.go(short);
                }
            };
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || turns(&shared))
                })
                .collect();
            turns(&shared);
            for other in others {
                other.join().unwrap();
            }
            // SAFETY: the others are gone.
            assert_eq!(shared.1.with(|value| unsafe { *value }), threads * rounds);
        });
    }

    /// Whoever sleeps is woken, whatever happens between its last look and its sleep, and one at a
    /// time is the first.
    #[test]
    fn everybody_becomes_the_first() {
        check(2, 2, false, 5);
        check(3, 1, false, 2);
        check(2, 2, true, 3);
    }
}

#[cfg(all(test, unix, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// The numbers begin anew while threads wait.
    #[test]
    fn nobody_is_left_behind_when_numbers_begin_anew() {
        let queue = Queue::new();
        let (firsts, went) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    for _ in 0..4000 {
                        queue.join();
                        assert_eq!(firsts.fetch_add(1, Ordering::SeqCst), 0, "two are the first");
                        firsts.fetch_sub(1, Ordering::SeqCst);
                        went.fetch_add(1, Ordering::SeqCst);
                        queue.go(false);
                    }
                });
            }
        });
        assert_eq!(went.into_inner(), 160_000);
    }

    /// Who goes and comes back at once is behind those who sleep, though they wake later than it
    /// comes.
    #[test]
    fn who_comes_back_is_the_last() {
        let queue = Queue::new();
        let order = std::sync::Mutex::new(Vec::new());
        queue.join();
        thread::scope(|scope| {
            for number in 1..=3 {
                let (queue, order) = (&queue, &order);
                scope.spawn(move || {
                    queue.join();
                    order.lock().unwrap().push(number);
                    queue.go(false);
                });
                while Line::from_bits(queue.line.load(Ordering::SeqCst)).next <= number {
                    thread::yield_now();
                }
            }
            queue.go(false);
            queue.join();
            order.lock().unwrap().push(0);
            queue.go(false);
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 0]);
    }

    /// Those who waited when the process was forked are not there in the child.
    #[test]
    fn a_child_does_not_wait_for_those_before_it() {
        fork::watch();
        let queue = Queue::new();
        queue.join();
        // SAFETY: the child waits in a queue that was made for it, and ends at once, by a signal if
        // it waits for ever.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(20) };
            queue.join();
            queue.go(false);
            // SAFETY: as above.
            unsafe { libc::_exit(0) }
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it waited for ever");
        queue.go(false);
    }
}
