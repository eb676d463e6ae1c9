//! A lock for state that threads use in runs: one of them for a long while, then another.
//!
//! An ordinary mutex costs two atomic read-modify-writes each time, whether anybody else wants it
//! or not; with a heap as quick as ours that is a third of the whole. [`TurnLock`] gives a thread
//! that keeps coming back a *turn*: as long as it lasts, locking and unlocking are two plain
//! stores. Whoever comes meanwhile ends the turn, and pays for both sides of the fence between
//! them ([`barrier`]).
//!
//! Under contention turns have a second use. A mutex that many threads hammer goes from core to
//! core with each operation, and what it guards goes with it. Here whoever had to wait gets a turn
//! of its own, and whoever comes then lets it run for a moment: many operations for each move.
//!
//! Where the system has no such fence, no turn is ever given, and the lock is a plain mutex.

pub mod barrier;
mod token;
mod turn;

pub use turn::{Poisoned, TurnGuard, TurnLock, Visit};
