//! What there was too little of, as numbers.

use larder_core::OutOfMemory;

/// `larder_out_of_memory`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OutOfMemoryReport {
    pub(crate) device: i32,
    pub(crate) rejected: bool,
    pub(crate) has_cap: bool,
    pub(crate) requested_bytes: u64,
    pub(crate) rounded_bytes: u64,
    pub(crate) tried_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) cap_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) private_free_bytes: u64,
}

impl OutOfMemoryReport {
    /// The report under the number that the device has in its larder.
    pub(crate) fn new(device: i32, report: &OutOfMemory) -> OutOfMemoryReport {
        OutOfMemoryReport {
            device,
            rejected: report.rejected,
            has_cap: report.cap_bytes.is_some(),
            requested_bytes: report.requested_bytes,
            rounded_bytes: report.rounded_bytes,
            tried_bytes: report.tried_bytes,
            free_bytes: report.free_bytes,
            total_bytes: report.total_bytes,
            cap_bytes: report.cap_bytes.unwrap_or(0),
            allocated_bytes: report.allocated_bytes,
            reserved_bytes: report.reserved_bytes,
            private_free_bytes: report.private_free_bytes,
        }
    }
}
