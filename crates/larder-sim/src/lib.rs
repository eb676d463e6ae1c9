//! A simulated GPU, and the op scripts that run on it.
//!
//! [`SimDevice`] is a `Device` for a machine with no GPU: replays, tests and what-if questions run
//! on it, and two allocators that decide alike end on it with equal statistics and placements.
//!
//! What is modelled:
//!
//! - **Memory** comes in units of 2 MiB and is used up by plain allocations (rounded up), by
//!   physical pages, and by another tenant if there is one. It is counted, not held.
//! - **Addresses.** A plain allocation gets the lowest free address that fits, aligned to 2 MiB, or
//!   the address that a recorded device gave ([`SimOptions::recorded_addresses`]), or one where a
//!   real driver was seen to look for it ([`SimOptions::like_a_driver`]). Reserved ranges
//!   are handed out upwards, each directly after the last, in a region below all plain
//!   allocations, and never twice. Two devices of different index never share an address.
//! - **Virtual memory**: pages are created, mapped whole into a reserved range, given access,
//!   unmapped and released; misuse is an error and changes nothing. One page may be mapped at
//!   several addresses at once; [`SimDevice::extents`] tells which memory lies behind them.
//! - **Bytes** are kept where a test writes them ([`SimDevice::write`]), and seen at every address
//!   behind which their memory lies. They can be copied to the host and back.
//! - **Streams and events.** Work on a stream finishes when [`SimDevice::sync`] says so or somebody
//!   waits for it. Recording an event is itself work on its stream.
//! - **Graph capture.** Work issued on a captured stream becomes a node of the capture's graph. A
//!   stream that waits for a captured one ([`SimDevice::follow`]) joins the capture, and nodes
//!   depend on each other as the waits say. Nothing captured ever runs.
//! - **Whose a stream is.** A call about a stream that another thread is just beginning to capture,
//!   ceasing to capture or destroying, or that is destroyed, is noted ([`SimDevice::trespasses`]).
//! - **Sharing.** Devices with clones of one [`Wire`] are processes of one machine: what one shares
//!   the others open. Shared memory counts as used where it was created. Peers reach a device's
//!   memory once it was opened to them.
//! - **Time** is a number that every call moves on by what it costs on a real GPU ([`H200`]) and
//!   that [`SimDevice::advance`] moves on at will. What calls about memory cost is added up
//!   ([`SimDevice::spent`]). On a device whose time counts ([`SimOptions::timed`]) work lasts as
//!   long as [`SimDevice::run`] is told, and whoever waits for it lets that time go by.
//! - **Faults**, by a plan that replays from its seed ([`FaultPlan`]): calls that fail, pages that
//!   run out midway, events that are late, a tenant that comes and goes.
//!
//! What is not modelled: the bytes of other processes; kernels and how long they run; the replay of
//! graphs; the fragmentation of physical memory. Freeing waits for nothing,
//! where a real GPU's plain free waits for the whole device.
//!
//! Beside the device there are [`script`] (op scripts: reader and printer), [`random`] (the
//! generator behind every seed) and [`source_check`] (the checks that any source of segments must
//! pass).

#![forbid(unsafe_code)]

mod addresses;
mod calls;
mod capacity;
mod captures;
mod clock;
mod contents;
mod costs;
mod device;
mod extents;
mod faults;
mod hands;
mod host;
mod memory;
mod op;
mod options;
mod peek;
pub mod random;
pub mod script;
mod sharing;
mod slots;
pub mod source_check;
mod streams;
mod timing;

pub use calls::{CallKind, Calls};
pub use capacity::{CapacityError, parse_capacity};
pub use costs::{Costs, H200, Spent};
pub use device::{SimDevice, TENANT_PID};
pub use extents::Extent;
pub use faults::{FAULT_CODE, Fault, FaultPlan};
pub use host::SimHost;
pub use memory::{DEVICE_STRIDE, PLAIN_BASE, RESERVE_BASE, UNIT_BYTES};
pub use options::SimOptions;
pub use sharing::Wire;
pub use streams::Moment;
