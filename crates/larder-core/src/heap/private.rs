//! Private pools: memory set apart for a graph or by a program, and the scopes that route requests
//! to it.

use std::collections::BTreeMap;
use std::thread::ThreadId;

use crate::error::PoolProblem;
use crate::heap::pool::PoolIndex;
use crate::record::stats::Counter;
use crate::types::{PoolId, PoolKind, StreamId};

/// Which requests a scope routes to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them.
    Any,
    /// Those for this stream.
    Stream(StreamId),
    /// Those made by this thread.
    Thread(ThreadId),
    /// Those for streams under the same graph capture as this one, at the time of the request.
    Capture(StreamId),
}

/// A request as scopes look at it.
#[derive(Clone, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) stream: StreamId,
    pub(crate) thread: ThreadId,
    /// Of the streams that open scopes name by their captures, those whose capture the request's
    /// stream is under.
    pub(crate) captured_with: &'a [StreamId],
}

/// One private pool: two pools of its own, and who holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Private {
    pub(crate) small: PoolIndex,
    pub(crate) large: PoolIndex,
    /// How many still use it. At 0 its memory may go back to the device.
    pub(crate) uses: u32,
    /// Whether it lends free blocks to requests that would run out of memory.
    pub(crate) use_on_oom: bool,
    /// Its segments come from a source of its own.
    pub(crate) own_source: bool,
    /// Bytes held of the device for it.
    pub(crate) reserved: Counter,
}

impl Private {
    pub(crate) fn pool(&self, kind: PoolKind) -> PoolIndex {
        match kind {
            PoolKind::Small => self.small,
            PoolKind::Large => self.large,
        }
    }

    /// Nobody uses it any more.
    pub(crate) fn is_released(&self) -> bool {
        self.uses == 0
    }
}

/// All private pools, and the open scopes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Privates {
    pools: BTreeMap<PoolId, Private>,
    scopes: Vec<(PoolId, Filter)>,
}

impl Privates {
    pub(crate) fn get(&self, id: PoolId) -> Option<&Private> {
        self.pools.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: PoolId) -> Result<&mut Private, PoolProblem> {
        self.pools.get_mut(&id).ok_or(PoolProblem::Unknown)
    }

    pub(crate) fn insert(&mut self, id: PoolId, private: Private) {
        self.pools.insert(id, private);
    }

    pub(crate) fn remove(&mut self, id: PoolId) -> Option<Private> {
        self.pools.remove(&id)
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &Private)> + '_ {
        self.pools.iter().map(|(&id, private)| (id, private))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Private> + '_ {
        self.pools.values_mut()
    }

    /// Whether any scope is open.
    #[inline]
    pub(crate) fn has_scope(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// The pool of the newest scope that takes requests of this caller.
    pub(crate) fn route(&self, caller: &Caller<'_>) -> Option<PoolId> {
        let takes = |filter: Filter| match filter {
            Filter::Any => true,
            Filter::Stream(only) => only == caller.stream,
            Filter::Thread(only) => only == caller.thread,
            Filter::Capture(origin) => caller.captured_with.contains(&origin),
        };
        self.scopes.iter().rev().find(|&&(_, filter)| takes(filter)).map(|&(pool, _)| pool)
    }

    /// The filters of the open scopes, oldest first.
    pub(crate) fn filters(&self) -> impl Iterator<Item = Filter> + '_ {
        self.scopes.iter().map(|&(_, filter)| filter)
    }

    pub(crate) fn open(&mut self, id: PoolId, filter: Filter) -> Result<(), PoolProblem> {
        if self.scopes.iter().any(|&(open, _)| open == id) {
            return Err(PoolProblem::Open);
        }
        self.scopes.push((id, filter));
        Ok(())
    }

    pub(crate) fn close(&mut self, id: PoolId) -> Result<(), PoolProblem> {
        let at = self.scopes.iter().position(|&(open, _)| open == id);
        self.scopes.remove(at.ok_or(PoolProblem::NotOpen)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_scope_that_takes_a_request_gets_it() {
        let mut privates = Privates::default();
        let thread = std::thread::current().id();
        let caller = |stream| Caller { stream, thread, captured_with: &[] };
        privates.open(PoolId(0, 1), Filter::Any).unwrap();
        privates.open(PoolId(0, 2), Filter::Stream(StreamId(7))).unwrap();
        assert_eq!(privates.route(&caller(StreamId(7))), Some(PoolId(0, 2)));
        assert_eq!(privates.route(&caller(StreamId(8))), Some(PoolId(0, 1)));
        assert_eq!(privates.open(PoolId(0, 1), Filter::Any), Err(PoolProblem::Open));
        privates.close(PoolId(0, 1)).unwrap();
        assert_eq!(privates.route(&caller(StreamId(8))), None);
        assert_eq!(privates.close(PoolId(0, 1)), Err(PoolProblem::NotOpen));
    }

    #[test]
    fn a_scope_of_a_capture_takes_all_streams_that_are_under_it() {
        let mut privates = Privates::default();
        let (origin, stream) = (StreamId(7), StreamId(8));
        privates.open(PoolId(1, 0), Filter::Capture(origin)).unwrap();
        let thread = std::thread::current().id();
        let caller = |captured_with| Caller { stream, thread, captured_with };
        assert_eq!(privates.route(&caller(&[])), None);
        assert_eq!(privates.route(&caller(&[origin])), Some(PoolId(1, 0)));
    }
}
