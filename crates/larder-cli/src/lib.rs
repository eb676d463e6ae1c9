//! The program `larder`, as a library: reading snapshots and scripts, and running them on the
//! simulated GPU.
#![forbid(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod convert;
pub mod file;
pub mod fit;
pub mod listing;
pub mod perfetto;
pub mod pickle;
pub mod progress;
pub mod replay;
pub mod report;
pub mod snapshot;
pub mod workload;
