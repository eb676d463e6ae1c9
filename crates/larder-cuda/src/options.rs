//! What can be chosen about a device.

use crate::sys::CUmemAllocationHandleType;

/// How pages are made known to other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareBy {
    /// By file descriptors, which processes of one machine can fetch from each other.
    #[default]
    Descriptor,
    /// By handles that are good on all machines of an NVLink fabric. The system must have been set
    /// up for it.
    Fabric,
    /// Not at all.
    Nothing,
}

impl ShareBy {
    pub(crate) fn handles(self) -> CUmemAllocationHandleType {
        use CUmemAllocationHandleType as Type;
        match self {
            ShareBy::Descriptor => Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ShareBy::Fabric => Type::CU_MEM_HANDLE_TYPE_FABRIC,
            ShareBy::Nothing => Type::CU_MEM_HANDLE_TYPE_NONE,
        }
    }
}

/// What can be chosen about a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// How pages are made known to other processes.
    pub share_by: ShareBy,
    /// Whether the device's context is made at the first call that needs it and not at once. It
    /// takes some hundred MiB, so a process with many GPUs of which it uses few wants this.
    pub late_context: bool,
}

/// Each takes the options as they are so far, and gives them back with one of them set.
impl CudaOptions {
    /// How pages are made known to other processes.
    #[must_use]
    pub fn share_by(mut self, share_by: ShareBy) -> Self {
        self.share_by = share_by;
        self
    }

    /// Whether the context is made at the first call that needs it.
    #[must_use]
    pub fn late_context(mut self, late_context: bool) -> Self {
        self.late_context = late_context;
        self
    }
}
