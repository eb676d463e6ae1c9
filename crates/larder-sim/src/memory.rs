//! The simulated memory: capacity, plain allocations, reserved ranges, pages and other tenants.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use larder_core::device::{DeviceError, MemoryInfo};
use larder_core::types::{Addr, DeviceIndex, PageHandle, Span};

use crate::addresses::Addresses;
use crate::extents::{Bytes, Extent};

/// The numbers of plain memory begin here, above those of pages and above all addresses.
const PLAIN_NUMBERS: u64 = 1 << 63;
/// The unit of memory: everything is rounded up to it and aligned to it.
pub const UNIT_BYTES: u64 = 2 << 20;
/// How far apart the areas of two devices start: device i's area starts at i times this.
pub const DEVICE_STRIDE: u64 = 1 << 54;
/// Where in a device's area reserved ranges start.
pub const RESERVE_BASE: u64 = 1 << 40;
/// Where in a device's area plain allocations start. A recorded address is placed this far up.
pub const PLAIN_BASE: u64 = 1 << 52;

/// How much of the plain region is used where addresses are given downwards.
const DRIVEN_BYTES: u64 = 2 << 40;

/// The driver's code for an argument that makes no sense.
const INVALID_VALUE: i32 = 1;

/// One device's memory. Streams and time are elsewhere: nothing here waits.
#[derive(Debug)]
pub(crate) struct Memory {
    total_bytes: u64,
    /// Bytes behind plain allocations, rounded up, plus bytes of pages.
    used_bytes: u64,
    tenant_bytes: u64,
    plain_addresses: Addresses,
    /// Plain allocations, by their address.
    plain: BTreeMap<u64, Span>,
    /// Where the next reserved range starts; it only ever grows.
    reserve_next: u64,
    reserve_end: u64,
    /// Reserved ranges, start to size.
    ranges: BTreeMap<u64, u64>,
    pages: HashMap<u64, Page>,
    page_next: u64,
    /// What is mapped, by its first address.
    mappings: BTreeMap<u64, Mapping>,
    /// How many handles there are beyond one for each memory, and places beyond one for each
    /// handle.
    further: u64,
    /// Plain allocations of other processes that are open here, by their address here.
    opened: BTreeMap<u64, Span>,
    /// The number of each plain allocation's memory, by its address. A device waits before it takes
    /// memory back, so that what it gives at the same address later is other memory.
    plain_numbers: HashMap<u64, u64>,
    plain_next: u64,
    /// What was written, as far as somebody wrote.
    pub(crate) bytes: Bytes,
}

#[derive(Debug)]
struct Page {
    size_bytes: u64,
    /// The number of the memory, which several handles may have: that of the first.
    memory: Arc<u64>,
    /// Whether the memory counts as used while one handle has it. What another process made is
    /// counted there.
    counted: bool,
    /// At how many places it is mapped. A page may be behind several spans at once.
    mapped: u32,
}

#[derive(Clone, Debug)]
struct Mapping {
    size_bytes: u64,
    page: u64,
    /// The number of the page's memory.
    memory: u64,
    accessible: bool,
    /// The other devices that may use it.
    peers: Vec<DeviceIndex>,
}

impl Memory {
    pub(crate) fn new(device_index: u32, total_bytes: u64, recorded: &[Span]) -> Memory {
        assert!(device_index < 1 << 10, "device areas end at 1024 devices");
        let area = u64::from(device_index) * DEVICE_STRIDE;
        let plain_region =
            Span::new(Addr(area + PLAIN_BASE), DEVICE_STRIDE - PLAIN_BASE - UNIT_BYTES);
        Memory {
            total_bytes,
            used_bytes: 0,
            tenant_bytes: 0,
            plain_addresses: Addresses::new(plain_region, UNIT_BYTES, recorded),
            plain: BTreeMap::new(),
            reserve_next: area + RESERVE_BASE,
            reserve_end: area + PLAIN_BASE,
            ranges: BTreeMap::new(),
            pages: HashMap::new(),
            page_next: 1,
            mappings: BTreeMap::new(),
            further: 0,
            opened: BTreeMap::new(),
            plain_numbers: HashMap::new(),
            plain_next: PLAIN_NUMBERS,
            bytes: Bytes::default(),
        }
    }

