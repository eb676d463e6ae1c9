//! The checks that any `Device` must pass.
//!
//! Every promise that the `Device` trait makes in words is a named check here, so that a device
//! that breaks one is told which. The simulated GPU runs them in its own tests; a device over real
//! hardware runs the same ones, with a [`Drive`] that launches real work.
//!
//! While the checks run, nobody else may use the device from this process, and other processes
//! should leave its memory alone: the checks compare free memory before and after.

use larder_core::device::{Device, DeviceError};
use larder_core::types::{Addr, StreamId};
use larder_sim::{SimDevice, SimHost};

#[cfg(test)]
mod broken;
mod captures;
mod contents;
mod events;
mod pages;
mod places;
mod plain;
mod sharing;

pub use larder_sim::source_check::Failure;

/// What the checks need besides the device, and what differs from one to the next.
pub trait Drive {
    /// Two different streams that exist and have no work on them.
    fn streams(&self) -> [StreamId; 2];

    /// Puts work on the stream that finishes by itself, at the latest when somebody waits for it.
    /// On a captured stream the work is captured.
    fn issue(&self, stream: StreamId);

    /// Puts work on the stream that does not finish before `finish` is called.
    fn hold(&self, stream: StreamId);

    /// Lets the held work of the stream finish, and returns when all its work has.
    fn finish(&self, stream: StreamId);

    /// Begins a graph capture of the stream, in a mode that forbids other threads and streams
    /// nothing.
    fn begin_capture(&self, stream: StreamId);

    /// Ends the stream's capture, which went well.
    fn end_capture(&self, stream: StreamId);

    /// Ends the stream's capture, which was broken.
    fn abandon_capture(&self, stream: StreamId);

    /// Lets the stream wait for the work that the other one has been given so far: an event
    /// recorded there and waited for here.
    fn follow(&self, stream: StreamId, other: StreamId);

    /// Lets work of the device write a byte, and returns when it is done; false if the device could
    /// not.
    fn write(&self, addr: Addr, value: u8) -> bool;

    /// A byte as work of the device reads it; none if the device could not.
    fn read(&self, addr: Addr) -> Option<u8>;

    /// Whether the device refuses to release a page that is mapped, and to give back a range in
    /// which something is. Some drivers allow it and put the consequences off.
    fn refuses_misuse(&self) -> bool {
        true
    }

    /// By how much the free memory may differ from what the calls so far add up to.
    fn slack_bytes(&self) -> u64 {
        0
    }
}

/// A simulated device drives itself.
impl Drive for SimDevice {
    fn streams(&self) -> [StreamId; 2] {
        [StreamId(1), StreamId(2)]
    }

    fn issue(&self, stream: StreamId) {
        SimDevice::issue(self, stream);
    }

    fn hold(&self, stream: StreamId) {
        SimDevice::issue(self, stream);
    }

    fn finish(&self, stream: StreamId) {
        self.sync(stream);
    }

    fn begin_capture(&self, stream: StreamId) {
        SimDevice::begin_capture(self, stream).expect("a stream that is not captured");
    }

    fn end_capture(&self, stream: StreamId) {
        SimDevice::end_capture(self, stream).expect("a capture that went well");
    }

    fn abandon_capture(&self, stream: StreamId) {
        // A device that let the misuse pass has not broken the capture.
        let _ = SimDevice::end_capture(self, stream);
    }

    fn follow(&self, stream: StreamId, other: StreamId) {
        SimDevice::follow(self, stream, other).expect("streams that may wait for each other");
    }

    fn write(&self, addr: Addr, value: u8) -> bool {
        SimDevice::write(self, addr, value)
    }

    fn read(&self, addr: Addr) -> Option<u8> {
        SimDevice::read(self, addr)
    }
}

/// A simulated host's work is its GPU's, and its bytes are its own.
impl Drive for SimHost {
    fn streams(&self) -> [StreamId; 2] {
        Drive::streams(&**self.gpu())
    }

    fn issue(&self, stream: StreamId) {
        self.gpu().issue(stream);
    }

    fn hold(&self, stream: StreamId) {
        self.gpu().issue(stream);
    }

    fn finish(&self, stream: StreamId) {
        self.gpu().sync(stream);
    }

    fn begin_capture(&self, stream: StreamId) {
        Drive::begin_capture(&**self.gpu(), stream);
    }

    fn end_capture(&self, stream: StreamId) {
        Drive::end_capture(&**self.gpu(), stream);
    }

    fn abandon_capture(&self, stream: StreamId) {
        Drive::abandon_capture(&**self.gpu(), stream);
    }

    fn follow(&self, stream: StreamId, other: StreamId) {
        Drive::follow(&**self.gpu(), stream, other);
    }

    fn write(&self, addr: Addr, value: u8) -> bool {
        self.memory().write(addr, value)
    }

    fn read(&self, addr: Addr) -> Option<u8> {
        self.memory().read(addr)
    }
}

