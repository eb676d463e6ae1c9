//! What a program needs, found out with no GPU: scripts and recorded programs, read, run on the
//! simulated GPU, compared under several settings, and fitted into the smallest memory.
#![forbid(unsafe_code)]

pub mod bench;
pub mod card;
pub mod category;
pub mod compare;
pub mod convert;
pub mod course;
mod crew;
pub mod explain;
pub mod fidelity;
pub mod file;
pub mod fit;
pub mod growth;
pub mod holdings;
pub mod lineup;
pub mod live;
pub mod margin;
pub mod marks;
mod option_error;
pub mod passes;
pub mod question;
pub mod ranks;
pub mod recording;
pub mod replay;
pub mod report;
pub mod scene;
pub mod settings;
pub mod setup;
pub mod sizes;
pub mod standing;
pub mod timeline;
pub mod told;
pub mod tune;
pub mod watch;
pub mod workload;
mod worth;

pub use option_error::OptionError;
