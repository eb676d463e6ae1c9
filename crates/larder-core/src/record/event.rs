//! Events: what history remembers of a record, and which of them it is asked to remember.

use std::fmt;
use std::str::FromStr;

use crate::record::context::Context;
use crate::types::{DeviceIndex, PoolId, StreamId};

/// What happened, under PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// The block became free: at once, or when the streams that used it were done.
    FreeCompleted,
    /// A segment came from the device.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request could not be met.
    OutOfMemory,
    /// The program said something about a live block.
    Annotate,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 10] = [
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

    /// The name that PyTorch gives it.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::OutOfMemory => "oom",
            Action::Annotate => "annotate",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no action's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownAction(pub String);

impl fmt::Display for UnknownAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
        write!(f, "there is no action '{}'; there are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownAction {}

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(name: &str) -> Result<Action, UnknownAction> {
        let found = Action::ALL.into_iter().find(|action| action.name() == name);
        found.ok_or_else(|| UnknownAction(name.to_owned()))
    }
}

/// A set of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(u16);

impl Actions {
    /// Whether the action is one of them.
    pub const fn has(self, action: Action) -> bool {
        self.0 & 1 << action as u16 != 0
    }
}

impl FromIterator<Action> for Actions {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> Actions {
        Actions(actions.into_iter().fold(0, |set, action| set | 1 << action as u16))
    }
}

/// For what contexts are gathered. Each level takes in what the one before it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For nothing.
    #[default]
    Never,
    /// For blocks, as long as they are live.
    State,
    /// For what is allocated, in the trace.
    Alloc,
    /// For what is freed too.
    All,
}

/// A name that is no level's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownLevel(pub String);

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no level '{}'; there are never, state, alloc, all", self.0)
    }
}

impl std::error::Error for UnknownLevel {}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Level, UnknownLevel> {
        match name {
            "never" => Ok(Level::Never),
            "state" => Ok(Level::State),
            "alloc" => Ok(Level::Alloc),
            "all" => Ok(Level::All),
            _ => Err(UnknownLevel(name.to_owned())),
        }
    }
}

/// One event, as a tracker is told of it.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// What happened.
    pub action: Action,
    /// Where.
    pub device: DeviceIndex,
    /// The first address; of an out-of-memory event, the free bytes of the device instead.
    pub addr: u64,
    /// How many bytes: of a block, as many as the program asked for; of a snapshot, the bytes in
    /// active blocks.
    pub size_bytes: u64,
    /// The stream.
    pub stream: StreamId,
    /// The private pool, or none.
    pub pool: PoolId,
    /// When, by the clock of the history.
    pub time_ns: u64,
    /// What the context hook returned, where the level asks for it.
    pub context: Option<&'a dyn Context>,
    /// What was being compiled, if anything was.
    pub compile_context: Option<&'a str>,
    /// What the program had set as its remark; of an annotation, what it said about the block.
    pub user_metadata: &'a str,
    /// What the allocator says of it: which unusual call it was part of; mostly nothing.
    pub internal_metadata: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_known_by_their_names() {
        for action in Action::ALL {
            assert_eq!(action.name().parse(), Ok(action));
        }
        let error = "frob".parse::<Action>().unwrap_err().to_string();
        assert!(error.starts_with("there is no action 'frob'; there are alloc, free_requested,"));
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        let set: Actions = [Action::Alloc, Action::OutOfMemory].into_iter().collect();
        let has: Vec<_> = Action::ALL.into_iter().filter(|&action| set.has(action)).collect();
        assert_eq!(has, [Action::Alloc, Action::OutOfMemory]);
    }

    #[test]
    fn levels_are_known_by_their_names_and_in_order() {
        let levels = ["never", "state", "alloc", "all"].map(|name| name.parse::<Level>().unwrap());
        assert!(levels.is_sorted());
        assert!("often".parse::<Level>().unwrap_err().to_string().contains("'often'"));
    }
}
