//! Checks of pages that are mapped at several addresses at once.

use larder_core::types::{Addr, PageHandle, Span};

use super::{Check, Outcome, Subject, must, must_refuse};

pub(super) const CHECKS: &[Check] = &[
    ("a page may be at many places, which take no memory", many_places),
    ("unmapping one place leaves the others", one_place_less),
    ("all places of a page show the same bytes", same_bytes),
    ("a page stays while it has a place left", stays_for_the_last),
];

/// How many times over the pages are mapped: a device that can do it only twice is found out.
const PLACES: u64 = 16;
/// How many units a page has that is mapped so: not one, so that its inner bytes are seen too.
const PAGE_UNITS: u64 = 2;

/// A page, and ranges with room for it at many places.
struct Stage<'a> {
    subject: &'a Subject<'a>,
    page: PageHandle,
    ranges: [Span; 2],
}

impl<'a> Stage<'a> {
    /// None on a device that has no virtual memory, which passes.
    fn new(subject: &'a Subject<'a>) -> Result<Option<Stage<'a>>, String> {
        if !subject.device.properties().virtual_memory {
            return Ok(None);
        }
        let size_bytes = PLACES / 2 * PAGE_UNITS * subject.granularity_bytes();
        let reserve = || {
            let addr = must("reserve", subject.device.reserve(size_bytes))?;
            Ok::<_, String>(Span::new(addr, size_bytes))
        };
        let ranges = [reserve()?, reserve()?];
        let page_bytes = PAGE_UNITS * subject.granularity_bytes();
        let page = must("create_page", subject.device.create_page(page_bytes))?;
        Ok(Some(Stage { subject, page, ranges }))
    }

    fn page_bytes(&self) -> u64 {
        PAGE_UNITS * self.subject.granularity_bytes()
    }

    /// The place of this number: every other one lies in the second range.
    fn place(&self, number: u64) -> Span {
        let range = self.ranges[(number % 2) as usize];
        Span::new(range.addr.offset(number / 2 * self.page_bytes()), self.page_bytes())
    }

    /// Puts a page there for the device to use.
    fn put(&self, number: u64, page: PageHandle) -> Outcome {
        let place = self.place(number);
        let words = format!("map at place {} of a page", number + 1);
        must(&words, self.subject.device.map(place, page))?;
        must("set_access", self.subject.device.set_access(place))
    }

    fn remove(&self, number: u64) -> Outcome {
        let words = format!("unmap of place {}", number + 1);
        must(&words, self.subject.device.unmap(self.place(number)))
    }

    /// Gives back the ranges, in which nothing may be mapped any more, and the page.
    fn leave(self) -> Outcome {
        must("release_page", self.subject.device.release_page(self.page))?;
        self.leave_without_page()
    }

    fn leave_without_page(self) -> Outcome {
        let device = self.subject.device;
        self.ranges.into_iter().try_for_each(|range| must("unreserve", device.unreserve(range)))
    }
}

fn many_places(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    let before_bytes = subject.free_bytes()?;
    for number in 0..PLACES {
        stage.put(number, stage.page)?;
    }
    subject.expect_free(before_bytes, "with a page at many places")?;
    let again = subject.device.map(stage.place(1), stage.page);
    must_refuse("mapping a page where it is already", again)?;
    for number in 0..PLACES {
        must("set_access at one of many places", subject.device.set_access(stage.place(number)))?;
    }
    (0..PLACES).try_for_each(|number| stage.remove(number))?;
    subject.expect_free(before_bytes, "with a page at none of many places")?;
    stage.leave()
}

fn one_place_less(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    for number in 0..3 {
        stage.put(number, stage.page)?;
    }
    // In an order that is neither that in which they came nor its reverse.
    for (gone, left) in [(1, [0, 2]), (0, [2, 1]), (2, [1, 0])] {
        stage.remove(gone)?;
        let twice = subject.device.unmap(stage.place(gone));
        must_refuse("unmapping a place twice", twice)?;
        let access = subject.device.set_access(stage.place(gone));
        must_refuse("access to a place that is gone", access)?;
        for number in left {
            let access = subject.device.set_access(stage.place(number));
            must("set_access to a place that is left", access)?;
        }
        stage.put(gone, stage.page)?;
    }
    (0..3).try_for_each(|number| stage.remove(number))?;
    stage.leave()
}

fn same_bytes(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    let (first, device) = (stage.page, subject.device);
    let second = must("create_page", device.create_page(stage.page_bytes()))?;
    // The pages lie among each other, as in a range that was put together from what was left over.
    let page_of = |number: u64| if number % 3 == 1 { second } else { first };
    for number in 0..PLACES {
        stage.put(number, page_of(number))?;
    }
    let offsets = [0, subject.granularity_bytes() + 1, stage.page_bytes() - 1];
    let at = |number: u64, offset: u64| stage.place(number).addr.offset(offset);
    let expect = |places: &mut dyn Iterator<Item = u64>, page, value: u8, when: &str| {
        for number in places.filter(|&number| page_of(number) == page) {
            for (offset, value) in offsets.into_iter().zip(value..) {
                subject.expect_byte(at(number, offset), value, when)?;
            }
        }
        Ok::<(), String>(())
    };
    let write = |number: u64, value: u8| {
        let mut bytes = offsets.into_iter().zip(value..);
        bytes.try_for_each(|(offset, value)| subject.write(at(number, offset), value))
    };
    // Written at one place each, and then again at another: all show what came last.
    write(1, 100)?;
    for (number, value) in [(0, 10), (PLACES - 1, 20)] {
        write(number, value)?;
        expect(&mut (0..PLACES), first, value, "written at another place")?;
        expect(&mut (0..PLACES), second, 100, "with another page written")?;
    }
    stage.remove(0)?;
    expect(&mut (1..PLACES), first, 20, "with one place gone")?;
    stage.put(0, first)?;
    expect(&mut (0..PLACES), first, 20, "mapped at a place again")?;
    (0..PLACES).try_for_each(|number| stage.remove(number))?;
    stage.put(2, first)?;
    expect(&mut (2..3), first, 20, "mapped after having been mapped nowhere")?;
    stage.remove(2)?;
    must("release_page", device.release_page(second))?;
    stage.leave()
}

fn stays_for_the_last(subject: &Subject<'_>) -> Outcome {
    let Some(stage) = Stage::new(subject)? else { return Ok(()) };
    if !subject.drive.refuses_misuse() {
        return stage.leave();
    }
    let (device, before_bytes) = (subject.device, subject.free_bytes()?);
    for number in 0..3 {
        stage.put(number, stage.page)?;
    }
    let addr: Addr = stage.place(1).addr;
    subject.write(addr, 42)?;
    for number in [2, 0] {
        stage.remove(number)?;
        let words = "releasing a page that has a place left";
        must_refuse(words, device.release_page(stage.page))?;
        subject.expect_free(before_bytes, "after such a release")?;
        subject.expect_byte(addr, 42, "after such a release")?;
    }
    let range = stage.ranges[1];
    must_refuse("giving back the range of the last place", device.unreserve(range))?;
    stage.remove(1)?;
    must("release_page", device.release_page(stage.page))?;
    let gone = device.map(stage.place(0), stage.page);
    must_refuse("mapping a released page", gone)?;
    let freed_bytes = stage.page_bytes();
    subject.expect_free(before_bytes + freed_bytes, "with the page released")?;
    stage.leave_without_page()
}
