//! Timeline: all that happened in a replay, as spans of time: every allocation, every stretch of
//! memory that was held, and how much there was of each in between.
//!
//! Time is counted in events, which are the entries of the allocator's history: event 0 is the
//! first, and the state at a moment is that after its event. What shows a run to people is made
//! from this.

mod follow;
mod gaps;
mod origin;
mod series;

use larder_core::types::{PoolId, StreamId};

use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::watch::Watch;
use crate::workload::Workload;

pub use origin::{Frame, Origin, Origins};
pub use series::{Bucket, Levels, Peak, Peaks, Series};

use follow::Follower;

/// The end of what has none.
pub const NEVER: u32 = u32::MAX;

/// What happened in a replay.
#[derive(Debug)]
pub struct Timeline {
    /// How many events there were.
    pub events: u32,
    /// The allocations that were met, in their order.
    pub allocations: Vec<Allocation>,
    /// The stretches of memory that were held of the device, in the order in which they came.
    pub stretches: Vec<Stretch>,
    /// The pools on the streams, which allocations and stretches name by number.
    pub lanes: Vec<Lane>,
    /// How much was allocated, active, reserved and free.
    pub series: Series,
    /// When the device was asked for more, although some was free or because none was.
    pub growths: Vec<Growth>,
    /// The requests that failed.
    pub failures: Vec<Growth>,
    /// The statistics and all else that came of it.
    pub outcome: Outcome,
}

/// One pool on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The stream.
    pub stream: StreamId,
    /// The private pool, or none.
    pub pool: PoolId,
}

/// An allocation, from the event that handed it out to the one that made its block free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its ID in the script.
    pub id: u64,
    /// The event at which it was handed out.
    pub begin: u32,
    /// The event at which the program gave it back, or `NEVER`.
    pub freed: u32,
    /// The event at which its block became free, or `NEVER`; between the two it waits for a stream.
    pub end: u32,
    /// The number of its lane.
    pub lane: u32,
    /// Its first address.
    pub addr: u64,
    /// How many bytes its block has.
    pub size_bytes: u64,
    /// How many bytes the program asked for.
    pub asked_bytes: u64,
}

impl Allocation {
    /// How many events it lasts; one that never ends lasts as long as there are events.
    pub fn lasts(&self, events: u32) -> u32 {
        self.end.min(events).saturating_sub(self.begin)
    }
}

/// Memory side by side that was held from one event to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The event since which it was held.
    pub begin: u32,
    /// The event at which it went back to the device, or `NEVER`.
    pub end: u32,
    /// The number of its lane.
    pub lane: u32,
    /// Whether it is mapped into an expandable segment.
    pub expandable: bool,
    /// Its first address.
    pub addr: u64,
    /// How many bytes it has.
    pub size_bytes: u64,
}

/// A request that no free run could serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// The event: memory came from the device, or the request failed.
    pub event: u32,
    /// The number of the lane of the request.
    pub lane: u32,
    /// What was asked for, as the block has it; of a failure as the program asked.
    pub asked_bytes: u64,
    /// What was free all the same, in whatever lane.
    pub free_bytes: u64,
    /// The largest free run among it.
    pub largest_bytes: u64,
    /// In how many runs it lay.
    pub runs: u32,
}

impl Timeline {
    /// Replays a workload and keeps all that happens.
    pub fn of(
        workload: &Workload,
        setup: &Setup,
        watch: &dyn Watch,
    ) -> Result<Timeline, ReplayError> {
        let replay = Replay::new(workload, setup);
        let mut follower = Follower::new(replay.allocator(), &workload.ops, watch);
        let outcome = replay.run(&workload.ops, &mut follower)?;
        Ok(follower.finish(outcome))
    }
}

#[cfg(test)]
mod tests {
    use larder_core::Policy;
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;
    use crate::watch::Unwatched;

    fn timeline(script: &str, policy: Policy, conf: &str) -> Timeline {
        let ops = Script::parse(script).expect("a script");
        let workload = Workload { ops, ..Workload::default() };
        let config = larder_core::config::Config::parse(conf).expect("settings");
        let setup = Setup { policy, config, ..Setup::default() };
        Timeline::of(&workload, &setup, &Unwatched).expect("a run")
    }

    #[test]
    fn an_allocation_lasts_from_its_event_to_its_last() {
        let script = "alloc 1 3MiB 0\nalloc 2 1MiB 0\nrecord 1 7\nfree 1\nsync 7\nalloc 3 3MiB 0\n";
        let found = timeline(script, Policy::torch_2_11(), "");
        let [first, second, third] = found.allocations.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.begin, first.size_bytes, first.asked_bytes), (1, 3 * MIB, 3 * MIB));
        assert!(first.freed < first.end && first.end < third.begin, "{found:?}");
        assert_eq!((second.freed, second.end), (NEVER, NEVER));
        assert_eq!(first.addr, third.addr, "a block that is free again is handed out again");
    }

    #[test]
    fn the_peaks_are_those_of_the_statistics() {
        for conf in ["", "expandable_segments:True"] {
            for policy in [Policy::torch_2_11(), Policy::default()] {
                let mut script = String::new();
                for id in 0..400 {
                    let size = 1000 + (id * 7919) % 5_000_000;
                    script.push_str(&format!("alloc {id} {size} {}\n", id % 2));
                    if id % 3 == 2 {
                        script.push_str(&format!("free {}\n", id - 2));
                    }
                    if id % 97 == 96 {
                        script.push_str("empty\n");
                    }
                }
                let found = timeline(&script, policy, conf);
                let stats = &found.outcome.stats;
                let peaks = &found.series.peaks;
                let told = [peaks.allocated.0, peaks.active.0, peaks.reserved.0];
                let counted = [&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes];
                assert_eq!(told, counted.map(|bytes| bytes.all.peak as u64), "{conf}");
                let now = found.series.now;
                assert_eq!(now.reserved, stats.reserved_bytes.all.current as u64);
                assert_eq!(now.free, now.reserved - now.active, "{conf}");
            }
        }
    }

    #[test]
    fn what_is_free_and_too_small_is_told_at_a_growth() {
        let script =
            "alloc 1 20MiB 0\nalloc 2 20MiB 0\nalloc 3 1500000 0\nfree 1\nalloc 4 30MiB 0\n";
        let found = timeline(script, Policy::torch_2_11(), "");
        let last = found.growths.last().expect("a growth");
        assert_eq!(last.asked_bytes, 30 * MIB);
        assert_eq!(last.largest_bytes, 20 * MIB);
        assert!(last.free_bytes > 20 * MIB && last.runs == 2, "{last:?}");
    }

    #[test]
    fn unmapping_a_part_leaves_the_rest() {
        let script = "alloc 1 20MiB 0\nalloc 2 20MiB 0\nfree 1\nempty\nfree 2\n";
        let found = timeline(script, Policy::torch_2_11(), "expandable_segments:True");
        let held = |event: u32| {
            let at = found.stretches.iter().filter(|part| part.begin <= event && event < part.end);
            at.map(|part| part.size_bytes).sum::<u64>()
        };
        assert_eq!(held(found.events - 1), 20 * MIB);
        assert_eq!(found.series.now.reserved, 20 * MIB);
    }
}
