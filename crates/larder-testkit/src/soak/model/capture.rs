//! What graph captures change for the model.

use std::collections::BTreeSet;

use larder_core::device::Device;
use larder_core::policy::ReclaimRule;
use larder_core::types::{Addr, CaptureId, NodeId, StreamId};

use super::segment::State;
use super::{Model, NO_FAULTS, Spot};
use larder_sim::script::Route;

/// A block that was freed under a capture.
#[derive(Clone, Debug)]
pub(super) struct PutOff {
    pub(super) addr: u64,
    /// The ends of its last uses; none if it waits for the end of the capture.
    pub(super) markers: Vec<NodeId>,
}

impl Model {
    /// Whether no program could go on from here.
    pub(in crate::soak) fn breaks_capture(&self) -> bool {
        self.breaks_capture
    }

    pub(super) fn capture_of(&self, stream: StreamId) -> Option<CaptureId> {
        self.device.capture_of(stream).expect(NO_FAULTS)
    }

    /// Whether what is done for the stream is done in a capture.
    pub(super) fn is_captured(&self, stream: StreamId) -> bool {
        let by_stream = self.policy.capture_is_by_stream();
        !self.scopes.is_empty() && (!by_stream || self.capture_of(stream).is_some())
    }

    /// Whether the stream is captured, as far as anybody looks.
    pub(super) fn is_under_capture(&self, stream: StreamId) -> bool {
        !self.scopes.is_empty() && self.capture_of(stream).is_some()
    }

    /// Whether any stream is captured that a scope names or that a call named since one is open.
    pub(super) fn is_any_captured(&self) -> bool {
        let by_stream = self.policy.capture_is_by_stream();
        let named = |scope: &super::Scope| match scope.route {
            Route::All => false,
            Route::Stream(stream) | Route::Capture(stream) => {
                self.capture_of(StreamId(u64::from(stream))).is_some()
            }
        };
        let mut asked = self.streams.iter();
        !self.scopes.is_empty()
            && (!by_stream
                || self.scopes.iter().any(named)
                || asked.any(|&stream| self.capture_of(stream).is_some()))
    }

    /// A call names the stream.
    pub(super) fn note_named(&mut self, stream: StreamId) {
        if !self.scopes.is_empty() {
            self.streams.insert(stream);
        }
    }

    /// Notes that a live block is used on another stream.
    pub(in crate::soak) fn record_stream(&mut self, addr: Addr, stream: StreamId) {
        self.settle();
        let captured = self.is_captured(stream);
        self.note_named(stream);
        let careful = self.policy.capture_is_by_stream();
        let (at, block_at) = self.find(addr.0);
        let segment = &mut self.segments[at];
        if segment.stream == stream {
            return;
        }
        let block = &mut segment.blocks[block_at];
        let is_new = !block.uses.contains(&stream);
        if captured && (is_new || !careful) {
            block.captured.push(stream);
        }
        if !captured && careful {
            block.captured.retain(|&other| other != stream);
        }
        if is_new {
            block.uses.push(stream);
        }
    }

    fn streams_of(&self, (at, block_at): Spot) -> Vec<StreamId> {
        let segment = &self.segments[at];
        let mut streams = vec![segment.stream];
        streams.extend(&segment.blocks[block_at].uses);
        streams
    }

    fn running_uses(&self, (at, block_at): Spot) -> Vec<StreamId> {
        let block = &self.segments[at].blocks[block_at];
        block.uses.iter().copied().filter(|stream| !block.captured.contains(stream)).collect()
    }

    /// Until which nodes the free of a block is put off; none if it is not.
    pub(super) fn plan_deferral(&self, spot: Spot) -> Option<Vec<NodeId>> {
        let streams = self.streams_of(spot);
        if streams.len() == 1 || self.scopes.is_empty() {
            return None;
        }
        let captures: BTreeSet<_> = streams.iter().map(|&s| self.capture_of(s)).collect();
        let by_stream = self.policy.capture_is_by_stream();
        if by_stream && captures.iter().all(Option::is_none) {
            return None;
        }
        let one_capture = captures.len() == 1 && !captures.contains(&None);
        let runs = by_stream && !self.running_uses(spot).is_empty();
        let mut markers = BTreeSet::new();
        if self.config.capture_reuse && one_capture && !runs {
            for stream in streams {
                markers.extend(self.device.capture_ends(stream).expect(NO_FAULTS));
            }
        }
        Some(markers.into_iter().collect())
    }

    /// All nodes that what is captured next on the stream comes after.
    fn passed(&self, stream: StreamId) -> BTreeSet<NodeId> {
        let mut passed = BTreeSet::new();
        let mut left = self.device.capture_ends(stream).expect(NO_FAULTS);
        while let Some(node) = left.pop() {
            if passed.insert(node) {
                left.extend(self.device.node_dependencies(node).expect(NO_FAULTS));
            }
        }
        passed
    }

    /// Frees the stream's blocks whose last uses were all passed.
    pub(super) fn reclaim_in_capture(&mut self, stream: StreamId) {
        let passed = self.passed(stream);
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for put_off in std::mem::take(&mut self.put_off) {
            let (at, _) = self.find(put_off.addr);
            let own = self.segments[at].stream == stream && !put_off.markers.is_empty();
            let free = own && put_off.markers.iter().all(|node| passed.contains(node));
            if free { done.push(put_off) } else { left.push(put_off) }
        }
        self.put_off = left;
        for put_off in done {
            let spot = self.find(put_off.addr);
            self.wait_for_uses(spot, &[]);
        }
    }

    /// A scope of a pool was closed where that brings back the pool's blocks.
    pub(super) fn reclaim_pool(&mut self, pool: u32) {
        if self.config.capture_reuse && self.policy.reclaim == ReclaimRule::PoolWithReuse {
            self.record_put_off_of(Some(pool));
        }
    }

    /// Blocks that no longer have to be put off wait for what runs.
    pub(super) fn record_put_off(&mut self) {
        self.record_put_off_of(None);
    }

    /// Records what was put off: of one pool, if one is named.
    fn record_put_off_of(&mut self, pool: Option<u32>) {
        for put_off in std::mem::take(&mut self.put_off) {
            let spot = self.find(put_off.addr);
            if pool.is_some() && self.segments[spot.0].pool != pool {
                self.put_off.push(put_off);
                continue;
            }
            debug_assert_eq!(self.block(spot).state, State::Waiting(0));
            let captured = self.streams_of(spot).iter().any(|&s| self.capture_of(s).is_some());
            if self.policy.capture_is_by_stream() && captured {
                self.put_off.push(put_off);
            } else {
                let streams = self.running_uses(spot);
                self.wait_for_uses(spot, &streams);
            }
        }
    }
}
