//! File descriptors of other processes.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use larder_core::device::DeviceError;

/// No other system lets a process do that, and none has a CUDA driver.
#[cfg(not(target_os = "linux"))]
pub(crate) fn fetch(_pid: u32, _descriptor: RawFd) -> Result<OwnedFd, DeviceError> {
    Err(DeviceError::NotSupported)
}

/// A descriptor of ours for what a descriptor of another process is open on. The system lets a
/// process do that to its own kind: same user, and no rule against tracing.
#[cfg(target_os = "linux")]
pub(crate) fn fetch(pid: u32, descriptor: RawFd) -> Result<OwnedFd, DeviceError> {
    use std::os::fd::AsRawFd;

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    let fail = |call: &str, error: Errno| DeviceError::Other {
        code: error.raw_os_error(),
        text: format!(
            "{call} of descriptor {descriptor} of process {pid}: {error}{}",
            remedy(error)
        ),
    };
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| fail("pidfd_open", Errno::SRCH))?;
    let process =
        pidfd_open(process, PidfdFlags::empty()).map_err(|error| fail("pidfd_open", error))?;
    // A descriptor of our own that was closed may have come back as the one just opened.
    if pid == std::process::id() && process.as_raw_fd() == descriptor {
        return Err(fail("pidfd_getfd", Errno::BADF));
    }
    pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty())
        .map_err(|error| fail("pidfd_getfd", error))
}

/// What to do where the system, as in many containers, lets no process fetch another's descriptor.
#[cfg(target_os = "linux")]
fn remedy(error: rustix::io::Errno) -> &'static str {
    use rustix::io::Errno;
    if ![Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&error) {
        return "";
    }
    "; this system forbids it, and plain memory does not need it: let the process that shares \
     allocate inside \
     larder.torch.plain_memory(), or set expandable_segments:False there, unless the policy is \
     tight"
}

/// Closes a descriptor that the driver made for us.
///
/// # Safety
/// The descriptor is open, and nobody else owns it.
pub(crate) unsafe fn close(descriptor: RawFd) {
    // SAFETY: the caller gives up the descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_descriptor_is_fetched_from_a_process() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let fetched = fetch(std::process::id(), writer.as_raw_fd()).unwrap();
        drop(writer);
        File::from(fetched).write_all(b"still open").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still open");
    }

    #[test]
    fn where_the_system_forbids_it_the_sentence_says_what_to_do() {
        use rustix::io::Errno;
        for error in [Errno::PERM, Errno::NOSYS] {
            assert!(remedy(error).contains("expandable_segments:False"), "{error}");
        }
        assert_eq!(remedy(Errno::SRCH), "");
    }

    #[test]
    fn what_is_not_there_is_an_error_that_names_it() {
        let error = fetch(std::process::id(), 9999).unwrap_err().to_string();
        assert!(error.contains("descriptor 9999"), "{error}");
        let error = fetch(u32::MAX, 1).unwrap_err().to_string();
        assert!(error.contains("pidfd_open"), "{error}");
    }
}
