//! Waking: pages are made, mapped where memory slept, and filled; all of it, or nothing.

use crate::allocator::Inner;
use crate::allocator::pages::Orphan;
use crate::allocator::sleep::{Contents, Which, is_short};
use crate::device::{Device, DeviceError};
use crate::error::{Error, SleepProblem};
use crate::heap::asleep::Sleeper;
use crate::heap::inventory::asleep::WakePlan;
use crate::keeper::Keep;
use crate::types::{PageHandle, Span};

/// A sleeper on the way to be awake.
struct Waking {
    sleeper: Sleeper,
    plan: WakePlan,
    /// The pages that were made for it, each with where it is mapped so far.
    pages: Vec<(PageHandle, Vec<Span>)>,
}

impl Inner {
    pub(super) fn wake_up(&mut self, device: &dyn Device, which: &Which) -> Result<(), Error> {
        let mut sleepers = self.sleepers(which)?;
        sleepers.retain(|&sleeper| self.heap.is_asleep(sleeper));
        if sleepers.is_empty() {
            return Ok(());
        }
        if self.heap.pools().may_capture() && self.may_anybody_capture(device)? {
            return Err(Error::Sleep(SleepProblem::Captured));
        }
        for &sleeper in &sleepers {
            self.shed(device, sleeper)?;
        }
        self.make_room(device, &sleepers)?;
        let plan = |&sleeper: &Sleeper| Waking {
            sleeper,
            plan: self.heap.plan_wake(sleeper),
            pages: Vec::new(),
        };
        let mut waking: Vec<Waking> = sleepers.iter().map(plan).collect();
        if let Err((call, error)) = self.fill(device, &mut waking) {
            let needed_bytes = waking.iter().map(|one| one.plan.size_bytes()).sum();
            for (page, mapped) in waking.into_iter().flat_map(|one| one.pages) {
                self.drop_page(device, Orphan::new(page, mapped));
            }
            if !is_short(&error) {
                return Err(Error::Device { call, error });
            }
            let free_bytes = device.memory_info().map_or(0, |info| info.free_bytes);
            return Err(Error::Sleep(SleepProblem::NoRoom { needed_bytes, free_bytes }));
        }
        self.tick(device);
        for Waking { sleeper, plan, pages } in waking {
            let pages: Vec<PageHandle> = pages.into_iter().map(|(page, _)| page).collect();
            self.heap.commit_wake(sleeper, &plan, &pages);
            self.forget_contents(sleeper);
        }
        self.asleep.generation += 1;
        Ok(())
    }

    /// Gives back what is cached if the device, or the cap, has no room for all that is to wake.
    fn make_room(&mut self, device: &dyn Device, sleepers: &[Sleeper]) -> Result<(), Error> {
        let plans = sleepers.iter().map(|&sleeper| self.heap.plan_wake(sleeper));
        let needed_bytes: u64 = plans.map(|plan| plan.size_bytes()).sum();
        let free_bytes = |device: &dyn Device| {
            let info = device.memory_info().map_err(Error::device("tell its free memory"));
            info.map(|info| info.free_bytes)
        };
        let is_capped = |inner: &Inner| inner.heap.inventory().exceeds_cap(needed_bytes);
        if free_bytes(device)? >= needed_bytes && !is_capped(self) {
            return Ok(());
        }
        self.empty(device)?;
        if is_capped(self) {
            let cap_bytes = self.heap.cap_bytes().unwrap_or(u64::MAX);
            let left_bytes = cap_bytes.saturating_sub(self.heap.reserved_bytes());
            return Err(Error::Sleep(SleepProblem::Capped { needed_bytes, left_bytes }));
        }
        let free_bytes = free_bytes(device)?;
        if free_bytes < needed_bytes {
            return Err(Error::Sleep(SleepProblem::NoRoom { needed_bytes, free_bytes }));
        }
        Ok(())
    }

