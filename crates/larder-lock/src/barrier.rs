//! A fence whose whole cost one side bears.
//!
//! Two threads that each write one flag and then read the other's need a full fence on both sides,
//! or both may read the old value. Linux can make every running thread of the process execute a
//! fence on behalf of one of them (`membarrier`, private and expedited): then the frequent side
//! needs only to keep the compiler from reordering, and the rare side pays some microseconds.

use std::sync::atomic::{Ordering, compiler_fence};

/// The frequent side. It orders a store before a later load only against threads that call
/// [`heavy`] between their own store and load.
#[inline(always)]
#[allow(clippy::inline_always)] // It is no instruction at all.
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The rare side: every thread of the process passes a full fence before this returns. Panics
/// where [`is_available`] is false.
pub fn heavy() {
    assert!(system::fence(), "the fence was there when it was asked for");
}

/// Whether [`heavy`] works. Asked of the system once; later calls cost one load.
pub fn is_available() -> bool {
    use std::sync::OnceLock;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(system::fence)
}

#[cfg(target_os = "linux")]
mod system {
    /// Makes every running thread of the process pass a fence. A process has to register for it
    /// first; one that was forked or is new is not registered yet.
    pub(super) fn fence() -> bool {
        call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            || call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
                && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    fn call(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers and touches no memory of ours; a kernel that does
        // not know it, or the command, returns an error.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// There is no such fence that would suit.
    pub(super) fn fence() -> bool {
        false
    }
}
