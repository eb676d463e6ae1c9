//! The account: what is free when a request fails, and where it lies, seen from the request.

use larder_core::types::{PoolId, StreamId};

use crate::scene::{Failure, Lane, Scene, lanes};

/// What is free, and why the request cannot have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What the request needs: what was asked for, rounded up.
    pub need_bytes: u64,
    /// What the device was asked for.
    pub tried_bytes: u64,
    /// What the device has left for this program.
    pub room_bytes: u64,
    /// Free where the request looks: on its stream, in its pool.
    pub own_bytes: u64,
    /// In how many pieces that is.
    pub own_pieces: u64,
    /// The largest of them.
    pub own_largest_bytes: u64,
    /// Free in the same pool, but on other streams, by stream.
    pub by_stream: Vec<(StreamId, u64)>,
    /// Free on its stream, but in segments for small requests where it is a large one, or the other
    /// way round.
    pub other_kind_bytes: u64,
    /// Free in private pools that are not the request's, by pool.
    pub by_pool: Vec<(PoolId, u64)>,
    /// Free in the default pools, where the request is of a private one.
    pub default_bytes: u64,
    /// What live allocations have beyond what was asked for, because sizes are rounded and
    /// remainders kept.
    pub rounding_bytes: u64,
    /// What was freed and is still awaited by a stream.
    pub waiting_bytes: u64,
    /// What of the device a memory fraction keeps from the program.
    pub withheld_bytes: u64,
}

impl Account {
    /// Counts what is free in a scene, for a failure.
    pub fn of(scene: &Scene, failure: &Failure) -> Account {
        let report = &failure.report;
        let cap_room =
            report.cap_bytes.map_or(u64::MAX, |cap| cap.saturating_sub(report.reserved_bytes));
        let room_bytes = report.free_bytes.min(cap_room);
        let mut account = Account {
            need_bytes: report.rounded_bytes,
            tried_bytes: report.tried_bytes,
            room_bytes,
            withheld_bytes: report.free_bytes - room_bytes,
            rounding_bytes: scene.rounding_bytes(),
            ..Account::default()
        };
        for lane in lanes(scene) {
            account.waiting_bytes += lane.waiting_bytes;
            account.add(&lane, failure);
        }
        let by_size = |(_, one): &(_, u64), (_, other): &(_, u64)| other.cmp(one);
        account.by_stream.sort_by(by_size);
        account.by_pool.sort_by(|(_, one), (_, other)| other.cmp(one));
        account
    }

    fn add(&mut self, lane: &Lane, failure: &Failure) {
        let free_bytes = lane.free_bytes;
        if free_bytes == 0 {
            return;
        }
        if lane.pool != failure.pool {
            match lane.pool {
                None => self.default_bytes += free_bytes,
                Some(pool) => match self.by_pool.iter_mut().find(|(other, _)| *other == pool) {
                    Some((_, bytes)) => *bytes += free_bytes,
                    None => self.by_pool.push((pool, free_bytes)),
                },
            }
        } else if lane.stream.0 != u64::from(failure.stream) {
            match self.by_stream.iter_mut().find(|(other, _)| *other == lane.stream) {
                Some((_, bytes)) => *bytes += free_bytes,
                None => self.by_stream.push((lane.stream, free_bytes)),
            }
        } else if lane.kind == failure.kind {
            self.own_bytes += free_bytes;
            self.own_pieces += lane.free_pieces;
            self.own_largest_bytes = self.own_largest_bytes.max(lane.largest_bytes);
        } else {
            self.other_kind_bytes += free_bytes;
        }
    }

    /// Free on other streams, in all.
    pub fn other_streams_bytes(&self) -> u64 {
        self.by_stream.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Free in pools that the request does not look into, in all.
    pub fn other_pools_bytes(&self) -> u64 {
        self.default_bytes + self.by_pool.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// All that is free in the cache, whoever may have it.
    pub fn cached_bytes(&self) -> u64 {
        self.own_bytes
            + self.other_streams_bytes()
            + self.other_kind_bytes
            + self.other_pools_bytes()
    }

    /// What is missing beyond what the device has left.
    pub fn missing_bytes(&self) -> u64 {
        self.tried_bytes.saturating_sub(self.room_bytes)
    }
}
