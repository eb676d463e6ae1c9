//! What is where: every segment and block, and the statistics by PyTorch's names.

use larder::{Allocator, Bytes, Error};

fn main() -> Result<(), Error> {
    let allocator = Allocator::simulated(0)?;
    let stream = allocator.new_stream()?;
    let sizes = [1000, 300_000, 5_000_000, 70_000_000];
    let mut buffers = sizes
        .into_iter()
        .map(|len| allocator.alloc::<u8>(len, &stream))
        .collect::<Result<Vec<_>, _>>()?;
    buffers.swap_remove(1);

    for segment in allocator.snapshot()? {
        println!("segment of {} at {}", Bytes(segment.span.size_bytes), segment.span.addr);
        for block in &segment.blocks {
            println!("  {:>10}  {:?}", Bytes(block.span.size_bytes).to_string(), block.state);
        }
    }
    for (name, value) in allocator.stats().entries() {
        if name.starts_with("allocated_bytes.all") {
            println!("{name} = {value}");
        }
    }
    Ok(())
}
