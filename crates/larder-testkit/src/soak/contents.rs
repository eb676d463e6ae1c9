//! Contents: what a program writes into a block is there until it frees the block.

use larder_core::Addr;
use larder_core::types::Span;

use larder_sim::{SimDevice, UNIT_BYTES};

/// Where a block is written: at its ends, and at both ends of every unit in it. That meets every
/// page, and every place at which memory might be put together wrongly.
fn places(block: Span) -> impl Iterator<Item = Addr> {
    let (begin, end) = (block.addr.0, block.end().0);
    let first = begin.next_multiple_of(UNIT_BYTES);
    let seams = (first..end).step_by(UNIT_BYTES as usize).flat_map(|at| [at.max(1) - 1, at]);
    let within = seams.filter(move |at| (begin..end).contains(at));
    [begin, end - 1].into_iter().chain(within).map(Addr)
}

/// What is written there. No block has the same as another at the same place for a while.
fn byte(id: u64, at: usize) -> u8 {
    (id.wrapping_mul(31) as usize).wrapping_add(at) as u8
}

/// Fills a block that was just handed out.
pub(crate) fn fill(device: &SimDevice, block: Span, id: u64) -> Result<(), String> {
    for (at, addr) in places(block).enumerate() {
        if !device.write(addr, byte(id, at)) {
            return Err(format!("{addr} cannot be written, in the block at {}", block.addr));
        }
    }
    Ok(())
}

/// Fails if a block does not have what it was filled with.
pub(crate) fn check(device: &SimDevice, block: Span, id: u64) -> Result<(), String> {
    // The ends may be written twice: what was written last counts.
    let mut expected = std::collections::BTreeMap::new();
    for (at, addr) in places(block).enumerate() {
        expected.insert(addr, byte(id, at));
    }
    for (addr, byte) in expected {
        let found = device.read(addr);
        if found != Some(byte) {
            return Err(format!(
                "{addr}, in the block at {}, holds {found:?} and not {byte}",
                block.addr
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_core::device::Device;

    use super::*;

    #[test]
    fn a_block_that_somebody_else_wrote_to_is_found() {
        let device = SimDevice::default();
        let block = Span::new(device.alloc(5 * UNIT_BYTES).unwrap().offset(512), 4 * UNIT_BYTES);
        fill(&device, block, 7).unwrap();
        assert_eq!(check(&device, block, 7), Ok(()));
        assert!(check(&device, block, 8).is_err());
        let seam = Addr(block.addr.0.next_multiple_of(UNIT_BYTES));
        fill(&device, Span::new(seam, 1), 200).unwrap();
        assert!(check(&device, block, 7).is_err());
    }

    #[test]
    fn blocks_smaller_than_a_unit_are_filled_too() {
        let device = SimDevice::default();
        let addr = device.alloc(UNIT_BYTES).unwrap();
        for block in [Span::new(addr, 1), Span::new(addr, 512), Span::new(addr.offset(512), 2)] {
            fill(&device, block, 3).unwrap();
            assert_eq!(check(&device, block, 3), Ok(()));
        }
    }
}
