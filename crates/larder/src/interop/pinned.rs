//! The elements of pinned memory as slices, for the program and for `cudarc`'s copies.

use std::slice;

use bytemuck::{AnyBitPattern, NoUninit};
#[cfg(feature = "cudarc")]
use cudarc::driver::{CudaStream, HostSlice, SyncOnDrop};

use crate::error::Error;
use crate::pinned::PinnedBuffer;

impl<T: AnyBitPattern> PinnedBuffer<T> {
    /// The elements, once the streams that were recorded are done with the work that they had. None
    /// on a simulated machine, whose memory is there in name alone.
    pub fn as_slice(&self) -> Result<Option<&[T]>, Error> {
        self.wait()?;
        // SAFETY: the copies that the buffer knows of are done; who makes others without telling it
        // does so by unsafe code, and answers for them.
        Ok((!self.is_simulated()).then(|| unsafe { self.elements() }))
    }

    /// The elements to write, as with [`PinnedBuffer::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<Option<&mut [T]>, Error>
    where
        T: NoUninit,
    {
        self.wait()?;
        // SAFETY: as above, and nobody else has the buffer.
        Ok((!self.is_simulated()).then(|| unsafe { self.elements_mut() }))
    }

    /// # Safety
    /// The memory is real, and no copy writes to it while the slice lives.
    unsafe fn elements(&self) -> &[T] {
        if self.is_empty() || size_of::<T>() == 0 {
            return &[];
        }
        // SAFETY: the elements are this buffer's as long as it lives; any bytes are values, and
        // memory that the system or the driver gave holds some. Addresses are multiples of 512, and
        // `alloc_pinned` saw to it that the size is no more than there is.
        unsafe { slice::from_raw_parts(self.addr() as *const T, self.len()) }
    }

    /// # Safety
    /// The memory is real, and no copy uses it while the slice lives.
    unsafe fn elements_mut(&mut self) -> &mut [T] {
        if self.is_empty() || size_of::<T>() == 0 {
            return &mut [];
        }
        // SAFETY: as above, and the buffer is borrowed for it alone.
        unsafe { slice::from_raw_parts_mut(self.addr() as *mut T, self.len()) }
    }
}

#[cfg(feature = "cudarc")]
impl<T> PinnedBuffer<T> {
    /// Lets the stream wait for the copies before, and has the next wait for this one. Where there
    /// is no event for that, the stream is waited for when the copy was issued.
    fn copy_on<'a>(&'a self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        assert!(!self.is_simulated(), "cudarc cannot reach a simulated machine");
        if self.copied.get().is_none()
            && let Ok(event) = stream.context().new_event(None)
        {
            let _ = self.copied.set(event);
        }
        match self.copied.get() {
            Some(copied) if stream.wait(copied).is_ok() => {
                SyncOnDrop::Record(Some((copied, stream)))
            }
            _ => SyncOnDrop::sync_stream(stream),
        }
    }
}

#[cfg(feature = "cudarc")]
impl<T: AnyBitPattern> HostSlice<T> for PinnedBuffer<T> {
    fn len(&self) -> usize {
        PinnedBuffer::len(self)
    }

    /// # Panics
    /// On a simulated machine, which `cudarc` cannot reach.
    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [T], SyncOnDrop<'a>) {
        let copy = self.copy_on(stream);
        // SAFETY: the caller uses the slice on the stream alone, which waits for the copies before.
        (unsafe { self.elements() }, copy)
    }

    /// # Panics
    /// On a simulated machine, which `cudarc` cannot reach.
    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        assert!(!self.is_simulated(), "cudarc cannot reach a simulated machine");
        let (addr, len) = (self.addr(), self.len());
        let copy = self.copy_on(stream);
        if len == 0 || size_of::<T>() == 0 {
            return (&mut [], copy);
        }
        // SAFETY: as above, and the buffer is borrowed for it alone: the event that the copy holds
        // is none of its elements.
        (unsafe { slice::from_raw_parts_mut(addr as *mut T, len) }, copy)
    }
}
