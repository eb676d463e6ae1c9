//! Statistics of allocators for Prometheus and whatever else reads `OpenMetrics`.
//!
//! [`Exporter::serve`] answers `GET /metrics` on an address; [`page`] is the text alone, for programs that
//! have a server of their own.
//!
//! ```
//! use std::sync::Arc;
//! use larder_core::{Allocator, Config, Policy, StreamId};
//! use larder_metrics::page;
//! use larder_sim::{SimDevice, SimOptions};
//!
//! let device = Arc::new(SimDevice::new(SimOptions::default()));
//! let allocator = Allocator::new(device, Config::default(), Policy::default());
//! let block = allocator.malloc(4096, StreamId(0)).unwrap();
//! assert!(page([&allocator]).contains("larder_allocated_bytes{device=\"0\",pool=\"small\"} 4096"));
//! # allocator.free(block).unwrap();
//! ```
#![forbid(unsafe_code)]

mod exporter;
mod page;

pub use exporter::Exporter;
pub use page::page;
