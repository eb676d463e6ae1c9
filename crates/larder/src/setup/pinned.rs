//! Pinned memory of the host: what it is opened for, its limit, and what is said when there is too
//! little of it.

use std::sync::Arc;

use larder_core::device::Device;
use larder_core::types::Bytes;
use larder_core::{Allocator, Config, Error, OutOfMemory, Policy};
use larder_cuda::{CudaDevice, HostDevice};
use larder_sim::{SimDevice, SimOptions};

use super::devices::{self, Devices};
use super::error::DevicesError;

/// Pinned memory of the host as a device.
#[derive(Clone)]
pub enum Host {
    /// That of this machine.
    Real(Arc<HostDevice>),
    /// That of a simulated one.
    Simulated(Arc<SimDevice>),
}

impl Host {
    /// Pinned memory for copies to and from these devices. Real ones go through `prepare`, which
    /// may vouch for streams; a simulated host has as much memory as a device of that name.
    pub fn open(
        devices: &Devices,
        prepare: fn(CudaDevice) -> CudaDevice,
    ) -> Result<Host, DevicesError> {
        match devices {
            &Devices::Simulated { memory_bytes, .. } => {
                let options = SimOptions::default();
                let options = options.memory_bytes(memory_bytes).virtual_memory(false);
                Ok(Host::Simulated(Arc::new(SimDevice::new(options))))
            }
            Devices::Offered(name) => Err(DevicesError::NotPinned(name)),
            Devices::AllCuda | Devices::Cuda(_) => {
                let gpus = devices::real(devices, prepare)?;
                Ok(Host::Real(Arc::new(HostDevice::new(gpus))))
            }
        }
    }

    /// It as any other device.
    pub fn device(&self) -> Arc<dyn Device> {
        match self {
            Host::Real(host) => Arc::clone(host) as _,
            Host::Simulated(host) => Arc::clone(host) as _,
        }
    }

    /// The machine's, if it is not simulated.
    pub fn real(&self) -> Option<&HostDevice> {
        match self {
            Host::Real(host) => Some(host),
            Host::Simulated(_) => None,
        }
    }

    /// An allocator over it that holds no more than the limit.
    pub fn allocator(&self, limit_bytes: Option<u64>) -> Result<Allocator, Error> {
        let device = self.device();
        let total_bytes = device.properties().total_bytes;
        // To pin much takes long, and whoever finds something in the cache need not wait for it.
        let mut config = Config::default();
        config.release_lock_on_device_alloc = true;
        let allocator = Allocator::new(device, config, Policy::pinned());
        if let Some(limit_bytes) = limit_bytes.filter(|&bytes| bytes < total_bytes) {
            allocator.set_memory_fraction(limit_bytes as f64 / total_bytes as f64)?;
        }
        Ok(allocator)
    }
}

/// That a request could not be met, in one sentence.
pub fn words(report: &OutOfMemory) -> String {
    let wanted = Bytes(report.requested_bytes);
    let held = Bytes(report.reserved_bytes);
    let used = Bytes(report.allocated_bytes);
    let rest = Bytes(report.reserved_bytes.saturating_sub(report.allocated_bytes));
    let state =
        format!("{used} are in use, and {rest} are free in pieces or awaited by copies or graphs");
    match report.cap_bytes {
        Some(cap_bytes) => format!(
            "out of pinned host memory: {wanted} were asked for, and of the {} that pinned_limit \
             allows {held} are held: {state}",
            Bytes(cap_bytes),
        ),
        None => format!(
            "out of pinned host memory: {wanted} were asked for, the host has {} left, and {held} \
             are held: {state}",
            Bytes(report.free_bytes),
        ),
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::{HOST_STREAM, MIB};

    use super::*;

    fn simulated(text: &str) -> Host {
        Host::open(&devices::parse(text).unwrap(), |device| device).unwrap()
    }

    #[test]
    fn the_limit_is_kept_to_the_byte_and_says_what_is_held() {
        let allocator = simulated("sim:1GiB").allocator(Some(100 * MIB + 4096)).unwrap();
        let first = allocator.malloc(60 * MIB, HOST_STREAM).unwrap();
        allocator.malloc(40 * MIB + 4096, HOST_STREAM).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.malloc(1, HOST_STREAM) else {
            panic!("the limit is reached")
        };
        assert_eq!(
            words(&report),
            "out of pinned host memory: 1 bytes were asked for, and of the 100.00 MiB that \
             pinned_limit allows 100.00 MiB are held: 100.00 MiB are in use, and 0 bytes are free \
             in pieces or awaited by copies or graphs"
        );
        allocator.free(first).unwrap();
        allocator.malloc(1, HOST_STREAM).unwrap();
    }

    #[test]
    fn without_a_limit_the_host_is_one() {
        let allocator = simulated("sim:64MiB").allocator(Some(1 << 40)).unwrap();
        let Err(Error::OutOfMemory(report)) = allocator.malloc(65 * MIB, HOST_STREAM) else {
            panic!("the host has less")
        };
        let said = words(&report);
        assert!(said.contains("the host has 64.00 MiB left, and 0 bytes are held"), "{said}");
    }
}
