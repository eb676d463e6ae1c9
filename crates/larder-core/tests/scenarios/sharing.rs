//! Sharing: two processes on one machine, and peers.

use std::sync::Arc;

use crate::bench_top::MAIN;
use larder_core::allocator::share::Shared;
use larder_core::error::{Error, ShareProblem};
use larder_core::types::{MIB, Span};
use larder_core::{Addr, Allocator, Config, DeviceIndex, Policy};
use larder_sim::random::Random;
use larder_sim::{CallKind, Fault, FaultPlan, SimDevice, SimOptions, Wire};

const SETTINGS: [&str; 3] =
    ["", "expandable_segments:True", "expandable_segments:True,page_size_mb:2"];

/// One process: its view of the GPU, and its allocator.
struct Process {
    device: Arc<SimDevice>,
    allocator: Allocator,
}

impl Process {
    fn new(wire: &Wire, settings: &str) -> Process {
        let options = SimOptions::default().wire(wire.clone());
        let device = Arc::new(SimDevice::new(options));
        let config = Config::parse(settings).unwrap();
        let allocator = Allocator::new(Arc::clone(&device) as _, config, Policy::default());
        Process { device, allocator }
    }

    fn tight(wire: &Wire) -> Process {
        let device = Arc::new(SimDevice::new(SimOptions::default().wire(wire.clone())));
        let allocator =
            Allocator::new(Arc::clone(&device) as _, Config::default(), Policy::tight());
        Process { device, allocator }
    }

    fn malloc(&self, size_bytes: u64) -> Addr {
        self.allocator.malloc(size_bytes, MAIN).unwrap()
    }

    /// A block in a view, whose pages have two sizes.
    fn across_pages(&self, size_bytes: u64) -> Addr {
        let narrow = self.malloc(26 * MIB);
        let wide = self.malloc(128 * MIB);
        self.allocator.free(wide).unwrap();
        self.malloc(100 * MIB);
        self.allocator.free(narrow).unwrap();
        let addr = self.malloc(size_bytes);
        let sizes = self.page_sizes(Span::new(addr, size_bytes));
        assert!(sizes.contains(&(2 * MIB)) && sizes.contains(&(4 * MIB)), "{sizes:?}");
        addr
    }

    /// The sizes of the pages under a block, those at its ends as far as they lie under it.
    fn page_sizes(&self, span: Span) -> Vec<u64> {
        let extents = self.device.extents(span).expect("there is memory behind it");
        extents.iter().map(|extent| extent.size_bytes).collect()
    }

    /// A block that does not start where its segment does, and what others need to use it.
    fn give(&self, size_bytes: u64) -> (Addr, Shared) {
        let first = self.allocator.malloc(2 * size_bytes, MAIN).unwrap();
        self.allocator.free(first).unwrap();
        self.allocator.malloc(3 * MIB, MAIN).unwrap();
        let addr = self.allocator.malloc(size_bytes, MAIN).unwrap();
        (addr, self.allocator.share(addr).unwrap())
    }

    fn can_use(&self, addr: Addr, size_bytes: u64) -> bool {
        self.device.is_accessible(Span::new(addr, size_bytes))
    }
}

/// Two processes for each kind of segment.
fn pairs(story: impl Fn(Process, Process)) {
    for settings in SETTINGS {
        let wire = Wire::default();
        story(Process::new(&wire, settings), Process::new(&wire, settings));
    }
}

#[test]
fn what_one_process_shares_the_other_can_use_where_it_starts() {
    pairs(|sender, receiver| {
        let (_, shared) = sender.give(48 * MIB);
        let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
        assert!(shared.offset_bytes > 0, "it is not the first block of its segment");
        assert!(receiver.can_use(base.offset(shared.offset_bytes), 48 * MIB));
        receiver.allocator.close_shared(base).unwrap();
        assert!(!receiver.can_use(base, MIB));
        assert_eq!(receiver.device.page_count(), 0);
    });
}

#[test]
fn the_same_bytes_are_opened_once_and_closed_as_often_as_opened() {
    pairs(|sender, receiver| {
        let (_, shared) = sender.give(48 * MIB);
        let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
        assert_eq!(receiver.allocator.open_shared(&shared.bytes), Ok(base));
        receiver.allocator.close_shared(base).unwrap();
        assert!(receiver.can_use(base, MIB), "it was opened twice");
        receiver.allocator.close_shared(base).unwrap();
        assert_eq!(receiver.allocator.close_shared(base), Err(Error::NotOpened(base)));
    });
}

#[test]
fn pages_outlive_the_free_of_the_one_who_shared_them() {
    for settings in &SETTINGS[1..] {
        let wire = Wire::default();
        let [sender, receiver] = [(); 2].map(|()| Process::new(&wire, settings));
        let (_, shared) = sender.give(48 * MIB);
        let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
        for segment in sender.allocator.snapshot() {
            for block in segment.blocks {
                let _ = sender.allocator.free(block.span.addr);
            }
        }
        sender.allocator.empty_cache().unwrap();
        assert_eq!(sender.device.page_count(), 0, "the sender has done with them");
        assert!(receiver.can_use(base.offset(shared.offset_bytes), 48 * MIB));
        receiver.allocator.close_shared(base).unwrap();
        let late = receiver.allocator.open_shared(&shared.bytes);
        assert!(matches!(late, Err(Error::Device { .. })), "{late:?}");
        assert_eq!(receiver.device.page_count(), 0, "nothing of the late try is left");
    }
}

