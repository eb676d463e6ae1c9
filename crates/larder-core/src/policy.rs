//! Policies: who decides. One implementation serves them all; a policy is a set of named choices.

use std::fmt;
use std::str::FromStr;

/// The choices in which policies differ. Everything else is the same for all of them.
///
/// `torch_2_11` decides exactly as PyTorch 2.11.0 does, its oddities included. `larder` mends
/// those that are clear gains; each field says what is mended and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own; any mixture is legal.
pub struct Policy {
    /// What the policy is called on the command line.
    pub name: &'static str,
    /// Search the free blocks again after every step that may have brought some back. PyTorch
    /// waits for all events, gives back what it can, and then asks the device only: a block that
    /// fits but cannot be given back is not looked at, and the program runs out of memory.
    pub search_after_recovery: bool,
    /// Garbage collection measures against the device's memory where no cap is set. PyTorch's
    /// threshold does nothing without a cap.
    pub collect_without_cap: bool,
    /// The split limit is for blocks that a device call gave whole. PyTorch applies it to
    /// expandable segments too, where a merged free block soon passes the limit, is never used
    /// again, and the segment grows without bound.
    pub split_limit_spares_expandable: bool,
    /// How a block may be split follows from the segment it lies in. PyTorch decides by the
    /// setting, so that with expandable segments on, ordinary segments are cut into slivers that
    /// keep them from ever being given back.
    pub split_by_segment_kind: bool,
    /// The cap counts the pages that will be mapped. PyTorch checks the request instead and then
    /// maps whole pages, past the cap.
    pub cap_counts_pages: bool,
    /// A memory fraction is rounded to the nearest byte; PyTorch 2.11 cuts it off.
    pub cap_rounds_to_nearest: bool,
    /// An allocation or a segment counted as oversize is uncounted when it goes, whatever the limit
    /// is by then. PyTorch compares with the current limit, and the counts drift when it changes.
    pub oversize_is_remembered: bool,
    /// Making room for an oversize request gives back the smallest block that makes room.
    /// PyTorch gives back all of a stream's oversize blocks, largest first, when the block that
    /// comes first in order happens to be an expandable one.
    pub make_room_skips_expandable: bool,
    /// Emptying the cache gives back the addresses of every expandable segment without pages.
    /// PyTorch looks only at segments it just took pages from, so that addresses reserved for a
    /// request that then failed are never given back.
    pub release_bare_segments: bool,
    /// A request larger than the device, or than the cap, fails at once. PyTorch first waits for
    /// all work and throws the whole cache away for it.
    pub refuse_hopeless: bool,
    /// A graph capture is on where the device says so of the stream at hand. PyTorch 2.11 takes any
    /// open scope for a capture: inside a plain memory pool, frees are put off, events are not asked
    /// for, and nothing is given back to make room. PyTorch 2.13 looks at the stream too.
    pub capture_is_by_stream: bool,
    /// Blocks whose free was put off by a capture come back when its scope is closed, as since
    /// PyTorch 2.12. In PyTorch 2.11 they wait for the next malloc outside of all scopes.
    pub reclaim_at_scope_end: bool,
    /// The context in which a segment was made stays with the segment. PyTorch keeps it with a
    /// block, and loses it when that block is split off or merged.
    pub segment_context_stays: bool,
    /// A snapshot of one pool shows all of its memory. PyTorch shows an expandable segment only up
    /// to its first hole.
    pub pool_snapshot_is_whole: bool,
    /// A private pool that nobody uses is forgotten when its memory is gone. PyTorch counts the requests
    /// that expandable segments grew for against the ranges that it unmaps, and keeps the name of a pool
    /// as long as they differ, which shows in the order in which it empties others.
    pub released_pools_go: bool,
    /// Where nobody gives settings, segments are expandable: a program then holds little more than what it uses.
    /// PyTorch's are not, unless it is told so.
    pub expandable_by_default: bool,
    /// Memory is held in pages that can be shown at several addresses, so that what is free in pieces
    /// serves a request that needs one. Blocks of all sizes share it, and a program that repeats itself
    /// gets its blocks where they lay the last time.
    pub tight: bool,
}

impl Policy {
    /// Decides exactly as PyTorch 2.11.0 does.
    pub const fn torch_2_11() -> Policy {
        Policy {
            name: "torch-2.11",
            search_after_recovery: false,
            collect_without_cap: false,
            split_limit_spares_expandable: false,
            split_by_segment_kind: false,
            cap_counts_pages: false,
            cap_rounds_to_nearest: false,
            oversize_is_remembered: false,
            make_room_skips_expandable: false,
            release_bare_segments: false,
            refuse_hopeless: false,
            capture_is_by_stream: false,
            reclaim_at_scope_end: false,
            segment_context_stays: false,
            pool_snapshot_is_whole: false,
            released_pools_go: false,
            expandable_by_default: false,
            tight: false,
        }
    }

    /// The default: as PyTorch, with the differences that the fields name.
    pub const fn larder() -> Policy {
        Policy {
            name: "larder",
            search_after_recovery: true,
            collect_without_cap: true,
            split_limit_spares_expandable: true,
            split_by_segment_kind: true,
            cap_counts_pages: true,
            cap_rounds_to_nearest: true,
            oversize_is_remembered: true,
            make_room_skips_expandable: true,
            release_bare_segments: true,
            refuse_hopeless: true,
            capture_is_by_stream: true,
            reclaim_at_scope_end: true,
            segment_context_stays: true,
            pool_snapshot_is_whole: true,
            released_pools_go: true,
            expandable_by_default: true,
            tight: false,
        }
    }

    /// As `larder`, and holds hardly more than what is in use. It needs a device with virtual memory.
    pub const fn tight() -> Policy {
        Policy { name: "tight", tight: true, ..Policy::larder() }
    }

    /// All policies that have a name.
    pub const fn all() -> [Policy; 3] {
        [Policy::larder(), Policy::tight(), Policy::torch_2_11()]
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::larder()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three] = Policy::all().map(|policy| policy.name);
        write!(f, "there is no policy '{}'; there are {one}, {two} and {three}", self.0)
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        Policy::all()
            .into_iter()
            .find(|policy| policy.name == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_name() {
        assert_eq!("torch-2.11".parse(), Ok(Policy::torch_2_11()));
        assert_eq!("larder".parse(), Ok(Policy::default()));
        assert_eq!("tight".parse(), Ok(Policy::tight()));
        let unknown = "torch-1.0".parse::<Policy>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no policy 'torch-1.0'; there are larder, tight and torch-2.11"
        );
    }
}
