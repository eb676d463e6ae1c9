//! Words: the keys and values of torch's dictionaries, known by number while reading.

use super::entry::{Action, BlockState};
use crate::pickle::TextId;

/// These texts get their position as their id. The first [`KEY_COUNT`] are keys of records.
pub(super) const WORDS: &[&str] = &[
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "time_us",
    "compile_context",
    "user_metadata",
    "frames",
    "pool_id",
    "name",
    "filename",
    "line",
    "address",
    "requested_size",
    "state",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "active_allocated",
    "active_pending_free",
    "active_awaiting_free",
    "inactive",
];

pub(super) const ACTION: usize = 0;
pub(super) const ADDR: usize = 1;
pub(super) const DEVICE_FREE: usize = 2;
pub(super) const SIZE: usize = 3;
pub(super) const STREAM: usize = 4;
pub(super) const TIME_US: usize = 5;
pub(super) const COMPILE_CONTEXT: usize = 6;
pub(super) const USER_METADATA: usize = 7;
pub(super) const FRAMES: usize = 8;
pub(super) const POOL_ID: usize = 9;
pub(super) const NAME: usize = 10;
pub(super) const FILENAME: usize = 11;
pub(super) const LINE: usize = 12;
pub(super) const ADDRESS: usize = 13;
pub(super) const REQUESTED_SIZE: usize = 14;
pub(super) const STATE: usize = 15;

/// The keys of an entry, of a block and of a frame, each a bit at the place of its word.
pub(super) const ENTRY_KEYS: u32 = (1 << (POOL_ID + 1)) - 1;
pub(super) const BLOCK_KEYS: u32 =
    1 << ADDRESS | 1 << SIZE | 1 << REQUESTED_SIZE | 1 << STATE | 1 << FRAMES;
pub(super) const FRAME_KEYS: u32 = 1 << NAME | 1 << FILENAME | 1 << LINE;

/// How many of the words are keys of records.
pub(super) const KEY_COUNT: usize = 16;

const ACTIONS: [Action; 10] = [
    Action::Alloc,
    Action::FreeRequested,
    Action::FreeCompleted,
    Action::SegmentAlloc,
    Action::SegmentFree,
    Action::SegmentMap,
    Action::SegmentUnmap,
    Action::Snapshot,
    Action::OutOfMemory,
    Action::Annotate,
];

const STATES: [BlockState; 4] =
    [BlockState::Allocated, BlockState::PendingFree, BlockState::PendingFree, BlockState::Inactive];

/// The action of this name. A name that is not known is kept as such.
pub(super) fn action(text: TextId) -> Action {
    let index = (text.0 as usize).checked_sub(KEY_COUNT);
    index.and_then(|index| ACTIONS.get(index)).copied().unwrap_or(Action::Other)
}

/// The action of this name, which need not be one of the words.
pub(super) fn action_named(name: &str) -> Action {
    let at = WORDS.iter().position(|&word| word == name);
    at.map_or(Action::Other, |at| action(TextId(at as u32)))
}

/// The name of an action, if it is a known one.
pub(super) fn action_name(action: Action) -> Option<&'static str> {
    let at = ACTIONS.iter().position(|&known| known == action)?;
    Some(WORDS[KEY_COUNT + at])
}

/// The state of this name.
pub(super) fn state(text: TextId) -> Option<BlockState> {
    let index = (text.0 as usize).checked_sub(KEY_COUNT + ACTIONS.len())?;
    STATES.get(index).copied()
}

/// The name of a state.
pub(super) fn state_name(state: BlockState) -> &'static str {
    let at = STATES.iter().position(|&known| known == state).expect("every state has a name");
    WORDS[KEY_COUNT + ACTIONS.len() + at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_agree() {
        let number = |word| TextId(WORDS.iter().position(|&known| known == word).unwrap() as u32);
        assert_eq!(number("state").0 as usize, STATE);
        assert_eq!(number("pool_id").0 as usize, POOL_ID);
        assert_eq!(number("address").0 as usize, ADDRESS);
        assert_eq!(action(number("alloc")), Action::Alloc);
        assert_eq!(action(number("oom")), Action::OutOfMemory);
        assert_eq!(action(number("size")), Action::Other);
        assert_eq!(action(number("inactive")), Action::Other);
        assert_eq!(action_name(Action::OutOfMemory), Some("oom"));
        assert_eq!(action_name(Action::Other), None);
        assert_eq!(state(number("active_allocated")), Some(BlockState::Allocated));
        assert_eq!(state(number("inactive")), Some(BlockState::Inactive));
        assert_eq!(state(number("oom")), None);
    }
}
