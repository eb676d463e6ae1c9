//! A buffer goes straight into cudarc: copies, and uses on several streams. It needs a GPU.

use larder::{Allocator, CudaError, Error};

fn main() -> Result<(), Error> {
    let allocator = match Allocator::cuda(0) {
        Err(Error::Cuda(error @ CudaError::NoDriver)) => {
            println!("nothing to show: {error}");
            return Ok(());
        }
        allocator => allocator?,
    };
    let [stream, side] = [allocator.new_stream()?, allocator.new_stream()?];
    let (cuda, other) = stream.cuda().zip(side.cuda()).expect("streams of a real GPU");

    let mut input = allocator.alloc::<f32>(4, &stream)?;
    cuda.memcpy_htod(&[1.0, 2.0, 3.0, 4.0], &mut input)?;
    let mut output = allocator.alloc_zeros::<f32>(4, &stream)?;

    // On the other stream: it waits for the copy by itself, and freeing waits for it.
    other.memcpy_dtod(&input, &mut output)?;
    drop(input);
    let values = cuda.clone_dtoh(&output)?;
    cuda.synchronize()?;
    println!("{values:?}");
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
    Ok(())
}
