//! Settings are PyTorch's, by their names; a policy says who decides where it matters.

use larder::{Allocator, Config, Error, Policy};

fn main() -> Result<(), Error> {
    let allocator = Allocator::builder()
        .settings("expandable_segments:True,garbage_collection_threshold:0.8")?
        .policy(Policy::torch_2_11())
        .memory_fraction(0.25)
        .simulated(0)?;
    println!("expandable segments: {}", allocator.config().expandable_segments);

    // They can be changed while running.
    allocator.configure("max_split_size_mb:200")?;
    println!("split limit: {:?} bytes", allocator.config().max_split_bytes);

    // A mistake is one clear sentence, and changes nothing.
    let mistake = allocator.configure("max_split_size:200").unwrap_err();
    println!("{mistake}");
    assert_eq!(allocator.config().max_split_bytes, Some(200 << 20));
    assert_ne!(allocator.config(), Config::default());
    Ok(())
}
