//! What kind of device to simulate.

use std::time::Duration;

use larder_core::types::{GIB, Span};

use crate::faults::FaultPlan;
use crate::sharing::Wire;

/// What kind of device to simulate.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools)] // Each is a property of its own; any mixture is legal.
pub struct SimOptions {
    /// Which device of the process; below 1024. Devices of different index share no address.
    pub index: u32,
    /// All the memory that the device has.
    pub memory_bytes: u64,
    /// Whether reserve, create, map and their inverses work.
    pub virtual_memory: bool,
    /// Addresses that plain allocations get first, for replaying a recorded device.
    ///
    /// An allocation takes the next address in the list that was recorded for exactly its size,
    /// skipping those that are not free; when none is left it takes the lowest free address. An
    /// address is placed at the start of the device's plain region plus its recorded value, so
    /// that order and distances are kept.
    pub recorded_addresses: Vec<Span>,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Where other processes find what is shared: devices with clones of one wire are processes of
    /// one machine.
    pub wire: Wire,
    /// Whether other devices can reach this one's memory.
    pub peers: bool,
    /// How long, in real time, it takes to begin or to end a capture and to destroy a stream, so
    /// that threads can get in each other's way as they do on a real device.
    pub pause: Duration,
    /// Whether work ends when its time is over, and not only when somebody says so.
    pub timed: bool,
    /// Whether plain allocations get addresses as a real driver was seen to give them: downwards,
    /// in slots of 32 MiB.
    pub like_a_driver: bool,
}

impl Default for SimOptions {
    /// Device 0 with 80 GiB and virtual memory, on which nothing goes wrong.
    fn default() -> SimOptions {
        SimOptions {
            index: 0,
            memory_bytes: 80 * GIB,
            virtual_memory: true,
            recorded_addresses: Vec::new(),
            faults: FaultPlan::default(),
            wire: Wire::default(),
            peers: true,
            pause: Duration::ZERO,
            timed: false,
            like_a_driver: false,
        }
    }
}

/// Each takes the options as they are so far, and gives them back with one of them set.
impl SimOptions {
    /// Which device of the process.
    #[must_use]
    pub fn index(mut self, index: u32) -> Self {
        self.index = index;
        self
    }

    /// All the memory that the device has.
    #[must_use]
    pub fn memory_bytes(mut self, memory_bytes: u64) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Whether pages can be reserved, created and mapped.
    #[must_use]
    pub fn virtual_memory(mut self, virtual_memory: bool) -> Self {
        self.virtual_memory = virtual_memory;
        self
    }

    /// Addresses that plain allocations get first.
    #[must_use]
    pub fn recorded_addresses(mut self, recorded_addresses: Vec<Span>) -> Self {
        self.recorded_addresses = recorded_addresses;
        self
    }

    /// What goes wrong.
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// Where other processes find what is shared.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Whether other devices can reach this one's memory.
    #[must_use]
    pub fn peers(mut self, peers: bool) -> Self {
        self.peers = peers;
        self
    }

    /// How long it takes to begin or to end a capture and to destroy a stream.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Whether work ends when its time is over.
    #[must_use]
    pub fn timed(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }

    /// Whether plain allocations get addresses as a real driver was seen to give them.
    #[must_use]
    pub fn like_a_driver(mut self, like_a_driver: bool) -> Self {
        self.like_a_driver = like_a_driver;
        self
    }
}
