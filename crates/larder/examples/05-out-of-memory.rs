//! Out of memory: numbers to act on, and observers that hear of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use larder::{Allocator, Error, SimOptions};

fn main() -> Result<(), Error> {
    let told = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&told);
    let allocator = Allocator::builder()
        .on_out_of_memory(move |report| {
            counter.fetch_add(1, Ordering::Relaxed);
            println!("observer: {} bytes did not fit", report.requested_bytes);
        })
        .simulated_with(SimOptions::default().memory_bytes(1 << 30))?;
    let stream = allocator.new_stream()?;

    let weights = allocator.alloc::<u8>(900 << 20, &stream)?;
    let error = allocator.alloc::<u8>(200 << 20, &stream).unwrap_err();
    println!("{error}");
    let report = error.out_of_memory().expect("the numbers");
    println!("{} bytes are free, {} are live", report.free_bytes, report.allocated_bytes);

    drop(weights);
    let batch = allocator.alloc::<u8>(200 << 20, &stream)?;
    println!("with the weights gone there is room for {} bytes", batch.size_bytes());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    Ok(())
}
