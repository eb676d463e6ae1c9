//! Any text as settings: never a panic, and what is accepted is accepted again on top of itself.
#![no_main]

use larder_core::Config;
use larder_core::heap::size;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Config::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(config) => {
            assert_eq!(config.update(text).as_ref(), Ok(&config));
            for size_bytes in [1, 513, 1 << 20, (1 << 30) + 7, (1 << 50) - 3] {
                let rounded = size::round(size_bytes, &config);
                assert!(rounded >= size_bytes && rounded % size::BLOCK_UNIT_BYTES == 0);
                assert!(size::segment_bytes(rounded, &config) >= rounded);
            }
        }
    }
});
