//! Pages at several addresses at once.

use std::collections::HashMap;

use larder_core::device::{Device, DeviceError};
use larder_core::types::{Addr, PageHandle, Span};
use larder_sim::random::Random;
use larder_sim::{CallKind, Fault, FaultPlan, SimDevice, SimOptions, UNIT_BYTES};

/// A device, and a range of so many units on it.
fn device(units: u64, faults: FaultPlan) -> (SimDevice, Addr) {
    let device = SimDevice::new(SimOptions::default().faults(faults));
    let addr = device.reserve(units * UNIT_BYTES).unwrap();
    (device, addr)
}

fn unit(range: Addr, number: u64) -> Span {
    Span::new(range.offset(number * UNIT_BYTES), UNIT_BYTES)
}

#[test]
fn access_is_given_place_by_place_and_ends_with_the_place() {
    let (device, range) = device(2, FaultPlan::default());
    let page = device.create_page(UNIT_BYTES).unwrap();
    for number in 0..2 {
        device.map(unit(range, number), page).unwrap();
    }
    device.set_access(unit(range, 0)).unwrap();
    let [one, other] = [0, 1].map(|number| unit(range, number).addr.offset(9));
    assert!(device.write(one, 5) && !device.write(other, 6), "only one of them is open");
    assert_eq!((device.read(one), device.read(other)), (Some(5), None));
    assert_eq!(device.extents(unit(range, 1)), None);
    device.set_access(unit(range, 1)).unwrap();
    assert_eq!(device.read(other), Some(5));
    assert_eq!(device.extents(unit(range, 0)), device.extents(unit(range, 1)));
    device.unmap(unit(range, 0)).unwrap();
    assert_eq!((device.read(one), device.read(other)), (None, Some(5)));
    device.map(unit(range, 0), page).unwrap();
    assert_eq!(device.read(one), None, "access is given anew");
}

#[test]
fn peers_get_access_place_by_place() {
    let (device, range) = device(2, FaultPlan::default());
    let peer = larder_core::types::DeviceIndex(1);
    device.open_to_peer(peer).unwrap();
    let page = device.create_page(UNIT_BYTES).unwrap();
    for number in 0..2 {
        device.map(unit(range, number), page).unwrap();
    }
    device.set_peer_access(unit(range, 1), peer).unwrap();
    let open = [0, 1].map(|number| device.is_open_to_peer(unit(range, number), peer));
    assert_eq!(open, [false, true]);
}

#[test]
fn a_fault_at_a_further_place_changes_nothing() {
    let plan = FaultPlan::new(0)
        .fail_nth(CallKind::Map, 2, Fault::Other)
        .fail_nth(CallKind::Map, 3, Fault::OutOfMemory)
        .fail_nth(CallKind::Unmap, 1, Fault::Other)
        .fail_nth(CallKind::Release, 2, Fault::Other);
    let (device, range) = device(2, plan);
    let page = device.create_page(UNIT_BYTES).unwrap();
    device.map(unit(range, 0), page).unwrap();
    device.set_access(unit(range, 0)).unwrap();
    assert!(device.write(range, 3));
    assert_eq!(device.map(unit(range, 1), page), Err(Fault::Other.error()));
    assert_eq!(device.map(unit(range, 1), page), Err(DeviceError::OutOfMemory));
    assert!(device.set_access(unit(range, 1)).is_err(), "nothing is there");
    device.map(unit(range, 1), page).unwrap();
    assert_eq!(device.unmap(unit(range, 0)), Err(Fault::Other.error()));
    assert_eq!(device.read(range), Some(3), "the place is still there");
    device.unmap(unit(range, 0)).unwrap();
    assert!(device.release_page(page).is_err(), "the second place is left");
    device.unmap(unit(range, 1)).unwrap();
    assert_eq!(device.release_page(page), Err(Fault::Other.error()));
    assert_eq!(device.used_bytes(), UNIT_BYTES);
    device.release_page(page).unwrap();
    assert_eq!((device.used_bytes(), device.page_count()), (0, 0));
}

#[test]
fn what_is_given_back_keeps_no_bytes() {
    let (device, range) = device(1, FaultPlan::default());
    for value in [7, 8] {
        let page = device.create_page(UNIT_BYTES).unwrap();
        device.map(unit(range, 0), page).unwrap();
        device.set_access(unit(range, 0)).unwrap();
        assert_eq!(device.read(range), Some(0), "the page is new");
        assert!(device.write(range, value));
        device.unmap(unit(range, 0)).unwrap();
        device.release_page(page).unwrap();
        let plain = device.alloc(512).unwrap();
        assert_eq!(device.read(plain), Some(0), "the memory is new");
        assert!(device.write(plain, value) && !device.write(plain.offset(UNIT_BYTES), value));
        assert_eq!(device.read(plain), Some(value));
        device.free(plain).unwrap();
        assert_eq!(device.read(plain), None);
    }
}

