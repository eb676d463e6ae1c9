//! Memory that nobody uses: what lay free for long goes back, and some is got ahead of need.

use std::collections::VecDeque;

use larder_lock::TurnGuard;

use crate::allocator::{Allocator, Inner};
use crate::error::Error;
use crate::heap::growth::Growth;
use crate::heap::release::Release;
use crate::record::event::Level;
use crate::types::StreamId;

/// When somebody looked at what lies free, by the device's clock, and what the heap counted then.
/// The oldest is first.
#[derive(Default)]
pub(super) struct Looks(VecDeque<(u64, [u64; 2])>);

impl Looks {
    /// There is a look at this time. The last one that is as old as this, if one is; older ones
    /// are forgotten.
    fn note(&mut self, now_ns: u64, count: [u64; 2], age_ns: u64) -> Option<[u64; 2]> {
        self.0.push_back((now_ns, count));
        let is_old = |time_ns: u64| now_ns.saturating_sub(time_ns) >= age_ns;
        while self.0.get(1).is_some_and(|&(time_ns, _)| is_old(time_ns)) {
            self.0.pop_front();
        }
        self.0.front().filter(|&&(time_ns, _)| is_old(time_ns)).map(|&(_, count)| count)
    }
}

impl Allocator {
    /// Gives back whole segments of the default pools that have lain free for so long, as far as
    /// calls of this have seen: what lies free at one call, and still does at a call so much later
    /// without having been used between, goes. So it is called every now and then, a few times
    /// within that age. One segment that a request of `spared_bytes` can have stays; with 0 none
    /// does. Says how many bytes went. While any scope is open nothing goes.
    ///
    /// From the first call on free blocks have ages, which takes requests off their fastest way.
    pub fn release_unused(&self, age_ns: u64, spared_bytes: u64) -> Result<u64, Error> {
        self.release_some(|inner, now_ns| {
            let count = inner.heap.begin_look();
            let since = inner.looks.note(now_ns, count, age_ns);
            since.map_or_else(Vec::new, |since| inner.heap.plan_unused(since, spared_bytes))
        })
    }

    /// Gives back whole segments of the default pools that lie free and are larger than this. Says
    /// how many bytes went. While any scope is open nothing goes.
    pub fn release_above(&self, size_bytes: u64) -> Result<u64, Error> {
        self.release_some(|inner, _| inner.heap.plan_release_above(size_bytes))
    }

    fn release_some(
        &self,
        plan: impl FnOnce(&mut Inner, u64) -> Vec<Release>,
    ) -> Result<u64, Error> {
        let mut inner = self.enter(Level::All);
        let device = &*self.device;
        let result = if inner.heap.pools().is_diverted() {
            Ok(0)
        } else {
            let polled = inner.poll_events(device);
            let plan = plan(&mut inner, device.now_ns());
            let before_bytes = inner.heap.space().reserved_bytes();
            let released = polled.and_then(|()| inner.release(device, &plan));
            released.map(|()| before_bytes - inner.heap.space().reserved_bytes())
        };
        drop(inner);
        self.leave();
        result
    }

    /// Gets a segment for requests to come, unless the cache has a free block of so many bytes for
    /// the stream: such a request will find it. Says whether one was got. None is where there is no
    /// room, and nothing is given back for it; nor where requests of this size are not served by
    /// segments of their own, as on a device with virtual memory under most settings, or while any
    /// scope is open.
    pub fn grow_ahead(&self, size_bytes: u64, stream: StreamId) -> Result<bool, Error> {
        let inner = self.enter(Level::All);
        let result = self.keep_ready(inner, size_bytes, stream);
        self.leave();
        result
    }

    fn keep_ready<'a>(
        &'a self,
        mut inner: TurnGuard<'a, Inner>,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<bool, Error> {
        if inner.heap.pools().is_diverted() || size_bytes == 0 {
            return Ok(false);
        }
        inner.poll_events(&*self.device)?;
        let mut want = inner.heap.want(size_bytes, stream);
        let Growth::Segment { size_bytes } = inner.heap.inventory().plan_growth(&want) else {
            return Ok(false);
        };
        if inner.heap.is_ready_for(&want) {
            return Ok(false);
        }
        let got;
        (inner, got) = self.ask_segment(inner, &mut want, size_bytes)?;
        if let Some(span) = got {
            inner.heap.keep_segment(&want, span);
        }
        Ok(got.is_some())
    }
}
