//! Whether many want the lock, and whose turn it is.

use std::time::Duration;

use crate::queue::Queue;
use crate::sys::{
    self, AtomicU32, AtomicU64, CROWDED_NS, DEAR_NS, LULL_NS, Ordering, Patience, TURN_NS,
};

/// The lock is hot if it was found taken so often in a row, each time soon after the last.
const STREAK: u32 = 16;
/// A longer gap than this is slept through.
const AWAKE: Duration = Duration::from_micros(8);

/// What is known of those who found the lock taken, and those who wait for a turn. Several write
/// the numbers at once; they say only how to wait, so that one that is wrong now and then does no
/// harm.
pub(crate) struct Contest {
    /// When the lock was found taken last, in nanoseconds.
    last_ns: AtomicU64,
    /// How often it was found taken in a row, each time soon after the last.
    streak: AtomicU32,
    /// When the turn began that was claimed last.
    turn_ns: AtomicU64,
    /// When it was seen last that whoever gives way does not run again for long; 0 if never.
    dear_ns: AtomicU64,
    pub(crate) queue: Queue,
}

impl Contest {
    pub(crate) fn new() -> Contest {
        Contest {
            last_ns: AtomicU64::new(0),
            streak: AtomicU32::new(0),
            turn_ns: AtomicU64::new(0),
            dear_ns: AtomicU64::new(0),
            queue: Queue::new(),
        }
    }

    /// The lock was found taken: says whether it is hot, so that it is no use to look again at
    /// once. That is so if it was found taken many times in a row, or if somebody has just
    /// claimed a turn.
    pub(crate) fn is_hot(&self) -> bool {
        let now_ns = sys::now_ns();
        let since_ns = now_ns.saturating_sub(self.last_ns.load(Ordering::Relaxed));
        self.last_ns.store(now_ns, Ordering::Relaxed);
        let streak = if since_ns < LULL_NS { self.streak.load(Ordering::Relaxed) + 1 } else { 0 };
        if streak < STREAK {
            self.streak.store(streak, Ordering::Relaxed);
            return now_ns.saturating_sub(self.turn_ns.load(Ordering::Relaxed)) < LULL_NS;
        }
        self.streak.store(0, Ordering::Relaxed);
        if self.is_over() {
            self.begin_turn();
        }
        true
    }

    /// Lets some time pass, but no more than is left of a turn that is under way.
    pub(crate) fn pass(&self, gap: Duration) {
        let left = Duration::from_nanos(TURN_NS.saturating_sub(self.since_turn_ns()));
        let gap = if left.is_zero() { gap } else { gap.min(left) };
        if gap > AWAKE {
            return sys::sleep(gap);
        }
        let mut patience = Patience::of(gap);
        while patience.lasts() {}
    }

    /// This thread gave way to others, with the way barred, since so long.
    pub(crate) fn note_wait(&self, before_ns: u64) {
        let now_ns = sys::now_ns();
        if now_ns.saturating_sub(before_ns) >= DEAR_NS {
            self.dear_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether strangers want the processor, so that to give way costs as long as they please.
    pub(crate) fn is_dear(&self) -> bool {
        let dear_ns = self.dear_ns.load(Ordering::Relaxed);
        dear_ns > 0 && sys::now_ns().saturating_sub(dear_ns) < CROWDED_NS
    }

    /// A turn begins now.
    pub(crate) fn begin_turn(&self) {
        self.turn_ns.store(sys::now_ns(), Ordering::Relaxed);
    }

    /// Whether no turn is under way.
    pub(crate) fn is_over(&self) -> bool {
        self.since_turn_ns() >= TURN_NS
    }

    fn since_turn_ns(&self) -> u64 {
        sys::now_ns().saturating_sub(self.turn_ns.load(Ordering::Relaxed))
    }
}
