//! Checks of contents: copied to the host and back, and cleared.

use larder_core::device::DeviceError;
use larder_core::types::{Addr, PageHandle, Span};

use super::{Check, Outcome, Subject, ensure, must, must_refuse};

pub(super) const CHECKS: &[Check] = &[
    ("contents are copied to the host and to other memory", copies),
    ("memory is cleared where it is asked for", clears),
    ("only what the device can use is copied", unusable),
];

/// How many pages a range has.
const PAGES: u64 = 3;
/// How far a span that is copied is away from the ends of its memory.
const MARGIN_BYTES: u64 = 513;

/// Memory to copy from and to: pages side by side.
struct Stage<'a> {
    subject: &'a Subject<'a>,
    range: Span,
    pages: Vec<PageHandle>,
}

impl<'a> Stage<'a> {
    /// None on a device that has no virtual memory, or that copies nothing, which passes.
    fn new(subject: &'a Subject<'a>) -> Result<Option<Stage<'a>>, String> {
        let device = subject.device;
        let none = device.clear(&[]) == Err(DeviceError::NotSupported);
        if none || !device.properties().virtual_memory {
            return Ok(None);
        }
        let page_bytes = subject.granularity_bytes();
        let addr = must("reserve", device.reserve(PAGES * page_bytes))?;
        let range = Span::new(addr, PAGES * page_bytes);
        let mut pages = Vec::new();
        for number in 0..PAGES {
            let page = must("create_page", device.create_page(page_bytes))?;
            let place = Span::new(addr.offset(number * page_bytes), page_bytes);
            must("map", device.map(place, page))?;
            pages.push(page);
        }
        must("set_access", device.set_access(range))?;
        Ok(Some(Stage { subject, range, pages }))
    }

    /// From the middle of the first page to the middle of the last one.
    fn inner(&self) -> Span {
        let addr = self.range.addr.offset(MARGIN_BYTES);
        Span::new(addr, self.range.size_bytes - 2 * MARGIN_BYTES)
    }

    /// Bytes at both ends and at the seams of the pages.
    fn marks(&self) -> Vec<Addr> {
        let (inner, page_bytes) = (self.inner(), self.subject.granularity_bytes());
        let seams = (1..PAGES).map(|page| self.range.addr.0 + page * page_bytes);
        let seams = seams.flat_map(|seam| [seam - 1, seam]);
        [inner.addr.0].into_iter().chain(seams).chain([inner.end().0 - 1]).map(Addr).collect()
    }

    fn write(&self, first: u8) -> Outcome {
        let mut marks = self.marks().into_iter().zip(first..);
        marks.try_for_each(|(addr, value)| self.subject.write(addr, value))
    }

    fn leave(self) -> Outcome {
        let (device, page_bytes) = (self.subject.device, self.subject.granularity_bytes());
        for (number, page) in (0..).zip(self.pages) {
            let place = Span::new(self.range.addr.offset(number * page_bytes), page_bytes);
            must("unmap", device.unmap(place))?;
            must("release_page", device.release_page(page))?;
        }
        must("unreserve", device.unreserve(self.range))
    }
}

fn copies(subject: &Subject<'_>) -> Outcome {
    let (Some(from), Some(to)) = (Stage::new(subject)?, Stage::new(subject)?) else {
        return Ok(());
    };
    from.write(10)?;
    to.write(100)?;
    let outside = [to.range.addr, Addr(to.range.end().0 - 1)];
    outside.into_iter().try_for_each(|addr| subject.write(addr, 77))?;
    let (span, half_bytes) = (from.inner(), from.inner().size_bytes / 2);
    let mut kept = vec![1; span.size_bytes as usize];
    let (low, high) = kept.split_at_mut(half_bytes as usize);
    let behind = Span::new(span.addr.offset(half_bytes), span.size_bytes - half_bytes);
    // Two at once, and not in the order of their addresses.
    let mut out = [(behind, high), (Span::new(span.addr, half_bytes), low)];
    must("copy_out", subject.device.copy_out(&mut out))?;
    for (addr, value) in from.marks().into_iter().zip(10..) {
        let at = (addr.0 - span.addr.0) as usize;
        ensure(kept[at] == value, || {
            format!("the byte of {addr} was copied as {}, not {value}", kept[at])
        })?;
    }
    must("copy_in", subject.device.copy_in(&[(&kept, to.inner())]))?;
    for (addr, value) in to.marks().into_iter().zip(10..) {
        subject.expect_byte(addr, value, "copied from the host")?;
    }
    for addr in outside {
        subject.expect_byte(addr, 77, "beside what was copied")?;
    }
    from.leave()?;
    to.leave()
}

fn clears(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    stage.write(10)?;
    let outside = [stage.range.addr, Addr(stage.range.end().0 - 1)];
    outside.into_iter().try_for_each(|addr| subject.write(addr, 77))?;
    must("clear", subject.device.clear(&[stage.inner()]))?;
    for addr in stage.marks() {
        subject.expect_byte(addr, 0, "cleared")?;
    }
    for addr in outside {
        subject.expect_byte(addr, 77, "beside what was cleared")?;
    }
    stage.leave()
}

fn unusable(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    let device = subject.device;
    let page_bytes = subject.granularity_bytes();
    let beyond = Span::new(Addr(stage.range.end().0 - page_bytes), 2 * page_bytes);
    let mut kept = vec![0; beyond.size_bytes as usize];
    must_refuse("copying what is not there", device.copy_out(&mut [(beyond, &mut kept)]))?;
    must_refuse("copying to where nothing is", device.copy_in(&[(&kept, beyond)]))?;
    must_refuse("clearing where nothing is", device.clear(&[beyond]))?;
    let less = Span::new(stage.range.addr, page_bytes);
    must_refuse("copying more than there is room for", device.copy_in(&[(&kept, less)]))?;
    stage.leave()
}
