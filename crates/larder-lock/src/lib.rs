//! A lock for state that is used for some ten nanoseconds at a time, by one thread mostly, by many
//! now and then, and on machines that have more to do than they have processors.
//!
//! To take [`TurnLock`] is one atomic instruction, and to leave it is a plain store: nobody is ever
//! woken by whoever leaves. Who finds it taken looks again for a moment, as it will mostly be free
//! at once. If it is not, whoever is inside may not be running, and the processor is better given
//! to somebody else: the waiting thread sleeps for a while and looks again.
//!
//! Threads that hammer the lock would carry what it guards from one processor's cache to the
//! other's with each operation. So where the lock is found taken again and again, whoever has it
//! gets a *turn*, long enough for some thousand operations, and the others wait in a line. The
//! first of them is the *lookout*: it looks seldom, goes in when the turn is over or nobody comes
//! any more, and wakes the next to be the lookout. The others sleep. Nobody has to stop before
//! another is there to go on, and a turn that nobody needs is over soon. Who finds the lock free
//! goes in past the line; who had a turn and finds it taken is behind those who wait. Should the
//! lookout itself not get to run, as one of low priority on a machine that is full, those behind it
//! wait with it.
//!
//! With `--cfg larder_mutex` the same interface stands over the standard library's mutex, to
//! measure against; with `--cfg loom` the lock is checked by loom.

#[cfg(not(larder_mutex))]
mod contest;
#[cfg(not(larder_mutex))]
mod fork;
#[cfg(larder_mutex)]
mod mutex;
#[cfg(not(larder_mutex))]
mod queue;
#[cfg(not(larder_mutex))]
mod sys;
#[cfg(not(larder_mutex))]
mod token;
#[cfg(not(larder_mutex))]
mod turn;

#[cfg(larder_mutex)]
pub use mutex::{TurnGuard, TurnLock};
#[cfg(not(larder_mutex))]
pub use turn::{TurnGuard, TurnLock};

use std::fmt;

/// The lock is of no use any more: what it guards may be half changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poisoned {
    /// A thread panicked while it was inside.
    Panic,
    /// A thread was inside when the process was forked, and this is the child.
    Fork,
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Poisoned::Panic => "a thread panicked while it held the lock",
            Poisoned::Fork => "the lock was held by another thread when this process was forked",
        })
    }
}

impl std::error::Error for Poisoned {}
