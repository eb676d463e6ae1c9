//! `cudarc`'s traits, so that a buffer goes into its copies, launches and library calls.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
};

use crate::buffer::Buffer;
use crate::uses::Access;

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

/// A buffer that is in use on a stream: an argument for launches there. It lives at least as long
/// as the launch that it is given to; when it is dropped, the end of the use is noted, behind all
/// work that was issued on the stream by then.
#[derive(Debug)]
#[must_use = "the use ends when this is dropped, which has to be after the launch"]
pub struct InUse<'a> {
    addr: CUdeviceptr,
    _end: SyncOnDrop<'a>,
}

impl<T> Buffer<T> {
    /// The buffer for launches on this stream that read it. The stream waits for whoever wrote to
    /// the buffer last, and whoever writes to it next, or gets its memory, waits for the stream.
    ///
    /// ```no_run
    /// # use larder::{Buffer, Error};
    /// # use larder::cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn example(kernel: &CudaFunction, other: &CudaStream, input: &Buffer<f32>,
    /// #     output: &mut Buffer<f32>) -> Result<(), Error> {
    /// let (input, output) = (input.read_on(other), output.write_on(other));
    /// let mut launch = other.launch_builder(kernel);
    /// launch.arg(&input).arg(&output);
    /// unsafe { launch.launch(LaunchConfig::for_num_elems(1000))? };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the buffer is on a simulated GPU, which `cudarc` cannot reach.
    pub fn read_on<'a>(&'a self, stream: &'a CudaStream) -> InUse<'a> {
        InUse { addr: self.addr(), _end: self.block().use_on(stream, Access::Read) }
    }

    /// The buffer for launches on this stream that write to it. The stream waits for whoever uses
    /// the buffer elsewhere, and whoever uses it next, or gets its memory, waits for the stream.
    ///
    /// # Panics
    /// If the buffer is on a simulated GPU, which `cudarc` cannot reach.
    pub fn write_on<'a>(&'a mut self, stream: &'a CudaStream) -> InUse<'a> {
        InUse { addr: self.addr(), _end: self.block().use_on(stream, Access::Write) }
    }
}

// SAFETY: an address is what a kernel takes for a pointer, and it lives as long as the use, which
// borrows the buffer.
unsafe impl<'a, 'b: 'a, 'c: 'b> PushKernelArg<&'b InUse<'c>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, buffer: &'b InUse<'c>) -> &mut Self {
        self.arg(&buffer.addr)
    }
}

// A launch does not tell its arguments which stream it is on, so these two only pass the address:
// they are for launches on the buffer's own stream.

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
