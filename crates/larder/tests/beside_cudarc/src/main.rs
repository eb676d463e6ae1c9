//! A program that uses cudarc by itself and takes memory from Larder.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use larder::Allocator;

fn main() -> Result<(), Box<dyn Error>> {
    let simulated = Allocator::simulated(0)?;
    let buffer = simulated.alloc::<f32>(1000, simulated.default_stream())?;
    println!("{} bytes at {:#x}", buffer.size_bytes(), buffer.addr());
    if let Ok(allocator) = Allocator::cuda(0) {
        let stream = CudaContext::new(0)?.new_stream()?;
        println!("{} elements by cudarc alone", alone(&stream)?.len());
        #[cfg(feature = "together")]
        together(&allocator, &stream)?;
        println!("{} bytes free", allocator.memory_info()?.free_bytes);
    }
    Ok(())
}

fn alone(stream: &Arc<CudaStream>) -> Result<CudaSlice<f32>, DriverError> {
    stream.alloc_zeros(1000)
}

/// The traits and the types are those of the very cudarc that the program names.
#[cfg(feature = "together")]
fn together(allocator: &Allocator, stream: &Arc<CudaStream>) -> Result<(), larder::Error> {
    let mut buffer = allocator.alloc::<f32>(4, stream)?;
    stream.memcpy_htod(&[1.0, 2.0, 3.0, 4.0], &mut buffer)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, [1.0, 2.0, 3.0, 4.0]);
    Ok(())
}
