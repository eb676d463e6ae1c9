//! A buffer as a tensor for other libraries, by DLPack: no copy, and the buffer lives as long.

use larder::{Allocator, Error};

fn main() -> Result<(), Error> {
    let allocator = Allocator::simulated(0)?;
    let buffer = allocator.alloc_zeros::<f32>(6, allocator.default_stream())?;

    let tensor = buffer.into_dlpack(&[2, 3])?;
    let seen = tensor.tensor();
    println!("{} dimensions, {} bits each, at {:p}", seen.ndim, seen.dtype.bits, seen.data);
    println!("on device {} of type {}", seen.device.device_id, seen.device.device_type);
    println!("live buffers: {}", allocator.stats().allocation.all.current);

    // `into_raw` gives the tensor to whoever takes it, with a function that gives it up.
    drop(tensor);
    println!("live buffers: {}", allocator.stats().allocation.all.current);
    assert_eq!(allocator.stats().allocation.all.current, 0);
    Ok(())
}
