//! Memory set apart: what is allocated in a pool's scope comes from it and serves nobody else.

use larder::{Allocator, Error};

fn main() -> Result<(), Error> {
    let allocator = Allocator::simulated(0)?;
    let stream = allocator.new_stream()?;
    let pool = allocator.new_pool()?;

    let cache = pool.within(|| allocator.alloc::<f32>(8 << 20, &stream))?;
    let work = allocator.alloc::<f32>(8 << 20, &stream)?;
    println!(
        "the pool has {} segment, all have {}",
        pool.snapshot().len(),
        allocator.snapshot()?.len()
    );
    assert_eq!((pool.snapshot().len(), allocator.snapshot()?.len()), (1, 2));

    drop(cache);
    drop(pool); // its memory goes back to the GPU; the other buffer's stays
    println!("after the pool is gone: {}", allocator.snapshot()?.len());
    assert_eq!(allocator.snapshot()?.len(), 1);
    drop(work);
    Ok(())
}
