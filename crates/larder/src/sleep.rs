//! Sleep and wake: memory goes back to the GPU while its addresses stay, and comes back.

use larder_core::allocator::sleep::{SleepStats, Slept, Which};
use larder_core::allocator::tags::TagState;
use larder_core::{Addr, Keep};

use crate::allocator::Allocator;
use crate::error::Error;

impl Allocator {
    /// Runs `body` with memory of a tag for all requests of this thread. What has a tag sleeps by
    /// itself; `keep` says what becomes of its contents then.
    ///
    /// ```
    /// use larder::{Allocator, Keep, Which};
    ///
    /// let allocator = Allocator::simulated(0)?;
    /// let stream = allocator.new_stream()?;
    /// let floats = |len| allocator.alloc::<f32>(len, &stream);
    /// let weights = allocator.region("weights", Keep::Contents, || floats(1 << 20))?;
    /// let cache = allocator.region("cache", Keep::Nothing, || floats(1 << 24))?;
    ///
    /// let slept = allocator.sleep(&Which::All, None)?;
    /// assert_eq!(slept.kept_bytes, 4 << 20); // the weights; the GPU has all memory back
    /// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    /// allocator.wake(&Which::tag("weights"))?; // at the same addresses, with what was in them
    /// # allocator.wake(&Which::All)?;
    /// # drop((weights, cache));
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn region<T>(
        &self,
        tag: &str,
        keep: Keep,
        body: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.native("put memory to sleep")?.region(tag, keep, body)?
    }

    /// Puts memory to sleep: it goes back to the GPU, and its addresses stay. Nothing may use it
    /// until it wakes. Contents are kept as the tags say, or as `keep` does. See
    /// [`larder_core::Allocator::sleep`].
    pub fn sleep(&self, which: &Which, keep: Option<Keep>) -> Result<Slept, Error> {
        Ok(self.native("put memory to sleep")?.sleep(which, keep)?)
    }

    /// Wakes memory. If the GPU has no room for all of it, the error says how much is missing, and
    /// all sleeps on.
    pub fn wake(&self, which: &Which) -> Result<(), Error> {
        Ok(self.native("put memory to sleep")?.wake(which)?)
    }

    /// What sleeps, what is kept of it, and how often memory woke.
    pub fn sleep_stats(&self) -> Result<SleepStats, Error> {
        Ok(self.native("put memory to sleep")?.sleep_stats())
    }

    /// All tags, and what each has.
    pub fn tags(&self) -> Result<Vec<TagState>, Error> {
        Ok(self.native("put memory to sleep")?.tags())
    }

    /// What is kept of the memory at this address, which sleeps; none if nothing is.
    pub fn kept_contents(&self, addr: u64) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.native("put memory to sleep")?.kept_contents(Addr(addr))?)
    }

    /// Of the host's memory that contents were kept in, at most so many bytes are kept for the next
    /// time from now on; 0 gives all of it back.
    pub fn set_keep_limit(&self, limit_bytes: u64) -> Result<(), Error> {
        let keeper = self.native("put memory to sleep")?.keeper();
        keeper.set_limit(limit_bytes).map_err(Error::Keeper)
    }
}
