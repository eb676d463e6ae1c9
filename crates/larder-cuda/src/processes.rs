//! Who else uses the device's memory, as NVML tells.

use std::sync::OnceLock;

use larder_core::device::ProcessMemory;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

/// The name under which every driver installs it; the plain one comes with tools for developers.
const LIBRARY: &str = "libnvidia-ml.so.1";

fn load() -> Option<Nvml> {
    Nvml::builder().lib_path(LIBRARY.as_ref()).init().or_else(|_| Nvml::init()).ok()
}

/// The list of one device, asked for when it is wanted.
#[derive(Default)]
pub(crate) struct Processes {
    /// NVML is loaded when the list is wanted first; none where there is no NVML.
    nvml: OnceLock<Option<Nvml>>,
}

impl Processes {
    /// What each process holds of the device at this address on the bus. Empty where NVML is not
    /// there, does not tell, or names processes by numbers that mean nothing here, as it does in a
    /// container: then this process is not among them.
    pub(crate) fn of(&self, bus_id: &str) -> Vec<ProcessMemory> {
        let nvml = self.nvml.get_or_init(load);
        let Some(nvml) = nvml else { return Vec::new() };
        let listed = nvml
            .device_by_pci_bus_id(bus_id)
            .and_then(|device| device.running_compute_processes())
            .unwrap_or_default();
        let own_pid = std::process::id();
        let mut processes: Vec<ProcessMemory> = Vec::new();
        for process in listed {
            let UsedGpuMemory::Used(used_bytes) = process.used_gpu_memory else { continue };
            // A process that computes in several contexts is listed once for each.
            match processes.iter_mut().find(|known| known.pid == process.pid) {
                Some(known) => known.used_bytes = known.used_bytes.max(used_bytes),
                None => processes.push(ProcessMemory {
                    pid: process.pid,
                    own: process.pid == own_pid,
                    used_bytes,
                }),
            }
        }
        if !processes.iter().any(|process| process.own) {
            processes.clear();
        }
        processes
    }
}
