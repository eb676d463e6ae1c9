//! What the lock asks of the machine: atomic numbers, a cell, the time, and a way to wait. loom
//! brings its own, and knows no time: there it is how often a thread looked at the clock.

#[cfg(loom)]
pub(crate) use of_loom::*;
#[cfg(not(loom))]
pub(crate) use of_std::*;

#[cfg(not(loom))]
mod of_std {
    pub(crate) use atomic_wait::{wait, wake_all};
    use std::hint;
    use std::sync::OnceLock;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread::{sleep, yield_now as give_way};
    use std::time::{Duration, Instant};

    /// Found taken again so soon, the lock is on its way to be hot.
    pub(crate) const LULL_NS: u64 = 1_000;
    /// How long whoever has the lock is left alone where many want it: some thousand operations.
    /// The next one finds what it needs in another processor's cache, which costs it as much as
    /// hundreds.
    pub(crate) const TURN_NS: u64 = 200_000;
    /// So often one gives way to others who want the same processor, before one goes to sleep.
    pub(crate) const GIVES_WAY: u32 = 4;
    /// Whoever gives way for longer than this lets strangers run.
    pub(crate) const DEAR_NS: u64 = 500_000;
    /// So long it is believed that they still want to.
    pub(crate) const CROWDED_NS: u64 = 100_000_000;
    /// The lookout has waited long enough after so much: it bars the way until it is in, even if
    /// that lets the lock lie idle for a moment.
    pub(crate) const LONG_WAIT_NS: u64 = 10_000_000;

    /// A cell as loom has it.
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        #[allow(clippy::inline_always)] // It is no instruction at all.
        pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get())
        }

        #[inline(always)]
        #[allow(clippy::inline_always)]
        pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }

    /// Nanoseconds since some moment of this process.
    pub(crate) fn now_ns() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    /// Whether this thread may run on one processor only, as all others then most likely do.
    pub(crate) fn is_on_one_processor() -> bool {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: a set of processors is plain bits, and the call writes this one alone.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0
                    && libc::CPU_COUNT(&set) == 1
            }
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Patience that comes to an end.
    pub(crate) struct Patience(Instant);

    impl Patience {
        pub(crate) fn of(time: Duration) -> Patience {
            Patience(Instant::now() + time)
        }

        /// Waits for a moment; false if there was time enough. To read the clock takes about as
        /// long as one should wait between two looks: each takes the lock out of the
        /// other's cache.
        pub(crate) fn lasts(&mut self) -> bool {
            hint::spin_loop();
            Instant::now() < self.0
        }
    }
}

#[cfg(loom)]
mod of_loom {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread::yield_now as give_way;
    use std::cell::Cell;
    use std::time::Duration;

    /// A turn is over at once, so that everybody both looks and claims.
    pub(crate) const LULL_NS: u64 = 0;
    pub(crate) const TURN_NS: u64 = 0;
    pub(crate) const GIVES_WAY: u32 = 1;
    /// To give way is dear, and stays so, so that everybody who did looks for movement before it
    /// bars the way again.
    pub(crate) const DEAR_NS: u64 = 1;
    pub(crate) const CROWDED_NS: u64 = u64::MAX;
    /// The lookout looks at the clock three or four times with each look at the lock: it insists
    /// after the second.
    pub(crate) const LONG_WAIT_NS: u64 = 5;

    /// Others run meanwhile.
    pub(crate) fn sleep(_: Duration) {
        loom::thread::yield_now();
    }

    /// Waits until the number is another one. Nobody would be woken without that: loom finds
    /// whoever waits for ever.
    pub(crate) fn wait(number: &AtomicU32, seen: u32) {
        while number.load(Ordering::SeqCst) == seen {
            loom::thread::yield_now();
        }
    }

    /// Who waits looks by itself.
    pub(crate) fn wake_all(_: &AtomicU32) {}

    /// Else nobody would ask whether somebody moves.
    pub(crate) fn is_on_one_processor() -> bool {
        false
    }

    loom::thread_local! {
        static CLOCK: Cell<u64> = Cell::new(0);
    }

    /// Time passes for whoever looks, and for nobody else: that is the same whenever loom takes the
    /// same way.
    pub(crate) fn now_ns() -> u64 {
        CLOCK.with(|clock| {
            clock.set(clock.get() + 1);
            clock.get()
        })
    }

    /// Ends after two looks.
    pub(crate) struct Patience(u32);

    impl Patience {
        pub(crate) fn of(_: Duration) -> Patience {
            Patience(2)
        }

        pub(crate) fn lasts(&mut self) -> bool {
            loom::thread::yield_now();
            self.0 -= 1;
            self.0 > 0
        }
    }
}
