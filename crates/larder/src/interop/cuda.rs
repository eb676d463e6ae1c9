//! `cudarc`'s traits, so that a buffer goes into its copies, launches and library calls.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
};

use super::uses::Access;
use crate::buffer::Buffer;

impl<T> DeviceSlice<T> for Buffer<T> {
    fn len(&self) -> usize {
        Buffer::len(self)
    }

    /// # Panics
    /// If the buffer is on a simulated GPU, which `cudarc` cannot reach.
    fn stream(&self) -> &Arc<CudaStream> {
        let stream = self.block().stream().cuda();
        stream.expect("a buffer on a real GPU: cudarc cannot reach a simulated one")
    }
}

impl<T> DevicePtr<T> for Buffer<T> {
    /// # Panics
    /// If the buffer is on a simulated GPU, which `cudarc` cannot reach.
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.addr(), self.block().use_on(stream, Access::Read))
    }
}

impl<T> DevicePtrMut<T> for Buffer<T> {
    /// # Panics
    /// If the buffer is on a simulated GPU, which `cudarc` cannot reach.
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.addr(), self.block().use_on(stream, Access::Write))
    }
}

// A launch does not tell its arguments which stream it is on, so these two only pass the address.
// On a stream other than the buffer's own, take the address by `device_ptr` and pass that.

// SAFETY: an address is what a kernel takes for a pointer, and it lives as long as the buffer.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b Buffer<T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, buffer: &'b Buffer<T>) -> &mut Self {
        self.arg(buffer.block().addr_place())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut Buffer<T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, buffer: &'b mut Buffer<T>) -> &mut Self {
        self.arg(buffer.block().addr_place())
    }
}
