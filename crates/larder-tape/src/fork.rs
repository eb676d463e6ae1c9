//! Forks: how often this process is a child of one that used this crate, so that a child knows that
//! a tape is its parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many forks there were on the way from the process that asked first to this one. To compare
/// two answers costs a load, where to ask the kernel for the process's number costs a call.
#[inline]
pub(crate) fn count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts from now on.
pub(crate) fn watch() {
    extern "C" fn one_more() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        // SAFETY: the function may be called in the child of a process with many threads: all it
        // does is to add to a number. It is there for as long as the process is.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(one_more)) };
        assert_eq!(refused, 0, "there is memory for one more function");
    });
}
