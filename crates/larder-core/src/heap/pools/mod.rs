//! Pools: where blocks are looked for. Each pool has a lane for each stream; private pools are set
//! apart for a capture or by a program, and scopes send requests to them.

mod arena;
mod asleep;
pub(super) mod lane;
pub mod lane_state;
mod name_table;
pub(super) mod pool;
pub(crate) mod private;
mod routing;
pub(crate) mod symmetric;

use std::collections::BTreeSet;

use crate::heap::ids::{LaneId, PoolIndex};
use crate::types::StreamId;
use lane::Lane;
use pool::Pool;
use private::Privates;

/// All pools and their lanes.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    list: Vec<Pool>,
    lanes: Vec<Lane>,
    /// Lanes that were removed.
    spare_lanes: BTreeSet<LaneId>,
    /// The lanes of the default pools that were looked up last: a program mostly stays on one
    /// stream.
    recent: [(StreamId, LaneId); 2],
    /// Pools that were removed.
    spare: Vec<PoolIndex>,
    privates: Privates,
    /// The pools of which memory sleeps, each with that in which it does.
    asleep: Vec<(PoolIndex, PoolIndex)>,
    /// Whether the mark that blocks are never split goes when a pool's last use does.
    no_split_goes_with_pool: bool,
    /// Whether the names of released pools go with them.
    released_pools_go: bool,
}