    /// Makes the pages of all plans, maps them, and puts back their contents. On an error what was
    /// made is in the list.
    fn fill(
        &mut self,
        device: &dyn Device,
        waking: &mut [Waking],
    ) -> Result<(), (&'static str, DeviceError)> {
        self.clear_dead_views(device);
        self.drop_orphans(device);
        for one in &mut *waking {
            for span in &one.plan.pages {
                let page = device.create_page(span.size_bytes);
                let page = page.map_err(|error| ("create memory", error))?;
                one.pages.push((page, Vec::new()));
            }
        }
        for one in &mut *waking {
            let Waking { plan, pages, .. } = one;
            let homes = plan.pages.iter().copied().enumerate().map(|(at, span)| (span, at));
            for (span, at) in homes.chain(plan.shown.iter().copied()) {
                self.clear_orphans(device, span).map_err(|error| ("unmap memory", error))?;
                let (page, mapped) = &mut pages[at];
                device.map(span, *page).map_err(|error| ("map memory", error))?;
                mapped.push(span);
            }
            let places = plan.pages.iter().copied().chain(plan.shown.iter().map(|&(span, _)| span));
            for run in joined(places.collect()) {
                device.set_access(run).map_err(|error| ("give access to memory", error))?;
                for &peer in self.exports.peers() {
                    let opened = device.set_peer_access(run, peer);
                    opened.map_err(|error| ("give a peer access to memory", error))?;
                }
            }
        }
        for one in &*waking {
            let there = joined(one.plan.pages.clone());
            for contents in self.asleep.contents.get(&one.sleeper).into_iter().flatten() {
                contents.put_back(device, &there)?;
            }
        }
        Ok(())
    }
}

impl Contents {
    /// Copies back what is kept of the memory that is there again.
    fn put_back(
        &self,
        device: &dyn Device,
        there: &[Span],
    ) -> Result<(), (&'static str, DeviceError)> {
        let (mut copies, mut cleared, mut offset_bytes) = (Vec::new(), Vec::new(), 0);
        for &span in &self.spans {
            for part in parts_of(span, there) {
                let mut addr = part.addr;
                match self.keep {
                    Keep::Contents => {
                        let begin = offset_bytes + (part.addr.0 - span.addr.0);
                        for slice in self.slices(begin, part.size_bytes) {
                            copies.push((slice, Span::new(addr, slice.len() as u64)));
                            addr = addr.offset(slice.len() as u64);
                        }
                    }
                    Keep::Zeros => cleared.push(part),
                    Keep::Nothing => {}
                }
            }
            offset_bytes += span.size_bytes;
        }
        if !copies.is_empty() {
            let copied = device.copy_in(&copies);
            copied.map_err(|error| ("copy contents from the host", error))?;
        }
        if !cleared.is_empty() {
            device.clear(&cleared).map_err(|error| ("clear memory", error))?;
        }
        Ok(())
    }
}

/// Spans that follow each other, as one each. They do not overlap.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.addr);
    let mut runs: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match runs.last_mut() {
            Some(last) if last.end() == span.addr => last.size_bytes += span.size_bytes,
            _ => runs.push(span),
        }
    }
    runs
}

/// What of a span is in a list of others, which are in order.
fn parts_of(span: Span, there: &[Span]) -> Vec<Span> {
    let first = there.partition_point(|run| run.end() <= span.addr);
    let over = there[first..].iter().take_while(|run| run.addr < span.end());
    let part = |run: &Span| {
        let begin = run.addr.max(span.addr);
        Span::new(begin, run.end().min(span.end()).0 - begin.0)
    };
    over.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Addr;

    #[test]
    fn of_a_span_that_part_is_found_that_is_there() {
        let span = |addr, size_bytes| Span::new(Addr(addr), size_bytes);
        let there = joined(vec![span(40, 10), span(0, 10), span(10, 10)]);
        assert_eq!(there, [span(0, 20), span(40, 10)]);
        assert_eq!(parts_of(span(5, 40), &there), [span(5, 15), span(40, 5)]);
        assert_eq!(parts_of(span(20, 20), &there), []);
        assert_eq!(parts_of(span(42, 3), &there), [span(42, 3)]);
    }
}
