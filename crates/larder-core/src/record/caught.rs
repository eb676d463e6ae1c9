//! Caught: what a program's own function threw while the allocator's lock was held, and what must
//! not be dropped under it.
//!
//! A panic that went through the heap would leave it half changed, and nobody could use it again.
//! So it is caught where the function is called, the call under way goes on without its answer, and
//! the panic goes on when the lock is dropped: to the caller whose call it was.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::thread;

type Thing = Box<dyn Any + Send>;

thread_local! {
    static PANIC: RefCell<Option<Thing>> = const { RefCell::new(None) };
    static LATER: RefCell<Vec<Thing>> = const { RefCell::new(Vec::new()) };
    /// Whether there is either. Kept apart, because it costs much less to look at.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of the program's. None if it panicked; of several panics the first counts.
#[inline]
pub(crate) fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What the function changed is its own: the heap is not what it can reach.
    match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => Some(answer),
        Err(panic) => {
            keep(panic);
            None
        }
    }
}

#[cold]
fn keep(panic: Thing) {
    PANIC.with_borrow_mut(|first| _ = first.get_or_insert(panic));
    WAITS.set(true);
}

/// Drops something of the program's when the lock is dropped.
pub(crate) fn drop_later(thing: impl Any + Send) {
    LATER.with_borrow_mut(|later| later.push(Box::new(thing)));
    WAITS.set(true);
}

/// Whether this thread caught a panic that has not gone on yet.
#[inline]
pub(crate) fn has_panic() -> bool {
    WAITS.get() && PANIC.with_borrow(Option::is_some)
}

/// The lock is dropped: lets go of what had to wait, and goes on with the panic.
#[inline]
pub(crate) fn go_on() {
    if WAITS.get() {
        go_on_now();
    }
}

#[cold]
fn go_on_now() {
    let panic = PANIC.take();
    WAITS.set(false);
    drop(LATER.take());
    // A second panic would end the process.
    if let Some(panic) = panic
        && !thread::panicking()
    {
        panic::resume_unwind(panic);
    }
}

/// As [`go_on`], for somebody who cannot: the panic ends here.
pub(crate) fn end_here() {
    PANIC.take();
    go_on();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_panic_goes_on_when_it_may_and_only_once() {
        assert_eq!(catch(|| 7), Some(7));
        assert_eq!(catch(|| -> u8 { panic!("the first") }), None);
        assert_eq!(catch(|| -> u8 { panic!("the second") }), None);
        assert!(has_panic());
        let panic = panic::catch_unwind(go_on).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the first"));
        assert!(!has_panic());
        go_on();
    }

    #[test]
    fn what_waits_is_dropped_and_a_panic_can_end() {
        let thing = Arc::new(());
        drop_later(thing.clone());
        assert!(!has_panic());
        catch(|| -> u8 { panic!("said to nobody") });
        assert_eq!(Arc::strong_count(&thing), 2);
        end_here();
        assert_eq!(Arc::strong_count(&thing), 1);
        go_on();
    }
}
