//! What the device has given out: allocations, ranges, pages, mappings and events.
//!
//! The driver does not check all that it is given; some mistakes end the process. So each call is
//! looked up here first, and a mistake is refused in words. Pages and events have numbers of our
//! own, which are never used twice, so that one that is gone is not taken for a new one.

use std::collections::{BTreeMap, HashMap, HashSet};

use larder_core::device::{DeviceError, SharedPage};
use larder_core::types::{Addr, EventId, PageHandle, Span};

use crate::driver::CudaPage;

/// The driver's code for an argument that makes no sense.
const INVALID_VALUE: i32 = 1;
/// The driver's code for a handle that it does not know.
const INVALID_HANDLE: i32 = 400;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    plain: HashSet<u64>,
    opened: HashSet<u64>,
    /// Reserved ranges, start to size.
    ranges: BTreeMap<u64, u64>,
    pages: HashMap<u64, Page>,
    page_next: u64,
    mappings: BTreeMap<u64, Mapping>,
    events: HashMap<u64, usize>,
    event_next: u64,
    shared: HashSet<SharedPage>,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    cuda: CudaPage,
    size_bytes: u64,
    /// At how many places it is mapped.
    mapped: u32,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    size_bytes: u64,
    page: u64,
}

impl Ledger {
    // Plain allocations, and those of other processes. What is given back is taken out first, and
    // put in again if the driver refuses: so of two threads that free one address only one gets
    // to the driver.

    pub(crate) fn add_plain(&mut self, addr: u64) {
        self.plain.insert(addr);
    }

    pub(crate) fn take_plain(&mut self, addr: Addr) -> Result<(), DeviceError> {
        let held = self.plain.remove(&addr.0);
        held_or(held, || format!("{addr} is not the address of a plain allocation that is held"))
    }

    pub(crate) fn check_plain(&self, addr: Addr) -> Result<(), DeviceError> {
        let held = self.plain.contains(&addr.0);
        held_or(held, || format!("{addr} is not the address of a plain allocation that is held"))
    }

    pub(crate) fn add_opened(&mut self, addr: u64) {
        self.opened.insert(addr);
    }

    pub(crate) fn take_opened(&mut self, addr: Addr) -> Result<(), DeviceError> {
        let held = self.opened.remove(&addr.0);
        held_or(held, || format!("nothing was opened at {addr}"))
    }

    // Ranges.

    pub(crate) fn add_range(&mut self, span: Span) {
        self.ranges.insert(span.addr.0, span.size_bytes);
    }

    pub(crate) fn take_range(&mut self, span: Span) -> Result<(), DeviceError> {
        if self.ranges.get(&span.addr.0) != Some(&span.size_bytes) {
            return Err(invalid(format!("{} is not a whole reserved range", shown(span))));
        }
        if self.mappings.range(span.addr.0..span.end().0).next().is_some() {
            return Err(invalid(format!("something is still mapped in {}", shown(span))));
        }
        self.ranges.remove(&span.addr.0);
        Ok(())
    }

    // Pages.

    pub(crate) fn add_page(&mut self, cuda: CudaPage, size_bytes: u64) -> PageHandle {
        self.page_next += 1;
        self.pages.insert(self.page_next, Page { cuda, size_bytes, mapped: 0 });
        PageHandle(self.page_next)
    }

    pub(crate) fn page(&self, page: PageHandle) -> Result<CudaPage, DeviceError> {
        self.known(page).map(|page| page.cuda)
    }

    fn known(&self, page: PageHandle) -> Result<Page, DeviceError> {
        let known = self.pages.get(&page.0).copied();
        known.ok_or_else(|| invalid(format!("there is no page {}", page.0)))
    }

    /// Takes the page out; `put_page` puts it back.
    pub(crate) fn take_page(&mut self, page: PageHandle) -> Result<TakenPage, DeviceError> {
        let known = self.known(page)?;
        if known.mapped > 0 {
            return Err(invalid(format!("page {} is still mapped", page.0)));
        }
        self.pages.remove(&page.0);
        Ok(TakenPage { handle: page, page: known })
    }

    pub(crate) fn put_page(&mut self, taken: &TakenPage) {
        self.pages.insert(taken.handle.0, taken.page);
    }

