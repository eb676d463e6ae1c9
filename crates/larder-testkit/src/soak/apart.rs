//! Apart: no two blocks in use lie on the same bytes of the device, at whatever addresses.
//!
//! Addresses alone do not tell: a page may be mapped at several of them.

use larder_core::types::{Addr, Span};

use larder_sim::{Extent, SimDevice};

/// Fails if two of the blocks, which share no address, share a byte. What is not the device's
/// memory is passed over.
pub(super) fn check(
    device: &SimDevice,
    blocks: impl IntoIterator<Item = Span>,
) -> Result<(), String> {
    if !device.is_aliased() {
        return Ok(());
    }
    let mut extents: Vec<(Extent, Addr)> = Vec::new();
    for block in blocks {
        let found = device.extents(block).unwrap_or_default();
        extents.extend(found.into_iter().map(|extent| (extent, block.addr)));
    }
    extents.sort_unstable();
    for pair in extents.windows(2) {
        let [(extent, addr), (next, next_addr)] = [pair[0], pair[1]];
        if extent.overlaps(&next) {
            return Err(format!(
                "the blocks at {addr} and {next_addr} lie on the same bytes of the device"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_core::device::Device;

    use super::*;
    use larder_sim::UNIT_BYTES;

    /// A page of two units, mapped twice, and one of one unit between the two.
    fn aliased() -> (SimDevice, Addr) {
        let device = SimDevice::default();
        let addr = device.reserve(5 * UNIT_BYTES).unwrap();
        let page = device.create_page(2 * UNIT_BYTES).unwrap();
        let other = device.create_page(UNIT_BYTES).unwrap();
        for (first, units, page) in [(0, 2, page), (2, 1, other), (3, 2, page)] {
            let span = Span::new(addr.offset(first * UNIT_BYTES), units * UNIT_BYTES);
            device.map(span, page).unwrap();
        }
        device.set_access(Span::new(addr, 5 * UNIT_BYTES)).unwrap();
        (device, addr)
    }

    #[test]
    fn blocks_that_share_bytes_at_different_addresses_are_found() {
        let (device, addr) = aliased();
        let block = |from, to: u64| Span::new(addr.offset(from), to - from);
        let (unit, second) = (UNIT_BYTES, 3 * UNIT_BYTES);
        for other in [block(second, second + 2 * unit), block(second + unit - 1, second + unit)] {
            let found = check(&device, [block(0, unit), other]).unwrap_err();
            assert!(found.contains("the same bytes of the device"), "{found}");
        }
        let itself = check(&device, [block(0, 5 * unit)]);
        assert!(itself.is_err(), "one block has a page twice");
        assert_eq!(check(&device, [block(0, unit), block(unit, 3 * unit)]), Ok(()));
        assert_eq!(
            check(&device, [block(0, unit), block(second + unit, second + 2 * unit)]),
            Ok(())
        );
    }
}
