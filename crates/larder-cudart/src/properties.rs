//! What a program is told about the device: CUDA 13's structure of properties.

/// The structure up to the memory size, which is all that the allocator looks at, and room for the
/// rest of it, which is zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeviceProperties {
    name: [u8; 256],
    identity: [u8; 28],
    total_memory_bytes: usize,
    rest: [u64; 89],
}

impl DeviceProperties {
    /// A device with so much memory.
    pub(crate) fn with_memory(total_memory_bytes: u64) -> DeviceProperties {
        let mut name = [0; 256];
        let words = b"simulated GPU";
        name[..words.len()].copy_from_slice(words);
        DeviceProperties {
            name,
            identity: [0; 28],
            total_memory_bytes: total_memory_bytes as usize,
            rest: [0; 89],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_layout_is_that_of_cuda_13() {
        assert_eq!(size_of::<DeviceProperties>(), 1008);
        assert_eq!(offset_of!(DeviceProperties, total_memory_bytes), 288);
    }
}
