//! Statistics of allocators for Prometheus and whatever else reads `OpenMetrics`.
//!
//! [`Exporter::serve`] answers `GET /metrics` on an address; [`page`] is the text alone, for
//! programs that have a server of their own.
//!
//! ```
//! use larder::Allocator;
//! use larder::metrics::page;
//!
//! let allocator = Allocator::simulated(0)?;
//! let block = allocator.alloc_block(4096, allocator.default_stream())?;
//! let text = page(allocator.core().map(|core| &**core));
//! assert!(text.contains("larder_allocated_bytes{device=\"0\",pool=\"small\"} 4096"));
//! # drop(block);
//! # Ok::<(), larder::Error>(())
//! ```

mod exporter;
mod page;

pub use exporter::Exporter;
pub use page::{page, page_with_hosts};
