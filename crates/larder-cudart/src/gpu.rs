//! The one simulated GPU of the process, as the environment describes it.

use std::env;
use std::fs;
use std::sync::{Arc, OnceLock};

use larder::setup::{DevicesError, devices};
use larder_core::device::Device;
use larder_core::types::{Addr, Span};
use larder_sim::{SimDevice, SimOptions};

use crate::border::Status;

/// The device. It is made at the first call, and a description that cannot be read is an error of
/// every call: a run on another device than the one asked for would prove nothing.
pub(crate) fn gpu() -> Result<&'static SimDevice, Status> {
    shared().as_deref().map_err(|_| Status::UNKNOWN)
}

fn shared() -> &'static Result<Arc<SimDevice>, String> {
    static GPU: OnceLock<Result<Arc<SimDevice>, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        let made = options().map(SimDevice::new).map(Arc::new);
        if let Err(sentence) = &made {
            eprintln!("the simulated GPU cannot be made: {sentence}");
        }
        made
    })
}

/// The name under which Larder finds the device.
const OFFERED_AS: &str = "process";

/// Lets Larder's own allocator run on the device, in the same process as PyTorch's.
pub(crate) fn offer() {
    devices::offer(OFFERED_AS, || {
        let gpu: Arc<dyn Device> = shared().clone().map_err(DevicesError::NotMade)?;
        Ok(vec![gpu])
    });
}

fn options() -> Result<SimOptions, String> {
    let mut options = SimOptions::default();
    if let Some(value) = env::var_os("LARDER_SIM_MEMORY") {
        let value = value.to_string_lossy();
        options.memory_bytes = value
            .parse()
            .map_err(|_| format!("LARDER_SIM_MEMORY must be a number of bytes, not '{value}'"))?;
    }
    if let Some(path) = env::var_os("LARDER_SIM_ADDRESSES") {
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("LARDER_SIM_ADDRESSES: {}: {error}", path.display()))?;
        options.recorded_addresses = recorded_addresses(&text)?;
    }
    Ok(options)
}

/// Reads the lines `SIZE ADDRESS`.
fn recorded_addresses(text: &str) -> Result<Vec<Span>, String> {
    let span = |line: &str| {
        let (size, addr) = line.split_once(' ')?;
        let addr = u64::from_str_radix(addr, 16).ok()?;
        Some(Span::new(Addr(addr), size.parse().ok()?))
    };
    let wrong = |line: &str| format!("an address must be a line 'SIZE ADDRESS', not '{line}'");
    text.lines().map(|line| span(line).ok_or_else(|| wrong(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_line_by_line() {
        let spans = recorded_addresses("2097152 7f20b0000000\n20971520 a00000\n").unwrap();
        let expected = [(0x7f20_b000_0000, 2_097_152), (0xa0_0000, 20_971_520)];
        assert_eq!(spans, expected.map(|(addr, size)| Span::new(Addr(addr), size)));
        for wrong in ["1", "x a", "1 0xa", "1 a b"] {
            assert!(recorded_addresses(wrong).is_err(), "{wrong} was taken");
        }
    }
}
