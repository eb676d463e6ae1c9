//! What a request wants: its size after rounding, whose memory it may have, and what it asks of the
//! device.

use larder_core::types::{MIB, PoolKind, StreamId};

use super::segment::Segment;
use super::{Model, SMALL_MAX_BYTES, UNIT_BYTES};

const OWN_SEGMENT_MIN_BYTES: u64 = 10 * MIB;
const SEGMENT_STEP_BYTES: u64 = 2 * MIB;
const HOST_PAGE_BYTES: u64 = 4096;

/// A request after rounding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) requested_bytes: u64,
    pub(super) size_bytes: u64,
    pub(super) kind: PoolKind,
    pub(super) stream: StreamId,
    /// The private pool that it goes to.
    pub(super) pool: Option<u32>,
    /// Whether expandable segments may serve it.
    pub(super) expandable: bool,
    /// Whether they must not, whatever the settings say of them.
    pub(super) plain: bool,
}

/// A size in whole steps of segments.
fn steps_up(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
}

impl Model {
    fn round(&self, size_bytes: u64) -> u64 {
        if size_bytes < UNIT_BYTES {
            return UNIT_BYTES;
        }
        let mut class = 0;
        while class < 15 && size_bytes >= (2 * MIB) << class {
            class += 1;
        }
        let divisions = self.config.roundup_divisions[class];
        if divisions < 2 || size_bytes <= UNIT_BYTES * divisions {
            return size_bytes.div_ceil(UNIT_BYTES) * UNIT_BYTES;
        }
        let mut floor = UNIT_BYTES;
        while floor * 2 <= size_bytes {
            floor *= 2;
        }
        let step = floor / divisions;
        size_bytes.div_ceil(step) * step
    }

    pub(super) fn want(&mut self, requested_bytes: u64, stream: StreamId) -> Want {
        let size_bytes = self.round(requested_bytes);
        let small = size_bytes <= SMALL_MAX_BYTES;
        let kind = if small { PoolKind::Small } else { PoolKind::Large };
        let pool = self.route(stream);
        let (mut expandable, mut plain) = (self.config.expandable_segments, self.asks_for_plain);
        if let Some(pool) = pool {
            let is_captured = self.capture_of(stream).is_some();
            let plain_captures = self.config.plain_captures;
            let private = self.privates.get_mut(&pool).expect("a pool with a scope");
            expandable &= !private.has_source;
            private.of_capture |= plain_captures && is_captured && !private.has_source;
            plain |= plain_captures && private.of_capture;
        }
        expandable &= !plain;
        Want { requested_bytes, size_bytes, kind, stream, pool, expandable, plain }
    }

    /// Whether requests get plain memory from now on.
    pub(in crate::soak) fn set_plain(&mut self, is_plain: bool) {
        self.settle();
        self.asks_for_plain = is_plain;
    }

    /// What a request asks of the device in one plain piece.
    pub(super) fn segment_bytes(&self, want: &Want) -> u64 {
        match want.size_bytes {
            0..=SMALL_MAX_BYTES => 2 * MIB,
            size if self.policy.exact_segments => {
                let count = if size < SEGMENT_STEP_BYTES { 2 } else { 1 };
                (count * size).div_ceil(HOST_PAGE_BYTES) * HOST_PAGE_BYTES
            }
            size if size < OWN_SEGMENT_MIN_BYTES => match self.capture_growth_bytes(want) {
                Some(least_bytes) => {
                    steps_up(size).max(least_bytes).min(self.config.large_segment_bytes)
                }
                None => self.config.large_segment_bytes,
            },
            size => steps_up(size),
        }
    }

    /// The least by which a capture's pool grows, by what it holds for the stream; none where it
    /// grows as others do.
    fn capture_growth_bytes(&self, want: &Want) -> Option<u64> {
        let is_it = |pool: &u32| self.config.plain_captures && self.privates[pool].of_capture;
        let pool = want.pool.filter(is_it)?;
        let is_own = |segment: &&Segment| {
            (segment.pool, segment.kind, segment.stream) == (Some(pool), want.kind, want.stream)
        };
        let own = self.segments.iter().filter(is_own);
        let held_bytes: u64 = own.map(Segment::held_bytes).sum();
        let is_young = held_bytes < 2 * self.config.large_segment_bytes;
        (!is_young).then_some(held_bytes / 8 / SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES)
    }
}
