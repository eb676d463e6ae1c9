//! Buffers come from a cache: the second one costs no call to the GPU.

use larder::{Allocator, Error};

fn main() -> Result<(), Error> {
    let allocator = Allocator::simulated(0)?; // Allocator::cuda(0)? on a machine with a GPU
    let stream = allocator.new_stream()?;

    let first = allocator.alloc::<f32>(1_000_000, &stream)?;
    println!("{} floats at {:#x}", first.len(), first.addr());
    drop(first); // back into the cache, in the order of the stream

    let second = allocator.alloc::<f32>(1_000_000, &stream)?;
    let stats = allocator.stats();
    println!("the same place again: {:#x}", second.addr());
    println!("calls that took memory from the GPU: {}", stats.num_device_alloc);
    assert_eq!(stats.num_device_alloc, 1);
    Ok(())
}
