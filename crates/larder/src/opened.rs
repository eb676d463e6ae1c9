//! Memory of another process, as long as it is open here.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::AnyBitPattern;
use larder_core::Addr;
use larder_core::allocator::share::Shared;

use crate::allocator::Allocator;
use crate::error::Error;

/// Elements that another process shares. Dropping the last of what one handle opened closes it,
/// once the work of the GPU so far has finished.
///
/// ```
/// use larder::{Allocator, SimOptions, Wire};
///
/// // Two simulated GPUs on one wire are two processes on one GPU.
/// let wire = Wire::default();
/// let process = || {
///     let options = SimOptions::default().wire(wire.clone());
///     Allocator::builder().simulated_with(options)
/// };
/// let [sender, receiver] = [process()?, process()?];
/// let weights = sender.alloc::<f32>(1000, sender.default_stream())?;
/// let shared = weights.share()?; // send this to the other process
/// let opened = receiver.open::<f32>(&shared, 1000)?;
/// assert_eq!(opened.len(), 1000);
/// # Ok::<(), larder::Error>(())
/// ```
pub struct Opened<T> {
    allocator: Allocator,
    /// Where the handle's memory starts; what this one names may start behind it.
    base: Addr,
    offset_bytes: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Opened<T> {
    pub(crate) fn new(
        allocator: Allocator,
        base: Addr,
        offset_bytes: u64,
        len: usize,
    ) -> Result<Opened<T>, Error> {
        let opened = Opened { allocator, base, offset_bytes, len, element: PhantomData };
        let size_bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        let end = size_bytes.and_then(|size| size.checked_add(offset_bytes));
        if end.and_then(|end| base.0.checked_add(end)).is_none() {
            // Dropping it closes it again.
            let element_bytes = size_of::<T>();
            return Err(Error::Outside { len, element_bytes, offset_bytes });
        }
        Ok(opened)
    }

    /// Where the elements are here, as a number.
    pub fn addr(&self) -> u64 {
        self.base.0 + self.offset_bytes
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Allocator {
    /// Opens `len` elements that another process shares: what
    /// [`Buffer::share`](crate::Buffer::share) gave there.
    pub fn open<T: AnyBitPattern>(&self, shared: &Shared, len: usize) -> Result<Opened<T>, Error> {
        let base = self.native("open shared memory")?.open_shared(&shared.bytes)?;
        Opened::new(self.clone(), base, shared.offset_bytes, len)
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        if let Err(error) = self.allocator.close(self.base) {
            self.allocator.note_drop_error(error);
        }
    }
}

impl<T> fmt::Debug for Opened<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "Opened<{element}>({} at {:#x})", self.len, self.addr())
    }
}
