//! A part: addresses that one call mapped or reserved.

use std::ffi::c_void;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
}

impl Part {
    /// Cuts it in two.
    pub(super) fn split_at(self, size_bytes: u64) -> (Part, Part) {
        let rest = Part { addr: self.addr + size_bytes, size_bytes: self.size_bytes - size_bytes };
        (Part { size_bytes, ..self }, rest)
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// It is mapped or reserved, and nobody uses it any more.
    pub(super) unsafe fn unmap(self) {
        let (addr, size) = (self.addr as *mut c_void, self.size_bytes as usize);
        // SAFETY: the caller promises it.
        let unmapped = unsafe { rustix::mm::munmap(addr, size) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}
