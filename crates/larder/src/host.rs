//! The host: its pinned memory, and the cache of it.

use std::sync::Arc;

use larder_core::device::Device;
use larder_core::{Config, Policy};

pub(crate) struct Host {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cache: larder_core::Allocator,
}

impl Host {
    pub(crate) fn new(device: Arc<dyn Device>) -> Host {
        let cache =
            larder_core::Allocator::new(Arc::clone(&device), Config::default(), Policy::pinned());
        Host { device, cache }
    }
}
