//! The fleet: the allocators of all devices of a process, behind one door.

use crate::allocator::Allocator;
use crate::allocator::history::{DeviceSnapshot, HistoryOptions, SnapshotOptions};
use crate::error::Error;
use crate::types::{Addr, DeviceIndex, StreamId};

/// One allocator per device. Addresses of different devices never overlap, so a block can be
/// freed without saying whose it is.
pub struct Fleet {
    allocators: Vec<Allocator>,
}

impl Fleet {
    /// The fleet of these allocators, one per device.
    pub fn new(allocators: Vec<Allocator>) -> Fleet {
        Fleet { allocators }
    }

    /// The allocator of a device.
    pub fn device(&self, index: DeviceIndex) -> Result<&Allocator, Error> {
        self.allocators
            .iter()
            .find(|allocator| allocator.device_index() == index)
            .ok_or(Error::NoDevice(index))
    }

    /// All allocators.
    pub fn allocators(&self) -> &[Allocator] {
        &self.allocators
    }

    /// Memory of at least `size_bytes` on a device, for use on `stream`.
    pub fn malloc(
        &self,
        device: DeviceIndex,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Addr, Error> {
        self.device(device)?.malloc(size_bytes, stream)
    }

    /// Gives back memory, whichever device it is on.
    pub fn free(&self, addr: Addr) -> Result<(), Error> {
        for allocator in &self.allocators {
            match allocator.free(addr) {
                Err(Error::UnknownAddress(_)) => {}
                result => return result,
            }
        }
        Err(Error::UnknownAddress(addr))
    }

    /// Remembers what happens on every device from now on.
    pub fn record_history(&self, options: &HistoryOptions) -> Result<(), Error> {
        self.allocators.iter().try_for_each(|allocator| allocator.record_history(options.clone()))
    }

    /// Remembers nothing from now on, and forgets what was remembered.
    pub fn stop_history(&self) {
        self.allocators.iter().for_each(Allocator::stop_history);
    }

    /// A snapshot of each device.
    pub fn take_snapshots(&self, options: SnapshotOptions) -> Vec<DeviceSnapshot> {
        self.allocators.iter().map(|allocator| allocator.take_snapshot(options)).collect()
    }

    /// Empties the caches of all devices. Every device is emptied; the first error is returned.
    pub fn empty_cache(&self) -> Result<(), Error> {
        let results: Vec<_> = self.allocators.iter().map(Allocator::empty_cache).collect();
        results.into_iter().collect()
    }
}
