//! Policies: who decides. One implementation serves them all; a policy is a set of named choices.

use std::fmt;
use std::str::FromStr;

use crate::torch_version::TorchVersion;

/// What decides between free blocks of one size on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TieBreak {
    /// The lower address, as in PyTorch 2.11.
    Address,
    /// The lower of two numbers that are drawn one after the other, for each block that is made, as
    /// in PyTorch 2.12: also for the part that is cut off for a request, while the rest keeps the
    /// number of the whole; what is merged has the number of the block that was freed.
    BlockNumber,
    /// The segment that was made first, and within it the lower address, as since PyTorch 2.13.
    /// Processes that make the same calls get the same blocks, wherever their devices put the
    /// segments.
    SegmentNumber,
}

/// What counts as a graph capture: inside one frees of blocks that other streams used are put off,
/// events are not asked for, and nothing is given back to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureRule {
    /// Any open scope, though it may be a plain memory pool's, as in PyTorch 2.11 and 2.12.
    OpenScope,
    /// A capture was marked and is not over, and the stream on which the calling thread works is
    /// captured, as since PyTorch 2.13.
    Marked,
    /// Whatever the device says of the stream at hand.
    OwnStream,
}

/// When blocks come back whose free was put off by a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReclaimRule {
    /// With the next malloc that is not captured, as in PyTorch 2.11.
    NextMalloc,
    /// Those of a scope's own pool when it is closed, if the setting
    /// `graph_capture_record_stream_reuse` is on, as since PyTorch 2.12; the others with the next
    /// malloc that is not captured.
    PoolWithReuse,
    /// All of them when a scope is closed, or a marked capture is over.
    ScopeEnd,
}

/// What a policy is called that is told by a recording.
const TORCH: &str = "torch";

/// The choices in which policies differ. Everything else is the same for all of them.
///
/// `torch_2_11` decides exactly as PyTorch 2.11.0 does, its oddities included, and so do
/// `torch_2_12` to `torch_2_15` as the versions that they are named after. `larder` mends what is a
/// clear gain; each field says what is mended and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own; any mixture is legal.
pub struct Policy {
    /// What the policy is called on the command line.
    pub name: &'static str,
    /// The PyTorch whose decisions it copies; none if it is one of Larder's own. What is unknown to
    /// that version is refused in its settings.
    pub torch: Option<TorchVersion>,
    /// What decides between free blocks of one size.
    pub tie_break: TieBreak,
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
    /// A memory fraction is rounded to the nearest byte, as since PyTorch 2.13; before, it is cut
    /// off.
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
    /// What counts as a graph capture.
    pub capture: CaptureRule,
    /// When blocks come back whose free was put off by a capture.
    pub reclaim: ReclaimRule,
    /// A pool's mark that its blocks are not split goes with the pool, as since PyTorch 2.14.
    /// Before, a later pool of the same name has it too.
    pub no_split_goes_with_pool: bool,
    /// A request that is larger than all addresses of an expandable segment gets no pages, as since
    /// PyTorch 2.15. Before, pages are mapped for it until the segment, or more likely the device,
    /// is full.
    pub no_pages_beyond_segment: bool,
    /// The context in which a segment was made stays with the segment. PyTorch keeps it with a
    /// block, and loses it when that block is split off or merged.
    pub segment_context_stays: bool,
    /// A snapshot of one pool shows all of its memory. PyTorch shows an expandable segment only up
    /// to its first hole.
    pub pool_snapshot_is_whole: bool,
    /// A private pool that nobody uses is forgotten when its memory is gone. PyTorch counts the
    /// requests that expandable segments grew for against the ranges that it unmaps, and keeps the
    /// name of a pool as long as they differ, which shows in the order in which it empties others.
    pub released_pools_go: bool,
    /// A small block that is given back is not merged at once: as long as the program takes the
    /// fast path alone the next request of its size gets it as it is, which is fast, and costs a
    /// few MiB in small segments. PyTorch merges at once, and splits again; tight defers by place
    /// instead, whatever this says.
    pub merges_late: bool,
    /// Where nobody gives settings, segments are expandable: a program then holds little more than
    /// what it uses. PyTorch's are not, unless it is told so.
    pub expandable_by_default: bool,
    /// Memory is held in pages that can be shown at several addresses, so that what is free in
    /// pieces serves a request that needs one. Blocks of all sizes share it, and a program that
    /// repeats itself gets its blocks where they lay the last time.
    pub tight: bool,
    /// A plain segment is as large as the request that it is made for, in whole pages of the
    /// host's, and every rest of a block is worth keeping. PyTorch's segments have 2 or 20 MiB or
    /// multiples of 2 MiB, which saves calls of a GPU's driver; to pin memory of the host costs by
    /// the byte, so that there what is asked for is what should be taken.
    pub exact_segments: bool,
}

impl Policy {
    /// Decides exactly as PyTorch 2.11.0 does.
    pub const fn torch_2_11() -> Policy {
        Policy {
            name: "torch-2.11",
            torch: Some(TorchVersion::V2_11),
            tie_break: TieBreak::Address,
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
            capture: CaptureRule::OpenScope,
            reclaim: ReclaimRule::NextMalloc,
            no_split_goes_with_pool: false,
            no_pages_beyond_segment: false,
            segment_context_stays: false,
            pool_snapshot_is_whole: false,
            released_pools_go: false,
            merges_late: false,
            expandable_by_default: false,
            tight: false,
            exact_segments: false,
        }
    }