#[test]
fn a_block_on_pages_of_different_sizes_is_shared_page_by_page() {
    let wire = Wire::default();
    let [sender, receiver] = [(); 2].map(|()| Process::tight(&wire));
    let addr = sender.across_pages(48 * MIB);
    let shared = sender.allocator.share(addr).unwrap();
    let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
    let there = Span::new(base.offset(shared.offset_bytes), 48 * MIB);
    assert!(receiver.can_use(there.addr, 48 * MIB));
    assert_eq!(receiver.page_sizes(there), sender.page_sizes(Span::new(addr, 48 * MIB)));
    sender.allocator.free(addr).unwrap();
    sender.allocator.empty_cache().unwrap();
    assert!(receiver.can_use(there.addr, 48 * MIB), "it outlives its free");
    receiver.allocator.close_shared(base).unwrap();
    assert_eq!(receiver.device.page_count(), 0);
}

#[test]
fn every_block_of_a_tight_program_can_be_shared() {
    let wire = Wire::default();
    let [sender, receiver] = [(); 2].map(|()| Process::tight(&wire));
    let mut random = Random::new(3);
    let (mut live, mut in_views) = (Vec::new(), 0);
    for _ in 0..400 {
        if live.len() > 30 {
            let at = random.below(live.len() as u64) as usize;
            sender.allocator.free(live.swap_remove(at)).unwrap();
        }
        let size_bytes = random.between(1, 100) * MIB / random.between(1, 10);
        let addr = sender.malloc(size_bytes);
        live.push(addr);
        let segments = sender.allocator.snapshot();
        in_views += segments.iter().filter(|one| one.view && one.span.contains(addr)).count();
        let shared = sender.allocator.share(addr).unwrap();
        let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
        assert!(receiver.can_use(base.offset(shared.offset_bytes), size_bytes));
        receiver.allocator.close_shared(base).unwrap();
    }
    assert!(in_views > 20, "{in_views} were in views");
    assert_eq!(receiver.device.page_count(), 0);
}

#[test]
fn a_page_has_one_handle_until_it_goes() {
    let wire = Wire::default();
    let sender = Process::new(&wire, SETTINGS[1]);
    let (addr, shared) = sender.give(48 * MIB);
    assert_eq!(sender.allocator.share(addr), Ok(shared));
    let calls = sender.device.calls();
    assert_eq!(calls.share, 3, "three pages of 20 MiB lie under 48 MiB from 3 MiB on");
    sender.allocator.free(addr).unwrap();
    sender.allocator.empty_cache().unwrap();
    let closed = sender.device.calls().close_shared;
    assert!(closed > 0, "a page that goes takes its handle along");
}

#[test]
fn only_live_blocks_are_shared_and_only_true_bytes_opened() {
    pairs(|sender, receiver| {
        let (addr, shared) = sender.give(48 * MIB);
        sender.allocator.free(addr).unwrap();
        assert_eq!(sender.allocator.share(addr), Err(Error::UnknownAddress(addr)));
        let open = |bytes: &[u8]| receiver.allocator.open_shared(bytes);
        assert_eq!(open(&[]), Err(Error::BadShare(ShareProblem::Length(0))));
        let mut newer = shared.bytes.clone();
        newer[0] = 9;
        assert_eq!(open(&newer), Err(Error::BadShare(ShareProblem::Version(9))));
        let mut other = shared.bytes;
        let last = other.len() - 1;
        other[last] ^= 0xff;
        assert!(matches!(open(&other), Err(Error::Device { .. })));
        assert_eq!((receiver.device.used_bytes(), receiver.device.page_count()), (0, 0));
    });
}

#[test]
fn an_import_that_fails_midway_leaves_nothing() {
    for (kind, number) in [
        (CallKind::Reserve, 1),
        (CallKind::OpenShared, 2),
        (CallKind::Map, 2),
        (CallKind::Access, 1),
    ] {
        let wire = Wire::default();
        let [sender, receiver] = [(); 2].map(|()| Process::new(&wire, SETTINGS[1]));
        let (_, shared) = sender.give(48 * MIB);
        receiver.device.set_faults(FaultPlan::new(1).fail_nth(kind, number, Fault::Other));
        assert!(receiver.allocator.open_shared(&shared.bytes).is_err(), "{kind:?}");
        assert_eq!(receiver.device.page_count(), 0, "{kind:?}");
        let base = receiver.allocator.open_shared(&shared.bytes).unwrap();
        assert!(receiver.can_use(base, 60 * MIB), "{kind:?}: the next try goes well");
    }
}

#[test]
fn a_peer_can_use_what_there_is_and_what_will_be() {
    let peer = DeviceIndex(1);
    for settings in SETTINGS {
        let process = Process::new(&Wire::default(), settings);
        let open = |addr| {
            let page = addr_page(addr);
            process.device.is_open_to_peer(page, peer)
        };
        let before = process.allocator.malloc(20 * MIB, MAIN).unwrap();
        assert!(!open(before), "{settings}");
        process.allocator.open_to_peer(peer).unwrap();
        process.allocator.open_to_peer(peer).unwrap();
        let after = process.allocator.malloc(20 * MIB, MAIN).unwrap();
        assert!(open(before) && open(after), "{settings}");
    }
}

/// A piece that is one page under all settings, or lies in one plain allocation.
fn addr_page(addr: Addr) -> Span {
    Span::new(addr, 20 * MIB)
}

#[test]
fn a_peer_that_cannot_reach_the_memory_is_an_error() {
    let options = SimOptions::default().peers(false);
    let device = Arc::new(SimDevice::new(options));
    let allocator = Allocator::new(device, Config::default(), Policy::default());
    let refused = allocator.open_to_peer(DeviceIndex(1));
    assert!(matches!(refused, Err(Error::Device { .. })), "{refused:?}");
}
