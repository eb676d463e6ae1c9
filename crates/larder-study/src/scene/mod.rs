//! Scenes: all memory of a program as it stands at one moment of a replay, and where it came from.

mod pins;
mod provenance;
mod shares;
mod taken;

use std::collections::HashMap;

use larder_core::device::MemoryInfo;
use larder_core::heap::State;
use larder_core::heap::lane_state::lane_states;
use larder_core::heap::states::{BlockState, SegmentState};
use larder_core::types::{Addr, PoolId, PoolKind};
use larder_core::{OutOfMemory, Stats};
use larder_sim::script::{Op, Route};

use crate::replay::{Replay, ReplayError, Setup};
use crate::workload::Workload;

pub use larder_core::heap::lane_state::LaneState as Lane;
pub use pins::{Hold, holds};
pub use provenance::{Holder, Provenance, Since, holders};
pub use shares::{Share, Shares, shares};

/// All memory at one moment.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The operation behind which this is, from 0.
    pub index: usize,
    /// Every segment, by address.
    pub segments: Vec<SegmentState>,
    /// The names of the live allocations, by address.
    pub live: HashMap<Addr, u64>,
    /// At which operation each of them was asked for.
    pub born: HashMap<u64, usize>,
    /// The statistics.
    pub stats: Stats,
    /// What the device has, and has free.
    pub device: MemoryInfo,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The numbers of it.
    pub report: OutOfMemory,
    /// Its name in the operations.
    pub id: u64,
    /// The stream that it was for.
    pub stream: u32,
    /// The private pool that it was routed to, if to any.
    pub pool: Option<PoolId>,
    /// Where it looks for memory.
    pub kind: PoolKind,
    /// How many had failed before it.
    pub earlier: u64,
}

impl Scene {
    /// The memory when the failure of this number happened, counted from 1; none if there are not
    /// so many.
    pub fn of_failure(
        workload: &Workload,
        setup: &Setup,
        number: u64,
    ) -> Result<Option<(Scene, Failure)>, ReplayError> {
        let mut replay = Replay::new(workload, setup);
        let mut earlier = 0;
        for (index, &op) in workload.ops.iter().enumerate() {
            let (Some(report), Op::Alloc { id, stream, .. }) = (replay.advance(index, op)?, op)
            else {
                continue;
            };
            earlier += 1;
            if earlier < number {
                continue;
            }
            let scene = Scene::of(&replay, &workload.ops, index);
            let kind = if report.rounded_bytes <= larder_core::heap::size::SMALL_MAX_BYTES {
                PoolKind::Small
            } else {
                PoolKind::Large
            };
            let pool = routed_to(&workload.ops[..index], stream);
            let failure = Failure { report: *report, id, stream, pool, kind, earlier: earlier - 1 };
            return Ok(Some((scene, failure)));
        }
        Ok(None)
    }

    /// The memory behind the operation of this number, from 0, or behind the last.
    pub fn behind(workload: &Workload, setup: &Setup, index: usize) -> Result<Scene, ReplayError> {
        let mut replay = Replay::new(workload, setup);
        let last = index.min(workload.ops.len().saturating_sub(1));
        for (index, &op) in workload.ops.iter().enumerate().take(last + 1) {
            replay.advance(index, op)?;
        }
        Ok(Scene::of(&replay, &workload.ops, last))
    }

    /// The memory when most was in use.
    pub fn of_peak(workload: &Workload, setup: &Setup) -> Result<Scene, ReplayError> {
        let mut replay = Replay::new(workload, setup);
        let (mut peak_bytes, mut peak_index) = (-1, 0);
        for (index, &op) in workload.ops.iter().enumerate() {
            replay.advance(index, op)?;
            if !matches!(op, Op::Alloc { .. }) {
                continue;
            }
            let active_bytes = replay.allocator().stats().active_bytes.all.current;
            if active_bytes > peak_bytes {
                (peak_bytes, peak_index) = (active_bytes, index);
            }
        }
        Scene::behind(workload, setup, peak_index)
    }

    fn of(replay: &Replay, ops: &[Op], index: usize) -> Scene {
        let live: HashMap<Addr, u64> =
            replay.live().iter().map(|(&id, &addr)| (addr, id)).collect();
        let asked = ops[..=index].iter().enumerate().filter_map(|(index, op)| match op {
            Op::Alloc { id, .. } if replay.live().contains_key(id) => Some((*id, index)),
            _ => None,
        });
        let allocator = replay.allocator();
        let unknown = MemoryInfo { free_bytes: 0, total_bytes: 0 };
        Scene {
            index,
            segments: allocator.snapshot(),
            live,
            born: asked.collect(),
            stats: allocator.stats(),
            device: allocator.memory_info().unwrap_or(unknown),
        }
    }

    /// The segments that have memory of their own.
    pub fn homes(&self) -> impl Iterator<Item = &SegmentState> {
        self.segments.iter().filter(|segment| !segment.view)
    }

    /// Bytes that live allocations take beyond what was asked for.
    pub fn rounding_bytes(&self) -> u64 {
        let live =
            self.segments.iter().flat_map(|segment| &segment.blocks).filter(|block| is_live(block));
        live.map(|block| block.span.size_bytes.saturating_sub(block.requested_bytes)).sum()
    }
}

/// What each stream has in each pool.
pub fn lanes(scene: &Scene) -> Vec<Lane> {
    lane_states(&scene.segments)
}

fn is_live(block: &BlockState) -> bool {
    block.state == State::Live
}

/// Which private pool an allocation on this stream goes to behind these operations: that of the
/// newest open scope that takes it.
fn routed_to(ops: &[Op], stream: u32) -> Option<PoolId> {
    let mut scopes: Vec<(u32, Route)> = Vec::new();
    for op in ops {
        match *op {
            Op::PoolBegin { pool, route } => scopes.push((pool, route)),
            Op::PoolEnd { pool } => {
                if let Some(at) = scopes.iter().rposition(|&(open, _)| open == pool) {
                    scopes.remove(at);
                }
            }
            _ => {}
        }
    }
    let takes = |route: Route| match route {
        Route::All => true,
        Route::Stream(of) | Route::Capture(of) => of == stream,
    };
    let newest = scopes.into_iter().rev().find(|&(_, route)| takes(route));
    newest.map(|(pool, _)| PoolId(0, u64::from(pool)))
}
