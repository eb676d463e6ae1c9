//! Checks of sharing, as far as one process can make them, and of peers.

use larder_core::device::{Device, DeviceError};
use larder_core::types::{Addr, DeviceIndex, MIB, PageHandle, Span};

use super::{Check, Outcome, Subject, ensure, must, must_refuse};

pub(super) const CHECKS: &[Check] = &[
    ("a plain allocation has one handle", alloc_handle),
    ("only what is held can be shared", alloc_refused),
    ("a shared page is the same memory", page_shared),
    ("a shared page outlives the one who shared it", page_outlives),
    ("a page handle that is gone opens nothing", page_gone),
    ("a device is no peer of itself", own_peer),
];

fn alloc_handle(subject: &Subject<'_>) -> Outcome {
    let device = subject.device;
    let [first, second] =
        [must("alloc", device.alloc(2 * MIB))?, must("alloc", device.alloc(2 * MIB))?];
    match device.export_alloc(first) {
        Err(DeviceError::NotSupported) => {}
        handle => {
            let handle = must("export_alloc", handle)?;
            let again = must("export_alloc again", device.export_alloc(first))?;
            ensure(handle == again, || String::from("one allocation has two handles"))?;
            let other = must("export_alloc of another", device.export_alloc(second))?;
            ensure(handle != other, || String::from("two allocations have one handle"))?;
        }
    }
    must("free", device.free(first))?;
    must("free", device.free(second))
}

fn alloc_refused(subject: &Subject<'_>) -> Outcome {
    let device = subject.device;
    let addr = must("alloc", device.alloc(2 * MIB))?;
    must("free", device.free(addr))?;
    must_refuse("sharing what was freed", device.export_alloc(addr))?;
    must_refuse("sharing address 512", device.export_alloc(Addr(512)))?;
    must_refuse("closing what was not opened", device.close_alloc(addr))
}

/// Whether pages can be shared, found out with one that is given back.
fn shares_pages(subject: &Subject<'_>) -> Result<bool, String> {
    if !subject.device.properties().virtual_memory {
        return Ok(false);
    }
    let page = must("create_page", subject.device.create_page(subject.granularity_bytes()))?;
    let shared = subject.device.export_page(page);
    if let Ok(shared) = shared {
        must("unexport_page", subject.device.unexport_page(shared))?;
    }
    must("release_page", subject.device.release_page(page))?;
    Ok(shared != Err(DeviceError::NotSupported))
}

/// Maps the page at a place of its own, gives access, and takes it down again.
fn can_be_used(device: &dyn Device, size_bytes: u64, page: PageHandle) -> Outcome {
    let addr = must("reserve", device.reserve(size_bytes))?;
    let span = Span::new(addr, size_bytes);
    must("map a shared page", device.map(span, page))?;
    must("set_access to a shared page", device.set_access(span))?;
    must("unmap a shared page", device.unmap(span))?;
    must("unreserve", device.unreserve(span))
}

/// Maps the pages side by side: what is written to one of them is read from the other.
fn shows_the_same(subject: &Subject<'_>, size_bytes: u64, pages: [PageHandle; 2]) -> Outcome {
    let device = subject.device;
    let addr = must("reserve", device.reserve(2 * size_bytes))?;
    let spans = [addr, addr.offset(size_bytes)].map(|addr| Span::new(addr, size_bytes));
    for (span, page) in spans.into_iter().zip(pages) {
        must("map of a page that is shared", device.map(span, page))?;
        must("set_access", device.set_access(span))?;
    }
    let [one, other] = spans.map(|span| span.addr.offset(size_bytes - 1));
    for (from, to, value) in [(one, other, 5), (other, one, 6)] {
        subject.write(from, value)?;
        subject.expect_byte(to, value, "written to the page by its other handle")?;
    }
    spans.into_iter().try_for_each(|span| must("unmap", device.unmap(span)))?;
    must("unreserve", device.unreserve(Span::new(addr, 2 * size_bytes)))
}

fn page_shared(subject: &Subject<'_>) -> Outcome {
    if !shares_pages(subject)? {
        return Ok(());
    }
    let (device, size_bytes) = (subject.device, 2 * subject.granularity_bytes());
    let before_bytes = subject.free_bytes()?;
    let page = must("create_page", device.create_page(size_bytes))?;
    let shared = must("export_page", device.export_page(page))?;
    let pid = std::process::id();
    let other = must("import_page", device.import_page(shared, pid, size_bytes))?;
    ensure(other != page, || String::from("an imported page has the handle of the original"))?;
    subject.expect_free(before_bytes - size_bytes, "with a page shared")?;
    can_be_used(device, size_bytes, other)?;
    can_be_used(device, size_bytes, page)?;
    shows_the_same(subject, size_bytes, [page, other])?;
    must("unexport_page", device.unexport_page(shared))?;
    must("release_page", device.release_page(other))?;
    must("release_page", device.release_page(page))?;
    subject.expect_free(before_bytes, "after sharing a page")
}

fn page_outlives(subject: &Subject<'_>) -> Outcome {
    if !shares_pages(subject)? {
        return Ok(());
    }
    let (device, size_bytes) = (subject.device, 2 * subject.granularity_bytes());
    let before_bytes = subject.free_bytes()?;
    let page = must("create_page", device.create_page(size_bytes))?;
    let shared = must("export_page", device.export_page(page))?;
    let pid = std::process::id();
    let other = must("import_page", device.import_page(shared, pid, size_bytes))?;
    must("unexport_page", device.unexport_page(shared))?;
    must("release_page", device.release_page(page))?;
    subject.expect_free(before_bytes - size_bytes, "while the importer has the page")?;
    can_be_used(device, size_bytes, other)?;
    must("release_page", device.release_page(other))?;
    subject.expect_free(before_bytes, "after the importer released the page")
}

fn page_gone(subject: &Subject<'_>) -> Outcome {
    if !shares_pages(subject)? {
        return Ok(());
    }
    let (device, size_bytes) = (subject.device, subject.granularity_bytes());
    let page = must("create_page", device.create_page(size_bytes))?;
    let shared = must("export_page", device.export_page(page))?;
    must("unexport_page", device.unexport_page(shared))?;
    let pid = std::process::id();
    must_refuse("opening a handle that is gone", device.import_page(shared, pid, size_bytes))?;
    must_refuse("withdrawing a handle twice", device.unexport_page(shared))?;
    must("release_page", device.release_page(page))?;
    must_refuse("sharing a released page", device.export_page(page))
}

fn own_peer(subject: &Subject<'_>) -> Outcome {
    let DeviceIndex(index) = subject.device.properties().index;
    must_refuse("opening memory to itself", subject.device.open_to_peer(DeviceIndex(index)))
}