    /// The driver's page, if it may be mapped there.
    pub(crate) fn check_map(&self, span: Span, page: PageHandle) -> Result<CudaPage, DeviceError> {
        let known = self.known(page)?;
        if known.size_bytes != span.size_bytes {
            let text = format!("a page of {} bytes behind {}", known.size_bytes, shown(span));
            return Err(invalid(text));
        }
        let range = self.ranges.range(..=span.addr.0).next_back();
        let end = span.addr.0.checked_add(span.size_bytes);
        if range.zip(end).is_none_or(|((start, size), end)| end > start + size) {
            return Err(invalid(format!("{} is not in one reserved range", shown(span))));
        }
        let before = self.mappings.range(..span.end().0).next_back();
        if before.is_some_and(|(start, mapping)| start + mapping.size_bytes > span.addr.0) {
            return Err(invalid(format!("something is mapped in {} already", shown(span))));
        }
        Ok(known.cuda)
    }

    pub(crate) fn add_mapping(&mut self, span: Span, page: PageHandle) {
        self.mappings.insert(span.addr.0, Mapping { size_bytes: span.size_bytes, page: page.0 });
        self.pages.entry(page.0).and_modify(|page| page.mapped += 1);
    }

    pub(crate) fn check_unmap(&self, span: Span) -> Result<(), DeviceError> {
        let mapping = self.mappings.get(&span.addr.0);
        let whole = mapping.is_some_and(|mapping| mapping.size_bytes == span.size_bytes);
        held_or(whole, || format!("{} was not mapped in one piece", shown(span)))
    }

    pub(crate) fn remove_mapping(&mut self, span: Span) {
        if let Some(mapping) = self.mappings.remove(&span.addr.0) {
            self.pages.entry(mapping.page).and_modify(|page| page.mapped -= 1);
        }
    }

    /// Whether the span is made of whole mapped pages without a hole.
    pub(crate) fn check_mapped(&self, span: Span) -> Result<(), DeviceError> {
        let mut reached = span.addr.0;
        let end = span.addr.0.saturating_add(span.size_bytes);
        for (&start, mapping) in self.mappings.range(span.addr.0..end) {
            if start != reached {
                break;
            }
            reached = start + mapping.size_bytes;
        }
        held_or(reached == end && span.size_bytes > 0, || {
            format!("{} is not made of whole mapped pages", shown(span))
        })
    }

    /// Whether every byte of the span has a page behind it.
    pub(crate) fn check_within(&self, span: Span) -> Result<(), DeviceError> {
        let mut reached = span.addr.0;
        let end = span.addr.0.saturating_add(span.size_bytes);
        let first = self.mappings.range(..=span.addr.0).next_back().map_or(end, |(&at, _)| at);
        for (&start, mapping) in self.mappings.range(first.min(end)..end) {
            if start > reached {
                break;
            }
            reached = reached.max(start + mapping.size_bytes);
        }
        held_or(reached >= end && span.size_bytes > 0, || {
            format!("{} does not lie on mapped pages", shown(span))
        })
    }

    // Events.

    pub(crate) fn add_event(&mut self, event: usize) -> EventId {
        self.event_next += 1;
        self.events.insert(self.event_next, event);
        EventId(self.event_next)
    }

    pub(crate) fn event(&self, event: EventId) -> Result<usize, DeviceError> {
        self.events.get(&event.0).copied().ok_or_else(|| unknown_event(event))
    }

    pub(crate) fn take_event(&mut self, event: EventId) -> Result<usize, DeviceError> {
        self.events.remove(&event.0).ok_or_else(|| unknown_event(event))
    }

    pub(crate) fn put_event(&mut self, event: EventId, cuda: usize) {
        self.events.insert(event.0, cuda);
    }

    // Handles of pages that others may use.

    pub(crate) fn add_shared(&mut self, shared: SharedPage) {
        self.shared.insert(shared);
    }

    pub(crate) fn take_shared(&mut self, shared: SharedPage) -> Result<(), DeviceError> {
        held_or(self.shared.remove(&shared), || String::from("no page has this handle"))
    }

    /// Whether anything is held at all.
    pub(crate) fn held(&self) -> Held {
        Held {
            allocations: self.plain.len() + self.opened.len(),
            ranges: self.ranges.len(),
            pages: self.pages.len(),
            events: self.events.len(),
        }
    }
}

/// A page that was taken out of the ledger.
#[derive(Debug)]
pub(crate) struct TakenPage {
    handle: PageHandle,
    page: Page,
}

impl TakenPage {
    pub(crate) fn cuda(&self) -> CudaPage {
        self.page.cuda
    }
}

/// How much a device has given out that it did not get back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Plain allocations, those of other processes included.
    pub allocations: usize,
    /// Reserved ranges.
    pub ranges: usize,
    /// Pages.
    pub pages: usize,
    /// Events.
    pub events: usize,
}

fn held_or(holds: bool, text: impl FnOnce() -> String) -> Result<(), DeviceError> {
    if holds { Ok(()) } else { Err(invalid(text())) }
}

