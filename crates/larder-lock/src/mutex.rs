//! The standard library's mutex behind the interface of the lock, to measure against.

use std::sync::{Mutex, MutexGuard};

use crate::Poisoned;

/// A mutex.
pub struct TurnLock<T>(Mutex<T>);

/// A mutex's guard.
pub type TurnGuard<'a, T> = MutexGuard<'a, T>;

impl<T> TurnLock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> TurnLock<T> {
        TurnLock(Mutex::new(value))
    }

    /// Waits until nobody else is inside, and goes in.
    #[inline]
    pub fn lock(&self) -> Result<TurnGuard<'_, T>, Poisoned> {
        self.0.lock().map_err(|_| Poisoned::Panic)
    }

    /// Waits until nobody else is inside, and does `work` there.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn run<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Poisoned> {
        Ok(work(&mut *self.lock()?))
    }

    /// The value, for whoever has the lock to itself.
    pub fn get_mut(&mut self) -> Result<&mut T, Poisoned> {
        self.0.get_mut().map_err(|_| Poisoned::Panic)
    }
}
