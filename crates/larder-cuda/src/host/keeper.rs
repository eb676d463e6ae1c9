//! A keeper in pinned memory: what sleeps is copied there at the link's rate, and the memory is
//! kept for the next time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::keeper::{Keeper, KeeperError, Kept};
use larder_core::types::{Addr, HOST_STREAM};
use larder_core::{Allocator, Config, Error, Policy};

use crate::HostDevice;

/// Keeps contents in pinned memory, which it gets as it is wanted, to the byte, and then keeps for
/// the next time.
pub struct PinnedKeeper {
    cache: Arc<Allocator>,
    /// At most so much is kept for the next time.
    limit_bytes: Arc<AtomicU64>,
}

impl PinnedKeeper {
    /// A keeper in the memory of this host. It takes none before it is wanted.
    pub fn new(host: HostDevice) -> PinnedKeeper {
        let cache = Allocator::new(Arc::new(host), Config::default(), Policy::pinned());
        PinnedKeeper { cache: Arc::new(cache), limit_bytes: Arc::new(AtomicU64::new(u64::MAX)) }
    }
}

/// Gives back what is cached, if that is more than the limit.
fn trim(cache: &Allocator, limit_bytes: u64) -> Result<(), Error> {
    if spare_bytes(cache) > limit_bytes { cache.empty_cache() } else { Ok(()) }
}

fn spare_bytes(cache: &Allocator) -> u64 {
    let stats = cache.stats();
    let spare_bytes = stats.reserved_bytes.all.current - stats.allocated_bytes.all.current;
    spare_bytes.unsigned_abs()
}

impl Keeper for PinnedKeeper {
    fn keep(&self, size_bytes: u64) -> Result<Box<dyn Kept>, KeeperError> {
        let addr = self.cache.malloc(size_bytes, HOST_STREAM).map_err(|error| error.to_string())?;
        let (cache, limit_bytes) = (Arc::clone(&self.cache), Arc::clone(&self.limit_bytes));
        Ok(Box::new(PinnedRoom { cache, limit_bytes, addr, size_bytes }))
    }

    fn set_limit(&self, limit_bytes: u64) -> Result<(), KeeperError> {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        trim(&self.cache, limit_bytes).map_err(|error| error.to_string().into())
    }

    fn give_back(&self) -> Result<(), KeeperError> {
        self.cache.empty_cache().map_err(|error| error.to_string().into())
    }

    fn spare_bytes(&self) -> u64 {
        spare_bytes(&self.cache)
    }
}

/// A live block of the cache, which nobody else knows of.
struct PinnedRoom {
    cache: Arc<Allocator>,
    limit_bytes: Arc<AtomicU64>,
    addr: Addr,
    size_bytes: u64,
}

impl Kept for PinnedRoom {
    fn bytes(&self) -> &[u8] {
        // SAFETY: it is a live block of memory of the host, of at least so many bytes, that is ours
        // until it is dropped. The system gives memory with bytes in it.
        unsafe { std::slice::from_raw_parts(self.addr.0 as *const u8, self.size_bytes as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has a reference into it.
        unsafe { std::slice::from_raw_parts_mut(self.addr.0 as *mut u8, self.size_bytes as usize) }
    }
}

impl Drop for PinnedRoom {
    fn drop(&mut self) {
        // Nobody can be told. What could not go is offered again when it is next trimmed.
        let _ = self.cache.free(self.addr);
        let _ = trim(&self.cache, self.limit_bytes.load(Ordering::Relaxed));
    }
}
