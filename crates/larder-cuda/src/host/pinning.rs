//! How memory of the host is pinned: the driver gives it, or it is mapped here, touched by several
//! threads, and registered with the driver. The second is faster for much of it: the system has to
//! fill every page with zeros first, which the driver lets one thread do.

use std::sync::Arc;

use larder_core::device::DeviceError;

use super::node::Node;
#[cfg(target_os = "linux")]
use super::shared::{self, Mapped};
#[cfg(target_os = "linux")]
pub(super) use super::spare::Spare;
use crate::driver;

/// No other system has a CUDA driver, and none maps memory here.
#[cfg(not(target_os = "linux"))]
pub(super) type Spare = ();

/// From this size on mapping and registering is what is best.
const REGISTER_MIN_BYTES: u64 = 8 << 20;
/// What is registered in one piece. Drivers refuse 512 GiB and more.
const REGISTER_MAX_BYTES: u64 = 256 << 30;

/// How memory is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(usize)]
pub enum PinBy {
    /// Whatever is best for the size.
    #[default]
    Best = 0,
    /// By registering what was mapped here.
    Register = 1,
    /// By the driver alone.
    Driver = 2,
}

impl PinBy {
    pub(super) fn of(number: usize) -> PinBy {
        [PinBy::Best, PinBy::Register, PinBy::Driver][number.min(2)]
    }
}

/// Pinned memory that is held.
#[derive(Debug)]
pub(super) enum Pinned {
    /// The driver gave it.
    Given { addr: u64 },
    /// It was mapped here, and registered in pieces of this size.
    #[cfg(target_os = "linux")]
    Registered { memory: Mapped, size_bytes: u64, piece_bytes: u64 },
}

impl Pinned {
    pub(super) fn addr(&self) -> u64 {
        match self {
            Pinned::Given { addr } => *addr,
            #[cfg(target_os = "linux")]
            Pinned::Registered { memory, .. } => memory.addr(),
        }
    }

    /// Pins memory of whole pages. A context is current on the thread.
    pub(super) fn get(
        size_bytes: u64,
        by: PinBy,
        threads: usize,
        node: &Node,
        spare: &Arc<Spare>,
    ) -> Result<Pinned, DeviceError> {
        let registers = match by {
            PinBy::Best => size_bytes >= REGISTER_MIN_BYTES,
            PinBy::Register => true,
            PinBy::Driver => false,
        };
        if registers {
            match Self::register(size_bytes, REGISTER_MAX_BYTES, threads, node, spare) {
                // Not every system can register; the driver's own way is there everywhere.
                Err(error) if error != DeviceError::OutOfMemory && by == PinBy::Best => {}
                answer => return answer,
            }
        }
        driver::alloc_host(size_bytes).map(|addr| Pinned::Given { addr })
    }

    /// No other system has a CUDA driver.
    #[cfg(not(target_os = "linux"))]
    fn register(_: u64, _: u64, _: usize, _: &Node, _: &Arc<Spare>) -> Result<Pinned, DeviceError> {
        Err(DeviceError::NotSupported)
    }

    /// Maps memory and registers it, in pieces of at most so many bytes.
    #[cfg(target_os = "linux")]
    fn register(
        size_bytes: u64,
        piece_bytes: u64,
        threads: usize,
        node: &Node,
        spare: &Arc<Spare>,
    ) -> Result<Pinned, DeviceError> {
        let memory = shared::map(size_bytes, threads, node, spare)?;
        let pieces = || pieces(memory.addr(), size_bytes, piece_bytes);
        for (count, (start, length)) in pieces().enumerate() {
            // SAFETY: it is mapped, and stays so until it was unregistered.
            if let Err(error) = unsafe { driver::register_host(start, length) } {
                for (start, _) in pieces().take(count) {
                    // SAFETY: it was registered just now, and nobody knows of it.
                    let _ = unsafe { driver::unregister_host(start) };
                }
                // SAFETY: it was mapped just now, and nobody knows of it.
                unsafe { spare.put(&memory.parts) };
                return Err(error);
            }
        }
        Ok(Pinned::Registered { memory, size_bytes, piece_bytes })
    }

    /// Gives it back. If that fails it is as it was. A context is current on the thread.
    ///
    /// # Safety
    /// Nobody uses the memory any more.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    pub(super) unsafe fn give_back(&self, spare: &Arc<Spare>) -> Result<(), DeviceError> {
        match self {
            // SAFETY: the driver gave it, and the caller promises that nobody uses it.
            Pinned::Given { addr } => unsafe { driver::free_host(*addr) },
            #[cfg(target_os = "linux")]
            Pinned::Registered { memory, size_bytes, piece_bytes } => {
                let pieces = || pieces(memory.addr(), *size_bytes, *piece_bytes);
                for (count, (start, _)) in pieces().enumerate() {
                    // SAFETY: it was registered, and the caller promises that nobody uses it.
                    if let Err(error) = unsafe { driver::unregister_host(start) } {
                        for (start, length) in pieces().take(count) {
                            // SAFETY: it is mapped still.
                            let _ = unsafe { driver::register_host(start, length) };
                        }
                        return Err(error);
                    }
                }
                // SAFETY: it was mapped here, and nobody uses it any more.
                unsafe { spare.put(&memory.parts) };
                Ok(())
            }
        }
    }
}

/// The pieces of a range, each with its size.
#[cfg(target_os = "linux")]
fn pieces(addr: u64, size_bytes: u64, piece_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..size_bytes).step_by(piece_bytes as usize);
    starts.map(move |start| (addr + start, piece_bytes.min(size_bytes - start)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_for_one_registration_is_cut() {
        let gibibyte = 1 << 30;
        let cut: Vec<_> = pieces(4096, 600 * gibibyte, REGISTER_MAX_BYTES).collect();
        let sizes: Vec<u64> = cut.iter().map(|piece| piece.1 / gibibyte).collect();
        assert_eq!(sizes, [256, 256, 88]);
        assert_eq!(cut[2].0, 4096 + 512 * gibibyte);
        assert_eq!(pieces(0, 4096, REGISTER_MAX_BYTES).count(), 1);
    }
}
