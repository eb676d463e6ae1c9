//! The bench top: a simulated GPU with an allocator on it, and short ways to work and to look.
//! Every step is followed by a full check of the heap and of the device's books.

use std::sync::Arc;

use larder_core::error::Error;
use larder_core::heap::State;
use larder_core::out_of_memory::OutOfMemory;
use larder_core::{Addr, Allocator, Config, Policy, Stats, StreamId};
use larder_sim::{SimDevice, SimOptions, UNIT_BYTES};

/// The default stream, on which everything happens unless a story says otherwise.
pub(crate) const MAIN: StreamId = StreamId(0);
/// Another stream.
pub(crate) const SIDE: StreamId = StreamId(1);
/// A third stream.
pub(crate) const FAR: StreamId = StreamId(2);

/// A block of a segment, as a story writes it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Live(u64),
    Free(u64),
    Waiting(u64),
    Unmapped(u64),
}

/// A device and its allocator.
#[derive(Clone)]
pub(crate) struct BenchTop {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Arc<Allocator>,
}

impl BenchTop {
    /// A device of this much memory, with settings as text.
    pub(crate) fn new(memory_bytes: u64, settings: &str, policy: Policy) -> BenchTop {
        BenchTop::with(SimOptions::default().memory_bytes(memory_bytes), settings, policy)
    }

    /// A device as the options say.
    pub(crate) fn with(options: SimOptions, settings: &str, policy: Policy) -> BenchTop {
        let device = Arc::new(SimDevice::new(options));
        let config = Config::parse(settings).expect("settings that can be read");
        let allocator = Arc::new(Allocator::new(device.clone(), config, policy));
        BenchTop { device, allocator }
    }

    /// Under the policy that decides as torch does.
    pub(crate) fn torch(memory_bytes: u64, settings: &str) -> BenchTop {
        BenchTop::new(memory_bytes, settings, Policy::torch_2_11())
    }

    /// Under our own policy.
    pub(crate) fn larder(memory_bytes: u64, settings: &str) -> BenchTop {
        BenchTop::new(memory_bytes, settings, Policy::larder())
    }

    /// Tells the story once under each policy that lays memory out as PyTorch does: where it does
    /// not matter which one decides.
    pub(crate) fn under_each_policy(memory_bytes: u64, settings: &str, story: impl Fn(&BenchTop)) {
        for policy in [Policy::larder(), Policy::torch_2_11()] {
            println!("policy {policy}");
            story(&BenchTop::new(memory_bytes, settings, policy));
        }
    }

    pub(crate) fn try_malloc_on(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        let result = self.allocator.malloc(size_bytes, stream);
        self.settle();
        result
    }

    pub(crate) fn try_malloc(&self, size_bytes: u64) -> Result<Addr, Error> {
        self.try_malloc_on(size_bytes, MAIN)
    }

    pub(crate) fn malloc_on(&self, size_bytes: u64, stream: StreamId) -> Addr {
        self.try_malloc_on(size_bytes, stream).expect("memory")
    }

    pub(crate) fn malloc(&self, size_bytes: u64) -> Addr {
        self.malloc_on(size_bytes, MAIN)
    }

    /// A request that cannot be met; gives its numbers.
    pub(crate) fn oom(&self, size_bytes: u64) -> OutOfMemory {
        match self.try_malloc(size_bytes) {
            Err(Error::OutOfMemory(report)) => *report,
            other => panic!("{size_bytes} bytes should be too much, but: {other:?}"),
        }
    }

    pub(crate) fn free(&self, addr: Addr) {
        self.allocator.free(addr).expect("a live address");
        self.settle();
    }

    /// Frees them in this order.
    pub(crate) fn free_all(&self, addrs: &[Addr]) {
        for &addr in addrs {
            self.free(addr);
        }
    }

    /// The same, where the device has more on its books than the heap.
    pub(crate) fn free_all_quietly(&self, addrs: &[Addr]) {
        for &addr in addrs {
            self.allocator.free(addr).expect("a live address");
        }
    }

    pub(crate) fn record(&self, addr: Addr, stream: StreamId) {
        self.allocator.record_stream(addr, stream).expect("a live address");
        self.settle();
    }

    pub(crate) fn empty(&self) {
        self.allocator.empty_cache().expect("a device that takes memory back");
        self.settle();
    }

    pub(crate) fn configure(&self, settings: &str) {
        self.allocator.configure(settings).expect("settings that can be read");
        self.settle();
    }

    /// As `configure`, where the device has more on its books than the heap.
    pub(crate) fn configure_quietly(&self, settings: &str) {
        self.allocator.configure(settings).expect("settings that can be read");
    }

    pub(crate) fn stats(&self) -> Stats {
        self.allocator.stats()
    }

    /// Every segment as the row of its blocks, in the order of addresses.
    pub(crate) fn segments(&self) -> Vec<Vec<Piece>> {
        let piece = |state: State, size_bytes| match state {
            State::Live => Piece::Live(size_bytes),
            State::Free | State::Deferred => Piece::Free(size_bytes),
            State::Waiting => Piece::Waiting(size_bytes),
            State::Unmapped => Piece::Unmapped(size_bytes),
            State::Lent | State::Hollow => panic!("no story tells of views"),
        };
        let segments = self.allocator.snapshot().into_iter();
        segments
            .map(|segment| {
                let blocks = segment.blocks.iter();
                blocks.map(|block| piece(block.state, block.span.size_bytes)).collect()
            })
            .collect()
    }

    /// Every segment's blocks without the addresses that have no memory behind them.
    pub(crate) fn backed(&self) -> Vec<Vec<Piece>> {
        let mut segments = self.segments();
        for segment in &mut segments {
            segment.retain(|piece| !matches!(piece, Piece::Unmapped(_)));
        }
        segments
    }

    /// The heap is sound, and the device's books say the same as its own.
    pub(crate) fn settle(&self) {
        assert_eq!(self.allocator.check(), Ok(()));
        assert_eq!(self.device.used_bytes(), self.backed_bytes());
    }

    /// What the heap holds, as the device counts it.
    pub(crate) fn backed_bytes(&self) -> u64 {
        let segments = self.allocator.snapshot();
        segments.iter().map(|segment| segment.backed_bytes.next_multiple_of(UNIT_BYTES)).sum()
    }
}