    pub(crate) fn info(&self) -> MemoryInfo {
        MemoryInfo { free_bytes: self.free_bytes(), total_bytes: self.total_bytes }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(crate) fn tenant_bytes(&self) -> u64 {
        self.tenant_bytes
    }

    fn free_bytes(&self) -> u64 {
        self.total_bytes - self.used_bytes - self.tenant_bytes
    }

    /// The size as memory counts it, if that much is free.
    fn room_for(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        let rounded_bytes = size_bytes.checked_next_multiple_of(UNIT_BYTES);
        rounded_bytes.filter(|&size| size <= self.free_bytes()).ok_or(DeviceError::OutOfMemory)
    }

    /// Plain allocations get addresses as a driver gives them.
    pub(crate) fn like_a_driver(mut self) -> Memory {
        self.plain_addresses = self.plain_addresses.like_a_driver(DRIVEN_BYTES);
        self
    }

    // Plain memory.

    pub(crate) fn alloc(&mut self, size_bytes: u64) -> Result<Addr, DeviceError> {
        if size_bytes == 0 {
            return Err(invalid("an allocation of no bytes"));
        }
        let rounded_bytes = self.room_for(size_bytes)?;
        let span = self.plain_addresses.take(size_bytes).ok_or(DeviceError::OutOfMemory)?;
        self.used_bytes += rounded_bytes;
        self.plain.insert(span.addr.0, span);
        self.plain_numbers.insert(span.addr.0, self.plain_next);
        self.plain_next += 1;
        Ok(span.addr)
    }

    /// Gives back the memory and says how much it was.
    pub(crate) fn free(&mut self, addr: Addr) -> Result<u64, DeviceError> {
        let span = self.plain.remove(&addr.0).ok_or_else(|| {
            invalid(format!("{addr} is not the address of a plain allocation that is held"))
        })?;
        self.used_bytes -= span.size_bytes.next_multiple_of(UNIT_BYTES);
        self.plain_addresses.give_back(span);
        if let Some(number) = self.plain_numbers.remove(&addr.0) {
            self.bytes.forget(number);
        }
        Ok(span.size_bytes)
    }

    // Virtual memory.

    pub(crate) fn reserve(&mut self, size_bytes: u64) -> Result<Addr, DeviceError> {
        if size_bytes == 0 {
            return Err(invalid("a reserved range of no bytes"));
        }
        let start = self.reserve_next;
        let end = size_bytes
            .checked_next_multiple_of(UNIT_BYTES)
            .and_then(|size| start.checked_add(size))
            .filter(|&end| end <= self.reserve_end)
            .ok_or(DeviceError::OutOfMemory)?;
        self.reserve_next = end;
        self.ranges.insert(start, end - start);
        Ok(Addr(start))
    }

    pub(crate) fn unreserve(&mut self, span: Span) -> Result<(), DeviceError> {
        let range_bytes = self.ranges.get(&span.addr.0).copied();
        let asked_bytes = span.size_bytes.checked_next_multiple_of(UNIT_BYTES);
        if range_bytes.is_none() || asked_bytes != range_bytes {
            return Err(invalid(format!("{} is not a whole reserved range", shown(span))));
        }
        if self.mappings.range(span.addr.0..span.end().0).next().is_some() {
            return Err(invalid(format!("something is still mapped in {}", shown(span))));
        }
        self.ranges.remove(&span.addr.0);
        Ok(())
    }

    pub(crate) fn create_page(&mut self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(UNIT_BYTES) {
            return Err(invalid(format!("a page of {size_bytes} bytes is no multiple of 2 MiB")));
        }
        self.used_bytes += self.room_for(size_bytes)?;
        Ok(self.add_page(size_bytes, None, true))
    }

    /// A page with memory of its own, or with that of another.
    fn add_page(&mut self, size_bytes: u64, memory: Option<Arc<u64>>, counted: bool) -> PageHandle {
        let handle = self.page_next;
        self.page_next += 1;
        let memory = memory.unwrap_or_else(|| Arc::new(handle));
        self.pages.insert(handle, Page { size_bytes, memory, counted, mapped: 0 });
        PageHandle(handle)
    }

    /// Gives back the page and says how large it was.
    pub(crate) fn release_page(&mut self, page: PageHandle) -> Result<u64, DeviceError> {
        let known = self.pages.get(&page.0).ok_or_else(|| unknown_page(page))?;
        if known.mapped > 0 {
            return Err(invalid(format!("page {} is still mapped", page.0)));
        }
        let (size_bytes, counted, memory) = (known.size_bytes, known.counted, *known.memory);
        let is_last = Arc::strong_count(&known.memory) == 1;
        self.pages.remove(&page.0);
        if is_last {
            self.used_bytes -= if counted { size_bytes } else { 0 };
            self.bytes.forget(memory);
        } else {
            self.further -= 1;
        }
        Ok(size_bytes)
    }

    pub(crate) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(crate) fn map(&mut self, span: Span, handle: PageHandle) -> Result<(), DeviceError> {
        let page = self.pages.get(&handle.0).ok_or_else(|| unknown_page(handle))?;
        if page.size_bytes != span.size_bytes {
            let text = format!("a page of {} bytes behind {}", page.size_bytes, shown(span));
            return Err(invalid(text));
        }
        if !span.addr.0.is_multiple_of(UNIT_BYTES) {
            return Err(invalid(format!("{} is not aligned to 2 MiB", shown(span))));
        }
        let range = self.ranges.range(..=span.addr.0).next_back();
        let end = span.addr.0.checked_add(span.size_bytes);
        let fits = range.zip(end).is_some_and(|((start, size), end)| end <= start + size);
        if !fits {
            return Err(invalid(format!("{} is not in one reserved range", shown(span))));
        }
        let before = self.mappings.range(..span.end().0).next_back();
        if before.is_some_and(|(start, mapping)| start + mapping.size_bytes > span.addr.0) {
            return Err(invalid(format!("something is mapped in {} already", shown(span))));
        }
        let mapping = Mapping {
            size_bytes: span.size_bytes,
            page: handle.0,
            memory: *page.memory,
            accessible: false,
            peers: Vec::new(),
        };
        self.mappings.insert(span.addr.0, mapping);
        self.further += u64::from(page.mapped > 0);
        self.pages.entry(handle.0).and_modify(|page| page.mapped += 1);
        Ok(())
    }

    pub(crate) fn unmap(&mut self, span: Span) -> Result<(), DeviceError> {
        let mapping = self.mappings.get(&span.addr.0).map(|found| (found.size_bytes, found.page));
        let (_, page) = mapping
            .filter(|&(size_bytes, _)| size_bytes == span.size_bytes)
            .ok_or_else(|| invalid(format!("{} was not mapped in one piece", shown(span))))?;
        self.mappings.remove(&span.addr.0);
        if let Some(page) = self.pages.get_mut(&page) {
            page.mapped -= 1;
            self.further -= u64::from(page.mapped > 0);
        }
        Ok(())
    }

    /// Opens the span to the device and says how large each of the pages in it is.
    pub(crate) fn set_access(&mut self, span: Span) -> Result<Vec<u64>, DeviceError> {
        if !self.is_mapped(span, |_| true) {
            return Err(invalid(format!("{} is not made of whole mapped pages", shown(span))));
        }
        let pages = self.mappings.range_mut(span.addr.0..span.end().0).map(|(_, mapping)| {
            mapping.accessible = true;
            mapping.size_bytes
        });
        Ok(pages.collect())
    }

    /// Opens the span to another device.
    pub(crate) fn set_peer_access(
        &mut self,
        span: Span,
        peer: DeviceIndex,
    ) -> Result<(), DeviceError> {
        if !self.is_mapped(span, |_| true) {
            return Err(invalid(format!("{} is not made of whole mapped pages", shown(span))));
        }
        for (_, mapping) in self.mappings.range_mut(span.addr.0..span.end().0) {
            mapping.peers.push(peer);
        }
        Ok(())
    }

    /// Whether another device could use every byte of the span.
    pub(crate) fn is_open_to(&self, span: Span, peer: DeviceIndex, plain_is_open: bool) -> bool {
        if span.addr.0 >= self.reserve_end {
            return plain_is_open && self.is_accessible(span);
        }
        self.is_within(span, |mapping| mapping.peers.contains(&peer))
    }

    /// Whether the span is made up of whole mapped pages without a hole, all of them accepted.
    fn is_mapped(&self, span: Span, accept: impl Fn(&Mapping) -> bool) -> bool {
        let Some(end) = span.addr.0.checked_add(span.size_bytes) else { return false };
        let mut reached = span.addr.0;
        for (&start, mapping) in self.mappings.range(span.addr.0..end) {
            if start != reached || !accept(mapping) {
                return false;
            }
            reached = start + mapping.size_bytes;
        }
        reached == end && span.size_bytes > 0
    }

    /// Whether the device could read and write every byte of the span.
    pub(crate) fn is_accessible(&self, span: Span) -> bool {
        let Some(end) = span.addr.0.checked_add(span.size_bytes) else { return false };
        let plain_base = self.reserve_end;
        if span.addr.0 >= plain_base {
            let mut held = [&self.plain, &self.opened].into_iter();
            return held.any(|spans| {
                let before = spans.range(..=span.addr.0).next_back();
                before.is_some_and(|(_, held)| end <= held.end().0)
            });
        }
        self.is_within(span, |mapping| mapping.accessible)
    }

    /// Whether the span lies on mapped pages without a hole, all of them accepted.
    fn is_within(&self, span: Span, accept: impl Fn(&Mapping) -> bool) -> bool {
        let Some(end) = span.addr.0.checked_add(span.size_bytes) else { return false };
        let first = self.mappings.range(..=span.addr.0).next_back();
        let mut reached = span.addr.0;
        for (&start, mapping) in first.into_iter().flat_map(|(&at, _)| self.mappings.range(at..end))
        {
            if start > reached || !accept(mapping) {
                return false;
            }
            reached = start + mapping.size_bytes;
        }
        reached >= end
    }

    // What lies where.

    /// Whether some memory may be seen at two addresses.
    pub(crate) fn is_aliased(&self) -> bool {
        self.further > 0
    }

    /// Where in the device's memory the span lies, in the order of its addresses; none if the
    /// device could not use all of it.
    pub(crate) fn extents(&self, span: Span) -> Option<Vec<Extent>> {
        let end = span.addr.0.checked_add(span.size_bytes)?;
        if span.addr.0 >= self.reserve_end {
            // What another process gave is numbered by its address, which no page has for its
            // number.
            let mut held = [&self.plain, &self.opened].into_iter();
            let start = held.find_map(|spans| {
                let (&start, held) = spans.range(..=span.addr.0).next_back()?;
                (end <= held.end().0).then_some(start)
            })?;
            let number = self.plain_numbers.get(&start).copied().unwrap_or(start);
            return Some(vec![Extent::new(number, span.addr.0 - start, span.size_bytes)]);
        }
        let (&first, _) = self.mappings.range(..=span.addr.0).next_back()?;
        let (mut reached, mut extents) = (span.addr.0, Vec::new());
        for (&start, mapping) in self.mappings.range(first..end) {
            let until = (start + mapping.size_bytes).min(end);
            if start > reached || until <= reached || !mapping.accessible {
                return None;
            }
            extents.push(Extent::new(mapping.memory, reached - start, until - reached));
            reached = until;
        }
        (reached == end).then_some(extents)
    }

    /// Writes the byte at an address; false if the device could not.
    pub(crate) fn write(&mut self, addr: Addr, value: u8) -> bool {
        let extents = self.extents(Span::new(addr, 1));
        let extent = extents.and_then(|extents| extents.first().copied());
        extent.map(|extent| self.bytes.write(extent, value)).is_some()
    }

    /// The byte at an address, 0 where nobody wrote; none if the device could not read it.
    pub(crate) fn read(&self, addr: Addr) -> Option<u8> {
        let extents = self.extents(Span::new(addr, 1))?;
        extents.first().map(|&extent| self.bytes.read(extent))
    }

    // Memory of other processes.

    /// How large the plain allocation at this address is.
    pub(crate) fn plain_bytes(&self, addr: Addr) -> Result<u64, DeviceError> {
        let span = self.plain.get(&addr.0);
        span.map(|span| span.size_bytes)
            .ok_or_else(|| invalid(format!("{addr} is not the address of a plain allocation")))
    }

    /// How large the page is.
    pub(crate) fn page_bytes(&self, page: PageHandle) -> Result<u64, DeviceError> {
        self.pages.get(&page.0).map(|page| page.size_bytes).ok_or_else(|| unknown_page(page))
    }

    /// Addresses for a plain allocation of another process.
    pub(crate) fn open(&mut self, size_bytes: u64) -> Result<Addr, DeviceError> {
        let span = self.plain_addresses.take(size_bytes).ok_or(DeviceError::OutOfMemory)?;
        self.opened.insert(span.addr.0, span);
        Ok(span.addr)
    }

    /// The addresses of an opened allocation are free again.
    pub(crate) fn close(&mut self, addr: Addr) -> Result<(), DeviceError> {
        let span = self.opened.remove(&addr.0);
        let span = span.ok_or_else(|| invalid(format!("nothing was opened at {addr}")))?;
        self.plain_addresses.give_back(span);
        Ok(())
    }

    /// A further handle to the memory of a page of this process.
    pub(crate) fn open_page(&mut self, page: PageHandle) -> Result<PageHandle, DeviceError> {
        let known = self.pages.get(&page.0).ok_or_else(|| unknown_page(page))?;
        let (size_bytes, counted, memory) = (known.size_bytes, known.counted, &known.memory);
        let memory = Arc::clone(memory);
        self.further += 1;
        Ok(self.add_page(size_bytes, Some(memory), counted))
    }

    /// A handle to a page of another process.
    pub(crate) fn open_foreign_page(&mut self, size_bytes: u64) -> PageHandle {
        self.add_page(size_bytes, None, false)
    }

    // Other tenants.

    /// Another process takes memory: as much as it asks for, as far as there is some.
    pub(crate) fn tenant_take(&mut self, size_bytes: u64) -> u64 {
        let whole_units = self.free_bytes() / UNIT_BYTES * UNIT_BYTES;
        let taken = size_bytes.checked_next_multiple_of(UNIT_BYTES).unwrap_or(whole_units);
        let taken = taken.min(whole_units);
        self.tenant_bytes += taken;
        taken
    }

    /// The other process gives memory back: as much as it is told to, as far as it has some.
    pub(crate) fn tenant_give(&mut self, size_bytes: u64) -> u64 {
        let given = size_bytes.checked_next_multiple_of(UNIT_BYTES).unwrap_or(u64::MAX);
        let given = given.min(self.tenant_bytes);
        self.tenant_bytes -= given;
        given
    }
}

pub(crate) fn invalid(text: impl Into<String>) -> DeviceError {
    DeviceError::Other { code: INVALID_VALUE, text: text.into() }
}

fn unknown_page(page: PageHandle) -> DeviceError {
    invalid(format!("there is no page {}", page.0))
}

fn shown(span: Span) -> String {
    format!("{} bytes at {}", span.size_bytes, span.addr)
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;

    fn memory(units: u64) -> Memory {
        Memory::new(0, units * UNIT_BYTES, &[])
    }

    fn units(first: u64, count: u64) -> Span {
        Span::new(Addr(RESERVE_BASE + first * UNIT_BYTES), count * UNIT_BYTES)
    }

    #[test]
    fn plain_memory_and_pages_share_one_capacity() {
        let mut memory = memory(4);
        let plain = memory.alloc(3 * MIB).unwrap();
        assert_eq!(memory.used_bytes(), 4 * MIB, "rounded up to whole units");
        let page = memory.create_page(4 * MIB).unwrap();
        assert_eq!(memory.alloc(1), Err(DeviceError::OutOfMemory));
        assert_eq!(memory.create_page(UNIT_BYTES), Err(DeviceError::OutOfMemory));
        memory.free(plain).unwrap();
        memory.create_page(UNIT_BYTES).unwrap();
        memory.release_page(page).unwrap();
        assert_eq!(memory.info(), MemoryInfo { free_bytes: 6 * MIB, total_bytes: 8 * MIB });
    }

    #[test]
    fn ranges_follow_each_other_and_never_come_back() {
        let mut memory = memory(1);
        assert_eq!(memory.reserve(3 * MIB), Ok(Addr(RESERVE_BASE)));
        assert_eq!(memory.reserve(UNIT_BYTES), Ok(units(2, 1).addr));
        memory.unreserve(units(0, 2)).unwrap();
        assert!(memory.unreserve(units(0, 2)).is_err(), "it is gone");
        assert_eq!(memory.reserve(UNIT_BYTES), Ok(units(3, 1).addr));
        assert_eq!(memory.reserve(1 << 52), Err(DeviceError::OutOfMemory));
        assert_eq!(memory.reserve(u64::MAX), Err(DeviceError::OutOfMemory));
        assert!(memory.alloc(1).unwrap() > units(3, 1).end(), "plain memory lies above");
    }

    #[test]
    fn a_page_is_mapped_whole_inside_one_range_where_nothing_is() {
        let mut memory = memory(8);
        memory.reserve(4 * UNIT_BYTES).unwrap();
        memory.reserve(4 * UNIT_BYTES).unwrap();
        let [page, other] = [(); 2].map(|()| memory.create_page(2 * UNIT_BYTES).unwrap());
        assert!(memory.map(units(0, 1), page).is_err(), "only half of the page");
        assert!(memory.map(units(3, 2), page).is_err(), "across two ranges");
        assert!(memory.map(units(7, 2), page).is_err(), "beyond the last range");
        assert!(memory.map(units(0, 2), PageHandle(99)).is_err(), "no such page");
        memory.map(units(1, 2), page).unwrap();
        assert!(memory.map(units(0, 2), other).is_err(), "its end is taken");
        assert!(memory.map(units(2, 2), other).is_err(), "its start is taken");
        assert!(memory.release_page(page).is_err(), "still mapped");
        assert!(memory.unreserve(units(0, 4)).is_err(), "something is mapped in it");
        assert!(memory.unmap(units(1, 1)).is_err(), "not the whole piece");
        memory.map(units(4, 2), page).unwrap();
        memory.unmap(units(1, 2)).unwrap();
        assert!(memory.release_page(page).is_err(), "mapped at a second place");
        memory.unmap(units(4, 2)).unwrap();
        memory.release_page(page).unwrap();
        memory.unreserve(units(0, 4)).unwrap();
        assert_eq!(memory.used_bytes(), 2 * UNIT_BYTES, "the other page is left");
    }

    #[test]
    fn access_is_given_to_whole_pages_and_ends_with_the_mapping() {
        let mut memory = memory(8);
        memory.reserve(8 * UNIT_BYTES).unwrap();
        for first in [0, 1, 3] {
            let page = memory.create_page(UNIT_BYTES).unwrap();
            memory.map(units(first, 1), page).unwrap();
        }
        assert!(!memory.is_accessible(units(0, 1)));
        assert!(memory.set_access(units(0, 4)).is_err(), "there is a hole in it");
        assert_eq!(memory.set_access(units(0, 2)), Ok(vec![UNIT_BYTES; 2]));
        let inside = Span::new(units(0, 1).addr.offset(512), UNIT_BYTES);
        assert!(memory.is_accessible(inside), "across two pages");
        assert!(!memory.is_accessible(units(1, 2)) && !memory.is_accessible(units(3, 1)));
        memory.unmap(units(1, 1)).unwrap();
        assert!(!memory.is_accessible(inside));

        let plain = memory.alloc(MIB).unwrap();
        assert!(memory.is_accessible(Span::new(plain.offset(512), MIB - 512)));
        memory.free(plain).unwrap();
        assert!(!memory.is_accessible(Span::new(plain, 512)));
    }

    #[test]
    fn another_tenant_leaves_less_for_us() {
        let mut memory = memory(4);
        let held = memory.alloc(2 * UNIT_BYTES).unwrap();
        assert_eq!(memory.tenant_take(1), UNIT_BYTES);
        assert_eq!(memory.tenant_take(u64::MAX), UNIT_BYTES, "all that was left");
        memory.free(held).unwrap();
        assert_eq!(memory.tenant_take(2 * UNIT_BYTES), 2 * UNIT_BYTES);
        assert_eq!(memory.alloc(1), Err(DeviceError::OutOfMemory), "though we hold nothing");
        assert_eq!(memory.tenant_give(u64::MAX), 4 * UNIT_BYTES);
        assert_eq!(memory.info().free_bytes, 4 * UNIT_BYTES);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let mut memory = memory(4);
        assert!(memory.alloc(0).is_err() && memory.reserve(0).is_err());
        assert!(memory.create_page(0).is_err() && memory.create_page(MIB).is_err());
        assert_eq!(memory.alloc(u64::MAX), Err(DeviceError::OutOfMemory));
        assert!(memory.free(Addr(PLAIN_BASE)).is_err());
        let addr = memory.alloc(1).unwrap();
        memory.free(addr).unwrap();
        assert!(memory.free(addr).is_err(), "freed twice");
        assert!(memory.set_access(Span::new(Addr(u64::MAX), 2)).is_err());
        assert_eq!(memory.used_bytes(), 0);
    }
}
