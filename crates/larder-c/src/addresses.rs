//! From an address to the device that gave it, with no lock: a hint for larders of several devices.
//!
//! The table has a leaf for each 64 GiB of addresses in which anything was handed out, and a leaf a
//! byte for each 2 MiB. What it says may be out of date, or another's where two far places share a
//! leaf; whoever asks tries the other devices then.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use larder_core::Addr;

/// 2 MiB, the unit in which devices give memory.
const GRANULE_SHIFT: u32 = 21;
/// Granules in a leaf: 64 GiB.
const LEAF_SHIFT: u32 = 15;
/// CUDA's addresses have at most 49 bits, and each of their leaves has a place of its own.
const ROOT_SHIFT: u32 = 13;

type Leaf = Box<[AtomicU8]>;

/// For each granule the number of the device, and one; 0 where nothing is known.
pub(crate) struct Addresses {
    root: Box<[OnceLock<Leaf>]>,
}

impl Addresses {
    pub(crate) fn new() -> Addresses {
        Addresses { root: (0..1_usize << ROOT_SHIFT).map(|_| OnceLock::new()).collect() }
    }

    /// The places of the address: which leaf, and where in it.
    fn places(addr: Addr) -> (usize, usize) {
        let granule = addr.0 >> GRANULE_SHIFT;
        let leaf = granule >> LEAF_SHIFT;
        // Addresses of simulated GPUs have more bits, and are folded.
        let leaf = (leaf ^ (leaf >> ROOT_SHIFT)) as usize & ((1 << ROOT_SHIFT) - 1);
        (leaf, granule as usize & ((1 << LEAF_SHIFT) - 1))
    }

    /// The device handed out this address. Nothing is written if that is known, so that threads
    /// that do the same again and again do not take the place from each other.
    #[inline]
    pub(crate) fn note(&self, addr: Addr, device: usize) {
        let Ok(mark) = u8::try_from(device + 1) else { return };
        let (leaf, at) = Addresses::places(addr);
        let leaf = self.root[leaf]
            .get_or_init(|| (0..1_usize << LEAF_SHIFT).map(|_| AtomicU8::new(0)).collect());
        if leaf[at].load(Ordering::Relaxed) != mark {
            leaf[at].store(mark, Ordering::Relaxed);
        }
    }

    /// The device that handed out this address, as far as is known.
    #[inline]
    pub(crate) fn device_of(&self, addr: Addr) -> Option<usize> {
        let (leaf, at) = Addresses::places(addr);
        let mark = self.root[leaf].get()?[at].load(Ordering::Relaxed);
        usize::from(mark).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_by_its_granule() {
        let table = Addresses::new();
        let addr = Addr(0x7f20_b000_0200);
        assert_eq!(table.device_of(addr), None);
        table.note(addr, 3);
        assert_eq!(table.device_of(addr), Some(3));
        assert_eq!(table.device_of(addr.offset(1 << 20)), Some(3), "the same 2 MiB");
        assert_eq!(table.device_of(addr.offset(2 << 20)), None);
        table.note(addr, 0);
        assert_eq!(table.device_of(addr), Some(0), "what came last is kept");
    }

    #[test]
    fn addresses_of_cuda_never_share_a_place() {
        let mut seen = std::collections::HashSet::new();
        for leaf in 0..1_u64 << ROOT_SHIFT {
            assert!(seen.insert(Addresses::places(Addr(leaf << (GRANULE_SHIFT + LEAF_SHIFT))).0));
        }
        assert_eq!(GRANULE_SHIFT + LEAF_SHIFT + ROOT_SHIFT, 49);
    }

    #[test]
    fn simulated_gpus_are_told_apart() {
        let table = Addresses::new();
        let bases = [larder_sim::RESERVE_BASE, larder_sim::PLAIN_BASE];
        let addr = |device: usize, base| Addr(device as u64 * larder_sim::DEVICE_STRIDE + base);
        for device in 0..8 {
            for base in bases {
                table.note(addr(device, base), device);
            }
        }
        for device in 0..8 {
            assert_eq!(bases.map(|base| table.device_of(addr(device, base))), [Some(device); 2]);
        }
    }

    #[test]
    fn a_device_whose_number_does_not_fit_is_not_noted() {
        let table = Addresses::new();
        table.note(Addr(1 << 21), 255);
        assert_eq!(table.device_of(Addr(1 << 21)), None);
        table.note(Addr(1 << 21), 254);
        assert_eq!(table.device_of(Addr(1 << 21)), Some(254));
    }
}