/// Every check, in the order in which they are run.
fn all() -> impl Iterator<Item = Check> {
    let memory = [plain::CHECKS, pages::CHECKS, places::CHECKS];
    let others = [events::CHECKS, captures::CHECKS, sharing::CHECKS, contents::CHECKS];
    memory.into_iter().chain(others).flatten().copied()
}

/// Runs every check, in order, up to the first that fails. A device that passes is left as it was.
pub fn check(device: &dyn Device, drive: &dyn Drive) -> Result<(), Failure> {
    let subject = Subject { device, drive };
    for (name, run) in all() {
        run(&subject).map_err(|text| Failure { check: name, text })?;
    }
    Ok(())
}

/// Runs every check, whatever came of those before, and says how many there are. A check that fails
/// may leave something behind that later ones trip over.
pub fn check_all(device: &dyn Device, drive: &dyn Drive) -> Result<usize, Vec<Failure>> {
    let subject = Subject { device, drive };
    let failures: Vec<Failure> = all()
        .filter_map(|(name, run)| run(&subject).err().map(|text| Failure { check: name, text }))
        .collect();
    if failures.is_empty() { Ok(all().count()) } else { Err(failures) }
}

/// A check: its name, and the function that says what is wrong.
type Check = (&'static str, fn(&Subject<'_>) -> Outcome);
type Outcome = Result<(), String>;

/// The device under examination.
struct Subject<'a> {
    device: &'a dyn Device,
    drive: &'a dyn Drive,
}

impl Subject<'_> {
    fn granularity_bytes(&self) -> u64 {
        self.device.properties().granularity_bytes
    }

    fn free_bytes(&self) -> Result<u64, String> {
        must("memory_info", self.device.memory_info()).map(|info| info.free_bytes)
    }

    /// Fails unless the free memory is what it should be, give or take the slack.
    fn expect_free(&self, expected_bytes: u64, when: &str) -> Outcome {
        let free_bytes = self.free_bytes()?;
        let holds = free_bytes.abs_diff(expected_bytes) <= self.drive.slack_bytes();
        ensure(holds, || format!("{when}, {free_bytes} bytes are free, not {expected_bytes}"))
    }

    fn write(&self, addr: Addr, value: u8) -> Outcome {
        let written = self.drive.write(addr, value);
        ensure(written, || format!("the byte at {addr} could not be written"))
    }

    /// Fails unless the byte is what it should be.
    fn expect_byte(&self, addr: Addr, expected: u8, when: &str) -> Outcome {
        let value = self.drive.read(addr);
        ensure(value == Some(expected), || {
            format!("{when}, the byte at {addr} reads {value:?}, not {expected}")
        })
    }
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(text()) }
}

/// The value of a call that has to succeed.
fn must<T>(call: &str, result: Result<T, DeviceError>) -> Result<T, String> {
    result.map_err(|error| format!("{call} failed: {error}"))
}

/// Fails unless the call was refused, for a reason other than a lack of memory.
fn must_refuse<T>(call: &str, result: Result<T, DeviceError>) -> Outcome {
    match result.err() {
        None => Err(format!("{call} was not refused")),
        Some(DeviceError::OutOfMemory) => Err(format!("{call} was refused as out of memory")),
        Some(_) => Ok(()),
    }
}

/// Fails unless the call ran out of memory.
fn must_run_out<T>(call: &str, result: Result<T, DeviceError>) -> Outcome {
    match result {
        Ok(_) => Err(format!("{call} did not run out of memory")),
        Err(DeviceError::OutOfMemory) => Ok(()),
        Err(error) => Err(format!("{call} did not say that it is out of memory, but: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::types::MIB;

    use super::*;
    use larder_sim::SimOptions;

    #[test]
    fn the_simulated_device_keeps_every_promise_and_is_left_as_it_was() {
        for virtual_memory in [true, false] {
            for index in [0, 3] {
                let options = SimOptions::default().index(index).virtual_memory(virtual_memory);
                let device = SimDevice::new(options);
                assert_eq!(check(&device, &device), Ok(()));
                assert_eq!((device.used_bytes(), device.page_count()), (0, 0));
                assert_eq!(device.event_count(), 0);
            }
        }
    }

    #[test]
    fn a_simulated_host_keeps_every_promise_beside_its_gpu() {
        let gpu = Arc::new(SimDevice::new(SimOptions::default()));
        let host = SimHost::new(Arc::clone(&gpu), 4 << 30);
        assert_eq!(check(&host, &host), Ok(()));
        assert_eq!((host.memory().used_bytes(), gpu.used_bytes(), gpu.event_count()), (0, 0, 0));
    }

    #[test]
    fn a_small_device_with_a_tenant_on_it_passes_too() {
        let memory_bytes = 300 * MIB + 512;
        let device = SimDevice::new(SimOptions::default().memory_bytes(memory_bytes));
        device.tenant_take(100 * MIB);
        assert_eq!(check(&device, &device), Ok(()));
    }
}