    /// Decides exactly as PyTorch 2.12 does, 2.12.0 and 2.12.1 alike.
    pub const fn torch_2_12() -> Policy {
        Policy {
            name: "torch-2.12",
            torch: Some(TorchVersion::V2_12),
            tie_break: TieBreak::BlockNumber,
            reclaim: ReclaimRule::PoolWithReuse,
            ..Policy::torch_2_11()
        }
    }

    /// Decides exactly as PyTorch 2.13.0 does.
    pub const fn torch_2_13() -> Policy {
        Policy {
            name: "torch-2.13",
            torch: Some(TorchVersion::V2_13),
            tie_break: TieBreak::SegmentNumber,
            cap_rounds_to_nearest: true,
            capture: CaptureRule::Marked,
            ..Policy::torch_2_12()
        }
    }

    /// Decides exactly as PyTorch 2.14 does, 2.14.0 and 2.14.1 alike.
    pub const fn torch_2_14() -> Policy {
        Policy {
            name: "torch-2.14",
            torch: Some(TorchVersion::V2_14),
            no_split_goes_with_pool: true,
            ..Policy::torch_2_13()
        }
    }

    /// Decides exactly as PyTorch 2.15.0 does.
    pub const fn torch_2_15() -> Policy {
        Policy {
            name: "torch-2.15",
            torch: Some(TorchVersion::V2_15),
            no_pages_beyond_segment: true,
            ..Policy::torch_2_14()
        }
    }

    /// The policy that decides as this PyTorch does.
    pub const fn of_torch(version: TorchVersion) -> Policy {
        match version {
            TorchVersion::V2_11 => Policy::torch_2_11(),
            TorchVersion::V2_12 => Policy::torch_2_12(),
            TorchVersion::V2_13 => Policy::torch_2_13(),
            TorchVersion::V2_14 => Policy::torch_2_14(),
            TorchVersion::V2_15 => Policy::torch_2_15(),
        }
    }

    /// The default: as PyTorch, with the differences that the fields name.
    pub const fn larder() -> Policy {
        Policy {
            name: "larder",
            torch: None,
            tie_break: TieBreak::Address,
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
            capture: CaptureRule::OwnStream,
            reclaim: ReclaimRule::ScopeEnd,
            no_split_goes_with_pool: true,
            no_pages_beyond_segment: true,
            segment_context_stays: true,
            pool_snapshot_is_whole: true,
            released_pools_go: true,
            merges_late: true,
            expandable_by_default: true,
            tight: false,
            exact_segments: false,
        }
    }

    /// As `larder`, and holds hardly more than what is in use. It needs a device with virtual
    /// memory.
    pub const fn tight() -> Policy {
        Policy { name: "tight", tight: true, merges_late: false, ..Policy::larder() }
    }

    /// As `larder`, for pinned memory of the host: what is asked for is what is taken. It goes with
    /// a kind of memory, and is none that a program chooses by name.
    pub const fn pinned() -> Policy {
        Policy {
            name: "pinned",
            exact_segments: true,
            expandable_by_default: false,
            ..Policy::larder()
        }
    }

    /// Decides as the PyTorch that made a recording, by [`Policy::for_recording`]; as PyTorch 2.11
    /// where nobody tells which one that was.
    pub const fn torch() -> Policy {
        Policy { name: TORCH, ..Policy::torch_2_11() }
    }

    /// The policy for a recording that was made by this PyTorch, if that is known.
    #[must_use]
    pub fn for_recording(self, made_by: Option<TorchVersion>) -> Policy {
        match made_by {
            _ if self.name != TORCH => self,
            Some(version) => Policy::of_torch(version),
            None => Policy::torch_2_11(),
        }
    }

    /// All policies that have a name of their own.
    pub const fn all() -> [Policy; 7] {
        [
            Policy::larder(),
            Policy::tight(),
            Policy::torch_2_11(),
            Policy::torch_2_12(),
            Policy::torch_2_13(),
            Policy::torch_2_14(),
            Policy::torch_2_15(),
        ]
    }

    /// Whether it is a PyTorch's, and none of Larder's own.
    pub fn is_stock(&self) -> bool {
        self.torch.is_some()
    }

    /// Whether a capture is told by the stream at hand alone.
    pub fn capture_is_by_stream(&self) -> bool {
        self.capture == CaptureRule::OwnStream
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
        let names = Policy::all().map(|policy| policy.name);
        let (names, unknown) = (names.join(", "), &self.0);
        write!(
            f,
            "there is no policy '{unknown}'; there are {names}, and {TORCH} for that of the \
             PyTorch in use or of a recording"
        )
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        let mut policies = Policy::all().into_iter().chain([Policy::torch()]);
        policies.find(|policy| policy.name == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
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
        for version in TorchVersion::ALL {
            let policy = Policy::of_torch(version);
            assert_eq!(policy.name, format!("torch-{version}"));
            assert_eq!((policy.torch, policy.name.parse()), (Some(version), Ok(policy.clone())));
        }
        let told: Policy = "torch".parse().unwrap();
        assert_eq!(told.clone().for_recording(None), Policy::torch_2_11());
        assert_eq!(told.for_recording(Some(TorchVersion::V2_13)), Policy::torch_2_13());
        let own = Policy::larder().for_recording(Some(TorchVersion::V2_13));
        assert_eq!(own, Policy::larder());
        let unknown = "torch-1.0".parse::<Policy>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no policy 'torch-1.0'; there are larder, tight, torch-2.11, torch-2.12, \
             torch-2.13, torch-2.14, torch-2.15, and torch for that of the PyTorch in use or of a \
             recording"
        );
    }
}
