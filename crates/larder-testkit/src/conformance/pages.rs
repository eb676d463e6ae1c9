//! Checks of virtual memory: ranges, pages, mappings and access.

use larder_core::device::DeviceError;
use larder_core::types::{Addr, PageHandle, Span};

use super::{Check, Outcome, Subject, ensure, must, must_refuse, must_run_out};

pub(super) const CHECKS: &[Check] = &[
    ("without virtual memory the device says so", not_supported),
    ("ranges are aligned, apart and cost no memory", ranges),
    ("a range is given back whole and once", range_given_back),
    ("pages take memory and give it back", pages),
    ("running out of pages changes nothing", pages_run_out),
    ("a page goes only where it may", map_where),
    ("a page is unmapped in one piece and once", unmap),
    ("access needs mapped pages", access),
    ("what is mapped stays", mapped_stays),
    ("a page moves to another place", page_moves),
];

/// A device that has no virtual memory passes the checks about it.
fn supported(subject: &Subject<'_>) -> bool {
    subject.device.properties().virtual_memory
}

fn not_supported(subject: &Subject<'_>) -> Outcome {
    if supported(subject) {
        return Ok(());
    }
    let size_bytes = subject.granularity_bytes();
    let reserve = subject.device.reserve(size_bytes).map(drop);
    let create = subject.device.create_page(size_bytes).map(drop);
    for (call, result) in [("reserve", reserve), ("create_page", create)] {
        ensure(result == Err(DeviceError::NotSupported), || {
            format!("{call} answers {result:?} instead of 'not supported'")
        })?;
    }
    Ok(())
}

fn ranges(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let before_bytes = subject.free_bytes()?;
    let granularity_bytes = subject.granularity_bytes();
    // The last is larger than the memory: addresses are not memory.
    let total_bytes =
        subject.device.properties().total_bytes / granularity_bytes * granularity_bytes;
    let mut spans: Vec<Span> = Vec::new();
    for size_bytes in [granularity_bytes, 3 * granularity_bytes, 2 * total_bytes] {
        let addr = must("reserve", subject.device.reserve(size_bytes))?;
        let span = Span::new(addr, size_bytes);
        ensure(addr.0 > 0 && addr.0.is_multiple_of(granularity_bytes), || {
            format!("a range at {addr} is not aligned")
        })?;
        ensure(!spans.iter().any(|other| other.overlaps(span)), || {
            format!("the range at {addr} overlaps another")
        })?;
        spans.push(span);
    }
    subject.expect_free(before_bytes, "with ranges reserved")?;
    spans.into_iter().try_for_each(|span| must("unreserve", subject.device.unreserve(span)))
}

fn range_given_back(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let size_bytes = subject.granularity_bytes();
    let addr = must("reserve", subject.device.reserve(4 * size_bytes))?;
    let half = Span::new(addr, 2 * size_bytes);
    must_refuse("giving back half a range", subject.device.unreserve(half))?;
    let inner = Span::new(addr.offset(size_bytes), 3 * size_bytes);
    must_refuse("giving back the end of a range", subject.device.unreserve(inner))?;
    let whole = Span::new(addr, 4 * size_bytes);
    must("unreserve", subject.device.unreserve(whole))?;
    must_refuse("giving back a range twice", subject.device.unreserve(whole))
}

fn pages(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let before_bytes = subject.free_bytes()?;
    let size_bytes = subject.granularity_bytes();
    let small = must("create_page", subject.device.create_page(size_bytes))?;
    let large = must("create_page", subject.device.create_page(10 * size_bytes))?;
    ensure(small != large, || String::from("two pages have one handle"))?;
    subject.expect_free(before_bytes - 11 * size_bytes, "with two pages created")?;
    must("release_page", subject.device.release_page(small))?;
    subject.expect_free(before_bytes - 10 * size_bytes, "with one of them released")?;
    must_refuse("releasing a page twice", subject.device.release_page(small))?;
    must("release_page", subject.device.release_page(large))?;
    subject.expect_free(before_bytes, "with both released")
}

fn pages_run_out(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let before_bytes = subject.free_bytes()?;
    let size_bytes = subject.granularity_bytes();
    let too_large = (subject.device.properties().total_bytes / size_bytes + 1) * size_bytes;
    must_run_out("a page larger than the device", subject.device.create_page(too_large))?;
    subject.expect_free(before_bytes, "after running out of memory for a page")
}

/// A reserved range, and pages to put there.
struct Stage<'a> {
    subject: &'a Subject<'a>,
    range: Span,
    pages: [PageHandle; 2],
}

