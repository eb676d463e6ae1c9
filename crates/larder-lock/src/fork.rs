//! Processes by number: whoever is inside a lock when the process forks is not there in the child,
//! and will never leave.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first process and this one, and one.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// The number of this process among its ancestors; never 0.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Sees to it that a child gets a number of its own. Once a process is enough, and again does no
/// harm.
pub(crate) fn watch() {
    #[cfg(all(unix, not(loom)))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: the function may be called after a fork: it adds to an atomic number and does
            // nothing else. Where it cannot be registered, for want of memory, a child waits for
            // ever for a lock that was held when it was forked, as with any other lock.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
    }
}

#[cfg(all(unix, not(loom)))]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
