//! Any text as settings, as the name of devices and as a size: never a panic, and what is
//! accepted is accepted again on top of itself.
#![no_main]

use std::sync::Arc;

use larder::setup::{devices, settings};
use larder_core::heap::size;
use larder_core::types::{GIB, MIB, PoolKind};
use larder_core::{Allocator, Config, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions, parse_capacity};
use libfuzzer_sys::fuzz_target;

/// What people write in variables and arguments, with the policy among the settings.
fn read_as_people_write(text: &str) {
    match settings::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(read) => assert_eq!(read.overlay(text).as_ref(), Ok(&read)),
    }
    if settings::check_own("here", text).is_ok() {
        assert!(settings::parse(text).is_ok());
    }
    let _ = settings::check_torch("here", text);
    if let Err(error) = devices::parse(text) {
        assert!(!error.to_string().is_empty());
    }
    assert!(parse_capacity(text) != Ok(0));
}

fuzz_target!(|text: &str| {
    read_as_people_write(text);
    match Config::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(config) => {
            assert_eq!(config.update(text).as_ref(), Ok(&config));
            for kind in [PoolKind::Small, PoolKind::Large] {
                let page_bytes = size::page_bytes(kind, &config);
                assert!(page_bytes > 0 && page_bytes.is_multiple_of(2 * MIB));
                assert!(size::reserve_bytes(80 * GIB, page_bytes, None) >= 90 * GIB);
            }
            // A request on a small device, so that the settings meet everything that reads them.
            for policy in [Policy::larder(), Policy::tight()] {
                let options = SimOptions::default().memory_bytes(64 * MIB);
                let device = Arc::new(SimDevice::new(options));
                let allocator = Allocator::new(device, config.clone(), policy);
                for size_bytes in [700, 3 << 20, 30 << 20] {
                    if let Ok(addr) = allocator.malloc(size_bytes, StreamId(0)) {
                        allocator.free(addr).expect("it is live");
                    }
                }
                allocator.check().expect("every invariant holds");
            }
            for size_bytes in [1, 513, 1 << 20, (1 << 30) + 7, (1 << 50) - 3] {
                let rounded = size::round(size_bytes, &config);
                assert!(rounded >= size_bytes && rounded.is_multiple_of(size::BLOCK_UNIT_BYTES));
                assert!(size::segment_bytes(rounded, &config) >= rounded);
            }
        }
    }
});
