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

    // Pinned memory of the host: the copies run behind the program's back, one after the other.
    let mut sent = allocator.alloc_pinned::<f32>(1 << 20)?;
    sent.as_mut_slice()?.expect("a real machine").fill(0.5);
    let mut received = allocator.alloc_pinned::<f32>(1 << 20)?;
    let mut on_gpu = allocator.alloc::<f32>(1 << 20, &stream)?;
    cuda.memcpy_htod(&sent, &mut on_gpu)?;
    other.memcpy_dtoh(&on_gpu, &mut received)?;
    let received = received.as_slice()?.expect("a real machine");
    assert!(received.iter().all(|value| value.to_bits() == 0.5_f32.to_bits()));
    println!("{} numbers went to the GPU and came back", received.len());
    Ok(())
}
