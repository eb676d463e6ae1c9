//! A number for each thread, which no other thread of the process ever has, and a way to tell
//! whether a thread is still there.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// No thread's token.
pub(crate) const NOBODY: usize = 0;

/// What a thread has until it asks for a token of its own. It equals no token and not `NOBODY`.
const UNNAMED: usize = 1;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(UNNAMED) };
    /// Dropped when the thread ends.
    static LIFE: Arc<()> = Arc::new(());
}

/// The calling thread's token, if it has one yet; else a number that is nobody's.
#[inline]
pub(crate) fn peek() -> usize {
    OWN.get()
}

/// The calling thread's token.
pub(crate) fn own() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(UNNAMED + 1);
    if OWN.get() == UNNAMED {
        OWN.set(NEXT.fetch_add(1, Ordering::Relaxed));
        // Now, so that nothing is allocated when a turn is given.
        life();
    }
    OWN.get()
}

/// Something that can be upgraded until the calling thread ends; none if it is ending already.
pub(crate) fn life() -> Option<Weak<()>> {
    LIFE.try_with(Arc::downgrade).ok()
}
