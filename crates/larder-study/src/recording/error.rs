//! Why a snapshot could not be turned into operations.

use std::{error, fmt};

use larder_core::types::Addr;

/// Why a snapshot could not be turned into operations. Its text is one sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingError {
    /// The snapshot has segments only.
    NoTraces,
    /// There is no trace for this device.
    NoSuchDevice {
        /// The device that was asked for.
        device: u32,
        /// How many devices the snapshot has traces for.
        device_count: usize,
    },
    /// The trace of this device is empty.
    EmptyTrace {
        /// The device that was asked for.
        device: u32,
        /// The first device whose trace is not empty.
        recorded_device: Option<u32>,
    },
    /// An entry allocates an address that is in use.
    AllocatedTwice {
        /// The device.
        device: u32,
        /// Which entry of its trace, from 0.
        entry: usize,
        /// The address.
        addr: Addr,
    },
    /// An entry frees an address that was freed before.
    FreedTwice {
        /// The device.
        device: u32,
        /// Which entry of its trace, from 0.
        entry: usize,
        /// The address.
        addr: Addr,
    },
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RecordingError::NoTraces => f.write_str(
                "there is no trace in this snapshot, only segments; record one with \
                 torch.cuda.memory._record_memory_history() and save it with \
                 torch.cuda.memory._dump_snapshot()",
            ),
            RecordingError::NoSuchDevice { device, device_count: 1 } => {
                write!(f, "the snapshot has no device {device}: `device_traces` has device 0 alone")
            }
            RecordingError::NoSuchDevice { device, device_count } => write!(
                f,
                "the snapshot has no device {device}: `device_traces` has {device_count} devices, \
                 counted from 0"
            ),
            RecordingError::EmptyTrace { device, recorded_device: None } => write!(
                f,
                "the trace of device {device} is empty: the memory history was not on when the \
                 snapshot was taken"
            ),
            RecordingError::EmptyTrace { device, recorded_device: Some(recorded) } => write!(
                f,
                "the trace of device {device} is empty; device {recorded} has one, choose it with \
                 --device {recorded}"
            ),
            RecordingError::AllocatedTwice { device, entry, addr } => write!(
                f,
                "device_traces[{device}][{entry}] allocates {addr}, which is in use at that time"
            ),
            RecordingError::FreedTwice { device, entry, addr } => {
                write!(f, "device_traces[{device}][{entry}] frees {addr}, which was freed before")
            }
        }
    }
}

impl error::Error for RecordingError {}
