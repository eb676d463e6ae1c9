//! Scenes of snapshots: the memory as a snapshot has it at its end, with no replay.

use std::collections::HashMap;

use larder_core::Stats;
use larder_core::device::MemoryInfo;
use larder_core::heap::State;
use larder_core::heap::states::{BlockState, SegmentState};
use larder_core::types::{Addr, PoolId, PoolKind, Span, StreamId};
use larder_snapshot::{BlockInfo, BlockState as Taken, SegmentInfo, Snapshot};

use super::Scene;
use crate::recording::Origin;
use crate::workload::Workload;

impl Scene {
    /// The memory of a device when the snapshot was taken, and a workload without operations whose
    /// allocations are those that were live then.
    pub fn of_snapshot(snapshot: &Snapshot, device: u32) -> (Scene, Workload) {
        let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
        let segments: Vec<SegmentState> = segments.map(segment).collect();
        let (mut live, mut origins, mut stats) = (HashMap::new(), Vec::new(), Stats::default());
        for segment in &segments {
            stats.reserved_bytes.all.current += segment.backed_bytes as i64;
            for block in &segment.blocks {
                let bytes = block.span.size_bytes as i64;
                if block.state == State::Live {
                    live.insert(block.span.addr, origins.len() as u64);
                    origins.push(Origin::Before(block.span.addr.0));
                    stats.allocated_bytes.all.current += bytes;
                }
                if matches!(block.state, State::Live | State::Waiting) {
                    stats.active_bytes.all.current += bytes;
                }
            }
        }
        let born = (0..origins.len() as u64).map(|id| (id, 0)).collect();
        let unknown = MemoryInfo { free_bytes: 0, total_bytes: 0 };
        let scene = Scene { index: 0, segments, live, born, stats, device: unknown };
        (scene, Workload { origins, ..Workload::default() })
    }
}

fn segment(info: &SegmentInfo) -> SegmentState {
    let pool = PoolId(info.pool_id.0, info.pool_id.1);
    SegmentState {
        span: Span::new(Addr(info.addr), info.size_bytes),
        stream: StreamId(info.stream),
        kind: if info.is_small { PoolKind::Small } else { PoolKind::Large },
        pool: (pool != PoolId::NONE).then_some(pool),
        expandable: info.is_expandable,
        view: false,
        asleep: false,
        backed_bytes: info.size_bytes,
        blocks: info.blocks.iter().map(block).collect(),
    }
}

fn block(info: &BlockInfo) -> BlockState {
    BlockState {
        span: Span::new(Addr(info.addr), info.size_bytes),
        state: match info.state {
            Taken::Allocated => State::Live,
            Taken::PendingFree => State::Waiting,
            Taken::Inactive => State::Free,
        },
        requested_bytes: info.requested_bytes,
    }
}
