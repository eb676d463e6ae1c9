//! Fit: under the policy tight a request goes where it leaves whole pages, and not always into the
//! smallest block.

use crate::bench_top::BenchTop;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy};

/// Two free blocks with something live around each, on pages of 2 MiB: 4 MiB that are two pages,
/// and 5 MiB that are half a page and two whole ones.
fn two_gaps() -> (BenchTop, [Addr; 2]) {
    let top = BenchTop::new(4 * GIB, "page_size_mb:2", Policy::tight());
    let [_, four, _, five, _] = [20, 4, 1, 5, 20].map(|mib| top.malloc(mib * MIB));
    assert_eq!((four.0 % (2 * MIB), five.0 % (2 * MIB)), (0, MIB));
    top.free(four);
    top.free(five);
    (top, [four, five])
}

#[test]
fn a_request_leaves_whole_pages_where_it_can() {
    let (top, [four, five]) = two_gaps();
    let reserved_bytes = top.stats().reserved_bytes.all.current;
    assert_eq!(top.malloc(3 * MIB), five, "the smaller one would be left with half a page");
    assert_eq!(top.malloc(4 * MIB), four);
    assert_eq!(top.malloc(2 * MIB), five.offset(3 * MIB));
    assert_eq!(top.stats().reserved_bytes.all.current, reserved_bytes, "nothing is left over");
}

#[test]
fn of_several_that_are_as_good_the_smallest_is_taken() {
    let (top, [four, five]) = two_gaps();
    assert_eq!(top.malloc(4 * MIB), four, "in either as much is stranded as before");
    assert_eq!(top.malloc(5 * MIB), five);
}