const STAGE_UNITS: u64 = 4;

impl<'a> Stage<'a> {
    /// A range of four units, a page of one unit, and one of two.
    fn new(subject: &'a Subject<'a>) -> Result<Stage<'a>, String> {
        let size_bytes = subject.granularity_bytes();
        let addr = must("reserve", subject.device.reserve(STAGE_UNITS * size_bytes))?;
        let small = must("create_page", subject.device.create_page(size_bytes))?;
        let large = must("create_page", subject.device.create_page(2 * size_bytes))?;
        let range = Span::new(addr, STAGE_UNITS * size_bytes);
        Ok(Stage { subject, range, pages: [small, large] })
    }

    /// `count` units from the `first` unit of the range on.
    fn units(&self, first: u64, count: u64) -> Span {
        let size_bytes = self.subject.granularity_bytes();
        Span::new(self.range.addr.offset(first * size_bytes), count * size_bytes)
    }

    /// Gives everything back; nothing may be mapped any more.
    fn leave(self) -> Outcome {
        for page in self.pages {
            must("release_page", self.subject.device.release_page(page))?;
        }
        must("unreserve", self.subject.device.unreserve(self.range))
    }
}

fn map_where(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let stage = Stage::new(subject)?;
    let [small, large] = stage.pages;
    let device = subject.device;
    must_refuse("mapping half a page", device.map(stage.units(0, 1), large))?;
    must_refuse("mapping over the end of a range", device.map(stage.units(3, 2), large))?;
    let nowhere = Span::new(Addr(subject.granularity_bytes()), subject.granularity_bytes());
    must_refuse("mapping outside of every range", device.map(nowhere, small))?;
    must("map", device.map(stage.units(1, 2), large))?;
    for first in [1, 2] {
        must_refuse("mapping where something is", device.map(stage.units(first, 1), small))?;
    }
    must("map beside a mapped page", device.map(stage.units(0, 1), small))?;
    must("unmap", device.unmap(stage.units(0, 1)))?;
    must("unmap", device.unmap(stage.units(1, 2)))?;
    stage.leave()
}

fn unmap(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let stage = Stage::new(subject)?;
    let [_, large] = stage.pages;
    let device = subject.device;
    must_refuse("unmapping where nothing is", device.unmap(stage.units(0, 1)))?;
    must("map", device.map(stage.units(1, 2), large))?;
    must_refuse("unmapping half a page", device.unmap(stage.units(1, 1)))?;
    must("unmap", device.unmap(stage.units(1, 2)))?;
    must_refuse("unmapping twice", device.unmap(stage.units(1, 2)))?;
    stage.leave()
}

fn access(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let stage = Stage::new(subject)?;
    let [small, large] = stage.pages;
    let device = subject.device;
    must_refuse("access where nothing is mapped", device.set_access(stage.units(0, 1)))?;
    must("map", device.map(stage.units(0, 1), small))?;
    must_refuse("access beyond what is mapped", device.set_access(stage.units(0, 2)))?;
    must("set_access", device.set_access(stage.units(0, 1)))?;
    must("map", device.map(stage.units(1, 2), large))?;
    must("set_access over two pages", device.set_access(stage.units(0, 3)))?;
    must("unmap", device.unmap(stage.units(0, 1)))?;
    must("unmap", device.unmap(stage.units(1, 2)))?;
    stage.leave()
}

fn mapped_stays(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) || !subject.drive.refuses_misuse() {
        return Ok(());
    }
    let stage = Stage::new(subject)?;
    let [small, _] = stage.pages;
    let device = subject.device;
    must("map", device.map(stage.units(0, 1), small))?;
    let before_bytes = subject.free_bytes()?;
    must_refuse("releasing a mapped page", device.release_page(small))?;
    must_refuse("giving back a range with a page in it", device.unreserve(stage.range))?;
    subject.expect_free(before_bytes, "after misuse")?;
    must("unmap after misuse", device.unmap(stage.units(0, 1)))?;
    stage.leave()
}

fn page_moves(subject: &Subject<'_>) -> Outcome {
    if !supported(subject) {
        return Ok(());
    }
    let stage = Stage::new(subject)?;
    let [small, _] = stage.pages;
    let device = subject.device;
    let before_bytes = subject.free_bytes()?;
    for place in 0..STAGE_UNITS {
        must("map", device.map(stage.units(place, 1), small))?;
        must("set_access", device.set_access(stage.units(place, 1)))?;
        must("unmap", device.unmap(stage.units(place, 1)))?;
    }
    subject.expect_free(before_bytes, "after moving a page about")?;
    stage.leave()
}