fn invalid(text: impl Into<String>) -> DeviceError {
    DeviceError::Other { code: INVALID_VALUE, text: text.into() }
}

fn unknown_event(event: EventId) -> DeviceError {
    DeviceError::Other { code: INVALID_HANDLE, text: format!("there is no event {}", event.0) }
}

fn shown(span: Span) -> String {
    format!("{} bytes at {}", span.size_bytes, span.addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 2 << 20;

    fn units(first: u64, count: u64) -> Span {
        Span::new(Addr((8 + first) * UNIT), count * UNIT)
    }

    #[test]
    fn an_address_is_given_back_once() {
        let mut ledger = Ledger::default();
        ledger.add_plain(4096);
        assert!(ledger.take_plain(Addr(4097)).is_err());
        ledger.take_plain(Addr(4096)).unwrap();
        assert!(ledger.take_plain(Addr(4096)).is_err());
        assert!(ledger.check_plain(Addr(4096)).is_err());
    }

    #[test]
    fn a_page_goes_only_where_it_may() {
        let mut ledger = Ledger::default();
        ledger.add_range(units(0, 4));
        ledger.add_range(units(4, 4));
        let page = ledger.add_page(7, 2 * UNIT);
        assert!(ledger.check_map(units(0, 1), page).is_err(), "half a page");
        assert!(ledger.check_map(units(3, 2), page).is_err(), "across two ranges");
        assert!(ledger.check_map(units(7, 2), page).is_err(), "beyond the last range");
        assert_eq!(ledger.check_map(units(1, 2), page), Ok(7));
        ledger.add_mapping(units(1, 2), page);
        assert!(ledger.check_map(units(0, 2), page).is_err(), "its end is taken");
        assert!(ledger.check_map(units(2, 2), page).is_err(), "its start is taken");
        assert!(ledger.take_page(page).is_err(), "still mapped");
        assert!(ledger.take_range(units(0, 4)).is_err(), "something is mapped in it");
        assert!(ledger.check_unmap(units(1, 1)).is_err(), "half a page");
        ledger.check_unmap(units(1, 2)).unwrap();
        ledger.remove_mapping(units(1, 2));
        assert_eq!(ledger.take_page(page).unwrap().cuda(), 7);
        assert!(ledger.take_range(units(0, 2)).is_err(), "half a range");
        ledger.take_range(units(0, 4)).unwrap();
    }

    #[test]
    fn a_page_is_held_by_each_of_its_places() {
        let mut ledger = Ledger::default();
        ledger.add_range(units(0, 4));
        ledger.add_range(units(4, 4));
        let [page, other] = [7, 8].map(|cuda| ledger.add_page(cuda, UNIT));
        let places = [units(2, 1), units(0, 1), units(5, 1)];
        for place in places {
            assert_eq!(ledger.check_map(place, page), Ok(7));
            ledger.add_mapping(place, page);
            assert!(ledger.check_map(place, page).is_err(), "it is there already");
            assert!(ledger.check_map(place, other).is_err(), "somebody is there already");
        }
        assert!(ledger.check_mapped(units(0, 3)).is_err(), "there is a hole between two places");
        ledger.add_mapping(units(1, 1), other);
        ledger.check_mapped(units(0, 3)).unwrap();
        for place in places {
            assert!(ledger.take_page(page).is_err(), "{place:?} is left");
            ledger.check_unmap(place).unwrap();
            ledger.remove_mapping(place);
            assert!(ledger.check_unmap(place).is_err(), "it is gone");
        }
        ledger.check_unmap(units(1, 1)).unwrap();
        assert_eq!(ledger.take_page(page).unwrap().cuda(), 7);
        assert!(ledger.take_page(other).is_err(), "the other page has its own place");
        ledger.take_range(units(4, 4)).unwrap();
    }

    #[test]
    fn access_needs_pages_without_a_hole() {
        let mut ledger = Ledger::default();
        ledger.add_range(units(0, 8));
        for first in [0, 1, 3] {
            let page = ledger.add_page(first, UNIT);
            ledger.add_mapping(units(first, 1), page);
        }
        ledger.check_mapped(units(0, 2)).unwrap();
        assert!(ledger.check_mapped(units(0, 4)).is_err());
        assert!(ledger.check_mapped(units(2, 1)).is_err());
    }

    #[test]
    fn numbers_are_not_used_twice() {
        let mut ledger = Ledger::default();
        let first = ledger.add_event(100);
        assert_eq!(ledger.take_event(first), Ok(100));
        let second = ledger.add_event(100);
        assert_ne!(first, second);
        assert!(ledger.event(first).is_err());
        assert_eq!(ledger.held(), Held { events: 1, ..Held::default() });
    }
}
