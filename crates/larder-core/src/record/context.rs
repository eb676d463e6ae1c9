//! Contexts: what a caller's hook says about the moment of an event. A Rust backtrace, a Python
//! stack, a handle from C: the core keeps it, compares it, and lets go of it in time.

use std::any::Any;
use std::backtrace::Backtrace;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What a hook returned. It is dropped when no block and no entry names it any more, and never
/// under the allocator's lock: letting go of a Python object, say, needs a lock of its own.
pub trait Context: Any + Send + Sync {
    /// Equal contexts have equal fingerprints.
    fn fingerprint(&self) -> u64;

    /// Whether the other one says the same, so that one of the two is enough.
    fn is_same(&self, other: &dyn Context) -> bool;

    /// The call stack that it stands for, innermost frame first.
    fn frames(&self) -> Vec<Frame>;
}

/// Gathers a context; none if there is nothing to say. It is called before the allocator's lock is
/// taken, so it may take locks of its own, but it must not call the allocator.
pub type ContextHook = Arc<dyn Fn() -> Option<Arc<dyn Context>> + Send + Sync>;

/// One frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// The file.
    pub filename: String,
    /// The line in the file.
    pub line: u32,
}

/// A call stack as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack(pub Vec<Frame>);

impl Context for Stack {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        (other as &dyn Any).downcast_ref::<Stack>() == Some(self)
    }

    fn frames(&self) -> Vec<Frame> {
        self.0.clone()
    }
}

/// The Rust stack of the caller. Its symbols are looked up only when somebody asks for the frames;
/// two captures are never taken for the same.
pub struct RustStack(Backtrace);

impl RustStack {
    /// The stack right here.
    pub fn capture() -> RustStack {
        RustStack(Backtrace::force_capture())
    }

    /// A hook that captures the caller's stack.
    pub fn hook() -> ContextHook {
        Arc::new(|| Some(Arc::new(RustStack::capture())))
    }
}

impl Context for RustStack {
    fn fingerprint(&self) -> u64 {
        (&raw const *self).addr() as u64
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        (other as &dyn Any).downcast_ref().is_some_and(|other| std::ptr::eq(self, other))
    }

    fn frames(&self) -> Vec<Frame> {
        frames_of_text(&self.0.to_string())
    }
}

/// Reads a backtrace as the standard library prints it: a line `N: function`, and below it a line
/// `at FILE:LINE:COLUMN` where that is known.
fn frames_of_text(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            let mut parts = place.rsplitn(3, ':');
            let (_, line, file) = (parts.next(), parts.next(), parts.next());
            if let (Some(frame), Some(line), Some(file)) = (frames.last_mut(), line, file) {
                file.clone_into(&mut frame.filename);
                frame.line = line.parse().unwrap_or(0);
            }
        } else if let Some((_, name)) = line.split_once(": ") {
            frames.push(Frame { name: name.to_owned(), ..Frame::default() });
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_backtrace_is_read() {
        let text = "   0: core::ops::function\n             at /rustc/src/ops.rs:250:5\n   \
                    1: main\n             at ./src/main.rs:7:13\n   2: __libc_start\n";
        let frames = frames_of_text(text);
        let frame = |name: &str, filename: &str, line| Frame {
            name: name.to_owned(),
            filename: filename.to_owned(),
            line,
        };
        assert_eq!(frames[0], frame("core::ops::function", "/rustc/src/ops.rs", 250));
        assert_eq!(frames[1], frame("main", "./src/main.rs", 7));
        assert_eq!(frames[2], frame("__libc_start", "", 0));
    }

    #[test]
    fn the_stack_of_a_test_names_the_test() {
        let frames = RustStack::capture().frames();
        let name = "the_stack_of_a_test_names_the_test";
        assert!(frames.iter().any(|frame| frame.name.contains(name)), "{frames:?}");
    }

    #[test]
    fn stacks_are_the_same_by_what_they_say() {
        let stack = |line| Stack(vec![Frame { line, ..Frame::default() }]);
        assert!(stack(1).is_same(&stack(1)) && !stack(1).is_same(&stack(2)));
        assert_eq!(stack(1).fingerprint(), stack(1).fingerprint());
        let (one, other) = (RustStack::capture(), RustStack::capture());
        assert!(one.is_same(&one) && !one.is_same(&other) && !one.is_same(&stack(1)));
    }
}
