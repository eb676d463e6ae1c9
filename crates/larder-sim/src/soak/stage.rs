//! Stages: what a block in a snapshot is.

use std::fmt::{self, Write};

use larder_core::heap::snapshot::BlockState;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Unmapped,
    Free,
    Live,
    Waiting,
}

/// Keeps the first letter of what is written to it.
struct Initial(Option<char>);

impl Write for Initial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.or(text.chars().next());
        Ok(())
    }
}

/// What this block is. A snapshot's states have no public name in the core, but they print by the
/// name that they have there, and each has a letter of its own.
pub(super) fn stage(block: &BlockState) -> Stage {
    let mut initial = Initial(None);
    let written = write!(initial, "{:?}", block.state);
    match initial.0 {
        Some('U') => Stage::Unmapped,
        Some('F') => Stage::Free,
        Some('L') => Stage::Live,
        Some('W') => Stage::Waiting,
        other => unreachable!("a state that starts with {other:?} ({written:?})"),
    }
}
