//! A real GPU by its addresses alone, for programs that have their own way to the driver.

use larder::{Allocator, CudaError, Error};

fn main() -> Result<(), Error> {
    let allocator = match Allocator::cuda(0) {
        Err(Error::Cuda(error @ CudaError::NoDriver)) => {
            println!("nothing to show: {error}");
            return Ok(());
        }
        allocator => allocator?,
    };
    let [compute, copy] = [allocator.new_stream()?, allocator.new_stream()?];

    let batch = allocator.alloc_zeros::<f32>(1 << 20, &compute)?;
    println!("{} zeros at {:#x}, on the stream {:?}", batch.len(), batch.addr(), compute.id());
    batch.record_stream(&copy)?; // whoever gets the address may use it there
    drop(batch);
    drop(allocator.alloc::<f32>(1 << 20, allocator.default_stream())?);

    // A stream that is forgotten takes its cached memory along, and goes.
    allocator.forget_stream(compute)?;
    allocator.forget_stream(copy)?;
    allocator.empty_cache()?;
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    println!("{} bytes of the GPU are free", allocator.memory_info()?.free_bytes);
    Ok(())
}