#[test]
fn a_further_handle_of_a_page_shows_its_memory_too() {
    let (device, range) = device(2, FaultPlan::default());
    let page = device.create_page(UNIT_BYTES).unwrap();
    let shared = device.export_page(page).unwrap();
    let other = device.import_page(shared, std::process::id(), UNIT_BYTES).unwrap();
    for (number, page) in [(0, page), (1, other)] {
        device.map(unit(range, number), page).unwrap();
    }
    device.set_access(Span::new(range, 2 * UNIT_BYTES)).unwrap();
    assert!(device.is_aliased() && device.write(range, 4));
    assert_eq!(device.read(unit(range, 1).addr), Some(4));
    device.unmap(unit(range, 0)).unwrap();
    device.release_page(page).unwrap();
    assert_eq!(device.read(unit(range, 1).addr), Some(4), "the memory is there for the other");
    assert!(!device.is_aliased());
}

#[test]
fn extents_are_told_in_the_order_of_addresses_and_cut_to_the_span() {
    let (device, range) = device(3, FaultPlan::default());
    let pages = [(); 2].map(|()| device.create_page(UNIT_BYTES).unwrap());
    for (number, page) in [(0, pages[1]), (1, pages[0]), (2, pages[1])] {
        device.map(unit(range, number), page).unwrap();
    }
    device.set_access(Span::new(range, 3 * UNIT_BYTES)).unwrap();
    let span = Span::new(range.offset(UNIT_BYTES - 512), UNIT_BYTES + 1024);
    let extents = device.extents(span).unwrap();
    let cut: Vec<_> =
        extents.iter().map(|extent| (extent.offset_bytes, extent.size_bytes)).collect();
    assert_eq!(cut, [(UNIT_BYTES - 512, 512), (0, UNIT_BYTES), (0, 512)]);
    assert_eq!(extents[0].memory, extents[2].memory, "one page, seen twice");
    assert_ne!(extents[0].memory, extents[1].memory);
    assert!(!extents[0].overlaps(&extents[2]), "but not the same part of it");
}

/// What a caller who writes everything down knows.
#[derive(Default)]
struct Book {
    /// Each page's first byte.
    pages: HashMap<PageHandle, u8>,
    mapped: HashMap<u64, PageHandle>,
}

#[test]
fn a_long_random_run_agrees_with_a_naive_book() {
    const UNITS: u64 = 40;
    let (device, range) = device(UNITS, FaultPlan::default());
    let (mut random, mut book) = (Random::new(5), Book::default());
    let (mut aliased, mut refused) = (0, 0);
    for step in 0..20_000 {
        let number = random.below(UNITS);
        let mut known: Vec<PageHandle> = book.pages.keys().copied().collect();
        known.sort_by_key(|page| page.0);
        let page = known.get(random.below(known.len().max(1) as u64) as usize).copied();
        match (random.below(8), page) {
            (0, _) if known.len() < 8 => {
                let page = device.create_page(UNIT_BYTES).unwrap();
                book.pages.insert(page, 0);
            }
            (1, Some(page)) => {
                let is_held = book.mapped.values().any(|&other| other == page);
                assert_eq!(device.release_page(page).is_err(), is_held, "step {step}");
                if is_held {
                    refused += 1;
                } else {
                    book.pages.remove(&page);
                }
            }
            (2..=4, Some(page)) => {
                let is_taken = book.mapped.contains_key(&number);
                let result = device.map(unit(range, number), page);
                assert_eq!(result.is_err(), is_taken, "step {step}");
                if !is_taken {
                    device.set_access(unit(range, number)).unwrap();
                    book.mapped.insert(number, page);
                }
            }
            (5 | 6, _) => {
                let is_there = book.mapped.remove(&number).is_some();
                assert_eq!(device.unmap(unit(range, number)).is_ok(), is_there, "step {step}");
            }
            _ => {
                let value = random.below(256) as u8;
                let written = device.write(unit(range, number).addr, value);
                let page = book.mapped.get(&number);
                assert_eq!(written, page.is_some(), "step {step}");
                if let Some(&page) = page {
                    book.pages.insert(page, value);
                }
            }
        }
        let read = |number| device.read(unit(range, number).addr);
        for number in 0..UNITS {
            let expected = book.mapped.get(&number).map(|page| book.pages[page]);
            assert_eq!(read(number), expected, "unit {number} after step {step}");
        }
        let mut seen: Vec<_> = book.mapped.values().collect();
        seen.sort_by_key(|page| page.0);
        let is_aliased = seen.windows(2).any(|pair| pair[0] == pair[1]);
        assert_eq!(device.is_aliased(), is_aliased, "step {step}");
        aliased = aliased.max(book.mapped.len().saturating_sub(book.pages.len()));
        assert_eq!(device.used_bytes(), book.pages.len() as u64 * UNIT_BYTES);
    }
    assert!(aliased > 10 && refused > 100, "{aliased} more places than pages, {refused} refusals");
}
