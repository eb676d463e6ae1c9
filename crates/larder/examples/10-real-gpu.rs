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

    // Pinned memory of the host, which takes what is asked for.
    let mut pinned = allocator.alloc_pinned::<u64>(3_000_000)?;
    let numbers = pinned.as_mut_slice()?.expect("a real machine");
    numbers.iter_mut().zip(1..).for_each(|(place, number)| *place = number);
    pinned.record_stream(&copy)?; // whoever gets the address may copy there
    assert_eq!(pinned.as_slice()?.map(|numbers| numbers[2_999_999]), Some(3_000_000));
    drop(pinned);
    allocator.empty_pinned_cache()?;
    assert_eq!(allocator.pinned_stats().reserved_bytes.all.current, 0);

    // A stream that is forgotten takes its cached memory along, and goes.
    allocator.forget_stream(compute)?;
    allocator.forget_stream(copy)?;
    allocator.empty_cache()?;
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    println!("{} bytes of the GPU are free", allocator.memory_info()?.free_bytes);
    Ok(())
}
