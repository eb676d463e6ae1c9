//! Tapes: a history that is written to a file while the program runs.
//!
//! A tape is a row of cells of 64 bytes in a memory-mapped file. What was written is the kernel's
//! at once: a program that is killed or aborts leaves everything up to its last event. (A machine
//! that loses power does not.) [`Recorder`] writes one, [`Tape`] reads it.
//!
//! ```
//! use std::sync::Arc;
//! use larder_core::{Allocator, Config, Policy, StreamId};
//! use larder_sim::{SimDevice, SimOptions};
//! use larder_tape::{Recorder, Tape};
//!
//! let path = std::env::temp_dir().join(format!("doc-{}.tape", std::process::id()));
//! let device = Arc::new(SimDevice::new(SimOptions::default()));
//! let allocator = Allocator::new(device, Config::default(), Policy::default());
//! let recorder = Recorder::create(&path)?;
//! recorder.listen(&allocator);
//! let block = allocator.malloc(4096, StreamId(0)).unwrap();
//! allocator.free(block).unwrap();
//! recorder.finish()?;
//! assert_eq!(Tape::open(&path)?.events.len(), 4); // segment_alloc, alloc, and two for the free
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fork;
mod format;
mod reader;
mod recorder;
mod strip;

pub use reader::{Follower, Tape, TapeError, TapeEvent, TapeNote};
pub use recorder::Recorder;

/// The first bytes of a tape.
pub const MAGIC: [u8; 8] = format::MAGIC;
