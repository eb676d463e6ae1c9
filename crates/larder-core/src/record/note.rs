//! Notes: what a thread says about the time of its events: what is being compiled, and a remark
//! of the program. They belong to the thread, as in PyTorch; the allocator adds a word to some.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// What a thread says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Note {
    pub(crate) compile_context: Option<Arc<str>>,
    pub(crate) user_metadata: Arc<str>,
    /// What the allocator itself says: the call that it is part of, where that is an unusual one.
    /// No thread does.
    pub(crate) internal_metadata: Arc<str>,
}

#[derive(Default)]
struct Saying {
    compiling: Vec<Arc<str>>,
    user_metadata: Arc<str>,
    /// The note made of the two; none while there is nothing to say. It is one object for as long
    /// as nothing changes, so that events know it by its address.
    note: Option<Arc<Note>>,
}

thread_local! {
    static SAYING: RefCell<Saying> = RefCell::default();
    /// Whether there is a note. Kept apart, because it costs much less to look at.
    static SPEAKS: Cell<bool> = const { Cell::new(false) };
}

fn change(change: impl FnOnce(&mut Saying)) {
    SAYING.with_borrow_mut(|saying| {
        change(saying);
        let note = Note {
            compile_context: saying.compiling.last().cloned(),
            user_metadata: saying.user_metadata.clone(),
            internal_metadata: Arc::default(),
        };
        saying.note = (note != Note::default()).then(|| Arc::new(note));
        SPEAKS.set(saying.note.is_some());
    });
}

/// Sets the remark that goes with this thread's events from now on; an empty one is none.
pub fn set_user_metadata(remark: &str) {
    change(|saying| saying.user_metadata = remark.into());
}

/// The remark that goes with this thread's events.
pub fn user_metadata() -> String {
    SAYING.with_borrow(|saying| saying.user_metadata.to_string())
}

/// This thread compiles something from now on, until the matching pop.
pub fn push_compile_context(what: &str) {
    change(|saying| saying.compiling.push(what.into()));
}

/// This thread no longer compiles what was pushed last. With nothing pushed it does nothing.
pub fn pop_compile_context() {
    change(|saying| drop(saying.compiling.pop()));
}

/// What this thread says now. A thread that is ending says nothing more, but still frees.
#[inline]
pub(crate) fn current() -> Option<Arc<Note>> {
    if !SPEAKS.get() {
        return None;
    }
    SAYING.try_with(|saying| saying.borrow().note.clone()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_says_what_it_was_told_last() {
        assert_eq!(current(), None);
        push_compile_context("outer");
        push_compile_context("inner");
        set_user_metadata("step 1");
        let note = current().unwrap();
        assert_eq!(note.compile_context.as_deref(), Some("inner"));
        assert_eq!((&*note.user_metadata, user_metadata().as_str()), ("step 1", "step 1"));
        assert!(Arc::ptr_eq(&note, &current().unwrap()));
        std::thread::spawn(|| assert_eq!(current(), None)).join().unwrap();
        pop_compile_context();
        assert_eq!(current().unwrap().compile_context.as_deref(), Some("outer"));
        pop_compile_context();
        pop_compile_context();
        set_user_metadata("");
        assert_eq!(current(), None);
    }
}
