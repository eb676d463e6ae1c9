//! What calls cost, as the simulated GPU adds it up.

use larder_core::device::Device;
use larder_core::types::{MIB, Span};
use larder_sim::{SimDevice, UNIT_BYTES};

#[test]
fn what_is_paid_for_is_the_memory_that_a_call_is_about() {
    let device = SimDevice::default();
    let paid_ns = |call: &dyn Fn()| {
        let before = device.spent();
        call();
        device.spent().since(before).ns
    };
    let range = device.reserve(516 * MIB).unwrap();
    let sizes = [UNIT_BYTES, UNIT_BYTES, 512 * MIB];
    let pages = sizes.map(|size_bytes| device.create_page(size_bytes).unwrap());
    let spans = [0, 2 * MIB, 4 * MIB].map(|offset| range.offset(offset));
    let spans = [0, 1, 2].map(|at| Span::new(spans[at], sizes[at]));
    for (span, page) in spans.into_iter().zip(pages) {
        assert_eq!(paid_ns(&|| device.map(span, page).unwrap()), 1_800);
    }
    let access_ns = paid_ns(&|| device.set_access(Span::new(range, 516 * MIB)).unwrap());
    assert_eq!(access_ns, 36_000 + 36_000 + 59_000);
    for (span, page) in spans.into_iter().zip(pages) {
        device.unmap(span).unwrap();
        let expected_ns = if span.size_bytes == UNIT_BYTES { 16_000 } else { 344_000 };
        assert_eq!(paid_ns(&|| device.release_page(page).unwrap()), expected_ns);
    }
    let addr = device.alloc(128 * MIB).unwrap();
    assert_eq!(paid_ns(&|| device.free(addr).unwrap()), 128_000);
    assert_eq!((device.calls().map, device.calls().access), (3, 1));
}
