//! Two processes use one buffer. Here both are simulated; on a real GPU send `shared` over a pipe.

use larder::{Allocator, Error, SimOptions, Wire};

fn main() -> Result<(), Error> {
    let wire = Wire::default();
    let process = || {
        let options = SimOptions::default().wire(wire.clone());
        Allocator::builder().settings("expandable_segments:True")?.simulated_with(options)
    };
    let [sender, receiver] = [process()?, process()?];

    let weights = sender.alloc::<f32>(1 << 20, sender.default_stream())?;
    let shared = weights.share()?;
    println!(
        "{} bytes name the buffer, which starts at {}",
        shared.bytes.len(),
        shared.offset_bytes
    );

    let opened = receiver.open::<f32>(&shared, weights.len())?;
    println!(
        "{} floats at {:#x} there, at {:#x} here",
        opened.len(),
        weights.addr(),
        opened.addr()
    );

    let gone = shared.bytes.clone();
    drop(weights);
    sender.empty_cache()?; // the receiver keeps the pages that it has open
    drop(opened);
    let late = larder::Shared { bytes: gone, offset_bytes: 0 };
    println!("and later: {}", receiver.open::<f32>(&late, 1).unwrap_err());
    Ok(())
}
