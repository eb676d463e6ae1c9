//! A buffer that another stream reads is handed out again only when that stream is done.

use larder::{Allocator, Error};

fn main() -> Result<(), Error> {
    let allocator = Allocator::simulated(0)?;
    let [compute, copy] = [allocator.new_stream()?, allocator.new_stream()?];

    let batch = allocator.alloc::<u8>(4 << 20, &compute)?;
    let place = batch.addr();
    batch.record_stream(&copy)?; // a copy out of it runs on the other stream
    drop(batch);

    let meanwhile = allocator.alloc::<u8>(4 << 20, &compute)?;
    assert_ne!(meanwhile.addr(), place, "the copy may still be running");

    // On a real GPU the copy ends by itself; a simulated one is told.
    if let Some(gpu) = allocator.simulated_device() {
        gpu.sync(copy.id());
    }
    let later = allocator.alloc::<u8>(4 << 20, &compute)?;
    println!("{place:#x} is handed out again: {}", later.addr() == place);
    assert_eq!(later.addr(), place);
    Ok(())
}
