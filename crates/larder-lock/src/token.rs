//! A number for each thread, which no other running thread of the process has.

/// No thread's token.
pub(crate) const NOBODY: usize = 0;

/// The calling thread's token.
#[cfg(not(loom))]
pub(crate) fn own() -> usize {
    thread_local! {
        /// It is nothing but a place. It has no destructor, so that it is there to the very end.
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

#[cfg(loom)]
pub(crate) fn own() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(NOBODY + 1);
    loom::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
